r"""Predictions of rows by weights that were fitted without them, in closed form.

With weights :math:`W + V_t`, of which W has the posterior covariance S given all rows, and :math:`V_t` the prior
covariance D (both in units of the noise; W in that of a site with weight :math:`w_t`), and residuals
:math:`R = T - \Phi W`, the error of row i without itself is

.. math:: \frac{(K^{-1}R)_i}{(K^{-1})_{ii} - w_t\,(K^{-1}\Phi S\Phi'K^{-1})_{ii}} , \qquad K = I + \Phi D\Phi' ,

exactly, for given variances. No fit is repeated. A ridge regression of a task alone is the case without W; there one
decomposition of the features serves all penalties.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from elmesh.typing import FloatArray

__all__ = ["left_out_errors", "left_out_ridge"]

# Least share of a row's precision that is left when the others are given.
_LEAST = 1e-9


def left_out_errors(
    Phi: FloatArray, T: FloatArray, B: FloatArray, W: FloatArray | None = None, S: FloatArray | None = None,
    weight: float = 1.0,
) -> FloatArray:  # fmt: skip
    """Return the errors of rows that are predicted by weights without them, of shape (n, d).

    Parameters
    ----------
    Phi, T : ndarray of shape (n, p), (n, d)
        Features and targets of a site.
    B : ndarray of shape (n, q)
        The features times a root of the prior covariance of the site's own weights: Phi D Phi' = B B'. q is 0 for none.
    W, S : ndarray of shape (p, d), (p, p), optional
        Common weights and their posterior covariance; none by default.
    weight : float
        The site's weight in the totals of which W was fitted.

    Examples
    --------
    The mean of the others predicts each row:

    >>> left_out_errors(np.ones((3, 1)), np.array([[1.0], [2.0], [6.0]]), B=np.full((3, 1), 1e4)).round(3).ravel()
    array([-3. , -1.5,  4.5])
    """
    R = T if W is None else T - Phi @ W
    n, q = B.shape
    # K^-1 is inverted itself where there are few rows, and is I - Y Y' where there are many.
    few = n <= q
    if few:
        eigenvalues, Q = np.linalg.eigh(B @ B.T)
        inverse = (Q / (1.0 + np.maximum(eigenvalues, 0.0))) @ Q.T
        KR, own = inverse @ R, np.diag(inverse)
    else:
        eigenvalues, Q = np.linalg.eigh(B.T @ B)
        Y = B @ (Q / np.sqrt(1.0 + np.maximum(eigenvalues, 0.0)))
        KR, own = R - Y @ (Y.T @ R), 1.0 - np.sum(Y**2, axis=1)
    left = own
    if S is not None:
        KPhi = inverse @ Phi if few else Phi - Y @ (Y.T @ Phi)
        left = own - weight * np.sum((KPhi @ S) * KPhi, axis=1)
    return np.asarray(KR / np.maximum(left, _LEAST * np.maximum(own, _LEAST))[:, None])


def left_out_ridge(H: FloatArray, T: FloatArray, penalties: Sequence[float], *, centre: bool) -> FloatArray:
    r"""Return predictions of rows by ridge regressions without them, of shape (penalties, n, d).

    With :math:`H = P\,\mathrm{diag}(s)\,V'` the leverage of row i is :math:`\sum_k P_{ik}^2 s_k^2/(s_k^2+\mu)`, and 1/n
    more where features and targets are centred; its error without itself is its error over one less the leverage.

    Examples
    --------
    >>> left_out_ridge(np.zeros((3, 1)), np.array([[1.0], [2.0], [6.0]]), [1.0], centre=True).ravel()
    array([4. , 3.5, 1.5])
    """
    mean = T.mean(axis=0) if centre else np.zeros(T.shape[1])
    P, s, _ = np.linalg.svd(H - H.mean(axis=0) if centre else H, full_matrices=False)
    PT, predictions = P.T @ (T - mean), []
    for mu in penalties:
        shrunk = s**2 / (s**2 + mu)
        fits = P @ (shrunk[:, None] * PT) + mean
        left = 1.0 - P**2 @ shrunk - (1.0 / len(T) if centre else 0.0)
        predictions.append(T - (T - fits) / np.maximum(left, _LEAST)[:, None])
    return np.stack(predictions)
