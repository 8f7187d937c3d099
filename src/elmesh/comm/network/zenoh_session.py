"""Messages between sites by zenoh, over TLS with certificates on both sides, always.

Links are exactly the graph's edges: nothing is scouted for, and an edge is dialled by the agent whose name comes first.
A certificate of the network's authority lets a site in; what it may then say is bound to the name in its certificate:
an agent takes from a neighbour only what is under that neighbour's own name, and gives it only what is meant for it.
Whoever else has a certificate is not answered.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from elmesh.comm.network.wire import HEADER_BYTES
from elmesh.errors import ElmeshError

if TYPE_CHECKING:
    from elmesh.netconfig.config import Plan
    from elmesh.netconfig.identity import Identity

__all__ = ["Router", "Transport", "configuration", "largest_message", "need_zenoh", "router_configuration"]

# Milliseconds: a link that says nothing for so long is dead; first and longest wait between attempts to dial.
_LEASE, _DIAL, _DIAL_MOST = 5000, 100, 1000
# Bytes that a message may have beyond a value and its header: for what zenoh adds.
_SPARE = 65_536

# Numbers that may go beside a value, and columns beyond the rank that a start or a certificate may take.
_BESIDE, _COLUMNS = 4096, 64

_SPEAKS = ["put", "liveliness_token"]
_LISTENS = ["declare_subscriber", "declare_liveliness_subscriber", "liveliness_query"]


class Transport:
    """A site's links to its neighbours.

    Parameters
    ----------
    identity : Identity
        Who this is.
    largest : int
        Bytes of the largest message that anybody may send.
    stranger : callable
        Called with the name in a certificate that is no neighbour's, and its address.
    listening : bool
        Whether to be reachable; one who only asks need not be.
    """

    def __init__(
        self,
        identity: Identity,
        largest: int,
        *,
        stranger: Callable[[str, str], None] = lambda *_: None,
        listening: bool = True,
    ) -> None:
        zenoh = need_zenoh()
        self._me, self._net = identity.name, identity.plan.name
        self._neighbours = tuple(identity.plan.neighbours(identity.name))
        self._routed = bool(identity.plan.routers)
        self._stranger = stranger
        self._publishers: dict[str, Any] = {}
        self._held: list[Any] = []
        self._closed = threading.Event()
        config = configuration(identity, largest + _SPARE, listening)
        try:
            self._session = zenoh.open(zenoh.Config.from_json5(json.dumps(config)))
        except zenoh.ZError as error:
            raise ElmeshError(_why(str(error), identity)) from None
        for name in self._neighbours:
            self._publishers[name] = self._session.declare_publisher(
                self._key(self._me, "to", name),
                congestion_control=zenoh.CongestionControl.BLOCK,
                express=True,
            )
        self._held.append(self._session.info.declare_link_events_listener(self._link_changed, history=True))

    def listen(
        self, arrive: Callable[[str, bytes], None], presence: Callable[[str, bool], None], *, present: bool = True
    ) -> None:
        """Begin to take messages in, and to be seen as there.

        Parameters
        ----------
        arrive
            Called with the name of a neighbour and the bytes of a message.
        presence
            Called with the name of a neighbour and whether it is there.
        present
            Whether to be seen as there oneself.
        """
        zenoh = need_zenoh()
        for name in self._neighbours:

            def take(sample: Any, name: str = name) -> None:
                arrive(name, sample.payload.to_bytes())

            def see(sample: Any, name: str = name) -> None:
                presence(name, sample.kind == zenoh.SampleKind.PUT)

            self._held.append(self._session.declare_subscriber(self._key(name, "to", self._me), take))
            liveliness = self._session.liveliness()
            self._held.append(liveliness.declare_subscriber(self._key(name, "here"), see, history=True))
        if present:
            self._held.append(self._session.liveliness().declare_token(self._key(self._me, "here")))

    def put(self, to: str, data: bytes) -> None:
        """Send to a neighbour; what cannot be sent is asked for again."""
        if not self._closed.is_set():
            self._publishers[to].put(data)

    def close(self) -> None:
        """Hang up. Under losses zenoh takes its time for that, so nobody waits for it for long."""
        self._closed.set()
        closing = threading.Thread(target=self._session.close, daemon=True)
        closing.start()
        closing.join(timeout=3.0)

    def _key(self, *parts: str) -> str:
        return "/".join(("elmesh", self._net, *parts))

    def _link_changed(self, event: Any) -> None:
        zenoh = need_zenoh()
        name = event.link.auth_identifier or ""
        if event.kind == zenoh.SampleKind.PUT and not self._routed and name not in self._neighbours:
            self._stranger(name, str(event.link.dst))


class Router:
    """A session that passes messages on between sites; see :func:`router_configuration`.

    Parameters
    ----------
    identity : Identity
        The router's.
    presence : callable
        Called with the name in a certificate and whether its holder has come or gone.
    """

    def __init__(self, identity: Identity, presence: Callable[[str, bool], None]) -> None:
        zenoh = need_zenoh()
        config = router_configuration(identity, largest_message(identity.plan) + _SPARE)
        try:
            self._session = zenoh.open(zenoh.Config.from_json5(json.dumps(config)))
        except zenoh.ZError as error:
            raise ElmeshError(_why(str(error), identity)) from None
        self._links = self._session.info.declare_link_events_listener(
            lambda event: presence(event.link.auth_identifier or "", event.kind == zenoh.SampleKind.PUT)
        )

    def __enter__(self) -> Router:
        return self

    def __exit__(self, *_: object) -> None:
        closing = threading.Thread(target=self._session.close, daemon=True)
        closing.start()
        closing.join(timeout=3.0)


def configuration(identity: Identity, largest: int, listening: bool = True) -> dict[str, Any]:
    """Return zenoh's configuration for an agent."""
    plan, me = identity.plan, identity.name
    neighbours = plan.neighbours(me)
    address = {member.name: member.address for member in plan.members}
    # One who only asks dials everybody; an agent leaves half of it to its neighbours.
    dialled = [address[name] for name in neighbours if name > me or not listening]
    own = [f"tls/{identity.listen or address[me]}"] if listening and not plan.routers else []
    return {
        "mode": "client" if plan.routers else "peer",
        "listen": {"endpoints": own},
        "connect": _connect([f"tls/{other}" for other in (plan.routers or dialled)]),
        "scouting": {"multicast": {"enabled": False}, "gossip": {"enabled": False}},
        "transport": _transport(identity, largest),
        "access_control": _access(plan.name, me, neighbours, routed=bool(plan.routers)),
    }


