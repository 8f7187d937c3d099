"""What fewer rounds, coarser numbers and noise take from attackers, and from the sites that use them."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np

from benchmarks import attacks
from benchmarks.eavesdrop import RANKS, VICTIM, Case, Perturbation, admm, digits
from benchmarks.scores import Row, best_read, by_size, known, mean, read, side_by_side
from elmesh import LocalELM
from elmesh.run import run_local


def halved(X: np.ndarray) -> np.ndarray:
    return X.astype(np.float16).astype(np.float64)


def single(X: np.ndarray) -> np.ndarray:
    return X.astype(np.float32).astype(np.float64)


def noisy(level: float, seed: int) -> Perturbation:
    """Return what adds normal noise to every U that is sent, a share of its root mean square, anew in every round."""
    rng = np.random.default_rng((seed, 1))

    def perturb(U: np.ndarray) -> np.ndarray:
        size = np.sqrt(np.mean(U**2, axis=(-2, -1), keepdims=True))
        return U + level * size * rng.standard_normal(U.shape)

    return perturb


def defences(seeds: Iterable[int]) -> list[Row]:
    """See what fewer rounds, coarser numbers and noise take from attackers, and from the sites."""
    ways: list[tuple[str, int, Callable[[int], Perturbation | None]]] = [
        *((f"{k} rounds", k, lambda seed: None) for k in (300, 100, 30, 10, 3)),
        ("100 rounds, single precision", 100, lambda seed: single),
        ("100 rounds, half precision", 100, lambda seed: halved),
        *(
            (f"{k} rounds, noise of {level:g}", k, lambda seed, level=level: noisy(level, seed))
            for k, level in ((100, 0.001), (100, 0.01), (100, 0.1), (100, 0.3), (10, 0.1), (10, 0.3), (10, 1.0))
        ),
    ]  # fmt: skip
    rows = []
    for N, L in ((50, 100), (300, 100)):
        for name, rounds, perturb in ways:
            row = mean(_defended(digits(N, L, 2, seed), rounds, perturb(seed)) for seed in seeds)
            first, late = (best_read(row.pop(key)) for key in ("labels_first", "labels_late"))
            rows.append({"rows": N, "units": L, "way": name, **row, "auc": max(row["auc"])}
                        | {"labels_first": first, "labels_late": late})  # fmt: skip
    return rows


def _defended(case: Case, rounds: int, perturb: Perturbation | None) -> Row:
    run = admm(case, RANKS[2], rounds, perturb)
    U, mu2 = run.sent[:, VICTIM], float(run.solver.mu2)
    G, noise = known(run, run.received_all)
    # What is left of noise in the mean of late rounds is less than in any of them.
    half = len(G) // 2
    first = attacks.first_targets(case.centred, U[0], U[1], G[0], mu2, noise, most=1)
    late = attacks.late_targets(case.centred, U[half + 1 :].mean(axis=0), G[half:].mean(axis=0), mu2)
    return {
        "auc": by_size(case, side_by_side(G)),
        "labels_first": read(case, first),
        "labels_late": read(case, late),
        "error": case.error(run.solutions[-1]),
    }


def alone(N: int, L: int, seeds: Iterable[int]) -> float:
    """Return the test error of sites that exchange nothing, with the best of a few penalties in hindsight."""
    errors = []
    for mu in (0.1, 0.3, 1.0, 3.0, 10.0, 30.0):
        draws = [digits(N, L, 2, seed) for seed in seeds]
        solutions = [run_local(LocalELM(mu=mu), case.task, None, 0).solution for case in draws]
        wrong = [
            case.outputs(t, solution.A[t], case.H_fresh).argmax(axis=1) != case.y_fresh
            for case, solution in zip(draws, solutions, strict=True)
            for t in range(len(case.X))
        ]
        errors.append(100 * float(np.mean([w.mean() for w in wrong])))
    return min(errors)
