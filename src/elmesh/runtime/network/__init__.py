"""Agents at sites of their own, that reach each other over the internet with mutual TLS."""

from elmesh.runtime.network.site import Site
from elmesh.runtime.network.status import Phase, StatusFile, read_status

__all__ = ["Phase", "Site", "StatusFile", "read_status"]