def router_configuration(identity: Identity, largest: int) -> dict[str, Any]:
    """Return zenoh's configuration for a router, which passes on what agents say under their own names."""
    plan = identity.plan
    rules, policies, subjects = [], [], []
    for member in plan.members:
        own = f"elmesh/{plan.name}/{member.name}/**"
        # Of what a neighbour says, only what is meant for this one.
        others = _heard(plan.name, member.name, plan.neighbours(member.name))
        says = (
            _rule(f"{member.name} says", "ingress", _SPEAKS, [own]),
            _rule(f"{member.name} is asked", "egress", _LISTENS, [own]),
        )
        hears = (
            _rule(f"{member.name} hears", "egress", _SPEAKS, others),
            _rule(f"{member.name} asks", "ingress", _LISTENS, others),
        )
        rules += [*says, *hears]
        subjects.append({"id": member.name, "cert_common_names": [member.name]})
        policies.append({"rules": [rule["id"] for rule in (*says, *hears)], "subjects": [member.name]})
    return {
        "mode": "router",
        "listen": {"endpoints": [f"tls/{identity.listen or address}" for address in plan.routers[:1]]},
        "scouting": {"multicast": {"enabled": False}, "gossip": {"enabled": False}},
        "transport": _transport(identity, largest),
        "access_control": {
            "enabled": True,
            "default_permission": "deny",
            "rules": rules,
            "subjects": subjects,
            "policies": policies,
        },
    }


def _connect(endpoints: Sequence[str]) -> dict[str, Any]:
    return {
        "endpoints": list(endpoints),
        "timeout_ms": -1,
        "exit_on_failure": False,
        "retry": {"period_init_ms": _DIAL, "period_max_ms": _DIAL_MOST, "period_increase_factor": 1.5},
    }


