"""Three things that do not work as printed, each put back to see what it does: the start, a sign, the rule for gamma.

The last two in setting (a) of the convergence experiments, where everything is small enough to be run literally.
"""

from __future__ import annotations

from functools import partial

import numpy as np

from elmesh.paper import methods
from elmesh.paper.convergence import AGENTS, DELTA, PANELS, PENALTY, RANK, RHO, decentralised, problem, ring, run
from elmesh.paper.printed import Agents
from elmesh.paper.protocol import DATA_SETS, draw
from elmesh.paper.trials import Numbers, Trial, repeat
from elmesh.run import Progress, watch

__all__ = ["CASES", "GAMMAS", "RANK_ONE", "SIGN_ROUNDS", "STARTS", "START_HIDDEN", "measure", "trials"]

NAME = "misprints"
CASES = ("start", "sign", "gamma")
ROUNDS = 1000
SIGN_ROUNDS = 200
#: Start and rank of each; in exact arithmetic ones are of rank one.
STARTS = {"ones": ("ones", 6), "rank one": ("random", 1), "random": ("random", 6)}
START_HIDDEN = 100
#: Share of the second singular value below which U counts as of rank one.
RANK_ONE = 1e-2
GAMMAS = ("paper", "auto")
_PANEL = PANELS["a"]


def trials(runs: int, seed: int) -> list[Trial]:
    """Return the three in every run."""
    return repeat(NAME, CASES, runs, seed)


def measure(trial: Trial) -> Numbers:
    """Put one misprint back, beside what is used in its place."""
    return {"start": _start, "sign": _sign, "gamma": _gamma}[trial.case](trial)


def _start(trial: Trial) -> Numbers:
    """Follow the second singular value of U, as a share of the first, from each start, on the bundled digits.

    From ones all columns of U get the same update, so in exact arithmetic the problem is the one of rank one, whatever
    the rank asked for; that is run too. (Not in the convergence setting: there the penalty leaves room for one
    direction only, whatever the start.)
    """
    data, split = DATA_SETS["digits"], draw("digits", trial.seed)
    numbers: Numbers = {}
    for start, (init, rank) in STARTS.items():
        central = methods.central(data, init=init)
        graph, _ = methods.graph_methods(data, methods.TABLE_WEIGHTS, init=init)
        for method in (central, graph):
            method.solver.set_params(rank=rank)
            shares: list[float] = []
            with watch(partial(_note_share, shares)):
                model, seconds = methods.fit(method, split, START_HIDDEN, trial.seed)
            numbers[f"{method.title}, {start}"] = {
                "second": shares if trial.run == 0 else [],
                # Iterations until U is no longer of rank one for practical purposes.
                "broken": next((k for k, share in enumerate(shares) if share > RANK_ONE), None),
                "error": methods.test(model, seconds, split)["error"],
            }
    return numbers


def _note_share(shares: list[float], progress: Progress) -> None:
    if progress.state is not None:
        U = np.asarray(progress.state.U)
        values = np.linalg.svd(U if U.ndim == 2 else U.mean(axis=0), compute_uv=False)
        shares.append(float(values[1] / values[0]) if len(values) > 1 else 0.0)


def _sign(trial: Trial) -> Numbers:
    """Run Algorithm 2 literally, with the multiplier's update as printed and with the sign that goes with (13)."""
    H, T, _ = problem(_PANEL, trial.seed)
    rng = np.random.default_rng(trial.seed)
    U = np.broadcast_to(rng.uniform(-1, 1, (_PANEL.L, RANK)), (AGENTS, _PANEL.L, RANK))
    A = rng.uniform(-1, 1, (AGENTS, RANK, 1))
    topology = ring()
    edges = [(int(i), int(j)) for i, j in topology.edges]
    # The prox-linear P_t = tau I - rho d_t I with tau = 1 + d_t.
    P, Q = (
        np.asarray(_PANEL.weight + (1 - RHO) * topology.degree, dtype=np.float64),
        np.full(AGENTS, float(_PANEL.weight)),
    )
    numbers: Numbers = {}
    for name, as_printed in (("as printed", True), ("ascent", False)):
        agents = Agents(H, T, edges, U, A, PENALTY, PENALTY, RHO, P, Q, delta=None, as_printed=as_printed)
        values = [agents.objective()]
        for _ in range(SIGN_ROUNDS):
            agents.step()
            values.append(agents.objective())
        numbers[name] = {"objective": values if trial.run == 0 else values[-1:]}
    return numbers


def _gamma(trial: Trial) -> Numbers:
    """Follow how far agents are apart, with the paper's rule for gamma and with gamma = 1."""
    _, _, task = problem(_PANEL, trial.seed)
    numbers: Numbers = {}
    for gamma in GAMMAS:
        solver, _ = decentralised(_PANEL, ROUNDS, gamma=gamma, delta=DELTA)
        gaps = run(solver, task, trial.seed).history["consensus_gap"].tolist()
        numbers[gamma] = {"gap": gaps if trial.run == 0 else gaps[-1:]}
    return numbers
