"""Bounds on what neighbours may send, from what the network file declares."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from elmesh.comm.fixed_point import LIMBS
from elmesh.comm.network.keys import MAX_BUNDLE_BYTES
from elmesh.comm.network.sealing import SEALED_BYTES
from elmesh.comm.network.wire import HEADER_BYTES

if TYPE_CHECKING:
    from elmesh.netconfig.config import NetworkConfig

__all__ = ["max_message_bytes", "max_norm"]

# How far above the norm of any solution a neighbour's U may be on its way there.
_OVERSHOOT = 10.0
# Outputs of an agent that the bound on its U allows for.
_OUTPUTS = 64
# Exact numbers of a sum, and columns beyond the rank that a start or a certificate may take.
_EXACT, _EXTRA_COLUMNS = 4096, 64
# Bytes of an agent's entry in a list of all agents, beside the entry itself.
_ENTRY = 64
# Groups of features.
_GROUPS = 8


def max_norm(config: NetworkConfig) -> float:
    r"""Return an upper bound of the norm of an agent's U.

    At a minimum :math:`\tfrac{\mu_1}2|U|^2` is at most the objective of zero weights, half of all targets' squares. A
    class is at most one, and a declared target at most the square root of twelve of its standard deviations from its
    mean; so the declared number of rows bounds it. On the way there U may be larger, by a factor.

    Examples
    --------
    >>> from elmesh.netconfig.config import AgentEntry, NetworkConfig
    >>> pair = AgentEntry("a", "127.0.0.1:1"), AgentEntry("b", "127.0.0.1:2")
    >>> config = NetworkConfig(name="pair", kind="classification", agents=pair, edges=(("a", "b"),), most_rows=50,
    ...                        exchange="basis", solver="dmtl-elm", rank=6,
    ...                        parameters={"mu1": 1.0, "mu2": 1.0, "rho": 1.0})
    >>> max_norm(config)
    100.0
    """
    mu1 = config.parameters.get("mu1", "auto")
    if isinstance(mu1, str):
        return math.inf
    per_row = 1.0 if config.kind == "classification" else 12.0 * _OUTPUTS
    return _OVERSHOOT * math.sqrt(len(config.agents) * config.most_rows * per_row / float(mu1))


def max_message_bytes(config: NetworkConfig) -> int:
    """Return the bytes of the largest message in a network."""
    features = config.n_hidden
    if config.make_solver().grouped_features:
        features += 1 + config.n_encoded
    # An automatic rank may grow to the number of features.
    columns = features if config.rank == "auto" else int(config.rank)
    block = features * (columns + _EXTRA_COLUMNS)
    # For the common part: a symmetric matrix, a column of correlations for each output, and sums of squares.
    outputs = _OUTPUTS if config.classes is None else len(config.classes)
    totals = features * (features + 1) // 2 + (features + 1) * outputs
    # Second derivatives in the logarithms of variances, of which there are few beside those of the outputs.
    derivatives = LIMBS * (outputs + _GROUPS) ** 2
    keys = len(config.agents) * (MAX_BUNDLE_BYTES + _ENTRY)
    return SEALED_BYTES + HEADER_BYTES + max(8 * (max(block, totals, derivatives) + LIMBS * _EXACT), keys)