def _transport(identity: Identity, largest: int) -> dict[str, Any]:
    key, certificate = str(identity.key), str(identity.certificate)
    return {
        "unicast": {"open_timeout": 5000, "accept_timeout": 5000},
        # On by default: between agents of one machine, values would go through its memory in the clear, past every
        # limit on how large they may be.
        "shared_memory": {"enabled": False},
        "link": {
            "protocols": ["tls"],
            "tx": {"lease": _LEASE, "keep_alive": 4},
            "rx": {"max_message_size": largest},
            "tls": {
                "root_ca_certificate": str(identity.authority),
                "listen_private_key": key,
                "listen_certificate": certificate,
                "connect_private_key": key,
                "connect_certificate": certificate,
                "enable_mtls": True,
                "verify_name_on_connect": True,
                "close_link_on_expiration": True,
            },
        },
    }


def _access(net: str, me: str, neighbours: Sequence[str], routed: bool) -> dict[str, Any]:
    """Bind what a link may carry to the name in the certificate at its other end.

    Through a router it is the router that does so, for its links end at the agents.
    """
    own = f"elmesh/{net}/{me}"
    rules, policies, subjects = [], [], []
    everybody = [_rule(f"{me} is asked", "ingress", _LISTENS, [f"{own}/**"])]
    if routed:
        others = _heard(net, me, neighbours)
        rules = [
            *everybody,
            _rule(f"{me} says", "egress", _SPEAKS, [f"{own}/**"]),
            _rule("others say", "ingress", _SPEAKS, others),
            _rule("others are asked", "egress", _LISTENS, others),
        ]
        subjects = [{"id": "router", "cert_common_names": ["router"]}]
        policies = [{"rules": [rule["id"] for rule in rules], "subjects": ["router"]}]
    else:
        rules += everybody
        for name in neighbours:
            theirs = _heard(net, me, [name])
            ours = [f"{own}/to/{name}", f"{own}/here"]
            own_rules = [
                _rule(f"{me} says to {name}", "egress", _SPEAKS, ours),
                _rule(f"{name} says", "ingress", _SPEAKS, theirs),
                _rule(f"{name} is asked", "egress", _LISTENS, theirs),
            ]
            rules += own_rules
            subjects.append({"id": name, "cert_common_names": [name]})
            policies.append({"rules": [rule["id"] for rule in (*everybody, *own_rules)], "subjects": [name]})
    return {
        "enabled": True,
        "default_permission": "deny",
        "rules": rules,
        "subjects": subjects,
        "policies": policies,
    }


def _heard(net: str, me: str, speakers: Sequence[str]) -> list[str]:
    """Return the keys under which an agent hears others: what each says to it, and that each is there."""
    return [f"elmesh/{net}/{name}/{what}" for name in speakers for what in (f"to/{me}", "here")]


def _rule(name: str, flow: str, messages: Sequence[str], keys: Sequence[str]) -> dict[str, Any]:
    return {
        "id": name,
        "permission": "allow",
        "flows": [flow],
        "messages": list(messages),
        "key_exprs": list(keys),
    }


def need_zenoh() -> Any:
    """Return zenoh, or say what to install."""
    try:
        import zenoh  # noqa: PLC0415  (an extra)
    except ImportError:
        raise ElmeshError('Networks need zenoh, which is not installed; run pip install "elmesh[network]".') from None
    return zenoh


def _why(text: str, identity: Identity) -> str:
    """Turn zenoh's error into a sentence."""
    address = identity.bind
    if "Address already in use" in text or "os error 98" in text:
        return f"Nothing can listen at {address}, for something does already; is this agent running?"
    if "Cannot assign requested address" in text or "os error 99" in text:
        return (
            f"This machine does not have the address {address}; give the one to listen at as listen in agent.toml, "
            'for instance listen = "0.0.0.0:7451".'
        )
    last = text.splitlines()[-1] if text else "no reason given"
    return f"The network could not be opened at {address}: {last[:300]}"


def largest_message(plan: Plan) -> int:
    """Return the bytes of the largest message that a plan allows for."""
    # An automatic rank may grow to as many columns as there are hidden units.
    most = plan.n_hidden if plan.rank == "auto" else int(plan.rank)
    return HEADER_BYTES + 8 * (plan.n_hidden * (most + _COLUMNS) + _BESIDE)
