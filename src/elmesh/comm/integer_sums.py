"""Sums of arrays over all agents by sums of integers, equal to the bit for any graph and any number of processes.

The sums are generators that yield :class:`~elmesh.comm.requests.IntegerSum` requests and are sent the totals. A solver
delegates to them, and :func:`run_sums` runs them over a transport.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from elmesh.comm.fixed_point import LIMBS, exponent_for, from_scaled, from_wide, scaled_exponent, to_scaled, to_wide
from elmesh.comm.requests import AllReduce, AllReduceResult, IntegerSum, Topic
from elmesh.typing import FloatArray, IntArray

__all__ = ["IntegerAllReduce", "Sums", "run_sums", "sum_scaled", "sum_wide"]

T = TypeVar("T")
# Bytes that a transport may add to each sum.
_CHECK_BYTES = 8
#: A generator that yields sums of integers, is sent their totals, and returns a T.
Sums = Generator[IntegerSum, IntArray, T]


def sum_wide(values: FloatArray, topic: Topic = Topic.NUMBERS) -> Sums[FloatArray]:
    """Return the sum over all agents of a few numbers; ``values`` is of shape (agents here, k)."""
    total = yield IntegerSum(to_wide(values).sum(axis=0).ravel(), topic)
    return np.atleast_1d(from_wide(total.reshape(-1, LIMBS)))


def sum_scaled(terms: Sequence[FloatArray], topic: Topic = Topic.BLOCK) -> Sums[list[FloatArray]]:
    """Return the sums over all agents of arrays, each of shape (agents here, ...), to the precision of their largest.

    Sums of an upper bound of every term, which come first, determine the scale of the integers.
    """
    flat = [term.reshape(len(term), -1) for term in terms]
    bounds = yield from sum_wide(np.stack([_largest(term) for term in flat], axis=-1))
    exponents = [exponent_for(bound) for bound in bounds.tolist()]
    own = [to_scaled(term, exponent).sum(axis=0) for term, exponent in zip(flat, exponents, strict=True)]
    total = yield IntegerSum(np.concatenate(own), topic)
    parts = np.split(total, np.cumsum([part.size for part in own])[:-1])
    return [
        from_scaled(part, exponent).reshape(term.shape[1:])
        for part, exponent, term in zip(parts, exponents, terms, strict=True)
    ]


def _largest(terms: FloatArray) -> FloatArray:
    """Return the largest magnitude of each row."""
    return np.asarray(np.max(np.abs(terms), axis=1, initial=0.0))


def run_sums(steps: Sums[T], integer_sum: Callable[[IntegerSum], IntArray]) -> T:
    """Run a generator of sums to its end."""
    try:
        request = next(steps)
        while True:
            request = steps.send(integer_sum(request))
    except StopIteration as end:
        result: T = end.value
        return result


@dataclass
class _Values:
    """Values on a topic as the receivers know them: of each agent here, and their sum over all agents."""

    own: FloatArray
    total: FloatArray


class IntegerAllReduce:
    """Answers :class:`~elmesh.comm.requests.AllReduce` by sums of integers of ``bits`` bits.

    With fewer than 64 bits integers encode the difference of an agent's value from the last one on the topic, rounded
    on a scale that is common to all agents. The rounding error is part of the next difference.
    """

    def __init__(self, bits: int, agents: Sequence[int]) -> None:
        self._bits, self._agents = bits, list(agents)
        self._values: dict[str, _Values] = {}
        self._previous: dict[str, _Values] = {}

    def sum(self, request: AllReduce, integer_sum: Callable[[IntegerSum], IntArray]) -> AllReduceResult:
        """Return the sum over all agents; request arrays have one row per agent of this process."""
        return run_sums(self._sum(request), integer_sum)

    def _sum(self, request: AllReduce) -> Sums[AllReduceResult]:
        if self._bits == 64:
            value, exact = yield from sum_scaled([request.value, request.exact])
        else:
            exact = yield from sum_wide(request.exact)
            value = (yield from self._sum_differences(request)) if request.value.size else request.value.sum(axis=0)
        broadcast = request.broadcast
        if broadcast is not None:
            broadcast = yield from sum_wide(np.where(self._agents[0] == 0, broadcast, 0.0)[None])
        return AllReduceResult(value, exact, request.average, broadcast)

    def _sum_differences(self, request: AllReduce) -> Sums[FloatArray]:
        topic, shape = request.topic, request.value.shape
        last = self._previous.get(topic) if request.relative_to_previous else self._values.get(topic)
        if last is not None and request.rotation is not None:
            last = _Values(last.own @ request.rotation, last.total @ request.rotation)
        if last is None or last.own.shape != shape:
            last = _Values(np.zeros(shape), np.zeros(shape[1:]))
        difference = (request.value - last.own).reshape(shape[0], -1)
        (bound,) = (yield from sum_wide(_largest(difference)[:, None])).tolist()
        exponent = scaled_exponent(bound, self._bits)
        integers = to_scaled(difference, exponent)
        total = yield IntegerSum(integers.sum(axis=0), Topic.BLOCK, self._bits)
        now = _Values(
            last.own + from_scaled(integers, exponent).reshape(shape),
            last.total + from_scaled(total, exponent).reshape(shape[1:]),
        )
        self._previous[topic], self._values[topic] = last, now
        return now.total

    def max_bytes(self, request: AllReduce) -> int:
        """Return an upper bound on the bytes of one agent's messages to its parent."""
        k, size = request.exact.shape[-1], int(np.prod(request.value.shape[-2:]))
        wide = 2 if self._bits == 64 else k + 1
        if request.broadcast is not None:
            wide += request.broadcast.size
        checks = 4 * _CHECK_BYTES
        return 8 * LIMBS * wide + (8 * (size + k) if self._bits == 64 else self._bits // 8 * size) + checks

    def state_dict(self) -> tuple[dict[int, dict[str, FloatArray]], dict[str, FloatArray]]:
        """Return what to resume from: per agent, and common to all."""
        own: dict[int, dict[str, FloatArray]] = {agent: {} for agent in self._agents}
        common: dict[str, FloatArray] = {}
        for name, by_topic in (("now", self._values), ("previous", self._previous)):
            for topic, values in by_topic.items():
                common[f"difference/{topic}/{name}"] = values.total
                for agent, value in zip(self._agents, values.own, strict=True):
                    own[agent][f"difference/{topic}/{name}"] = value
        return own, common

    def load_state_dict(self, own: Mapping[int, Mapping[str, FloatArray]], common: Mapping[str, FloatArray]) -> None:
        """Resume from :meth:`state_dict`, among whatever other arrays there are."""
        for name, by_topic in (("now", self._values), ("previous", self._previous)):
            by_topic.clear()
            for key, total in common.items():
                if key.startswith("difference/") and key.endswith(f"/{name}"):
                    values = _Values(np.stack([own[agent][key] for agent in self._agents]), total)
                    by_topic[key.split("/")[1]] = values
