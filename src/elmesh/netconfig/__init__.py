"""A network of organisations as its files say it: who takes part, what is computed, and who an agent is.

``network.toml`` (:mod:`elmesh.netconfig.config`) is public and the same everywhere. ``agent.toml``
(:mod:`elmesh.netconfig.identity`) is an agent's own, with its private key and its certificate, which an authority
(:mod:`elmesh.netconfig.authority`) has signed. Nothing here talks to anybody.
"""

from elmesh.netconfig.config import Member, Plan
from elmesh.netconfig.inputs import CategoricalInput, NumericInput

__all__ = ["CategoricalInput", "Member", "NumericInput", "Plan"]
