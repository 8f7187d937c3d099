"""A network of organisations as its files say it: who takes part, what is computed, and who an agent is.

``network.toml`` (:mod:`elmesh.network.plan`) is public and the same everywhere. ``agent.toml``
(:mod:`elmesh.network.identity`) is an agent's own, with its private key and its certificate, which an authority
(:mod:`elmesh.network.authority`) has signed. Nothing here talks to anybody.
"""

from elmesh.network.inputs import CategoricalInput, NumericInput
from elmesh.network.plan import Member, Plan

__all__ = ["CategoricalInput", "Member", "NumericInput", "Plan"]
