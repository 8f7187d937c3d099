"""Agents at sites of their own, that reach each other over the internet with mutual TLS."""

from elmesh.agent.network_agent import Site
from elmesh.agent.status import Phase, StatusFile, read_status

__all__ = ["Phase", "Site", "StatusFile", "read_status"]
