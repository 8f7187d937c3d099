"""DNSP with fewer bytes: after the first round a task sends its coefficients, from which the hub knows its direction.

The Newton direction of task t is ``U A_t - beta_t``. Once the hub has ``beta_t``, from the first round, the k x d
numbers of ``A_t`` are enough for the direction, in place of the L x d numbers of the direction itself. The result is
that of DNSP but for rounding. Messages are those of the package's codec; ``beta_t`` and ``A_t`` on the one hand, and
the columns of U on the other, may have different numbers of bits. No figures are sent.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from benchmarks.data import Draw
from elmesh.comm.codec import decode, encode
from elmesh.math.kernels import project, ridge, solve_A
from elmesh.solvers.base import Solution
from elmesh.solvers.subspace_pursuit import new_direction

__all__ = ["learn_by_coefficients"]


def learn_by_coefficients(draw: Draw, setting: dict[str, Any]) -> list[tuple[int, int, float]]:
    """Return bytes sent, those of figures (none), and test error after every round; agent 0 is the hub."""
    task, score = draw.task(hidden=False), draw.scorer(hidden=False)
    bits, back, mu = setting["bits"], setting["bits_back"], setting["mu"]
    own, m, sent = ridge(task, mu), len(task.s), 0
    widths = [np.flatnonzero(block.any(axis=0))[-1] + 1 for block in own]
    known, d = own.copy(), own.shape[-1]
    for t in range(1, m):
        message = encode(own[t][:, : widths[t]], bits)
        known[t] = 0.0
        known[t][:, : widths[t]] = decode(message, (len(own[t]), widths[t]))
        sent += len(message)
    U, A = np.zeros((own.shape[1], 0)), np.zeros((m, 0, d))
    points = []
    for _ in range(setting["rank"]):
        received = A.copy()
        if A.shape[1]:
            for t in range(1, m):
                message = encode(A[t][:, : widths[t]], bits)
                received[t][:, : widths[t]] = decode(message, (A.shape[1], widths[t]))
                sent += len(message)
        message = encode(new_direction(U, U @ received - known)[:, None], back)
        sent += (m - 1) * len(message)
        u = decode(message, (len(U), 1))[:, 0]
        u = u - U @ (U.T @ u)
        norm = np.linalg.norm(u)
        if norm > 1e-6:
            U = np.column_stack([U, u / norm])
        A = solve_A(task, project(task, U), np.zeros(1), mu, 0.0)
        points.append((sent, 0, score(Solution(U, A))))
    return points
