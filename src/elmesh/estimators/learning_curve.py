"""How many rows a new site needs: its error on further rows, after more and more of its own.

Nothing is fitted again but the site's own part. Without any row it has the common part alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from elmesh.data.features import FeatureMap
from elmesh.data.statistics import SiteRows
from elmesh.errors import ElmeshError
from elmesh.estimators.common import NO_COMMON_PART
from elmesh.estimators.gains import OF_SEVERAL, OF_TARGET, WRONG
from elmesh.estimators.model import MultiTaskModel
from elmesh.typing import FloatArray

__all__ = ["LearningCurve", "measure_curve"]

# Numbers of rows to learn from, and how often rows are drawn.
_SIZES = (0, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000)
_DRAWS = 20
# Fewest rows, of which half are predicted; an error within this share of the least has settled.
_FEWEST, _SETTLED = 4, 0.05


@dataclass(frozen=True)
class LearningCurve:
    """The error of a site on further rows, by the number of rows it has learned from; ``unit`` is that of the error."""

    rows: tuple[int, ...]
    errors: tuple[float, ...]
    deviations: tuple[float, ...]  # standard errors over the draws
    unit: str

    @property
    def table(self) -> pd.DataFrame:
        """The numbers, a line per number of rows."""
        return pd.DataFrame({"rows": self.rows, "error": self.errors, "standard_error": self.deviations})

    def sentence(self) -> str:
        """Return how many rows the site needs.

        Examples
        --------
        >>> LearningCurve((0, 5, 10, 20), (2.0, 1.2, 1.01, 1.0), (0.1,) * 4, "").sentence()
        'With 10 rows the error is within 5 % of that with 20: further rows change little.'
        >>> LearningCurve((0, 5, 10, 20), (2.0, 1.5, 1.2, 1.0), (0.1,) * 4, "").sentence()
        'The error still falls with 20 rows: more of them will help.'
        """
        last = self.errors[-1]
        enough = next(n for n, error in zip(self.rows, self.errors, strict=True) if error <= (1 + _SETTLED) * last)
        if enough == self.rows[-1]:
            return f"The error still falls with {enough} rows: more of them will help."
        if enough == 0:
            return "Its own rows do not lower the error yet: what all sites have in common predicts this site as well."
        return (
            f"With {enough} rows the error is within {100 * _SETTLED:.0f} % of that with {self.rows[-1]}: further rows "
            "change little."
        )

    def to_json(self) -> dict[str, Any]:
        """Return all numbers, and the sentence."""
        lines = zip(self.rows, self.errors, self.deviations, strict=True)
        points = [{"rows": n, "error": error, "standard_error": deviation} for n, error, deviation in lines]
        return {"unit": self.unit, "points": points, "sentence": self.sentence()}


def measure_curve(model: MultiTaskModel, X: FloatArray, T: FloatArray, truth: FloatArray) -> LearningCurve:
    """Return the learning curve of a site from its rows, each drawn for learning or for prediction.

    ``T`` is what is learned from, and ``truth`` what predictions are compared with: both less the common mean.
    """
    common, layer = model.common, model.layer
    if common is None or not isinstance(layer, FeatureMap):
        raise ElmeshError(NO_COMMON_PART)
    n, Phi = len(X), layer(X)
    if n < _FEWEST:
        raise ElmeshError(f"A learning curve needs at least {_FEWEST} rows, and there are {n}.")
    sizes = [size for size in _SIZES if size <= n // 2]
    several = model.kind == "regression" and T.shape[1] > 1
    scale = np.where((spread := np.std(truth, axis=0)) > 0, spread, 1.0) if several else np.ones(T.shape[1])
    losses, rng = np.zeros((len(sizes), _DRAWS)), np.random.default_rng(0)
    for draw in range(_DRAWS):
        order = rng.permutation(n)
        new = order[n // 2 :]
        for k, size in enumerate(sizes):
            own = order[:size]
            head = common.head(SiteRows.from_rows(Phi[own], T[own]), layer.groups) if size else common
            scores = head.scores(Phi[new])
            if model.kind == "classification":
                losses[k, draw] = np.mean(np.argmax(scores, axis=1) != np.argmax(truth[new], axis=1))
            else:
                losses[k, draw] = np.sqrt(np.mean(((scores - common.t_mean - truth[new]) / scale) ** 2))
    unit = WRONG if model.kind == "classification" else OF_SEVERAL if several else OF_TARGET
    deviations = np.std(losses, axis=1, ddof=1) / np.sqrt(_DRAWS)
    return LearningCurve(tuple(sizes), tuple(losses.mean(axis=1).tolist()), tuple(deviations.tolist()), unit)
