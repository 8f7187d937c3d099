r"""Penalties and ranks of the paper's problem, by rows left out within tasks.

Each task's rows are divided into folds. For every fold the other rows of each task are decomposed once, and U follows a
path of penalties from large to small (:mod:`elmesh.solvers.penalty_path`), for each rank. All folds go along together:
at the first penalty that predicts rows left out clearly worse than a larger one they end, and smaller ones, which take
the longest, are not tried. All solvers of this problem have the same scores, for they have the same solution.

With tasks alone (:class:`~elmesh.solvers.local_elm.LocalELM`) one decomposition of all rows of a task is enough for all
penalties: rows are left out one at a time, in closed form.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from elmesh.comm.graph import Topology
from elmesh.data.statistics import Reduced, Task
from elmesh.data.tasks import Groups
from elmesh.estimators.search_rows import SOLVER_SETTINGS, SearchRows
from elmesh.math.calibration import ridge_path_left_out
from elmesh.run.runner import agent_context
from elmesh.solvers import Solver
from elmesh.solvers.local_elm import LocalELM
from elmesh.solvers.penalty_path import automatic_penalty, penalty_path
from elmesh.solvers.settings import with_settings
from elmesh.typing import FloatArray, IndexArray, Label

__all__ = ["PenaltyScores", "fold_numbers"]

# The path ends at a penalty that is worse than the best one by more than this share of the loss.
_WORSE = 0.01


def fold_numbers(groups: Groups, strata: Mapping[Label, FloatArray], n_folds: int, seed: int) -> IndexArray:
    """Return the fold of each row: each task, and each of its classes, has equal shares in all folds.

    Examples
    --------
    >>> groups = {"north": np.arange(4), "south": np.arange(4, 8)}
    >>> folds = fold_numbers(groups, {t: np.zeros((4, 1)) for t in groups}, 2, seed=0)
    >>> np.bincount(folds[:4]).tolist(), np.bincount(folds[4:]).tolist()
    ([2, 2], [2, 2])
    """
    rng, ordered = np.random.default_rng(seed), []
    for t, rows in groups.items():
        mixed = rng.permutation(len(rows))
        ordered.append(rows[mixed[np.argsort(np.argmax(strata[t][mixed], axis=1), kind="stable")]])
    folds = np.empty(sum(map(len, ordered)), dtype=np.intp)
    folds[np.concatenate(ordered)] = np.arange(len(folds)) % n_folds
    return folds


@dataclass(frozen=True, eq=False)
class _Fold:
    """The rows of each task that are learned from in a fold, with their statistics, decomposed."""

    reduced: Mapping[Label, Reduced]
    learned: Mapping[Label, Any]
    task: Task

    @classmethod
    def of(cls, reduced: Mapping[Label, Reduced], learned: Mapping[Label, Any]) -> _Fold:
        return cls(reduced, learned, Task.stack([Task.from_reduced(one) for one in reduced.values()]))


class PenaltyScores:
    """Scores of penalties, ranks and hidden layers of the paper's problem.

    Parameters
    ----------
    rows : SearchRows
        The rows, and an estimator that was fitted on them.
    solver : Solver
        The solver whose settings are tried.
    n_folds : int
        The number of folds.
    """

    def __init__(self, rows: SearchRows, solver: Solver, n_folds: int) -> None:
        self._rows, self._solver, self._centre = rows, solver, bool(rows.fitted.fit_intercept)
        self._context = agent_context(Topology(1, np.empty((0, 2), dtype=np.intp)), rows.fitted.seed_)
        classes = hasattr(rows.fitted, "task_classes_")
        strata = {t: own.T if classes else np.zeros((len(own), 1)) for t, own in rows.by_task.items()}
        folds = fold_numbers(rows.groups, strata, n_folds, rows.fitted.seed_)
        # For each fold, which rows of a task are learned from.
        self._learned = [{t: folds[index] != k for t, index in rows.groups.items()} for k in range(n_folds)]

    def scores(self, settings: Sequence[Mapping[str, Any]]) -> Iterator[tuple[int, FloatArray]]:
        """Yield the places of settings and the losses of all rows; settings at the end of a path may be missing."""
        rows = self._rows
        for same_features in _alike(settings, range(len(settings)), SOLVER_SETTINGS):
            first = settings[same_features[0]]
            candidate, solver = rows.candidate(first), with_settings(self._solver, first)
            layer = rows.features(candidate, solver)
            H = {t: layer(own.X) for t, own in rows.by_task.items()}
            alone = isinstance(solver, LocalELM)
            folds = [] if alone else [_Fold.of(self._reduced(H, learned), learned) for learned in self._learned]
            whole = None if alone else _Fold.of(self._reduced(H, {t: slice(None) for t in H}), {}).task
            for places in _alike(settings, same_features, ("mu",)):
                penalties = [settings[place]["mu"] for place in places]
                if whole is None:
                    found = self._alone(H, penalties)
                else:
                    found = self._together(with_settings(self._solver, settings[places[0]]), H, whole, folds, penalties)
                for k, losses in found:
                    yield places[k], losses

    def _alone(self, H: Mapping[Label, FloatArray], penalties: Sequence[float]) -> Iterator[tuple[int, FloatArray]]:
        """Yield the losses at each penalty, each task alone."""
        own = self._rows.by_task.items()
        found = {t: ridge_path_left_out(H[t], rows.T, penalties, self._centre, rows.weights) for t, rows in own}
        for k in range(len(penalties)):
            yield k, self._rows.losses({t: predictions[k] for t, predictions in found.items()})

    def _together(
        self,
        solver: Solver,
        H: Mapping[Label, FloatArray],
        whole: Task,
        folds: Sequence[_Fold],
        penalties: Sequence[float | str],
    ) -> Iterator[tuple[int, FloatArray]]:
        """Yield the losses along the path of penalties."""
        rank = solver.resolve_rank(whole)
        auto = automatic_penalty(whole, self._context, rank) if "auto" in penalties else 0.0
        values = np.array([auto if mu == "auto" else mu for mu in penalties], dtype=np.float64)
        order = np.argsort(-values, kind="stable").tolist()
        paths = [penalty_path(fold.task, self._context, rank, values[order].tolist()) for fold in folds]
        least = np.inf
        for k, solutions in zip(order, zip(*paths, strict=True), strict=False):
            found = {t: np.empty_like(own.T) for t, own in self._rows.by_task.items()}
            for fold, (U, A) in zip(folds, solutions, strict=True):
                for i, (t, one) in enumerate(fold.reduced.items()):
                    left_out, B = ~fold.learned[t], U @ A[i, :, : found[t].shape[1]]
                    found[t][left_out] = (H[t][left_out] - one.mean[: one.width]) @ B + one.mean[one.width :]
            losses = self._rows.losses(found)
            yield k, losses
            mean = float(np.average(losses, weights=self._rows.weights))
            if mean > (1.0 + _WORSE) * least:
                break
            least = min(least, mean)

    def _reduced(self, H: Mapping[Label, FloatArray], learned: Mapping[Label, Any]) -> dict[Label, Reduced]:
        """Return the statistics of the rows of each task that are learned from."""
        own = {t: rows[learned[t]] for t, rows in self._rows.by_task.items()}
        return {
            t: Reduced.from_rows(H[t][learned[t]], rows.T, centre=self._centre, weights=rows.weights)
            for t, rows in own.items()
        }


def _alike(settings: Sequence[Mapping[str, Any]], places: Iterable[int], apart_from: Sequence[str]) -> list[list[int]]:
    """Return places of settings that differ in nothing apart from these names."""
    alike: dict[str, list[int]] = {}
    for place in places:
        others = {name: value for name, value in settings[place].items() if name not in apart_from}
        alike.setdefault(str(others), []).append(place)
    return list(alike.values())
