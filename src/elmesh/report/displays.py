"""Displays in the manner of scikit-learn: of what a fit did, who gains, and what predictions depend on.

A display holds data. ``plot(ax=None)`` draws it, by default into a new figure, and sets ``ax_`` and ``figure_``;
``from_estimator`` computes the data of a fitted estimator and plots it. The page of ``elmesh fit`` has the same plots.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Self, cast

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import ArrayLike

from elmesh.checks import check_choice
from elmesh.errors import ElmeshError
from elmesh.estimators.explanation import Effect, Explanation
from elmesh.estimators.gains import SiteGains, format_error
from elmesh.report.curves import Curve, draw_curves
from elmesh.report.explanation_plots import draw_effect, draw_importance, draw_site_map
from elmesh.report.figures import PlotFunction
from elmesh.report.site_plots import draw_errors, drawn_tasks
from elmesh.typing import Label

if TYPE_CHECKING:
    from elmesh.estimators.base import MultiTaskELM

__all__ = ["ConvergenceDisplay", "EffectDisplay", "ImportanceDisplay", "SiteGainDisplay", "SiteMapDisplay"]


class _Display:
    """What displays share."""

    ax_: Axes
    figure_: Figure

    def _plot(self, draw: PlotFunction, ax: Axes | None, size: tuple[float, float] = (5.4, 4.0)) -> Self:
        if ax is None:
            import matplotlib.pyplot as plt  # noqa: PLC0415  (only here: it has global state)

            _, ax = plt.subplots(figsize=size, layout="constrained")
        draw(ax)
        self.ax_, self.figure_ = ax, cast("Figure", ax.get_figure(root=True))
        return self


class ConvergenceDisplay(_Display):
    """How a fit went, round by round.

    Parameters
    ----------
    history : DataFrame
        A row per round, as ``history_`` of an estimator.

    Examples
    --------
    >>> import numpy as np
    >>> from elmesh import ConvergenceDisplay, MultiTaskELMRegressor
    >>> X = np.random.default_rng(0).normal(size=(40, 2))
    >>> model = MultiTaskELMRegressor(n_hidden=5, solver="mtl-elm", random_state=0)
    >>> ConvergenceDisplay(model.fit(X, X[:, 0], tasks=[0, 1] * 20).history_).history.columns[1]
    'objective'
    """

    def __init__(self, history: pd.DataFrame) -> None:
        self.history = history

    def plot(self, ax: Axes | None = None, *, quantity: str = "objective", by: str = "round") -> Self:
        """Draw a quantity ("objective", "consensus_gap", "dual_residual") by "round", "exchanges" or "bytes"."""
        check_choice("quantity", quantity, ("objective", "consensus_gap", "dual_residual"))
        check_choice("by", by, ("round", "exchanges", "bytes"))
        if not len(self.history):
            raise ElmeshError("The fit took no rounds, so that there is nothing to draw; its solution is direct.")
        words = quantity.replace("_", " ")
        curve = Curve(words, self.history[by], self.history[quantity])
        draw = partial(draw_curves, curves=[curve], x_label=by, y_label=words, y_scale="auto")
        return self._plot(partial(draw, x_scale="rounds") if by == "round" else draw, ax)

    @classmethod
    def from_estimator(
        cls, estimator: MultiTaskELM, *, quantity: str = "objective", by: str = "round", ax: Axes | None = None
    ) -> Self:
        """Draw the rounds of a fitted estimator; one that was loaded or taken apart has no history."""
        history = getattr(estimator, "history_", None)
        if history is None:
            raise ElmeshError("The estimator has no history: fit it here; a saved model does not contain it.")
        return cls(history).plot(ax, quantity=quantity, by=by)


class _RowsDisplay(_Display):
    """What displays share that need rows."""

    def plot(self, ax: Axes | None = None) -> Self:
        """Draw the data."""
        raise NotImplementedError

    @classmethod
    def from_estimator(
        cls, estimator: MultiTaskELM, X: ArrayLike, y: ArrayLike, tasks: object = None, *, ax: Axes | None = None,
        **options: Any,
    ) -> Self:  # fmt: skip
        """Compute the data of a fitted estimator from rows, their targets and their tasks, and draw it.

        ``options`` are those of the method that computes: ``estimator.site_gains`` for gains, otherwise
        ``estimator.explain``. An effect has also ``column``, by default the most important one, and ``output``.
        """
        display: Any = cls  # each display is a dataclass of what it computes
        drawn: Self = display(cls._compute(estimator, X, y, tasks, **options)).plot(ax)
        return drawn

    @staticmethod
    def _compute(estimator: MultiTaskELM, X: ArrayLike, y: ArrayLike, tasks: object, **options: Any) -> Any:
        return estimator.explain(X, y, tasks, **options)


class SiteGainDisplay(_RowsDisplay):
    """Who gains by learning together.

    Parameters
    ----------
    gains : SiteGains
        What ``estimator.site_gains`` returns.
    """

    def __init__(self, gains: SiteGains) -> None:
        self.gains = gains

    def plot(self, ax: Axes | None = None, *, most: int = 40) -> Self:
        """Draw the change of each task's error; of more tasks than ``most``, the largest and the smallest changes."""
        tasks, unit = drawn_tasks(self.gains, most), self.gains.unit
        draw = partial(draw_errors, sites=tasks, unit="", write=lambda error: format_error(error, unit))
        return self._plot(draw, ax, (5.4, 1.5 + 0.3 * len(tasks)))

    @staticmethod
    def _compute(estimator: MultiTaskELM, X: ArrayLike, y: ArrayLike, tasks: object, **options: Any) -> SiteGains:
        return estimator.site_gains(X, y, tasks, **options)


