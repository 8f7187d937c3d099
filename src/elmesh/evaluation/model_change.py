r"""Whether a new version of a model is better than the former one, on rows that came in between.

The former model predicts the new rows before it has seen them. The new model has learned from them; so it predicts each
fifth of them after it has forgotten that fifth. Both are then judged by rows that they have not seen, with one
exception: what sites have in common was learned from all rows and stays, which favours the new model slightly.

With losses :math:`l_i` of the former and :math:`l'_i` of the new model, :math:`d_i = l_i - l'_i` has the mean
:math:`\bar d` and the standard error :math:`\sqrt{\sum_i (d_i - \bar d)^2 / n (n - 1)}`; a change of more than two
standard errors is clear. The loss is the squared error or, of classes, the Brier score.
"""

from __future__ import annotations

import copy
import math
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import pandas as pd

from elmesh.text import count
from elmesh.typing import FloatArray

__all__ = ["ModelChange", "compare_models"]

_FOLDS = 5
# Standard errors beyond which a change is clear, and rows below which none is.
_CLEAR, _FEWEST = 2.0, 10


@dataclass(frozen=True)
class ModelChange:
    """Mean losses of the former and the new model on new rows, and their difference.

    Parameters
    ----------
    measure : str
        What the loss is.
    rows : int
        Number of new rows.
    former, new : float
        Mean losses.
    better, error : float
        By how much the mean loss fell, and the paired standard error of that.
    """

    measure: str
    rows: int
    former: float
    new: float
    better: float
    error: float

    @property
    def clearly(self) -> bool:
        """Whether the change is more than chance."""
        return self.rows >= _FEWEST and abs(self.better) > _CLEAR * self.error

    @property
    def is_worse(self) -> bool:
        """Whether the new model is clearly worse."""
        return self.clearly and self.better < 0

    def sentence(self) -> str:
        """Return the change in words."""
        verdict = "better" if self.better > 0 else "worse" if self.better < 0 else "equal"
        by = "" if verdict == "equal" else f" by {abs(self.better):.3g} ± {self.error:.2g}"
        unclear = "" if self.clearly else ", which may be chance"
        return (
            f"On {count(self.rows, 'new row')} the new model is {verdict}{by}{unclear}: {self.measure} "
            f"{self.former:.4g} before, {self.new:.4g} now."
        )

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON."""
        return {**asdict(self), "clearly": self.clearly, "worse": self.is_worse}


def compare_models(former: Any, new: Any, rows: pd.DataFrame, y: Any, tasks: Any) -> ModelChange | None:
    """Compare two models of a site on rows that only the new one was learned from; None if there are none.

    Parameters
    ----------
    former, new : estimators
        Fitted on tables; ``new`` has statistics of the rows, and a common part.
    rows, y, tasks
        The new rows, their targets and their tasks.
    """
    n = len(rows)
    if not n:
        return None
    y, tasks = np.asarray(y), np.asarray(tasks)
    before, after = _losses(former, rows, y, tasks), np.empty(n)
    folds = min(_FOLDS, n)
    for k in range(folds):
        part = np.arange(n) % folds == k
        # forget() replaces what it changes, so that a shallow copy leaves the model itself as it is.
        without = copy.copy(new).forget(rows[part], y[part], tasks=tasks[part])
        after[part] = _losses(without, rows[part], y[part], tasks[part])
    difference = before - after
    error = float(difference.std(ddof=1) / math.sqrt(n)) if n > 1 else math.inf
    measure = "Brier score" if hasattr(new, "predict_proba") else "mean squared error"
    return ModelChange(measure, n, float(before.mean()), float(after.mean()), float(difference.mean()), error)


def _losses(model: Any, rows: pd.DataFrame, y: Any, tasks: Any) -> FloatArray:
    """Return the loss of each row: the squared error, or the Brier score."""
    if hasattr(model, "predict_proba"):
        wanted = (y[:, None] == model.classes_).astype(np.float64)
        miss = model.predict_proba(rows, tasks=tasks) - wanted
    else:
        miss = model.predict(rows, tasks=tasks) - y
    squares: FloatArray = (np.asarray(miss, dtype=np.float64) ** 2).reshape(len(rows), -1).sum(axis=1)
    return squares
