"""Agents in blocks: one program for each block, all of them seen from the driver as one program.

All agents in one array cost one Python call a step however many there are. With thousands of them every elementwise
step would stream through main memory; blocks that fit the cache, each driven by a generator of its own, do not. And
where each agent's numbers are to be the same to the bit whoever shares its process, only agents of the same shape are
stacked: padding would change the order in which products are added up.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from elmesh.comm.requests import Answer, Heard, Hub, Neighbours, Program, Report, State, Sum, Total
from elmesh.data.statistics import Task
from elmesh.typing import FloatArray

__all__ = ["Part", "blocks_of", "lockstep", "same_shapes"]

#: Places of a block's agents among all of those in this process, in increasing order.
Part = NDArray[np.intp]

# What the V of a block may take, in bytes, and the fewest agents that make a block worth its overhead.
_CACHE, _FEWEST = 4 << 20, 16


def blocks_of(task: Task) -> list[Part]:
    """Cut stacked agents into blocks of similar size that fit the cache."""
    m, L, q = task.V.shape
    size = max(_FEWEST, _CACHE // (8 * L * q))
    return list(np.array_split(np.arange(m), -(-m // size)))


def same_shapes(tasks: Sequence[Task]) -> list[Part]:
    """Put single agents of the same shape together."""
    shapes = [(task.V.shape, task.Y.shape) for task in tasks]
    distinct = sorted(set(shapes), key=shapes.index)
    return [np.array([k for k, shape in enumerate(shapes) if shape == kind], dtype=np.intp) for kind in distinct]


def lockstep(programs: Sequence[Program], parts: Sequence[Part]) -> Program:
    """Run the programs of blocks of agents as if they were one."""
    if len(programs) == 1:
        return (yield from programs[0])
    answers: list[FloatArray | Heard | Sum | Answer | None] = [None] * len(programs)
    told: _Joined | None = None
    while True:
        requests, states = [], []
        for program, answer in zip(programs, answers, strict=True):
            try:
                requests.append(program.send(answer))
            except StopIteration as end:
                states.append(end.value)
        if states:
            return _join(states, parts, None)
        first = requests[0]
        if isinstance(first, Neighbours):
            told = _Joined([request.value for request in requests if isinstance(request, Neighbours)], parts)
            heard = yield Neighbours(told.whole, first.each)
            answers = [_part(heard, part) for part in parts]
        elif isinstance(first, Total):
            totals = [request for request in requests if isinstance(request, Total)]
            value = _scatter([total.value for total in totals], parts)
            numbers = _scatter([total.numbers for total in totals], parts)
            answers = [(yield replace(first, value=value, numbers=numbers))] * len(programs)
        elif isinstance(first, Hub):
            values = _scatter([request.value for request in requests if isinstance(request, Hub)], parts)
            answers = [(yield Hub(values, first.function))] * len(programs)
        else:
            reports = [request for request in requests if isinstance(request, Report)]
            answers = [(yield _join_reports(reports, parts, told))] * len(programs)


class _Joined:
    """Arrays of blocks, and the one array that they make."""

    def __init__(self, pieces: Sequence[FloatArray], parts: Sequence[Part]) -> None:
        self.pieces, self.whole = list(pieces), _scatter(pieces, parts)

    def has(self, pieces: Sequence[FloatArray]) -> bool:
        return all(piece is other for piece, other in zip(self.pieces, pieces, strict=True))


def _scatter(pieces: Sequence[FloatArray], parts: Sequence[Part]) -> FloatArray:
    """Put blocks side by side in the order of agents; columns that only some have are zero for the others."""
    widest = [max(sizes) for sizes in zip(*(piece.shape[1:] for piece in pieces), strict=True)]
    whole = np.zeros((sum(map(len, parts)), *widest))
    for piece, part in zip(pieces, parts, strict=True):
        whole[(_index(part), *(slice(size) for size in piece.shape[1:]))] = piece
    return whole


def _index(part: Part) -> slice | Part:
    """Return a slice where places are consecutive, which costs no copy."""
    return slice(part[0], part[-1] + 1) if part[-1] - part[0] == len(part) - 1 else part


def _part(heard: FloatArray | Heard, part: Part) -> FloatArray | Heard:
    if not isinstance(heard, Heard):
        return heard[_index(part)]
    if heard.hearer is None:
        raise TypeError("Blocks of agents were answered with the messages of a single one.")
    place = np.searchsorted(part, heard.hearer).clip(max=len(part) - 1)
    mine = part[place] == heard.hearer
    return Heard(heard.values[mine], place[mine])


def _join_reports(reports: Sequence[Report], parts: Sequence[Part], told: _Joined | None) -> Report:
    def join(take: Callable[[Report], FloatArray]) -> FloatArray:
        return _scatter([take(report) for report in reports], parts)

    return Report(
        reports[0].round,
        _join([report.state for report in reports], parts, told),
        join(lambda report: report.objective),
        (join(lambda report: report.residual[0]), join(lambda report: report.residual[1])),
        (join(lambda report: report.scale[0]), join(lambda report: report.scale[1])),
        tuple(kept for report in reports for kept in report.kept),
    )


def _join(states: Sequence[State], parts: Sequence[Part], told: _Joined | None) -> State:
    """Join the blocks' states; where they have just told their U, ``told`` has it side by side already."""
    first = states[0]
    Us = [state.U for state in states if state.U is not None]
    U: FloatArray | None = None
    if first.U is not None:
        shared = first.U.ndim == 2
        U = first.U if shared else told.whole if told is not None and told.has(Us) else _scatter(Us, parts)
    duals = [state.dual for state in states if state.dual is not None]

    def each(values: Sequence[FloatArray | float]) -> FloatArray | float:
        if all(np.ndim(value) == 0 for value in values):
            return values[0]
        return _scatter([np.asarray(value, dtype=np.float64) for value in values], parts)

    return State(
        U,
        _scatter([state.A for state in states], parts),
        _scatter(duals, parts) if duals and told is None else None,
        first.rho,
        each([state.tau for state in states]),
        each([state.zeta for state in states]),
        first.mu1,
        first.mu2,
        first.certificate,
    )
