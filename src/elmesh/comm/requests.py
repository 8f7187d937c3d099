"""What a solver may ask of a transport: the only communication there is.

A solver yields one of these requests and is sent the result. Arrays belong to one agent, or to many with a leading
agent axis; a solver is written once for both.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from elmesh.typing import FloatArray, IndexArray, IntArray

__all__ = [
    "AllReduce",
    "AllReduceResult",
    "HubReduce",
    "IntegerSum",
    "NeighborMessages",
    "NeighborSum",
    "NoisySum",
    "Request",
    "Topic",
]


@dataclass(frozen=True, eq=False)
class NeighborSum:
    """Send ``value`` to every neighbour; the result is their sum, or with ``each`` :class:`NeighborMessages`.

    Quantised messages encode the difference from the last value on the same ``topic``. What an agent's own message
    lost in rounding is then added to each neighbour's value, so that differences from the agent's own value are those
    of the values as sent: over both ends of an edge they cancel, as those of exact values do.
    """

    value: FloatArray
    each: bool = False
    topic: str = "value"


@dataclass(frozen=True, eq=False)
class NeighborMessages:
    """Every neighbour's value, for rules that need each edge.

    Parameters
    ----------
    values : ndarray
        One message per row, neighbours in increasing order; for stacked agents, receiver after receiver.
    receiver : ndarray of int or None
        The agent that received each row; ``None`` for a single agent.
    """

    values: FloatArray
    receiver: IndexArray | None = None

    @classmethod
    def decoded(cls, value: FloatArray, sent: FloatArray, theirs: FloatArray, receiver: IndexArray) -> NeighborMessages:
        """Return neighbours' quantised values, to which each receiver adds what its own message lost in rounding."""
        return cls(theirs + (value - sent)[receiver], receiver)

    def own(self, value: FloatArray) -> FloatArray:
        """Repeat the receiver's own value beside each neighbour's."""
        return value if self.receiver is None else value[self.receiver]

    def sum(self, rows: FloatArray, like: FloatArray) -> FloatArray:
        """Sum rows over each agent's neighbours, in their order, to the shape of ``like``."""
        sums = np.zeros_like(like)
        if self.receiver is None:
            for row in rows:
                sums += row
            return sums
        # The k-th neighbour of all agents at once: the order of additions is that of a single agent.
        starts = np.searchsorted(self.receiver, np.arange(len(like)))
        degree = np.bincount(self.receiver, minlength=len(like))
        for k in range(degree.max(initial=0)):
            more = np.flatnonzero(degree > k)
            sums[more] += rows[starts[more] + k]
        return sums


@dataclass(frozen=True, eq=False)
class HubReduce:
    """Send ``value`` to the hub, agent 0 of a star; the result, equal to the bit everywhere, is ``function`` of all.

    Parameters
    ----------
    value : ndarray of shape (..., rows, columns)
        Sent without its trailing zero columns, which pad tasks with fewer outputs than others.
    function : callable
        From the values of all agents, of shape (m, rows, columns), to the result. Without side effects; it depends on
        nothing but what all agents hold alike, and is called in the hub's process only.
    topic : str
        Quantised messages, to the hub and back, encode the difference from the last value on the same topic.
    result_columns : int or None
        Most columns of the result, if it has as many rows as the value and may have more columns.
    """

    value: FloatArray
    function: Callable[[FloatArray], FloatArray]
    topic: str = "value"
    result_columns: int | None = None


@dataclass(frozen=True, eq=False)
class AllReduce:
    """Sum over all agents, by messages between neighbours; the result is an :class:`AllReduceResult`.

    Parameters
    ----------
    value : ndarray of shape (..., rows, columns)
        The agent's term: as large as U and a few vectors at most.
    exact : ndarray of shape (..., k)
        A few numbers that are summed without rounding to fewer bits and equal to the bit everywhere. Sums of ``value``
        may differ between agents by rounding, so every decision on control flow depends on these numbers alone.
    topic : str
        Quantised messages encode the difference from the last value on the same topic.
    skip_below : float
        A change of a partial sum with at most this norm need not be sent.
    fine_columns : int
        Number of columns, the last ones, that are quantised finely even with few message bits.
    rotation : ndarray of shape (columns before, columns) or None
        Multiply the last value on the topic by this from the right first: U has other columns since.
    relative_to_previous : bool
        The last value on the topic was rejected: encode the difference from the one before it.
    average : ndarray of shape (rows, columns) or None
        An array that agents hold equal up to rounding. Where sums are not equal to the bit, its mean is returned, so
        that rounding does not accumulate.
    broadcast : ndarray of shape (k,) or None
        Numbers that agents hold equal up to rounding; all agents receive those of the root, equal to the bit.
    """

    value: FloatArray
    exact: FloatArray
    topic: str
    skip_below: float = 0.0
    fine_columns: int = 0
    rotation: FloatArray | None = None
    relative_to_previous: bool = False
    average: FloatArray | None = None
    broadcast: FloatArray | None = None


@dataclass(frozen=True, eq=False)
class AllReduceResult:
    """The sums ``value`` (rows, columns) and ``exact`` (k,), and the arrays to average and to broadcast."""

    value: FloatArray
    exact: FloatArray
    average: FloatArray | None = None
    broadcast: FloatArray | None = None


class Topic(StrEnum):
    """What a sum of integers is of, which a site's policy and its log of releases refer to."""

    #: Counts, sums and sums of squares of columns.
    STATISTICS = "statistics"
    #: A few numbers: likelihoods and their derivatives, errors, bounds.
    NUMBERS = "numbers"
    #: Blocks of as many rows as there are features and of few columns.
    BLOCK = "block"
    #: Products of all features with each other and with the targets.
    MATRIX = "matrix"
    #: Totals with noise for differential privacy.
    PRIVATE = "private"


@dataclass(frozen=True, eq=False)
class IntegerSum:
    """Sum integers over all agents along the spanning tree; the result, of the same shape, is equal everywhere.

    Parameters
    ----------
    value : ndarray of int64 of shape (k,)
        The sum of the terms of the agents here. Totals are below 2**47 in magnitude, or below 2**(bits - 1) with fewer
        than 64 bits.
    topic : Topic
        What is summed.
    bits : {16, 32, 64}, default=64
        Integers are added modulo 2**bits, in any order.
    rho : float
        What the noise in it makes it cost (:mod:`elmesh.privacy.accounting`); 0 if there is none.
    """

    value: IntArray
    topic: Topic = Topic.NUMBERS
    bits: int = 64
    rho: float = 0.0


@dataclass(frozen=True, eq=False)
class NoisySum:
    """Sum integers over all agents, to which each agent adds noise of its own; the result is as of an IntegerSum.

    Parameters
    ----------
    value : ndarray of int64 of shape (agents here, k)
        The term of each agent.
    sigma : ndarray of int64 of shape (k,)
        Standard deviation of the discrete Gaussian noise that each agent adds to each number.
    rho : float
        What the sum costs (:mod:`elmesh.privacy.accounting`).
    """

    value: IntArray
    sigma: IntArray
    rho: float


Request = NeighborSum | HubReduce | AllReduce | IntegerSum | NoisySum
