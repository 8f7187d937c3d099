r"""Common weights from totals with known noise: a ridge regression that knows how much noise there is.

Of :math:`G = \sum z_iz_i'` and :math:`b = \sum z_iy_i'` only :math:`\tilde G = G + E` and :math:`\tilde b = b + e`
are known, with noise of variance :math:`\sigma_G^2` (half of it beside the diagonal) and :math:`\sigma_b^2`. With
weights W of prior variance :math:`c_g` in group g, and targets with noise of variance :math:`s^2`,

.. math:: \tilde b = GW + \text{noise} \approx \tilde GW + N\bigl(0,\; s^2\tilde G + \nu^2 I\bigr), \qquad
          \nu^2 = \sigma_b^2 + \tfrac12\sigma_G^2\,\mathrm{E}|W|^2 ,

where the last term is what the noise in G does to GW. Of the eigenvalues of :math:`\tilde G` those that noise alone
could make are taken for zero, and the others are freed of what noise has added to them. So :math:`\tilde b` is Gaussian
with covariance :math:`\tilde GC\tilde G + s^2\tilde G + \nu^2 I`; c and s are where its evidence and a broad prior are
largest, and W has the posterior

.. math:: S = \bigl(C^{-1} + \tilde G(s^2\tilde G + \nu^2)^{-1}\tilde G\bigr)^{-1}, \qquad
          \bar W = S\,\tilde G(s^2\tilde G + \nu^2)^{-1}\tilde b .

All of it follows from what was released, so that it costs no privacy. Where there is nothing but noise, W stays at its
prior, and S at its variance C.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import scipy.linalg
import scipy.optimize

from elmesh.typing import FloatArray, IndexArray

__all__ = ["NoisyRidge", "fit_noisy_ridge"]

# Prior variance of the constant's weight; and the hyperprior of the other variances, whose logarithms are normal about
# this with this standard deviation: effects are of the order of a half of the targets' spread.
_CONSTANT, _VARIANCE, _SPREAD = 10.0, 0.3, 1.0
# The same for the noise of the targets, in units of their squared spread.
_NOISE, _NOISE_SPREAD, _MOST_NOISE = 0.5, 2.0, 2.0
_BOUND = 9.0
# Rounds in which the size of W, which the noise of G acts on, is renewed; and its first value.
_ROUNDS, _FIRST_SIZE = 4, 0.1
# Least eigenvalue of G as a share of the largest.
_LEAST = 1e-9


@dataclass(frozen=True, eq=False)
class NoisyRidge:
    """The posterior of common weights: mean W (p, d), covariance S (p, p), and the targets' noise s2.

    ``variances`` are the prior variances by group, of those groups that there are.
    """

    W: FloatArray
    S: FloatArray
    s2: float
    variances: dict[int, float]


def fit_noisy_ridge(G: FloatArray, b: FloatArray, sigma_G: float, sigma_b: float, groups: IndexArray) -> NoisyRidge:
    """Return the posterior of weights from noisy totals.

    Parameters
    ----------
    G : ndarray of shape (p, p)
        Noisy products of features; symmetric.
    b : ndarray of shape (p, d)
        Noisy products of features and targets.
    sigma_G, sigma_b : float
        Standard deviations of the noise in the diagonal of G and in b.
    groups : ndarray of int of shape (p,)
        The group of each feature; 0 is the constant.
    """
    p, free = len(G), np.setdiff1d(groups, [0])
    found, Q = np.linalg.eigh(G)
    eigenvalues = np.maximum(_without_noise(found, sigma_G), _LEAST * max(float(found[-1]), 1.0))
    G = (Q * eigenvalues) @ Q.T
    members = np.array([groups == g for g in free]).reshape(len(free), p)
    centre = np.array([*np.full(len(free), np.log(_VARIANCE)), np.log(_NOISE)])
    spread = np.array([*np.full(len(free), _SPREAD), _NOISE_SPREAD])
    bounds = [(-_BOUND, _BOUND)] * len(free) + [(-_BOUND, float(np.log(_MOST_NOISE)))]
    theta, size = centre, _FIRST_SIZE
    for _ in range(_ROUNDS):
        nu2 = sigma_b**2 + 0.5 * sigma_G**2 * size

        def loss(x: FloatArray, nu2: float = nu2) -> tuple[float, FloatArray]:
            value, gradient = _negative_evidence(x, G, b, nu2, members)
            z = (x - centre) / spread
            return value + float(z @ z), gradient + 2 * z / spread

        theta = np.asarray(scipy.optimize.minimize(loss, theta, jac=True, method="L-BFGS-B", bounds=bounds).x)
        W, S = _posterior(theta, eigenvalues, Q, b, nu2, members)
        size = float(np.mean(np.sum(W**2, axis=0)) + np.trace(S))
    variances = {int(g): float(np.exp(x)) for g, x in zip(free, theta, strict=False)}
    if 0 in groups:
        variances[0] = _CONSTANT
    return NoisyRidge(W, S, float(np.exp(theta[-1])), variances)


def _without_noise(eigenvalues: FloatArray, sigma: float) -> FloatArray:
    r"""Return the eigenvalues of a matrix from those of its sum with symmetric noise; zero for those that noise hides.

    Noise of variance :math:`\sigma^2/2` beside the diagonal has eigenvalues up to :math:`2\tau`,
    :math:`\tau^2 = p\sigma^2/2`, and makes an eigenvalue :math:`\lambda > \tau` of the matrix one of
    :math:`\lambda + \tau^2/\lambda`.
    """
    edge2 = 2.0 * len(eigenvalues) * sigma**2
    root = np.sqrt(np.maximum(eigenvalues**2 - edge2, 0.0))
    return np.where((eigenvalues > 0) & (eigenvalues**2 > edge2), (eigenvalues + root) / 2, 0.0)


def _prior(theta: FloatArray, members: FloatArray) -> FloatArray:
    """Return the prior variance of every weight."""
    return np.asarray(np.where(members.any(axis=0), np.exp(theta[:-1]) @ members, _CONSTANT))


def _negative_evidence(
    theta: FloatArray, G: FloatArray, b: FloatArray, nu2: float, members: FloatArray
) -> tuple[float, FloatArray]:
    """Return -2 log evidence of b up to a constant, and its gradient in the logarithms of c and of s2."""
    c, s2, (p, d) = _prior(theta, members), float(np.exp(theta[-1])), b.shape
    covariance = (G * c) @ G + s2 * G
    covariance[np.arange(p), np.arange(p)] += nu2
    factor = scipy.linalg.cholesky(covariance, lower=True, check_finite=False)
    inverse = scipy.linalg.cho_solve((factor, True), np.eye(p), check_finite=False)
    a = inverse @ b
    value = 2 * d * float(np.sum(np.log(np.diag(factor)))) + float(np.sum(b * a))
    # The derivative of the covariance in log c_i is c_i G_i G_i', with the i-th column of G.
    Ga = G @ a
    by_feature = c * (d * np.sum((G @ inverse) * G, axis=1) - np.sum(Ga**2, axis=1))
    of_noise = s2 * (d * float(np.sum(inverse * G)) - float(np.sum(a * Ga)))
    return value, np.array([*(members @ by_feature), of_noise])


def _posterior(
    theta: FloatArray, eigenvalues: FloatArray, Q: FloatArray, b: FloatArray, nu2: float, members: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Return mean and covariance of W."""
    weight = eigenvalues / (np.exp(theta[-1]) * eigenvalues + nu2)
    precision = (Q * (weight * eigenvalues)) @ Q.T
    precision[np.arange(len(Q)), np.arange(len(Q))] += 1.0 / _prior(theta, members)
    S = np.linalg.inv(precision)
    S = (S + S.T) / 2
    return S @ (Q @ (weight[:, None] * (Q.T @ b))), S
