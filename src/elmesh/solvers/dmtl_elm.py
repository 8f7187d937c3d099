"""DMTL-ELM (Algorithm 2): tasks are agents of a graph and reach consensus on U by proximal ADMM."""

from __future__ import annotations

from typing import ClassVar

from elmesh.solvers.admm import ProximalADMM

__all__ = ["DMTLELM"]


class DMTLELM(ProximalADMM):
    r"""Decentralised multi-task ELM by proximal ADMM, Algorithm 2 of the paper.

    Every task is an agent of a connected graph with its own U_t, and only neighbours exchange messages. Together they
    minimise

    .. math:: \sum_t \tfrac12 |H_t U A_t - T_t|^2 + \tfrac{\mu_1}{2}|U|^2 + \tfrac{\mu_2}{2}\sum_t|A_t|^2 .

    :class:`MeshELM` reaches the same optimum in fewer rounds.

    Parameters
    ----------
    rank : int or "auto", default="auto"
        Number of columns of U; "auto" is two for each column of the widest target.
    mu1, mu2 : float or "auto", default="auto"
        Penalties on U and on the A_t; "auto" as for :class:`MeshELM`.
    graph : str or networkx.Graph, default="ring"
        "ring", "path", "star", "complete", "random", "grid", or a graph whose nodes are the task labels.
    rho : float or "auto", default="auto"
        Penalty parameter of consensus.
    tau : float, array, text or "auto", default="auto"
        Proximal weight on U: a number, one number per agent, or text such as "20 + d" for 20 plus the agent's degree.
    zeta : float, array or "auto", default="auto"
        Proximal weight on A.
    gamma : float, "paper" or "auto", default="auto"
        Step of the multiplier: a number, the paper's rule for each edge (with ``delta``), or 1, which "auto" is.
    delta : float, default=10.0
        The constant in the paper's rule for gamma and in its convergence conditions.
    proximal : {"linear", "standard"}, default="linear"
        P_t = tau I - rho d_t I ("linear") or P_t = tau I ("standard"); "auto" tau is the same in both.
    init : {"spectral", "random", "seed", "ones"}, default="spectral"
        Start: leading singular vectors of all tasks' own weights, found by sums over the graph; a block from the
        shared seed, scaled by sums over the graph; that block unscaled, which needs no message; or the paper's ones,
        from which U has one independent column but for rounding.
    max_iter : int, default=1000
        Most rounds.
    tol : float, default=1e-2
        Stop when agents are within ``tol`` of their mean and the Lagrangian's gradient is within ``tol``, relatively.
    certify : bool, default=True
        Whether to bound, in the end, how far the mean of the agents' U is from the best of any rank.
    message_bits : {2, 4, 8, 16, 32, 64, "auto"}, default=64
        Bits per number in messages, as for :class:`MeshELM`.

    Examples
    --------
    >>> from elmesh import DMTLELM, MultiTaskELMClassifier
    >>> model = MultiTaskELMClassifier(n_hidden=50, solver=DMTLELM(rank=4, graph="star", tau="20 + d"))
    """

    name: ClassVar[str] = "dmtl-elm"
    summary: ClassVar[str] = "the paper's Algorithm 2: proximal ADMM with exact steps"
    first_order: ClassVar[bool] = False
