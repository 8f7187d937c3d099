"""The methods, one a file. A solver is a scikit-learn estimator for its parameters and yields an algorithm."""

from __future__ import annotations

from elmesh.errors import ElmeshError
from elmesh.solvers.base import Solver
from elmesh.solvers.dgsp import DGSP
from elmesh.solvers.dif_altgdmin import DifAltGDmin
from elmesh.solvers.dmtl_elm import DMTLELM
from elmesh.solvers.dnsp import DNSP
from elmesh.solvers.fedrep import FedRep
from elmesh.solvers.fo_dmtl_elm import FODMTLELM
from elmesh.solvers.go_mtl import GOMTL
from elmesh.solvers.local_elm import LocalELM
from elmesh.solvers.mtfl import MTFL
from elmesh.solvers.mtl_elm import MTLELM
from elmesh.solvers.trace_norm import TraceNorm

__all__ = [
    "DGSP",
    "DMTLELM",
    "DNSP",
    "FODMTLELM",
    "GOMTL",
    "MTFL",
    "MTLELM",
    "SOLVERS",
    "DifAltGDmin",
    "FedRep",
    "LocalELM",
    "Solver",
    "TraceNorm",
    "make_solver",
]

#: Short names, as ``solver="dmtl-elm"`` and the command line use them.
SOLVERS: dict[str, type[Solver]] = {
    "local-elm": LocalELM,
    "mtl-elm": MTLELM,
    "dmtl-elm": DMTLELM,
    "fo-dmtl-elm": FODMTLELM,
    "mtfl": MTFL,
    "go-mtl": GOMTL,
    "dgsp": DGSP,
    "dnsp": DNSP,
    "dif-altgdmin": DifAltGDmin,
    "fedrep": FedRep,
    "trace-norm": TraceNorm,
}


def make_solver(solver: str | Solver) -> Solver:
    """Return a solver object with checked parameters, from itself or from its short name."""
    if isinstance(solver, str):
        if solver not in SOLVERS:
            raise ElmeshError(f"The solver {solver!r} is unknown; use one of {', '.join(SOLVERS)}.")
        return SOLVERS[solver]()
    if not isinstance(solver, Solver):
        raise ElmeshError(
            f"solver must be a name ({', '.join(SOLVERS)}) or a solver such as DMTLELM(), not {type(solver).__name__}."
        )
    solver.check()
    return solver
