"""Runs of an agent by a schedule: a network that learns again from what has come in since, version by version.

At each moment of the schedule the table is copied, so that rows that come in meanwhile belong to the next run, and an
agent that is killed resumes with the same rows. Then there are two ways to learn from it:

- *with the network*, if all sites come within the patience, and the site's limits on what may leave it allow a further
  run: with differential privacy as long as the budget of the site's rows lasts, without it once (a second total of a
  changed table would reveal the change);
- *alone* otherwise: nothing leaves, and the site's own part learns from the new rows, added to the statistics of the
  former ones. What it has in common with other sites stays as it is.

The new version is compared with the former one on the new rows, and takes its place in one step.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from elmesh.agent import NetworkAgent
from elmesh.agent.checkpoint import lock_folder
from elmesh.agent.pending_run import PendingRun
from elmesh.agent.schedule import Schedule
from elmesh.agent.site_data import load_table, table_digest
from elmesh.cli.errors import describe_os_error
from elmesh.cli.predict import load_model, tasks_of
from elmesh.comm.network.errors import LostError, StoppedError
from elmesh.errors import ElmeshError
from elmesh.estimators.versions import ModelVersions
from elmesh.evaluation.model_change import ModelChange, compare_models
from elmesh.netconfig.identity import Identity
from elmesh.run import Progress
from elmesh.text import count

__all__ = ["ScheduledRuns"]

# Seconds between looks at the clock, which may be set.
_LOOK = 30.0
Log = Callable[..., None]


@dataclass(frozen=True)
class _Learned:
    """A new model in the staging folder: how it was learned, and of which rows."""

    how: str  # "network" or "alone"
    reason: str | None  # why it was alone
    rows: int  # of the model
    table: str


class ScheduledRuns:
    """The runs of one agent.

    Parameters
    ----------
    agent : Path
        The agent's file, which is read again for every run: a renewed certificate is used from the next one on.
    make : callable
        Returns a new agent; called with its identity, and whether to start afresh whatever the checkpoint holds.
    data, target, out
        The table, the columns to predict, and the folder of the model.
    schedule : Schedule
        When to run.
    keep : int
        Number of versions that are kept.
    log : callable
        Called with the name of an event, and fields.
    callback : callable
        Called after every round.
    """

    def __init__(
        self,
        agent: Path,
        make: Callable[[Identity, bool], NetworkAgent],
        data: Path,
        target: list[str],
        out: Path,
        schedule: Schedule,
        keep: int,
        log: Log,
        callback: Callable[[Progress], bool | None],
    ) -> None:
        self._agent, self._make, self._target = agent, make, target
        self._schedule, self._keep, self._log, self._callback = schedule, keep, log, callback
        self.versions, self._stop = ModelVersions(out), threading.Event()
        #: The agent's identity, as its files were at the beginning of the last run.
        self.identity = Identity.read(agent)
        self._lock = lock_folder(self.identity.state, "schedule.lock")
        with make(self.identity, False) as site:
            self._idle = site.status()
        self._site: NetworkAgent | None = None
        self._pending = PendingRun(self.identity.state, data)
        self._next: float | None = None
        self._seen: tuple[tuple[int, int], int | None] = (0, 0), None
        #: In words: the last version; a warning about it; why the last run made none.
        self._last, self._warning, self._skipped = "", "", ""
        #: Rows of the former table that the last one lacks, and whether the last version is clearly worse.
        self._gone, self._worse = 0, False
        number = self.versions.current()
        if number is not None and {"how", "rows", "rows_gone"} <= self.versions.facts(number).keys():
            self._show_version(number, self.versions.facts(number))

    def status(self) -> dict[str, Any]:
        """Return the status of the agent that runs, or of one that waits, with what is known of versions."""
        site = self._site
        if site is None:
            status = {**self._idle, "time": time.time(), "phase": "stopped" if self._stop.is_set() else "scheduled"}
        else:
            status = site.status()
        schedule = {"next": self._next, "last": self._last, "warning": self._warning, "skipped": self._skipped}
        schedule |= {"worse": self._worse, "rows_gone": self._gone}
        return {**status, "schedule": {**schedule, "version": self._version()}}

    def _version(self) -> int | None:
        """Return the number of the version in use, which is looked for only if the model was replaced."""
        try:
            found = (self.versions.model / "model.json").stat()
        except OSError:
            return None
        key = found.st_ino, found.st_mtime_ns
        if self._seen[0] != key:
            self._seen = key, self.versions.current()
        return self._seen[1]

    def stop(self) -> None:
        """Stop where the same command resumes; may be called from a signal handler."""
        self._stop.set()
        if self._site is not None:
            self._site.stop()

    def run(self, report: Callable[[dict[str, Any]], None]) -> None:
        """Run by the schedule until :meth:`stop`; ``report`` is called with the facts of every version."""
        config = self.identity.config
        if config.exchange == "sums" and config.epsilon is None:
            self._log("one run")
        due = self._pending.exists() or not (self.versions.model / "model.json").is_file()
        while not self._stop.is_set():
            if not due:
                self._wait()
                if self._stop.is_set():
                    break
            facts = self._run_once()
            if facts is not None:
                report(facts)
            due = False
        raise StoppedError("Stopped.")

    def _wait(self) -> None:
        """Wait for the next moment of the schedule."""
        self._next = self._schedule.next_after(time.time())
        self._log("scheduled", next=self._next)
        while (left := self._next - time.time()) > 0 and not self._stop.wait(min(left, _LOOK)):
            pass
        self._next = None

    def _run_once(self) -> dict[str, Any] | None:
        """Learn from the table of this moment, and return the facts of the new version; None if there is none."""
        try:
            self.identity = Identity.read(self._agent)
            self.versions.prepare()
            learned = self._learn()
            change, gone = (None, 0) if learned is None else self._compare()
        except StoppedError:
            raise
        except (ElmeshError, OSError) as error:
            reason = describe_os_error(error) if isinstance(error, OSError) else str(error)
            self._skipped = f"The last run made no new version: {reason}"
            self._log("run failed", reason=reason)
            return None
        if learned is None:
            self._pending.drop_table()
            return None
        facts = {
            "time": time.time(),
            "how": learned.how,
            "reason": learned.reason,
            "rows": learned.rows,
            "rows_gone": gone,
            "table": learned.table,
            "change": None if change is None else change.to_json(),
            "sentence": None if change is None else change.sentence(),
        }
        number = self.versions.add(facts)
        if learned.how == "network":
            self._pending.end()
        self._pending.drop_table()
        self.versions.prune(self._keep)
        self._skipped = ""
        self._show_version(number, facts)
        self._log("version", text=self._last, warning=self._warning, number=number, **facts)
        return {"version": number, **facts}

    def _show_version(self, number: int, facts: dict[str, Any]) -> None:
        """Put a version into words, and what someone should look into about it."""
        gone, change = facts["rows_gone"], facts.get("change") or {}
        self._last = f"Version {number}, learned {_how(facts['how'])} from {count(facts['rows'], 'row')}."
        self._last += f" {facts['sentence']}" if facts.get("sentence") else ""
        warnings, self._gone, self._worse = [], int(gone), bool(change.get("worse"))
        if self._worse:
            warnings.append(
                f"Version {number} is clearly worse than the one before it; elmesh rollback returns to that."
            )
        if gone:
            learned = "; the model still has what it learned from them (elmesh forget takes it away)"
            warnings.append(
                f"{count(gone, 'row')} of the table before are not in this one: check that it is complete"
                f"{learned if facts['how'] == 'alone' else ''}."
            )
        self._warning = " ".join(warnings)

    # One run, with the network or alone.

    def _learn(self) -> _Learned | None:
        """Learn with the network, or alone if that is not possible; None if there is nothing to learn from."""
        pending = self._pending.read()
        if pending is None:
            pending = {"attempts": 0}
            self._pending.freeze_table()
        frame = self._rows()
        digest, rows = table_digest(frame), len(frame)
        if pending.get("saved"):
            return _Learned("network", None, rows, digest)  # the process ended between the fit and its version
        first, resumes = not self.versions.numbers(), pending["attempts"] > 0
        if not first and not resumes and self._spends_for_nothing(digest):
            self._skipped = ""
            self._log("unchanged", version=self.versions.current())
            return None
        reason = self._learn_together(frame, pending)
        if reason is None:
            return _Learned("network", None, rows, digest)
        learned = None if first else self._learn_alone(frame)
        if learned is None:
            self._skipped = f"The last run made no new version: {reason}"
            return None
        return _Learned("alone", reason, learned, digest)

    def _spends_for_nothing(self, digest: str) -> bool:
        """Return whether a run of the same rows would give the same model, and bring the site's limit nearer."""
        config, numbers = self.identity.config, self.versions.numbers()
        free = config.exchange == "sums" and config.privacy is None
        return free and self.versions.facts(numbers[-1]).get("table") == digest

    def _learn_together(self, frame: pd.DataFrame, pending: dict[str, Any]) -> str | None:
        """Learn with the other sites into the staging folder; return why that was not possible, if it was not."""
        resumes, first = pending["attempts"] > 0, not self.versions.numbers()
        self._pending.write({"attempts": pending["attempts"] + 1})
        released = 0
        try:
            with self._make(self.identity, not resumes) as site:
                self._site = site
                try:
                    if self._stop.is_set():
                        raise StoppedError("Stopped.")
                    site.fit(
                        frame,
                        self._target,
                        self.versions.staging,
                        overwrite=True,
                        earlier=None if first else self.versions.model,
                        callback=self._callback,
                    )
                finally:
                    self._site = None
                    self._idle = {**site.status(), "neighbors": {}, "problem": None, "seconds_left": None}
                    released = (self._idle["releases"] or {}).get("releases", 0)
        except StoppedError:
            raise
        except ElmeshError as error:
            # What has begun is resumed once, with the rows of then, which costs nothing more; otherwise it is over.
            if not released or resumes:
                self._pending.end()
            missed = isinstance(error, LostError) and not released
            alone = not first and not released
            self._log("missed" if missed else "alone" if alone else "run failed", reason=str(error))
            return str(error)
        self._pending.write({"attempts": 1, "saved": True})
        return None

    def _learn_alone(self, frame: pd.DataFrame) -> int | None:
        """Learn this site's own part from the new rows into the staging folder.

        Return of how many rows the model is then, which are those of former tables as well; None if none is new.
        """
        estimator, rows, y, tasks = self._given(self.versions.model, frame)
        new = ~estimator.known_rows(rows, y, tasks)
        if not new.any():
            return None
        estimator.partial_fit(rows[new], y[new], tasks=tasks[new])
        estimator.save(self.versions.staging, overwrite=self.versions.staging.exists())
        return int(sum(site.n_rows for site in estimator.statistics_.sites.values()))

    def _compare(self) -> tuple[ModelChange | None, int]:
        """Compare the staged model with the current one on new rows; return how many rows of that are gone, too."""
        if not (self.versions.model / "model.json").is_file():
            return None, 0
        try:
            former, rows, y, tasks = self._given(self.versions.model, self._rows())
            new = ~former.known_rows(rows, y, tasks)
            had = sum(site.n_rows for site in former.statistics_.sites.values())
            estimator, _ = load_model(self.versions.staging)
            change = compare_models(former, estimator, rows[new], y[new], tasks[new])
        except ElmeshError as error:  # a model without a common part cannot forget rows
            self._log("not compared", reason=str(error))
            return None, 0
        return change, int(had - np.sum(~new))

    def _rows(self) -> pd.DataFrame:
        """Return the rows of this run."""
        return load_table(self._pending.table, self.identity.config, self.identity.name, self._target)

    def _given(self, model: Path, frame: pd.DataFrame) -> tuple[Any, pd.DataFrame, Any, Any]:
        """Return a model, and rows as its methods take them."""
        estimator, schema = load_model(model)
        return estimator, frame, np.asarray(schema.true_targets(frame)), tasks_of(estimator, schema, frame)

    def close(self) -> None:
        """Release the agent's folder."""
        os.close(self._lock)


def _how(how: str) -> str:
    return "with the network" if how == "network" else "alone"
