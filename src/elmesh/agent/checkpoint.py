"""The checkpoint of an agent: what it resumes from after it was killed, and what it must not forget.

At intervals the checkpoint saves all that the solver resumes from, and the messages that neighbours may ask for again.
It is written by a thread beside the run, to a file that is replaced in one step once it is on disk; only then are the
neighbours' messages up to there acknowledged. So whenever an agent is killed, it finds a checkpoint to resume from, and
neighbours that have buffered what it received since: it receives the same again, and computes the same again. Nothing
has to be written every round, and nothing is lost.

What cannot be computed again is written before it is acted upon: the random numbers of this run, and evictions.
"""

from __future__ import annotations

import fcntl
import json
import os
import secrets
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import msgspec
from numpy.typing import NDArray

from elmesh.agent.agent_state import AgentState, encode_state
from elmesh.comm.network.messenger import Log, ReliableMessenger
from elmesh.errors import ElmeshError
from elmesh.files import atomic_write
from elmesh.run.array_io import DamagedError, HistoryArrays, SavedRun, read_arrays, write_arrays
from elmesh.run.monitor import RoundSnapshot
from elmesh.run.result import RunHistory

__all__ = ["AgentCheckpoint", "CheckpointTiming", "is_locked", "lock_folder"]

_VERSION = 3
# Options by which a run is asked for.
_OPTION_OF_FIELD = {"target": "--target", "out": "--out", "data": "table (--data)"}
# Attempts to lock a folder, and the seconds between them.
_TRIES, _RETRY_SECONDS = 5, 0.02
# The number of sums so far, among the arrays of a state.
_COUNTER = "comm/mask/counter"


@dataclass(frozen=True)
class CheckpointTiming:
    """When an agent's checkpoint is written."""

    #: Rounds and seconds between checkpoints.
    rounds: int = 128
    seconds: float = 1.0
    #: Rounds without a checkpoint after which the agent waits: fewer than neighbours buffer messages for it.
    most_behind: int = 256
    #: Bytes buffered for neighbours that make a checkpoint due at once.
    most_bytes: int = 8 << 20
    #: Seconds between attempts to write to a full disk, and to wait for space on it.
    retry: float = 0.5
    patience: float = 600.0
    #: Seconds to wait at the end for a checkpoint that is being written.
    close: float = 60.0


class _Version(msgspec.Struct):
    version: int


class _Run(msgspec.Struct):
    """The run file: the run, and what was agreed on and cannot be computed again."""

    version: int
    run_id: Annotated[int, msgspec.Meta(ge=1, le=2**62)]
    seed: Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{64}$")]
    evicted: list[str]
    notes: dict[str, Any]
    fields: dict[str, Any]


