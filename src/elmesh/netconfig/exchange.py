"""The data that agents exchange, and a solver that sends no other data.

With ``exchange = "sums"``, the default, agents send sums over all agents, which are masked: agents learn the totals
alone (:mod:`elmesh.comm.masking`). By them the agents choose all parameters together, stop on convergence, and
certify the result.

With ``exchange = "basis"``, the paper's way, an agent sends its basis U_t to its neighbours, and nothing else. But U_t
is not masked, and neighbours can reconstruct rows from it. Everything that would need agreement over the whole
network is then a number in the network file: rank, penalties and rho. The initial U comes from the shared seed. The run
takes all its rounds, because no agent can detect that the others have converged.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import networkx as nx

from elmesh.comm.requests import AllReduce, IntegerSum, NeighborSum, NoisySum, Request
from elmesh.comm.transport import MASKED_BITS
from elmesh.errors import ElmeshError
from elmesh.netconfig.toml import show_value, suggest, toml_value
from elmesh.privacy.budget import Privacy
from elmesh.solvers import Solver, make_solver, solver_classes

__all__ = [
    "PARAMETER_COMMENTS",
    "PROVIDES",
    "ROWS_PER_FEATURE",
    "Exchange",
    "choose_solver",
    "current_solver",
    "normalize_parameters",
]

Exchange = Literal["basis", "sums"]

#: Least number of rows for each feature whose totals are summed, unless the network file has another one: with fewer,
#: totals reveal more labels of known rows than a site's own model does (docs/attacks.md).
ROWS_PER_FEATURE = 20.0

#: Kinds of request that agents answer.
PROVIDES: dict[Exchange, frozenset[type[Request]]] = {
    "basis": frozenset({NeighborSum}),
    "sums": frozenset({AllReduce, IntegerSum, NoisySum}),
}
# Parameters of a solver that the network file sets outside [model.parameters], and the field that sets them.
_OTHER_FIELDS = {
    "rank": "rank in [model]",
    "graph": "edges in [graph]",
    "max_iter": "rounds",
    "max_bytes": "rounds, which bounds them",
    "privacy": "epsilon and delta in [privacy]",
}
# Parameters with a single valid value if agents send U_t only.
_FIXED = {"init": "seed", "certify": False, "tol": 0.0, "message_bits": 64}
_REQUIRED_NUMBERS = ("mu1", "mu2", "rho")
# Parameters that dmtl-elm has and mesh-elm has not.
_ADMM = {"rho", "tau", "zeta", "gamma", "delta", "proximal"}


def current_solver(solver: str, parameters: Mapping[str, Any], exchange: Exchange) -> tuple[str, dict[str, Any]]:
    """Return a solver's name and parameters as this version has them, from those of a file of version 0.4 as well.

    There dmtl-elm was two methods. With sums it is the one that is mesh-elm now, unless a parameter of ADMM is given;
    ADMM sends U_t, and needs another exchange.
    """
    rest = dict(parameters)
    if solver != "dmtl-elm":
        return solver, rest
    default = "varpro" if exchange == "sums" and _ADMM.isdisjoint(rest) else "admm"
    method = rest.pop("method", default)
    if method == "varpro":
        rest.pop("init", None)
        return "mesh-elm", rest
    if method != "admm":
        raise ElmeshError(f"method is {show_value(method)}; choose mesh-elm or dmtl-elm as the solver instead.")
    if rest.get("message_bits") == 64:
        del rest["message_bits"]
    return solver, rest


def normalize_parameters(solver: str, parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parameters of a solver in canonical form, sorted by name; raise if one is unknown.

    Examples
    --------
    >>> normalize_parameters("dmtl-elm", {"rho": 2, "mu1": 0.5})
    {'mu1': 0.5, 'rho': 2.0}
    """
    known = [name for name in _network_solver(solver)().get_params() if name not in _OTHER_FIELDS]
    for name, value in parameters.items():
        if name in _OTHER_FIELDS:
            raise ElmeshError(f"{name} is not a field of [model.parameters]; it is set by {_OTHER_FIELDS[name]}.")
        if name not in known:
            raise ElmeshError(f'"{name[:60]}" is not a parameter of {solver}; {suggest(name, sorted(known))}')
        if not isinstance(value, str | int | float):
            raise ElmeshError(f"{name} in [model.parameters] is {show_value(value)}; expected a number or a string.")
    # 2 and 2.0 are the same value of a parameter, except that message_bits is an integer.
    return {name: value if name == "message_bits" else _canonical(value) for name, value in sorted(parameters.items())}


