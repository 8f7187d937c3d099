"""All that leaves an agent passes here: the gate allows it, the log records it, and only then it is sent.

A masked term is on disk, too, before it is sent, and an agent that is restarted sends the same bytes again: a mask is
never used for two different terms. The log is also the memory of the site's rows over all runs:

- what their releases have cost so far in differential privacy, and whether the budget is spent;
- with which other sites, and with which rows, totals were released. Two totals of the same rows and sites but for a
  few sites differ by the terms of these, and two totals before and after a change of the rows differ by the change:
  where nothing else hides such a difference, the second one is not released;
- how many totals of matrices were released of the same rows: many of them separate the sites' terms.
"""

from __future__ import annotations

import base64
import hashlib
import json
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from elmesh.agent.gate import Gate
from elmesh.agent.release_log import FREQUENT, Line, ReleaseLog
from elmesh.agent.term_spool import TermSpool
from elmesh.comm.network.keys import Credentials
from elmesh.comm.network.transport import Release
from elmesh.comm.row_counts import FEWEST_HONEST, round_down
from elmesh.errors import ElmeshError
from elmesh.text import listed

__all__ = ["MOST_MATRIX_TOTALS", "Releases", "RunFacts"]

# Rounding of a budget that is spent exactly.
_TOLERANCE = 1 + 1e-9
#: Totals of matrices of the same rows, over all runs, unless the gate has another limit: those of three runs.
MOST_MATRIX_TOTALS = 9


@dataclass(frozen=True)
class RunFacts:
    """What a run is, for the log: its number, the network, its sites, and this site's table."""

    run: str
    network: str
    file: str  # digest of the network file
    exchange: str
    sites: tuple[str, ...]
    table: str  # digest of this site's rows
    rows: int
    colluders: int  # sites that may put together what they know
    delta: float


@dataclass
class _Run:
    """What the log has of one run."""

    facts: RunFacts
    releases: int = 0
    matrices: int = 0
    masked: int = 0  # without noise
    private: int = 0
    confirmed: bool = False
    witnessed: bool = False
    known: set[str] = field(default_factory=set)


