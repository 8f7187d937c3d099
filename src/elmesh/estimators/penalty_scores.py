r"""Penalties and ranks of the paper's problem, by rows left out within tasks.

Each task's rows are divided into folds. For every fold the other rows of each task are decomposed once, and U follows a
path of penalties from large to small (:mod:`elmesh.solvers.penalty_path`), for each rank. All folds go along together:
when penalties in a row predict rows left out worse than a larger one, smaller ones, which take the longest, are left
out. All solvers of this problem have the same scores, for they have the same solution.

With tasks alone (:class:`~elmesh.solvers.local_elm.LocalELM`) one decomposition of all rows of a task is enough for all
penalties: rows are left out one at a time, in closed form.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from elmesh.comm.graph import Topology
from elmesh.data.statistics import Reduced, Task
from elmesh.data.tasks import Groups
from elmesh.estimators.features import make_features
from elmesh.estimators.training_rows import TrainingRows
from elmesh.math.left_out import left_out_ridge
from elmesh.run.backend import LocalBackend
from elmesh.run.runner import agent_context
from elmesh.solvers import Solver
from elmesh.solvers.local_elm import LocalELM
from elmesh.solvers.penalty_path import automatic_penalty, penalty_path
from elmesh.solvers.settings import with_settings
from elmesh.typing import FloatArray, IndexArray, Label

__all__ = ["PenaltyScores", "fold_numbers"]

# Penalties in a row that may be worse than the best one before the path ends, and by which share at least.
_PATIENCE, _SAME = 2, 1e-6


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


class PenaltyScores:
    """Scores of penalties, ranks and hidden layers of the paper's problem.

    Parameters
    ----------
    rows : TrainingRows
        The rows, and an estimator that was fitted on them.
    solver : Solver
        The solver whose settings are tried.
    n_folds : int
        The number of folds.
    """

    def __init__(self, rows: TrainingRows, solver: Solver, n_folds: int) -> None:
        self._rows, self._solver, self._centre = rows, solver, bool(rows.fitted.fit_intercept)
        self._context = agent_context(Topology(1, np.empty((0, 2), dtype=np.intp)), rows.fitted.seed_)
        self._targets = {t: (rows.targets[t] / rows.scale)[:, rows.columns(t)] for t in rows.groups}
        classes = hasattr(rows.fitted, "task_classes_")
        strata = {t: T if classes else np.zeros((len(T), 1)) for t, T in self._targets.items()}
        folds = fold_numbers(rows.groups, strata, n_folds, rows.fitted.seed_)
        # For each fold, which rows of a task are learned from.
        self._learned = [{t: folds[index] != k for t, index in rows.groups.items()} for k in range(n_folds)]

    def scores(self, settings: Sequence[Mapping[str, Any]]) -> Iterator[tuple[int, FloatArray]]:
        """Yield the places of settings and the losses of all rows; settings at the end of a path may be missing."""
        rows, paths = self._rows, dict[str, list[int]]()
        for place, setting in enumerate(settings):
            others = sorted((name, value) for name, value in setting.items() if name != "mu")
            paths.setdefault(str(others), []).append(place)
        for places in paths.values():
            setting, penalties = settings[places[0]], [settings[place]["mu"] for place in places]
            candidate, solver = rows.candidate(setting), with_settings(self._solver, setting)
            layer = make_features(candidate, solver, rows.X, rows.groups, rows.fitted.seed_, LocalBackend())
            H = {t: layer(rows.X[index]) for t, index in rows.groups.items()}
            found = self._alone(H, penalties) if isinstance(solver, LocalELM) else self._together(solver, H, penalties)
            for k, losses in found:
                yield places[k], losses

    def _alone(self, H: Mapping[Label, FloatArray], penalties: Sequence[float]) -> Iterator[tuple[int, FloatArray]]:
        """Yield the losses at each penalty, each task alone."""
        found = {t: left_out_ridge(H[t], T, penalties, centre=self._centre) for t, T in self._targets.items()}
        for k in range(len(penalties)):
            yield k, self._losses({t: predictions[k] for t, predictions in found.items()})

    def _together(
        self, solver: Solver, H: Mapping[Label, FloatArray], penalties: Sequence[float | str]
    ) -> Iterator[tuple[int, FloatArray]]:
        """Yield the losses along the path of penalties."""
        whole = _decompose(self._reduced(H, {t: slice(None) for t in H}))
        rank = solver.resolve_rank(whole)
        auto = automatic_penalty(whole, self._context, rank) if "auto" in penalties else 0.0
        values = np.array([auto if mu == "auto" else mu for mu in penalties], dtype=np.float64)
        order = np.argsort(-values, kind="stable").tolist()
        parts = [self._reduced(H, learned) for learned in self._learned]
        paths = [penalty_path(_decompose(part), self._context, rank, values[order].tolist()) for part in parts]
        least, worse = np.inf, 0
        for k, solutions in zip(order, zip(*paths, strict=True), strict=False):
            found = {t: np.empty_like(T) for t, T in self._targets.items()}
            for learned, part, (U, A) in zip(self._learned, parts, solutions, strict=True):
                for i, (t, one) in enumerate(part.items()):
                    left_out, B = ~learned[t], U @ A[i, :, : found[t].shape[1]]
                    found[t][left_out] = (H[t][left_out] - one.mean[: one.width]) @ B + one.mean[one.width :]
            losses = self._losses(found)
            yield k, losses
            # At the largest penalties all weights may be zero, and losses equal.
            worse = worse + 1 if losses.mean() > (1.0 + _SAME) * least else 0
            least = min(least, float(losses.mean()))
            if worse == _PATIENCE:
                break

    def _reduced(self, H: Mapping[Label, FloatArray], learned: Mapping[Label, Any]) -> dict[Label, Reduced]:
        """Return the statistics of the rows of each task that are learned from."""
        own = self._targets.items()
        return {t: Reduced.from_rows(H[t][learned[t]], T[learned[t]], centre=self._centre) for t, T in own}

    def _losses(self, predictions: Mapping[Label, FloatArray]) -> FloatArray:
        """Return the losses of all rows, from predictions in the units of learning."""
        rows = self._rows
        return rows.losses({t: found * rows.scale[rows.columns(t)] for t, found in predictions.items()})


def _decompose(reduced: Mapping[Label, Reduced]) -> Task:
    return Task.stack([Task.from_reduced(one) for one in reduced.values()])
