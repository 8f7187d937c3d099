"""The network file, ``network.toml``: the agents, the graph between them, and the model they compute.

It is public and identical at every agent: agents compare its :attr:`NetworkConfig.digest` before they start. It holds
everything that agents must agree on and cannot derive from their own data: addresses and graph, size and seed of the
hidden layer, the parameters of the solver, and the columns. Ranges and categories of columns are declared, not
measured, so they reveal nothing about any agent's rows.
"""

from __future__ import annotations

import hashlib
import json
import textwrap
from collections.abc import Collection, Sequence
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Literal

import networkx as nx
from msgspec import Meta, field
from msgspec.structs import asdict, force_setattr, replace

from elmesh.checks import check_choice
from elmesh.comm.graph import Topology, make_topology
from elmesh.comm.row_counts import check_colluders, colluding_sites, fewest_terms
from elmesh.data.features import ACTIVATIONS, weight_scale
from elmesh.errors import ElmeshError
from elmesh.netconfig.columns import InputColumn, check_range
from elmesh.netconfig.exchange import PARAMETER_COMMENTS, Exchange, choose_solver, current_solver, normalize_parameters
from elmesh.netconfig.files import read_text
from elmesh.netconfig.names import ROUTER, Address, check_label, check_name, parse_address
from elmesh.netconfig.toml import CheckedStruct, decode_toml, encode_toml, show_value
from elmesh.privacy.budget import Privacy
from elmesh.solvers import Solver
from elmesh.tables import ProblemKind
from elmesh.text import count, listed
from elmesh.typing import StrPath

__all__ = ["MAX_NETWORK_BYTES", "AgentEntry", "NetworkConfig"]

#: Bytes of the largest network file.
MAX_NETWORK_BYTES = 8 * 2**20
_MAX_HIDDEN = 100_000
_MODEL = ("n_hidden", "activation", "weight_scale", "seed", "fit_intercept", "rank", "solver", "parameters")
_PRIVACY = ("epsilon", "delta", "max_colluders")
_DELTA = 1e-5
_FILE_NAMES = (
    {name: f"model.{name}" for name in _MODEL}
    | {name: f"privacy.{name}" for name in _PRIVACY}
    | {
        "target_range": "target.range",
        "classes": "target.classes",
        "edges": "graph.edges",
    }
)
_HEADER = """\
# The network file: public, and identical at every agent. Agents whose files differ in more than comments and
# the order of sections refuse to connect to each other.
"""
_COLUMNS_COMMENT = """\
The columns to learn from, the same at every agent: name, and
  range = [low, high]        of a number; used for scaling, values may lie outside; or
  categories = ["a", "b"]    all categories; any other value is encoded as none of them;
  missing = true             if values may be missing; an additional column then marks them."""


_Rank = Annotated[int, Meta(ge=0, le=_MAX_HIDDEN)] | Literal["auto"]
_Scale = Annotated[float, Meta(gt=0, le=1e6)] | Literal["auto"]


def _doc(description: str, **limits: Any) -> Meta:
    """Return the comment on a field, with the limits of its value."""
    return Meta(description=description, **limits)


class AgentEntry(CheckedStruct, frozen=True):
    """An agent of the network: its name, and the address ``host:port`` at which its neighbours reach it."""

    name: str
    address: str

    def __post_init__(self) -> None:
        CheckedStruct.__post_init__(self)
        check_name("The name of an agent", self.name)
        if self.name == ROUTER:
            raise ElmeshError(f"No agent can be named {ROUTER}, which is the name of the router; rename it.")
        address = parse_address(f"The address of agent {self.name}", self.address)
        if address.is_unspecified:
            raise ElmeshError(
                f"The address of agent {self.name} is {self.address}, to which nothing can connect; give the address "
                "that its neighbours use, and set the address it listens at in its agent.toml."
            )
        force_setattr(self, "address", str(address))


