"""Centre and spread of columns that the network file declares no range for: found by all agents together.

By counts, sums and squared deviations as masked sums or, with differential privacy, by histograms with noise.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import astuple
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from elmesh.agent.backend import NetworkBackend
from elmesh.agent.site_data import present_values
from elmesh.comm.requests import Topic
from elmesh.errors import ElmeshError
from elmesh.estimators.private_fit import ScaleSearch
from elmesh.privacy.budget import Privacy
from elmesh.privacy.report import ReleasedTotal
from elmesh.tables import finite_numbers
from elmesh.text import listed
from elmesh.typing import FloatArray

if TYPE_CHECKING:
    from elmesh.agent.network_agent import NetworkAgent

__all__ = ["check_plausible", "exchange_scales"]

#: Mean and standard deviation by column.
Scales = dict[str, tuple[float, float]]
# Most root mean square of a site's own values of a column, in standard deviations of all.
_MOST_SPREAD = 5.0


def exchange_scales(agent: NetworkAgent, frame: pd.DataFrame, columns: Sequence[str]) -> Scales:
    """Agree with all agents on the mean and standard deviation of columns."""
    if not agent.config.statistics:
        raise ElmeshError("The network file does not allow agents to exchange statistics (statistics = false).")
    if agent.config.privacy is not None:
        return _find_privately(agent, agent.config.privacy, frame, columns)
    known = agent.checkpoint.notes.get("statistics")
    if known is not None and agent.checkpoint.latest_state() is not None:
        return {name: (float(mean), float(std)) for name, (mean, std) in known.items()}
    values, backend = present_values(frame, columns), NetworkBackend(agent)
    agent.log("statistics", columns=list(columns), sent="count and sum, then squared deviations, as masked sums")
    transport = backend.transport()
    counts_and_sums = [*(len(values[name]) for name in columns), *(float(values[name].sum()) for name in columns)]
    n, total = np.split(backend.sum(counts_and_sums, Topic.STATISTICS, transport), 2)
    mean = total / np.maximum(n, 1.0)
    squares = [float(np.sum((values[name] - m) ** 2)) for name, m in zip(columns, mean.tolist(), strict=True)]
    std = np.sqrt(np.maximum(backend.sum(squares, Topic.STATISTICS, transport), 0.0) / np.maximum(n, 1.0))
    found = {name: (float(m), float(s)) for name, m, s in zip(columns, mean, std, strict=True)}
    check_plausible(values, found)
    agent.checkpoint.note("statistics", found)
    return found


def check_plausible(values: Mapping[str, FloatArray], scales: Scales) -> None:
    """Raise if the values of this site are far from what the sums of all agents give.

    By wrong sums an agent could scale a column so that single rows of others stand out.

    Examples
    --------
    >>> check_plausible({"age": np.array([40.0, 60.0])}, {"age": (50.0, 12.0)})
    """
    for name, (mean, std) in scales.items():
        own = math.sqrt(np.mean((values[name] - mean) ** 2)) if len(values[name]) else 0.0
        if own > _MOST_SPREAD * std:
            raise ElmeshError(
                f'The sums of all agents give column "{name}" a standard deviation of {std:.3g}, and the values of '
                f"this site are on average {own:.3g} from the mean of all: an agent has sent wrong numbers, or sites "
                "differ too much; declare a range for the column in the network file."
            )


def _find_privately(agent: NetworkAgent, privacy: Privacy, frame: pd.DataFrame, columns: Sequence[str]) -> Scales:
    """Find centre and spread of columns with all agents, by histograms with noise."""
    known = agent.checkpoint.notes.get("scales")
    if known is None or agent.checkpoint.latest_state() is None:
        config, backend = agent.config, NetworkBackend(agent)
        search = ScaleSearch(privacy, backend, len(config.agents))
        # Before anything leaves: a run that is refused must not have spent a part of the budget.
        stated = backend.sure_rows({agent.name: len(frame)})
        search.check_network(columns, stated, config.n_encoded, len(config.classes or ()))
        agent.log("statistics", columns=list(columns), sent="two histograms with noise, as masked sums")
        values = np.column_stack([finite_numbers(frame, name) for name in columns])
        found, released = search.run({agent.name: values}, (1,) * len(columns))
        known = {"scales": found, "released": [list(astuple(one)) for one in released]}
        agent.checkpoint.note("scales", known)
    agent.released = tuple(ReleasedTotal(*one) for one in known["released"])
    scales = dict(zip(columns, known["scales"], strict=True))
    hidden = [name for name, scale in scales.items() if scale is None]
    if hidden:
        raise ElmeshError(
            f"Noise hides the centre and spread of {listed(hidden)}; declare a range for each such column in the "
            "network file, or use a larger epsilon."
        )
    return {name: (float(scale[0]), float(scale[1])) for name, scale in scales.items()}
