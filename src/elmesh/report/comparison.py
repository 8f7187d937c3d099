"""Several methods on the same tasks: the results as numbers, as sentences, and as a table.

Every sentence is derived from the numbers, whichever way they went: sites can gain or lose by learning together.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd

from elmesh.math.certificate import Certificate
from elmesh.report.page import Table
from elmesh.report.site_plots import format_change, sign_of_change
from elmesh.report.wording import Wording

__all__ = ["Comparison", "MethodResult", "format_megabytes"]


@dataclass(frozen=True)
class MethodResult:
    """The result of one method."""

    name: str
    description: str  # two plain sentences
    errors: Mapping[str, float]  # test error in per cent per task
    seconds: float  # time of the fit
    rounds: int
    exchanges: int  # message rounds, including those of the start
    bytes: int  # sent by all sites together
    stop: str  # name of the stop reason
    advice: str  # what to do about it
    history: pd.DataFrame  # round, objective, consensus_gap, exchanges, bytes; one row per round from 0 on, or none
    pooled: bool = False  # whether it needs all data in one place
    certificate: Certificate | None = None
    rank: int | None = None  # number of columns of U
    penalties: tuple[float, ...] = ()  # objectives and bounds are comparable only between equal penalties
    color: str = "muted"
    dash: str = "-"

    @property
    def error(self) -> float:
        """Mean test error over the tasks, in per cent."""
        return float(np.mean(list(self.errors.values())))

    @property
    def traffic(self) -> str:
        """Megabytes sent, or that all data were pooled."""
        return "all data" if self.pooled else format_megabytes(self.bytes)

    @property
    def start_bytes(self) -> int:
        """Bytes sent before the first round."""
        return int(self.history["bytes"].iloc[0]) if len(self.history) else 0

    @property
    def certified(self) -> str:
        """The certified distance from the optimum, in words."""
        if self.certificate is None or not np.isfinite(self.certificate.gap):
            return "–"
        return f"within {100 * self.certificate.gap:.2g} %"

    def last(self, column: str) -> float | None:
        """Return the last finite value of a column of the history, or None."""
        values = np.asarray(self.history[column], dtype=float) if column in self.history else np.empty(0)
        values = values[np.isfinite(values)]
        return float(values[-1]) if len(values) else None

    def to_json(self) -> dict[str, Any]:
        """Return all numbers except the history."""
        certificate = self.certificate
        return {
            "name": self.name,
            "test_error_percent": self.error,
            "test_error_percent_by_task": dict(self.errors),
            **{key: getattr(self, key) for key in ("seconds", "rounds", "exchanges", "bytes", "pooled", "stop")},
            "objective": self.last("objective"),
            "consensus_gap": self.last("consensus_gap"),
            "certificate": certificate
            and {
                "gap": certificate.gap if np.isfinite(certificate.gap) else None,
                "rank_sufficient": certificate.rank_sufficient,
                "suggested_rank": certificate.suggested_rank,
            },
            "rank": self.rank,
            "penalties": list(self.penalties),
        }


@dataclass(frozen=True)
class Comparison:
    """Methods on the same tasks: one alone, one with all data pooled, and those that send messages over the graph."""

    introduction: str  # one or two sentences about the data
    methods: Sequence[MethodResult]  # in the order of the table
    alone: str  # name of the method that shares nothing
    together: str  # name of the method in the headline
    pooled: str  # name of the method with all data in one place
    graph: Any  # networkx.Graph over the tasks
    shape: tuple[int, int]  # of U, and so of the messages
    test_rows: int  # per task, over all draws
    #: Mean test error alone and together per random draw. Errors are means over draws, the rest is from the first.
    draws: Sequence[tuple[float, float]] = ()
    settings: Mapping[str, str] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)

    def method(self, name: str) -> MethodResult:
        """Return the method with this name."""
        return next(method for method in self.methods if method.name == name)

    @property
    def senders(self) -> list[MethodResult]:
        """The methods that send messages."""
        return [method for method in self.methods if method.bytes > 0]

    def bound(self, method: MethodResult) -> float | None:
        """Return the highest lower bound of the method's objective, certified by any method with its penalties."""
        peers = [m.certificate for m in self.methods if m.penalties == method.penalties]
        return max((certificate.lower_bound for certificate in peers if certificate is not None), default=None)

    @property
    def change(self) -> dict[str, float]:
        """Error together less error alone per task, in percentage points."""
        alone, together = self.method(self.alone).errors, self.method(self.together).errors
        return {task: together[task] - alone[task] for task in alone}

    @property
    def site_counts(self) -> tuple[int, int, int]:
        """Number of tasks that did better, the same, and worse together than alone."""
        signs = [sign_of_change(change) for change in self.change.values()]
        return signs.count(-1), signs.count(0), signs.count(1)

    def headline(self) -> str:
        """Return the main result in one sentence."""
        better, _, _ = self.site_counts
        before, after = self.method(self.alone).error, self.method(self.together).error
        if format_change(after - before) == "0":
            moved = f"stayed at {after:.1f} %"
        else:
            moved = f"{'fell' if after < before else 'rose'} from {before:.1f} % to {after:.1f} %"
        sites = f"{better} of {len(self.change)} sites"
        return f"{sites} did better together than alone; the mean test error {moved}."

    def site_summary(self) -> str:
        """Return how many sites improved, got worse, and are unchanged."""
        better, same, worse = self.site_counts
        return (
            f"{better or 'No'} {'site' if better < 2 else 'sites'} improved, {worse or 'none'} got worse, "
            f"{same or 'none'} {'is' if same < 2 else 'are'} unchanged."
        )

    def draw_summary(self) -> str:
        """Return how much the random draws differ; an empty text if there is only one."""
        if len(self.draws) < 2:
            return ""
        alone, together = np.array(self.draws).T
        numbers = {
            "runs": len(alone),
            "alone": alone.mean(),
            "together": together.mean(),
            "change": together.mean() - alone.mean(),
            "spread": np.std(together - alone, ddof=1) / np.sqrt(len(alone)),
            "lower": int(np.sum(together < alone - 1e-9)),
        }
        return Wording("elmesh.report", "lead").text("draws", **numbers)

    def traffic_summary(self) -> str:
        """Return the kind and amount of data sent by the method in the headline, and then by the other methods."""
        own, others = self.method(self.together), [m for m in self.senders if m.name != self.together]
        total, start = (format_megabytes(size) for size in (own.bytes, own.start_bytes))
        certificate = "" if own.certificate is None else " including the certificate"
        wording = Wording("elmesh.report", "lead", shape=self.shape, rounds=own.rounds, exchanges=own.exchanges)
        parts = [
            wording.text(
                "traffic", sent=format_megabytes(own.bytes - own.start_bytes), start=start, certificate=certificate
            ),
            *(wording.text("other_traffic", other=m, sent=format_megabytes(m.bytes), instead=total) for m in others),
        ]
        return " ".join(parts)

    def table(self) -> Table:
        """Return the table of methods."""
        rows = [
            [m.name, f"{m.error:.2f}", f"{m.seconds:.2f}", f"{m.rounds:,}", m.traffic, m.certified]
            for m in self.methods
        ]
        draws = f" and {len(self.draws)} draws, the rest is from the first draw" if len(self.draws) > 1 else ""
        return Wording("elmesh.report", "methods").table("methods", rows, draws=draws)

    def to_json(self) -> dict[str, Any]:
        """Return all numbers of the comparison."""
        better, same, worse = self.site_counts
        return {
            "headline": self.headline(),
            "sites": {"better": better, "same": same, "worse": worse},
            "draws": [{"alone": alone, "together": together} for alone, together in self.draws],
            "methods": [method.to_json() for method in self.methods],
            "graph": sorted(sorted(map(str, edge)) for edge in self.graph.edges),
            "settings": dict(self.settings),
            "versions": dict(self.versions),
        }


def format_megabytes(size: float) -> str:
    """Format bytes as megabytes (10^6) with three significant digits.

    >>> [format_megabytes(size) for size in (0, 28_800, 12_345_678, 1_234_567_890)]
    ['0', '0.0288', '12.3', '1,235']
    """
    size /= 1e6
    return f"{size:,.0f}" if size >= 100 or size == 0 else f"{size:.3g}"
