"""Sites to attack, and runs in which everything that agents send each other is recorded.

Digits are scaled as a network does it, by declared ranges: pixels go from 0 to 16. All sites have all digits, and one
label in five is wrong: no model can guess those, so an attack that finds them has read them. Site 1 is the one under
attack: a leaf of the star, whose hub is site 0. On a ring, 0 and 2 are its neighbours.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from sklearn.datasets import load_digits

from elmesh import DMTLELM
from elmesh.comm.graph import Topology, make_topology
from elmesh.comm.local import LocalTransport
from elmesh.comm.requests import AllReduce, AllReduceResult, NeighborMessages, NeighborSum
from elmesh.data.features import HiddenLayer, weight_scale
from elmesh.data.statistics import Reduced, Task
from elmesh.run import Progress
from elmesh.run.monitor import RunMonitor
from elmesh.run.runner import agent_context
from elmesh.solvers import Solver
from elmesh.solvers.base import Problem, Solution, rounds

FloatArray = np.ndarray
Perturbation = Callable[[FloatArray], FloatArray]
VICTIM, SITES = 1, 5
WRONG = 0.2
# Columns of U, by classes.
RANKS = {2: 4, 10: 12}


@dataclass(frozen=True, eq=False)
class Case:
    """Sites with inputs, targets, labels and which of these are wrong; and fresh rows with their true labels."""

    layer: HiddenLayer
    X: list[FloatArray]
    T: list[FloatArray]
    y: list[FloatArray]
    wrong: list[FloatArray]
    fresh: FloatArray
    y_fresh: FloatArray

    @cached_property
    def H(self) -> list[FloatArray]:
        return [self.layer(X) for X in self.X]

    @cached_property
    def H_fresh(self) -> FloatArray:
        return self.layer(self.fresh)

    @cached_property
    def task(self) -> Task:
        own = zip(self.H, self.T, strict=True)
        return Task.stack([Task.from_reduced(Reduced.from_rows(H, T, centre=True)) for H, T in own])

    @cached_property
    def centred(self) -> FloatArray:
        """The features of the site under attack, less their mean."""
        return self.H[VICTIM] - self.H[VICTIM].mean(axis=0)

    def outputs(self, site: int, weights: FloatArray, H: FloatArray) -> FloatArray:
        """Return what a site's model makes of features."""
        return (H - self.H[site].mean(axis=0)) @ weights + self.T[site].mean(axis=0)

    def error(self, solution: Solution) -> float:
        """Return the test error in per cent, over all sites, on fresh rows with true labels."""
        U = solution.U
        assert U is not None
        wrong = [
            self.outputs(t, (U if U.ndim == 2 else U[t]) @ solution.A[t], self.H_fresh).argmax(axis=1) != self.y_fresh
            for t in range(len(self.X))
        ]
        return 100.0 * float(np.mean(wrong))


def digits(N: int, L: int, classes: int = 2, seed: int = 0) -> Case:
    """Deal scikit-learn's digits out to sites: ten classes, or whether it is less than five."""
    pixels, digit = load_digits(return_X_y=True)
    rng = np.random.default_rng(seed)
    order = rng.permutation(len(digit))
    X = (pixels - 8.0) / (16.0 / np.sqrt(12.0))
    y = (digit >= 5).astype(int) if classes == 2 else digit
    wrong = rng.random(len(y)) < WRONG
    given = np.where(wrong, (y + rng.integers(1, classes, len(y))) % classes, y)
    sites, rest = order[: SITES * N].reshape(SITES, N), order[SITES * N :]
    layer = HiddenLayer(64, L, weight_scale=weight_scale(64), seed=seed)
    inputs, labels, wrongs = ([values[rows] for rows in sites] for values in (X, given, wrong))
    return Case(layer, inputs, [np.eye(classes)[site] for site in labels], labels, wrongs, X[rest], y[rest])


def gaussian(p: int, N: int, L: int, d: int = 2, seed: int = 0) -> Case:
    """Draw p independent normal columns, and targets that sites make of the same four features in their own ways."""
    rng = np.random.default_rng(seed)
    X = [rng.standard_normal((N, p)) for _ in range(SITES)]
    shared = rng.standard_normal((p, 4)) / np.sqrt(p)
    T = [np.tanh(x @ shared) @ rng.standard_normal((4, d)) + 0.3 * rng.standard_normal((N, d)) for x in X]
    layer = HiddenLayer(p, L, weight_scale=weight_scale(p), seed=seed)
    return Case(layer, X, T, [], [], rng.standard_normal((300, p)), np.zeros(300))


