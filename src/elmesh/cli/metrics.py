"""The status of an agent for Prometheus, on a port of this machine."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from elmesh.agent import NetworkAgent
from elmesh.errors import ElmeshError

__all__ = ["serve_metrics"]

_GAUGES = {
    "round": "Rounds done",
    "rounds": "Maximum number of rounds",
    "objective": "This agent's share of the objective",
    "consensus_gap": "Relative distance from the mean of the neighbours",
    "residual": "Relative residual of this agent",
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


@contextmanager
def serve_metrics(agent: NetworkAgent, port: int | None) -> Iterator[None]:
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
    def __init__(self, prometheus: Any, agent: NetworkAgent) -> None:
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
        present: dict[tuple[str, ...], Any] = {
            (name,): neighbor["present"] for name, neighbor in status["neighbors"].items()
        }
        yield metric(gauge, "neighbor_present", "Whether a neighbour is present", present, "neighbor")
        yield metric(gauge, "certificate_days_left", "Days until the certificate expires", {(): identity.days_left()})
