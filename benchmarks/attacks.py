r"""What can be worked out about one agent of proximal ADMM from the U that are seen: the attacks, as pure functions.

The U step of agent t is exact, so its optimality condition holds, and in it everything but the fit's gradient has been
seen by those who see U_t and all that t hears (S_t is the sum of it, :math:`P_t = \rho d_t`, and the multiplier is a
sum over rounds):

.. math::
    G^{k+1} = H'(H U^{k+1} A^k - T)A^{k\prime}
            = P U^k + \rho S^k - p^k - (\mu_1/m + \rho d + P)\,U^{k+1} , \qquad
    p^k = \rho \sum_{i=1}^k (d\,U^i - S^i) .

All start from the same :math:`U^0`, so :math:`S^0 = d\,U^0`: the first gradient is known to everybody who hears t.

H stands for the centred features of t; L is their width, N the number of rows.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import scipy.linalg
from scipy.optimize import least_squares, linear_sum_assignment
from scipy.special import expit
from sklearn.cluster import KMeans

from elmesh.data.features import HiddenLayer

FloatArray = np.ndarray
_EPS = float(np.finfo(np.float64).eps)
_EXACT = {"xtol": 1e-15, "ftol": 1e-15, "gtol": 1e-15, "max_nfev": 100}


def gradients(U: FloatArray, S: FloatArray, rho: float, degree: float, share: float) -> FloatArray:
    """Return t's gradients after rounds 1 to K, of shape (K, L, r), from its U and its neighbours' in rounds 0 to K."""
    lean = degree * U - S
    lean[0] = 0.0
    pull = rho * (degree * U + S - np.cumsum(lean, axis=0))
    return pull[:-1] - (share + 2 * rho * degree) * U[1:]


def rounding(U: FloatArray, rho: float, degree: float, share: float) -> float:
    """Return how exactly the numbers of such gradients are known where messages are doubles."""
    return 10 * _EPS * (share + 2 * rho * degree) * float(np.abs(U).max())


def span_of(G: FloatArray, noise: float) -> FloatArray:
    """Return an orthonormal basis of what gradients (K, L, r) span, as far as it stands out from noise a number."""
    K, L, r = G.shape
    Q, s = directions(G.transpose(1, 0, 2).reshape(L, K * r))
    return Q[:, s > _above(noise, L, K * r)]


def _above(noise: float, rows: int, columns: int) -> float:
    """Return what singular values of nothing but noise stay below."""
    return 1.2 * noise * (np.sqrt(rows) + np.sqrt(columns))


def directions(columns: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return the orthonormal directions of what was seen, the strongest first, and their strengths."""
    Q, s, _ = scipy.linalg.svd(columns, full_matrices=False, check_finite=False)
    return Q, s


def outside(Q: FloatArray, H: FloatArray) -> FloatArray:
    """Take the span off rows."""
    return H - (H @ Q) @ Q.T


def alone_scores(Q: FloatArray, H: FloatArray, mean: FloatArray) -> FloatArray:
    """Return for each candidate what share of it is outside the span, about a guess of t's mean."""
    return np.linalg.norm(outside(Q, H - mean), axis=1) / np.linalg.norm(H - mean, axis=1)


def auc(members: FloatArray, others: FloatArray) -> float:
    """Return how often a member has the lower score of the two; a half is guessing."""
    lower = members[:, None] < others[None, :]
    return float(np.mean(lower + 0.5 * (members[:, None] == others[None, :])))


def weights_square(U: FloatArray, G: FloatArray, mu2: float) -> FloatArray:
    r"""Return A A' by :math:`U'G = -\mu_2 AA'`, which holds wherever A_t is at its best for U."""
    seen = -U.T @ G / mu2
    return (seen + seen.T) / 2


def first_targets(
    H: FloatArray, U0: FloatArray, U1: FloatArray, G: FloatArray, mu2: float, noise: float, most: int
) -> FloatArray:
    r"""Return H'T M' for some invertible M, from the first message alone, where t's rows are known.

    ``most`` is how many directions its targets have at most.

    With :math:`A^0 = BM`, B the right singular vectors of G, the rule that made :math:`A^0` from H, T and
    :math:`U^0` turns into linear equations for :math:`MM'`.
    """
    _, s, Vt = np.linalg.svd(G, full_matrices=False)
    B = Vt[:most][s[:most] > _above(noise, *G.shape)].T
    if not B.size:
        return np.zeros((len(G), 1))
    HU0, HU1 = H @ U0, H @ U1
    made = np.linalg.solve(HU0.T @ HU0 + mu2 * np.eye(U0.shape[1]), np.hstack([HU0.T @ HU1 @ B, U0.T @ G @ B]))
    n = B.shape[1]
    MM = np.linalg.lstsq(made[:, :n] - B, made[:, n:], rcond=None)[0]
    return H.T @ (HU1 @ (B @ (MM + MM.T) / 2)) - G @ B