class NetworkConfig(CheckedStruct, frozen=True, kw_only=True, dict=True, rename=_FILE_NAMES):
    """The content of a network file, checked whenever it is made.

    The fields are in the order of the file, and their descriptions are the comments there. Agents are sorted by name,
    edges are sorted pairs of names. A regression needs a ``target_range``, a classification must not have one.

    Examples
    --------
    >>> addresses = {"south": "127.0.0.1:7451", "east": "127.0.0.1:7452", "west": "127.0.0.1:7453"}
    >>> agents = tuple(AgentEntry(name, address) for name, address in addresses.items())
    >>> edges = (("south", "east"), ("west", "south"))
    >>> config = NetworkConfig(name="trio", kind="classification", agents=agents, edges=edges)
    >>> config.agent_names, config.neighbors("south"), config.edges
    (['east', 'south', 'west'], ['east', 'west'], (('east', 'south'), ('south', 'west')))
    >>> NetworkConfig.parse(config.to_toml(), "a copy").digest == config.digest
    True
    """

    name: Annotated[str, _doc("name of the network: a-z, 0-9, _ and -")]
    kind: Annotated[ProblemKind, _doc('"classification" or "regression"')]
    rounds: Annotated[int, _doc('number of rounds; at most so many with exchange "sums"', ge=1, le=10_000_000)] = 300
    exchange: Annotated[
        Exchange, _doc('data sent: "sums": masked sums over all agents; "basis": U_t, which reveals rows to neighbours')
    ] = "sums"
    fewest_sites: Annotated[
        int, _doc("fewest agents in a sum; with 2, each can compute the other's part of it", ge=1, le=4096)
    ] = 3
    statistics: Annotated[bool, _doc("exchange count, mean and variance of columns without a range")] = False
    most_rows: Annotated[int, _doc("most rows of any agent; bounds the size of U_t", ge=1, le=10**12)] = 1_000_000
    routers: Annotated[
        tuple[str, ...], _doc('addresses "host:port" of routers, for agents that accept no connections', max_length=64)
    ] = ()

    n_hidden: Annotated[int, _doc("number of hidden units, of all weight scales together", ge=1, le=_MAX_HIDDEN)] = 300
    activation: Annotated[str, _doc(f"activation function: {', '.join(ACTIVATIONS)}")] = "sigmoid"
    weight_scale: Annotated[
        _Scale, _doc('scale of hidden weights; "auto": two for a common part, else by the number of columns')
    ] = "auto"
    # The integers of TOML have 64 bits, one of them the sign.
    seed: Annotated[int, _doc("seed of the hidden weights and the initial U; not secret", ge=0, le=2**63 - 1)] = 0
    fit_intercept: Annotated[bool, _doc("whether each agent's outputs have an intercept")] = True
    rank: Annotated[_Rank, _doc('columns of U, the shared part; 0 for none and "auto" only with exchange "sums"')] = (
        "auto"
    )
    solver: Annotated[str, _doc("the method: mesh-elm, or with exchange basis dmtl-elm or fo-dmtl-elm")] = "mesh-elm"
    parameters: Annotated[dict[str, Any], _doc("parameters of the solver")] = field(default_factory=dict)

    epsilon: Annotated[
        Annotated[float, Meta(gt=0, le=100.0)] | None,
        _doc(
            "differential privacy of single rows, of all that leaves a site over all runs unless its gate allows more"
        ),
    ] = None
    delta: Annotated[
        Annotated[float, Meta(gt=0, le=0.01)] | None, _doc("well below one in the number of rows of all agents")
    ] = None
    max_colluders: Annotated[
        Annotated[int, Meta(ge=0, le=4096)] | None,
        _doc("agents that may put together what they know, or send wrong numbers; a third of all if it is not given"),
    ] = None
    target_range: Annotated[tuple[float, float] | None, _doc("for scaling; values may lie outside")] = None
    classes: Annotated[
        tuple[str | int, ...] | None, _doc("all classes, text or whole numbers, if they mean the same at every agent")
    ] = None
    agents: Annotated[
        tuple[AgentEntry, ...],
        _doc("The agents: name, and the address at which its neighbours reach it.", min_length=1, max_length=4096),
    ]
    edges: Annotated[
        tuple[tuple[str, str], ...],
        _doc("pairs of agents that exchange messages; the graph must be connected", max_length=65_536),
    ] = ()
    columns: Annotated[tuple[InputColumn, ...], _doc(_COLUMNS_COMMENT, max_length=4096)] = ()

    def __post_init__(self) -> None:
        CheckedStruct.__post_init__(self)
        check_name("The network's name", self.name)
        routers = tuple(str(parse_address("The address of a router", text)) for text in self.routers)
        force_setattr(self, "routers", routers)
        force_setattr(self, "agents", tuple(sorted(self.agents, key=lambda agent: agent.name)))
        _check_unique("agent", self.agent_names)
        _check_unique("address", [*(agent.address for agent in self.agents), *routers])
        _check_unique("column", [column.name for column in self.columns])
        force_setattr(self, "edges", _sorted_edges(self.edges, self.agent_names))
        force_setattr(self, "target_range", _checked_target_range(self.kind, self.target_range))
        force_setattr(self, "classes", _checked_classes(self.kind, self.classes))
        if self.unscaled_columns and not self.statistics:
            raise ElmeshError(
                f'Column "{self.unscaled_columns[0]}" has neither range nor categories; declare range = [low, high] or '
                "categories = [...], or let agents exchange count, mean and variance with statistics = true."
            )
        check_choice("activation", self.activation, ACTIVATIONS)
        if self.rank != "auto" and self.rank > self.n_hidden:
            raise ElmeshError(f"rank is {self.rank}; expected an integer from 0 to {self.n_hidden}, which is n_hidden.")
        solver, parameters = current_solver(self.solver, self.parameters, self.exchange)
        force_setattr(self, "solver", solver)
        force_setattr(self, "parameters", normalize_parameters(solver, parameters))
        self._check_privacy()
        if (self.exchange == "sums" or self.statistics) and len(self.agents) < self.fewest_sites:
            raise ElmeshError(_too_few(self.agent_names, self.fewest_sites))
        _ = self.topology  # raises if the graph is not connected
        self.make_solver()  # raises if a parameter is invalid

    def _check_privacy(self) -> None:
        """Complete the fields on differential privacy, or raise if they do not fit the others."""
        if self.max_colluders is not None and self.exchange != "sums":
            raise ElmeshError('max_colluders in [privacy] has no effect without exchange = "sums"; remove it.')
        if self.epsilon is None:
            if self.delta is not None:
                raise ElmeshError("delta in [privacy] has no effect without epsilon; add epsilon, or remove it.")
            if self.max_colluders is not None:
                check_colluders(self.max_colluders, len(self.agents))
            return
        if self.delta is None:
            force_setattr(self, "delta", _DELTA)
        if self.exchange != "sums" or self.solver != "mesh-elm":
            raise ElmeshError(
                'Differential privacy is for masked sums; set exchange = "sums" and solver = "mesh-elm", or remove '
                "[privacy]."
            )
        if self.rank not in (0, "auto") or any(self.parameters.get(name) != "auto" for name in ("common", "private")):
            raise ElmeshError(
                "Differential privacy is for the common and the private part; set rank = 0 in [model], and common = "
                '"auto" and private = "auto" in [model.parameters].'
            )
        if self.privacy is not None:
            self.privacy.colluders(len(self.agents))  # raises if there would be too few others
        if self.kind == "classification" and self.classes is None:
            raise ElmeshError(
                "Differential privacy needs the classes of all agents in the network file; add classes = [...] to "
                "[target]."
            )

    @property
    def privacy(self) -> Privacy | None:
        """The differential privacy of what leaves an agent; None for none."""
        if self.epsilon is None or self.delta is None:
            return None
        return Privacy(self.epsilon, self.delta, self.max_colluders)

    @property
    def colluders(self) -> int:
        """Number of agents that may put together what they know."""
        return colluding_sites(len(self.agents)) if self.max_colluders is None else self.max_colluders

    @classmethod
    def read(cls, path: StrPath) -> NetworkConfig:
        """Read a network file; raise ElmeshError if it does not exist, is not TOML or has an invalid field."""
        return cls.parse(read_text(Path(path), "network file", MAX_NETWORK_BYTES), str(path))

    @classmethod
    def parse(cls, text: str, source: str) -> NetworkConfig:
        """Parse the text of a network file, named ``source`` in errors."""
        return decode_toml(text, cls, source)

    def to_toml(self, remark: str = "") -> str:
        """Return the network file, with a comment on each field and a remark at the top."""
        remarks = "".join(f"# {line}\n" for line in textwrap.wrap(remark, 110))
        return f"{_HEADER}{remarks}\n{encode_toml(self, PARAMETER_COMMENTS)}"

    @cached_property
    def digest(self) -> bytes:
        """SHA-256 of the content; comments, line ends and the order of agents and edges do not change it."""
        # With the names of version 0.4, so that a file keeps its fingerprint.
        content = asdict(self) | {"format": 1, "members": [asdict(agent) for agent in self.agents]}
        content["weight_scale"] = None if self.weight_scale == "auto" else self.weight_scale
        content["columns"] = [
            {key: x for key, x in asdict(column).items() if key != ("categories" if column.is_numeric else "range")}
            for column in self.columns
        ]
        del content["agents"]
        # Files of earlier versions have none of these.
        if self.classes is None:
            del content["classes"]
        if self.fewest_sites == 3:
            del content["fewest_sites"]
        if self.epsilon is None:
            for name in _PRIVACY:
                if content[name] is None:
                    del content[name]
        text = json.dumps(content, sort_keys=True, separators=(",", ":"), allow_nan=False)
        return hashlib.sha256(text.encode("ascii")).digest()

    @property
    def agent_names(self) -> list[str]:
        """The names of the agents, sorted."""
        return [agent.name for agent in self.agents]

    def index(self, name: str) -> int:
        """Return the index of an agent in :attr:`agents`."""
        if name not in self._indices:
            raise ElmeshError(
                f"There is no agent {name!r} in the network {self.name}; there are {listed(self.agent_names)}."
            )
        return self._indices[name]

    def address_of(self, name: str) -> Address:
        """Return the address of an agent, or of the router."""
        if name == ROUTER and self.routers:
            return parse_address("The address of the router", self.routers[0])
        return parse_address("The address", self.agents[self.index(name)].address)

    def neighbors(self, name: str) -> list[str]:
        """Return the names of an agent's neighbours, sorted."""
        return [self.agents[i].name for i in self.topology.neighbors(self.index(name)).tolist()]

    @cached_property
    def topology(self) -> Topology:
        """The graph over the indices of the agents."""
        return make_topology(self._graph(), self.agent_names)

    def make_solver(self) -> Solver:
        """Return the solver, which sends no more than :attr:`exchange` allows."""
        return choose_solver(
            self.solver,
            self.parameters,
            self.exchange,
            rank=self.rank,
            rounds=self.rounds,
            graph=self._graph(),
            privacy=self.privacy,
        )

    def model_solver(self) -> Solver:
        """Return the solver of the model: without the parts that need classes in common, unless they are declared."""
        solver = self.make_solver()
        undeclared = self.kind == "classification" and self.classes is None
        return solver.without_common_targets() if undeclared else solver

    def weight_scale_for(self, n_columns: int) -> float | str:
        """Return the scale of the hidden weights for a table with this number of encoded columns."""
        if self.weight_scale != "auto":
            return self.weight_scale
        return "auto" if self.model_solver().grouped_features else weight_scale(n_columns)

    @property
    def n_encoded(self) -> int:
        """Number of encoded columns."""
        return sum(len(column.categories or ("number",)) + column.missing for column in self.columns)

    @property
    def unscaled_columns(self) -> list[str]:
        """Numeric columns without a range, whose means and standard deviations must be exchanged."""
        return [column.name for column in self.columns if column.is_numeric and column.range is None]

    def components(self, lost: Collection[str]) -> list[list[str]]:
        """Return the connected components of the graph without the lost agents, each sorted, sorted by first name."""
        graph = self._graph()
        graph.remove_nodes_from([self.agents[self.index(name)].name for name in lost])
        return sorted(sorted(part) for part in nx.connected_components(graph))

    def without(self, lost: Collection[str], agent: str) -> NetworkConfig:
        """Return the config of the connected component of ``agent`` without the lost agents.

        As many may collude as before: some may have others declared lost, to see a sum of few.
        """
        if agent in lost:
            raise ElmeshError(f"Agent {agent} is itself one of the lost agents.")
        self.index(agent)
        rest = set(next(part for part in self.components(lost) if agent in part))
        self._check_left(rest)
        return replace(
            self,
            max_colluders=self.colluders if self.exchange == "sums" else None,
            agents=tuple(entry for entry in self.agents if entry.name in rest),
            edges=tuple(edge for edge in self.edges if rest.issuperset(edge)),
        )

    def _check_left(self, rest: Collection[str]) -> None:
        """Raise if so few agents would be left that sums over them reveal the terms of few sites."""
        if (self.exchange == "sums" or self.statistics) and len(rest) < self.fewest_sites:
            raise ElmeshError(_too_few(sorted(rest), self.fewest_sites))
        fewest = fewest_terms(len(self.agents), self.colluders)
        if self.exchange == "sums" and self.epsilon is None and len(rest) < fewest:
            raise ElmeshError(
                f"Of {len(self.agents)} agents {len(rest)} would be left, of which {self.colluders} may collude: sums "
                f"without some agents are over at least {fewest}, so that no site can have others declared lost to "
                "learn what few sites sent. If all trust each other, set max_colluders = 0 in [privacy]."
            )

    @cached_property
    def _indices(self) -> dict[str, int]:
        return {agent.name: i for i, agent in enumerate(self.agents)}

    def _graph(self) -> nx.Graph:
        graph = nx.Graph()
        graph.add_nodes_from(self.agent_names)
        graph.add_edges_from(self.edges)
        return graph


