r"""How strongly the features would correlate with pure noise: the scale of the automatic penalty.

A penalty :math:`\lambda` on the trace norm sets to zero what correlates with the residuals less than :math:`\lambda`.
Were the targets nothing but noise :math:`\epsilon_t`, that correlation would be
:math:`N = [H_1'\epsilon_1 \dots H_m'\epsilon_m]`, and all of it should go. Its operator norm is about the root of that
of :math:`E\,NN' = \sum_t \sigma_t^2 H_t'H_t`, with :math:`\sigma_t^2` the variance of a task's noise, which each task
estimates for itself. The penalty is a share of it. It has the units of H times those of T, so it adapts to scales.

A task with fewer rows than features takes for noise what it cannot learn alone. The estimate within the few directions
that tasks share is better, wherever it is smaller.
"""

from __future__ import annotations

import numpy as np

from elmesh.data.statistics import Task
from elmesh.math.kernels import project, square
from elmesh.typing import FloatArray

__all__ = ["noise_image", "noise_variance", "noise_within", "own_penalty"]


# Penalties tried, as shares of the largest eigenvalue of H'H.
_TRIED = 10.0 ** np.arange(-6.0, 1.01, 0.25)
# A ridge that leaves its residuals a smaller share of degrees of freedom gives no estimate: generalised cross
# validation of a fit that nearly interpolates is zero divided by zero.
_FREE = 0.3


def noise_variance(task: Task) -> FloatArray:
    r"""Return each task's variance of noise, summed over outputs: the least generalised cross-validation of its ridge.

    With :math:`f = \mu/(s^2 + \mu)` and :math:`n` rows it is :math:`n\,|f Y|^2 / (n - \sum s^2/(s^2 + \mu))^2`, over
    penalties that leave the residuals some freedom.
    """
    return _cross_validated(task)[0]


def own_penalty(task: Task) -> FloatArray:
    """Return the penalty with the least generalised cross-validation of each task's own ridge, of those tried."""
    return _cross_validated(task)[1]


def _cross_validated(task: Task) -> tuple[FloatArray, FloatArray]:
    """Return the least generalised cross-validation of each task's own ridge, and the finite penalty nearest to it."""
    largest = task.s2.max(axis=(-2, -1))
    best, penalty = np.full(np.shape(largest), np.inf), _TRIED[-1] * largest
    for share in (*_TRIED, np.inf):
        mu = (share * largest)[..., None] if share < np.inf else np.inf
        kept = task.s**2 / np.where(task.s > 0, task.s**2 + mu, 1.0)
        free = task.rows - kept.sum(axis=-1)
        rest = np.sum(((1.0 - kept)[..., None] * task.Y) ** 2, axis=(-2, -1)) + task.rest
        score = task.rows * rest / np.where(free > 0, free, 1.0) ** 2
        better = (free >= _FREE * task.rows) & (score < best)
        best = np.where(better, score, best)
        penalty = np.where(better, min(share, _TRIED[-1]) * largest, penalty)
    return best, np.where(penalty > 0, penalty, 1.0)


def noise_within(task: Task, directions: FloatArray) -> FloatArray:
    """Return each task's variance of noise if its weights are within a few directions, of shape (..., n).

    The n numbers are for 1, 2, 4, 8 ... of the columns of ``directions`` and for all of them.
    """
    k = directions.shape[1]
    counts = sorted({min(2**j, k) for j in range(k.bit_length() + 1)})
    alone, found = noise_variance(task), []
    for count in counts:
        P, s, Vt = np.linalg.svd(project(task, directions[:, :count]), full_matrices=False)
        Y = P.mT @ task.Y
        within = noise_variance(Task(Vt.mT, s, Y, square(task.Y) - square(Y) + task.rest, task.rows))
        found.append(np.where(np.isfinite(within), within, alone))
    return np.stack(found, axis=-1)


def noise_image(task: Task, probe: FloatArray) -> FloatArray:
    r"""Return :math:`\sigma_t^2 H_t'H_t` times a few vectors."""
    return np.asarray(task.V @ (noise_variance(task)[..., None, None] * task.s2 * (task.V.mT @ probe)))
