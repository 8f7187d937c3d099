"""Bytes between sites by zenoh, over TLS with certificates on both sides, always.

Links are exactly the graph's edges: there is no discovery, and an edge is dialled by the agent whose name comes first.
A certificate of the network's authority admits a site; what it may then send is bound to the name in its certificate:
an agent accepts from a neighbour only what is under that neighbour's own name, and sends it only what is addressed to
it. Other holders of a certificate get no answer.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from elmesh.comm.network.endpoint import Endpoint
from elmesh.errors import ElmeshError

__all__ = ["Router", "ZenohSession", "import_zenoh", "router_configuration", "session_configuration"]

# Milliseconds: a link that is silent for so long is dead; first and longest interval between attempts to dial.
_LEASE, _DIAL, _LONGEST_DIAL = 5000, 100, 1000
# Bytes that zenoh may add to a message.
_OVERHEAD = 65_536
# Seconds to wait for a session to close; under packet loss zenoh takes longer.
_CLOSE = 3.0

_SEND = ["put", "liveliness_token"]
_RECEIVE = ["declare_subscriber", "declare_liveliness_subscriber", "liveliness_query"]


class ZenohSession:
    """An agent's links to its neighbours, for messages of at most ``max_message`` bytes.

    ``on_stranger`` is called with the name in a certificate that is no neighbour's, and its address. Without
    ``listening`` others cannot connect.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        max_message: int,
        *,
        on_stranger: Callable[[str, str], None] = lambda *_: None,
        listening: bool = True,
    ) -> None:
        zenoh = import_zenoh()
        self._name, self._network = endpoint.name, endpoint.network
        self._neighbors = tuple(endpoint.neighbors[endpoint.name])
        self._routed = bool(endpoint.routers)
        self._on_stranger = on_stranger
        self._publishers: dict[str, Any] = {}
        self._declared: list[Any] = []
        self._closed = threading.Event()
        self._session = _open(session_configuration(endpoint, max_message + _OVERHEAD, listening), endpoint)
        for name in self._neighbors:
            self._publishers[name] = self._session.declare_publisher(
                self._key(self._name, "to", name),
                congestion_control=zenoh.CongestionControl.BLOCK,
                express=True,
            )
        self._declared.append(self._session.info.declare_link_events_listener(self._on_link, history=True))

    def listen(
        self,
        on_message: Callable[[str, bytes], None],
        on_presence: Callable[[str, bool], None],
        *,
        present: bool = True,
    ) -> None:
        """Start to receive messages, and with ``present`` to be seen as present.

        The functions are called with the name of a neighbour, and the bytes of a message or whether it is present.
        """
        zenoh = import_zenoh()
        for name in self._neighbors:

            def receive(sample: Any, name: str = name) -> None:
                on_message(name, sample.payload.to_bytes())

            def notice(sample: Any, name: str = name) -> None:
                on_presence(name, sample.kind == zenoh.SampleKind.PUT)

            self._declared.append(self._session.declare_subscriber(self._key(name, "to", self._name), receive))
            liveliness = self._session.liveliness()
            self._declared.append(liveliness.declare_subscriber(self._key(name, "here"), notice, history=True))
        if present:
            self._declared.append(self._session.liveliness().declare_token(self._key(self._name, "here")))

    def put(self, to: str, data: bytes) -> None:
        """Send to a neighbour; what is lost is requested again."""
        if not self._closed.is_set():
            self._publishers[to].put(data)

    def close(self) -> None:
        """Close all links."""
        self._closed.set()
        _close(self._session)

    def _key(self, *parts: str) -> str:
        return "/".join(("elmesh", self._network, *parts))

    def _on_link(self, event: Any) -> None:
        name = event.link.auth_identifier or ""
        is_new = event.kind == import_zenoh().SampleKind.PUT
        if is_new and not self._routed and name not in self._neighbors:
            self._on_stranger(name, str(event.link.dst))


class Router:
    """A session that forwards messages between sites; see :func:`router_configuration`.

    ``on_presence`` is called with the name in a certificate and whether its holder has connected or disconnected.
    """

    def __init__(self, endpoint: Endpoint, max_message: int, on_presence: Callable[[str, bool], None]) -> None:
        zenoh = import_zenoh()
        self._session = _open(router_configuration(endpoint, max_message + _OVERHEAD), endpoint)
        self._links = self._session.info.declare_link_events_listener(
            lambda event: on_presence(event.link.auth_identifier or "", event.kind == zenoh.SampleKind.PUT)
        )

    def __enter__(self) -> Router:
        return self

    def __exit__(self, *_: object) -> None:
        _close(self._session)


def _open(configuration: dict[str, Any], endpoint: Endpoint) -> Any:
    zenoh = import_zenoh()
    try:
        return zenoh.open(zenoh.Config.from_json5(json.dumps(configuration)))
    except zenoh.ZError as error:
        raise ElmeshError(_explain(str(error), endpoint.listen)) from None


def _close(session: Any) -> None:
    closing = threading.Thread(target=session.close, daemon=True)
    closing.start()
    closing.join(timeout=_CLOSE)


