"""What the hub of a star learns about a leaf from sums: by variable projection, with quantised messages too."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any

import numpy as np

from benchmarks import attacks
from benchmarks.eavesdrop import RANKS, VICTIM, Case, digits, record
from benchmarks.scores import Row, best_read, by_size, mean, read
from elmesh import MeshELM


def sums(seeds: Iterable[int]) -> list[Row]:
    """Attack a leaf of a star by variable projection, from what the hub receives: the leaf's own part of every sum."""
    rows = []
    for N, L, classes in ((50, 100, 2), (50, 300, 10), (300, 30, 2)):
        for bits in (64, 16, 8, 4, 2):
            print(f"  sums in {bits} bits, {N} rows, {L} units", file=sys.stderr)
            draws = [_leaf(digits(N, L, classes, seed), RANKS[classes], bits) for seed in seeds]
            row = mean(draws)
            rows.append(
                {"rows": N, "units": L, "classes": classes, "bits": bits, **row}
                | {"auc": max(row["auc"]), "labels": best_read(row["labels"])}
            )
    return rows


def _leaf(case: Case, rank: int, bits: int) -> Row:
    solver = MeshELM(rank=rank, graph="star", message_bits=bits, tol=1e-2, certify=False)
    transport, solutions = record(case, solver)
    solution = solutions[-1]
    seen, A = [part for topic, part in transport.parts if topic == "gradient"], solution.A[VICTIM]
    AA = attacks.weights_square(solution.U, seen[-1], solution.mu2)
    parts = [transport.parts[n - 1][1] for n in transport.reported]
    return {
        "sums": len(transport.parts),
        "auc": by_size(case, np.hstack([part / np.linalg.norm(part) for _, part in transport.parts])),
        "labels": read(case, attacks.late_targets(case.centred, solution.U, seen[-1], solution.mu2)),
        "AA_error": float(np.linalg.norm(AA - A @ A.T) / np.linalg.norm(A @ A.T)),
        "moments": moments(case, list(zip(solutions, parts, strict=True))),
        "error": case.error(solution),
    }


def moments(case: Case, looks: list[tuple[Any, np.ndarray]]) -> float:
    r"""Return how much of H'H is known from gradients at several U, as a share of its norm; two classes only.

    There a gradient is e b', and :math:`U'G = -\mu_2 bb'` gives b. So :math:`e = H'H\,Ub - H't` is known, and its
    differences tell what H'H makes of those of Ub.
    """
    if case.T[VICTIM].shape[1] > 2:
        return float("nan")
    ends, images = [], []
    for solution, G in looks:
        values, vectors = np.linalg.eigh(attacks.weights_square(solution.U, G, solution.mu2))
        b = np.sqrt(max(values[-1], 0.0)) * vectors[:, -1]
        if ends and (solution.U @ b) @ ends[-1] < 0:
            b = -b
        ends.append(solution.U @ b)
        images.append(G @ b / (b @ b))
    D, E = (np.diff(np.array(x), axis=0).T for x in (ends, images))
    P, s, Vt = np.linalg.svd(D, full_matrices=False)
    kept = s > 1e-7 * s[0]
    HH = case.centred.T @ case.centred
    # The part of H'H that they determine.
    found = E @ (Vt[kept].T / s[kept])
    return float(np.sqrt(1 - min(1.0, np.sum((HH - found @ P[:, kept].T) ** 2) / np.sum(HH**2))))
