"""Sites to attack, and runs in which everything that agents tell each other is written down.

Digits are scaled as a network does it, by declared ranges: pixels go from 0 to 16. All sites have all digits, and one
label in five is wrong: no model can guess those, so whoever has them has read them. Site 1 is the one under attack: a
leaf of the star, whose hub is site 0. On a ring, 0 and 2 are its neighbours.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from sklearn.datasets import load_digits

from elmesh.comm.allreduce import coarse_parts
from elmesh.comm.graph import Topology, make_topology
from elmesh.comm.requests import Heard, Neighbours, State, Sum, Total
from elmesh.data.features import HiddenLayer, weight_scale
from elmesh.data.statistics import Reduced, Task
from elmesh.run.base import Progress
from elmesh.run.driver import drive, watch
from elmesh.run.local import StackedLink, place_of
from elmesh.solvers import DMTLELM

FloatArray = np.ndarray
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

    def error(self, state: State) -> float:
        """Return the test error in per cent, over all sites, on fresh rows with true labels."""
        U = state.U
        assert U is not None
        wrong = [
            self.outputs(t, (U if U.ndim == 2 else U[t]) @ state.A[t], self.H_fresh).argmax(axis=1) != self.y_fresh
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
    told = np.where(wrong, (y + rng.integers(1, classes, len(y))) % classes, y)
    sites, rest = order[: SITES * N].reshape(SITES, N), order[SITES * N :]
    layer = HiddenLayer(64, L, weight_scale=weight_scale(64), seed=seed)
    inputs, labels, wrongs = ([values[rows] for rows in sites] for values in (X, told, wrong))
    return Case(layer, inputs, [np.eye(classes)[site] for site in labels], labels, wrongs, X[rest], y[rest])


def gaussian(p: int, N: int, L: int, d: int = 2, seed: int = 0) -> Case:
    """Draw p independent normal columns, and targets that sites make of the same four features in their own ways."""
    rng = np.random.default_rng(seed)
    X = [rng.standard_normal((N, p)) for _ in range(SITES)]
    shared = rng.standard_normal((p, 4)) / np.sqrt(p)
    T = [np.tanh(x @ shared) @ rng.standard_normal((4, d)) + 0.3 * rng.standard_normal((N, d)) for x in X]
    layer = HiddenLayer(p, L, weight_scale=weight_scale(p), seed=seed)
    return Case(layer, X, T, [], [], rng.standard_normal((300, p)), np.zeros(300))


class Tapped(StackedLink):
    """A link that writes down what is said, and lets agents say it less exactly than they know it.

    ``said`` is what all told their neighbours, ``parts`` what the site under attack added to sums, with their topics,
    and ``reported`` how many parts there were at every report. An agent's multiplier goes by what it told, not by what
    it has: otherwise what was left out would add up.
    """

    def __init__(
        self, topology: Topology, bits: int | str = 64, told: Callable[[FloatArray], FloatArray] | None = None
    ) -> None:
        super().__init__(topology, bits)
        self.said: list[FloatArray] = []
        self.parts: list[tuple[str, FloatArray]] = []
        self.reported: list[int] = []
        self._told, self._bits, self._degree = told, bits, topology.degree[:, None, None].astype(np.float64)

    def exchange(self, request: Neighbours) -> FloatArray | Heard:
        # The start is known to all anyway.
        value = self._told(request.value) if self._told and self.said else request.value
        self.said.append(value.copy())
        return super().exchange(Neighbours(value)) + self._degree * (request.value - value)

    def add_up(self, request: Total) -> Sum:
        answer = super().add_up(request)
        if request.value.shape[-1]:
            self.parts.append((request.topic, self._part(request)))
        return answer

    def _part(self, request: Total) -> FloatArray:
        """Return what the hub of a star knows by now of the part that the site under attack adds."""
        if self._bits == 64:
            return request.value[VICTIM]
        kinds = coarse_parts(request.value.shape[-1], request.fine, self._bits)
        return np.hstack([self._sums._channels[request.topic, VICTIM, kind].known for kind, _, _ in kinds])


@dataclass(frozen=True, eq=False)
class Run:
    """A run of ADMM: the U that all agents told, (K + 1, m, L, r), and each round's state."""

    case: Case
    solver: DMTLELM
    topology: Topology
    told: FloatArray
    states: list[State]

    @property
    def neighbours(self) -> list[int]:
        return self.topology.neighbors(VICTIM).tolist()

    @property
    def degree(self) -> float:
        return float(len(self.neighbours))

    @property
    def share(self) -> float:
        return float(self.solver.mu1) / len(self.case.X)

    @property
    def heard_all(self) -> FloatArray:
        """What the site under attack heard, for those who see all of it."""
        return self.told[:, self.neighbours].sum(axis=1)

    @property
    def heard_one(self) -> FloatArray:
        """The same as guessed by one neighbour: it knows its own, and takes the others to be where the site is."""
        return self.told[:, self.neighbours[0]] + (self.degree - 1) * self.told[:, VICTIM]


def follow(
    case: Case, solver: DMTLELM, told: Callable[[FloatArray], FloatArray] | None = None
) -> tuple[Tapped, list[State]]:
    """Run a solver, every word written down; return the link and the state after each round."""
    topology = make_topology(solver.graph, range(len(case.X)))
    link, states = Tapped(topology, solver.message_bits, told), []

    def note(progress: Progress) -> None:
        assert progress.state is not None
        states.append(progress.state)
        link.reported.append(len(link.parts))

    with watch(note):
        program = solver.program(case.task, place_of(topology, 0), int(solver.rank))
        energy = float(np.sum(case.task.target_energy)) / 2
        drive(program, link, max_iter=solver.max_iter, tol=solver.tol, start_energy=energy)
    return link, states


def agreed(case: Case, rank: int, graph: str = "ring") -> dict[str, float]:
    """Return penalties and rho as a network file might have them: the automatic ones, to two digits."""
    solver = DMTLELM(rank, graph=graph, method="admm", init="seed", max_iter=1, tol=0.0, certify=False)
    state = follow(case, solver)[1][-1]
    return {name: float(f"{getattr(state, name):.1e}") for name in ("mu1", "mu2", "rho")}


def admm(
    case: Case, rank: int, rounds: int, told: Callable[[FloatArray], FloatArray] | None = None, graph: str = "ring"
) -> Run:
    """Run ADMM as a network does that exchanges bases only."""
    fixed = {"graph": graph, "method": "admm", "init": "seed", "tol": 0.0, "certify": False}
    solver = DMTLELM(rank, max_iter=rounds, **fixed, **agreed(case, rank, graph))
    link, states = follow(case, solver, told)
    return Run(case, solver, make_topology(graph, range(len(case.X))), np.array(link.said), states)
