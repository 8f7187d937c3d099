"""Build a network config from the options of ``elmesh network create``."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from elmesh.comm.graph import make_topology
from elmesh.errors import ElmeshError
from elmesh.netconfig.address import LAST_PORT, Address, parse_address
from elmesh.netconfig.config import AgentEntry, NetworkConfig
from elmesh.netconfig.data_spec import DataSpec
from elmesh.netconfig.names import check_name

__all__ = ["assign_addresses", "build_config", "default_name"]

# For features and targets of magnitude one, which declared ranges produce; this rho suits tens to thousands of rows per
# site.
_BASIS_PARAMETERS = {"mu1": 1.0, "mu2": 1.0, "rho": 10.0}


def build_config(
    name: str, agents: Sequence[str], graph: str, listen: Sequence[str], data: DataSpec, **fields: Any
) -> NetworkConfig:
    """Build the config of a network whose agents are the nodes of a named graph; the first is the centre of a star.

    ``listen`` has one address per agent, or a single one, whose port is that of the first agent.

    Examples
    --------
    >>> data = DataSpec("classification")
    >>> config = build_config("trio", ["b", "a", "c"], "star", ["127.0.0.1:7451"], data)
    >>> config.edges, config.agents[0].address
    ((('a', 'b'), ('b', 'c')), '127.0.0.1:7452')
    """
    for agent in agents:
        check_name("The name of an agent", agent)
    addresses = assign_addresses(listen, agents)
    edges = make_topology(graph, list(agents), seed=fields.get("seed", 0)).edges.tolist()
    return NetworkConfig(
        name=name,
        kind=data.kind,
        agents=tuple(AgentEntry(agent, str(address)) for agent, address in zip(agents, addresses, strict=True)),
        edges=tuple((agents[i], agents[j]) for i, j in edges),
        columns=data.columns,
        target_range=data.target_range,
        parameters=_BASIS_PARAMETERS if fields.get("exchange", "basis") == "basis" else {},
        **fields,
    )


def assign_addresses(listen: Sequence[str], agents: Sequence[str]) -> list[Address]:
    """Return one address per agent: those given, or consecutive ports from a single one.

    Examples
    --------
    >>> [str(address) for address in assign_addresses(["[::1]:7000"], ["a", "b"])]
    ['[::1]:7000', '[::1]:7001']
    """
    addresses = [parse_address("An address of --listen", text) for text in listen]
    if len(addresses) == 1:
        host, first = addresses[0]
        if first + len(agents) - 1 > LAST_PORT:
            raise ElmeshError(
                f"--listen {listen[0]} leaves too few ports for {len(agents)} agents, one each; start lower than "
                f"{LAST_PORT - len(agents) + 2}."
            )
        return [Address(host, first + i) for i in range(len(agents))]
    if len(addresses) != len(agents):
        raise ElmeshError(
            f"--listen has {len(addresses)} addresses for {len(agents)} agents; give one for each, or a single one, "
            "whose port is that of the first agent."
        )
    return addresses


def default_name(folder: str) -> str:
    """Return the name of a network that is created in a folder of this name.

    Examples
    --------
    >>> default_name("My Net!"), default_name("...")
    ('my-net', 'network')
    """
    return re.sub(r"[^a-z0-9_-]+", "-", folder.lower()).strip("-_")[:32] or "network"