def session_configuration(endpoint: Endpoint, max_message: int, listening: bool = True) -> dict[str, Any]:
    """Return zenoh's configuration for an agent.

    What a link may carry is bound to the name in the certificate at its other end. Through a router the router does so,
    because its links end at the agents.
    """
    name, neighbors, routed = endpoint.name, endpoint.neighbors[endpoint.name], bool(endpoint.routers)
    own = f"elmesh/{endpoint.network}/{name}"
    rules, links = {}, {"router": neighbors} if routed else {other: (other,) for other in neighbors}
    for other, senders in links.items():
        sent = [f"{own}/**"] if routed else [f"{own}/to/{other}", f"{own}/here"]
        theirs = _received_keys(endpoint.network, name, senders)
        rules[other] = [
            _rule(f"{name} is subscribed to", "ingress", _RECEIVE, [f"{own}/**"]),
            _rule(f"{name} sends to {other}", "egress", _SEND, sent),
            _rule(f"{other} sends", "ingress", _SEND, theirs),
            _rule(f"{other} is subscribed to", "egress", _RECEIVE, theirs),
        ]
    # A check dials all neighbours; an agent leaves half of the edges to them.
    dialled = [endpoint.addresses[other] for other in neighbors if other > name or not listening]
    connect = {
        "endpoints": [f"tls/{other}" for other in (endpoint.routers or dialled)],
        "timeout_ms": -1,
        "exit_on_failure": False,
        "retry": {"period_init_ms": _DIAL, "period_max_ms": _LONGEST_DIAL, "period_increase_factor": 1.5},
    }
    mode = "client" if routed else "peer"
    return _configuration(endpoint, max_message, mode, listening and not routed, rules) | {"connect": connect}


def router_configuration(endpoint: Endpoint, max_message: int) -> dict[str, Any]:
    """Return zenoh's configuration for a router, which forwards what agents send under their own names."""
    rules = {}
    for name, neighbors in endpoint.neighbors.items():
        own = [f"elmesh/{endpoint.network}/{name}/**"]
        # Of what a neighbour sends, only what is addressed to this agent.
        others = _received_keys(endpoint.network, name, neighbors)
        rules[name] = [
            _rule(f"{name} sends", "ingress", _SEND, own),
            _rule(f"{name} is subscribed to", "egress", _RECEIVE, own),
            _rule(f"{name} receives", "egress", _SEND, others),
            _rule(f"{name} subscribes", "ingress", _RECEIVE, others),
        ]
    return _configuration(endpoint, max_message, "router", True, rules)


def _configuration(
    endpoint: Endpoint, max_message: int, mode: str, listening: bool, rules_of: Mapping[str, list[dict[str, Any]]]
) -> dict[str, Any]:
    """Return what agents and routers have in common, with the rules for each name in a certificate."""
    key, certificate = str(endpoint.key), str(endpoint.certificate)
    rules = {rule["id"]: rule for own in rules_of.values() for rule in own}
    return {
        "mode": mode,
        "listen": {"endpoints": [f"tls/{endpoint.listen}"] if listening else []},
        "scouting": {"multicast": {"enabled": False}, "gossip": {"enabled": False}},
        "transport": {
            "unicast": {"open_timeout": 5000, "accept_timeout": 5000},
            # On by default: between agents of one machine, values would pass through its memory in the clear, and
            # without any limit of size.
            "shared_memory": {"enabled": False},
            "link": {
                "protocols": ["tls"],
                "tx": {"lease": _LEASE, "keep_alive": 4},
                "rx": {"max_message_size": max_message},
                "tls": {
                    "root_ca_certificate": str(endpoint.authority),
                    "listen_private_key": key,
                    "listen_certificate": certificate,
                    "connect_private_key": key,
                    "connect_certificate": certificate,
                    "enable_mtls": True,
                    "verify_name_on_connect": True,
                    "close_link_on_expiration": True,
                },
            },
        },
        "access_control": {
            "enabled": True,
            "default_permission": "deny",
            "rules": list(rules.values()),
            "subjects": [{"id": name, "cert_common_names": [name]} for name in rules_of],
            "policies": [{"rules": [rule["id"] for rule in own], "subjects": [name]} for name, own in rules_of.items()],
        },
    }


def _received_keys(network: str, name: str, senders: Sequence[str]) -> list[str]:
    """Return the keys that an agent receives: what each sender addresses to it, and each sender's presence."""
    return [f"elmesh/{network}/{sender}/{what}" for sender in senders for what in (f"to/{name}", "here")]


def _rule(name: str, flow: str, messages: Sequence[str], keys: Sequence[str]) -> dict[str, Any]:
    return {"id": name, "permission": "allow", "flows": [flow], "messages": list(messages), "key_exprs": list(keys)}


def import_zenoh() -> Any:
    """Return the module zenoh, or raise an error that states what to install."""
    try:
        import zenoh  # noqa: PLC0415  (optional: the error below names it)
    except ImportError:
        raise ElmeshError('Networks need zenoh, which is not installed; run pip install "elmesh[network]".') from None
    return zenoh


def _explain(text: str, address: str) -> str:
    """Turn zenoh's error into a sentence."""
    if "Address already in use" in text or "os error 98" in text:
        return f"The address {address} is in use; is this agent running already?"
    if "Cannot assign requested address" in text or "os error 99" in text:
        return (
            f"This machine does not have the address {address}; set the one to listen at in agent.toml, for instance "
            'listen = "0.0.0.0:7451".'
        )
    last = text.splitlines()[-1] if text else "no reason given"
    return f"The network could not be opened at {address}: {last[:300]}"
