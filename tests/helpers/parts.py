"""The arrays of a fit with a common, a shared and a private part, to be compared bit by bit."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from elmesh.privacy.discrete_gaussian import NoiseSource


def found_parts(model: Any) -> dict[str, np.ndarray]:
    """Return what is the same in all processes: W, U, the variances and the history."""
    history = model.history_[["round", "objective", "dual_residual", "exchanges", "bytes"]].to_numpy(dtype=float)
    found = {"W": model.W_, "U": model.U_, "history": history}
    if model.privacy_ is not None:
        # Every site has private variances of its own.
        return found | {"epsilon": np.array([model.privacy_.epsilon])}
    return found | {"variances": model.variances_.to_numpy(), "certificate": np.array([model.certificate_.gap])}


@contextmanager
def known_noise() -> Iterator[None]:
    """Draw the same noise in every fit inside, wherever it runs."""
    fresh = NoiseSource.fresh
    NoiseSource.fresh = classmethod(lambda cls: cls(b"1" * 32))
    try:
        yield
    finally:
        NoiseSource.fresh = fresh


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
