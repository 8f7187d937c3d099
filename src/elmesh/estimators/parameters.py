"""An estimator's parameters as JSON and back, its solver and graph included; no pickle, and no code is imported."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import networkx as nx
import numpy as np
from sklearn.base import BaseEstimator

from elmesh.errors import ElmeshError
from elmesh.solvers import Solver, solver_classes
from elmesh.solvers.base import Problem, Solution, Steps
from elmesh.solvers.state import SolverState

__all__ = ["UnknownSolver", "describe", "restore"]


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
    return {name: _plain(value) for name, value in estimator.get_params(deep=False).items()}


def restore(description: Mapping[str, Any]) -> dict[str, Any]:
    """Return constructor arguments from what :func:`describe` returned, now or in version 0.4."""
    return {str(name): _object(value) for name, value in description.items()}


def _plain(value: Any) -> Any:
    if isinstance(value, Solver):
        if isinstance(value, UnknownSolver):
            return {"solver": value.solver_name, "parameters": value.parameters or {}}
        return {"solver": value.name, "parameters": describe(value)}
    if isinstance(value, nx.Graph):
        nodes, edges = [_plain(node) for node in value.nodes], [[_plain(n) for n in e] for e in value.edges()]
        return {"nodes": nodes, "edges": edges}
    if isinstance(value, (np.ndarray, list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, np.generic):
        return value.item()
    # A RandomState has served its purpose; the seed drawn from it is saved with the hidden layer.
    return value if isinstance(value, (bool, int, float, str)) else None


def _object(value: Any) -> Any:
    if not isinstance(value, Mapping):
        return value
    if "solver" in value:
        name, parameters = _current(str(value["solver"]), dict(value["parameters"]))
        known = solver_classes().get(name)
        try:
            return UnknownSolver(name, parameters) if known is None else known(**restore(parameters))
        except TypeError:
            # A solver of the same name with other parameters.
            return UnknownSolver(name, parameters)
    graph = nx.Graph()
    graph.add_nodes_from(value["nodes"])
    graph.add_edges_from(map(tuple, value["edges"]))
    return graph


def _current(name: str, parameters: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """Return a solver's name and parameters as this version has them, from those of version 0.4."""
    parameters.pop("runtime", None)
    method = parameters.pop("method", None)
    if method == "varpro":
        graph = parameters.get("graph") if name == "dmtl-elm" else None
        known = ("rank", "mu1", "mu2", "message_bits", "max_bytes", "max_iter", "tol", "certify")
        return "mesh-elm", {"graph": graph, **{key: parameters[key] for key in known if key in parameters}}
    if method == "admm":
        parameters.pop("message_bits", None)
        parameters.pop("max_bytes", None)
    if "step" in parameters and name in ("fedrep", "dif-altgdmin"):
        step = parameters.pop("step")
        parameters["step_scale"] = 1.0 if step == "auto" else step
    return name, parameters