def _too_few(names: Sequence[str], least: int) -> str:
    reason = "the total is its own part"
    if len(names) == 2:
        reason = "each can subtract its own part of a sum and has the other's"
    elif len(names) > 2:
        reason = "and the network file asks for more"
    there = f"There {'is' if len(names) == 1 else 'are'} {count(len(names), 'agent')} ({', '.join(names)})"
    return (
        f"{there}, {reason}; masked sums are over at least {least} agents. Add agents or, if they may see each other's "
        "sums, set fewest_sites in the network file."
    )


def _check_unique(what: str, names: Sequence[str]) -> None:
    for name, following in pairwise(sorted(names)):
        if name == following:
            raise ElmeshError(f'The {what} "{name}" occurs twice; each must be different.')


def _sorted_edges(edges: Sequence[tuple[str, str]], names: Sequence[str]) -> tuple[tuple[str, str], ...]:
    """Return the edges sorted, each with the smaller name first."""
    known = set(names)
    for edge in edges:
        for name in edge:
            if name not in known:
                raise ElmeshError(
                    f"The edge {list(edge)} contains {name!r}, which is not an agent; there are {listed(names)}."
                )
        if edge[0] == edge[1]:
            raise ElmeshError(f"The edge {list(edge)} connects an agent to itself; remove it.")
    edges = sorted((min(edge), max(edge)) for edge in edges)
    _check_unique("edge", [f"{one} - {other}" for one, other in edges])
    return tuple(edges)


def _checked_target_range(kind: ProblemKind, ends: tuple[float, float] | None) -> tuple[float, float] | None:
    if kind == "classification" and ends is not None:
        raise ElmeshError("range in [target] is for a regression; remove it from a classification.")
    if kind == "regression" and ends is None:
        raise ElmeshError(
            "A regression needs the range of its target, so that all agents scale it alike; add a section [target] "
            "with range = [low, high]."
        )
    return None if ends is None else check_range("range in [target]", ends)


def _checked_classes(kind: ProblemKind, classes: Sequence[str | int] | None) -> tuple[str | int, ...] | None:
    if classes is None:
        return None
    if kind == "regression":
        raise ElmeshError("classes in [target] are for a classification; remove them from a regression.")
    if len(classes) < 2 or len(set(classes)) < len(classes) or len({type(name) for name in classes}) > 1:
        raise ElmeshError(
            f"classes in [target] are {show_value(list(classes))}; expected two or more different ones, all of them "
            "text or all of them whole numbers."
        )
    for name in classes:
        if isinstance(name, str):
            check_label("A class", name)
    return tuple(sorted(classes, key=lambda name: (isinstance(name, str), name)))
