"""A user's script: it defines solvers of its own and fits with some of them, in one process or under MPI.

``python user_script.py FOLDER BACKEND SOLVER ...`` saves the model of all tasks, and its predictions, in a folder named
after each solver in FOLDER.
"""

from __future__ import annotations

import sys
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from sklearn.exceptions import ConvergenceWarning

import elmesh
from elmesh.comm.requests import NeighborSum
from elmesh.math.kernels import fit, square
from elmesh.solvers.altgdmin import gradient, solve_heads
from elmesh.solvers.base import LowRankSolver, RoundReport, Solution
from elmesh.solvers.initialization import random_block
from elmesh.solvers.state import PerAgent, SolverState


@dataclass(frozen=True, eq=False)
class DescentState(SolverState):
    U: PerAgent
    A: PerAgent
    R: PerAgent


@dataclass(repr=False, eq=False)
class GradientDescent(LowRankSolver):
    """Decentralised gradient descent on the sum over tasks of min_A |H_t U A - T_t|^2 / 2 + mu |U A|^2 / 2."""

    summary: ClassVar = "decentralised gradient descent"
    state_type = DescentState
    requires: ClassVar = frozenset({NeighborSum})
    per_agent_basis: ClassVar = True

    rank: int | str = "auto"
    mu: float = 1.0
    eta: float = 1e-2
    graph: Any = "ring"
    max_iter: int = 30
    tol: float = 1e-6

    def init_state(self, problem):
        yield from ()
        task = problem.task
        U = random_block(task.V.shape[-2], problem.rank, problem.context.seed)
        U = np.broadcast_to(U, (*task.s.shape[:-1], *U.shape)).copy()
        return DescentState(0, U, *solve_heads(task, U, self.mu))

    def step(self, problem, state):
        neighbors = yield NeighborSum(state.U)
        mean = (state.U + neighbors) / (1 + problem.context.degree[..., None, None])
        U = mean - self.eta * gradient(problem.task, state.U, state.A, state.R, self.mu)
        return DescentState(state.round + 1, U, *solve_heads(problem.task, U, self.mu))

    def solution(self, problem, state):
        return Solution(state.U, state.A, mu2=self.mu)

    def report(self, problem, state):
        task, U, A, R = problem.task, state.U, state.A, state.R
        objective = fit(task, R) + self.mu / 2 * square(A)
        zero, one = np.zeros_like(objective), np.ones_like(objective)
        residuals = square(gradient(task, U, A, R, self.mu)), zero
        return RoundReport(self.solution(problem, state), objective, residuals, (square(task.sY @ A.mT), one), (state,))


class Mine(elmesh.LocalELM):
    """Local ELM under another name."""


class Louder(elmesh.MeshELM):
    """MeshELM with another penalty."""

    def check(self):
        super().check()
        if self.mu1 == 13.0:
            raise elmesh.ElmeshError("mu1 must not be 13.")


def rows():
    """Four tasks, with targets that are related."""
    rng = np.random.default_rng(0)
    X, tasks = rng.normal(size=(80, 4)), np.repeat(["aix", "bonn", "cork", "dijon"], 20)
    y = X[:, 0] + X[:, 1] * np.repeat([0.5, 1.0, -1.0, 2.0], 20) + 0.1 * rng.normal(size=80)
    return X, y, tasks


def main(folder: Path, backend: str, solver: str) -> None:
    made = {"gradient-descent": GradientDescent(rank=2, eta=0.02), "mine": Mine(mu=0.3), "louder": "louder"}[solver]
    run = elmesh.RunConfig(backend=backend)
    X, y, tasks = rows()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        model = elmesh.MultiTaskELMRegressor(n_hidden=10, solver=made, random_state=0).fit(X, y, tasks, run=run)
    whole = model.gather(run)
    if whole is not None:
        whole.save(folder / "model")
        np.save(folder / "predictions.npy", whole.predict(X, tasks))
        loaded = elmesh.load(folder / "model")
        assert type(loaded.solver) is type(made) or loaded.solver == made
        np.testing.assert_array_equal(loaded.predict(X, tasks), whole.predict(X, tasks))


if __name__ == "__main__":
    for name in sys.argv[3:]:
        main(Path(sys.argv[1]) / name, sys.argv[2], name)
