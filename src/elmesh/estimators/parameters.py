"""An estimator's parameters as JSON and back, its solver and graph included; no pickle, and no code is imported."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import networkx as nx
import numpy as np
from sklearn.base import BaseEstimator

from elmesh.errors import ElmeshError
from elmesh.privacy.budget import Privacy
from elmesh.solvers import Solver, solver_classes
from elmesh.solvers.base import Problem, Solution, Steps
from elmesh.solvers.mesh_elm import MeshELM
from elmesh.solvers.state import SolverState

__all__ = ["UnknownSolver", "describe", "restore"]

# In version 0.4 these names, without parameters, meant what is now MeshELM with this graph.
_MESH_GRAPH = {"dmtl-elm": "ring", "mtl-elm": None}
# In version 0.4 these solvers had a parameter "runtime".
_RUNTIME = ("dmtl-elm", "fo-dmtl-elm", "dgsp", "dnsp", "fedrep", "dif-altgdmin")


@dataclass(repr=False, eq=False)
class UnknownSolver(Solver, abstract=True):
    """Stands for the solver of a saved model whose class is not defined here: the model predicts, but cannot be fitted.

    Parameters
    ----------
    solver_name : str
        The solver's short name.
    parameters : dict, optional
        Its parameters, as they were saved.
    """

    solver_name: str = "unknown"
    parameters: dict[str, Any] | None = None

    def check(self) -> None:
        """Raise: the class is missing."""
        raise ElmeshError(
            f"The solver {self.solver_name!r} is not defined in this program; import the module that defines it before "
            "fitting or setting parameters."
        )

    def for_one_task(self) -> UnknownSolver:
        """Return a copy without parameters that may refer to other tasks."""
        own = {name: x for name, x in (self.parameters or {}).items() if not isinstance(x, (list, dict))}
        return UnknownSolver(self.solver_name, own)

    def init_state(self, problem: Problem) -> Steps[SolverState]:
        """Raise: the class is missing."""
        yield from ()
        self.check()
        raise TypeError

    def solution(self, problem: Problem, state: SolverState) -> Solution:
        """Raise: the class is missing."""
        self.check()
        raise TypeError


def describe(estimator: BaseEstimator) -> dict[str, Any]:
    """Return the estimator's parameters in a form that JSON can hold."""
    plain = {name: _plain(value) for name, value in estimator.get_params(deep=False).items()}
    if isinstance(plain.get("solver"), str):
        # Not as text alone: there two names have another meaning in files of version 0.4.
        plain["solver"] = {"solver": plain["solver"]}
    return plain


def restore(description: Mapping[str, Any]) -> dict[str, Any]:
    """Return constructor arguments from what :func:`describe` returned, now or in version 0.4."""
    found = {str(name): _object(value) for name, value in description.items()}
    solver = description.get("solver")
    if isinstance(solver, str) and solver in _MESH_GRAPH:
        found["solver"] = MeshELM(graph=_MESH_GRAPH[solver])
    return found


def _plain(value: Any) -> Any:
    if isinstance(value, Solver):
        if isinstance(value, UnknownSolver):
            return {"solver": value.solver_name, "parameters": value.parameters or {}}
        return {"solver": value.name, "parameters": describe(value)}
    if isinstance(value, (Privacy, nx.Graph)):
        return _plain_object(value)
    if isinstance(value, (np.ndarray, list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, np.generic):
        return value.item()
    # A RandomState has served its purpose; the seed drawn from it is saved with the hidden layer.
    return value if isinstance(value, (bool, int, float, str)) else None


def _plain_object(value: Privacy | nx.Graph) -> dict[str, Any]:
    if isinstance(value, Privacy):
        return {"privacy": {name: _plain(x) for name, x in asdict(value).items()}}
    return {"nodes": [_plain(node) for node in value.nodes], "edges": [[_plain(n) for n in e] for e in value.edges()]}


def _object(value: Any) -> Any:
    if not isinstance(value, Mapping):
        return value
    if "solver" in value:
        name = str(value["solver"])
        if "parameters" not in value:
            return name
        name, parameters = _current(name, dict(value["parameters"]))
        known = solver_classes().get(name)
        try:
            return UnknownSolver(name, parameters) if known is None else known(**restore(parameters))
        except TypeError:
            # A solver of the same name with other parameters.
            return UnknownSolver(name, parameters)
    if "privacy" in value:
        return Privacy(**{name: _tuple(x) for name, x in value["privacy"].items()})
    graph = nx.Graph()
    graph.add_nodes_from(value["nodes"])
    graph.add_edges_from(map(tuple, value["edges"]))
    return graph


def _tuple(value: Any) -> Any:
    """Return lists, which JSON has in place of tuples, as tuples."""
    return tuple(map(_tuple, value)) if isinstance(value, list) else value


def _current(name: str, parameters: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """Return a solver's name and parameters as this version has them, from those of version 0.4."""
    method = parameters.pop("method", None) if name in _MESH_GRAPH else None
    if method == "varpro":
        known = {key: parameters[key] for key in MeshELM().get_params() if key in parameters}
        return "mesh-elm", known if name == "dmtl-elm" else {**known, "graph": None}
    if method == "admm":
        del parameters["message_bits"], parameters["max_bytes"]
    if name in _RUNTIME:
        parameters.pop("runtime", None)
    if name in ("fedrep", "dif-altgdmin") and "step" in parameters:
        step = parameters.pop("step")
        parameters["step_scale"] = 1.0 if step == "auto" else step
    return name, parameters
