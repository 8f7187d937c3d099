"""Three parts of the paper's algorithms that do not work as printed: the start, a sign, and the rule for gamma.

Each is run as printed and corrected. The last two use setting (a) of Fig. 3, where the printed formulas are fast.
"""

from __future__ import annotations

import numpy as np

from elmesh.paper.convergence import AGENTS, PANELS, PENALTY, RANK, RHO, decentralized, make_problem, ring
from elmesh.paper.methods import fit_and_test, paper_methods, record_rounds
from elmesh.paper.protocol import DATASETS, draw_tasks, stack_tasks
from elmesh.paper.reference_formulas import ReferenceADMM
from elmesh.run import run_local
from elmesh.solvers.base import Solution
from elmesh.trial_log import Numbers, Trial

__all__ = ["CASES", "GAMMAS", "METHODS", "SIGN_ROUNDS", "STARTS", "START_HIDDEN", "measure_misprint"]

CASES = ("start", "sign", "gamma")
METHODS = ("MTL-ELM", "DMTL-ELM")
ROUNDS, SIGN_ROUNDS, START_HIDDEN = 1000, 200, 100
#: Initialization and rank. In exact arithmetic a start of ones is equivalent to rank one.
STARTS = {"ones": ("ones", 6), "rank one": ("random", 1), "random": ("random", 6)}
# Ratio of the second singular value of U to the first, up to which U counts as of rank one.
RANK_ONE = 1e-2
GAMMAS = ("paper", "auto")
PANEL = PANELS["a"]


def measure_misprint(
    trial: Trial, rounds: int = ROUNDS, sign_rounds: int = SIGN_ROUNDS, start_hidden: int = START_HIDDEN
) -> Numbers:
    """Run one misprint and its correction."""
    if trial.case == "start":
        return _measure_start(trial, start_hidden)
    return _measure_sign(trial, sign_rounds) if trial.case == "sign" else _measure_gamma(trial, rounds)


def _measure_start(trial: Trial, n_hidden: int) -> Numbers:
    """Record the second singular value of U relative to the first, from each start, on the bundled digits.

    From ones all columns of U have the same update, so in exact arithmetic the problem is that of rank one. The setting
    of Fig. 3 would not show it: its penalty allows only one direction from any start.
    """
    data, split = DATASETS["digits"], draw_tasks("digits", trial.seed)
    numbers: Numbers = {}
    for start, (init, rank) in STARTS.items():
        for title in METHODS:
            method = paper_methods(data, init=init)[title]
            method.solver.set_params(rank=rank)
            states: list[Solution] = []
            _, own = fit_and_test(method, split, n_hidden, trial.seed, record_rounds(states))
            ratios = [_singular_value_ratio(state) for state in states]
            numbers[f"{title}, {start}"] = {
                "second": ratios if trial.run == 0 else [],
                # First iteration at which U is not of rank one for practical purposes.
                "broken": next((k for k, ratio in enumerate(ratios) if ratio > RANK_ONE), None),
                "error": own["error"],
            }
    return numbers


def _singular_value_ratio(state: Solution) -> float:
    U = np.asarray(state.U)
    values = np.linalg.svd(U if U.ndim == 2 else U.mean(axis=0), compute_uv=False)
    return float(values[1] / values[0]) if len(values) > 1 else 0.0


def _measure_sign(trial: Trial, rounds: int) -> Numbers:
    """Run Algorithm 2 with the printed update of the multiplier, and with the sign that matches (13)."""
    H, T = make_problem(PANEL, trial.seed)
    rng = np.random.default_rng(trial.seed)
    U = np.broadcast_to(rng.uniform(-1, 1, (PANEL.L, RANK)), (AGENTS, PANEL.L, RANK))
    A = rng.uniform(-1, 1, (AGENTS, RANK, 1))
    edges = [(int(i), int(j)) for i, j in ring().edges]
    # The prox-linear P_t = tau I - rho d_t I with tau = 1 + d_t.
    P = np.asarray(PANEL.weight + (1 - RHO) * ring().degree, dtype=np.float64)
    Q = np.full(AGENTS, float(PANEL.weight))
    numbers: Numbers = {}
    for name, printed_sign in (("as printed", True), ("ascent", False)):
        agents = ReferenceADMM(H, T, edges, U, A, PENALTY, PENALTY, RHO, P, Q, printed_sign=printed_sign)
        values = [agents.objective()]
        for _ in range(rounds):
            agents.step()
            values.append(agents.objective())
        numbers[name] = {"objective": values if trial.run == 0 else values[-1:]}
    return numbers


def _measure_gamma(trial: Trial, rounds: int) -> Numbers:
    """Record the consensus gap with the paper's rule for gamma and with gamma = 1."""
    task = stack_tasks(*make_problem(PANEL, trial.seed))
    numbers: Numbers = {}
    for gamma in GAMMAS:
        solver, _ = decentralized(PANEL, rounds, gamma=gamma)
        gaps = run_local(solver, task, ring(), trial.seed).history["consensus_gap"].tolist()
        numbers[gamma] = {"gap": gaps if trial.run == 0 else gaps[-1:]}
    return numbers
