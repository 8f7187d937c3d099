"""Time of a DMTL-ELM round compared with the paper's formula (20) and with the matrix products of any round."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

from benchmarks.measure import interleaved, machine, random_task, round_seconds, seconds
from elmesh import FODMTLELM

m, N, L, r, d = 10, 90, 300, 6, 3


def kronecker_round(H: np.ndarray, T: np.ndarray, U: np.ndarray, A: np.ndarray, tau: float) -> None:
    """One round as printed: (20) for each agent with np.linalg.solve, the multiplier, then (22)."""
    rho, mu, degree = 1.0, 1.0, 2.0
    S = np.roll(U, 1, axis=0) + np.roll(U, -1, axis=0)
    dual = np.zeros_like(U)
    U = U.copy()
    for t in range(m):
        G = H[t].T @ H[t]
        matrix = np.kron(A[t] @ A[t].T, G)
        matrix[np.diag_indices(L * r)] += mu / m + rho * degree + tau
        right = H[t].T @ T[t] @ A[t].T + rho * S[t] - dual[t] + tau * U[t]
        U[t] = np.linalg.solve(matrix, right.ravel(order="F")).reshape(L, r, order="F")
    dual += rho * (degree * U - np.roll(U, 1, axis=0) - np.roll(U, -1, axis=0))
    for t in range(m):
        Z = H[t] @ U[t]
        A[t] = np.linalg.solve(Z.T @ Z + (mu + 1.0) * np.eye(r), Z.T @ T[t] + A[t])


def run(results: Path) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    task = random_task(m, L, N, d)
    H, T = rng.standard_normal((m, N, L)), rng.standard_normal((m, N, d))
    U, A = rng.standard_normal((m, L, r)), rng.standard_normal((m, r, d))
    inner = rng.standard_normal((m, N, r))

    def products() -> float:
        def work() -> None:
            for _ in range(200):
                task.V.mT @ U
                task.V @ inner

        return seconds(work) / 200

    figures: dict[str, Any] = {}
    for threads in (1, 2):
        with threadpool_limits(threads):
            figures[f"{threads} BLAS thread" + "s" * (threads > 1)] = times = interleaved(
                {
                    "exact_round": round_seconds(task, r, 200),
                    "products": products,
                    "first_order_round": round_seconds(task, r, 200, FODMTLELM),
                    "kronecker_round": lambda: seconds(lambda: kronecker_round(H, T, U, A.copy(), 2.0)),
                },
                repeats=7,
            )
            times["kronecker_over_exact"] = times["kronecker_round"] / times["exact_round"]
            times["exact_over_products"] = times["exact_round"] / times["products"]
            times["first_order_over_exact"] = times["first_order_round"] / times["exact_round"]
    return {
        "benchmark": "rounds",
        "size": {"agents": m, "rows": N, "hidden": L, "rank": r, "outputs": d, "graph": "ring"},
        "unit": "seconds per round of all agents, best of 7 taken in turns",
        "machine": machine(),
        "figures": figures,
        # Both sides use one BLAS thread. More threads help the paper's one large system more than the many small
        # products here; the figures include that comparison.
        "goals": {
            "at least 1,000 times faster than formula (20)": figures["1 BLAS thread"]["kronecker_over_exact"] >= 1000,
            "at most 3 times the products it cannot avoid": figures["1 BLAS thread"]["exact_over_products"] <= 3,
        },
    }
