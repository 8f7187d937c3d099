"""What an agent's algorithm asks of whoever drives it: the only way out of a solver.

An algorithm is a generator that does no input or output. It yields one of these requests, is sent the answer, and in
the end returns its :class:`State`. All arrays belong to one agent, or to many with a leading agent axis; the algorithm
is the same.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from elmesh.math.certificate import Certificate
from elmesh.typing import FloatArray

__all__ = [
    "Answer",
    "Heard",
    "Hub",
    "Kept",
    "Neighbours",
    "Place",
    "Program",
    "Report",
    "Request",
    "State",
    "Sum",
    "Total",
]

_Values = Mapping[str, FloatArray | float | None]


@dataclass(frozen=True, eq=False)
class Place:
    """What an agent knows of the network: public facts about the graph, and its own degree.

    Parameters
    ----------
    n_agents : int
        Number of agents m.
    number : ndarray of shape (...)
        Which agent of the graph this is, counted from 0.
    degree : ndarray of shape (...)
        Number of the agent's neighbours.
    grip : float
        Geometric mean of the Laplacian's extreme non-zero eigenvalues: how firmly the graph holds agents together.
    roots : callable
        From a precision to a schedule of averaging (see :meth:`elmesh.comm.graph.Topology.averaging_roots`).
    seed : int
        The seed all agents share.
    """

    n_agents: int
    number: NDArray[np.intp]
    degree: FloatArray
    grip: float
    roots: Callable[[float], tuple[float, ...]]
    seed: int


@dataclass(frozen=True, eq=False)
class State:
    """An agent's variables: the basis U (``None``: the identity), the private A, and the multiplier C'lambda.

    ``rho``, ``tau`` and ``zeta``, ``mu1`` and ``mu2`` are the values in use when it was taken; ``certificate`` is that
    of a finished run, if it was asked for.
    """

    U: FloatArray | None
    A: FloatArray
    dual: FloatArray | None = None
    rho: float = 0.0
    tau: FloatArray | float = 0.0
    zeta: FloatArray | float = 0.0
    mu1: float | None = None
    mu2: float | None = None
    certificate: Certificate | None = None


@dataclass(frozen=True, eq=False)
class Neighbours:
    """Tell ``value`` to every neighbour. The answer is the sum of theirs; with ``each``, a :class:`Heard`."""

    value: FloatArray
    each: bool = False


@dataclass(frozen=True, eq=False)
class Heard:
    """Every neighbour's message, for rules that need each edge.

    Parameters
    ----------
    values : ndarray
        One message a row, neighbours in increasing order; for stacked agents the hearers in order, one after another.
    hearer : ndarray of int or None
        Which agent heard each row; ``None`` for a single agent.
    """

    values: FloatArray
    hearer: NDArray[np.intp] | None = None

    def mine(self, value: FloatArray) -> FloatArray:
        """Repeat the agent's own value beside each neighbour's."""
        return value if self.hearer is None else value[self.hearer]

    def total(self, rows: FloatArray, like: FloatArray) -> FloatArray:
        """Sum rows over each agent's neighbours, one after another, to the shape of ``like``."""
        sums = np.zeros_like(like)
        if self.hearer is None:
            for row in rows:
                sums += row
            return sums
        # All agents' first rows, then their second ones: in no other order would agents alone add up the same bits.
        starts = np.searchsorted(self.hearer, np.arange(len(like)))
        degree = np.bincount(self.hearer, minlength=len(like))
        for k in range(degree.max(initial=0)):
            more = np.flatnonzero(degree > k)
            sums[more] += rows[starts[more] + k]
        return sums


@dataclass(frozen=True, eq=False)
class Hub:
    """Tell ``value`` to the hub, agent 0 of a star. The answer is what it makes of all agents' values.

    Every agent gets the same answer, to the bit, so what agents decide by it they decide alike.

    Parameters
    ----------
    value : ndarray of shape (..., rows, columns)
        What the agent tells. On its way it is cut after its last column that is not zero: the zero columns that pad a
        task with fewer outputs than others say nothing, and are not sent.
    function : callable
        What the hub does with the values of all agents, padded to the widest and stacked in the order of agents, of
        shape (m, rows, columns). It has no side effects, and depends on nothing else but what all agents hold alike;
        only the hub's process calls its own.
    """

    value: FloatArray
    function: Callable[[FloatArray], FloatArray]


