r"""The duality gap of the convex problem behind (6): how far U is from the best of any rank.

For U with enough columns, :math:`\min \tfrac{\mu_1}2|U|^2 + \tfrac{\mu_2}2|A|^2` over all factorisations
:math:`UA = B` is :math:`\lambda|B|_*` with :math:`\lambda = \sqrt{\mu_1\mu_2}` and :math:`|\cdot|_*` the sum of
singular values. So problem (6) is

.. math:: \min_B \sum_t \tfrac12|H_tB_t - T_t|^2 + \lambda\,|[B_1 \dots B_m]|_* ,

which is convex. Its dual is :math:`\max_\Theta -\sum_t \tfrac12|\Theta_t|^2 + \langle\Theta_t, T_t\rangle` subject
to the operator norm of :math:`[H_1'\Theta_1 \dots H_m'\Theta_m]` being at most :math:`\lambda`. Residuals, scaled until
they are feasible, give a lower bound for every U and A. Where the norm of the residuals' correlation with the features
exceeds :math:`\lambda` outside the span of U, each such direction is missing in U.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from elmesh.data.statistics import Task
from elmesh.math.kernels import correlation, project, residual, solve_A, square
from elmesh.math.objective import objective
from elmesh.typing import FloatArray

__all__ = [
    "SLACK",
    "USED_SHARE",
    "Certificate",
    "CertificateData",
    "certificate_data",
    "certificate_without_basis",
    "certify",
    "count_missing",
    "dual_bound",
    "slack_for",
    "used_columns",
]


#: Share of the longest column of U below which a column is unused; its share of U A is the square of that.
USED_SHARE = 1e-2
#: A correlation that exceeds lambda by this share is a missing direction; less may be a lack of convergence.
SLACK = 1e-2
# The slack of very small tolerances.
_LEAST_SLACK = 1e-4
_ROUNDING = 1e-12


@dataclass(frozen=True)
class Certificate:
    """What is known about the optimum of the trace-norm problem, from one U and its residuals.

    Parameters
    ----------
    gap : float
        Relative duality gap: the objective is at most this share above the least that any rank can reach. It is a
        proof, up to rounding, where the operator norm that scales the dual is exact: with all tasks in one place
        (``graph=None``, :func:`certify`), and without a shared part. Over a graph that norm is approached from below,
        by a few sums of vectors, until it no longer changes; there the gap is an estimate, which may be too small.
    rank_sufficient : bool
        Whether no direction outside U would lower the objective by more than convergence leaves open: a larger rank
        would not help.
    suggested_rank : int
        The number of directions of U in use, and of those that it lacks.
    objective : float
        The objective (6), with every A_t at its best.
    lower_bound : float
        What no U of whatever rank can undercut; over a graph an estimate of that, which may be too large.
    proven : bool
        Whether the gap is a proof, and not an estimate.

    Examples
    --------
    >>> Certificate(0.0002, True, 12, 55.53, 55.519)
    <training objective within 0.02 % of the optimum over all ranks; rank 12 is enough>
    """

    gap: float
    rank_sufficient: bool
    suggested_rank: int
    objective: float
    lower_bound: float
    proven: bool = True

    def __repr__(self) -> str:
        return f"<{self}>"

    def __str__(self) -> str:
        about = "" if self.proven else "about "
        within = f"training objective within {about}{100 * self.gap:.2g} % of the optimum over all ranks"
        if not self.suggested_rank:
            return f"training objective within {about}{100 * self.gap:.2g} % of its optimum, which has no shared part"
        if self.rank_sufficient:
            return f"{within}; rank {self.suggested_rank} is enough"
        return f"{within}; the rank is too small, try {self.suggested_rank}"


@dataclass(frozen=True, eq=False)
class CertificateData:
    """What the certificate is made of, and which columns of U to add or to drop; the same at every agent.

    Parameters
    ----------
    rotation : ndarray of shape (r, used)
        Makes the columns of U orthogonal, longest first, without unused ones.
    n_missing : int
        Number of directions outside U that would lower the objective.
    eigenvalues, directions : ndarray of shape (n,), (L, n)
        Squared correlations of the residuals outside U, largest first, and their directions.
    lower_bound : float
        A lower bound of the objective for every U; over a graph an estimate of one.
    """

    rotation: FloatArray
    n_missing: int
    eigenvalues: FloatArray
    directions: FloatArray
    lower_bound: float

    @property
    def n_used(self) -> int:
        """Number of columns of U in use."""
        return int(self.rotation.shape[1])

    def suggests_change(self, rank: int) -> bool:
        """Return whether U should have other than ``rank`` columns."""
        return self.n_missing > 0 or self.n_used != rank

    def certificate(self, objective: float, *, proven: bool) -> Certificate:
        """Return the certificate of a U with this objective; ``proven``: whether the bound is that of one place."""
        return make_certificate(objective, self.lower_bound, self.n_used, self.n_missing, proven=proven)


def dual_bound(norm: float, lam: float, R2: float, RY: float, rest: float) -> float:
    r"""Return the best bound that scaled residuals give.

    ``norm`` is the operator norm of all tasks' :math:`H_t'R_t` side by side, which may be ``lam`` at most; ``R2`` and
    ``RY`` are the sums over tasks of :math:`|R_t|^2` and :math:`\langle R_t, T_t\rangle` within the column spaces of
    the H_t, and ``rest`` is the squared norm of the targets outside them.
    """
    if R2 <= 0:
        return rest / 2
    # With Theta = t R the dual is a parabola in t, to be maximised within what the norm allows.
    most = lam / norm if norm > 0 else np.inf
    t = min(max(-RY / R2, 0.0), most)
    return -(t * t * R2 / 2 + t * RY) + rest / 2


def make_certificate(
    objective: float, lower_bound: float, n_used: int, n_missing: int, *, proven: bool = True
) -> Certificate:
    """Return the certificate from its parts."""
    excess = max(objective - lower_bound, 0.0)
    gap = excess / lower_bound if lower_bound > 0 else 0.0 if excess == 0 else np.inf
    return Certificate(float(gap), n_missing == 0, n_used + n_missing, objective, min(lower_bound, objective), proven)


def count_missing(squares: FloatArray, lam: float, slack: float) -> int:
    """Return how many squared singular values outside U exceed lambda by more than the slack."""
    return int(np.sum(squares > ((1 + slack) * lam) ** 2))


def used_columns(U: FloatArray, E: FloatArray, lam: float) -> FloatArray:
    r"""Return the rotation that makes the columns of U orthogonal, longest first, without unused ones.

    A column is in use if it is not very short; or if it is, but its correlation with the residuals E is all of
    :math:`\lambda`, as for directions of the optimum.
    """
    values, vectors = np.linalg.eigh(U.T @ U)
    longest = float(values.max(initial=0.0))
    columns = U @ vectors
    active = np.linalg.norm(E.T @ columns, axis=0) >= (1 - SLACK) * lam * np.linalg.norm(columns, axis=0)
    used = (values > USED_SHARE**2 * longest) | (active & (values > _ROUNDING * longest))
    return np.ascontiguousarray(vectors[:, used][:, ::-1])


def slack_for(tol: float) -> float:
    """Return the slack of correlations for gradients within a tolerance."""
    return min(max(tol, _LEAST_SLACK), SLACK)


def certificate_data(
    task: Task, U: FloatArray, R: FloatArray, lam: float, slack: float, common: float = 0.0
) -> CertificateData:
    """Return what the certificate needs, from all tasks; R is their residuals with A_t at its best.

    ``common`` is the square of common weights in units of their prior, where they are at their best beside U A_t: there
    it is also the square of the residuals' total correlation, by which the dual is less.
    """
    E = np.hstack(list(task.V @ correlation(task, R)))
    rotation = used_columns(U, E, lam)
    Q = np.linalg.qr(U @ rotation)[0]
    directions, values, _ = np.linalg.svd(E - Q @ (Q.T @ E), full_matrices=False)
    squares: FloatArray = values**2
    R2, RY, rest = float(np.sum(square(R))), float(np.sum(R * task.Y)), float(np.sum(task.rest))
    bound = dual_bound(float(np.linalg.norm(E, 2)), lam, R2 + common, RY - common, rest)
    return CertificateData(rotation, count_missing(squares, lam, slack), squares, directions, bound)


def certificate_without_basis(value: float, lower_bound: float) -> Certificate:
    """Return the certificate of an objective without a shared part, from the value of the dual."""
    return make_certificate(value, lower_bound, 0, 0)


def certify(task: Task, U: FloatArray, mu1: float, mu2: float) -> Certificate:
    """Certify a U that all tasks of a stack share, by exact singular values.

    Examples
    --------
    >>> from elmesh.data.statistics import Reduced
    >>> H, T = np.array([[1.0, 0.0], [0.0, 1.0]]), np.array([[3.0], [0.0]])
    >>> task = Task.stack([Task.from_reduced(Reduced.from_rows(H, T, centre=False))])
    >>> round(certify(task, np.sqrt([[2.0], [0.0]]), 1.0, 1.0).gap, 12)  # B = 2 is 3 less lambda: the optimum
    0.0
    """
    HU = project(task, U)
    A = solve_A(task, HU, np.zeros(1), mu2, 0.0)
    R = residual(task, HU, A)
    data = certificate_data(task, U, R, float(np.sqrt(mu1 * mu2)), SLACK)
    return data.certificate(objective(task, U, A, mu1, mu2), proven=True)
