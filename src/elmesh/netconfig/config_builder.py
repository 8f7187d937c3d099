"""A plan from what somebody says on a command line."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from elmesh.comm.graph import make_topology
from elmesh.errors import ElmeshError
from elmesh.netconfig.config import Member, Plan
from elmesh.netconfig.example import Example
from elmesh.netconfig.names import Address, check_name, parse_address

__all__ = ["draft_plan", "lay_out", "name_of"]

_LAST_PORT = 65535
# For features and targets of size one or so, which declared ranges make; rho holds neighbours together from tens to
# thousands of rows a site.
_BASIS_NUMBERS = {"mu1": 1.0, "mu2": 1.0, "rho": 10.0}


def draft_plan(
    name: str, agents: Sequence[str], graph: str, listen: Sequence[str], example: Example, **fields: Any
) -> Plan:
    """Make a plan.

    Parameters
    ----------
    name
        The network's name.
    agents
        The agents' names, in the order that the graph takes them in: the first is the centre of a star.
    graph
        The graph's name.
    listen
        An address for each agent, or one from which ports count up.
    example
        What the columns are; none of them in an empty one.
    **fields
        Other fields of the plan: rounds, n_hidden, rank, exchange, seed.

    Examples
    --------
    >>> nothing = Example("classification", "", (), None)
    >>> plan = draft_plan("trio", ["b", "a", "c"], "star", ["127.0.0.1:7451"], nothing)
    >>> plan.edges, plan.members[0].address
    ((('a', 'b'), ('b', 'c')), '127.0.0.1:7452')
    """
    for agent in agents:
        check_name(agent, "The name of an agent")
    places = lay_out(listen, agents)
    edges = make_topology(graph, list(agents), seed=fields.get("seed", 0)).edges.tolist()
    return Plan(
        name,
        tuple(Member(agent, str(place)) for agent, place in zip(agents, places, strict=True)),
        tuple((agents[i], agents[j]) for i, j in edges),
        example.kind,
        columns=example.columns,
        target_range=example.target_range,
        parameters=_BASIS_NUMBERS if fields.get("exchange", "basis") == "basis" else {},
        **fields,
    )


def lay_out(listen: Sequence[str], agents: Sequence[str]) -> list[Address]:
    """Give each agent its address: those said, or ports that count up from the one said.

    Examples
    --------
    >>> [str(place) for place in lay_out(["[::1]:7000"], ["a", "b"])]
    ['[::1]:7000', '[::1]:7001']
    """
    places = [parse_address(text, "An address of --listen") for text in listen]
    if len(places) == 1:
        host, first = places[0]
        if first + len(agents) - 1 > _LAST_PORT:
            raise ElmeshError(
                f"--listen {listen[0]} leaves no ports for {len(agents)} agents, one each; start lower than "
                f"{_LAST_PORT - len(agents) + 2}."
            )
        return [Address(host, first + i) for i in range(len(agents))]
    if len(places) != len(agents):
        raise ElmeshError(
            f"--listen has {len(places)} addresses for {len(agents)} agents; give one for each, or a single one from "
            "which ports count up."
        )
    return places


def name_of(folder: str) -> str:
    """Make a network's name of a folder's.

    Examples
    --------
    >>> name_of("My Net!"), name_of("...")
    ('my-net', 'network')
    """
    return re.sub(r"[^a-z0-9_-]+", "-", folder.lower()).strip("-_")[:32] or "network"
