"""An agent's journal: where it goes on after it was killed, and what it must not forget.

Every so often the journal keeps all that the algorithm goes on from, and what was said to each neighbour and may be
asked for again. It is written beside the run, to a file that is replaced in one step once it is on disk; only then do
neighbours learn that they need not keep what they said before. So whenever an agent is killed, it finds a journal that
it can go on from, and neighbours that have kept what it has heard since: it hears the same again, and computes the same
again. Nothing needs to be written for every round, and nothing is lost.

What cannot be computed again is written before it is acted upon: the random number that stands for this run, and which
agents are gone for good.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import queue
import secrets
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from elmesh.agent.agent_state import Entry, arrays_of, entry_of
from elmesh.comm.network.messenger import Post
from elmesh.errors import ElmeshError
from elmesh.run.array_io import (
    DamagedError,
    Rows,
    open_arrays,
    tensor,
    write_arrays,
    write_text,
)
from elmesh.run.base import Moment, Past

__all__ = ["Journal"]


_VERSION = 1
# Rounds and seconds from one entry to the next, and how many rounds may pass without one before the agent waits: fewer
# than neighbours keep messages for it.
_ROUNDS, _SECONDS, _BEHIND = 128, 1.0, 256
# What was said and is kept for neighbours, in bytes, that asks for an entry at once.
_BYTES = 8 << 20
# Seconds from one attempt to write to the next, when the disk is full.
_AGAIN = 0.5


class Journal:
    """The journal of one agent, in a folder of its own.

    Parameters
    ----------
    folder : path
        Made if need be, and locked: two processes cannot be the same agent.
    patience : float
        Seconds to wait for room on the disk.
    log : callable
        Is told of trouble.
    """

    def __init__(self, folder: Path, patience: float, log: Callable[..., None]) -> None:
        self._folder, self._patience, self._log = folder, patience, log
        self._lock = _lock(folder)
        self._file, self._run = folder / "journal.safetensors", folder / "run.json"
        self._work: queue.Queue[tuple[dict[str, NDArray[Any]], dict[str, str], dict[str, int]] | None] = queue.Queue(1)
        self._busy, self._idle = threading.Event(), threading.Event()
        self._trouble: str | None = None
        self._last_round, self._last_time = -1, time.monotonic()
        self._rows, self.written = Rows(), 0
        self._post: Post | None = None
        self._writer: threading.Thread | None = None
        self._fields: dict[str, Any] = {}
        self._last: tuple[Moment, Callable[[], Past]] | None = None
        self._writing = threading.Lock()
        self.life, self.gone = 0, frozenset[str]()
        #: What else was agreed on and cannot be found again, and what entries are told from others by.
        self.notes: dict[str, Any] = {}
        self.about: dict[str, Any] = {}

    @property
    def begun(self) -> bool:
        """Whether the folder holds a run."""
        return self._run.exists()

    def open(self, fields: Mapping[str, Any], fresh: bool) -> bool:
        """Find out which run this is: the one that the folder holds, or a new one; say whether there was one.

        Parameters
        ----------
        fields
            What the run is of; a folder with the journal of something else is refused.
        fresh
            Whether to begin anew, whatever is there.
        """
        self._fields = json.loads(json.dumps(dict(fields)))
        if fresh:
            self.clear()
        run = self._read_run()
        if run is not None:
            odd = next((name for name in self._fields if run["fields"].get(name) != self._fields[name]), None)
            if odd is not None:
                raise ElmeshError(
                    f"{self._folder} holds the journal of another run: its {odd} differs; finish that one with what it "
                    "was begun with, or begin anew with --fresh."
                )
            self.life, self.gone, self.notes = run["life"], frozenset(run["gone"]), dict(run["notes"])
            return True
        # Not 0, which stands for a run that is not known.
        self.life = secrets.randbits(62) + 1
        self._write_run()
        return False

    def _read_run(self) -> dict[str, Any] | None:
        if not self._run.exists():
            return None
        try:
            run = json.loads(self._run.read_text(encoding="utf-8"))
            known = run["version"] == _VERSION and type(run["life"]) is int and 0 < run["life"] < 2**63
            known = known and isinstance(run["fields"], dict) and isinstance(run["notes"], dict)
            known = known and all(isinstance(name, str) for name in run["gone"])
        except (ValueError, KeyError, TypeError, OSError, RecursionError):
            known = False
        if not known:
            raise ElmeshError(f"{self._run} is damaged; begin anew with --fresh, here and at every other agent.")
        return dict(run)

    def _write_run(self, patience: float | None = None) -> None:
        run = {
            "version": _VERSION,
            "life": self.life,
            "gone": sorted(self.gone),
            "notes": self.notes,
            "fields": self._fields,
        }
        text = json.dumps(run, indent=1)
        end = time.monotonic() + (self._patience if patience is None else patience)
        while True:
            try:
                with self._writing:
                    write_text(self._run, text)
            except OSError as error:
                self._say_trouble(error)
                if time.monotonic() > end:
                    raise self._no_room() from None
                if self._post is not None:
                    self._post.check_stop()
                time.sleep(_AGAIN)
            else:
                if not self._busy.is_set():
                    self._say_fine()
                return

    def note(self, name: str, value: Any) -> None:
        """Write down something that was agreed on."""
        self.notes[name] = value
        self._write_run()

    def remember(self, name: str, what: str) -> None:
        """Write something down about a neighbour, if there is room: it only saves a wait after a restart."""
        known = self.notes.get(what, [])
        if name not in known:
            self.notes[what] = sorted([*known, name])
            with contextlib.suppress(ElmeshError):
                self._write_run(patience=0.0)

    def regroup(self, gone: frozenset[str]) -> None:
        """Write down, before anybody is told, that agents are gone for good; the run begins anew without them."""
        self._drain()
        self.gone, self.notes, self._last = gone, {}, None
        self._write_run()
        self._file.unlink(missing_ok=True)
        self._last_round, self._last_time, self._rows = -1, time.monotonic(), Rows()

    def latest(self) -> Entry | None:
        """Return what the journal holds, or None if it holds nothing yet."""
        if not self._file.exists():
            return None
        try:
            with open_arrays(self._file) as file:
                labels = file.metadata()
                about = json.loads(labels["about"])
                arrays: dict[str, Any] = {name: tensor(file, name, labels) for name in file.keys()}  # noqa: SIM118
                if about["epoch"] != sorted(self.gone) or about["life"] != self.life:
                    return None  # it was about to be removed
                return entry_of(about, arrays)
        except (DamagedError, KeyError, ValueError, TypeError):
            raise ElmeshError(
                f"{self._file} is damaged, so there is no going on from it; begin anew with --fresh, here and at every "
                "other agent."
            ) from None

    def attach(self, post: Post) -> None:
        """Keep what this post stands at from now on, and tell it what is on disk."""
        self._post, post.remember = post, self.remember
        self._writer = threading.Thread(target=self._write_all, name="elmesh-journal", daemon=True)
        self._writer.start()

    def keep(self, moment: Moment, past: Callable[[], Past]) -> None:
        """Make an entry if it is time for one; wait if the last one could not be written for too long."""
        post = self._post
        if post is None:
            raise TypeError("The journal was asked to keep a round before it knew of the post.")
        self._last = moment, past
        k, now = moment.report.round, time.monotonic()
        self._raise_broken()
        if self._trouble is not None and k - self._last_round >= _BEHIND:
            self._wait_for_room()
        due = k - self._last_round >= _ROUNDS or now - self._last_time >= _SECONDS or k == 0
        if not (due or post.kept_bytes > _BYTES) or self._busy.is_set():
            return
        self.make(moment, past())

    def conclude(self, saved: Mapping[str, Any]) -> None:
        """Write down that the model is saved, and all that neighbours may ask for yet: before they learn of it."""
        self._drain()
        if self._last is None or self._busy.is_set():
            return  # without it, a restart from here on has to wait for neighbours that may have left
        moment, past = self._last
        self.make(moment, past(), dict(saved))
        self._drain()

    def make(self, moment: Moment, past: Past, saved: dict[str, Any] | None = None) -> None:
        """Hand an entry to the writer."""
        if self._post is None:
            raise TypeError("The journal has no post yet.")
        arrays, labels, heard = arrays_of(
            moment,
            self._rows.of(past),
            self._post.snapshot(),
            {**self.about, "life": self.life, "epoch": sorted(self.gone), "saved": saved},
        )
        self._last_round, self._last_time = moment.report.round, time.monotonic()
        self._idle.clear()
        self._busy.set()
        self._work.put((arrays, labels, heard))

    def _write_all(self) -> None:
        while (work := self._work.get()) is not None:
            arrays, labels, heard = work
            while True:
                try:
                    write_arrays(self._file, arrays, labels)
                except OSError as error:
                    self._say_trouble(error)
                    if self._closing:
                        break
                    time.sleep(_AGAIN)
                    continue
                except Exception as error:  # or the run would go on without entries, and nobody would know
                    self._broken = error
                    return
                self._say_fine()
                self.written += 1
                if self._post is not None:
                    self._post.settle(heard)
                break
            self._busy.clear()
            self._idle.set()

    _closing = False
    _broken: Exception | None = None

    def _raise_broken(self) -> None:
        if self._broken is not None:
            raise self._broken

    def _say_trouble(self, error: OSError) -> None:
        if self._trouble is None:
            self._log("journal", folder=str(self._folder), problem=error.strerror or str(error))
        self._trouble = error.strerror or str(error)

    def _say_fine(self) -> None:
        if self._trouble is not None:
            self._log("journal", folder=str(self._folder), problem=None)
        self._trouble = None

    def check(self) -> None:
        """Raise if it cannot be written: then whatever else went wrong is likely to follow from that."""
        if self._trouble is not None:
            raise self._no_room()

    def _no_room(self) -> ElmeshError:
        return ElmeshError(
            f"The journal in {self._folder} could not be written for {self._patience:g} seconds "
            f"({(self._trouble or 'no reason given').lower()}); make room, and start the agent again: it goes on where "
            "it was."
        )

    def _wait_for_room(self) -> None:
        end = time.monotonic() + self._patience
        while self._trouble is not None:
            if time.monotonic() > end:
                raise self._no_room()
            if self._post is not None:
                self._post.check_stop()
            time.sleep(_AGAIN)

    def _drain(self) -> None:
        """Wait until nothing is being written."""
        end = time.monotonic() + self._patience
        while self._busy.is_set() and time.monotonic() < end:
            self._raise_broken()
            if self._post is not None:
                self._post.check_stop()
            self._idle.wait(0.2)

    def look(self) -> dict[str, Any]:
        """Return what there is to say of it."""
        return {"entries": self.written, "round": max(self._last_round, 0), "problem": self._trouble}

    def clear(self) -> None:
        """Forget the run: it is over, or to be begun anew."""
        self._file.unlink(missing_ok=True)
        self._run.unlink(missing_ok=True)

    def close(self) -> None:
        """Write no more, and let another process be this agent."""
        self._closing = True
        if self._writer is not None:
            self._work.put(None)
            self._writer.join(timeout=5.0)
        os.close(self._lock)


def _lock(folder: Path) -> int:
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        descriptor = os.open(folder / "lock", os.O_RDWR | os.O_CREAT, 0o600)
    except OSError as error:
        raise ElmeshError(
            f"The agent's folder {folder} cannot be used: {(error.strerror or str(error)).lower()}."
        ) from None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        raise ElmeshError(
            f"Another process is this agent already (it holds {folder / 'lock'}); end that one first."
        ) from None
    return descriptor
