"""The network file, ``network.toml``: who takes part, who talks to whom, and what they compute.

It is public, and the same at every agent: all hold its :attr:`Plan.digest` against each other's before they begin. It
has everything that agents must know alike and cannot work out from their own data: addresses and graph, the hidden
layer's seed and size, the solver's parameters, and the columns with their ranges and categories, declared rather than
measured, so that nothing about anybody's rows is told. A plan is checked as it is made, wherever it comes from.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import networkx as nx

from elmesh.comm.graph import Topology, make_topology
from elmesh.data.features import ACTIVATIONS, weight_scale
from elmesh.errors import ElmeshError
from elmesh.netconfig.checks import (
    LARGEST_SEED,
    MOST,
    check_choice,
    check_count,
    check_flag,
    check_unlike,
    check_whole,
    checked_target,
    sorted_edges,
)
from elmesh.netconfig.exchange import EXCHANGES, Exchange, choose_solver, clean_parameters
from elmesh.netconfig.fields import read_text
from elmesh.netconfig.inputs import Input, NumericInput
from elmesh.netconfig.members import Member
from elmesh.netconfig.names import ROUTER, Address, check_name, parse_address
from elmesh.netconfig.scaling import make_schema
from elmesh.netconfig.toml_file import read_fields, write_plan
from elmesh.solvers import Solver
from elmesh.tables.schema import Kind, TableSchema
from elmesh.text import listed

__all__ = ["Member", "Plan"]

_MOST_BYTES = 8 * 2**20


@dataclass(frozen=True)
class Plan:
    """What the network is.

    Attributes
    ----------
    name
        The network's name.
    members
        The agents, sorted by name: agent number t is the t-th.
    edges
        Who talks to whom, by name, sorted.
    kind
        ``"classification"`` or ``"regression"``.
    columns
        The columns to learn from; none in a file that is yet to be filled in.
    target_range
        The declared range of what a regression predicts.
    exchange
        What agents tell each other: see :mod:`elmesh.netconfig.exchange`.
    statistics
        Whether agents may exchange count, mean and variance of columns without a range.
    rounds
        Most rounds; with ``exchange = "basis"`` all of them are run.
    n_hidden, activation, weight_scale, seed
        The hidden layer; a ``weight_scale`` of None is chosen by the number of columns.
    fit_intercept
        Whether each agent's outputs have an offset of their own.
    rank
        Columns of U; ``"auto"`` only with ``exchange = "sums"``.
    solver, parameters
        The solver's short name and its parameters.
    most_rows
        The most rows that any agent has, which bounds how large a neighbour's U can be.
    routers
        Addresses of routers, for agents that nobody can connect to.

    Examples
    --------
    >>> members = (Member("south", "127.0.0.1:7452"), Member("north", "127.0.0.1:7451"))
    >>> numbers = {"mu1": 1.0, "mu2": 1.0, "rho": 1.0}
    >>> plan = Plan("pair", members, (("south", "north"),), "classification", parameters=numbers)
    >>> plan.names, plan.neighbours("north"), plan.edges
    (['north', 'south'], ['south'], (('north', 'south'),))
    >>> Plan.parse(plan.to_toml(), "a copy").digest == plan.digest
    True
    """

    name: str
    members: tuple[Member, ...]
    edges: tuple[tuple[str, str], ...]
    kind: Kind
    columns: tuple[Input, ...] = ()
    target_range: tuple[float, float] | None = None
    exchange: Exchange = "basis"
    statistics: bool = False
    rounds: int = 300
    n_hidden: int = 300
    activation: str = "sigmoid"
    weight_scale: float | None = None
    seed: int = 0
    fit_intercept: bool = True
    rank: int | str = 6
    solver: str = "dmtl-elm"
    parameters: dict[str, Any] = field(default_factory=dict)
    most_rows: int = 1_000_000
    routers: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        settle = object.__setattr__  # the frozen dataclass's one moment to put things in order
        check_name(self.name, "The network's name")
        settle(self, "members", tuple(sorted(self.members, key=lambda member: member.name)))
        settle(self, "routers", tuple(str(parse_address(text, "The address of a router")) for text in self.routers))
        check_count(self.members, "agents", least=1)
        check_count(self.routers, "routers")
        check_unlike(self.names, "agent", "give each a name of its own")
        check_unlike([*(member.address for member in self.members), *self.routers], "address", "each has its own")
        settle(self, "edges", sorted_edges(self.edges, self.names))
        check_choice(self.kind, "kind", ("classification", "regression"))
        check_choice(self.exchange, "exchange", EXCHANGES)
        check_flag(self.statistics, "statistics")
        settle(self, "columns", tuple(self.columns))
        self._check_columns()
        settle(self, "target_range", checked_target(self.kind, self.target_range))
        self._check_model()
        settle(self, "parameters", clean_parameters(self.solver, self.parameters))
        _ = self.topology  # connected, or an error that names the parts
        self.make_solver()

    @classmethod
    def read(cls, path: str | Path) -> Plan:
        """Read a network file.

        Parameters
        ----------
        path
            The file.

        Raises
        ------
        ElmeshError
            If it is not there, not TOML, or anything in it is unknown, missing or not as it must be.
        """
        path = Path(path)
        return cls.parse(read_text(path, "network file", _MOST_BYTES), str(path))

    @classmethod
    def parse(cls, text: str, source: str) -> Plan:
        """Read the text of a network file.

        Parameters
        ----------
        text
            TOML.
        source
            What it is called in errors.
        """
        try:
            read = read_fields(text)
            members = tuple(Member(**member) for member in read.pop("members"))
            return cls(members=members, **read)
        except ElmeshError as error:
            raise ElmeshError(f"{source}: {error}") from None

    def to_toml(self, remark: str = "") -> str:
        """Give the network file, with comments for whoever edits it.

        Parameters
        ----------
        remark
            What to say in a comment at the top.
        """
        return write_plan(self._content(), remark)

    @cached_property
    def digest(self) -> bytes:
        """SHA-256 of all content; comments, the order of agents and the ends of lines do not matter."""
        text = json.dumps({"format": 1, **self._content()}, sort_keys=True, separators=(",", ":"), allow_nan=False)
        return hashlib.sha256(text.encode("ascii")).digest()

    @property
    def names(self) -> list[str]:
        """The agents' names, sorted."""
        return [member.name for member in self.members]

    def number(self, name: str) -> int:
        """Give the number of an agent."""
        if name not in self._numbers:
            raise ElmeshError(f"There is no agent {name!r} in the network {self.name}; there are {listed(self.names)}.")
        return self._numbers[name]

    def address_of(self, name: str) -> Address:
        """Give the address of an agent, or of the router."""
        if name == ROUTER and self.routers:
            return parse_address(self.routers[0], "The address of the router")
        return self.members[self.number(name)].place

    def neighbours(self, name: str) -> list[str]:
        """Give an agent's neighbours, sorted."""
        return [self.members[i].name for i in self.topology.neighbours(self.number(name)).tolist()]

    @cached_property
    def topology(self) -> Topology:
        """The graph over the agents' numbers."""
        return make_topology(self._graph(), self.names)

    def make_solver(self) -> Solver:
        """Make the solver, which tells no more than :attr:`exchange` allows."""
        return choose_solver(
            self.solver, self.parameters, self.exchange, rank=self.rank, rounds=self.rounds, graph=self._graph()
        )

    def scale_for(self, n_columns: int) -> float:
        """Give the size of hidden weights for a table of so many columns once it is encoded."""
        return weight_scale(n_columns) if self.weight_scale is None else self.weight_scale

    @property
    def unscaled(self) -> list[str]:
        """Columns of numbers without a range, whose mean and standard deviation must be exchanged."""
        return [column.name for column in self.columns if isinstance(column, NumericInput) and column.range is None]

    def schema(
        self,
        task_column: str,
        targets: Sequence[str],
        whole_labels: bool,
        stats: Mapping[str, tuple[float, float]] | None = None,
    ) -> TableSchema:
        """Say how a table becomes numbers: see :func:`elmesh.netconfig.scaling.make_schema`."""
        return make_schema(self, task_column, targets, whole_labels, stats or {})

    def parts(self, lost: Collection[str]) -> list[list[str]]:
        """Give the connected parts that are left when these agents are gone, each sorted, the first name first."""
        graph = self._graph()
        graph.remove_nodes_from([self.members[self.number(name)].name for name in lost])
        return sorted(sorted(part) for part in nx.connected_components(graph))

    def without(self, lost: Collection[str], me: str) -> Plan:
        """Give the plan of the connected part that an agent is in when others are gone.

        Parameters
        ----------
        lost
            The agents that are gone.
        me
            The agent that stays.
        """
        if me in lost:
            raise ElmeshError(f"Agent {me} cannot go on without itself.")
        self.number(me)
        rest = set(next(part for part in self.parts(lost) if me in part))
        return replace(
            self,
            members=tuple(member for member in self.members if member.name in rest),
            edges=tuple(edge for edge in self.edges if edge[0] in rest and edge[1] in rest),
        )

    @cached_property
    def _numbers(self) -> dict[str, int]:
        return {member.name: i for i, member in enumerate(self.members)}

    def _graph(self) -> nx.Graph:
        graph = nx.Graph()
        graph.add_nodes_from(self.names)
        graph.add_edges_from(self.edges)
        return graph

    def _content(self) -> dict[str, Any]:
        return asdict(self) | {"columns": [column.content() for column in self.columns]}

    def _check_columns(self) -> None:
        check_count(self.columns, "columns")
        check_unlike([column.name for column in self.columns], "column", "name each once")
        if self.unscaled and not self.statistics:
            raise ElmeshError(
                f'Column "{self.unscaled[0]}" has neither range nor categories; declare range = [least, most] or '
                "categories = [...], or let agents exchange count, mean and variance by statistics = true."
            )

    def _check_model(self) -> None:
        for name in ("rounds", "n_hidden", "most_rows"):
            check_whole(getattr(self, name), name, 1, MOST[name])
        if self.rank != "auto":
            check_whole(self.rank, "rank", 1, self.n_hidden)
        check_whole(self.seed, "seed", 0, LARGEST_SEED)
        check_choice(self.activation, "activation", ACTIVATIONS)
        check_flag(self.fit_intercept, "fit_intercept")
        scale = self.weight_scale
        if scale is not None and not (type(scale) is float and 0 < scale <= MOST["weight_scale"]):
            raise ElmeshError(f'weight_scale is {scale!r}; expected a number above 0, or "auto".')
