"""DGSP: the shared basis grows along the tasks' gradients."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from elmesh.data.statistics import Task
from elmesh.math.kernels import correlation
from elmesh.solvers.pursuit import Compass, SubspacePursuit
from elmesh.typing import FloatArray

__all__ = ["DGSP"]


class DGSP(SubspacePursuit):
    r"""Distributed gradient subspace pursuit (Wang, Kolar and Srebro 2016).

    Tasks sit around a hub, the first of them. In each of ``rank`` rounds every task sends its gradient

    .. math:: G_t = H_t'(H_t W_t - T_t) + \mu W_t, \qquad W_t = U A_t,

    the hub sends back the leading left singular vector of all of them, every task adds it to U as a new column and fits
    its A_t anew. Each A_t minimises :math:`\tfrac12|H_t U A_t - T_t|^2 + \tfrac\mu2|A_t|^2`; the sum of these is the
    objective in ``history_``, and ``dual_residual`` the size of the gradients beside that of the first.

    Parameters
    ----------
    rank : int or "auto", default="auto"
        Number of rounds, and of columns of U if no gradient vanishes before. "auto" takes two for each column of the
        widest target (classes of the task with most classes, or outputs), as far as the features can use them.
    mu : float, default=1.0
        Penalty on the weights.
    runtime : {"stacked", "mpi"}, default="stacked"
        As for :class:`DMTLELM`.

    Notes
    -----
    A task tells the hub L x d numbers a round and thereby :math:`H_t'T_t` in the first: less private than
    :class:`DMTLELM`, whose messages are bases alone.

    Examples
    --------
    >>> from elmesh.solvers.dgsp import DGSP
    >>> DGSP(rank=6).rank
    6
    """

    spanning: ClassVar[str] = "the features of all tasks together"

    def directions(self, task: Task) -> int:
        """Return in how many dimensions gradients can lie: those of the features, however few the targets."""
        tiny = task.V.shape[-2] * np.finfo(np.float64).eps * task.s.max(axis=-1, keepdims=True)
        return int(np.sum(task.s > tiny))

    def compass(self, task: Task) -> Compass:
        """Return the gradient of each task's objective."""

        def gradient(W: FloatArray, R: FloatArray) -> FloatArray:
            return np.asarray(task.V @ correlation(task, R) + self.mu * W)

        return gradient
