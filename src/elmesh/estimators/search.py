"""The choice of settings by rows left out: which ones are tried, what they lose, and which one is taken.

The best of many settings on rows left out is partly the luckiest. So the default, if it is among them, stays unless
another setting is better by more than a standard error of the paired difference of the losses; and by one percent of
the loss, for settings with nearly the same predictions differ clearly, but by nothing that matters.
"""

from __future__ import annotations

import itertools
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning

from elmesh.checks import check_count
from elmesh.errors import ElmeshError, RankWarning
from elmesh.estimators.base import MultiTaskELM
from elmesh.estimators.feature_scores import FeatureScores
from elmesh.estimators.features import GROUPED, SINGLE
from elmesh.estimators.penalty_scores import PenaltyScores
from elmesh.estimators.search_rows import SearchRows, with_setting
from elmesh.math.blas import limit_blas_threads
from elmesh.solvers import Solver
from elmesh.solvers.admm import ProximalADMM
from elmesh.solvers.local_elm import LocalELM
from elmesh.solvers.mesh_elm import MeshELM
from elmesh.solvers.mtl_elm import MTLELM
from elmesh.solvers.settings import with_settings
from elmesh.tables.stream import as_stream
from elmesh.typing import FloatArray

__all__ = ["DEFAULT_GRID", "Candidate", "Search", "Setting", "search_settings"]

Setting = dict[str, Any]
# Standard errors, and the share of the loss, by which a setting must be better than the default.
_CLEARLY, _MATTERS = 1.0, 0.01
#: Candidates of the default model, chosen on the tables of the arena (splits other than those of the benchmarks).
DEFAULT_GRID: dict[str, Sequence[Any]] = {
    "n_hidden": (GROUPED["n_hidden"], 400),
    "weight_scale": (GROUPED["weight_scale"], 0.3, (0.3, 1.0, 3.0)),
}
# Penalties of the paper's problem, as multiples of the automatic one.
_FACTORS = (0.1, 0.3, 3.0, 10.0)


@dataclass(frozen=True, eq=False)
class Candidate:
    """A setting that was tried: the losses of all rows, None if the search ended before it, and the time it took."""

    setting: Setting
    losses: FloatArray | None = None
    seconds: float = 0.0


@dataclass(frozen=True, eq=False)
class Search:
    """What was tried.

    Parameters
    ----------
    candidates : tuple of Candidate
        All settings, in the order of the grid, but with the default first.
    default : int or None
        The place of the default among them.
    seed : int
        The seed of the hidden layers that were tried.
    weights : ndarray or None
        How often each row counts; None for once.
    """

    candidates: tuple[Candidate, ...]
    default: int | None
    seed: int
    weights: FloatArray | None = None

    def loss(self, place: int) -> tuple[float, float]:
        """Return the mean loss of a candidate and its standard error; NaN if it is not known."""
        return self._mean(self.candidates[place].losses)

    def difference(self, place: int, other: int) -> tuple[float, float]:
        """Return the mean loss of a candidate less that of another one, and its standard error."""
        one, two = self.candidates[place].losses, self.candidates[other].losses
        return self._mean(None if one is None or two is None else one - two)

    def _mean(self, losses: FloatArray | None) -> tuple[float, float]:
        if losses is None:
            return np.nan, np.nan
        w = np.ones(len(losses)) if self.weights is None else self.weights
        mean, n = float(np.average(losses, weights=w)), float(w.sum())
        return mean, float(np.sqrt(np.average((losses - mean) ** 2, weights=w) / (n - 1))) if n > 1 else np.inf

    @property
    def least(self) -> int:
        """The place of the candidate with the least loss."""
        return int(np.nanargmin([self.loss(place)[0] for place in range(len(self.candidates))]))

    @property
    def best(self) -> int:
        """The place of the candidate to take: the one with the least loss, if it is clearly better than the default."""
        if self.default is None or self.candidates[self.default].losses is None:
            return self.least
        change, error = self.difference(self.least, self.default)
        enough = max(_CLEARLY * error, _MATTERS * abs(self.loss(self.default)[0]))
        return self.least if change < -enough else self.default


def search_settings(
    estimator: MultiTaskELM,
    grid: Mapping[str, Sequence[Any]],
    X: ArrayLike,
    y: ArrayLike,
    tasks: object = None,
    *,
    sample_weight: ArrayLike | None = None,
    n_folds: int = 5,
    callback: Callable[[Search], bool | None] = lambda search: None,
) -> Search:
    """Try all settings of a grid on rows left out.

    Parameters
    ----------
    estimator : MultiTaskELM
        What has the settings.
    grid : mapping
        Candidates of settings: parameters of the estimator, or "parts", "rank" and "mu" of its solver. Settings that
        are missing have default candidates, or their value in the estimator.
    X, y, tasks, sample_weight
        The rows to choose by, in memory. Of a task with more than 2,048 of them, a sample decides.
    n_folds : int, default=5
        Folds of each task's rows, where rows cannot be left out in closed form.
    callback : callable, optional
        Is called with what was tried so far after every candidate; if it returns True, the search ends.
    """
    check_count("cv", n_folds, least=2)
    if as_stream(X) is not None:
        raise ElmeshError("Settings are chosen by rows in memory, not by a stream; give some of its rows as a table.")
    solver = estimator.solver_for(X, y, tasks, sample_weight)
    _check(solver, grid)
    fields, has_default = _own_first(estimator, solver, _default_grid(estimator, solver) | dict(grid))
    first = {name: values[0] for name, values in fields.items()}
    fitted = with_setting(clone(estimator), first)
    fitted.set_params(solver=_quick(with_settings(solver, first)))
    with warnings.catch_warnings():
        # Neither is about the fit of the setting that is taken.
        warnings.simplefilter("ignore", ConvergenceWarning)
        warnings.simplefilter("ignore", RankWarning)
        fitted.fit(X, y, tasks, sample_weight=sample_weight)
        rows = SearchRows.of(fitted)
        if "mu" not in fields and not solver.has_common_part:
            fields["mu"] = _penalties(solver, fitted)
        settings = [dict(zip(fields, values, strict=True)) for values in itertools.product(*fields.values())]
        longest, width = max(map(len, rows.by_task.values())), fitted.model_.layer.width
        with limit_blas_threads(longest, width, min(longest, width)):
            scores = FeatureScores(rows) if solver.has_common_part else PenaltyScores(rows, solver, n_folds)
            search = Search((), 0 if has_default else None, fitted.seed_, rows.weights)
            tried = _try(scores, settings, lambda tried: callback(replace(search, candidates=tried)))
    return replace(search, candidates=tuple(tried))


