"""Figs. 5 and 6 and Table 1: test error, traffic and running time of the eight methods on digits, and the leak.

With independent draws a test row of a task can be a training row of another task, and so part of what that task sends.
:func:`measure_leak` compares the errors on such rows with those on other rows, and with the errors on the same test
rows when no task trains on them.

Two further experiments measure what the paper leaves open. Each variant of the protocol changes one choice. The paper
gives the parameters of its rivals in the notation of other papers, and not their rank. So that no method loses because
of a wrong interpretation, Table 1 also contains the methods with parameters chosen by cross-validation on training
rows.
"""

from __future__ import annotations

import math
import time
import timeit
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np
from sklearn.model_selection import StratifiedKFold

from elmesh.datasets import TaskSplit
from elmesh.math.objective import objective_of_U
from elmesh.paper import methods, protocol
from elmesh.paper.methods import RIVALS, Method, Parameters, error_of, fit_and_test, paper_methods
from elmesh.paper.protocol import (
    DATASETS,
    DEFAULT_VARIANT,
    INDEPENDENT,
    NO_LEAK,
    PROTOCOLS,
    SCALINGS,
    Dataset,
    ProtocolVariant,
    draw_rows,
    draw_tasks,
    load_rows,
    missing_reason,
    parse_case,
)
from elmesh.paper.reference_formulas import ReferenceADMM, alternating_step
from elmesh.trial_log import Numbers, Trial
from elmesh.typing import FloatArray

__all__ = [
    "FIG5_HIDDEN", "FIG6_HIDDEN", "FIG6_ROUNDS", "FOLDS", "FORMULA_ROUNDS", "FORMULA_RUNS", "GRIDS", "PROPOSED",
    "SPECTRAL_ROUNDS", "VARIANT_METHODS", "format_parameters", "measure_fig5", "measure_fig6", "measure_leak",
    "measure_table1", "measure_tuning", "measure_variants", "paper_ratio", "variants_of",
]  # fmt: skip

#: The methods that the paper proposes.
PROPOSED = ("MTL-ELM", "DMTL-ELM", "FO-DMTL-ELM")
#: Hidden units of Table 1, of Fig. 5 and of Fig. 6.
TABLE_HIDDEN, FIG5_HIDDEN, FIG6_HIDDEN = 300, (50, 100, 150, 200, 250, 300), (100, 150, 200, 250, 300)
#: Rounds of Fig. 6. The spectral start needs far fewer.
FIG6_ROUNDS, SPECTRAL_ROUNDS = (25, 50, 100), (1, 2, 5, 10, 25)
#: The paper's formulas are timed in the first runs only, for a few rounds; times are scaled to all rounds.
FORMULA_RUNS, FORMULA_ROUNDS = 10, 2
#: The methods whose errors are compared between variants.
VARIANT_METHODS = ("Local ELM", "DMTL-ELM", "FO-DMTL-ELM", "DNSP")
FOLDS = 3
GRIDS: dict[str, Sequence[Parameters]] = {
    "Local ELM": [{"mu": mu} for mu in (0.3, 1.0, 3.0, 10.0, 30.0, 100.0)],
    "MTFL": [{"mu": mu, "eps": eps} for mu in (0.1, 0.3, 1.0, 3.0, 10.0) for eps in (1e-4, 1e-3, 0.01, 0.1)],
    # Only one combination of its two penalties matters, because a factor can move from the basis to the codes.
    "GO-MTL": [{"rank": rank, "mu2": mu2} for rank in (6, 10, 15, 20) for mu2 in (0.3, 1.0, 3.0, 10.0, 30.0)],
    "DGSP": [{"rank": rank, "mu": mu} for rank in (6, 10, 15, 20, 25) for mu in (1.0, 10.0, 30.0, 100.0)],
    "DNSP": [{"rank": rank, "mu": mu} for rank in (3, 6, 10, 15, 20) for mu in (1.0, 10.0, 30.0, 100.0)],
    "DMTL-ELM": [{"rank": rank, "mu1": mu, "mu2": mu} for rank in (6, 10, 15, 20) for mu in (1.0, 3.0, 10.0)],
}


