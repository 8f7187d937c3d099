r"""Pure updates, for one agent or for many stacked along a leading axis.

All work in the basis of :class:`~elmesh.data.statistics.Task`, where :math:`H = P\,\mathrm{diag}(s)\,V'`. There
``HU`` = P'HU (q x r) are the features in the basis U and ``R`` = P'(HUA - T) (q x d) the residuals; given these, the
fit, its gradients and the A step need no product with anything of width L. The U step needs two.
"""

from __future__ import annotations

import numpy as np

from elmesh.data.statistics import Task
from elmesh.typing import FloatArray

__all__ = [
    "correlation",
    "curvature",
    "exact_U",
    "first_order_U",
    "fit",
    "fit_gradient",
    "orthonormal",
    "project",
    "residual",
    "ridge",
    "ridge_in_metric",
    "solve_A",
    "square",
]


def project(task: Task, U: FloatArray) -> FloatArray:
    """Return HU: the task's features in the basis U."""
    return task.s_column * (task.V.mT @ U)


def residual(task: Task, HU: FloatArray, A: FloatArray) -> FloatArray:
    """Return R = HUA - T, within the column space of H."""
    return np.asarray(HU @ A - task.Y)


def fit(task: Task, R: FloatArray) -> FloatArray:
    r"""Return :math:`\tfrac12 |H U A - T|^2` of each task."""
    return 0.5 * (square(R) + task.rest)


def correlation(task: Task, R: FloatArray) -> FloatArray:
    r"""Return V' times :math:`H'(HUA - T)`: the correlation of the features with the residual."""
    return task.s_column * R


def fit_gradient(task: Task, R: FloatArray, A: FloatArray) -> FloatArray:
    r"""Return V' times the gradient of the fit in U, :math:`H'(HUA - T)A'`; it lies in the span of V."""
    return np.asarray(correlation(task, R) @ A.mT)


def exact_U(task: Task, A: FloatArray, C: FloatArray, c: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
    r"""Solve :math:`H'H\,U\,AA' + c\,U = H'T A' + C` for U: equation (19), without the Kronecker product of (20).

    Returns U, HU, and the fit's gradient there (as :func:`fit_gradient` does). Diagonalising
    :math:`AA' = E\,\mathrm{diag}(e)\,E'` turns the equation, within the span of V, into divisions by
    :math:`s_i^2 e_j + c`; outside it, :math:`U = C / c`.
    """
    AA = A @ A.mT
    try:
        e, E = np.linalg.eigh(AA)
    except np.linalg.LinAlgError:
        e, E = _overflown(AA.shape[:-1]), _overflown(AA.shape)
    VC = task.V.mT @ C
    VU = (((VC + task.sY @ A.mT) @ E) / (task.s2 * e[..., None, :] + c)) @ E.mT
    gradient = VC - c * VU
    U = task.V @ gradient
    np.subtract(C, U, out=U)
    U /= c
    return U, task.s_column * VU, gradient


def first_order_U(task: Task, gradient: FloatArray, C: FloatArray, c: FloatArray) -> tuple[FloatArray, FloatArray]:
    r"""Return :math:`U = (C - \nabla f)/c`, equation (23), and HU; ``gradient`` is :func:`fit_gradient`'s."""
    U = task.V @ gradient
    np.subtract(C, U, out=U)
    U /= c
    return U, project(task, U)


def solve_A(task: Task, HU: FloatArray, A: FloatArray, mu2: float, zeta: FloatArray | float) -> FloatArray:
    r"""Return :math:`(U'H'HU + (\mu_2 + \zeta) I)^{-1}(U'H'T + \zeta A)`: equation (22), and (11) for zeta = 0."""
    gram = HU.mT @ HU
    weight = (mu2 + zeta) * np.eye(HU.shape[-1])
    right = HU.mT @ task.Y + zeta * A
    try:
        return np.asarray(np.linalg.solve(gram + weight, right))
    except np.linalg.LinAlgError:
        return _overflown(right.shape)


def ridge(task: Task, mu: float | FloatArray) -> FloatArray:
    r"""Return :math:`(H'H + \mu I)^{-1} H'T`: a task's own weights, equation (4)."""
    return np.asarray(task.V @ (task.sY / (task.s2 + mu)))


def ridge_in_metric(task: Task, a: float, Q: FloatArray, b: FloatArray, mu: float) -> FloatArray:
    r"""Return X with :math:`W = DX` a task's ridge regression in a metric, :math:`D = aI + Q\,\mathrm{diag}(b)\,Q'`.

    W minimises :math:`\tfrac12|HW - T|^2 + \tfrac\mu2\langle W, D^{-1}W\rangle`, and
    :math:`X = H'(HDH' + \mu I)^{-1}T` needs no inverse of D, which may be all but singular.
    """
    F = project(task, Q)
    kernel = (F * b) @ F.mT
    diagonal = np.arange(kernel.shape[-1])
    kernel[..., diagonal, diagonal] += a * task.s**2 + mu
    try:
        inner = np.linalg.solve(kernel, task.Y)
    except np.linalg.LinAlgError:
        inner = _overflown(task.Y.shape)
    return np.asarray(task.V @ (task.s_column * inner))


def curvature(task: Task, A: FloatArray) -> FloatArray:
    r"""Return :math:`|H|^2 |A|^2` in operator norms: how curved the fit is in U."""
    try:
        largest = np.linalg.eigvalsh(A @ A.mT)[..., -1]
    except np.linalg.LinAlgError:
        largest = _overflown(())
    return np.asarray(np.square(task.s.max(axis=-1)) * largest)


def orthonormal(X: FloatArray) -> FloatArray:
    """Return the orthonormal factor of X whose triangular one has a positive diagonal.

    Examples
    --------
    >>> orthonormal(np.array([[-3.0], [-4.0]]))[:, 0]
    array([-0.6, -0.8])
    """
    Q, R = np.linalg.qr(X)
    negative = np.diagonal(R, axis1=-2, axis2=-1) < 0
    return np.where(negative[..., None, :], -Q, Q)


def square(X: FloatArray) -> FloatArray:
    """Return the squared Frobenius norm of each matrix."""
    flat = X.reshape(*X.shape[:-2], X.shape[-2] * X.shape[-1])
    return np.asarray(np.vecdot(flat, flat))


def _overflown(shape: tuple[int, ...]) -> FloatArray:
    """Return NaN where LAPACK raises after an overflow: other agents wait for this agent's message."""
    return np.full(shape, np.nan)
