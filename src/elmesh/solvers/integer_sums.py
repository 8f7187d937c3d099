"""Sums of arrays over all sites by integers, equal to the bit for any graph and any number of processes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import numpy as np

from elmesh.comm.fixed_point import LIMBS, exponent_for, from_scaled, from_wide, to_scaled, to_wide
from elmesh.comm.requests import AllReduce, AllReduceResult, IntegerSum
from elmesh.solvers.base import AgentContext, Steps
from elmesh.typing import FloatArray

__all__ = ["from_first", "sum_scaled", "sum_wide", "with_integer_sums"]

T = TypeVar("T")


def sum_wide(values: FloatArray) -> Steps[FloatArray]:
    """Return the sum over all sites of a few numbers; ``values`` is of shape (sites here, k)."""
    total = yield IntegerSum(to_wide(values).sum(axis=0).ravel())
    return np.atleast_1d(from_wide(total.reshape(-1, LIMBS)))


def sum_scaled(terms: Sequence[FloatArray]) -> Steps[list[FloatArray]]:
    """Return the sums over all sites of arrays, each of shape (sites here, ...), to the precision of their largest."""
    flat = [term.reshape(len(term), -1) for term in terms]
    bounds = yield from sum_wide(np.stack([np.max(np.abs(term), axis=1, initial=0.0) for term in flat], axis=-1))
    exponents = [exponent_for(bound) for bound in bounds.tolist()]
    own = [to_scaled(term, exponent).sum(axis=0) for term, exponent in zip(flat, exponents, strict=True)]
    total = yield IntegerSum(np.concatenate(own))
    parts = np.split(total, np.cumsum([part.size for part in own])[:-1])
    return [
        from_scaled(part, exponent).reshape(term.shape[1:])
        for part, exponent, term in zip(parts, exponents, terms, strict=True)
    ]


def from_first(context: AgentContext, values: FloatArray) -> Steps[FloatArray]:
    """Return the first agent's values, so that agents on different machines go on from the same ones."""
    first = int(np.min(context.agent)) == 0
    return (yield from sum_wide(np.where(first, values, 0.0)[None]))


def with_integer_sums(steps: Steps[T], context: AgentContext) -> Steps[T]:
    """Run steps whose sums over all agents are made of integers instead."""
    answer: AllReduceResult | None = None
    while True:
        try:
            request = steps.send(answer)
        except StopIteration as end:
            result: T = end.value
            return result
        if not isinstance(request, AllReduce):
            raise TypeError(f"{type(request).__name__} is not a sum over all agents.")
        value, exact = yield from sum_scaled([request.value, request.exact])
        broadcast = request.broadcast
        if broadcast is not None:
            broadcast = yield from from_first(context, broadcast)
        answer = AllReduceResult(value, exact, request.average, broadcast)
