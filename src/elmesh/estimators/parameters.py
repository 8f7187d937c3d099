"""An estimator's parameters as JSON and back, its solver and graph included; no pickle."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import networkx as nx
import numpy as np
from sklearn.base import BaseEstimator

from elmesh.errors import ElmeshError
from elmesh.solvers import SOLVERS, Solver

__all__ = ["describe", "restore"]


def describe(estimator: BaseEstimator) -> dict[str, Any]:
    """Return the estimator's parameters in a form JSON can hold."""
    return {name: _plain(value) for name, value in estimator.get_params(deep=False).items()}


def restore(description: Mapping[str, Any]) -> dict[str, Any]:
    """Return constructor arguments from what :func:`describe` gave."""
    return {str(name): _object(value) for name, value in description.items()}


def _plain(value: Any) -> Any:
    if isinstance(value, Solver):
        name = next(name for name, kind in SOLVERS.items() if type(value) is kind)
        return {"solver": name, "parameters": describe(value)}
    if isinstance(value, nx.Graph):
        return {
            "nodes": [_plain(node) for node in value.nodes],
            "edges": [[_plain(n) for n in e] for e in value.edges()],
        }
    if isinstance(value, (np.ndarray, list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, np.generic):
        return value.item()
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    # A RandomState has done its work; the seed drawn from it is kept with the hidden layer.
    return None


def _object(value: Any) -> Any:
    if not isinstance(value, Mapping):
        return value
    if "solver" in value:
        name = value["solver"]
        if name not in SOLVERS:
            raise ElmeshError(f"The model was made by the solver {name!r}, which this version does not know.")
        try:
            return SOLVERS[name](**restore(value["parameters"]))
        except TypeError as error:
            raise ElmeshError(f"The model's parameters of {name} are not those of this version.") from error
    graph = nx.Graph()
    graph.add_nodes_from(value["nodes"])
    graph.add_edges_from(map(tuple, value["edges"]))
    return graph
