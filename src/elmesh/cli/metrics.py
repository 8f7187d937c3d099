"""The status of an agent for Prometheus, on a port of this machine."""

from __future__ import annotations

import math
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol, get_args

from elmesh.agent.network_agent import Phase
from elmesh.errors import ElmeshError
from elmesh.netconfig.expiry import expiries
from elmesh.netconfig.identity import Identity

__all__ = ["serve_metrics"]

_GAUGES = {
    "round": "Rounds done",
    "rounds": "Maximum number of rounds",
    "objective": "This agent's share of the objective",
    "consensus_gap": "Relative distance from the mean of the neighbours",
    "residual": "Relative residual of this agent",
    "seconds_left": "Seconds until all rounds are done, at the pace so far",
}
_COUNTERS = {
    "sent_messages": "Messages sent",
    "sent_bytes": "Bytes sent, before encryption",
    "received_messages": "Messages received",
    "received_bytes": "Bytes received, before encryption",
    "resent": "Messages resent",
    "duplicates": "Messages received twice or late",
    "refused": "Messages refused",
    "reconnects": "Times that a neighbour returned",
}


class _Agent(Protocol):
    """An agent, or the scheduled runs of one."""

    @property
    def identity(self) -> Identity: ...

    def status(self) -> dict[str, Any]: ...


@contextmanager
def serve_metrics(agent: _Agent, port: int | None) -> Iterator[None]:
    """Serve the metrics of an agent inside, if a port is given."""
    if port is None:
        yield
        return
    try:
        import prometheus_client.core  # noqa: PLC0415  (optional: the error below names it)
    except ImportError:
        raise ElmeshError(
            'Metrics need prometheus-client, which is not installed; run pip install "elmesh[network]".'
        ) from None
    registry = prometheus_client.CollectorRegistry()
    registry.register(_Collector(prometheus_client.core, agent))
    try:
        server, thread = prometheus_client.start_http_server(port, addr="127.0.0.1", registry=registry)
    except OSError as error:
        raise ElmeshError(
            f"Port {port} cannot be used for metrics: {(error.strerror or str(error)).lower()}."
        ) from None
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _Collector:
    def __init__(self, prometheus: Any, agent: _Agent) -> None:
        self._prometheus, self._agent = prometheus, agent

    def collect(self) -> Iterator[Any]:
        gauge, counter = self._prometheus.GaugeMetricFamily, self._prometheus.CounterMetricFamily
        identity, status = self._agent.identity, self._agent.status()

        def metric(family: Any, name: str, text: str, values: dict[tuple[str, ...], Any], *labels: str) -> Any:
            found = family(f"elmesh_{name}", text, labels=["network", "agent", *labels])
            for label, value in values.items():
                found.add_metric([identity.config.name, identity.name, *label], float(value))
            return found

        for name, text in _GAUGES.items():
            if status[name] is not None:
                yield metric(gauge, name, text, {(): status[name]})
        for name, text in _COUNTERS.items():
            yield metric(counter, name, text, {(): status["traffic"][name]})
        for name, text, value in _state(identity, status):
            yield metric(gauge, name, text, {(): value})
        phases: dict[tuple[str, ...], Any] = {(phase,): status["phase"] == phase for phase in get_args(Phase)}
        yield metric(gauge, "phase", "Whether the agent is in this phase", phases, "phase")
        present: dict[tuple[str, ...], Any] = {
            (name,): neighbor["present"] for name, neighbor in status["neighbors"].items()
        }
        yield metric(gauge, "neighbor_present", "Whether a neighbour is present", present, "neighbor")
        yield metric(gauge, "certificate_days_left", "Days until the certificate expires", {(): identity.days_left()})
        dates: dict[tuple[str, ...], float] = {}
        for one in expiries(identity):
            dates[one.what,] = min(one.seconds_left(), dates.get((one.what,), math.inf))
        text = "Seconds until the certificate, the first of the authorities or the list of revoked ones expires"
        yield metric(gauge, "certificate_expires_seconds", text, dates, "what")


def _state(identity: Identity, status: dict[str, Any]) -> Iterator[tuple[str, str, float]]:
    """Yield what an operator is warned of: name, text and value."""
    released = status["releases"] or {}
    if released.get("largest_epsilon") is not None:
        yield "epsilon_spent", "Epsilon of all releases of this site's rows so far", released["epsilon"] or 0.0
        yield "epsilon_budget", "Largest epsilon of this site's rows", released["largest_epsilon"]
    if status["totals"] is not None:
        yield "totals_formed", "Totals of matrices formed in this run", status["totals"]["done"]
        yield "totals_wanted", "Totals of matrices that the run takes", status["totals"]["of"]
    disk = shutil.disk_usage(identity.state)
    yield "disk_free_bytes", "Free bytes of the disk with the agent's folder", disk.free
    yield "disk_size_bytes", "Bytes of the disk with the agent's folder", disk.total
    yield "checkpoint_failing", "Whether the checkpoint cannot be written", status["checkpoint"]["problem"] is not None
    schedule = status.get("schedule")
    if schedule is not None:
        yield "model_version", "Number of the version in use; 0 before the first", schedule["version"] or 0
        yield "model_worse", "Whether this version is clearly worse than the former one", bool(schedule["worse"])
        yield "rows_gone", "Rows of the former table that the last one lacks", schedule["rows_gone"]
        yield "run_skipped", "Whether the last scheduled run made no version", bool(schedule["skipped"])
