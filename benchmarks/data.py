"""The data sets of the comparisons: USPS and MNIST in the paper's protocol, School with 75/25 splits."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from elmesh.data.features import HiddenLayer, weight_scale
from elmesh.data.statistics import Reduced, Task
from elmesh.data.tasks import group_rows, one_hot
from elmesh.datasets import load_school, make_digit_tasks
from elmesh.paper.protocol import IMAGES, PROTOCOLS, draw_tasks, load_rows
from elmesh.solvers.base import Solution

NAMES = ("usps", "mnist", "school")
HIDDEN = 300


@dataclass(frozen=True, eq=False)
class Draw:
    """One random draw of a data set, split into training and test rows.

    ``y`` holds labels for classification, and targets of unit variance over the training rows for regression.
    """

    name: str
    seed: int
    X: np.ndarray
    y: np.ndarray
    tasks: np.ndarray
    X_test: np.ndarray
    y_test: np.ndarray
    tasks_test: np.ndarray

    @property
    def classification(self) -> bool:
        return self.name != "school"

    def part(self, train: np.ndarray, test: np.ndarray) -> Draw:
        """Return a draw whose training and test rows are both training rows of this one, to choose parameters."""
        X, y, tasks = self.X, self.y, self.tasks
        return Draw(self.name, self.seed, X[train], y[train], tasks[train], X[test], y[test], tasks[test])

    def folds(self, n: int) -> list[Draw]:
        """Split the training rows into n folds with equal shares of every class of every task."""
        order = np.random.default_rng(self.seed).permutation(len(self.X))
        keys = [self.tasks[order], self.y[order]] if self.classification else [self.tasks[order]]
        fold = np.empty(len(order), dtype=int)
        fold[order[np.lexsort(keys[::-1])]] = np.arange(len(order)) % n
        rows = np.arange(len(order))
        return [self.part(rows[fold != k], rows[fold == k]) for k in range(n)]

    @cached_property
    def groups(self) -> dict[Any, np.ndarray]:
        """The rows of each task."""
        return dict(group_rows(self.tasks, len(self.X)))

    @cached_property
    def targets(self) -> tuple[dict[Any, np.ndarray], dict[Any, np.ndarray]]:
        """The targets of each task and, for classification, its classes."""
        if self.classification:
            targets, classes = one_hot(self.y, self.groups)
            return dict(targets), dict(classes)
        return {t: self.y[rows][:, None] for t, rows in self.groups.items()}, {}

    def features(self, X: np.ndarray, hidden: bool) -> np.ndarray:
        scale = 1.0 if self.classification else weight_scale(self.X.shape[1])
        return HiddenLayer(X.shape[1], HIDDEN if hidden else None, weight_scale=scale, seed=self.seed)(X)

    def task(self, *, hidden: bool = True, centre: bool = True) -> Task:
        """Return the training rows in the form of the solvers."""
        H = self.features(self.X, hidden)
        rows = [Reduced.from_rows(H[self.groups[t]], self.targets[0][t], centre=centre) for t in self.groups]
        return Task.stack([Task.from_reduced(one) for one in rows])

    def scorer(self, *, hidden: bool = True, centre: bool = True) -> Callable[[Solution], float]:
        """Return a function from a solution to its test error in per cent (School: 100 minus explained variance)."""
        H, H_test = self.features(self.X, hidden), self.features(self.X_test, hidden)
        groups, test = self.groups, group_rows(self.tasks_test, len(self.X_test))
        targets, classes = self.targets

        def score(solution: Solution) -> float:
            wrong, outputs = [], np.empty(len(self.y_test))
            for k, (t, rows) in enumerate(groups.items()):
                if t not in test:
                    continue
                A = solution.A[k][:, : targets[t].shape[1]]
                U = solution.U if solution.U is None or solution.U.ndim == 2 else solution.U[k]
                B = A if U is None else U @ A
                h, out = (H[rows].mean(axis=0), targets[t].mean(axis=0)) if centre else (0.0, 0.0)
                predicted = (H_test[test[t]] - h) @ B + out
                if self.classification:
                    wrong.append(classes[t][predicted.argmax(axis=1)] != self.y_test[test[t]])
                else:
                    outputs[test[t]] = predicted[:, 0]
            if self.classification:
                return 100.0 * float(np.mean(np.concatenate(wrong)))
            return 100.0 * float(np.mean((outputs - self.y_test) ** 2) / np.var(self.y_test))

        return score


def make(name: str, seed: int) -> Draw:
    """Draw a data set."""
    if name == "school":
        return _school(seed)
    split = draw_tasks(name, seed, PROTOCOLS[IMAGES])
    return Draw(
        name, seed, split.X_train, split.y_train, split.tasks_train, split.X_test, split.y_test, split.tasks_test
    )


def many_agents(m: int, seed: int) -> Draw:
    """Distribute USPS over many agents with fewer rows each."""
    digits = load_rows("usps", IMAGES)
    split = make_digit_tasks(digits.X, digits.y, n_tasks=m, n_train=54, n_test=9, seed=seed)
    return Draw(
        "usps", seed, split.X_train, split.y_train, split.tasks_train, split.X_test, split.y_test, split.tasks_test
    )


def _school(seed: int) -> Draw:
    """Take three quarters of the pupils of every school for training, and standardise columns and scores by them."""
    school = load_school()
    order = np.random.default_rng(seed).permutation(len(school.y))
    train = np.zeros(len(order), dtype=bool)
    for t in np.unique(school.tasks):
        rows = order[school.tasks[order] == t]
        train[rows[: round(0.75 * len(rows))]] = True
    X, y = school.X, school.y
    spread = X[train].std(axis=0)
    X = (X - X[train].mean(axis=0)) / np.where(spread > 0, spread, 1.0)
    y = (y - y[train].mean()) / y[train].std()
    tasks = school.tasks
    return Draw("school", seed, X[train], y[train], tasks[train], X[~train], y[~train], tasks[~train])