def _draw(trial: Trial) -> tuple[Dataset, ProtocolVariant, TaskSplit]:
    """Return the data set, the protocol and the tasks of a trial."""
    name, protocol_name = parse_case(trial.case)
    variant = PROTOCOLS[protocol_name]
    return DATASETS[name], variant, draw_tasks(name, trial.seed, variant)


def measure_fig5(trial: Trial, hidden: Sequence[int] = FIG5_HIDDEN) -> Numbers:
    """Test the methods on one draw: those on the inputs once, those on the hidden layer for every size.

    Methods on the inputs also have the parameters chosen by cross-validation.
    """
    data, variant, split = _draw(trial)
    own = paper_methods(data, variant, methods.FIGURE_WEIGHTS)
    chosen = methods.tuned_methods(parse_case(trial.case)[0])
    own |= {title: method for title, method in chosen.items() if not method.hidden}
    return {
        title: [error_of(method, split, L, trial.seed) for L in hidden]
        if method.hidden
        else error_of(method, split, hidden[-1], trial.seed)
        for title, method in own.items()
    }


def measure_fig6(
    trial: Trial,
    hidden: Sequence[int] = FIG6_HIDDEN,
    rounds: Sequence[int] = FIG6_ROUNDS,
    spectral_rounds: Sequence[int] = SPECTRAL_ROUNDS,
) -> Numbers:
    """Test DNSP once, and DMTL-ELM for every size and number of rounds, on one draw."""
    data, variant, split = _draw(trial)
    numbers: Numbers = {"DNSP": fit_and_test(paper_methods(data, variant)["DNSP"], split, hidden[0], trial.seed)[1]}
    for init, sizes, schedule in (("random", hidden, rounds), ("spectral", hidden[-1:], spectral_rounds)):
        start = replace(variant, init=init)
        dmtl_elm = {
            k: paper_methods(data, start, methods.FIGURE_WEIGHTS, rounds=k)["DMTL-ELM"] for k in schedule
        }  # fmt: skip
        numbers[init] = {
            f"{L}": {f"{k}": fit_and_test(method, split, L, trial.seed)[1] for k, method in dmtl_elm.items()}
            for L in sizes
        }
    return numbers


def paper_ratio(rounds: int, n_hidden: int, n_inputs: int, rank: int = DEFAULT_VARIANT.rank) -> float:
    """Return 2kL / ((r + 1) n), the traffic of DMTL-ELM as a multiple of that of DNSP by the paper's count."""
    return 2 * rounds * n_hidden / ((rank + 1) * n_inputs)


def measure_table1(trial: Trial, n_hidden: int = TABLE_HIDDEN, formula_rounds: int = FORMULA_ROUNDS) -> Numbers:
    """Test every method on one draw, and time the paper's formulas."""
    (data, variant, split), seed = _draw(trial), trial.seed
    own = paper_methods(data, variant)
    chosen = methods.tuned_methods(parse_case(trial.case)[0])
    simple = {title: own[title] for title in ("Local ELM", *RIVALS)} | chosen
    numbers = {title: fit_and_test(method, split, n_hidden, seed)[1] for title, method in simple.items()}
    H, T = protocol.hidden_features(split, n_hidden, seed)
    task, mu = protocol.stack_tasks(H, T), math.sqrt(data.penalty)
    for title in PROPOSED:
        model, tested = fit_and_test(own[title], split, n_hidden, seed)
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
    rank = DEFAULT_VARIANT.rank
    U, A = rng.uniform(-1, 1, (L, rank)) / L, rng.uniform(-1, 1, (m, rank, d))
    star = [(0, t) for t in range(1, m)]
    degree = np.array([m - 1] + [1] * (m - 1))
    weights = methods.TABLE_WEIGHTS
    steps: dict[str, Callable[[], object]] = {"MTL-ELM": lambda: alternating_step(H, T, A, mu, mu)}
    for title, tau in (("DMTL-ELM", weights.tau), ("FO-DMTL-ELM", weights.tau_first_order)):
        steps[title] = ReferenceADMM(
            H, T, star, np.broadcast_to(U, (m, *U.shape)), A, mu, mu, 1.0, P=tau + degree, Q=np.full(m, weights.zeta),
            delta=100.0, first_order=title == "FO-DMTL-ELM",
        ).step  # fmt: skip
    return {title: timeit.timeit(step, timer=time.process_time, number=rounds) for title, step in steps.items()}


