"""DNSP: the shared basis grows along the tasks' Newton directions."""

from __future__ import annotations

from elmesh.data.statistics import Task
from elmesh.math.kernels import ridge
from elmesh.solvers.pursuit import Compass, SubspacePursuit

__all__ = ["DNSP"]


class DNSP(SubspacePursuit):
    r"""Distributed Newton subspace pursuit (Wang, Kolar and Srebro 2016).

    As :class:`DGSP`, with the gradient turned into the Newton direction of each task's objective,

    .. math:: G_t = (H_t'H_t + \mu I)^{-1}\bigl(H_t'(H_t W_t - T_t) + \mu W_t\bigr) = W_t - \beta_t ,

    where :math:`\beta_t` is the task's own ridge regression: the objective is quadratic, so Newton's step ends there.
    U never leaves the span of all :math:`\beta_t`, and after as many rounds as that has dimensions every task is at its
    own ridge regression. Tasks learn from each other by the rounds that are left out.

    Parameters
    ----------
    rank : int or "auto", default="auto"
        Number of rounds, and of columns of U if no direction vanishes before. "auto" takes two for each column of the
        widest target (classes of the task with most classes, or outputs), as far as the data can use them.
    mu : float, default=1.0
        Penalty on the weights.
    runtime : {"stacked", "mpi"}, default="stacked"
        As for :class:`DMTLELM`.

    Notes
    -----
    A task tells the hub L x d numbers a round and thereby :math:`\beta_t` itself in the first: less private than
    :class:`DMTLELM`, whose messages are bases alone.

    Examples
    --------
    >>> from elmesh.solvers.dnsp import DNSP
    >>> DNSP(mu=0.5).mu
    0.5
    """

    def compass(self, task: Task) -> Compass:
        """Return the Newton direction of each task's objective."""
        beta = ridge(task, self.mu)
        return lambda W, _: W - beta
