"""Agents at their own sites, which reach each other over the internet with mutual TLS."""

from elmesh.agent.network_agent import AgentResult, NetworkAgent
from elmesh.agent.status import RENEWED, read_status, status_file

__all__ = ["RENEWED", "AgentResult", "NetworkAgent", "read_status", "status_file"]
