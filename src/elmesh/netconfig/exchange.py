"""What agents tell each other, and the solver that keeps to it.

With ``exchange = "basis"`` nothing but its basis U_t leaves an agent, to its neighbours and nobody else. Whatever would
have to be agreed on over the whole network is then a number in the network file: rank, penalties and rho; the start
comes from the shared seed, and the run takes all its rounds, for nobody knows when the others are done.

With ``exchange = "sums"`` sums over all agents of blocks like U and of a few numbers go along a spanning tree of the
graph too, which lets the agents choose these things together, stop when it is done, and certify the result. The first
sum that an agent passes on may be its own share alone, so a neighbour can learn more.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import networkx as nx

from elmesh.errors import ElmeshError
from elmesh.netconfig.fields import suggest
from elmesh.solvers import SOLVERS, Solver, make_solver

__all__ = ["EXCHANGES", "Exchange", "choose_solver", "clean_parameters"]

Exchange = Literal["basis", "sums"]
EXCHANGES = ("basis", "sums")

_SOLVERS = ("dmtl-elm", "fo-dmtl-elm")
# What the network file says elsewhere: by which name it is known there.
_ELSEWHERE = {
    "rank": "rank in [model]",
    "graph": "edges in [graph]",
    "max_iter": "rounds",
    "max_bytes": "rounds, which bounds them",
    "runtime": "the command that runs it",
}
# What has no choice left when nothing but U_t may be told.
_FIXED = {"method": "admm", "init": "seed", "certify": False, "tol": 0.0, "message_bits": 64}
_NUMBERS = ("mu1", "mu2", "rho")


def clean_parameters(solver: str, parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Give a solver's parameters in the one way they are written, sorted, or say which is unknown.

    Parameters
    ----------
    solver
        Its short name.
    parameters
        By name; texts, numbers, true and false.

    Examples
    --------
    >>> clean_parameters("dmtl-elm", {"rho": 2, "mu1": 0.5})
    {'mu1': 0.5, 'rho': 2.0}
    """
    if solver not in _SOLVERS:
        raise ElmeshError(f"solver is {solver!r}; expected one of {', '.join(_SOLVERS)}.")
    known = [name for name in SOLVERS[solver]().get_params() if name not in _ELSEWHERE]
    for name, value in parameters.items():
        if name in _ELSEWHERE:
            raise ElmeshError(f"{name} is no field of [model.parameters]; it is given by {_ELSEWHERE[name]}.")
        if name not in known:
            raise ElmeshError(f'"{name[:60]}" is no parameter of {solver}; {suggest(name, sorted(known))}')
        if not isinstance(value, str | int | float):
            raise ElmeshError(f"{name} in [model.parameters] is {value!r}; expected a number or a text.")
    # 2 and 2.0 are the same parameter; bits are counted.
    return {name: value if name == "message_bits" else _plain(value) for name, value in sorted(parameters.items())}


def choose_solver(
    name: str, parameters: Mapping[str, Any], exchange: Exchange, *, rank: int | str, rounds: int, graph: nx.Graph
) -> Solver:
    """Make the solver that tells no more than may be told.

    Parameters
    ----------
    name
        Its short name.
    parameters
        As :func:`clean_parameters` gives them.
    exchange
        What may be told.
    rank, rounds, graph
        The model's rank, the most rounds, and the agents' graph over their names.

    Returns
    -------
    Solver
        With checked parameters.
    """
    common = {"rank": rank, "graph": graph, "max_iter": rounds}
    options = _basis_only(name, parameters, rank) if exchange == "basis" else dict(parameters)
    return make_solver(SOLVERS[name](**common, **options))


def _basis_only(name: str, parameters: Mapping[str, Any], rank: int | str) -> dict[str, Any]:
    fixed = {key: value for key, value in _FIXED.items() if key in SOLVERS[name]().get_params()}
    for key, value in fixed.items():
        asked = parameters.get(key, value)
        if type(asked) is not type(value) or asked != value:
            raise _needs_sums(f"{key} can only be {_toml(value)}, not {_toml(asked)}", "leave it out")
    for key, value in {"rank": rank, **{key: parameters.get(key, "auto") for key in _NUMBERS}}.items():
        if value == "auto":
            raise _needs_sums(f'{key} must be a number, for "auto" is found from all agents\' data', "give one")
    return {**parameters, **fixed}


def _plain(value: Any) -> Any:
    """Make a whole number that a float can hold a float, and 0 of -0."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) + 0.0 if is_number and abs(value) < 2**53 else value


def _needs_sums(problem: str, remedy: str) -> ElmeshError:
    return ElmeshError(
        f'With exchange = "basis" {problem}; {remedy}, or let sums over all agents be told as well by '
        'exchange = "sums".'
    )


def _toml(value: object) -> str:
    return f'"{value}"' if isinstance(value, str) else str(value).lower()
