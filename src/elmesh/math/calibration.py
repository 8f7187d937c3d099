"""From scores to probabilities: a softmax with one temperature per task, fitted on leave-one-out scores."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import scipy.linalg
from scipy.optimize import minimize_scalar
from scipy.special import log_softmax

from elmesh.typing import FloatArray

__all__ = [
    "fit_temperature",
    "leave_one_out",
    "leave_one_out_lasso",
    "leave_one_out_ridge",
    "log_losses",
    "probabilities",
    "ridge_path_left_out",
]


# Scores live on the scale of 0/1 targets; outside this range probabilities are all equal or all 0 and 1.
_SHARPEST, _DULLEST = 1e-2, 1e1
# Singular values below this share of the largest belong to features that depend on others.
_DEPENDENT = 1e-10
# Least probability in a log loss: a class that a site never had is a large error, not an infinite one.
_LEAST_PROBABILITY = 1e-3


def probabilities(scores: FloatArray, temperature: float | None) -> FloatArray:
    """Return the softmax of scores divided by the temperature."""
    shares: FloatArray = np.exp(log_softmax(scores / (temperature or 1.0), axis=1))
    return shares


def log_losses(of_truth: FloatArray) -> FloatArray:
    """Return the log loss of each row from the probability of its true class, which counts as at least 0.001."""
    return -np.log(np.maximum(of_truth, _LEAST_PROBABILITY))


def leave_one_out_ridge(
    features: FloatArray,
    scores: FloatArray,
    targets: FloatArray,
    penalty: float,
    intercept: bool,
    weights: FloatArray | None = None,
) -> FloatArray:
    r"""Return the score of each row by a ridge regression without it.

    With leverage :math:`h_i = z_i'(Z'Z + \mu I)^{-1}z_i` (plus 1/N for an intercept), the residual becomes
    :math:`e_i/(1-h_i)`. This is exact for centred features and the scores of the ridge regression itself, and includes
    the change of the means; for coefficients that have not quite converged it is approximate. With ``weights`` rows
    count so many times, and one copy is left out.
    """
    w = np.ones(len(features)) if weights is None else weights
    Z = np.sqrt(w)[:, None] * features
    gram = Z @ Z.T if Z.shape[0] < Z.shape[1] else Z.T @ Z
    values, vectors = scipy.linalg.eigh(gram)
    values = np.maximum(values, 0.0)
    if Z.shape[0] < Z.shape[1]:
        leverage = (vectors**2) @ (values / (values + penalty)) / w
    else:
        leverage = ((features @ vectors) ** 2) @ (1.0 / (values + penalty))
    return _without_themselves(scores, targets, leverage[:, None], w, intercept)


def ridge_path_left_out(
    H: FloatArray, T: FloatArray, penalties: Sequence[float], intercept: bool, weights: FloatArray
) -> FloatArray:
    r"""Return predictions of rows by ridge regressions without them, of shape (penalties, n, d).

    One decomposition of the centred features, :math:`H = P\,\mathrm{diag}(s)\,V'`, serves all penalties: leverages are
    :math:`\sum_k P_{ik}^2 s_k^2/(s_k^2+\mu)`. Rows count as often as ``weights`` state, and one copy is left out.

    Examples
    --------
    >>> ridge_path_left_out(np.zeros((3, 1)), np.array([[1.0], [2.0], [6.0]]), [1.0], True, np.ones(3)).ravel()
    array([4. , 3.5, 1.5])
    """
    root = np.sqrt(weights)[:, None]
    h, t = (np.average(values, axis=0, weights=weights) if intercept else 0.0 for values in (H, T))
    P, s, _ = np.linalg.svd(root * (H - h), full_matrices=False)
    PT, found = P.T @ (root * (T - t)), []
    for mu in penalties:
        shrunk = s**2 / (s**2 + mu)
        scores, leverage = P @ (shrunk[:, None] * PT) / root + t, (P**2 @ shrunk / weights)[:, None]
        found.append(_without_themselves(scores, T, leverage, weights, intercept))
    return np.stack(found)


def _without_themselves(
    scores: FloatArray, targets: FloatArray, leverage: FloatArray, weights: FloatArray, intercept: bool
) -> FloatArray:
    """Return scores of rows left out, from their scores and leverages (one column, or one per output)."""
    leverage = leverage + (1.0 / weights.sum() if intercept else 0.0)
    return np.asarray(
        targets - (targets - scores) / np.maximum(1.0 - np.minimum(weights, 1.0)[:, None] * leverage, 1e-6)
    )


def leave_one_out_lasso(
    features: FloatArray,
    A: FloatArray,
    scores: FloatArray,
    targets: FloatArray,
    intercept: bool,
    weights: FloatArray | None = None,
) -> FloatArray:
    r"""Return the score of each row by a Lasso without it, for a given set of features in use.

    On the features that a column of A uses, the Lasso is least squares with a constant added to its normal equations,
    so the residual becomes :math:`e_i/(1-h_i)` with the leverage of least squares on these features alone. Exact unless
    leaving out the row changes that set.
    """
    w = np.ones(len(features)) if weights is None else weights
    Z, leverage = np.sqrt(w)[:, None] * features, np.zeros(scores.shape)
    for j, column in enumerate(A.T):
        left, values, _ = np.linalg.svd(Z[:, column != 0], full_matrices=False)
        leverage[:, j] = np.sum(left[:, values > _DEPENDENT * values.max(initial=0.0)] ** 2, axis=1) / w
    return _without_themselves(scores, targets, leverage, w, intercept)


def leave_one_out(
    features: FloatArray,
    A: FloatArray,
    scores: FloatArray,
    targets: FloatArray,
    penalty: float | None,
    intercept: bool,
    weights: FloatArray | None = None,
) -> FloatArray:
    """Return the score of each row by coefficients fitted without it: of a ridge regression, or of a Lasso if None."""
    if penalty is None:
        return leave_one_out_lasso(features, A, scores, targets, intercept, weights)
    return leave_one_out_ridge(features, scores, targets, penalty, intercept, weights)


def fit_temperature(scores: FloatArray, targets: FloatArray, weights: FloatArray | None = None) -> float:
    """Return the temperature that minimises the log loss of leave-one-out scores, for 0/1 targets."""

    def loss(log_temperature: float) -> float:
        of_rows = np.sum(targets * log_softmax(scores / np.exp(log_temperature), axis=1), axis=1)
        return -float(np.average(of_rows, weights=weights))

    best = minimize_scalar(loss, bounds=(np.log(_SHARPEST), np.log(_DULLEST)), method="bounded")
    return float(np.exp(best.x))