def choose_solver(
    name: str,
    parameters: Mapping[str, Any],
    exchange: Exchange,
    *,
    rank: int | str,
    rounds: int,
    graph: nx.Graph,
    privacy: Privacy | None = None,
) -> Solver:
    """Return a solver, with normalized parameters, that sends no more than ``exchange`` allows."""
    made, common = _network_solver(name), {"rank": rank, "graph": graph, "max_iter": rounds}
    if exchange == "basis" and not made.sends_only_basis:
        raise _needs_sums(f"{name} cannot be used, because it sends more than U_t", "choose another solver")
    options = _basis_parameters(parameters, rank) if exchange == "basis" else dict(parameters)
    if name == "mesh-elm":
        # A file that does not name the other parts, as those of earlier versions, has the shared part alone.
        safe = {"rows_per_feature": ROWS_PER_FEATURE, "weigh_sites": False}
        options = {"common": False, "private": False, **safe, **options, "privacy": privacy}
    solver = make_solver(made(**common, **options))
    if exchange == "sums" and solver.message_bits not in MASKED_BITS:
        raise ElmeshError(
            f"message_bits is {show_value(solver.message_bits)}; masked sums have 16, 32 or 64 bits per number."
        )
    if NeighborSum in solver.requires and exchange == "sums":
        raise ElmeshError(
            f"{name} sends U_t to neighbours, from which they can reconstruct rows, and not only masked sums; use "
            'mesh-elm, or allow it with exchange = "basis".'
        )
    missing = sorted(request.__name__ for request in set(solver.requires) - PROVIDES[exchange])
    if missing:
        raise ElmeshError(f"{name} requires {' and '.join(missing)}, which a network does not provide.")
    return solver


def _network_solver(name: str) -> type[Solver]:
    """Return the class of a solver whose tasks are agents of a graph that can be given."""
    classes = solver_classes()
    usable = sorted(other for other, cls in classes.items() if {"graph", "rank"} <= set(cls().get_params()))
    if name not in usable:
        raise ElmeshError(f"solver is {show_value(name)}; a network can use one of {', '.join(usable)}.")
    return classes[name]


def _basis_parameters(parameters: Mapping[str, Any], rank: int | str) -> dict[str, Any]:
    for key, value in _FIXED.items():
        given = parameters.get(key, value)
        if type(given) is not type(value) or given != value:
            raise _needs_sums(f"{key} can only be {toml_value(value)}, not {toml_value(given)}", "remove it")
    for key, value in {"rank": rank, **{key: parameters.get(key, "auto") for key in _REQUIRED_NUMBERS}}.items():
        if value == "auto":
            raise _needs_sums(f'{key} must be a number, because "auto" is computed from all agents\' data', "give one")
    return {**parameters, **_FIXED}


def _canonical(value: Any) -> Any:
    """Return an integer that a float can represent as a float, and -0.0 as 0.0."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) + 0.0 if is_number and abs(value) < 2**53 else value


def _needs_sums(problem: str, remedy: str) -> ElmeshError:
    return ElmeshError(
        f'With exchange = "basis" {problem}; {remedy}, or let agents send masked sums over all agents, with '
        'exchange = "sums".'
    )


#: Comments in the network file on the parameters of solvers.
PARAMETER_COMMENTS = {
    "common": "whether weights have a part that is common to all agents",
    "private": "whether weights have a part of each agent's own, which is never sent",
    "rows_per_feature": "fewest rows of all agents per feature of the common and shared part; 0: no limit",
    "weigh_sites": "whether agents have weights in sums; an agent that sends wrong numbers could steer them",
    "mu1": "penalty on U",
    "mu2": "penalty on each agent's own weights",
    "rho": "penalty on the difference between neighbours",
    "tau": "proximal weight on U",
    "zeta": "proximal weight on each agent's own weights",
    "gamma": "step size of the multipliers",
    "delta": 'constant of the rule gamma = "paper"',
    "proximal": '"linear" or "standard"',
    "message_bits": "bits per number in messages",
    "tol": "residual at which the run stops",
    "init": "initial U",
    "certify": "whether to bound the distance of the result from the optimum",
}
