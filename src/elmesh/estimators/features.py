"""The features of an estimator, from its parameters: in groups where the solver weighs groups, else a hidden layer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from elmesh.checks import check_choice, check_count, check_number
from elmesh.comm.communicator import raise_on_all
from elmesh.data.features import FeatureMap, Features, HiddenLayer, weight_scale
from elmesh.errors import ElmeshError
from elmesh.estimators.rows import ColumnMoments, TrainingRows, common_moments
from elmesh.run.backend import Backend
from elmesh.solvers import Solver
from elmesh.typing import FloatArray

__all__ = ["GROUPED", "SINGLE", "make_features"]

#: Automatic values for features in groups, and for a single hidden layer as in the paper.
GROUPED: dict[str, Any] = {"n_hidden": 200, "weight_scale": (1.0, 4.0), "clip": 3.0, "direct_links": True}
SINGLE: dict[str, Any] = {"n_hidden": 300, "clip": None, "direct_links": False}
# Columns whose standard deviations differ by more than the first factor have different units; a common unit of columns
# is left alone if their standard deviation is of order one, up to the second factor.
_MOST_RATIO, _OF_ORDER_ONE = 100.0, 5.0


def make_features(
    estimator: Any,
    solver: Solver,
    rows: TrainingRows,
    seed: int,
    backend: Backend,
    moments: tuple[FloatArray, FloatArray] | None = None,
) -> Features:
    """Return the features that an estimator's parameters ask for, the same in all processes.

    Parameters
    ----------
    estimator : MultiTaskELM
        Its ``n_hidden``, ``activation``, ``weight_scale``, ``direct_links`` and ``clip``.
    solver : Solver
        What the features are for.
    rows : TrainingRows
        The rows of this process; of very many, a sample decides on means and limits of inputs.
    seed : int
        The seed that all sites share.
    backend : Backend
        Where the fit runs: the means of inputs are over the rows of all processes, unless they are declared.
    moments : pair of ndarray, optional
        Means and standard deviations of the inputs, where they must not be taken from the rows. Then inputs are in
        units of the standard deviations.
    """
    grouped, scale, n_inputs = solver.grouped_features, estimator.weight_scale, rows.n_inputs
    check_choice("scale", estimator.scale, ("auto", "columns", "common", None))
    with raise_on_all(backend.communicator):
        n_hidden = estimator.n_hidden
        if n_hidden == "auto":
            n_hidden = None if solver.learns_features else (GROUPED if grouped else SINGLE)["n_hidden"]
        if n_hidden is not None:
            check_count("n_hidden", n_hidden, otherwise=', "auto", or None for no hidden layer')
        if not grouped:
            _check_plain(estimator)
            if scale == "auto":
                # The paper's, for arrays; for the standardised columns of a table, of which there may be many.
                scale = 1.0 if estimator.table_ is None else weight_scale(n_inputs)
            return HiddenLayer(n_inputs, n_hidden, estimator.activation, scale, seed)
        check_choice("direct_links", estimator.direct_links, (True, False, "auto"))
        clip = GROUPED["clip"] if estimator.clip == "auto" else estimator.clip
        if clip is not None:
            check_number("clip", clip)
        scales = GROUPED["weight_scale"] if isinstance(scale, str) and scale == "auto" else scale
        layers = _layers(n_inputs, n_hidden, estimator.activation, scales, seed)
    mean, spread = np.zeros(n_inputs), np.ones(n_inputs)
    divisors = None
    if moments is not None:
        mean, divisors = moments
        spread = divisors
    elif not backend.scales_targets:
        moments_by_task = ColumnMoments.by_task(
            (t, chunk.X[index], chunk.weights[index]) for chunk in rows.sample() for t, index in chunk.groups.items()
        )
        mean, spread = common_moments(backend, moments_by_task)
        # Columns of a table are standardised already.
        divisors = _divisors(estimator.scale, spread) if estimator.table_ is None else None
    return FeatureMap(
        mean,
        None if clip is None else clip * spread,
        layers,
        constant=bool(estimator.fit_intercept),
        direct_links=n_hidden is None or estimator.direct_links is not False,
        scale=divisors,
    )


def _divisors(scale: str | None, spread: FloatArray) -> FloatArray | None:
    """Return what columns are divided by, given their standard deviations; None for nothing."""
    varying = spread[spread > 0]
    if scale is None or not len(varying):
        return None
    usual = float(np.sqrt(np.mean(varying**2)))
    if scale == "auto" and varying.max() <= _MOST_RATIO * varying.min():
        if 1 / _OF_ORDER_ONE <= usual <= _OF_ORDER_ONE:
            return None
        scale = "common"
    return np.full(len(spread), usual) if scale == "common" else np.where(spread > 0, spread, 1.0)


def _check_plain(estimator: Any) -> None:
    """Raise if an estimator has parameters of grouped features that a single hidden layer has not."""
    for name in ("direct_links", "clip"):
        if getattr(estimator, name) not in ("auto", False, None):
            raise ElmeshError(
                f'{name} is for solvers that weigh groups of features, such as mesh-elm; leave it at "auto".'
            )


def _layers(
    n_inputs: int, n_hidden: int | None, activation: str, scales: float | Sequence[float], seed: int
) -> tuple[HiddenLayer, ...]:
    """Return one layer of hidden units per scale of weights, of equal width as far as possible."""
    if n_hidden is None:
        return ()
    each = [scales] if isinstance(scales, (int, float)) else list(scales)
    if not each or len(each) > n_hidden:
        raise ElmeshError(f"weight_scale has {len(each)} values; give one or more, and at most n_hidden={n_hidden}.")
    for value in each:
        check_number("weight_scale", value)
    widths = [len(part) for part in np.array_split(np.arange(n_hidden), len(each))]
    # Seeds of further layers are far apart from those that users choose.
    seeds = [(seed + k * 0x9E3779B97F4A7C15) % 2**64 for k in range(len(each))]
    return tuple(
        HiddenLayer(n_inputs, width, activation, scale, own)
        for width, scale, own in zip(widths, each, seeds, strict=True)
    )
