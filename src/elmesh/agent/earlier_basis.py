"""The basis of an agent's earlier model, from which a further run of the same network starts.

With ``exchange = "basis"`` a run takes the rounds that the network file states. From the U of an earlier run, whose
rows were nearly those of now, it comes closer to the optimum in them than from the common seed. It is a start and
nothing else: agents that have none, or another one, still come to agree.
"""

from __future__ import annotations

import numpy as np

from elmesh.errors import ElmeshError
from elmesh.estimators.classifier import MultiTaskELMClassifier
from elmesh.estimators.loading import load
from elmesh.estimators.regressor import MultiTaskELMRegressor
from elmesh.typing import FloatArray, StrPath

__all__ = ["earlier_basis"]

_FEATURES = ("n_hidden", "activation", "weight_scale", "fit_intercept", "random_state")


def earlier_basis(
    path: StrPath, estimator: MultiTaskELMClassifier | MultiTaskELMRegressor, n_inputs: int, rank: int
) -> FloatArray | None:
    """Return U of a saved model of one task; None if its features or its rank are not those of a new fit."""
    try:
        earlier = load(path)
    except (ElmeshError, OSError):
        return None
    heads = list(earlier.model_.heads.values())
    before, now = earlier.get_params(deep=False), estimator.get_params(deep=False)
    same = all(before[name] == now[name] for name in _FEATURES) and earlier.model_.layer.n_inputs == n_inputs
    U = heads[0].U if len(heads) == 1 else None
    return np.asarray(U) if same and U is not None and U.shape[1] == rank else None
