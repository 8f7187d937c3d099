"""Agents in batches: one program per batch, joined into one program for the monitor.

All agents in one array cost one Python call per step however many there are. With thousands of them every elementwise
step would stream through main memory; batches that fit the cache do not. And where each agent's numbers must be the
same to the bit however agents are spread over processes, only agents of the same shape are stacked: padding would
change the order of summation in products.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from elmesh.comm.requests import AllReduce, HubReduce, IntegerSum, NeighborMessages, NeighborSum
from elmesh.data.statistics import Task
from elmesh.solvers.base import Program, RoundReport, Solution
from elmesh.solvers.state import MixedEffects
from elmesh.typing import FloatArray, IndexArray

__all__ = ["cache_batches", "join_programs", "join_solutions", "shape_batches"]

# Bytes of V per batch, and the fewest agents that make a batch worth its overhead.
_CACHE_BYTES, _FEWEST = 4 << 20, 16


def cache_batches(task: Task) -> list[IndexArray]:
    """Return batches of stacked agents, of similar size, that fit the cache."""
    m, L, q = task.V.shape
    size = max(_FEWEST, _CACHE_BYTES // (8 * L * q))
    return list(np.array_split(np.arange(m), -(-m // size)))


def shape_batches(tasks: Sequence[Task]) -> list[IndexArray]:
    """Return batches of single agents of equal shape."""
    shapes = [(task.V.shape, task.Y.shape) for task in tasks]
    distinct = sorted(set(shapes), key=shapes.index)
    return [np.array([k for k, shape in enumerate(shapes) if shape == kind], dtype=np.intp) for kind in distinct]


def join_programs(programs: Sequence[Program], batches: Sequence[IndexArray]) -> Program:
    """Run the programs of batches in lockstep, as one program; a batch holds places among this process's agents."""
    if len(programs) == 1:
        return (yield from programs[0])
    answers: list[Any] = [None] * len(programs)
    sent: _Joined | None = None
    while True:
        requests, solutions = [], []
        for program, answer in zip(programs, answers, strict=True):
            try:
                requests.append(program.send(answer))
            except StopIteration as end:
                solutions.append(end.value)
        if solutions:
            return join_solutions(solutions, batches, None)
        first = requests[0]
        if isinstance(first, NeighborSum):
            sent = _Joined([request.value for request in requests if isinstance(request, NeighborSum)], batches)
            received = yield replace(first, value=sent.whole)
            answers = [_part(received, batch) for batch in batches]
        elif isinstance(first, AllReduce):
            sums = [request for request in requests if isinstance(request, AllReduce)]
            value = _scatter([request.value for request in sums], batches)
            exact = _scatter([request.exact for request in sums], batches)
            answers = [(yield replace(first, value=value, exact=exact))] * len(programs)
        elif isinstance(first, IntegerSum):
            integers = [request.value for request in requests if isinstance(request, IntegerSum)]
            answers = [(yield replace(first, value=np.sum(integers, axis=0)))] * len(programs)
        elif isinstance(first, HubReduce):
            values = _scatter([request.value for request in requests if isinstance(request, HubReduce)], batches)
            answers = [(yield replace(first, value=values))] * len(programs)
        else:
            reports = [request for request in requests if isinstance(request, RoundReport)]
            answers = [(yield _join_reports(reports, batches, sent))] * len(programs)


class _Joined:
    """Arrays of batches, and the array that they make together."""

    def __init__(self, pieces: Sequence[FloatArray], batches: Sequence[IndexArray]) -> None:
        self.pieces, self.whole = list(pieces), _scatter(pieces, batches)

    def has(self, pieces: Sequence[FloatArray]) -> bool:
        return all(piece is other for piece, other in zip(self.pieces, pieces, strict=True))


def _scatter(pieces: Sequence[FloatArray], batches: Sequence[IndexArray]) -> FloatArray:
    """Put batches together in the order of agents; columns that only some batches have are zero for the others."""
    widest = [max(sizes) for sizes in zip(*(piece.shape[1:] for piece in pieces), strict=True)]
    whole = np.zeros((sum(map(len, batches)), *widest))
    for piece, batch in zip(pieces, batches, strict=True):
        whole[(_index(batch), *(slice(size) for size in piece.shape[1:]))] = piece
    return whole


def _index(batch: IndexArray) -> slice | IndexArray:
    """Return a slice for consecutive places, which needs no copy."""
    return slice(batch[0], batch[-1] + 1) if batch[-1] - batch[0] == len(batch) - 1 else batch


def _part(received: FloatArray | NeighborMessages, batch: IndexArray) -> FloatArray | NeighborMessages:
    """Return what the agents of a batch have received."""
    if not isinstance(received, NeighborMessages):
        return received[_index(batch)]
    if received.receiver is None:
        raise TypeError("Batches of agents were answered with the messages of a single agent.")
    place = np.searchsorted(batch, received.receiver).clip(max=len(batch) - 1)
    own = batch[place] == received.receiver
    return NeighborMessages(received.values[own], place[own])


def _join_effects(effects: Sequence[MixedEffects | None], batches: Sequence[IndexArray]) -> MixedEffects | None:
    """Join the batches' log-precisions; all else is the same in all of them."""
    own = [one.log_w for one in effects if one is not None]
    return None if effects[0] is None else replace(effects[0], log_w=_scatter(own, batches))


def _join_reports(reports: Sequence[RoundReport], batches: Sequence[IndexArray], sent: _Joined | None) -> RoundReport:
    def join(take: Callable[[RoundReport], FloatArray]) -> FloatArray:
        return _scatter([take(report) for report in reports], batches)

    return RoundReport(
        join_solutions([report.solution for report in reports], batches, sent),
        join(lambda report: report.objective),
        (join(lambda report: report.residual[0]), join(lambda report: report.residual[1])),
        (join(lambda report: report.scale[0]), join(lambda report: report.scale[1])),
        tuple(state for report in reports for state in report.states),
        reports[0].totals,
    )


def join_solutions(solutions: Sequence[Solution], batches: Sequence[IndexArray], sent: _Joined | None) -> Solution:
    """Join the batches' variables; if the batches have just sent their U, ``sent`` has it joined already."""
    first = solutions[0]
    Us = [solution.U for solution in solutions if solution.U is not None]
    U: FloatArray | None = None
    if first.U is not None:
        shared = first.U.ndim == 2
        U = first.U if shared else sent.whole if sent is not None and sent.has(Us) else _scatter(Us, batches)
    duals = [solution.dual for solution in solutions if solution.dual is not None]

    def each(values: Sequence[FloatArray | float]) -> FloatArray | float:
        if all(np.ndim(value) == 0 for value in values):
            return values[0]
        return _scatter([np.asarray(value, dtype=np.float64) for value in values], batches)

    return replace(
        first,
        U=U,
        A=_scatter([solution.A for solution in solutions], batches),
        dual=_scatter(duals, batches) if duals and sent is None else None,
        V=_scatter([solution.V for solution in solutions if solution.V is not None], batches)
        if first.V is not None
        else None,
        prior=_scatter([solution.prior for solution in solutions if solution.prior is not None], batches)
        if first.prior is not None
        else None,
        effects=_join_effects([solution.effects for solution in solutions], batches),
        tau=each([solution.tau for solution in solutions]),
        zeta=each([solution.zeta for solution in solutions]),
    )