def _try(
    scores: FeatureScores | PenaltyScores,
    settings: Sequence[Setting],
    callback: Callable[[tuple[Candidate, ...]], bool | None],
) -> list[Candidate]:
    """Try all settings until the callback ends the search."""
    candidates, begin = [Candidate(setting) for setting in settings], time.perf_counter()
    for place, losses in scores.scores(settings):
        now = time.perf_counter()
        candidates[place] = Candidate(settings[place], losses, now - begin)
        begin = now
        if callback(tuple(candidates)):
            break
    return candidates


def _check(solver: Solver, grid: Mapping[str, Sequence[Any]]) -> None:
    """Raise if settings of a solver cannot be chosen, or not these."""
    if solver.privacy is not None:
        raise ElmeshError("Settings of a private fit must not be chosen by its rows; choose them on public rows.")
    if not isinstance(solver, (MeshELM, MTLELM, ProximalADMM, LocalELM)):
        raise ElmeshError(
            f"Settings of {solver.name} cannot be chosen in this way; use mesh-elm, mtl-elm, dmtl-elm, fo-dmtl-elm or "
            "local-elm, or scikit-learn's GridSearchCV."
        )
    for name in ("rank", "mu"):
        if name in grid and solver.has_common_part:
            raise ElmeshError(
                f"{name} is chosen for the shared part alone, the paper's problem, or for local-elm; beside a common "
                "and a private part it is found in the fit. Leave it out."
            )
    for parts in grid.get("parts", ()):
        if with_settings(solver, {"parts": parts}).has_common_part != solver.has_common_part:
            raise ElmeshError("The shared part alone is another problem than the others; choose its settings alone.")
    if isinstance(solver, LocalELM) and solver.mu == "auto" and "mu" not in grid:
        raise ElmeshError("local-elm finds its penalties by evidence; to choose one by rows left out, give mu a list.")
    for name, values in grid.items():
        if not len(values):
            raise ElmeshError(f"{name} has no candidates; give at least one.")


def _default_grid(estimator: MultiTaskELM, solver: Solver) -> dict[str, Sequence[Any]]:
    """Return the default candidates of settings that the estimator leaves open."""
    if not solver.has_common_part:
        return {}
    own = {name: getattr(estimator, name) for name in DEFAULT_GRID}
    return {name: DEFAULT_GRID[name] for name, value in own.items() if isinstance(value, str) and value == "auto"}


def _quick(solver: Solver) -> Solver:
    """Return a solver that reads the rows and finds variances or a penalty, and as little else as will do."""
    if isinstance(solver, LocalELM):
        return solver
    if solver.has_common_part:
        quick: Solver = clone(solver).set_params(rank=0, mu1="auto", mu2="auto", graph=None, certify=False)
        return quick
    rank = solver.get_params(deep=False)["rank"]
    return MeshELM(common=False, private=False, rank=rank, graph=None, max_iter=1, certify=False)


def _penalties(solver: Solver, fitted: MultiTaskELM) -> list[float | str]:
    """Return candidates of the penalty: the solver's own or, if that is automatic, others about it."""
    own, (_, found) = _own_penalty(solver), fitted.penalties_ or (None, None)
    if own != "auto" or found is None:
        return [own]
    return ["auto", *(float(f"{factor * found:.2g}") for factor in _FACTORS)]


def _own_penalty(solver: Solver) -> float | str:
    """Return the penalty of a solver: of U and A it is the root of the product of both."""
    own = [value for name, value in solver.get_params(deep=False).items() if name in ("mu", "mu1", "mu2")]
    return "auto" if "auto" in own else float(np.prod(own) ** (1 / len(own)))


def _own_first(
    estimator: MultiTaskELM, solver: Solver, grid: Mapping[str, Sequence[Any]]
) -> tuple[dict[str, list[Any]], bool]:
    """Return the grid with the estimator's own values first, and whether all of them are in it."""
    automatic = GROUPED if solver.has_common_part else SINGLE

    def plain(name: str, value: Any) -> list[Any]:
        """Return a value such that equal ones are equal lists."""
        if name == "parts":
            given = (solver if value is None else with_settings(solver, {name: value})).get_params(deep=False)
            return [given["common"] is not False, given["private"] is not False, given["rank"] != 0]
        is_auto = isinstance(value, str) and value == "auto"
        found: list[Any] = np.atleast_1d(automatic.get(name, value) if is_auto else value).tolist()
        return found

    fields, found = dict[str, list[Any]](), True
    for name, values in grid.items():
        own = _own_penalty(solver) if name == "mu" else getattr(estimator, name, getattr(solver, name, None))
        is_other = [plain(name, value) != plain(name, own) for value in values]
        fields[name] = [values[k] for k in np.argsort(is_other, kind="stable")]
        found = found and not all(is_other)
    return fields, found
