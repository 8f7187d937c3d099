"""Learning alone, pooled and together at the same sites, over several random draws: numbers and sentences.

Every sentence is derived from the numbers, whichever way they went: sites can gain or lose by learning together. A
change counts as clear if its 95 % interval, by Student's t over the draws, does not contain zero.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from scipy.stats import t as student

from elmesh.math.certificate import Certificate
from elmesh.report.wording import Wording
from elmesh.text import data_size
from elmesh.typing import FloatArray

__all__ = ["Change", "SiteResult", "SiteStudy", "Training", "format_signed"]

#: Probability that the interval of a change contains it.
COVERAGE = 0.95
# Most names that a sentence lists.
_MOST_NAMES = 5


@dataclass(frozen=True)
class Change:
    """The mean change of an error over the draws, and its interval; below zero is better.

    With one draw there is no interval, and no change is clear.
    """

    mean: float
    low: float
    high: float

    @classmethod
    def over_draws(cls, changes: FloatArray) -> Change:
        """Return the mean change with its interval.

        >>> change = Change.over_draws(np.array([-0.3, -0.2, -0.4]))
        >>> round(change.mean, 2), round(change.low, 2), round(change.high, 2), change.clear
        (-0.3, -0.55, -0.05, -1)
        """
        n, mean = len(changes), float(np.mean(changes))
        if n < 2:
            return cls(mean, -np.inf, np.inf)
        half = float(student.ppf(0.5 + COVERAGE / 2, n - 1) * np.std(changes, ddof=1) / np.sqrt(n))
        return cls(mean, mean - half, mean + half)

    def relative_to(self, error: float) -> Change:
        """Return the change in per cent of an error."""
        percent = 100 / max(error, 1e-300)
        return Change(percent * self.mean, percent * self.low, percent * self.high)

    @property
    def clear(self) -> int:
        """-1 for clearly better, 1 for clearly worse, 0 if the draws do not decide."""
        return -1 if self.high < 0 else int(self.low > 0)

    def __str__(self) -> str:
        text = format_signed(self.mean)
        return f"{text} ± {self.high - self.mean:.2f}" if np.isfinite(self.high) else text


@dataclass(frozen=True)
class SiteResult:
    """One site: its training rows, its errors on new rows in each draw, and what its predictions are made of."""

    name: str
    rows: int
    alone: Sequence[float]
    pooled: Sequence[float]
    together: Sequence[float]
    shares: tuple[float, float, float]  # of the common, the shared and the private part; means over the draws
    covered: float  # share of new rows within the 90 % interval of their prediction

    @cached_property
    def change(self) -> Change:
        """Error together less error alone."""
        return Change.over_draws(np.subtract(self.together, self.alone))

    @cached_property
    def against_pooled(self) -> Change:
        """Error together less error with all rows pooled into one model."""
        return Change.over_draws(np.subtract(self.together, self.pooled))

    def to_json(self) -> dict[str, Any]:
        """Return all numbers; an interval that is not known is null."""
        interval = [self.change.low, self.change.high]
        return {
            "name": self.name,
            "rows": self.rows,
            **{name: float(np.mean(getattr(self, name))) for name in ("alone", "pooled", "together")},
            "change": self.change.mean,
            "change_interval": interval if np.isfinite(interval).all() else None,
            "clear": self.change.clear,
            "shares": dict(zip(("common", "shared", "private"), self.shares, strict=True)),
            "covered_90": self.covered,
        }


@dataclass(frozen=True)
class Training:
    """How the joint fit of the first draw went."""

    seconds: float
    rounds: int
    exchanges: int  # message rounds, with those before the first round
    bytes: int  # sent by all sites together
    stop: str  # name of the stop reason
    advice: str
    rank: int
    certificate: Certificate | None = None

    def to_json(self) -> dict[str, Any]:
        """Return all numbers."""
        numbers = {key: getattr(self, key) for key in ("seconds", "rounds", "exchanges", "bytes", "stop", "rank")}
        certificate = self.certificate
        gap = None if certificate is None or not np.isfinite(certificate.gap) else certificate.gap
        return {**numbers, "certificate": None if certificate is None else {"gap": gap, "text": str(certificate)}}


@dataclass(frozen=True)
class SiteStudy:
    """The same sites alone, pooled and together."""

    introduction: str  # two or three sentences about the data
    unit: str  # of the errors
    sites: Sequence[SiteResult]
    training: Training
    shared_draws: int  # draws in which a shared part was found
    settings: Mapping[str, str] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)

    @property
    def n_draws(self) -> int:
        """Number of random draws of the rows."""
        return len(self.sites[0].alone)

    def mean(self, method: str) -> float:
        """Return the mean error over sites and draws of "alone", "pooled" or "together"."""
        return float(np.mean([np.mean(getattr(site, method)) for site in self.sites]))

    def clear(self, sign: int) -> list[SiteResult]:
        """Return the sites that are clearly better (-1), undecided (0) or clearly worse (1) together than alone."""
        return [site for site in self.sites if site.change.clear == sign]

    def headline(self) -> str:
        """Return the main result in one sentence."""
        before, after, n = self.mean("alone"), self.mean("together"), len(self.sites)
        if f"{before:.2f}" == f"{after:.2f}":
            moved = f"stayed at {after:.2f} {self.unit}"
        else:
            moved = f"{'fell' if after < before else 'rose'} from {before:.2f} to {after:.2f} {self.unit}"
        who = f"{len(self.clear(-1))} of {n} sites clearly predict better together than alone"
        if self.n_draws < 2:
            better = sum(site.change.mean < 0 for site in self.sites)
            who = f"{better} of {n} sites predicted better together than alone in the one draw"
        return f"{who}; the mean error {moved}."

    def site_summary(self) -> str:
        """Return who gained most, who lost, and where the draws do not decide."""
        wording = Wording("elmesh.report", "lead", unit=self.unit, draws=self.n_draws)
        first = min(self.sites, key=lambda site: site.change.mean)
        parts = []
        if first.change.mean < 0:
            errors = {name: float(np.mean(getattr(first, name))) for name in ("alone", "together")}
            parts.append(wording.text("most", name=first.name, rows=first.rows, **errors))
        losers = self.clear(1)
        parts.append(wording.text("losers", names=_names(losers)) if losers else wording.text("no_losers"))
        if self.n_draws > 1 and (open_ := self.clear(0)):
            parts.append(wording.text("undecided", names=_names(open_)))
        return " ".join(parts)

    def pooled_summary(self) -> str:
        """Return what pooling all rows into one model gives instead, for whom it is better, and for whom worst."""
        wording = Wording("elmesh.report", "lead", unit=self.unit, pooled=self.mean("pooled"))
        worst = max(self.sites, key=lambda site: float(np.mean(site.pooled) - np.mean(site.alone)))
        ahead = [site for site in self.sites if site.against_pooled.clear == 1]
        better = wording.text("pooled_better", names=_names(ahead)) if ahead else wording.text("pooled_never")
        pair = {name: float(np.mean(getattr(worst, name))) for name in ("pooled", "together")}
        return f"{wording.text('pooled', worst=worst.name, error=pair['pooled'], instead=pair['together'])} {better}"

    def parts_summary(self) -> str:
        """Return which sites have the largest private part, and how often a shared part was found."""
        wording = Wording("elmesh.report", "parts", draws=self.n_draws, found=self.shared_draws)
        first, second = sorted(self.sites, key=lambda site: -site.shares[2])[:2]
        common = 100 * float(np.median([site.shares[0] for site in self.sites]))
        private = [100 * site.shares[2] for site in (first, second)]
        own = wording.text("largest", first=first, second=second, private=private, common=common)
        return f"{own} {wording.text('shared' if self.shared_draws else 'not_shared')}"

    def traffic_summary(self) -> str:
        """Return what the joint fit of the first draw sent."""
        sent = data_size(self.training.bytes)
        return Wording("elmesh.report", "training").text("traffic", sent=sent, training=self.training)

    def to_json(self) -> dict[str, Any]:
        """Return all numbers of the study."""
        return {
            "headline": self.headline(),
            "unit": self.unit,
            "sites": {"better": len(self.clear(-1)), "undecided": len(self.clear(0)), "worse": len(self.clear(1))},
            "errors": {method: self.mean(method) for method in ("alone", "pooled", "together")},
            "pooled_better": [site.name for site in self.sites if site.against_pooled.clear == 1],
            "draws": self.n_draws,
            "shared_draws": self.shared_draws,
            "by_site": [site.to_json() for site in self.sites],
            "training": self.training.to_json(),
            "settings": dict(self.settings),
            "versions": dict(self.versions),
        }


def _names(sites: Sequence[SiteResult]) -> str:
    """Return the names of sites, in a sentence; the number of sites if there are many."""
    names = [site.name for site in sites]
    if len(names) > _MOST_NAMES:
        return f"{len(names)} sites"
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def format_signed(change: float) -> str:
    """Format a change with its sign and two decimals.

    >>> format_signed(-0.222), format_signed(-0.001), format_signed(0.5)
    ('−0.22', '0.00', '+0.50')
    """
    text = f"{change:+.2f}"
    return "0.00" if text in ("+0.00", "-0.00") else text.replace("-", "\N{MINUS SIGN}")
