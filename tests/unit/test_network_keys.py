"""The keys of a run: whose they are, links that only two agents can read, and lists that nobody can change."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec
import numpy as np
import pytest

pytest.importorskip("cryptography", reason="keys need cryptography, of elmesh[network]")

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from elmesh.comm.graph import make_topology
from elmesh.comm.network.endpoint import Endpoint
from elmesh.comm.network.errors import PeerError, RefusedError
from elmesh.comm.network.gather import TreeGather
from elmesh.comm.network.keys import RunKeys, make_bundle, open_bundle
from elmesh.comm.network.messenger import ReliableMessenger
from elmesh.comm.network.peer import Timing
from elmesh.comm.network.roster import Roster, agree_on_roster, confirm_view
from elmesh.comm.network.sealing import SEALED_BYTES, SealedSession
from elmesh.comm.network.transport import NetworkTransport
from elmesh.comm.network.wire import Kind, Message, WireError, encode, parse
from elmesh.comm.requests import IntegerSum, Topic
from elmesh.netconfig.pki.authority import Authority, make_authority, sign
from elmesh.netconfig.pki.credentials import CertificateCredentials
from elmesh.netconfig.pki.csr import make_request
from elmesh.netconfig.pki.keys import make_key
from helpers.credentials import NamedCredentials

NETWORK = bytes(range(32))
EPOCH = bytes(32)


@pytest.fixture(scope="module")
def authority(tmp_path_factory) -> Authority:
    return make_authority(tmp_path_factory.mktemp("ca"), "test")


def certified(folder: Path, name: str, authority: Authority, **how: object) -> CertificateCredentials:
    """Return the credentials of an agent with a certificate of an authority."""
    folder.mkdir()
    request = make_request(make_key(folder / "key.pem"), name, ["localhost"])
    (folder / "certificate.pem").write_bytes(sign(request, authority, **how))
    (folder / "ca.pem").write_bytes(authority.pem)
    return CertificateCredentials(*(folder / file for file in ("key.pem", "certificate.pem", "ca.pem")))


def bundle_of(credentials: object, name: str = "north", seed: int = 1, network: bytes = NETWORK) -> bytes:
    return make_bundle(name, network, 7, RunKeys(bytes([seed]) * 32), credentials)


# Bundles.


def test_a_bundle_proves_whose_keys_it_has(tmp_path, authority):
    north, south = (certified(tmp_path / name, name, authority) for name in ("north", "south"))
    keys = open_bundle(bundle_of(north), NETWORK, south)
    own = RunKeys(b"\x01" * 32)
    assert (keys.name, keys.run_id, keys.agreement) == ("north", 7, own.mask.public)
    keys.check_signature(b"statement", own.signing.sign(b"statement"))
    for signature in (own.signing.sign(b"another"), bytes(64), b""):
        with pytest.raises(WireError, match="a signature is not that of north"):
            keys.check_signature(b"statement", signature)


def test_a_certificate_with_an_rsa_key_signs_bundles_as_well(tmp_path, authority):
    south = certified(tmp_path / "south", "south", authority)
    folder = tmp_path / "north"
    folder.mkdir()
    key = rsa.generate_private_key(65537, 2048)
    pem = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    (folder / "key.pem").touch(mode=0o600)
    (folder / "key.pem").write_bytes(pem)
    (folder / "certificate.pem").write_bytes(sign(make_request(key, "north", ["localhost"]), authority))
    north = CertificateCredentials(folder / "key.pem", folder / "certificate.pem", tmp_path / "south" / "ca.pem")
    assert open_bundle(bundle_of(north), NETWORK, south).name == "north"


def test_keys_of_another_authority_name_date_or_network_are_refused(tmp_path, authority):
    south = certified(tmp_path / "south", "south", authority)
    other = make_authority(tmp_path / "other", "test")
    past = {"now": datetime.now(UTC) - timedelta(days=60), "days": 30}
    future = {"now": datetime.now(UTC) + timedelta(days=60)}
    cases = {
        "not issued by the authority": bundle_of(certified(tmp_path / "a", "north", other)),
        "expired": bundle_of(certified(tmp_path / "b", "north", authority, **past)),
        "not valid before": bundle_of(certified(tmp_path / "c", "north", authority, **future)),
        # A certificate of west that names keys as those of north: swapped, or stolen.
        "the certificate is that of 'west'": bundle_of(certified(tmp_path / "d", "west", authority)),
        "for another network file": bundle_of(certified(tmp_path / "e", "north", authority), network=bytes(32)),
    }
    for why, bundle in cases.items():
        with pytest.raises(WireError, match=why):
            open_bundle(bundle, NETWORK, south)


@pytest.mark.parametrize("place", ["content", "chain", "signature"])
def test_a_bundle_that_was_changed_is_refused(tmp_path, authority, place):
    north, south = (certified(tmp_path / name, name, authority) for name in ("north", "south"))
    content, chain, signature = msgspec.msgpack.decode(bundle_of(north))
    whole = {"content": content, "chain": chain[0], "signature": signature}
    for k in range(len(whole[place])):
        parts = {name: bytearray(part) for name, part in whole.items()}
        parts[place][k] ^= 1 << k % 8
        changed = msgspec.msgpack.encode([bytes(parts["content"]), [bytes(parts["chain"])], bytes(parts["signature"])])
        with pytest.raises(WireError):
            open_bundle(changed, NETWORK, south)


def test_the_secrets_of_a_run_are_never_shown():
    keys = RunKeys(os.urandom(32))
    assert keys.seed.hex() not in repr(keys)
    assert repr(keys.seed) not in repr(keys)
    assert len({keys.noise(b""), keys.noise(b"west"), keys.mask.number, keys.seed}) == 4


# Links between two agents.


class Wire:
    """Two sealed sessions, and a router between them that can see, drop, change and invent frames."""

    def __init__(self, *, routed: bool = True) -> None:
        self.frames: list[tuple[str, str, bytes]] = []
        self.opened: list[tuple[str, bytes]] = []
        self.invalid: list[tuple[str, str]] = []
        self.linked: list[tuple[str, str]] = []
        self.sessions: dict[str, SealedSession] = {}
        self.deliver = True
        self.changed = threading.Condition()
        self.routed = routed
        for name in ("north", "south"):
            self.start(name)

    def start(self, name: str, seed: int | None = None) -> SealedSession:
        """Start an agent: with other keys if a seed is given."""
        keys = RunKeys(bytes([len(name) if seed is None else seed, *name.encode()]).ljust(32))
        bundle = make_bundle(name, NETWORK, 7, keys, NamedCredentials(name))
        session = SealedSession(
            Frames(self, name), name, NETWORK, keys, bundle, NamedCredentials(name), routed=self.routed
        )
        session.listen(
            lambda sender, data: self.note(self.opened, (name, data)),
            lambda other: self.note(self.linked, (name, other)),
            lambda sender, reason: self.note(self.invalid, (sender, reason)),
        )
        self.sessions[name] = session
        return session

    def note(self, where: list, what: object) -> None:
        with self.changed:
            where.append(what)
            self.changed.notify_all()

    def until(self, condition) -> None:
        with self.changed:
            assert self.changed.wait_for(condition, 60)

    def carry(self, sender: str, to: str, frame: bytes) -> None:
        self.note(self.frames, (sender, to, frame))
        if self.deliver:
            self.sessions[to].receive(sender, frame)

    def connect(self) -> None:
        self.sessions["north"].put("south", message(b"lost: no keys yet"))
        self.until(lambda: {("north", "south"), ("south", "north")} <= set(self.linked))

    def close(self) -> None:
        for session in self.sessions.values():
            session.close()


class Frames:
    def __init__(self, wire: Wire, name: str) -> None:
        self._wire, self._name = wire, name

    def put(self, to: str, data: bytes) -> None:
        self._wire.carry(self._name, to, data)


def message(body: bytes) -> bytes:
    return encode(Kind.VALUE, "north", NETWORK, body=body)


@pytest.fixture(params=[True, False], ids=["routed", "direct"])
def wire(request):
    one = Wire(routed=request.param)
    yield one
    one.close()


def test_a_first_message_exchanges_keys_and_the_next_one_arrives_sealed(wire):
    wire.connect()
    assert wire.opened == []
    data = message(b"a secret of 23 bytes...")
    wire.sessions["north"].put("south", data)
    assert wire.opened == [("south", data)]
    frame = wire.frames[-1][2]
    assert len(frame) == len(data) + SEALED_BYTES
    assert b"secret" not in frame
    wire.sessions["north"].put("south", data)
    assert wire.frames[-1][2] != frame  # another nonce


def test_a_router_can_neither_change_nor_invent_nor_redirect_a_message(wire):
    wire.connect()
    wire.deliver = False
    wire.sessions["north"].put("south", message(b"text"))
    wire.deliver, frame = True, wire.frames[-1][2]
    for k in range(4, len(frame)):
        changed = bytearray(frame)
        changed[k] ^= 1
        wire.sessions["south"].receive("north", bytes(changed))
    wire.sessions["north"].receive("south", frame)  # back to its sender
    wire.sessions["south"].receive("north", frame[:20])
    assert wire.opened == []
    wire.sessions["south"].receive("north", frame)
    assert wire.opened == [("south", message(b"text"))]


def test_what_is_not_sealed_is_dropped_or_refused_but_for_pings(wire):
    wire.connect()
    for data in (message(b"plain"), b"", b"ELS", b"GET / HTTP/1.1", encode(Kind.FAILED, "north", NETWORK)):
        wire.sessions["south"].receive("north", data)
    assert wire.opened == []
    # Only where no router is in between, the neighbour itself has sent it.
    assert [sender for sender, _ in wire.invalid] == ([] if wire.routed else ["north"] * 5)
    ping = encode(Kind.PING, "north", NETWORK, number=3)
    wire.sessions["south"].receive("north", ping)
    assert wire.opened == [("south", ping)]


def test_keys_of_another_agent_or_of_low_order_are_not_accepted(wire):
    wire.connect()
    before = wire.sessions["south"].keys_of("north")
    wrong = make_bundle("west", NETWORK, 7, RunKeys(bytes(32)), NamedCredentials("west"))
    content, chain, _ = msgspec.msgpack.decode(wire.sessions["north"].bundle)
    fields = msgspec.msgpack.decode(content)
    fields[4] = bytes(32)
    low = msgspec.msgpack.encode(fields)
    low = msgspec.msgpack.encode([low, chain, NamedCredentials("north").sign(low)])
    for bundle in (wrong, low, b"", b"\x93"):
        wire.sessions["south"].receive("north", b"ELH1" + bundle)
    assert wire.sessions["south"].keys_of("north") == before
    reasons = [reason for _, reason in wire.invalid]
    assert reasons == (
        []
        if wire.routed
        else [
            "the keys are those of west",
            "the key for agreement is not valid",
            "its key bundle is not valid",
            "its key bundle is not valid",
        ]
    )


def test_an_agent_that_has_lost_the_keys_of_its_neighbour_asks_for_them(wire):
    wire.connect()
    wire.start("south")
    wire.sessions["north"].put("south", message(b"cannot be opened"))
    wire.until(lambda: wire.linked.count(("south", "north")) == 2)
    wire.sessions["north"].put("south", message(b"can"))
    assert wire.opened == [("south", message(b"can"))]


def test_messages_of_an_earlier_run_cannot_be_opened_in_the_next(wire):
    wire.connect()
    wire.deliver = False
    wire.sessions["north"].put("south", message(b"old"))
    old, wire.deliver = wire.frames[-1][2], True
    wire.start("south", seed=99)
    wire.sessions["north"].put("south", message(b"for the earlier run"))
    wire.until(lambda: wire.linked.count(("north", "south")) == 2)
    wire.sessions["south"].receive("north", old)
    wire.sessions["north"].put("south", message(b"new"))
    assert wire.opened == [("south", message(b"new"))]


# Agents that agree on keys and add up, in memory; whoever forwards messages may change them.

NAMES = ("east", "north", "south", "west")


class Agents:
    """Agents in threads, whose messages pass a function that may change them."""

    def __init__(self, graph: str = "path", tamper=lambda sender, to, message: message) -> None:
        self.topology, self.tamper = make_topology(graph, range(len(NAMES))), tamper
        self.root = NAMES[int(self.topology.tree.order[0])]
        self.keys = {name: RunKeys(name.encode().ljust(32)) for name in NAMES}
        neighbors = {n: tuple(NAMES[j] for j in self.topology.neighbors(k)) for k, n in enumerate(NAMES)}
        nowhere, timing = Path("unused"), Timing(patience=30.0, mute_factor=1.0)
        self.messengers = {}
        for k, name in enumerate(NAMES):
            endpoint = Endpoint("test", name, neighbors, {}, (), "", nowhere, nowhere, nowhere, NETWORK)
            self.messengers[name] = ReliableMessenger(endpoint, Switch(self, name), timing, k + 1)
        for name in NAMES:
            for other in neighbors[name]:
                self.messengers[name].on_presence(other, True)

    def gather(self, name: str) -> TreeGather:
        return TreeGather(self.messengers[name], NAMES, self.topology)

    def roster(self, name: str) -> Roster:
        bundle = make_bundle(name, NETWORK, NAMES.index(name) + 1, self.keys[name], NamedCredentials(name))
        args = NAMES, self.keys[name], bundle, NETWORK, NamedCredentials(name)
        return agree_on_roster(self.gather(name), *args)

    def run(self, work) -> dict[str, object]:
        """Do the same at all agents; return what each returns or raises."""

        def one(name: str) -> object:
            try:
                return work(name)
            except PeerError as error:
                # As an agent does: so that the others do not wait.
                self.messengers[name].fail(str(error))
                return error

        try:
            with ThreadPoolExecutor(len(NAMES)) as threads:
                return dict(zip(NAMES, threads.map(one, NAMES), strict=True))
        finally:
            for messenger in self.messengers.values():
                messenger.close()


class Switch:
    def __init__(self, agents: Agents, name: str) -> None:
        self._agents, self._name = agents, name

    def put(self, to: str, data: bytes) -> None:
        message = self._agents.tamper(self._name, to, parse(data))
        if message is not None:
            self._agents.messengers[to].on_message(self._name, packed(message))


def packed(message: Message) -> bytes:
    fields = ("epoch", "number", "acked", "run_id", "peer_run_id", "is_bytes", "view")
    return encode(
        message.kind,
        message.sender,
        message.digest,
        shape=(message.rows, message.columns),
        body=bytes(message.body),
        **{name: getattr(message, name) for name in fields},
    )


def with_body(message: Message, body: bytes) -> Message:
    return replace(message, body=memoryview(body))


@pytest.mark.parametrize("graph", ["path", "star", "ring", "complete"])
def test_all_agents_agree_on_the_keys_and_numbers_of_all(graph):
    agents = Agents(graph)
    rosters = agents.run(agents.roster)
    assert len({(roster.digest, roster.fingerprint) for roster in rosters.values()}) == 1
    roster = rosters["east"]
    assert [keys.name for keys in roster.keys] == list(NAMES)
    assert roster.numbers == tuple(agents.keys[name].mask.number for name in NAMES)
    assert Roster.from_json(roster.to_json(), NETWORK, NamedCredentials("east")) == roster


def test_the_fingerprint_is_of_certificates_and_the_digest_of_the_keys_of_a_run():
    first, second = Agents(), Agents()
    second.keys["west"] = RunKeys(b"another run".ljust(32))
    one, other = first.run(first.roster)["east"], second.run(second.roster)["east"]
    assert one.fingerprint == other.fingerprint
    assert one.digest != other.digest


def replace_entry(message: Message, name: str, entry: bytes) -> Message:
    entries = msgspec.msgpack.decode(message.body, type=dict[str, bytes])
    return with_body(message, msgspec.msgpack.encode(entries | {name: entry}, order="sorted"))


def first_lists(change):
    """Return a tampering with the lists of bundles on their way back from the root, or inwards, to one agent."""

    def tamper(sender: str, to: str, message: Message) -> Message:
        return change(sender, to, message) if message.kind in (Kind.LIST, Kind.PARTIAL_LIST) else message

    return tamper


def another_bundle(name: str, seed: int, signer: str | None = None) -> bytes:
    keys = RunKeys(bytes([seed]) * 32)
    return make_bundle(name, NETWORK, NAMES.index(name) + 1, keys, NamedCredentials(signer or name))


def refusals(results: dict[str, object]) -> list[str]:
    return [str(result) for result in results.values() if isinstance(result, RefusedError)]


def test_an_agent_on_the_way_cannot_replace_another_s_keys_without_its_certificate():
    # North forwards west's bundle with keys of its own choice, signed by itself.
    def change(sender, to, message):
        if message.kind is Kind.PARTIAL_LIST and b"west" in bytes(message.body) and message.number == 0:
            return replace_entry(message, "west", another_bundle("west", 9, signer="north"))
        return message

    agents = Agents(tamper=first_lists(change))
    results = agents.run(agents.roster)
    assert any("The entry of west in a list of all sites was refused" in text for text in refusals(results))
    assert not any(isinstance(result, Roster) for result in results.values())


def test_an_agent_whose_own_entry_was_changed_notices():
    def change(sender, to, message):
        if message.kind is Kind.LIST and to == "west" and message.number == 0:
            return replace_entry(message, "west", another_bundle("west", 9))
        return message

    agents = Agents(tamper=first_lists(change))
    results = agents.run(agents.roster)
    assert "its list has another entry of west" in str(results["west"])


def test_a_run_number_that_was_not_committed_to_is_refused():
    def change(sender, to, message):
        if message.kind is Kind.PARTIAL_LIST and sender == "east" and message.number == 1:
            return replace_entry(message, "east", bytes(32))
        return message

    agents = Agents(tamper=first_lists(change))
    results = agents.run(agents.roster)
    assert any("number of east is not the one it has committed to" in text for text in refusals(results))


@pytest.mark.parametrize("kind", ["copy", "missing", "unknown", "long", "garbage", "text"])
def test_lists_that_are_not_one_valid_entry_of_each_agent_are_refused(kind):
    def change(sender, to, message):
        if message.kind is not Kind.PARTIAL_LIST or sender != "east" or message.number:
            return message
        own = msgspec.msgpack.decode(message.body, type=dict[str, bytes])["east"]
        entries = {
            "copy": {"east": another_bundle("east", 9).replace(b"east", b"west")},
            "missing": {},
            "unknown": {"east": own, "eve": own},
            "long": {"east": bytes(100_000)},
            "text": {"east": "text"},
        }
        body = bytes(50) if kind == "garbage" else msgspec.msgpack.encode(entries[kind])
        return with_body(message, body)

    agents = Agents(tamper=first_lists(change))
    results = agents.run(agents.roster)
    assert refusals(results)
    assert not any(isinstance(result, Roster) for result in results.values())


def test_two_agents_with_the_same_keys_are_refused():
    agents = Agents()
    agents.keys["west"] = agents.keys["east"]
    assert any("east and west have the same key" in text for text in refusals(agents.run(agents.roster)))


# Totals.


def adding(agents: Agents, sums: int = 3, confirm: bool = True):
    """Return what every agent does: agree on keys, add up some vectors, and confirm the totals."""

    def work(name: str) -> list[list[int]]:
        roster, me = agents.roster(name), NAMES.index(name)
        masked = roster.masked_sums(me, agents.keys[name], EPOCH)
        transport = NetworkTransport(agents.messengers[name], NAMES, agents.topology, sums=masked)
        value = np.arange(5) + 10 * me
        found = [transport.integer_sum(IntegerSum(value, Topic.MATRIX)).tolist() for _ in range(sums)]
        if confirm:
            confirm_view(agents.gather(name), roster, agents.keys[name], masked.view)
        return found

    return work


@pytest.mark.parametrize("graph", ["path", "star", "ring"])
def test_masked_sums_over_agents_are_exact_and_confirmed(graph):
    agents = Agents(graph)
    assert list(agents.run(adding(agents)).values()) == [[[60, 64, 68, 72, 76]] * 3] * 4


def nobody_has_a_result(results: dict[str, object]) -> bool:
    return all(isinstance(result, PeerError) for result in results.values())


def one_bit(message: Message) -> Message:
    body = bytearray(message.body)
    body[0] ^= 1
    return with_body(message, bytes(body))


@pytest.mark.parametrize("which", [0, 1, 2], ids=["first", "second", "last"])
def test_a_parent_that_sends_different_totals_to_different_subtrees_is_found(which):
    """The root sends one subtree another total, and hides from all others that it noticed: nobody ends with a model."""
    agents = Agents("star")
    hidden = {}

    def tamper(sender, to, message):
        if sender == agents.root and message.kind is Kind.TOTAL:
            # Two lists of keys and numbers come before the totals.
            if to == "west" and message.number == 2 + which:
                message = one_bit(message)
            if to == "west" and to in hidden:
                message = replace(message, view=hidden[to])
        if to == agents.root and message.kind is Kind.PARTIAL_SUM:
            if sender == "west":
                hidden[sender] = message.view
                message = replace(message, view=hidden.get("other", message.view))
            else:
                hidden["other"] = message.view
        return message

    agents.tamper = tamper
    results = agents.run(adding(agents))
    assert nobody_has_a_result(results)
    texts = " ".join(map(str, results.values()))
    assert "masks of a sum do not cancel" in texts or "other totals" in texts or "signature is not that of" in texts


def test_a_parent_that_invents_totals_cannot_obtain_the_signatures_of_all():
    """The root lies about every total, to each subtree in a way of its own: only the last step can show it."""
    agents = Agents("star")

    def tamper(sender, to, message):
        if sender == agents.root and message.kind is Kind.TOTAL and to != agents.root:
            return with_body(message, np.full(6, 0).astype("<u8").tobytes() if to == "west" else bytes(message.body))
        return message

    agents.tamper = tamper
    results = agents.run(adding(agents, sums=1))
    assert nobody_has_a_result(results)
    assert any("The entry of" in text and "signature is not that of" in text for text in refusals(results))


@pytest.mark.parametrize("graph", ["path", "star"])
def test_an_agent_that_leaves_out_its_mask_ends_the_run_of_all(graph):
    agents = Agents(graph)
    work = adding(agents)

    def without_mask(name: str) -> object:
        if name != "west":
            return work(name)
        roster = agents.roster(name)
        masked = roster.masked_sums(3, agents.keys[name], EPOCH)
        masked._masks._keys.clear()
        transport = NetworkTransport(agents.messengers[name], NAMES, agents.topology, sums=masked)
        return transport.integer_sum(IntegerSum(np.arange(5), Topic.MATRIX))

    results = agents.run(without_mask)
    assert nobody_has_a_result(results)
    assert any("masks of a sum do not cancel" in text for text in refusals(results))


def test_masks_of_another_run_do_not_cancel():
    agents = Agents()
    work = adding(agents)

    def with_old_number(name: str) -> object:
        if name != "west":
            return work(name)
        roster = agents.roster(name)
        old = Roster(roster.keys, (*roster.numbers[:3], bytes(32)), roster.bundles)
        masked = old.masked_sums(3, agents.keys[name], EPOCH)
        transport = NetworkTransport(agents.messengers[name], NAMES, agents.topology, sums=masked)
        return transport.integer_sum(IntegerSum(np.arange(5), Topic.MATRIX))

    results = agents.run(with_old_number)
    assert nobody_has_a_result(results)
    assert any("other keys or other totals" in text for text in refusals(results))


# Threads that receive the first bundles of a process at once; each round is a process of its own to the decoder.
FIRST_BUNDLES = """
import importlib, sys, threading
import msgspec
import elmesh.comm.network.keys as keys

sys.setswitchinterval(1e-6)
data = msgspec.msgpack.encode([b"content", [b"certificate"], b"signature"])


def receive(together):
    together.wait()
    try:
        keys.open_bundle(data, b"", None)
    except keys.WireError:
        pass


for _ in range(400):
    importlib.reload(keys)
    together = threading.Barrier(4)
    threads = [threading.Thread(target=receive, args=(together,)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
"""


@pytest.mark.slow
def test_bundles_that_come_at_once_from_several_neighbours_do_not_crash_the_process():
    done = subprocess.run([sys.executable, "-c", FIRST_BUNDLES], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
