"""FO-DMTL-ELM (Algorithm 3): the paper's ADMM with the fit linearised in U."""

from __future__ import annotations

from typing import ClassVar

from elmesh.solvers.admm import ProximalADMM

__all__ = ["FODMTLELM"]


class FODMTLELM(ProximalADMM):
    """Decentralised multi-task ELM with first-order U steps, Algorithm 3 of the paper.

    The parameters are those of :class:`DMTLELM`. A step follows the gradient of the fit at the current U, equation
    (23), so its weight must exceed the fit's curvature: "auto" measures that curvature, agent by agent, each round.
    With two diagonalisations the exact step costs no more than this one and takes fewer rounds; the method is here as
    the paper's own, and for comparison.

    Examples
    --------
    >>> from elmesh import FODMTLELM
    >>> FODMTLELM(rank=3).rank
    3
    """

    name: ClassVar[str] = "fo-dmtl-elm"
    summary: ClassVar[str] = "the paper's Algorithm 3: proximal ADMM with first-order steps"
    first_order: ClassVar[bool] = True
