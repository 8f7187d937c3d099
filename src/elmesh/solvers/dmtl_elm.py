"""DMTL-ELM (Algorithm 2): agents agree on U by exact proximal steps."""

from __future__ import annotations

from typing import Any

from elmesh.solvers.admm import ProximalADMM

__all__ = ["DMTLELM"]


class DMTLELM(ProximalADMM):
    r"""Decentralised multi-task ELM with exact U steps.

    Every task is an agent in a connected graph. Agents exchange nothing but L x r blocks: their U_t and, for the
    automatic choices, a few averages at the start. Each minimises its share of

    .. math:: \sum_t \tfrac12 |H_t U_t A_t - T_t|^2 + \tfrac{\mu_1}{2m}|U_t|^2 + \tfrac{\mu_2}{2}|A_t|^2
              \quad\text{subject to}\quad U_i = U_j \text{ for neighbours } i, j.

    Parameters
    ----------
    rank : int or "auto", default="auto"
        Number of columns of U. "auto" takes two for each column of the widest target (classes of the task with most
        classes, or outputs), as far as the data can use them.
    mu1, mu2 : float, default=1.0
        Penalties on U and on the A_t.
    graph : str or networkx.Graph, default="ring"
        "ring", "path", "star", "complete", "random", "grid", or a graph whose nodes are the task labels.
    rho : float or "auto", default="auto"
        Weight of agreement.
    tau : float, array, text or "auto", default="auto"
        Proximal weight on U: a number, one number an agent, or text such as "20 + d" for 20 plus the agent's degree.
    zeta : float, array or "auto", default="auto"
        Proximal weight on A.
    gamma : float, "paper" or "auto", default="auto"
        Step of the multiplier: a number, the paper's rule for each edge (with ``delta``), or 1, which "auto" is.
    delta : float, default=10.0
        The constant in the paper's rule for gamma and in its convergence conditions.
    proximal : {"linear", "standard"}, default="linear"
        P_t = tau I - rho d_t I ("linear") or P_t = tau I ("standard"); "auto" tau is the same in both.
    init : {"spectral", "random", "ones"}, default="spectral"
        Start: leading singular vectors of all tasks' own weights, found by neighbour exchange; a block from the shared
        seed; or the paper's ones, from which U never has more than one independent column.
    max_iter : int, default=1000
        Most rounds.
    tol : float, default=1e-2
        Stop when agents are within ``tol`` of their mean and the Lagrangian's gradient is within ``tol``, both
        relative.

    Examples
    --------
    >>> from elmesh import DMTLELM, MultiTaskELMClassifier
    >>> model = MultiTaskELMClassifier(n_hidden=50, solver=DMTLELM(rank=4, graph="star"))
    """

    first_order = False

    def __init__(
        self,
        rank: int | str = "auto",
        mu1: float = 1.0,
        mu2: float = 1.0,
        graph: Any = "ring",
        rho: float | str = "auto",
        tau: Any = "auto",
        zeta: Any = "auto",
        gamma: float | str = "auto",
        delta: float = 10.0,
        proximal: str = "linear",
        init: str = "spectral",
        max_iter: int = 1000,
        tol: float = 1e-2,
    ) -> None:
        self.rank = rank
        self.mu1 = mu1
        self.mu2 = mu2
        self.graph = graph
        self.rho = rho
        self.tau = tau
        self.zeta = zeta
        self.gamma = gamma
        self.delta = delta
        self.proximal = proximal
        self.init = init
        self.max_iter = max_iter
        self.tol = tol
