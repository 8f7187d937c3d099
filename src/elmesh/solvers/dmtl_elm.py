"""DMTL-ELM: tasks are agents in a graph and agree on U; by variable projection, or by the paper's Algorithm 2."""

from __future__ import annotations

from typing import Any

from elmesh.checks import check_choice, check_number
from elmesh.comm.requests import Kept, Place, Program
from elmesh.data.statistics import Task
from elmesh.errors import ElmeshError
from elmesh.solvers.admm import ProximalADMM

__all__ = ["DMTLELM"]

_BITS = (2, 4, 8, 16, 32, 64, "auto")
# What only one of the two methods knows, with its default.
_ONLY_ADMM = {"rho": "auto", "tau": "auto", "zeta": "auto", "gamma": "auto", "delta": 10.0, "proximal": "linear"}


class DMTLELM(ProximalADMM):
    r"""Decentralised multi-task ELM.

    Every task is an agent in a connected graph, and only neighbours talk to each other. Together they minimise

    .. math:: \sum_t \tfrac12 |H_t U A_t - T_t|^2 + \tfrac{\mu_1}{2}|U|^2 + \tfrac{\mu_2}{2}\sum_t|A_t|^2 ,

    each with its own rows, targets and A_t; what they exchange are L x r blocks and a few numbers.

    Parameters
    ----------
    rank : int or "auto", default="auto"
        Number of columns of U. "auto" grows it until the certificate says that no further column would help, and takes
        off columns that are not used; with ``method="admm"`` it is two for each column of the widest target.
    mu1, mu2 : float or "auto", default="auto"
        Penalties on U and on the A_t. "auto" compares the features' correlation with the targets and with noise of the
        strength that the tasks' own fits suggest (:mod:`elmesh.math.noise`). The solution depends on their product.
    graph : str or networkx.Graph, default="ring"
        "ring", "path", "star", "complete", "random", "grid", or a graph whose nodes are the task labels.
    method : {"varpro", "admm"}, default="varpro"
        "varpro": A_t solved out, the same quasi-Newton step at every agent, from gradients added up over the graph.
        "admm": the paper's proximal ADMM, in which each agent has its own U_t and neighbours are drawn together.
    message_bits : {2, 4, 8, 16, 32, 64, "auto"}, default=64
        Bits a number in messages. Up to 32, a message tells by how much its content has changed, rounded, and what
        rounding left out is told with the next; sums then go along a spanning tree, which takes the fewest bytes. 64
        is exact, and takes the fewest rounds. "auto" takes the fewest bits whose error is within two fifths of what is
        told, and more where a message is short anyway. The solution is the same. For ``method="varpro"``.
    max_bytes : float or None, default=None
        What all agents together may send; the run ends before a message that might exceed it, without a certificate if
        there is no room for one.
    rho : float or "auto", default="auto"
        Weight of agreement. This and the next five are for ``method="admm"``.
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
    init : {"spectral", "random", "seed", "ones"}, default="spectral"
        Start: leading singular vectors of all tasks' own weights, found by neighbour exchange; a block from the shared
        seed, scaled by what all tasks together make of it; the block as it is, for which nothing is sent; or the
        paper's ones, from which U has one independent column but for rounding.
    max_iter : int, default=1000
        Most rounds of the method; a round of "varpro" takes as many rounds of messages as a sum over the graph does.
    tol : float, default=1e-2
        Stop when the objective's gradient in U is within ``tol`` of the penalty's (with "admm", when agents are within
        ``tol`` of their mean and the Lagrangian's gradient is within ``tol``, both relative).
    certify : bool, default=True
        Whether to bound, in the end, how far the objective is from the best of any rank.
    runtime : {"stacked", "mpi"}, default="stacked"
        Where agents run: all in this process, or spread over the processes of an MPI job (``mpiexec -n 8 python
        script.py``), with results that do not depend on how many there are.

    Examples
    --------
    >>> from elmesh import DMTLELM, MultiTaskELMClassifier
    >>> model = MultiTaskELMClassifier(n_hidden=50, solver=DMTLELM(rank=4, graph="star", message_bits=4))
    """

    first_order = False

    def __init__(
        self,
        rank: int | str = "auto",
        mu1: float | str = "auto",
        mu2: float | str = "auto",
        graph: Any = "ring",
        method: str = "varpro",
        message_bits: int | str = 64,
        max_bytes: float | None = None,
        rho: float | str = "auto",
        tau: Any = "auto",
        zeta: Any = "auto",
        gamma: float | str = "auto",
        delta: float = 10.0,
        proximal: str = "linear",
        init: str = "spectral",
        max_iter: int = 1000,
        tol: float = 1e-2,
        certify: bool = True,
        runtime: str = "stacked",
    ) -> None:
        super().__init__(
            rank, mu1, mu2, graph, rho, tau, zeta, gamma, delta, proximal, init, max_iter, tol, certify, runtime
        )
        self.method = method
        self.message_bits = message_bits
        self.max_bytes = max_bytes

    @property
    def own_basis(self) -> bool:
        """Whether every agent holds a U of its own."""
        return self.method == "admm"

    @property
    def grows(self) -> bool:
        """Whether the certificate decides about an automatic rank."""
        return self.method == "varpro"

    def check(self) -> None:
        """Check every parameter, and that none is given which the method does not know."""
        check_choice("method", self.method, ("varpro", "admm"))
        super().check()
        bits = self.message_bits
        if not isinstance(bits, (int, str)) or isinstance(bits, bool) or bits not in _BITS:
            raise ElmeshError(f"message_bits must be one of {', '.join(map(str, _BITS))}; got {self.message_bits!r}.")
        if self.max_bytes is not None:
            check_number("max_bytes", self.max_bytes)
        if self.method == "admm":
            if self.message_bits != 64:
                raise ElmeshError('message_bits is for method="varpro"; leave it at 64 with method="admm".')
            return
        for name, default in _ONLY_ADMM.items():
            value = getattr(self, name)
            if type(value) is not type(default) or value != default:
                raise ElmeshError(f'{name} is a parameter of method="admm"; add that, or leave {name} out.')

    def program(self, task: Task, place: Place, rank: int, kept: Kept | None = None) -> Program:
        """Return the rounds of one agent, or of all agents stacked."""
        if self.method == "admm":
            return super().program(task, place, rank, kept)
        return self.by_projection(task, place, rank, kept)