class Releases:
    """The releases of one agent.

    Parameters
    ----------
    path : Path
        The log.
    spool : Path
        File for masked terms that may have to be sent again.
    name, credentials
        The agent, and its certificate, by which the log is sealed.
    gate : Gate
        What may leave.
    persist : callable
        Calls a function that writes to the disk, again and again while there is no space.
    confirm : callable
        Called with a text that describes what is to be released; returns whether a person has confirmed it.
    epsilon : callable
        From a cost in zero-concentrated differential privacy, and delta, to epsilon.
    """

    def __init__(
        self,
        path: Path,
        spool: Path,
        name: str,
        credentials: Credentials,
        gate: Gate,
        persist: Callable[[Callable[[], None]], None],
        confirm: Callable[[str], bool],
        epsilon: Callable[[float, float], float],
    ) -> None:
        self._spool, self._gate, self._persist, self._confirm = TermSpool(spool), gate, persist, confirm
        self._epsilon_of, self._runs = epsilon, dict[str, _Run]()
        self._rho, self._without_noise = 0.0, False
        self._others: dict[str, list[Any]] = {}  # of other sites' logs, the number of lines and the end
        self._now: _Run | None = None
        self._most_matrices: int | None = MOST_MATRIX_TOTALS
        #: When this process made its first release of the run, and when it released totals of matrices.
        self.first_time: float | None = None
        self.matrix_times: list[float] = []
        self._log = ReleaseLog(path, name, credentials, self._note)

    def _note(self, line: Line) -> None:
        """Take note of a line of the log."""
        run = self._runs.get(line.get("run", ""))
        match line["event"]:
            case "run":
                facts = RunFacts(**{name: line[name] for name in RunFacts.__dataclass_fields__})
                before = run or _Run(facts)
                self._runs[line["run"]] = before
                # Other sites are another question to the person who confirms.
                before.facts, before.confirmed = RunFacts(**{**vars(facts), "sites": tuple(facts.sites)}), False
                before.witnessed = False
            case "release" if run is not None:
                run.releases += 1
                run.matrices += line["what"] == "matrix"
                run.masked += line["rho"] == 0 and line["what"] != "basis"
                run.private += line["rho"] > 0
                run.known.add(line["label"])
                self._rho += line["rho"]
                self._without_noise |= line["rho"] == 0
            case "confirmed" if run is not None:
                run.confirmed = True
            case "witness" if run is not None:
                run.witnessed = True
                self._others |= line["logs"]

    def begin(self, facts: RunFacts, *, rho: float = 0.0, again: bool = False, kinds: Sequence[str] = ()) -> None:
        """Note the start of a run, or that it starts again with fewer sites.

        ``kinds`` are those of the releases that the run certainly needs.

        ``rho`` is what a private run is going to cost; 0 if nothing that leaves has noise. With ``again`` a run is
        allowed whose totals differ from those of an earlier one by few sites or by changed rows, or are further ones of
        the same rows, or have no noise as those of earlier runs have.
        """
        self._gate.check_site(facts.rows, len(facts.sites))
        self._gate.check_kinds(kinds)
        self.first_time, self.matrix_times = None, []
        known = self._runs.get(facts.run)
        if rho and (known is None or not known.releases):
            self._check_budget(rho, facts.delta)
        if not rho and not again:
            self._check_noise_free(facts)
            self._check_differences(facts)
        self._most_matrices = None if again else MOST_MATRIX_TOTALS
        if known is None or known.facts != facts:
            # With its keys an agent states about how many rows it has.
            stated = {"stated_rows": round_down(facts.rows)}
            self._append({"event": "run", **vars(facts), "sites": list(facts.sites), **stated})
        self._now = self._runs[facts.run]

    def _check_noise_free(self, facts: RunFacts) -> None:
        """Raise if totals without noise would make the epsilon of earlier runs void, or be too many."""
        if self._rho > 0:
            raise ElmeshError(
                f"An earlier run released totals with differential privacy of epsilon {self._epsilon(self._rho):.3g}, "
                "which would not hold any more after totals without noise. Run with differential privacy, or with "
                "--release-again if this site accepts that."
            )
        known = self._runs.get(facts.run)
        begun = known is not None and known.matrices > 0
        if not begun and self._gate.most_matrix_totals is None and self._matrices(facts) >= MOST_MATRIX_TOTALS:
            raise ElmeshError(
                f"Earlier runs released {self._matrices(facts)} totals of matrices of the same rows, and many of them "
                "separate the parts of sites. Run with differential privacy, or with --release-again if this site "
                "accepts that."
            )

    def _matrices(self, facts: RunFacts) -> int:
        """Return how many totals of matrices were released of the same rows."""
        return sum(run.matrices for run in self._runs.values() if run.facts.table == facts.table)

    def _check_differences(self, facts: RunFacts) -> None:
        """Raise if totals of this run, less those of an earlier one, would be those of few sites or of few rows."""
        for other in self._runs.values():
            if other.facts.run == facts.run or not other.masked:
                continue
            difference = set(facts.sites) ^ set(other.facts.sites)
            if len(difference) >= FEWEST_HONEST + max(facts.colluders, other.facts.colluders):
                continue
            if difference:
                raise ElmeshError(
                    f"An earlier run released totals of the same sites but for {listed(sorted(difference))}: the "
                    "difference between its totals and those of this run would reveal the part of "
                    f"{'these' if len(difference) > 1 else 'this one'}. Run with the sites of then, with differential "
                    "privacy, or with --release-again if all sites accept that."
                )
            if facts.table != other.facts.table:
                raise ElmeshError(
                    "The table has changed since an earlier run released totals: their difference would reveal the "
                    "rows that have changed. Run with the table of then, with differential privacy, or with "
                    "--release-again if this site accepts that."
                )

    def _epsilon(self, rho: float, delta: float = 1.0) -> float:
        """Return epsilon at the smallest delta of all runs, of the gate, and of ``delta``."""
        return self._epsilon_of(rho, min(delta, self._gate.delta or 1.0, *(r.facts.delta for r in self._runs.values())))

    def _check_budget(self, rho: float, delta: float) -> None:
        """Raise before anything leaves if a run of this cost would exceed the budget of the site's rows."""
        most = self._gate.largest_epsilon
        if most is None:
            return
        if self._without_noise:
            raise ElmeshError(
                "Totals without noise have left this site before, so that no epsilon holds for its rows. If this site "
                "accepts that, start a new log: move the file of releases and its seal away, and keep them."
            )
        spent, after = self._epsilon(self._rho, delta), self._epsilon(self._rho + rho, delta)
        if after > most * _TOLERANCE:
            raise ElmeshError(
                f"The budget of this site's rows does not allow another run: epsilon {spent:.3g} of {most:g} is spent, "
                f"and the run would make it {after:.3g}. Nothing leaves. A larger budget is set by largest_epsilon in "
                "gate.toml."
            )

    @property
    def begun(self) -> bool:
        """Whether sums without noise were released in this run."""
        return self._now is not None and self._now.masked > 0

    def release(self, release: Release, make: Callable[[], bytes]) -> bytes:
        """Return the bytes to send: allowed, on disk if they are masked, and in the log."""
        run = self._now
        if run is None:
            raise TypeError("No run has begun.")
        # What has no mask is known by its number, its receivers, and the sites of the run.
        plain = json.dumps([release.what, release.number, release.to, run.facts.sites]).encode()
        label = hashlib.sha256(release.label or plain).hexdigest()
        stored = self._spool.get(bytes.fromhex(label)) if release.label else None
        if label in run.known:
            if release.label and stored is None:
                raise ElmeshError(
                    "What was sent of this sum before the restart is not on disk any more, and must not be sent in "
                    "another form; start again with --fresh, here and at every other agent."
                )
            return make() if stored is None else stored
        rho = release.rho
        spent = math.inf if self._without_noise or rho == 0 else self._epsilon(self._rho + rho)
        numbers, matrices = math.prod(release.shape), self._matrices(run.facts)
        self._gate.check_release(release.what, numbers, run.releases, matrices, spent, self._most_matrices)
        if self._gate.confirm and not run.confirmed:
            self._ask(run, release)
        data = make() if stored is None else stored
        self.first_time = self.first_time or time.monotonic()
        digest = hashlib.sha256(data).digest()
        if release.label and stored is None:
            self._persist(lambda: self._spool.put(release.number, bytes.fromhex(label), data, digest))
        content = {"content": base64.b64encode(data).decode()} if self._gate.content else {}
        self._append(
            {
                "event": "release",
                "run": run.facts.run,
                "what": release.what,
                "shape": list(release.shape),
                "bits": release.bits,
                "number": release.number,
                "bytes": len(data),
                "digest": digest.hex(),
                "to": list(release.to),
                "label": label,
                "rho": rho,
                "epsilon": spent if math.isfinite(spent) else None,
                **content,
            },
            frequent=("release", release.what, rho) == FREQUENT,
        )
        if release.what == "matrix":
            self.matrix_times.append(time.monotonic())
        return data

    @property
    def log_end(self) -> tuple[int, bytes]:
        """The number of lines of the log, and the digest of the last one."""
        return self._log.end

    def witness(self, ends: Mapping[str, tuple[int, bytes]]) -> list[str]:
        """Keep the ends of other sites' logs, as they have stated them; return those whose log was replaced.

        A log only grows: one that is shorter than it was, or has another line where it ended, is not the same.
        """
        run = self._now
        if run is None or run.witnessed:
            return []
        logs = {name: [lines, end.hex()] for name, (lines, end) in sorted(ends.items())}
        known = {name: self._others[name] for name in logs if name in self._others}
        replaced = [n for n, old in known.items() if logs[n][0] < old[0] or (logs[n][0] == old[0] and logs[n] != old)]
        self._append({"event": "witness", "run": run.facts.run, "logs": logs, "replaced": replaced})
        return replaced

    def _ask(self, run: _Run, release: Release) -> None:
        sites = listed(run.facts.sites)
        text = (
            f"{run.facts.network}: releases of {run.facts.rows} rows to a network of {len(run.facts.sites)} sites "
            f"({sites}), exchange {run.facts.exchange}, beginning with {release.what} {list(release.shape)}."
        )
        if not self._confirm(text):
            raise ElmeshError("A person at this site has not confirmed the release, so that nothing leaves.")
        self._append({"event": "confirmed", "run": run.facts.run})

    def _append(self, content: dict[str, Any], *, frequent: bool = False) -> None:
        def write() -> None:
            self._log.append(content, frequent=frequent)

        self._persist(write)

    def forget(self, before: int) -> None:
        """Remove masked terms of sums before this number: what follows from them is saved."""
        self._spool.forget(before)

    def summary(self) -> dict[str, Any]:
        """Return what this run has released, for status files."""
        run = self._now
        return {
            "releases": 0 if run is None else run.releases,
            "matrices": 0 if run is None else run.matrices,
            "epsilon": None if self._without_noise or not self._rho else self._epsilon(self._rho),
            "largest_epsilon": self._gate.largest_epsilon,
        }

    def close(self) -> None:
        """Close the log."""
        self._log.close()
        self._spool.close()