class AgentCheckpoint:
    """The checkpoint of one agent, in a folder that is locked: two processes cannot be the same agent."""

    def __init__(self, folder: Path, timing: CheckpointTiming, log: Log) -> None:
        self._folder, self._timing, self._log = folder, timing, log
        self._lock = lock_folder(folder)
        self._state_file, self._run_file = folder / "checkpoint.safetensors", folder / "run.json"
        self._idle, self._closing = threading.Event(), threading.Event()
        self._idle.set()
        self._writer_error: Exception | None = None
        self._problem: str | None = None
        self._last_round, self._last_time = -1, time.monotonic()
        self._history, self._written = HistoryArrays(), 0
        self._messenger: ReliableMessenger | None = None
        self._fields: dict[str, Any] = {}
        self._last: tuple[RoundSnapshot, Callable[[], RunHistory]] | None = None
        self._writing = threading.Lock()
        #: The random number of the run, the secret seed of its keys, and the agents that are evicted.
        self.run_id, self.seed, self.evicted = 0, b"", frozenset[str]()
        #: Called with the number of sums that a saved state has behind it.
        self.on_saved: Callable[[int], None] = lambda number: None
        #: What was agreed on and cannot be computed again.
        self.notes: dict[str, Any] = {}
        #: The agent's number, the rank and the digest of the data, which states are labelled with.
        self.about: dict[str, Any] = {}

    @property
    def spool(self) -> Path:
        """The file of masked terms that may have to be sent again."""
        return self._folder / "masked.bin"

    @property
    def exists(self) -> bool:
        """Whether the folder holds a run."""
        return self._run_file.exists()

    def open(self, fields: Mapping[str, Any], fresh: bool) -> bool:
        """Find the run of this folder, or start one; return whether there was one.

        A run with other ``fields`` is refused. With ``fresh`` a run is started whatever is there.
        """
        self._fields = json.loads(json.dumps(dict(fields)))
        if fresh:
            self.clear()
        run = self._read_run()
        if run is not None:
            odd = next((name for name in self._fields if run.fields.get(name) != self._fields[name]), None)
            if odd is not None:
                raise ElmeshError(
                    f"{self._folder} holds the checkpoint of another run: its {_OPTION_OF_FIELD.get(odd, odd)} "
                    "differs; finish that run with the same command, or start again with --fresh."
                )
            self.run_id, self.evicted, self.notes = run.run_id, frozenset(run.evicted), run.notes
            self.seed = bytes.fromhex(run.seed)
            return True
        # Not 0, which stands for an unknown run.
        self.run_id, self.seed = secrets.randbits(62) + 1, secrets.token_bytes(32)
        self._write_run()
        return False

    def _read_run(self) -> _Run | None:
        if not self._run_file.exists():
            return None
        try:
            data = self._run_file.read_bytes()
            if msgspec.json.decode(data, type=_Version).version == _VERSION:
                return msgspec.json.decode(data, type=_Run)
        except (msgspec.DecodeError, OSError, RecursionError):
            raise ElmeshError(
                f"{self._run_file} is damaged; start again with --fresh, here and at every other agent."
            ) from None
        raise ElmeshError(
            f"{self._run_file} was written by another version of elmesh, which this one cannot resume; finish the run "
            "with that version, or start again with --fresh, here and at every other agent."
        )

    def _write_run(self) -> None:
        """Write the run file, as soon as there is space for it."""
        if not self._wait_until(self._try_to_write_run):
            raise self._full_disk()

    def _try_to_write_run(self) -> bool:
        run = _Run(_VERSION, self.run_id, self.seed.hex(), sorted(self.evicted), self.notes, self._fields)
        data = msgspec.json.encode(run)

        def write() -> None:
            with self._writing:
                atomic_write(self._run_file, data, mode=0o600)

        return self._try_to(write)

    def _try_to(self, write: Callable[[], None]) -> bool:
        try:
            write()
        except OSError as error:
            self._set_problem(error)
            return False
        if self._idle.is_set():  # otherwise a state may be waiting for more space than this took
            self._set_problem(None)
        return True

    def persist(self, write: Callable[[], None]) -> None:
        """Call a function that writes to the disk, as soon as there is space for it."""
        if not self._wait_until(lambda: self._try_to(write)):
            raise self._full_disk()

    def note(self, name: str, value: Any) -> None:
        """Save something that was agreed on."""
        self.notes[name] = value
        self._write_run()

    def remember(self, peer: str, what: str) -> None:
        """Save a fact about a neighbour, if there is space: it only saves a wait after a restart."""
        known = self.notes.get(what, [])
        if peer not in known:
            self.notes[what] = sorted([*known, peer])
            self._try_to_write_run()

    def evict(self, evicted: frozenset[str]) -> None:
        """Save an eviction, before it is sent to others; the run starts again without these agents."""
        self._drain()
        self.evicted, self._last = evicted, None
        # The keys of the run stay; what was agreed on with others is agreed on anew.
        self.notes = {name: value for name, value in self.notes.items() if name == "bundle"}
        self._write_run()
        self._state_file.unlink(missing_ok=True)
        self._last_round, self._last_time, self._history = -1, time.monotonic(), HistoryArrays()

    def latest_state(self) -> AgentState | None:
        """Return the saved state, or None if there is none yet."""
        if not self._state_file.exists():
            return None
        try:
            arrays, labels = read_arrays(self._state_file)
            about = json.loads(labels["about"])
            if about["epoch"] != sorted(self.evicted) or about["run"] != self.run_id:
                return None  # it was about to be removed
            return AgentState.decode(about, arrays)
        except (DamagedError, KeyError, ValueError, TypeError):
            raise ElmeshError(
                f"{self._state_file} is damaged and cannot be resumed; start again with --fresh, here and at every "
                "other agent."
            ) from None

    def latest(self, remote: Sequence[int] = ()) -> SavedRun | None:
        """Return the saved run, if there is one."""
        state = self.latest_state()
        return None if state is None else state.run

    def attach(self, messenger: ReliableMessenger) -> None:
        """Save the links of this messenger from now on, and acknowledge what is on disk."""
        self._messenger, messenger.remember = messenger, self.remember

    def save(self, snapshot: RoundSnapshot, history: Callable[[], RunHistory]) -> None:
        """Save a snapshot if one is due; wait if none could be written for too many rounds."""
        timing, messenger = self._timing, self._attached()
        self._last = snapshot, history
        k, now = snapshot.report.round, time.monotonic()
        self._raise_writer_error()
        behind = k - self._last_round >= timing.most_behind
        if behind and not self._wait_until(lambda: self._problem is None):
            raise self._full_disk()
        due = k - self._last_round >= timing.rounds or now - self._last_time >= timing.seconds or k == 0
        if (due or messenger.buffered_bytes > timing.most_bytes) and self._idle.is_set():
            self._submit(snapshot, history())

    def mark_saved(self, result: Mapping[str, Any]) -> None:
        """Save that the model is saved, and all messages that neighbours may still ask for: before they learn of it."""
        self._drain()
        if self._last is None or not self._idle.is_set():
            return  # then a restart from here has to wait for neighbours that may have left
        snapshot, history = self._last
        self._submit(snapshot, history(), dict(result))
        self._drain()

    def _attached(self) -> ReliableMessenger:
        if self._messenger is None:
            raise TypeError("The checkpoint has no messenger yet.")
        return self._messenger

    def _submit(self, snapshot: RoundSnapshot, history: RunHistory, result: dict[str, Any] | None = None) -> None:
        """Hand a state to the writer."""
        about = {**self.about, "run": self.run_id, "epoch": sorted(self.evicted), "result": result}
        agent = int(about.pop("agent"))
        rows = self._history.convert(history)
        state = encode_state(snapshot, agent, rows, self._attached().link_states(), about)
        self._last_round, self._last_time = snapshot.report.round, time.monotonic()
        self._idle.clear()
        # Not a pool, whose threads Python joins at its exit without a limit.
        threading.Thread(target=self._write_state, args=state, name="elmesh-checkpoint", daemon=True).start()

    def _write_state(self, arrays: dict[str, NDArray[Any]], labels: dict[str, str], received: dict[str, int]) -> None:
        """Write a state, as soon as there is space for it, and acknowledge the messages that led to it."""
        try:
            while True:
                try:
                    write_arrays(self._state_file, arrays, labels)
                    break
                except OSError as error:
                    self._set_problem(error)
                    if self._closing.wait(self._timing.retry):
                        return
            self._set_problem(None)
            self._written += 1
            self._attached().mark_saved(received)
            if _COUNTER in arrays:
                self.on_saved(int(arrays[_COUNTER]))
        except Exception as error:  # raised by the run's own thread
            self._writer_error = error
        finally:
            self._idle.set()

    def _raise_writer_error(self) -> None:
        if self._writer_error is not None:
            raise self._writer_error

    def _set_problem(self, error: OSError | None) -> None:
        """Note why nothing can be written, or that it can; log the change."""
        problem = None if error is None else error.strerror or str(error)
        if (problem is None) != (self._problem is None):
            self._log("checkpoint", folder=str(self._folder), problem=problem)
        self._problem = problem

    def check(self) -> None:
        """Raise if the checkpoint cannot be written: other problems are likely to follow from that."""
        if self._problem is not None:
            raise self._full_disk()

    def _full_disk(self) -> ElmeshError:
        return ElmeshError(
            f"The checkpoint in {self._folder} could not be written for {self._timing.patience:g} seconds "
            f"({(self._problem or 'no reason given').lower()}); free some space and start the agent again: it resumes "
            "where it was."
        )

    def _wait_until(self, done: Callable[[], bool], pause: float | None = None) -> bool:
        """Try until something is done; return whether it was within the patience. A request to stop is raised."""
        end = time.monotonic() + self._timing.patience
        while not done():
            if time.monotonic() > end:
                return False
            if self._messenger is not None:
                self._messenger.check_stop()
            time.sleep(self._timing.retry if pause is None else pause)
        return True

    def _drain(self) -> None:
        """Wait until nothing is being written."""
        self._wait_until(lambda: self._idle.wait(0.2), pause=0.0)
        self._raise_writer_error()

    def status(self) -> dict[str, Any]:
        """Return its state, for status files."""
        return {"written": self._written, "round": max(self._last_round, 0), "problem": self._problem}

    def clear(self) -> None:
        """Remove the run: it is over, or to be started again."""
        files = *self._folder.glob("*.safetensors"), *self._folder.glob(".*.partial")
        for path in (*files, self._run_file, self.spool):
            path.unlink(missing_ok=True)

    def close(self) -> None:
        """Stop writing, and release the folder; raise if a write does not end in time."""
        self._closing.set()
        if not self._idle.wait(self._timing.close):
            raise ElmeshError(
                f"The disk does not respond: the last checkpoint in {self._folder} was not written within "
                f"{self._timing.close:g} seconds, and the folder stays locked until this process ends. Check the disk "
                "and start the agent again: it resumes from the checkpoint before."
            )
        os.close(self._lock)


def is_locked(folder: Path, name: str = "lock") -> bool:
    """Return whether a process runs the agent of a folder, on this machine, also in another container."""
    try:
        with open(folder / name, "rb") as file:
            return not _try_lock(file.fileno(), shared=True)
    except FileNotFoundError:
        return False


def lock_folder(folder: Path, name: str = "lock") -> int:
    """Lock an agent's folder for this process, and return the descriptor that holds the lock."""
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        descriptor = os.open(folder / name, os.O_RDWR | os.O_CREAT, 0o600)
    except OSError as error:
        raise ElmeshError(
            f"The agent's folder {folder} cannot be used: {(error.strerror or str(error)).lower()}."
        ) from None
    # Whoever asks whether it is locked holds it for a moment.
    for attempt in range(_TRIES):
        if _try_lock(descriptor):
            break
        time.sleep(_RETRY_SECONDS if attempt < _TRIES - 1 else 0.0)
    else:
        os.close(descriptor)
        raise ElmeshError(f"Another process runs this agent already (it holds {folder / name}); end that one first.")
    return descriptor


def _try_lock(descriptor: int, *, shared: bool = False) -> bool:
    try:
        fcntl.flock(descriptor, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except OSError:
        return False
    return True
