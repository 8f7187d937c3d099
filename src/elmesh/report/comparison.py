"""Several methods on the same tasks: what happened, in numbers and in words.

Every sentence is made from the numbers of the run, whichever way they went: sites may gain or lose by
learning together, and the words say which.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd

from elmesh.math.certificate import Certificate
from elmesh.report.figures import signed
from elmesh.report.page import Table

__all__ = ["Comparison", "Method", "count", "megabytes"]


@dataclass(frozen=True)
class Method:
    """What one method did.

    Parameters
    ----------
    name, meaning : str
        What it is called, and what it is in two plain sentences.
    errors : mapping
        Test error in per cent, a task.
    seconds : float
        Time to fit.
    rounds, exchanges, bytes : int
        Rounds of the method, rounds of messages (its start included), and what all sites sent together.
    ending, advice : str
        Name and sentence of why it stopped.
    history : DataFrame
        Columns round, objective, consensus_gap, exchanges, bytes; a row a round from 0 on, or none.
    pooled : bool
        Whether it wants all data in one place.
    certificate : Certificate, optional
        How far its objective can be from the best there is.
    rank : int, optional
        Columns of its U, where it has one.
    penalties : tuple of float
        Given or found. Objectives and bounds can be compared between methods that have the same.
    colour, dash : str
        How its lines are drawn.
    """

    name: str
    meaning: str
    errors: Mapping[str, float]
    seconds: float
    rounds: int
    exchanges: int
    bytes: int
    ending: str
    advice: str
    history: pd.DataFrame
    pooled: bool = False
    certificate: Certificate | None = None
    rank: int | None = None
    penalties: tuple[float, ...] = ()
    colour: str = "muted"
    dash: str = "-"

    @property
    def error(self) -> float:
        """Mean test error over the tasks, in per cent."""
        return float(np.mean(list(self.errors.values())))

    @property
    def start_bytes(self) -> int:
        """What had been sent before the first round."""
        return int(self.history["bytes"].iloc[0]) if len(self.history) else 0

    @property
    def certified(self) -> str:
        """How close to the optimum it is known to be, in words."""
        if self.certificate is None or not np.isfinite(self.certificate.gap):
            return "–"
        return f"within {100 * self.certificate.gap:.2g} %"

    def last(self, column: str) -> float | None:
        """Return the last finite number of a column of the history, or None where there is none."""
        numbers = np.asarray(self.history[column], dtype=float) if column in self.history else np.empty(0)
        numbers = numbers[np.isfinite(numbers)]
        return float(numbers[-1]) if len(numbers) else None


@dataclass(frozen=True)
class Comparison:
    """Methods on the same tasks: one alone, one with all data pooled, and those that talk over the graph.

    Parameters
    ----------
    story : str
        What the data are, in a sentence or two.
    methods : sequence of Method
        In the order of the table.
    alone, together, pooled : str
        Names of the method that shares nothing, of the one the headline is about, and of the one to match.
    graph : networkx.Graph
        Over the tasks.
    shape : (int, int)
        Of a gradient for U, and so of what is sent: rows and columns.
    test_rows : int
        Test rows a task, over all draws.
    draws : sequence of (float, float), default=()
        Mean test error alone and together in each random draw of the tasks; errors are means over them, everything
        else is the first draw's.
    settings, versions : mapping
        Printed as they are.
    """

    story: str
    methods: Sequence[Method]
    alone: str
    together: str
    pooled: str
    graph: Any
    shape: tuple[int, int]
    test_rows: int
    draws: Sequence[tuple[float, float]] = ()
    settings: Mapping[str, str] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)

    def method(self, name: str) -> Method:
        """Return the method of this name."""
        return next(method for method in self.methods if method.name == name)

    @property
    def senders(self) -> list[Method]:
        """The methods that send messages."""
        return [method for method in self.methods if method.bytes > 0]

    def bound(self, method: Method) -> float | None:
        """Return the highest bound certified for the method's objective: by itself or another with its penalties."""
        peers = [m.certificate for m in self.methods if m.penalties == method.penalties]
        return max((certificate.lower_bound for certificate in peers if certificate is not None), default=None)

    @property
    def change(self) -> dict[str, float]:
        """Error together less error alone, a task, in percentage points."""
        alone, together = self.method(self.alone).errors, self.method(self.together).errors
        return {task: together[task] - alone[task] for task in alone}

    @property
    def verdict(self) -> tuple[int, int, int]:
        """How many tasks did better, as well, and worse together than alone."""
        signs = [int(np.sign(round(change, 9))) for change in self.change.values()]
        return signs.count(-1), signs.count(0), signs.count(1)

    def headline(self) -> str:
        """Say in one sentence what learning together did."""
        better, _, _ = self.verdict
        before, after = self.method(self.alone).error, self.method(self.together).error
        if signed(after - before) == "0":
            moved = f"stayed at {after:.1f} %"
        else:
            moved = f"{'fell' if after < before else 'rose'} from {before:.1f} % to {after:.1f} %"
        sites = f"{better} of {len(self.change)} sites"
        return f"{sites} did better together than alone; the mean test error {moved}."

    def others(self) -> str:
        """Say how many sites were left as they were, and how many were worse off."""
        _, same, worse = self.verdict
        return f"{count(same, 'site')} did as well as alone and {count(worse, 'site').lower()} did worse."

    def repeated(self) -> str:
        """Say how much the draws differ; nothing where there is but one."""
        if len(self.draws) < 2:
            return ""
        alone, together = np.array(self.draws).T
        change = together.mean() - alone.mean()
        lower = int(np.sum(together < alone - 1e-9))
        spread = np.std(together - alone, ddof=1) / np.sqrt(len(alone))
        return (
            f"Over {len(alone)} random draws of the sites the mean test error was {alone.mean():.2f} % alone and "
            f"{together.mean():.2f} % together, a change of {change:+.2f} points (standard error {spread:.2f}); "
            f"together was lower in {lower} of the draws."
        )

    def traffic(self) -> str:
        """Say what was sent, and how much: by the method that the headline is about, then by others beside it."""
        together, (rows, columns) = self.method(self.together), self.shape
        after = "" if together.certificate is None else " and the certificate after them"
        parts = [
            f"What the sites sent were sums of their gradients for the shared layer U ({rows} × {columns} numbers), "
            f"built up from neighbour to neighbour: {megabytes(together.bytes - together.start_bytes)} MB for "
            f"{together.rounds:,} rounds{after}, and {megabytes(together.start_bytes)} MB before them to agree on "
            "where to start. No row of data left its site."
        ]
        parts += [
            f"{method.name}: {megabytes(method.bytes)} MB in all instead of {megabytes(together.bytes)}, in "
            f"{method.exchanges:,} rounds of messages instead of {together.exchanges:,}."
            for method in self.senders
            if method is not together
        ]
        return " ".join(parts)

    def table(self) -> Table:
        """Return the table of methods."""
        rows = [
            [
                method.name,
                f"{method.error:.2f}",
                f"{method.seconds:.2f}",
                f"{method.rounds:,}",
                "all data" if method.pooled else megabytes(method.bytes),
                method.certified,
            ]
            for method in self.methods
        ]
        columns = ["Method", "Test error, %", "Seconds", "Rounds", "MB sent", "Certified"]
        draws = f" and {len(self.draws)} draws, the rest is the first draw's" if len(self.draws) > 1 else ""
        caption = (
            f"Test error is the mean over sites{draws}; MB sent is the sum over sites. Certified is how close to the "
            "least objective of any rank the end is known to be."
        )
        return Table(caption, columns, rows, words=frozenset({"Certified"}))

    def as_json(self) -> dict[str, Any]:
        """Return all numbers of the comparison as JSON can hold them."""
        better, same, worse = self.verdict
        return {
            "headline": self.headline(),
            "sites": {"better": better, "same": same, "worse": worse},
            "draws": [{"alone": alone, "together": together} for alone, together in self.draws],
            "methods": [
                {
                    "name": method.name,
                    "test_error_percent": method.error,
                    "test_error_percent_by_task": dict(method.errors),
                    "seconds": method.seconds,
                    "rounds": method.rounds,
                    "exchanges": method.exchanges,
                    "bytes": method.bytes,
                    "pooled": method.pooled,
                    "stop": method.ending,
                    "objective": method.last("objective"),
                    "consensus_gap": method.last("consensus_gap"),
                    "certificate": _certificate(method.certificate),
                    "rank": method.rank,
                    "penalties": list(method.penalties),
                }
                for method in self.methods
            ],
            "graph": sorted(sorted(map(str, edge)) for edge in self.graph.edges),
            "settings": dict(self.settings),
            "versions": dict(self.versions),
        }


def _certificate(certificate: Certificate | None) -> dict[str, Any] | None:
    if certificate is None:
        return None
    return {
        "gap": certificate.gap if np.isfinite(certificate.gap) else None,
        "rank_sufficient": certificate.rank_sufficient,
        "suggested_rank": certificate.suggested_rank,
    }


def megabytes(size: float) -> str:
    """Write bytes as megabytes (10^6) with three digits that count.

    Examples
    --------
    >>> megabytes(0), megabytes(28_800), megabytes(12_345_678), megabytes(1_234_567_890)
    ('0', '0.0288', '12.3', '1,235')
    """
    size /= 1e6
    return f"{size:,.0f}" if size >= 100 or size == 0 else f"{size:.3g}"


def count(number: int, noun: str) -> str:
    """Write a number of things.

    Examples
    --------
    >>> count(0, "site"), count(1, "site"), count(3, "site")
    ('No site', '1 site', '3 sites')
    """
    return f"{number or 'No'} {noun}{'' if number < 2 else 's'}"
