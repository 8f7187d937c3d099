"""The effect of what the paper leaves open, and parameters chosen by cross-validation.

Each variant changes one of: the pool of rows, the scaling, PCA, the rank, an intercept. The paper gives the parameters
of its rivals in the notation of other papers, and not their rank. So that no method loses because of a wrong
interpretation, Table 1 also contains the methods with parameters chosen on training rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
from sklearn.model_selection import StratifiedKFold

from elmesh.datasets import TaskSplit
from elmesh.paper.classification import TABLE_HIDDEN
from elmesh.paper.methods import Method, Parameters, error_of, method_with, paper_methods
from elmesh.paper.protocol import DATASETS, DEFAULT_VARIANT, SCALINGS, ProtocolVariant, draw_tasks
from elmesh.paper.trials import Numbers, Trial

__all__ = [
    "BASELINE", "FOLDS", "GRIDS", "METHODS", "VARIANTS", "format_parameters", "measure_tuning", "measure_variants",
]  # fmt: skip

#: The methods whose errors are compared between variants.
METHODS = ("Local ELM", "DMTL-ELM", "FO-DMTL-ELM", "DNSP")
BASELINE = "as read"
VARIANTS: dict[str, ProtocolVariant] = {
    BASELINE: DEFAULT_VARIANT,
    "rows from all of USPS": replace(DEFAULT_VARIANT, pool="all"),
    "PCA on test rows too": replace(DEFAULT_VARIANT, pca_rows="all"),
    **{name: replace(DEFAULT_VARIANT, scaling=name) for name in SCALINGS if name != DEFAULT_VARIANT.scaling},
    "rank 3": replace(DEFAULT_VARIANT, rank=3),
    "rank 10": replace(DEFAULT_VARIANT, rank=10),
    "rivals without intercept": replace(DEFAULT_VARIANT, rivals_intercept=False),
}
FOLDS = 3
GRIDS: dict[str, Sequence[Parameters]] = {
    "Local ELM": [{"mu": mu} for mu in (0.3, 1.0, 3.0, 10.0, 30.0, 100.0)],
    "MTFL": [{"mu": mu, "eps": eps} for mu in (0.1, 0.3, 1.0, 3.0, 10.0) for eps in (0.001, 0.01, 0.1)],
    # Only one combination of its two penalties matters, because a factor can move from the basis to the codes.
    "GO-MTL": [{"rank": rank, "mu2": mu2} for rank in (6, 10, 15) for mu2 in (3.0, 10.0, 30.0)],
    "DGSP": [{"rank": rank, "mu": mu} for rank in (6, 10, 15, 20, 25) for mu in (1.0, 10.0, 30.0, 100.0)],
    "DNSP": [{"rank": rank, "mu": mu} for rank in (3, 6, 10, 15, 20) for mu in (1.0, 10.0, 30.0, 100.0)],
    "DMTL-ELM": [{"rank": rank, "mu1": mu, "mu2": mu} for rank in (6, 10, 15, 20) for mu in (1.0, 3.0, 10.0)],
}


def measure_variants(trial: Trial, n_hidden: int = TABLE_HIDDEN) -> Numbers:
    """Test four methods on one draw in every variant that applies to the data set."""
    numbers: Numbers = {}
    for name, variant in VARIANTS.items():
        if variant.pool == DEFAULT_VARIANT.pool or trial.case == "usps":
            # Methods that a variant does not affect are not run again.
            numbers[name] = numbers.get(BASELINE, {}) | _variant_errors(trial, variant, n_hidden)
    return numbers


def _variant_errors(trial: Trial, variant: ProtocolVariant, n_hidden: int) -> Numbers:
    data, split = DATASETS[trial.case], draw_tasks(trial.case, trial.seed, variant)
    errors: Numbers = {}
    for title in METHODS if variant.rivals_intercept else ("DNSP",):
        method = paper_methods(data)[title]
        if title == "DNSP":
            method = replace(method, intercept=variant.rivals_intercept)
        if "rank" in method.solver.get_params():
            method.solver.set_params(rank=variant.rank)
        errors[title] = error_of(method, split, n_hidden, trial.seed)
    return errors


def measure_tuning(
    trial: Trial, n_hidden: int = TABLE_HIDDEN, grids: Mapping[str, Sequence[Parameters]] = GRIDS
) -> Numbers:
    """Return the cross-validation error of every point of every grid on the training rows of one draw."""
    data, split = DATASETS[trial.case], draw_tasks(trial.case, trial.seed)
    return {
        title: {
            format_parameters(point): _validation_error(method_with(title, data, point), split, n_hidden, trial.seed)
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
