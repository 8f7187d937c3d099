"""The configuration of a network of organisations: its participants, its model and the identity of each agent.

``network.toml`` (:mod:`elmesh.netconfig.config`) is public and identical at every agent. ``agent.toml``
(:mod:`elmesh.netconfig.identity`) belongs to one agent and names its private key and its certificate, which an
authority (:mod:`elmesh.netconfig.pki`) has signed. Nothing in this package opens a connection.

The modules are imported on first use, because they need packages of the extra ``network``.
"""

from __future__ import annotations

from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING

from elmesh.errors import ElmeshError

if TYPE_CHECKING:
    from elmesh.netconfig import config, config_builder, data_spec, identity, layout, schema

__all__ = ["config", "config_builder", "data_spec", "identity", "layout", "schema"]


def __getattr__(name: str) -> ModuleType:
    """Import a module on first use; raise ElmeshError if it needs a package that is not installed."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        return import_module(f"{__name__}.{name}")
    except ModuleNotFoundError as error:
        package = str(error.name).partition(".")[0]
        if package not in ("cryptography", "msgspec"):
            raise
        raise ElmeshError(
            f'Networks need the package {package}; install it with: pip install "elmesh[network]"'
        ) from None
