"""Write the list of solvers in docs/solvers.md from the registry."""

from __future__ import annotations

import sys

from elmesh.comm.requests import AllReduce, HubReduce, NeighborSum
from elmesh.netconfig.exchange import PROVIDES
from elmesh.solvers import Solver, solver_classes
from pages import ROOT, fill, table

PAGE = ROOT / "docs" / "solvers.md"
REQUESTS = {NeighborSum: "neighbours", AllReduce: "sums over all agents", HubReduce: "the hub of a star"}


def package_solvers() -> dict[str, type[Solver]]:
    """Return the solvers of the package by short name, the default first."""
    own = {name: cls for name, cls in solver_classes().items() if cls.__module__.startswith("elmesh.solvers.")}
    return {"mesh-elm": own["mesh-elm"], **dict(sorted(own.items()))}


def communication(solver: Solver) -> str:
    if solver.pooled:
        return "all data in one place"
    return " and ".join(text for request, text in REQUESTS.items() if request in solver.requires) or "none"


def network_exchange(solver: Solver) -> str:
    """Return the values of ``exchange`` with which a network can run a solver."""
    if solver.sends_only_basis:
        return "basis, sums"
    usable = {"graph", "rank"} <= set(solver.get_params())  # a network file sets both
    return "sums" if usable and solver.requires and set(solver.requires) <= PROVIDES["sums"] else "no"


def block() -> str:
    rows = [
        [f"`{cls.__name__}`", f"`{name}`", cls.summary, communication(cls()), network_exchange(cls())]
        for name, cls in package_solvers().items()
    ]
    return "\n".join(table(["class", "short name", "method", "communication", "network"], rows))


def filled(text: str) -> str:
    """Return the page with the solvers of the registry."""
    return fill(text, "solvers", block())


if __name__ == "__main__":
    PAGE.write_text(filled(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    print(f"{PAGE.name} is up to date.", file=sys.stderr)
