"""The network file as text: from TOML to the fields of a plan, and back with comments for whoever edits it."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Callable, Mapping
from typing import Any

from elmesh.data.features import ACTIVATIONS
from elmesh.errors import ElmeshError
from elmesh.netconfig.checks import LARGEST_SEED, MOST
from elmesh.netconfig.fields import Fields, parse_toml
from elmesh.netconfig.inputs import CategoricalInput, Input, NumericInput

__all__ = ["read_fields", "write_plan"]

_TOP = ("name", "kind", "rounds", "exchange", "statistics", "most_rows", "routers")
_SECTIONS = ("model", "target", "agents", "graph", "columns")
_MODEL = ("n_hidden", "activation", "weight_scale", "seed", "fit_intercept", "rank", "solver", "parameters")


def read_fields(text: str) -> dict[str, Any]:
    """Read the fields of a plan out of TOML, each of the type it must be.

    Parameters
    ----------
    text
        TOML.

    Returns
    -------
    dict
        What :class:`~elmesh.netconfig.config.Plan` takes, with each member as a dict.
    """
    top = parse_toml(text)
    top.only(*_TOP, *_SECTIONS)
    model, target, graph = top.table("model"), top.table("target"), top.table("graph")
    model.only(*_MODEL)
    target.only("range")
    graph.only("edges")
    found = {
        "name": top.text("name"),
        "members": [_member(agent) for agent in top.tables("agents", MOST["agents"])],
        "edges": _edges(graph),
        "kind": top.text("kind"),
        "columns": tuple(_column(column) for column in top.tables("columns", MOST["columns"])),
        "target_range": _range(target, "range"),
        "routers": tuple(top.items("routers", str, "a list of addresses", [])),
        "parameters": model.table("parameters").data,
    }
    # What is left out is as the plan has it by default.
    some: dict[str, Callable[[], Any]] = {
        "exchange": lambda: top.text("exchange"),
        "statistics": lambda: top.flag("statistics"),
        "rounds": lambda: top.whole("rounds", 1, MOST["rounds"]),
        "most_rows": lambda: top.whole("most_rows", 1, MOST["most_rows"]),
        "n_hidden": lambda: model.whole("n_hidden", 1, MOST["n_hidden"]),
        "activation": lambda: model.text("activation"),
        "weight_scale": lambda: _or_auto(model, "weight_scale", None, lambda: model.positive("weight_scale")),
        "seed": lambda: model.whole("seed", 0, LARGEST_SEED),
        "fit_intercept": lambda: model.flag("fit_intercept"),
        "rank": lambda: _or_auto(model, "rank", "auto", lambda: model.whole("rank", 1, MOST["n_hidden"])),
        "solver": lambda: model.text("solver"),
    }
    return found | {name: take() for name, take in some.items() if (model if name in _MODEL else top).has(name)}


def _member(agent: Fields) -> dict[str, str]:
    agent.only("name", "address")
    return {"name": agent.text("name"), "address": agent.text("address")}


def _edges(graph: Fields) -> tuple[tuple[str, str], ...]:
    pairs = graph.items("edges", list, 'a list of pairs, such as [["north", "south"]]', [])
    for pair in pairs:
        if len(pair) != 2 or not all(isinstance(name, str) for name in pair):
            raise ElmeshError(f'"{graph.place("edges")}" has {str(pair)[:60]}; expected pairs of two agents\' names.')
    return tuple((pair[0], pair[1]) for pair in pairs)


def _column(column: Fields) -> Input:
    column.only("name", "range", "categories", "missing")
    name, missing = column.text("name"), column.flag("missing", False)
    if not column.has("categories"):
        least, most = _range(column, "range") or (None, None)
        return NumericInput(name, least, most, missing)
    if column.has("range"):
        raise ElmeshError(f'Column "{name}" has a range and categories; it is of numbers or of categories, not both.')
    return CategoricalInput(name, tuple(column.items("categories", str, "a list of texts")), missing)


def _range(fields: Fields, name: str) -> tuple[Any, Any] | None:
    if not fields.has(name):
        return None
    ends = fields.items(name, object, "two numbers, such as [0.0, 100.0]")
    if len(ends) != 2:
        raise ElmeshError(f'"{fields.place(name)}" has {len(ends)} values; expected two, such as [0.0, 100.0].')
    return ends[0], ends[1]


def _or_auto(fields: Fields, name: str, auto: Any, take: Callable[[], Any]) -> Any:
    return auto if fields.data[name] == "auto" else take()


def write_plan(plan: Mapping[str, Any], remark: str = "") -> str:
    """Write a network file.

    Parameters
    ----------
    plan
        The fields of a plan, members and columns as dicts.
    remark
        What to say in a comment at the top.
    """
    lines = [
        "# The network file: public, and the same at every agent. Agents whose files differ in more than comments",
        "# and the order of sections refuse each other.",
        *(f"# {line}" for line in textwrap.wrap(remark, 110)),
        "",
        *_pair("name", plan["name"], "the network's name: a-z, 0-9, _ and -"),
        *_pair("kind", plan["kind"], '"classification" or "regression"'),
        *_pair("rounds", plan["rounds"], 'rounds of messages: all are run with exchange "basis", at most so many else'),
        *_pair(
            "exchange",
            plan["exchange"],
            'what agents tell: "basis", U_t to neighbours and nothing else; "sums", sums over all agents as well',
        ),
        *_pair(
            "statistics",
            plan["statistics"],
            "whether count, mean and variance of columns without a range may be exchanged",
        ),
        *_pair("most_rows", plan["most_rows"], "the most rows any agent has; bounds how large a neighbour's U can be"),
        *_pair("routers", plan["routers"], 'addresses of routers, "host:port", for agents nobody can connect to'),
        "",
        "[model]  # the shared hidden layer and the solver",
        *_pair("n_hidden", plan["n_hidden"], "hidden units"),
        *_pair("activation", plan["activation"], f"what a hidden unit does: {', '.join(ACTIVATIONS)}"),
        *_pair("weight_scale", _auto(plan["weight_scale"]), 'size of hidden weights; "auto": by the number of columns'),
        *_pair("seed", plan["seed"], "the hidden weights and the start come from it; no secret"),
        *_pair("fit_intercept", plan["fit_intercept"], "whether each agent's outputs have an offset of their own"),
        *_pair("rank", plan["rank"], 'directions the agents share; "auto" only with exchange "sums"'),
        *_pair("solver", plan["solver"], '"dmtl-elm" or "fo-dmtl-elm"'),
        "",
        "[model.parameters]  # of the solver, as elmesh's documentation has them",
        *(line for name, value in plan["parameters"].items() for line in _pair(name, value, _MEANING.get(name, ""))),
    ]
    if plan["target_range"] is not None:
        lines += ["", "[target]", *_pair("range", plan["target_range"], "of what is predicted; scales it, no limit")]
    lines += ["", "# Who takes part: an agent's name, and the address at which its neighbours reach it."]
    for member in plan["members"]:
        lines += ["[[agents]]", *_pair("name", member["name"]), *_pair("address", member["address"])]
    lines += ["", "[graph]", "# Who talks to whom; each pair once, and everybody connected to everybody by some way."]
    lines += ["edges = [", *(f"  {_value(edge)}," for edge in plan["edges"]), "]", "", *_COLUMNS]
    for column in plan["columns"]:
        lines += ["[[columns]]"]
        lines += [line for name, value in column.items() if value is not None for line in _pair(name, value)]
    return "\n".join(lines) + "\n"


_MEANING = {
    "mu1": "penalty on U",
    "mu2": "penalty on each agent's own weights",
    "rho": "weight of agreement between neighbours",
    "tau": "proximal weight on U",
    "zeta": "proximal weight on each agent's own weights",
    "gamma": "step of the multipliers",
    "delta": 'constant of the rule gamma = "paper"',
    "proximal": '"linear" or "standard"',
    "method": '"varpro" or "admm"',
    "message_bits": "bits a number in messages",
    "tol": "residual at which the run is done",
    "init": "where U starts",
    "certify": "whether to bound how far the result is from the best",
}

_COLUMNS = (
    "# The columns to learn from, the same at every agent: name, and",
    "#   range = [least, most]      for numbers: scales them, and is no limit; or",
    '#   categories = ["a", "b"]    all there may be; any other counts as none of them;',
    "#   missing = true             if values may be missing, which is then a column of its own.",
)


def _pair(name: str, value: object, comment: str = "") -> list[str]:
    """Give a field on its line, with what it does on the line before where both are long."""
    line = f"{name} = {_value(value)}"
    if not comment:
        return [line]
    return [f"{line}  # {comment}"] if len(line) + len(comment) <= 114 else [f"# {comment}", line]


def _value(value: object) -> str:
    if isinstance(value, str):
        # JSON's escapes are TOML's too, as long as every character is written as itself.
        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_value, value))}]"
    return repr(value)


def _auto(value: object) -> object:
    return "auto" if value is None else value