@dataclass(frozen=True, eq=False)
class Total:
    """Add up over all agents. The answer is a :class:`Sum`, the same at every agent.

    Only neighbours talk to each other; how the sum comes about is the runtime's business. On every graph it takes the
    fewest rounds that a spanning tree or a schedule of averages needs; with coarse messages, the fewest bytes.

    Parameters
    ----------
    value : ndarray of shape (..., rows, columns)
        What the agent adds: as large as a U, and never more than that and a few vectors.
    numbers : ndarray of shape (..., k)
        A few numbers that are added up beside it, exactly. What agents decide by them they decide alike, to the bit,
        where the sums of ``value`` may differ between agents by rounding; so whatever changes who says what next is
        decided by these alone.
    topic : str
        What it is about. Coarse messages tell how a value differs from the last one on the same topic.
    ignore : float
        A change of a partial sum whose norm is no larger need not be told.
    fine : int
        How many of the columns, the last ones, are to be told finely even where messages are coarse.
    turn : ndarray of shape (columns before, columns) or None
        What to multiply the last value on the topic with, from the right, before telling how this one differs: U has
        been given other columns since.
    undo : bool
        Whether the last value on the topic led nowhere, so that this one differs from the one before it.
    same : ndarray of shape (rows, columns) or None
        What all agents hold alike but for rounding, or may. Where sums are the same to the bit it stays as it is; where
        they are not, its mean comes back, so that roundings do not grow from sum to sum.
    settle : ndarray of shape (k,) or None
        Numbers that all agents hold alike but for rounding; those of one and the same agent come back to everybody, to
        the bit. Where sums are the same to the bit, so are these, and nothing is sent.
    """

    value: FloatArray
    numbers: FloatArray
    topic: str
    ignore: float = 0.0
    fine: int = 0
    turn: FloatArray | None = None
    undo: bool = False
    same: FloatArray | None = None
    settle: FloatArray | None = None


@dataclass(frozen=True, eq=False)
class Sum:
    """The answer to :class:`Total`: ``value`` of shape (rows, columns), ``numbers`` of shape (k,), the other two."""

    value: FloatArray
    numbers: FloatArray
    same: FloatArray | None = None
    settle: FloatArray | None = None


class Answer(IntEnum):
    """The answer to :class:`Report`; false as long as there is more to do."""

    GO_ON = 0
    #: The tolerance is met: end here, or see whether there is more to gain.
    SETTLED = 1
    #: The user, or a limit, says that it is enough: end here.
    HALT = 2


@dataclass(frozen=True, eq=False)
class Kept:
    """What a program goes on from. Given to a new program, that makes the same report again and goes on as it would.

    All arrays are float64, numbers and counters included (of shape ()), and what a program does not have is left out.
    None of them is ever written to once it is here.

    Parameters
    ----------
    own : dict of ndarrays of shape (..., *)
        Each agent's, with the agent axis in front wherever the program's task has one.
    common : dict of ndarrays
        The same at all agents (to the bit, wherever sums are).
    edges : dict of ndarrays of shape (rows, *)
        One row a neighbour, as in :attr:`Heard.values`: for stacked agents the hearers in order, one after another.
        Only rules that need each edge have any.

    Examples
    --------
    >>> kept = Kept.of({"U": np.zeros((2, 3, 1))}, {"round": 4, "rho": None})
    >>> kept.common
    {'round': array(4.)}
    >>> [alone.own["U"].shape for alone in kept.split([1, 1])]
    [(3, 1), (3, 1)]
    """

    own: dict[str, FloatArray]
    common: dict[str, FloatArray]
    edges: dict[str, FloatArray] = field(default_factory=dict)

    @classmethod
    def of(cls, own: _Values, common: _Values, edges: _Values | None = None) -> Kept:
        """Keep what there is, numbers as arrays; no array is copied."""
        return cls(_arrays(own), _arrays(common), _arrays(edges or {}))

    def split(self, degrees: Iterable[int]) -> list[Kept]:
        """Return what each agent of a stack goes on from alone; ``degrees`` says how many neighbours each has."""
        ends = np.cumsum([0, *degrees]).tolist()
        return [
            Kept(
                {name: x[t, ...] for name, x in self.own.items()},
                self.common,
                {name: x[start:stop] for name, x in self.edges.items()},
            )
            for t, (start, stop) in enumerate(pairwise(ends))
        ]

    @classmethod
    def stack(cls, alone: Sequence[Kept]) -> Kept:
        """Return what a stack goes on from, of agents whose arrays have the same shapes."""
        first = alone[0]
        return cls(
            {name: np.stack([kept.own[name] for kept in alone]) for name in first.own},
            first.common,
            {name: np.concatenate([kept.edges[name] for kept in alone]) for name in first.edges},
        )


def _arrays(values: _Values) -> dict[str, FloatArray]:
    given = ((name, x) for name, x in values.items() if x is not None)
    return {name: x if isinstance(x, np.ndarray) else np.asarray(x, dtype=np.float64) for name, x in given}


@dataclass(frozen=True, eq=False)
class Report:
    """Where the agent stands after a round. The answer is an :class:`Answer`.

    Parameters
    ----------
    round : int
        Rounds done; 0 is the start.
    state : State
        The variables, kept by the driver in case the next round fails.
    objective : ndarray of shape (...)
        The agent's share of the objective.
    residual, scale : pair of ndarrays of shape (...)
        Squared norms of the Lagrangian's gradient in U and in A, and what they are compared with; for a method without
        a tolerance, of what it has left to do.
    kept : tuple of Kept
        What to go on from, one for each program that the report is of: a solver's own has one.
    """

    round: int
    state: State
    objective: FloatArray
    residual: tuple[FloatArray, FloatArray]
    scale: tuple[FloatArray, FloatArray]
    kept: tuple[Kept, ...]


Request = Neighbours | Hub | Total | Report
Program = Generator[Request, Any, State]
