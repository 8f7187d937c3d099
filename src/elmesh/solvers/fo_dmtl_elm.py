"""FO-DMTL-ELM (Algorithm 3): the paper's ADMM with the fit linearised in U."""

from __future__ import annotations

from elmesh.solvers.admm import ProximalADMM

__all__ = ["FODMTLELM"]


class FODMTLELM(ProximalADMM):
    """Decentralised multi-task ELM with first-order U steps.

    The parameters are those of :class:`DMTLELM` with ``method="admm"``. A step follows the gradient of the fit at the
    current U, equation (23), so that its weight must exceed the fit's curvature: "auto" measures that curvature, agent
    by agent, each round. Once the exact step is done by two diagonalisations it costs no more than this one and takes
    fewer rounds; the method is here as the paper's own, and for comparison.

    Examples
    --------
    >>> from elmesh import FODMTLELM
    >>> FODMTLELM(rank=3).rank
    3
    """

    first_order = True
