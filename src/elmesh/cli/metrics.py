"""An agent's status as Prometheus reads it, on a port of this machine alone."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from elmesh.agent import StatusFile
from elmesh.errors import ElmeshError

if TYPE_CHECKING:
    from elmesh.netconfig.identity import Identity

__all__ = ["serving"]

_GAUGES = {
    "round": "Rounds done",
    "rounds": "Most rounds",
    "objective": "This agent's share of the objective",
    "consensus_gap": "Distance from the neighbours' mean, relative",
    "residual": "Residual of this agent, relative",
}
_COUNTERS = {
    "sent_messages": "Messages sent, before encryption",
    "sent_bytes": "Bytes sent, before encryption",
    "heard_messages": "Messages heard",
    "heard_bytes": "Bytes heard",
    "again": "Messages said again",
    "duplicates": "Messages that came twice or late",
    "refused": "Messages refused",
    "returns": "Times that a neighbour came back",
}


@contextlib.contextmanager
def serving(port: int | None, identity: Identity, status: StatusFile) -> Iterator[None]:
    """Answer Prometheus inside, if a port is given."""
    if port is None:
        yield
        return
    try:
        import prometheus_client.core  # noqa: PLC0415  (an extra)
    except ImportError:
        raise ElmeshError(
            'Metrics need prometheus-client, which is not installed; run pip install "elmesh[network]".'
        ) from None
    registry = prometheus_client.CollectorRegistry()
    registry.register(_Collector(prometheus_client.core, identity, status))
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
    def __init__(self, prometheus: Any, identity: Identity, status: StatusFile) -> None:
        self._prometheus, self._identity, self._status = prometheus, identity, status

    def collect(self) -> Iterator[Any]:
        gauge_of, counter_of = self._prometheus.GaugeMetricFamily, self._prometheus.CounterMetricFamily
        said = self._status.say()
        names = ["network", "agent"]
        mine = [self._identity.config.name, self._identity.name]
        for name, words in _GAUGES.items():
            if said[name] is not None:
                gauge = gauge_of(f"elmesh_{name}", words, labels=names)
                gauge.add_metric(mine, float(said[name]))
                yield gauge
        for name, words in _COUNTERS.items():
            counter = counter_of(f"elmesh_{name}", words, labels=names)
            counter.add_metric(mine, float(said["traffic"][name]))
            yield counter
        here = gauge_of("elmesh_neighbour_here", "Whether a neighbour is here", labels=[*names, "neighbour"])
        for name, neighbour in said["neighbours"].items():
            here.add_metric([*mine, name], float(neighbour["here"]))
        yield here
        days = gauge_of("elmesh_certificate_days_left", "Days that the certificate is good for", labels=names)
        days.add_metric(mine, self._identity.days_left())
        yield days
