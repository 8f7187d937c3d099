"""The arrays of a fit with a common, a shared and a private part, to be compared bit by bit."""

from __future__ import annotations

from typing import Any

import numpy as np


def found_parts(model: Any) -> dict[str, np.ndarray]:
    """Return what is the same in all processes: W, U, the variances and the history."""
    history = model.history_[["round", "objective", "dual_residual", "exchanges", "bytes"]].to_numpy(dtype=float)
    certificate = np.array([model.certificate_.gap])
    variances = model.variances_.to_numpy()
    return {"W": model.W_, "U": model.U_, "variances": variances, "history": history, "certificate": certificate}


def gathered_parts(model: Any, X: np.ndarray, sites: np.ndarray) -> dict[str, np.ndarray]:
    """Return predictions of a model of all sites, for these and for one that it does not know."""
    unknown = np.full(len(X), "elsewhere")
    if hasattr(model, "classes_"):
        classes = model.classes_.tolist()
        found = {"proba": model.predict_proba(X, sites), "unknown": model.predict_proba(X, [*unknown[1:], sites[0]])}
        return found | {"classes": np.array([len(name) for name in classes])}
    predicted, std = model.predict(X, sites, return_std=True)
    elsewhere = model.predict(X, [*unknown[1:], sites[0]])
    return {"predicted": predicted, "std": std, "unknown": elsewhere}
