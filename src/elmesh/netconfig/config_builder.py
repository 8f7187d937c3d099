"""Build a network config from the options of ``elmesh network create``, and from an example table.

The table should be made up or public, because the inferred values become public. Types of columns are inferred by the
same rules as for any table (:mod:`elmesh.tables.inference`). The range of a number is the one of its middle 90 %, which
an outlier does not widen, rounded outwards to two digits of its width; of text, the categories are taken.
"""

from __future__ import annotations

import math
import re
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal
from typing import Any

import numpy as np
import pandas as pd

from elmesh.comm.graph import make_topology
from elmesh.errors import ElmeshError
from elmesh.netconfig.columns import InputColumn
from elmesh.netconfig.config import AgentEntry, NetworkConfig
from elmesh.netconfig.exchange import ROWS_PER_FEATURE
from elmesh.netconfig.names import LAST_PORT, Address, check_name, parse_address
from elmesh.tables import FILE_TASK, ProblemKind, finite_numbers, fit_schema, infer_kind, to_labels

__all__ = ["DataSpec", "build_config", "default_name", "round_outwards"]

# For features and targets of magnitude one, which declared ranges produce; this rho suits tens to thousands of rows per
# site.
_BASIS_PARAMETERS = {"mu1": 1.0, "mu2": 1.0, "rho": 10.0}
# The quantiles that a usual range is between.
_MIDDLE = (0.05, 0.95)
# By sums agents find all parts of the weights, and their variances.
_SUMS_PARAMETERS = {"common": "auto", "private": "auto", "rows_per_feature": ROWS_PER_FEATURE}


@dataclass(frozen=True)
class DataSpec:
    """The part of a network config that describes the data.

    ``reason`` explains why the kind was inferred; ``classes`` are all classes, None if unknown.
    """

    kind: ProblemKind
    reason: str = ""
    columns: tuple[InputColumn, ...] = ()
    target_range: tuple[float, float] | None = None
    classes: tuple[str | int, ...] | None = None

    @classmethod
    def from_table(
        cls, frame: pd.DataFrame, target: str, kind: ProblemKind | None = None, drop: Sequence[str] = ()
    ) -> DataSpec:
        """Infer the description from a table of one task, without the dropped columns.

        Examples
        --------
        >>> frame = pd.DataFrame({"age": [21, 67, None], "sex": ["f", "m", "f"], "y": ["no", "yes", "no"]})
        >>> data = DataSpec.from_table(frame, "y")
        >>> data.kind, data.columns[0].range, data.columns[1].categories
        ('classification', (21.0, 67.0), ('f', 'm'))
        """
        chosen, reason = (kind, "as asked") if kind is not None else infer_kind(frame, [target])
        if FILE_TASK in frame.columns:
            raise ElmeshError(f'The table has a column "{FILE_TASK}", which is a reserved name; rename it.')
        schema = fit_schema(frame.assign(**{FILE_TASK: "example"}), FILE_TASK, [target], chosen, drop=drop)
        if schema.dates:
            dates = ", ".join(f'"{column.name}"' for column in schema.dates)
            warnings.warn(
                f"Left out because networks take numbers and categories, not dates: {dates}. To use them make numbers "
                "of them, such as the days since a fixed date.",
                stacklevel=2,
            )
        found = {
            column.name: InputColumn(column.name, range=_range(frame, column.name), missing=column.indicator)
            for column in schema.numeric
        } | {
            column.name: InputColumn(column.name, categories=column.categories, missing=column.missing)
            for column in schema.categorical
        }
        columns = tuple(found[str(name)] for name in frame.columns if name in found)
        if chosen == "regression":
            return cls(chosen, reason, columns, _range(frame, target))
        names = {str(name) for name in to_labels(frame[target]) if name is not None}
        classes = tuple(sorted(map(int, names))) if schema.whole_labels else tuple(sorted(names))
        return cls(chosen, reason, columns, classes=classes if len(classes) > 1 else None)


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
    addresses = _assign_addresses(listen, agents)
    edges = make_topology(graph, list(agents), seed=fields.get("seed", 0)).edges.tolist()
    sums = fields.get("exchange", "sums") == "sums"
    return NetworkConfig(
        name=name,
        kind=data.kind,
        agents=tuple(AgentEntry(agent, str(address)) for agent, address in zip(agents, addresses, strict=True)),
        edges=tuple((agents[i], agents[j]) for i, j in edges),
        columns=data.columns,
        target_range=data.target_range,
        # Agents that send U_t only may each have classes of their own.
        classes=data.classes if sums else None,
        solver="mesh-elm" if sums else "dmtl-elm",
        parameters=_SUMS_PARAMETERS if sums else _BASIS_PARAMETERS,
        **fields,
    )


def _assign_addresses(listen: Sequence[str], agents: Sequence[str]) -> list[Address]:
    """Return one address per agent: those given, or consecutive ports from a single one."""
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


def _range(frame: pd.DataFrame, name: str) -> tuple[float, float]:
    """Return the usual range of a column: of the middle 90 % of values or, if these are all equal, of all."""
    values = finite_numbers(frame, name)
    low, high = np.nanquantile(values, _MIDDLE, method="inverted_cdf").tolist()
    if low == high:
        low, high = float(np.nanmin(values)), float(np.nanmax(values))
    return round_outwards(low, high)


def round_outwards(low: float, high: float) -> tuple[float, float]:
    """Round the ends of a range to two digits of its width, so that the range only becomes wider.

    Examples
    --------
    >>> round_outwards(17.3, 103.7), round_outwards(1998, 2020), round_outwards(0.0, 0.0)
    ((17.0, 104.0), (1998.0, 2020.0), (-1.0, 1.0))
    """
    if low == high:  # a column with a single value, which is missing in some rows
        margin = abs(low) / 10.0 or 1.0
        return round_outwards(low - margin, high + margin)
    width = high - low
    if not math.isfinite(width):
        return low, high  # InputColumn refuses it
    unit = Decimal(1).scaleb(math.floor(math.log10(width)) - 1)
    down = (Decimal(repr(low)) / unit).to_integral_value(ROUND_FLOOR) * unit
    up = (Decimal(repr(high)) / unit).to_integral_value(ROUND_CEILING) * unit
    return min(float(down), low), max(float(up), high)
