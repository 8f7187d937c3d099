"""Many agents as blocks in lockstep: the cost of an agent's round does not grow with how many there are.

One array for all agents is the fastest way to run a few. With thousands of them every elementwise step would stream
through main memory; blocks that fit the cache, each driven by a generator of its own, do not. Seen from the driver
the blocks are one program again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from elmesh.solvers.requests import Answer, Heard, Neighbours, Program, Report, State, Sum, Total
from elmesh.statistics import Task

__all__ = ["block_bounds", "lockstep"]

FloatArray = NDArray[np.float64]

# What the V of a block may take, in bytes, and the fewest agents that make a block worth its overhead.
_CACHE, _FEWEST = 4 << 20, 16


def block_bounds(task: Task) -> list[tuple[int, int]]:
    """Cut stacked agents into blocks of similar size that fit the cache."""
    m, L, q = task.V.shape
    size = max(_FEWEST, _CACHE // (8 * L * q))
    edges = np.linspace(0, m, -(-m // size) + 1).round().astype(int).tolist()
    return list(pairwise(edges))


def lockstep(programs: Sequence[Program], bounds: Sequence[tuple[int, int]]) -> Program:
    """Run the programs of consecutive blocks of agents as if they were one."""
    if len(programs) == 1:
        return (yield from programs[0])
    answers: list[FloatArray | Heard | Sum | Answer | None] = [None] * len(programs)
    told: FloatArray | None = None
    while True:
        requests, states = [], []
        for program, answer in zip(programs, answers, strict=True):
            try:
                requests.append(program.send(answer))
            except StopIteration as end:
                states.append(end.value)
        if states:
            return _join(states, None)
        first = requests[0]
        if isinstance(first, Neighbours):
            told = np.concatenate([request.value for request in requests if isinstance(request, Neighbours)])
            heard = yield Neighbours(told, first.each)
            answers = [_part(heard, start, stop) for start, stop in bounds]
        elif isinstance(first, Total):
            totals = [request for request in requests if isinstance(request, Total)]
            value = np.concatenate([total.value for total in totals])
            numbers = np.concatenate([total.numbers for total in totals])
            answers = [(yield replace(first, value=value, numbers=numbers))] * len(programs)
        else:
            reports = [request for request in requests if isinstance(request, Report)]
            answers = [(yield _join_reports(reports, told))] * len(programs)


def _part(heard: FloatArray | Heard, start: int, stop: int) -> FloatArray | Heard:
    if not isinstance(heard, Heard):
        return heard[start:stop]
    if heard.hearer is None:
        raise TypeError("Blocks of agents were answered with the messages of a single one.")
    low, high = np.searchsorted(heard.hearer, [start, stop])
    return Heard(heard.values[low:high], heard.hearer[low:high] - start)


def _join_reports(reports: Sequence[Report], told: FloatArray | None) -> Report:
    return Report(
        reports[0].round,
        _join([report.state for report in reports], told),
        np.concatenate([report.objective for report in reports]),
        _join_pairs([report.residual for report in reports]),
        _join_pairs([report.scale for report in reports]),
    )


def _join_pairs(pairs: Sequence[tuple[FloatArray, FloatArray]]) -> tuple[FloatArray, FloatArray]:
    first, second = (np.concatenate(parts) for parts in zip(*pairs, strict=True))
    return first, second


def _join(states: Sequence[State], told: FloatArray | None) -> State:
    """Join the blocks' states; ``told`` is their U already side by side, if they have just told it."""
    Us = [state.U for state in states if state.U is not None]
    duals = [state.dual for state in states if state.dual is not None]
    return State(
        told if told is not None else np.concatenate(Us),
        np.concatenate([state.A for state in states]),
        np.concatenate(duals) if told is None and duals else None,
        states[0].rho,
        np.concatenate([np.atleast_1d(np.asarray(state.tau, dtype=np.float64)) for state in states]),
        np.concatenate([np.atleast_1d(np.asarray(state.zeta, dtype=np.float64)) for state in states]),
        states[0].mu1,
        states[0].mu2,
        states[0].certificate,
    )
