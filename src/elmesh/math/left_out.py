r"""Predictions of rows by weights that were fitted without them, in closed form.

With weights :math:`W + V_t`, of which W has the posterior covariance S given all rows, and :math:`V_t` the prior
covariance D (both in units of the noise; W in that of a site with weight :math:`w_t`), the error of row i without
itself is its error by the weights of all rows, divided by one less its leverage:

.. math:: \frac{(K^{-1}R)_i}{1 - h_i} , \qquad
    h_i = 1 - (K^{-1})_{ii} + w_t\,(K^{-1}\Phi S\Phi'K^{-1})_{ii} , \qquad K = I + \Phi D\Phi' , \quad R = T - \Phi W ,

exactly, for given variances. No fit is repeated. Of a row that counts n times one copy is left out: its error is that
of any copy, and its leverage that of all of them divided by n.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from elmesh.typing import FloatArray

__all__ = ["FittedRows", "left_out_errors"]

# Least share of a row that is left when the others are given.
_LEAST = 1e-9


@dataclass(frozen=True, eq=False)
class FittedRows:
    """All rows of a site, or fewer rows with the same products, each times the root of its weight.

    Parameters
    ----------
    Phi, T : ndarray of shape (n, p), (n, d)
        Features and targets.
    B : ndarray of shape (n, q)
        The features times a root of the prior covariance of the site's own weights: Phi D Phi' = B B'. q is 0 for none.
    """

    Phi: FloatArray
    T: FloatArray
    B: FloatArray


def left_out_errors(
    Phi: FloatArray,
    T: FloatArray,
    B: FloatArray,
    W: FloatArray | None = None,
    S: FloatArray | None = None,
    weight: float = 1.0,
    *,
    row_weights: FloatArray | None = None,
    among: FittedRows | None = None,
) -> FloatArray:
    """Return the errors of rows that are predicted by weights without them, of shape (n, d).

    Parameters
    ----------
    Phi, T : ndarray of shape (n, p), (n, d)
        Features and targets of rows of a site.
    B : ndarray of shape (n, q)
        The features times a root of the prior covariance of the site's own weights: Phi D Phi' = B B'. q is 0 for none.
    W, S : ndarray of shape (p, d), (p, p), optional
        Common weights and their posterior covariance; none by default.
    weight : float
        The site's weight in the totals of which W was fitted.
    row_weights : ndarray of shape (n,), optional
        How often each row counts; once by default.
    among : FittedRows, optional
        All rows of the site, of which these are some; by default these are all.

    Examples
    --------
    The mean of the others predicts each row:

    >>> left_out_errors(np.ones((3, 1)), np.array([[1.0], [2.0], [6.0]]), B=np.full((3, 1), 1e4)).round(3).ravel()
    array([-3. , -1.5,  4.5])
    """
    w = np.ones(len(Phi)) if row_weights is None else row_weights
    W = np.zeros((Phi.shape[1], T.shape[1])) if W is None else W
    root = np.sqrt(w)[:, None]
    fitted = FittedRows(root * Phi, root * T, root * B) if among is None else among
    R = fitted.T - fitted.Phi @ W
    if among is None and len(B) <= B.shape[1]:
        # Few rows: K itself is inverted.
        eigenvalues, Q = np.linalg.eigh(fitted.B @ fitted.B.T)
        inverse = (Q / (1.0 + np.maximum(eigenvalues, 0.0))) @ Q.T
        errors, leverage, KPhi = inverse @ R / root, (1.0 - np.diag(inverse)) / w, inverse @ fitted.Phi / root
    else:
        # Many rows: K^-1 is I - Y Y'.
        eigenvalues, Q = np.linalg.eigh(fitted.B.T @ fitted.B)
        Q = Q / np.sqrt(1.0 + np.maximum(eigenvalues, 0.0))
        Y, all_Y = B @ Q, fitted.B @ Q
        errors, leverage = T - Phi @ W - Y @ (all_Y.T @ R), np.sum(Y**2, axis=1)
        KPhi = Phi - Y @ (all_Y.T @ fitted.Phi)
    if S is not None:
        leverage = leverage + weight * np.sum((KPhi @ S) * KPhi, axis=1)
    return np.asarray(errors / np.maximum(1.0 - np.minimum(w, 1.0) * leverage, _LEAST)[:, None])
