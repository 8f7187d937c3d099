"""The start of a private fit: scales of columns, declared or paid for, and the totals that sites release.

Rows are taken about centres and in units of spreads that are declared (:class:`~elmesh.privacy.Privacy`) or, if they
are not, found by histograms with noise (:mod:`elmesh.privacy.scales`). Nothing else of the rows has any influence on
what is common to all sites but the totals of :mod:`elmesh.privacy.release`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from elmesh.data.features import FeatureMap
from elmesh.data.tasks import Groups
from elmesh.errors import ElmeshError
from elmesh.privacy.accounting import epsilon_of, rho_for
from elmesh.privacy.budget import Privacy
from elmesh.privacy.release import Mechanism, make_mechanism
from elmesh.privacy.report import PrivacyReport, ReleasedTotal
from elmesh.privacy.scales import Histogram, equal_bins, find_scale, find_window, power_bins
from elmesh.run.backend import Backend
from elmesh.solvers.base import PrivateTotals
from elmesh.solvers.private_part import private_features
from elmesh.text import listed
from elmesh.typing import FloatArray, IntArray, Label

__all__ = ["PrivateFit", "ScaleSearch", "Scales", "start_private_fit"]

# Shares of the budget for the two histograms, where ranges are not declared.
_SHARES = (0.1, 0.1)
# Values of targets count so many times in a histogram: everything depends on their scale.
_TARGET_WEIGHT = 3
# More hidden units of a group than are ever in the totals.
_ENOUGH_UNITS = 1000
# Centre and spread of a column of which nothing is known.
_UNIT = (0.0, 1.0)


@dataclass(frozen=True, eq=False)
class Scales:
    """Centres and spreads of the inputs, and of the targets; and where they come from."""

    inputs: tuple[FloatArray, FloatArray]
    targets: tuple[FloatArray, FloatArray]
    source: str


@dataclass(frozen=True, eq=False)
class PrivateFit:
    """What is left of the budget, the scales, and what was released so far.

    ``rows`` is the number of all rows, or of those that there are for certain, and ``most_rows`` a bound that all rows
    cannot exceed.
    """

    privacy: Privacy
    sites: int
    rows: float
    most_rows: float
    scales: Scales
    releases: tuple[ReleasedTotal, ...]
    classes: bool = False

    @property
    def honest(self) -> int:
        """Number of sites whose noise no one else knows."""
        return self.sites - self.privacy.colluders(self.sites)

    def mechanism(self, p: int, d: int) -> Mechanism:
        """Return how totals of p features and d targets are released, with all that is left of the budget."""
        total = rho_for(self.privacy.epsilon, self.privacy.delta)
        left = total - sum(release.rho for release in self.releases)
        mechanism = make_mechanism(p, d, left, self.most_rows, self.honest, classes=self.classes)
        _, sigma = mechanism.noise(self.honest)
        # The norm of the noise, and that of correlations in which every row is the same.
        noise, signal = sigma * np.sqrt(p * d), self.rows * mechanism.limit * np.sqrt(d)
        if noise > signal:
            needed = epsilon_of(total * (noise / signal) ** 2, self.privacy.delta)
            raise ElmeshError(
                f"epsilon={self.privacy.epsilon:g} is too small for any usable result: the noise would be "
                f"{noise / signal:.3g} times as large as the totals of {self.rows:,.0f} rows can be. Use an "
                f"epsilon of at least {needed:.2g}, more rows, or fewer columns; nothing was released of the totals."
            )
        return mechanism

    def totals(
        self, layer: FeatureMap, X: FloatArray, groups: Groups, targets: Mapping[Label, FloatArray]
    ) -> tuple[PrivateTotals, PrivacyReport]:
        """Return what each task here releases of its rows, before noise is added, and the report on all releases."""
        features, units = private_features(layer.groups)
        mechanism = self.mechanism(len(features), next(iter(targets.values())).shape[1])
        terms = [mechanism.totals(layer(X[index])[:, features] * units, targets[t]) for t, index in groups.items()]
        return PrivateTotals(mechanism, features, units, np.stack(terms)), self._report(mechanism)

    def _report(self, mechanism: Mechanism) -> PrivacyReport:
        """Return what was released, the totals of a mechanism included."""
        totals = ReleasedTotal("totals of features and targets", len(mechanism.sigma), mechanism.cost())
        colluders = self.sites - self.honest
        return PrivacyReport.of((*self.releases, totals), self.privacy.delta, self.sites, colluders, self.scales.source)


def start_private_fit(
    privacy: Privacy,
    backend: Backend,
    n_sites: int,
    inputs: Mapping[Label, FloatArray],
    targets: Mapping[Label, FloatArray],
    *,
    classes: bool = False,
) -> PrivateFit:
    """Return the scales of inputs and targets, declared or paid for, from the rows of each task here.

    With ``classes`` targets are indicators of classes, whose scale is known.
    """
    columns, outputs = (next(iter(parts.values())).shape[1] for parts in (inputs, targets))
    unit = _scale_arrays([None] * columns), _scale_arrays([None] * outputs)
    if backend.most_rows is not None:
        # Columns are in units of their declared ranges. What all sites have stated is the same number at every site, so
        # that all refuse a fit or none does.
        rows = float(max(backend.sure_rows({t: len(X) for t, X in inputs.items()}), 1))
        scales = Scales(*unit, "found" if backend.released else "declared")
        return PrivateFit(privacy, n_sites, rows, float(n_sites * backend.most_rows), scales, backend.released, classes)
    rows = float(backend.sum_over_tasks({t: np.array([float(len(X))]) for t, X in inputs.items()})[0])
    of_inputs = privacy.input_scale(columns)
    of_targets = unit[1] if classes else privacy.target_scale(outputs)
    if of_inputs is not None and of_targets is not None:
        return PrivateFit(privacy, n_sites, rows, rows, Scales(of_inputs, of_targets, "declared"), (), classes)
    search = ScaleSearch(privacy, backend, n_sites)
    n_inputs, n_targets = columns * (of_inputs is None), outputs * (of_targets is None)
    weights = (1,) * n_inputs + (_TARGET_WEIGHT,) * n_targets
    if not search.suffices(weights, rows):
        raise _undeclared(privacy, rows, inputs=of_inputs is None, targets=of_targets is None)
    own = {t: np.hstack([X[:, :n_inputs], targets[t][:, :n_targets]]) for t, X in inputs.items()}
    found, releases = search.run(own, weights)
    scales = Scales(
        of_inputs or _scale_arrays(found[:n_inputs]), of_targets or _scale_arrays(found[n_inputs:]), "found"
    )
    return PrivateFit(privacy, n_sites, rows, rows, scales, releases, classes)


def _scale_arrays(scales: Sequence[tuple[float, float] | None]) -> tuple[FloatArray, FloatArray]:
    """Return centres and spreads of columns; those that are not known are in units of their spread about zero."""
    centre, spread = np.array([_UNIT if one is None else one for one in scales]).T
    return centre, spread


def _most_features(n_columns: int) -> int:
    """Return how many features the totals of a network have at most, for so many encoded columns."""
    # Networks have one or two groups of hidden units, of which a few units each are in the totals.
    groups = np.repeat(np.arange(4), [1, n_columns, _ENOUGH_UNITS, _ENOUGH_UNITS])
    return len(private_features(groups)[0])


def _undeclared(privacy: Privacy, rows: float, *, inputs: bool, targets: bool) -> ElmeshError:
    """Return the error that noise would hide the scales of columns."""
    what = " and ".join(name for name, lacks in (("inputs", inputs), ("targets", targets)) if lacks)
    arguments = ", ".join(f"{name}_range=..." for name, lacks in (("input", inputs), ("target", targets)) if lacks)
    return ElmeshError(
        f"With {rows:,.0f} rows and epsilon={privacy.epsilon:g} noise would hide the centre and spread of the {what}. "
        f"Declare their usual ranges with Privacy({arguments}), such as (-2, 2) for standardised columns, or use a "
        "larger epsilon; nothing was released."
    )


@dataclass(frozen=True, eq=False)
class ScaleSearch:
    """The search for centre and spread of columns by two histograms.

    Parameters
    ----------
    privacy : Privacy
        The budget, of which the histograms take a share.
    backend : Backend
        Where the sums are taken.
    sites : int
        Number of all sites.
    """

    privacy: Privacy
    backend: Backend
    sites: int

    def _histogram(self, weights: tuple[int, ...], share: float) -> Histogram:
        honest = self.sites - self.privacy.colluders(self.sites)
        return Histogram.make(weights, share * rho_for(self.privacy.epsilon, self.privacy.delta), honest)

    def suffices(self, weights: tuple[int, ...], rows: float) -> bool:
        """Return whether columns that count so many times can be found among so many rows."""
        return len(weights) > 0 and self._histogram(weights, _SHARES[0]).suffices(rows, self.sites)

    def check_network(self, columns: Sequence[str], rows: int, n_encoded: int, n_classes: int) -> None:
        """Raise if a private fit in a network would be refused, before any of the budget is spent on scales.

        Parameters
        ----------
        columns : sequence of str
            Columns whose scales are looked for.
        rows : int
            How many rows there are for certain, as all sites have stated (:meth:`Backend.sure_rows`).
        n_encoded : int
            Number of all columns, as they are encoded.
        n_classes : int
            Number of classes; 0 for a regression, which has one target or more.
        """
        weights, privacy = (1,) * len(columns), self.privacy
        if not self.suffices(weights, rows):
            raise ElmeshError(
                f"With epsilon={privacy.epsilon:g} and the {rows:,} rows that the sites have for certain, as they have "
                f"stated, noise would hide the centre and spread of {listed(columns)}. Declare a range for each such "
                "column in the network file, or use a larger epsilon; nothing was released."
            )
        most_rows = float(self.sites * (self.backend.most_rows or rows))
        costs = tuple(ReleasedTotal("scales", 0, self._histogram(weights, share).cost()) for share in _SHARES)
        scales = Scales(_scale_arrays([None]), _scale_arrays([None]), "found")
        fit = PrivateFit(privacy, self.sites, float(rows), most_rows, scales, costs, n_classes > 0)
        fit.mechanism(_most_features(n_encoded), n_classes or 1)

    def run(
        self, columns: Mapping[Label, FloatArray], weights: tuple[int, ...]
    ) -> tuple[list[tuple[float, float] | None], tuple[ReleasedTotal, ...]]:
        """Return centre and spread of each column, None where noise hides them, and what was released for it.

        ``columns`` has the columns of each task here.
        """
        first, second = (self._histogram(weights, share) for share in _SHARES)
        counts = self._release(first, {t: power_bins(X) for t, X in columns.items()})
        windows = [find_window(own, sigma) for own, sigma in zip(counts, first.noise(self.sites), strict=True)]
        equal = self._release(second, {t: equal_bins(X, windows) for t, X in columns.items()})
        found = [
            None if window is None else find_scale(own, window, sigma)
            for own, window, sigma in zip(equal, windows, second.noise(self.sites), strict=True)
        ]
        releases = tuple(
            ReleasedTotal(what, bins.size, histogram.cost())
            for what, bins, histogram in (("powers of two", counts, first), ("equal bins", equal, second))
        )
        return found, releases

    def _release(self, histogram: Histogram, counts: Mapping[Label, IntArray]) -> FloatArray:
        terms = {t: histogram.terms(own) for t, own in counts.items()}
        size = len(next(iter(terms.values())))
        sigma = np.full(size, histogram.per_site, dtype=np.int64)
        return histogram.split(self.backend.noisy_sum_over_tasks(terms, sigma, histogram.cost()))
