r"""The common part of a model: what a site that was not in the fit predicts with, and how sure each site can be.

A site's weights are :math:`W + V_t` (and :math:`U A_t`). Their posterior covariance, in units of the site's noise, is

.. math:: v - v X'X v \;+\; w_t\,(I - vX'X)\,S\,(I - vX'X)' , \qquad X = K_t^{-1/2}\Phi_t ,

and the mean of the site's noise variance, whose logarithm has the posterior variance :math:`1/(1/\tau^2 + dN_t/2)`, is
:math:`\sigma_t^2` times the exponential of half of that (:math:`N_t`: the site's rows). So a prediction needs the
site's whitened features X. They reveal as much about its rows as the rows themselves: they belong to the site, as its
weights do.

In a private fit S is what the release leaves unknown of W, and the site's own rows tell more about it. Its weights have
the prior covariance :math:`P = v_t + w_tS` with variances :math:`v_t` of the site's own, and the posterior covariance
:math:`P - PX'XP`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from elmesh.data.statistics import SiteRows
from elmesh.errors import ElmeshError
from elmesh.estimators.head import Head
from elmesh.math.class_link import linked
from elmesh.math.random_effects import expected_likelihood, site_batches, whiten
from elmesh.math.site_average import average_site, whitened_by
from elmesh.typing import FloatArray, IndexArray

__all__ = ["NO_COMMON_PART", "CommonPart"]

#: Why a site cannot be added.
NO_COMMON_PART = (
    "A site can be added to a model with a common part, and this one has none: fit with mesh-elm's defaults, and with "
    "classes of which at least one is at two sites."
)

# Least variance whose logarithm is kept.
_TINY = 1e-300


@dataclass(frozen=True, eq=False)
class CommonPart:
    """What all sites share.

    Parameters
    ----------
    W : ndarray of shape (p, d)
        Common weights, in units of the targets.
    t_mean : ndarray of shape (d,)
        Common mean of the targets.
    S : ndarray of shape (p, p)
        Posterior covariance of W in units of the noise.
    log_c, log_v : ndarray of shape (G,)
        Log-variances of common and private weights by group of features, in units of the noise.
    s2 : ndarray of shape (d,)
        Variance of the noise, in units of the targets.
    tau2 : float
        Variance of the log-precision of noise among sites.
    temperature : float or None
        Scores of a site that was not in the fit are divided by it before the softmax.
    link : ndarray of shape (2, d) or None
        What linear scores are multiplied by, and what is added then; None for nothing.
    shares : ndarray of shape (d,) or None
        The share of each class among the rows of all tasks; None where it is not known.
    links_at_home : bool
        Whether every site has a temperature and a link by its own rows, as none were found over sites.
    U : ndarray of shape (p, r) or None
        The basis of the shared part, if there is one.
    mu2 : float
        Penalty on a site's coefficients in U.
    private : bool
        Whether the fit was private: W and S follow from totals with noise, and each site has variances of its own.
    """

    W: FloatArray
    t_mean: FloatArray
    S: FloatArray
    log_c: FloatArray
    log_v: FloatArray
    s2: FloatArray
    tau2: float
    temperature: float | None = None
    link: FloatArray | None = None
    shares: FloatArray | None = None
    links_at_home: bool = False
    U: FloatArray | None = None
    mu2: float = 1.0
    private: bool = False

    def __post_init__(self) -> None:
        for name in ("W", "t_mean", "S", "log_c", "log_v", "s2", "link", "shares", "U"):
            if getattr(self, name) is None:
                continue
            value = np.ascontiguousarray(getattr(self, name), dtype=np.float64)
            if not np.isfinite(value).all():
                raise ElmeshError(f"{name} holds NaN or infinite values.")
            object.__setattr__(self, name, value)
        (p, d), G = self.W.shape, self.log_c.size
        shapes = [self.t_mean.shape, self.S.shape, self.log_c.shape, self.log_v.shape, self.s2.shape]
        if self.link is not None and self.link.shape != (2, d):
            raise ElmeshError(f"link has shape {self.link.shape}; it must have shape (2, {d}).")
        if self.shares is not None and self.shares.shape != (d,):
            raise ElmeshError(f"shares has shape {self.shares.shape}; it must have shape ({d},).")
        if shapes != [(d,), (p, p), (G,), (G,), (d,)] or (self.U is not None and self.U.shape[:-1] != (p,)):
            raise ElmeshError(f"The shapes of the common part do not match: {[self.W.shape, *shapes]}.")

    def scores(self, Phi: FloatArray) -> FloatArray:
        """Return the scores of rows of features by W alone."""
        return linked(Phi @ self.W + self.t_mean, self.link)

    def columns(self, chosen: IndexArray) -> CommonPart:
        """Return the common part of some of the outputs."""
        link, shares = (None if own is None else own[..., chosen] for own in (self.link, self.shares))
        return replace(
            self, W=self.W[:, chosen], t_mean=self.t_mean[chosen], s2=self.s2[chosen], link=link, shares=shares
        )

    def head(self, site: SiteRows, groups: IndexArray) -> Head:
        """Return the head of a site from its features and its targets less their common mean.

        All that is common is held fixed. The site's noise, its coefficients A in U and its private weights V follow
        from its own rows alone.
        """
        if self.private:
            return self._private_head(site, groups)
        (batch,), v = site_batches([site], groups), np.exp(self.log_v)
        R, M = batch.T - batch.Phi @ self.W, batch.Phi @ self.S @ batch.Phi.mT
        none = np.zeros((1, len(R[0]), 0))
        log_w = expected_likelihood(batch, R, M, none, v, self.s2, self.s2, self.tau2).log_weights[0]
        (X, R), _ = whiten(batch, v, batch.Phi, R)
        shared, A = np.zeros_like(self.W), None
        if self.U is not None:
            Z = np.exp(log_w / 2) * (X[0] @ self.U)
            A = np.linalg.solve(Z.T @ Z + self.mu2 * np.eye(Z.shape[1]), Z.T @ (np.exp(log_w / 2) * R[0]))
            shared = self.U @ A
        private = v[groups][:, None] * (X[0].T @ (R[0] - X[0] @ shared))
        n, zeros, weights = len(site.Phi), np.zeros(len(groups)), self.W + shared + private
        return Head(
            None, weights, zeros, self.t_mean, link=self.link, X=X[0, :n], log_w=float(log_w), shared=A, rows=site.rows
        )

    def _private_head(self, site: SiteRows, groups: IndexArray) -> Head:
        s2 = float(self.s2.mean())
        own = average_site(site, groups, self.W, s2 * self.S)
        log_w, v = float(np.log(s2 / own.s2)), own.v / own.s2
        X, zeros = whitened_by(site, groups, v, np.exp(log_w) * self.S), np.zeros(len(groups))
        log_v = np.log(np.maximum(v, _TINY))
        return Head(
            None, own.weights, zeros, self.t_mean, link=self.link, X=X, log_w=log_w, log_v=log_v, rows=site.rows
        )

    def prior_features(self, Phi: FloatArray, groups: IndexArray, head: Head) -> FloatArray:
        """Return rows of features times a root of the prior covariance of a site's weights, in units of its noise."""
        if head.log_v is None:
            return np.asarray(Phi * np.exp(self.log_v / 2)[groups])
        eigenvalues, Q = np.linalg.eigh(np.exp(head.log_w) * self.S)
        root = Q * np.sqrt(np.maximum(eigenvalues, 0.0))
        return np.hstack([Phi * np.exp(head.log_v / 2)[groups], Phi @ root])

    def parts(
        self, weights: FloatArray, log_w: float, groups: IndexArray, columns: IndexArray
    ) -> tuple[FloatArray, FloatArray, FloatArray]:
        r"""Return the common, the shared and the private part of a site's weights of some columns.

        At the optimum :math:`\mu_2 A = w_t U'v^{-1}V`, so that the sum :math:`D = UA + V` alone gives both:
        :math:`A = (\mu_2/w_t + U'v^{-1}U)^{-1}U'v^{-1}D`.
        """
        W = self.W[:, columns]
        beyond = weights - W
        if self.U is None:
            return W, np.zeros_like(beyond), beyond
        scaled = self.U / np.exp(self.log_v)[groups][:, None]
        penalty = self.mu2 * np.exp(-log_w) * np.eye(self.U.shape[1])
        shared = self.U @ np.linalg.solve(penalty + self.U.T @ scaled, scaled.T @ beyond)
        return W, shared, beyond - shared

    def variance(self, Phi: FloatArray, groups: IndexArray, head: Head | None) -> FloatArray:
        """Return the predictive variance of rows of features of a site, of shape (rows, d).

        For a site that was not in the fit ``head`` is None, and the variance of private weights adds to all else.
        """
        X, log_w = (None, 0.0) if head is None else (head.X, head.log_w)
        if head is not None and head.log_v is not None and X is not None:
            PPhi = np.exp(head.log_v)[groups][:, None] * Phi.T + np.exp(log_w) * (self.S @ Phi.T)
            weights = np.sum(Phi.T * PPhi, axis=0) - np.sum((X @ PPhi) ** 2, axis=0)
            return np.asarray((np.exp(-log_w) * (1.0 + np.maximum(weights, 0.0)))[:, None] * self.s2)
        v = np.exp(self.log_v)[groups]
        if X is None:
            private, seen = np.sum(Phi**2 * v, axis=1), Phi
        else:
            XvPhi = X @ (v[:, None] * Phi.T)
            private, seen = np.sum(Phi**2 * v, axis=1) - np.sum(XvPhi**2, axis=0), Phi - XvPhi.T @ X
        common = np.sum((seen @ self.S) * seen, axis=1)
        # The mean of a variance whose logarithm is uncertain is above its most probable value.
        uncertain = self._noise_uncertainty(head)
        own = np.exp(-log_w) * (np.exp(uncertain / 2) + np.maximum(private, 0.0)) + np.maximum(common, 0.0)
        return np.asarray(own[:, None] * self.s2)

    def _noise_uncertainty(self, head: Head | None) -> float:
        """Return the posterior variance of the logarithm of a site's noise."""
        rows = 0.0
        if head is not None and head.X is not None:
            # Models of earlier versions do not have the number of rows, only those that are kept.
            rows = float(len(head.X)) if head.rows is None else head.rows
        return self.tau2 / (1.0 + self.tau2 * rows * len(self.s2) / 2)

    def posterior(self, groups: IndexArray, head: Head | None) -> tuple[float, FloatArray]:
        """Return a site's noise and the posterior covariance C of its weights, both in units of s2.

        The predictive variance of features phi is ``s2 (noise + phi'C phi)``, as :meth:`variance` computes it from the
        site's whitened features, of which C contains the products.
        """
        p = len(groups)
        log_w, X = (0.0, None) if head is None else (head.log_w, head.X)
        if head is not None and head.log_v is not None and X is not None:
            P = np.diag(np.exp(head.log_v)[groups]) + np.exp(log_w) * self.S
            return float(np.exp(-log_w)), np.exp(-log_w) * (P - (X @ P).T @ (X @ P))
        v, X = np.exp(self.log_v)[groups], np.zeros((0, p)) if X is None else X
        private, seen = np.diag(v) - (X * v).T @ (X * v), np.eye(p) - X.T @ (X * v)
        uncertain = self._noise_uncertainty(head)
        return float(np.exp(uncertain / 2 - log_w)), np.exp(-log_w) * private + seen.T @ self.S @ seen
