"""Figs. 5 and 6 and Table 1: test error, traffic and running time of the eight methods on digits."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence

import numpy as np

from elmesh.math.objective import objective_of_U
from elmesh.paper import methods
from elmesh.paper.methods import FIGURE_WEIGHTS, RANK, RIVALS, TABLE_WEIGHTS, error_of, fit_and_test, paper_methods
from elmesh.paper.protocol import DATASETS, draw_tasks, hidden_features, stack_tasks
from elmesh.paper.reference_formulas import ReferenceADMM, alternating_step
from elmesh.paper.trials import Numbers, Trial
from elmesh.typing import FloatArray

__all__ = [
    "FIG5_HIDDEN", "FIG6_HIDDEN", "FIG6_ROUNDS", "FORMULA_ROUNDS", "FORMULA_RUNS", "PROPOSED", "SPECTRAL_ROUNDS",
    "TABLE_HIDDEN", "measure_fig5", "measure_fig6", "measure_table1", "paper_ratio", "time_formulas",
]  # fmt: skip

#: The methods that the paper proposes.
PROPOSED = ("MTL-ELM", "DMTL-ELM", "FO-DMTL-ELM")
#: Hidden units of Table 1, of Fig. 5 and of Fig. 6.
TABLE_HIDDEN, FIG5_HIDDEN, FIG6_HIDDEN = 300, (50, 100, 150, 200, 250, 300), (100, 150, 200, 250, 300)
#: Rounds of Fig. 6. The spectral start needs far fewer.
FIG6_ROUNDS, SPECTRAL_ROUNDS = (25, 50, 100), (1, 2, 5, 10, 25)
#: The paper's formulas are timed in the first runs only, for a few rounds; times are scaled to all rounds.
FORMULA_RUNS, FORMULA_ROUNDS = 2, 2


def measure_fig5(trial: Trial, hidden: Sequence[int] = FIG5_HIDDEN) -> Numbers:
    """Test the methods on one draw: those on the inputs once, those on the hidden layer for every size."""
    data, split, seed = DATASETS[trial.case], draw_tasks(trial.case, trial.seed), trial.seed
    return {
        title: [error_of(method, split, L, seed) for L in hidden]
        if method.hidden
        else error_of(method, split, hidden[-1], seed)
        for title, method in paper_methods(data, FIGURE_WEIGHTS).items()
    }


def measure_fig6(
    trial: Trial,
    hidden: Sequence[int] = FIG6_HIDDEN,
    rounds: Sequence[int] = FIG6_ROUNDS,
    spectral_rounds: Sequence[int] = SPECTRAL_ROUNDS,
) -> Numbers:
    """Test DNSP once, and DMTL-ELM for every size and number of rounds, on one draw."""
    data, split, seed = DATASETS[trial.case], draw_tasks(trial.case, trial.seed), trial.seed
    numbers: Numbers = {"DNSP": fit_and_test(paper_methods(data)["DNSP"], split, hidden[0], seed)[1]}
    for init, sizes, schedule in (("random", hidden, rounds), ("spectral", hidden[-1:], spectral_rounds)):
        dmtl_elm = {k: paper_methods(data, FIGURE_WEIGHTS, init=init, rounds=k)["DMTL-ELM"] for k in schedule}
        numbers[init] = {
            f"{L}": {f"{k}": fit_and_test(method, split, L, seed)[1] for k, method in dmtl_elm.items()} for L in sizes
        }
    return numbers


def paper_ratio(rounds: int, n_hidden: int, n_inputs: int, rank: int = RANK) -> float:
    """Return 2kL / ((r + 1) n), the traffic of DMTL-ELM as a multiple of that of DNSP by the paper's count."""
    return 2 * rounds * n_hidden / ((rank + 1) * n_inputs)


def measure_table1(trial: Trial, n_hidden: int = TABLE_HIDDEN, formula_rounds: int = FORMULA_ROUNDS) -> Numbers:
    """Test every method on one draw, and time the paper's formulas."""
    data, split, seed = DATASETS[trial.case], draw_tasks(trial.case, trial.seed), trial.seed
    own = paper_methods(data)
    simple = {title: own[title] for title in ("Local ELM", *RIVALS)} | methods.tuned_methods(trial.case)
    numbers = {title: fit_and_test(method, split, n_hidden, seed)[1] for title, method in simple.items()}
    H, T = hidden_features(split, n_hidden, seed)
    task, mu = stack_tasks(H, T), math.sqrt(data.penalty)
    with_objective = {title: own[title] for title in PROPOSED} | methods.extra_methods(data)
    for title, method in with_objective.items():
        model, tested = fit_and_test(method, split, n_hidden, seed)
        U = np.asarray(model.U_)
        numbers[title] = tested | {
            # A low test error is evidence neither of consensus nor of an optimum.
            "objective": objective_of_U(task, U if U.ndim == 2 else U.mean(axis=0), mu, mu),
            "gap": float(model.history_["consensus_gap"].iloc[-1]),
        }
    if trial.run < FORMULA_RUNS:
        for title, seconds in time_formulas(H, T, mu, seed, formula_rounds).items():
            numbers[title]["printed_seconds"] = seconds * methods.ROUNDS / formula_rounds
    return numbers


def time_formulas(H: list[FloatArray], T: list[FloatArray], mu: float, seed: int, rounds: int) -> dict[str, float]:
    """Return the seconds of a few rounds of the paper's formulas, from a random start."""
    m, L, d = len(H), H[0].shape[1], T[0].shape[1]
    rng = np.random.default_rng(seed)
    U, A = rng.uniform(-1, 1, (L, RANK)) / L, rng.uniform(-1, 1, (m, RANK, d))
    star = [(0, t) for t in range(1, m)]
    degree = np.array([m - 1] + [1] * (m - 1))

    def admm(tau: int, first_order: bool) -> ReferenceADMM:
        P, Q = tau + degree, np.full(m, TABLE_WEIGHTS.zeta)
        start = np.broadcast_to(U, (m, *U.shape))
        return ReferenceADMM(H, T, star, start, A, mu, mu, 1.0, P, Q, delta=100.0, first_order=first_order)

    steps: dict[str, Callable[[], object]] = {
        "MTL-ELM": lambda: alternating_step(H, T, A, mu, mu),
        "DMTL-ELM": admm(TABLE_WEIGHTS.tau, first_order=False).step,
        "FO-DMTL-ELM": admm(TABLE_WEIGHTS.tau_first_order, first_order=True).step,
    }
    seconds = {}
    for title, step in steps.items():
        start = time.perf_counter()
        for _ in range(rounds):
            step()
        seconds[title] = time.perf_counter() - start
    return seconds