def measure_leak(trial: Trial, n_hidden: int = TABLE_HIDDEN) -> Numbers:
    """Test four methods on the same test rows of one draw, with and without the leak.

    With it, errors are also those of the rows that are training rows of another task, "seen", and of the others,
    "unseen". ``shares`` are the shares of seen rows among the test rows of every task.
    """
    (name, protocol_name), seed = parse_case(trial.case), trial.seed
    variant = PROTOCOLS[protocol_name]
    in_train, in_test = draw_rows(load_rows(name, variant.source).y, seed, INDEPENDENT)
    # A task's own training rows are never among its test rows.
    seen = np.isin(in_test, in_train)
    numbers: Numbers = {"shares": seen.mean(axis=1).tolist(), INDEPENDENT: {}, NO_LEAK: {}}
    own = paper_methods(DATASETS[name], variant)
    for drawing in (INDEPENDENT, NO_LEAK):
        split = draw_tasks(name, seed, replace(variant, drawing=drawing))
        for title in VARIANT_METHODS:
            model, tested = fit_and_test(own[title], split, n_hidden, seed)
            wrong = 100.0 * (model.predict(split.X_test, tasks=split.tasks_test) != split.y_test).reshape(seen.shape)
            numbers[drawing][title] = {"all": tested["error"]}
            if drawing == INDEPENDENT:
                numbers[drawing][title] |= {"seen": float(wrong[seen].mean()), "unseen": float(wrong[~seen].mean())}
    return numbers


def variants_of(protocol_name: str) -> dict[str, ProtocolVariant]:
    """Return the variants of a protocol, itself first, each with one choice changed; the release has all protocols."""
    own = PROTOCOLS[protocol_name]
    return {
        **(PROTOCOLS if protocol_name == INDEPENDENT else {protocol_name: own}),
        **{name: replace(own, scaling=name) for name in SCALINGS if name != own.scaling},
        "rank 3": replace(own, rank=3),
        "rank 10": replace(own, rank=10),
        "printed start": replace(own, init="ones"),
        f"rivals {'without' if own.rivals_intercept else 'with'} intercept": replace(
            own, rivals_intercept=not own.rivals_intercept
        ),
    }


def measure_variants(trial: Trial, n_hidden: int = TABLE_HIDDEN) -> Numbers:
    """Test four methods on one draw in every variant whose data are available."""
    numbers: Numbers = {}
    name, protocol_name = parse_case(trial.case)
    for title, variant in variants_of(protocol_name).items():
        if not missing_reason(name, variant.source):
            split, own = draw_tasks(name, trial.seed, variant), paper_methods(DATASETS[name], variant)
            numbers[title] = {method: error_of(own[method], split, n_hidden, trial.seed) for method in VARIANT_METHODS}
    return numbers


def measure_tuning(
    trial: Trial, n_hidden: int = TABLE_HIDDEN, grids: Mapping[str, Sequence[Parameters]] = GRIDS
) -> Numbers:
    """Return the cross-validation error of every point of every grid on the training rows of one draw."""
    data, _, split = _draw(trial)
    return {
        title: {
            format_parameters(point): _validation_error(
                methods.method_with(title, data, point), split, n_hidden, trial.seed
            )
            for point in grid
        }
        for title, grid in grids.items()
    }


def _validation_error(method: Method, split: TaskSplit, n_hidden: int, seed: int) -> float:
    X, y, tasks = split.X_train, split.y_train, split.tasks_train
    folds = StratifiedKFold(FOLDS, shuffle=True, random_state=seed % 2**32).split(X, np.char.add(tasks, y.astype(str)))
    parts = [TaskSplit(X[a], y[a], tasks[a], X[b], y[b], tasks[b]) for a, b in folds]
    return float(np.mean([error_of(method, part, n_hidden, seed) for part in parts]))


def format_parameters(parameters: Parameters) -> str:
    """Return the name of a point of a grid.

    >>> format_parameters({"rank": 6, "mu": 0.1})
    'rank = 6, mu = 0.1'
    """
    return ", ".join(f"{name} = {value:g}" for name, value in parameters.items())