def late_targets(H: FloatArray, U: FloatArray, G: FloatArray, mu2: float) -> FloatArray:
    """Return H'T A', from a message late enough for A_t to have settled, where t's rows are known."""
    return H.T @ (H @ (U @ weights_square(U, G, mu2))) - G


def spread_targets(H: FloatArray, HTM: FloatArray, cut: float) -> FloatArray:
    """Return T M' as far as H'T M' tells it, singular values of H below a share of the largest left out."""
    P, s, Vt = scipy.linalg.svd(H, full_matrices=False, check_finite=False)
    kept = s > cut * s[0]
    return P[:, kept] @ ((Vt[kept] @ HTM) / s[kept, None])


def read_labels(T: FloatArray, y: FloatArray) -> FloatArray:
    """Return labels, rows with nearly the same target getting the same one; the classes' names are given away."""
    classes, codes = np.unique(y, return_inverse=True)
    n = len(classes)
    P, s, _ = np.linalg.svd(T - T.mean(axis=0), full_matrices=False)
    P = P[:, : n - 1][:, s[: n - 1] > 1e-12 * max(s[0], 1e-300)]
    groups = KMeans(n, n_init=4, random_state=0).fit_predict(np.sqrt(len(P)) * P) if P.size else np.zeros(len(y), int)
    table = np.zeros((n, n))
    np.add.at(table, (groups, codes), 1)
    return classes[linear_sum_assignment(-table)[1]][groups]


@dataclass(frozen=True, eq=False)
class Found:
    """Inputs that a search ended at, and how far their features are from where t's rows are (relative)."""

    X: FloatArray
    misfit: FloatArray


def search_rows(layer: HiddenLayer, Q: FloatArray, target: FloatArray, starts: FloatArray, known: int = 0) -> Found:
    """Look for inputs whose features less a target (of t's rows the mean, or any one of them) are in the span.

    The first ``known`` columns are not looked for but are those of the starts.
    """
    Z, (W, b) = _rest(Q), layer.weights
    goal, ends = Z.T @ target, starts.copy()
    for x in ends:
        x[known:] = _solve(W[known:], b + x[:known] @ W[:known], Z, goal, x[known:])
    return Found(ends, np.linalg.norm(layer(ends) @ Z - goal, axis=1) / float(np.linalg.norm(target)))


def _solve(W: FloatArray, b: FloatArray, Z: FloatArray, goal: FloatArray, x: FloatArray) -> FloatArray:
    """Bring the features of an input as near to the goal as it goes, outside the span."""

    def misfit(x: FloatArray) -> FloatArray:
        return Z.T @ expit(x @ W + b) - goal

    def slope(x: FloatArray) -> FloatArray:
        h = expit(x @ W + b)
        return (Z.T * (h * (1 - h))) @ W.T

    return least_squares(misfit, x, slope, **_EXACT).x


def search_mean(layer: HiddenLayer, Q: FloatArray, guess: FloatArray, found: Found, count: int = 8) -> FloatArray:
    """Return what stands for t's mean outside the span, from the best ends of a search about a guess of it.

    A few inputs are moved together until their features are the same point outside the span, wherever that is. If they
    all run into one, the guess it stays.
    """
    Z, (W, _) = _rest(Q), layer.weights
    best = _distinct(found.X[np.argsort(found.misfit)], count)
    k, p = best.shape

    def misfit(x: FloatArray) -> FloatArray:
        rest = layer(x.reshape(k, p)) @ Z
        return (rest - rest.mean(axis=0)).ravel()

    def slope(x: FloatArray) -> FloatArray:
        h = layer(x.reshape(k, p))
        whole = np.zeros((k, Z.shape[1], k, p))
        for i in range(k):
            one = (Z.T * (h[i] * (1 - h[i]))) @ W.T
            whole[:, :, i] -= one / k
            whole[i, :, i] += one
        return whole.reshape(k * Z.shape[1], k * p)

    end = least_squares(misfit, best.ravel(), slope, **_EXACT)
    ends = end.x.reshape(k, p)
    return layer(ends).mean(axis=0) if len(_distinct(ends, count)) > 1 else guess


def apart(rows: FloatArray, X: FloatArray) -> FloatArray:
    """Return how far each row is from each input, root mean square over columns, in standard deviations of a column."""
    return np.sqrt(((rows[:, None] - X[None]) ** 2).mean(axis=2) / rows.var(axis=0).mean())


def _rest(Q: FloatArray) -> FloatArray:
    """Return an orthonormal basis of all that is outside a span."""
    return scipy.linalg.qr(Q)[0][:, Q.shape[1] :] if Q.shape[1] else np.eye(len(Q))


def _distinct(X: FloatArray, count: int) -> FloatArray:
    """Return the first so many inputs, none of them twice."""
    chosen: list[FloatArray] = []
    for x in X:
        if len(chosen) < count and all(np.sqrt(np.mean((x - other) ** 2)) > 0.1 for other in chosen):
            chosen.append(x)
    return np.array(chosen)
