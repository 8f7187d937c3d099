"""Sums over all sites by integers, within the steps of a solver; and sums of steps whose sites are all here."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np

from elmesh.comm.integer_sums import sum_scaled, sum_wide
from elmesh.comm.requests import AllReduce, AllReduceResult, IntegerSum
from elmesh.errors import ElmeshError
from elmesh.solvers.base import AgentContext, Steps
from elmesh.typing import FloatArray

__all__ = ["from_first", "run_in_one_place", "with_integer_sums"]

T = TypeVar("T")


def from_first(
    context: AgentContext,
    values: FloatArray,
    within: float | FloatArray | None = None,
    accepts: Callable[[FloatArray], bool] = lambda _: False,
) -> Steps[FloatArray]:
    """Return the first agent's values, so that agents on different machines go on from the same ones.

    Where ``within`` is given, an agent whose own values differ from them by more raises an error, unless it ``accepts``
    them: all were computed from the same totals, and differ by rounding only.
    """
    first = int(np.min(context.agent)) == 0
    found = yield from sum_wide(np.where(first, values, 0.0)[None])
    if within is not None and not np.all(np.abs(found - values) <= within) and not accepts(found):
        raise ElmeshError(
            "An agent has sent other numbers than those that follow from the totals of all agents; check that all run "
            "the same version, that no column determines the target, and whom you learn with."
        )
    return found


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


def run_in_one_place(steps: Steps[T]) -> T:
    """Run steps to their end, with all sites here: their sums need no transport."""
    answer: Any = None
    while True:
        try:
            request = steps.send(answer)
        except StopIteration as end:
            result: T = end.value
            return result
        if isinstance(request, IntegerSum):
            answer = request.value
        elif isinstance(request, AllReduce):
            value, exact = request.value.sum(axis=0), request.exact.sum(axis=0)
            answer = AllReduceResult(value, exact, request.average, request.broadcast)
        else:
            raise TypeError(f"{type(request).__name__} is not a sum over all agents.")