class TappedTransport(LocalTransport):
    """A transport that records what agents send, and may perturb it.

    ``sent`` is what all agents sent to their neighbours, ``parts`` what the site under attack added to sums, with their
    topics, and ``reported`` the number of parts at every report. An agent's multiplier follows what it sent, not its
    own U: otherwise perturbations would accumulate.
    """

    def __init__(self, topology: Topology, bits: int | str = 64, perturb: Perturbation | None = None) -> None:
        super().__init__(topology, bits)
        self.sent: list[FloatArray] = []
        self.parts: list[tuple[str, FloatArray]] = []
        self.reported: list[int] = []
        self._perturb, self._bits, self._degree = perturb, bits, topology.degree[:, None, None].astype(np.float64)

    def neighbor_sum(self, request: NeighborSum) -> FloatArray | NeighborMessages:
        # All agents can compute the start by themselves.
        value = self._perturb(request.value) if self._perturb and self.sent else request.value
        self.sent.append(value.copy())
        return super().neighbor_sum(NeighborSum(value)) + self._degree * (request.value - value)

    def allreduce(self, request: AllReduce) -> AllReduceResult:
        result = super().allreduce(request)
        if request.value.shape[-1]:
            self.parts.append((request.topic, self._part(request)))
        return result

    def _part(self, request: AllReduce) -> FloatArray:
        """Return what the hub of a star knows by now of the part that the site under attack adds."""
        if self._bits == 64:
            return request.value[VICTIM]
        channels, name = self.state().own[VICTIM], f"channel/{request.topic}/{{}}/value"
        return np.hstack([channels[name.format(part)] for part in (0, 1) if name.format(part) in channels])


@dataclass(frozen=True, eq=False)
class Run:
    """A run of ADMM: the U that all agents sent, (K + 1, m, L, r), and the solution after each round."""

    case: Case
    solver: DMTLELM
    topology: Topology
    sent: FloatArray
    solutions: list[Solution]

    @property
    def neighbors(self) -> list[int]:
        return self.topology.neighbors(VICTIM).tolist()

    @property
    def degree(self) -> float:
        return float(len(self.neighbors))

    @property
    def share(self) -> float:
        return float(self.solver.mu1) / len(self.case.X)

    @property
    def received_all(self) -> FloatArray:
        """The sum that the site under attack received, for attackers who see all of it."""
        return self.sent[:, self.neighbors].sum(axis=1)

    @property
    def received_one(self) -> FloatArray:
        """The same as one neighbour estimates it: from its own U, and the site's in place of the others'."""
        return self.sent[:, self.neighbors[0]] + (self.degree - 1) * self.sent[:, VICTIM]


def record(case: Case, solver: Solver, perturb: Perturbation | None = None) -> tuple[TappedTransport, list[Solution]]:
    """Run a solver and record everything; return the transport and the solution after each round."""
    topology = make_topology(solver.graph, range(len(case.X)))
    transport, solutions = TappedTransport(topology, solver.message_bits, perturb), []

    def note(progress: Progress) -> None:
        assert progress.solution is not None
        solutions.append(progress.solution)
        transport.reported.append(len(transport.parts))

    program = rounds(solver, Problem(case.task, agent_context(topology, 0), int(solver.rank)))
    energy = float(np.sum(case.task.target_energy)) / 2
    RunMonitor(transport, solver.max_iter or 0, solver.tol, energy, callback=note).drive(program)
    return transport, solutions


def agreed(case: Case, rank: int, graph: str = "ring") -> dict[str, float]:
    """Return penalties and rho as a network file might have them: the automatic ones, to two digits."""
    solution = record(case, DMTLELM(rank, graph=graph, init="seed", max_iter=1, tol=0.0, certify=False))[1][-1]
    return {name: float(f"{getattr(solution, name):.1e}") for name in ("mu1", "mu2", "rho")}


def admm(case: Case, rank: int, rounds: int, perturb: Perturbation | None = None, graph: str = "ring") -> Run:
    """Run ADMM as a network does that exchanges bases only."""
    fixed = {"graph": graph, "init": "seed", "tol": 0.0, "certify": False}
    solver = DMTLELM(rank, max_iter=rounds, **fixed, **agreed(case, rank, graph))
    transport, solutions = record(case, solver, perturb)
    return Run(case, solver, make_topology(graph, range(len(case.X))), np.array(transport.sent), solutions)
