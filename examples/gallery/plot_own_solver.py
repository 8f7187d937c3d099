"""
How do I add a method of my own?
================================

A solver is one class: what an agent remembers, how it starts, and what it does in a round. Defining it is enough;
estimators, MPI, checkpoints and model files then know it. This one is decentralised gradient descent, in which agents
average with their neighbours and take a gradient step. How does the length of the step change what it reaches?
"""

import warnings
from dataclasses import dataclass
from typing import Any, ClassVar

import matplotlib.pyplot as plt
import numpy as np
from sklearn.exceptions import ConvergenceWarning

from elmesh import MultiTaskELMClassifier
from elmesh.comm.requests import NeighborSum
from elmesh.datasets import load_digits_tasks
from elmesh.math.kernels import fit, square
from elmesh.solvers.altgdmin import gradient, solve_heads
from elmesh.solvers.base import LowRankSolver, RoundReport, Solution
from elmesh.solvers.initialization import random_block
from elmesh.solvers.state import PerAgent, SolverState


@dataclass(frozen=True, eq=False)
class WalkState(SolverState):  # everything that a round passes to the next
    U: PerAgent
    A: PerAgent
    R: PerAgent


@dataclass(repr=False, eq=False)
class Walk(LowRankSolver):
    """Decentralised gradient descent on the sum over tasks of min_A |H_t U A - T_t|^2 / 2 + mu |U A|^2 / 2."""

    summary: ClassVar = "decentralised gradient descent, an example"
    state_type = WalkState
    requires: ClassVar = frozenset({NeighborSum})
    per_agent_basis: ClassVar = True

    rank: int | str = "auto"
    mu: float = 1.0
    eta: float = 1e-2
    graph: Any = "ring"
    max_iter: int = 200
    tol: float = 1e-4

    def init_state(self, problem):
        yield from ()  # no message is needed
        U = random_block(problem.task.V.shape[-2], problem.rank, problem.context.seed)
        U = np.broadcast_to(U, (*problem.task.s.shape[:-1], *U.shape))
        return WalkState(0, U, *solve_heads(problem.task, U, self.mu))

    def step(self, problem, state):
        neighbors = yield NeighborSum(state.U)  # send U, receive the sum of the neighbours' U
        mean = (state.U + neighbors) / (1 + problem.context.degree[..., None, None])
        U = mean - self.eta * gradient(problem.task, state.U, state.A, state.R, self.mu)
        return WalkState(state.round + 1, U, *solve_heads(problem.task, U, self.mu))

    def solution(self, problem, state):
        return Solution(state.U, state.A, mu2=self.mu)

    def report(self, problem, state):
        objective = fit(problem.task, state.R) + self.mu / 2 * square(state.A)
        zero, one = np.zeros_like(objective), np.ones_like(objective)
        residuals = square(gradient(problem.task, state.U, state.A, state.R, self.mu)), zero
        return RoundReport(
            self.solution(problem, state), objective, residuals, (square(problem.task.sY @ state.A.mT), one), (state,)
        )


# %%
# The estimator takes it as any other solver.

warnings.simplefilter("ignore", ConvergenceWarning)  # rounds are limited on purpose
d = load_digits_tasks(seed=0)
figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.6), layout="constrained")
for eta, style in {1e-3: "--", 1e-2: "-", 3e-2: "-."}.items():
    model = MultiTaskELMClassifier(n_hidden=100, solver=Walk(rank=6, eta=eta), random_state=0)
    model.fit(d.X_train, d.y_train, tasks=d.tasks_train)
    score = model.score(d.X_test, d.y_test, tasks=d.tasks_test)
    label = f"step {eta:g}: {score:.1%} of new digits right"
    left.semilogy(model.history_["round"], model.history_["objective"], style, label=label)
    right.semilogy(model.history_["round"][1:], model.history_["consensus_gap"][1:], style)
left.set(xlabel="round", ylabel="objective", title="What agents want to lower")
right.set(xlabel="round", ylabel="distance between neighbours", title="How far agents are from agreeing")
left.legend(fontsize="small")
plt.show()

# %%
# A long step lowers the objective faster, and leaves neighbours further apart: constant steps do not reach consensus.
# That is the reason why DMTL-ELM has multipliers, and why MeshELM adds up gradients instead.