class ImportanceDisplay(_RowsDisplay):
    """What predictions depend on.

    Parameters
    ----------
    explanation : Explanation
        What ``estimator.explain`` returns.
    """

    def __init__(self, explanation: Explanation) -> None:
        self.explanation = explanation

    def plot(self, ax: Axes | None = None, *, most: int = 10) -> Self:
        """Draw a bar per column, with two standard errors, for at most so many columns."""
        height = 1.3 + 0.3 * min(most, len(self.explanation.importance))
        return self._plot(partial(draw_importance, explanation=self.explanation, most=most), ax, (5.4, height))


class SiteMapDisplay(_RowsDisplay):
    """Which tasks are predicted alike.

    Parameters
    ----------
    explanation : Explanation
        What ``estimator.explain`` returns.
    """

    def __init__(self, explanation: Explanation) -> None:
        self.explanation = explanation

    def plot(self, ax: Axes | None = None, *, labelled: int = 12) -> Self:
        """Draw the map, with the names of so many tasks that differ most from the others."""
        return self._plot(partial(draw_site_map, explanation=self.explanation, labelled=labelled), ax)


class EffectDisplay(_RowsDisplay):
    """How predictions change with one column, at each task.

    Parameters
    ----------
    effect : Effect
        One of ``estimator.explain(...).effects``.

    Examples
    --------
    >>> import numpy as np
    >>> from elmesh import EffectDisplay, MultiTaskELMRegressor
    >>> X, site = np.random.default_rng(0).normal(size=(40, 2)), ["north", "south"] * 20
    >>> model = MultiTaskELMRegressor(random_state=0).fit(X, X[:, 0], tasks=site)
    >>> EffectDisplay(model.explain(X, X[:, 0], tasks=site).effect(0)).effect.kind
    'number'
    """

    def __init__(self, effect: Effect) -> None:
        self.effect = effect

    def plot(self, ax: Axes | None = None, *, labelled: int = 4) -> Self:
        """Draw the mean of all rows and a line per task, with the names of so many tasks that differ most."""
        return self._plot(partial(draw_effect, effect=self.effect, labelled=labelled), ax)

    @staticmethod
    def _compute(
        estimator: MultiTaskELM, X: ArrayLike, y: ArrayLike, tasks: object, *, column: Label | None = None,
        output: str | None = None, **options: Any,
    ) -> Effect:  # fmt: skip
        columns = None if column is None else [column]
        return estimator.explain(X, y, tasks, columns=columns, **options).effect(column, output)
