"""What a network keeps out: neighbours that send invalid messages, strangers without a valid certificate, and noise."""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import shutil
import signal
import socket
import stat
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec.structs
import numpy as np
import pytest
from rich.console import Console

from elmesh.agent.limits import max_message_bytes
from elmesh.cli.event_log import capture_zenoh_log
from elmesh.cli.network_status import status_screen
from elmesh.comm.network.wire import Kind, encode, epoch_of
from elmesh.comm.network.zenoh_session import Router, router_configuration, session_configuration
from elmesh.errors import ElmeshError
from elmesh.netconfig.identity import Identity
from elmesh.netconfig.layout import NetworkLayout
from elmesh.netconfig.pki.authority import Authority, make_authority, sign
from elmesh.netconfig.pki.csr import make_request
from elmesh.netconfig.pki.keys import make_key
from helpers.forked import ForkedNetwork, ForkedProcess, run_command, undisturbed
from helpers.network import LIMIT, copy_agent, equal_weights, free_ports, make_config
from helpers.proxies import ProxiedNetwork
from helpers.rogue import Rogue

SHAPE = (30, 3)
GOOD = np.zeros(SHAPE).tobytes()
GARBAGE = np.random.default_rng(5).bytes(5000)
# A valid message that is not sealed.
PLAIN = encode(Kind.VALUE, "a-plain", bytes(32), shape=SHAPE, body=GOOD)
HOSTS = ["127.0.0.1", "localhost"]


def number(x: float) -> bytes:
    """Return a valid value but for one number."""
    value = np.zeros(SHAPE)
    value[7, 1] = x
    return value.tobytes()


Send = Callable[[Rogue, int], None]


def value(kind: Kind = Kind.VALUE, **fields: Any) -> Send:
    """Return what sends a value to north: a valid one, except for the given fields."""
    return lambda rogue, epoch: rogue.send("north", kind, **({"shape": SHAPE, "body": GOOD, "epoch": epoch} | fields))


def eviction(*names: str) -> Send:
    """Return what tells north that agents are evicted."""
    body = "\n".join(names).encode()
    return lambda rogue, _: rogue.send("north", Kind.EVICTED, epoch=epoch_of(names), body=body)


#: What a neighbour may send, and the reason for which it is refused.
INVALID: dict[str, tuple[Send, str]] = {
    "nan": (value(body=number(np.nan)), "not a finite number"),
    "infinity": (value(body=number(-np.inf)), "not a finite number"),
    "shape": (value(shape=SHAPE[::-1]), "it is 3 x 30, not 30 x 3"),
    "length": (value(body=GOOD[:-8]), "712 bytes, not 720"),
    "dtype": (value(is_bytes=True), "it holds no doubles"),
    "norm": (value(body=number(1e6)), "its norm is 1e+06, above"),
    "kind": (value(kind=Kind.TOTAL), "it is of kind TOTAL, when VALUE is due"),
    "digest": (value(digest=bytes(32)), "its network file differs"),
    "ahead": (value(number=5000), "its number is 5000, when 0 is due"),
    "garbage": (lambda rogue, _: rogue.send_bytes("north", GARBAGE), "not in the format"),
    "sealed": (lambda rogue, _: rogue.sealed.put("north", GARBAGE), "not in the format"),
    "short": (lambda rogue, _: rogue.sealed.put("north", b""), "fewer than a header"),
    "plain": (lambda rogue, _: rogue.send_bytes("north", PLAIN), "not in the format"),
    "keys": (lambda rogue, _: rogue.send_bytes("north", b"ELH1" + GARBAGE), "key bundle is not valid"),
    "name": (value(sender="south"), 'its header names the sender "south"'),
    "unknown": (eviction("eve"), "unknown names"),
    "itself": (eviction("a-itself"), "includes its sender"),
}
#: Some of each kind: numbers, headers, frames, keys and evictions; tests/unit/test_network_wire.py has more.
TELLING = ("nan", "shape", "kind", "garbage", "plain", "keys", "name", "unknown")


def send_until(send: Callable[[], object], condition: Callable[[], object]) -> None:
    """Send again every second until something is true: the first messages may precede the receiver's subscription."""
    end = time.monotonic() + LIMIT
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        send()
        again = time.monotonic() + 1.0
        while not condition() and time.monotonic() < again:
            time.sleep(0.02)


def most_memory(pid: int) -> int:
    """Return the most bytes of memory that a process has ever had."""
    return 1024 * int(re.search(r"VmHWM:\s+(\d+)", Path(f"/proc/{pid}/status").read_text())[1])


# Neighbours with a valid certificate.


@pytest.mark.parametrize("kinds", [TELLING, pytest.param(tuple(INVALID), marks=pytest.mark.slow)], ids=len)
def test_every_invalid_message_is_refused_and_the_others_continue_without_its_sender(tmp_path, kinds):
    hostile = [f"a-{what}" for what in kinds]
    invalid = [INVALID[what] for what in kinds]
    config = make_config(("north", "south", *hostile), "star")
    with contextlib.ExitStack() as stack:
        network = stack.enter_context(ForkedNetwork(tmp_path, config))
        north = network.agents["north"]
        for name in ("north", "south"):
            network.start(name, "--on-bad", "isolate", "--on-loss", "continue")
        network.until_event("north", "open")
        rogues = {name: stack.enter_context(Rogue(network.agents[name].folder)) for name in hostile}
        for rogue in rogues.values():
            rogue.until(rogue.messages)
        for k, (name, (send_invalid, _)) in enumerate(zip(hostile, invalid, strict=True)):

            def send(k: int = k, name: str = name, send_invalid: Send = send_invalid) -> None:
                epoch = epoch_of(hostile[:k])
                for other in hostile[k + 1 :]:
                    value()(rogues[other], epoch)
                send_invalid(rogues[name], epoch)

            send_until(send, lambda k=k: len(north.events("restarted")) > k)
            assert north.events("restarted")[-1]["evicted"] == sorted(hostile[: k + 1])
        assert network.wait("north", "south") == {"north": 0, "south": 0}
        refused = {event["name"]: event["reason"] for event in north.events("refused")}
        assert list(refused) == hostile
        for name, (_, why) in zip(hostile, invalid, strict=True):
            assert why in refused[name]
        assert network.result("north")["evicted"] == sorted(hostile)
        ours = network.weights()
    assert equal_weights(ours, undisturbed(tmp_path / "again", config.without(hostile, "north")))


@pytest.mark.parametrize("what", ["nan", "garbage"])
def test_an_invalid_message_ends_the_run_by_default_and_the_error_names_its_sender(tmp_path, what):
    send, why = INVALID[what]
    with ForkedNetwork(tmp_path, make_config(("mallory", "north"), "path")) as network:
        north = network.start("north")
        with Rogue(network.agents["mallory"].folder) as rogue:
            rogue.until(rogue.messages)
            send_until(lambda: send(rogue, 0), lambda: north.events("refused"))
            assert network.wait("north") == {"north": 4}
            rogue.until(lambda: rogue.messages(Kind.FAILED))
        last = north.errors.splitlines()[-1]
        assert "A message from mallory was refused" in last
        assert why in last
        assert "mallory" in north.status["problem"]
        assert north.status["phase"] == "failed"
        assert not north.out.exists()


@pytest.mark.parametrize("size", [200 << 20, pytest.param((2 << 30) - (1 << 20), marks=pytest.mark.slow)])
def test_a_huge_message_and_messages_under_another_name_are_not_received(tmp_path, size):
    with ForkedNetwork(tmp_path, make_config(("mallory", "north", "south"), "complete")) as network:
        north = network.start("north")
        with Rogue(network.agents["mallory"].folder) as rogue:
            rogue.until(rogue.messages)
            requests = []

            def request() -> None:
                requests.append(rogue.send("north", Kind.RESEND, number=0))

            send_until(request, lambda: rogue.messages(Kind.VALUE))
            before = most_memory(north.process.pid)
            rogue.send_bytes("north", bytes(size))
            rogue.send_bytes("north", bytes(1 << 20))  # this would pass through shared memory, if that were enabled
            # South is absent, and mallory cannot take its place.
            rogue.send_bytes("north", b"not south", under="south")
            rogue.put(rogue.key("south", "to", "*"), b"not south")
            rogue.put(rogue.key("**"), b"to all")
            rogue.put(rogue.key("north", "to", "north"), b"from north")
            rogue.appear("south")
            seen = len(rogue.messages(Kind.VALUE))
            send_until(request, lambda: len(rogue.messages(Kind.VALUE)) > seen)  # so it has processed what was before
            assert most_memory(north.process.pid) - before < 64 << 20
            send_until(lambda: requests.append(rogue.send_bytes("north", b"end")), lambda: north.events("refused"))
            assert network.wait("north") == {"north": 4}
        assert {event["name"] for event in north.events("neighbor")} == {"mallory"}
        assert {event["name"] for event in north.events("refused")} == {"mallory"}
        # Only the requests have arrived; the last bytes are no message.
        assert 2 <= north.status["traffic"]["received_messages"] <= len(requests)
        # Mallory has received nothing that is addressed to south.
        assert {key for key, _ in rogue.received} == {"elmesh/test/north/to/mallory"}


def test_a_neighbour_that_reports_an_eviction_is_named(tmp_path):
    with ForkedNetwork(tmp_path, make_config(("mallory", "north", "south"), "complete")) as network:
        north = network.start("north")
        with Rogue(network.agents["mallory"].folder) as rogue:
            rogue.until(rogue.messages)
            send_until(lambda: eviction("south")(rogue, 0), lambda: north.events("evicted"))
            assert network.wait("north") == {"north": 3}
        assert "mallory continues without south" in north.errors.splitlines()[-1]
        assert (north.events("evicted")[0]["name"], north.events("evicted")[0]["names"]) == ("mallory", ["south"])


# Strangers.


def forged(network: ForkedNetwork, name: str, to: Path, authority: Authority, of: str | None = None, **how) -> Path:
    """Return a copy of an agent's folder with another key, and a certificate that an authority signs for some name."""
    copy_agent(network, name, to)
    (to / "key.pem").unlink()
    request = make_request(make_key(to / "key.pem"), of or name, how.pop("hosts", HOSTS))
    (to / "certificate.pem").write_bytes(sign(request, authority, **how))
    return to


def without_certificate(config: dict) -> None:
    for name in ("connect_private_key", "connect_certificate", "listen_private_key", "listen_certificate"):
        del config["transport"]["link"]["tls"][name]
    config["transport"]["link"]["tls"]["enable_mtls"] = False


def without_tls(config: dict) -> None:
    config["connect"]["endpoints"] = [end.replace("tls/", "tcp/") for end in config["connect"]["endpoints"]]
    config["transport"]["link"]["protocols"] = ["tcp", "tls"]


def test_strangers_and_noise_are_rejected_and_do_not_disturb_the_run(tmp_path):
    config = make_config(("north", "south", "west"), "path")
    with contextlib.ExitStack() as stack:
        network = stack.enter_context(ForkedNetwork(tmp_path, config))
        south = network.start("south")
        network.start("west")
        network.until(lambda: [e for e in south.events("neighbor") if e["name"] == "west"])
        ca = Authority.read(tmp_path / "net" / "ca")
        other = make_authority(tmp_path / "other", config.name)
        old = {"now": datetime.now(UTC) - timedelta(days=60), "days": 30}
        folder = network.agents["north"].folder
        rejected = {
            "no certificate": (folder, {"change": without_certificate}, "no certificates"),
            "another authority": (forged(network, "north", tmp_path / "a", other), {}, "BadSignature"),
            "expired": (forged(network, "north", tmp_path / "b", ca, **old), {}, "expired"),
            "no TLS": (folder, {"change": without_tls}, "corrupt"),
        }
        # One at a time: each repeats its attempts, and the reasons do not name it.
        for files, options, why in rejected.values():
            before = len(south.events("rejected"))
            with Rogue(files, **options) as rogue:
                network.until(
                    lambda n=before, w=why: [event for event in south.events("rejected")[n:] if w in event["reason"]]
                )
                assert rogue.links == 0, why
        again = [stack.enter_context(Rogue(files, **options)) for files, options, _ in rejected.values()]
        # A valid certificate that is not a neighbour's.
        eve = forged(network, "north", tmp_path / "c", ca, of="eve")
        as_north = stack.enter_context(Rogue(eve, name="north"))
        as_eve = stack.enter_context(Rogue(eve, name="north", token=False))
        network.until_event("south", "stranger", 2)
        assert {event["name"] for event in south.events("stranger")} == {"eve"}
        for rogue in (as_north, as_eve):
            rogue.send_bytes("south", b"nonsense")
            rogue.send_bytes("south", b"nonsense", under="eve")
            rogue.send("south", Kind.FAILED, sender="north", body=b"stop")
        # Noise.
        address = ("127.0.0.1", int(config.agents[1].address.rpartition(":")[2]))
        noise = [stack.enter_context(socket.create_connection(address)) for _ in range(200)]
        for connection in noise[:10]:
            connection.sendall(b"GET / HTTP/1.1\r\n\r\n")
        hello = bytes.fromhex("16030101000100")  # the beginning of a handshake that never continues
        for connection in noise[10:20]:
            connection.sendall(hello)
        network.start("north")
        assert set(network.wait().values()) == {0}, network.logs()
        assert south.events("refused") == []
        assert south.status["traffic"]["refused"] == 0
        assert all(rogue.received == [] for rogue in (as_north, as_eve, *again))
        assert all(rogue.links == 0 for rogue in again)
        ours = network.weights()
    assert equal_weights(ours, undisturbed(tmp_path / "again", config))


def test_a_thousand_rejected_connections_do_not_fill_the_log():
    events = []
    with capture_zenoh_log(lambda event, **fields: events.append((event, fields))):
        line = b"2026-01-01T00:00:00Z \x1b[33m WARN\x1b[0m acc-0 zenoh_link_tls::unicast: received corrupt message\n"
        os.write(1, b"something else\n" + 1000 * line)
    for thread in threading.enumerate():
        if thread.name == "elmesh-zenoh-log":
            thread.join(2)  # zenoh may hold the pipe open
    assert events[0] == ("rejected", {"reason": "received corrupt message"})
    assert 20 <= len(events) <= 25


def test_the_status_shows_text_from_a_neighbour_without_interpreting_it():
    traffic = dict.fromkeys(("sent_bytes", "sent_messages", "resent", "received_bytes"), 0)
    status = {"phase": "failed", "running": False, "agent": "north", "network": "test", "time": time.time()}
    status |= {"age": 0.0, "consensus_gap": None, "seconds_left": None, "totals": None}
    status |= {"problem": "[/bold] [red]mallory\x1b[2J", "round": None, "traffic": traffic}
    status |= {"evicted": [], "neighbors": {}, "checkpoint": {"problem": None}, "keys": None, "releases": None}
    status["warnings"] = []
    console = Console(file=io.StringIO(), width=200)
    console.print(status_screen(status))
    assert "[/bold] [red]mallory [2J" in console.file.getvalue()


@pytest.mark.parametrize(("of", "hosts"), [("south", ["elsewhere.example.org"]), ("west", HOSTS)])
def test_nothing_is_sent_to_a_stranger_at_a_neighbours_address(tmp_path, of, hosts):
    config = make_config(("north", "south", "west"), "path")
    with ForkedNetwork(tmp_path, config) as network:
        ca = Authority.read(tmp_path / "net" / "ca")
        impostor = forged(network, "south", tmp_path / "impostor", ca, of=of, hosts=hosts)

        def listen_there(settings: dict) -> None:
            settings["listen"]["endpoints"] = [f"tls/{config.agents[1].address}"]
            settings["connect"]["endpoints"] = []

        with Rogue(impostor, name="south", change=listen_there) as rogue:
            north = network.start("north", "--patience", "5")
            assert network.wait("north") == {"north": 3}
            assert rogue.received == []
        assert "south has not come" in north.errors.splitlines()[-1]
        assert [event["name"] for event in north.events("stranger")][:1] == ([] if of == "south" else ["west"])
        assert north.events("neighbor") == []


def test_another_agents_certificate_is_refused_before_anything_is_sent(tmp_path):
    with ForkedNetwork(tmp_path, make_config(("north", "south"), "path")) as network:
        north, south = (network.agents[name].folder for name in ("north", "south"))
        for file in ("key.pem", "certificate.pem"):
            shutil.copy(south / file, north / file)
        agent = network.start("north")
        assert network.wait("north") == {"north": 2}
        assert "is the certificate of 'south', not of agent north" in agent.errors


# The configuration of zenoh.


@pytest.fixture
def site(tmp_path) -> Path:
    NetworkLayout(tmp_path / "net", make_config(("north", "south"), "path")).write()
    return tmp_path / "net" / "north"


@pytest.mark.parametrize("listening", [True, False])
@pytest.mark.parametrize("routers", [(), ("127.0.0.1:7999",)])
def test_all_links_are_tls_with_certificates_on_both_sides(site, listening, routers):
    identity = Identity.read(site / "agent.toml")
    identity = replace(identity, config=msgspec.structs.replace(identity.config, routers=routers))
    configs = [session_configuration(identity.endpoint(), 1000, listening)]
    if routers:
        configs.append(router_configuration(identity.endpoint(), 1000))
    for config in configs:
        ends = config["listen"]["endpoints"] + config.get("connect", {}).get("endpoints", [])
        assert ends
        assert all(end.startswith("tls/") for end in ends)
        assert config["transport"]["link"]["protocols"] == ["tls"]
        assert config["transport"]["link"]["rx"]["max_message_size"] == 1000
        tls = config["transport"]["link"]["tls"]
        assert tls["enable_mtls"] is tls["verify_name_on_connect"] is tls["close_link_on_expiration"] is True
        assert {tls[f"{end}_private_key"] for end in ("listen", "connect")} == {str(identity.key)}
        # With shared memory, agents of one machine would exchange values in the clear.
        assert config["transport"]["shared_memory"] == {"enabled": False}
        assert config["access_control"]["enabled"] is True
        assert config["access_control"]["default_permission"] == "deny"
        assert config["scouting"] == {"multicast": {"enabled": False}, "gossip": {"enabled": False}}
        json.dumps(config)


def test_a_router_forwards_to_an_agent_only_what_is_addressed_to_it(tmp_path):
    NetworkLayout(
        tmp_path / "net", make_config(("east", "north", "south"), "path", routers=("127.0.0.1:7999",))
    ).write()
    identity = Identity.read(tmp_path / "net" / "north" / "agent.toml")
    rules = {rule["id"]: rule for rule in router_configuration(identity.endpoint(), 1000)["access_control"]["rules"]}
    assert rules["east receives"]["key_exprs"] == ["elmesh/test/north/to/east", "elmesh/test/north/here"]
    assert rules["east sends"]["key_exprs"] == ["elmesh/test/east/**"]


def test_through_a_router_no_agent_reads_others_messages_or_sends_under_another_name(tmp_path):
    config = make_config(("east", "north", "south"), "path", routers=(f"127.0.0.1:{free_ports(1)[0]}",))
    NetworkLayout(tmp_path / "net", config).write()
    folders = {name: tmp_path / "net" / name for name in ("router", *config.agent_names)}
    with contextlib.ExitStack() as stack:
        endpoint = Identity.read(folders["router"] / "agent.toml").endpoint()
        stack.enter_context(Router(endpoint, max_message_bytes(config), lambda *_: None))
        east, north, south = (stack.enter_context(Rogue(folders[name])) for name in config.agent_names)
        for key in ("elmesh/test/north/to/*", "elmesh/test/north/to/south", "**"):
            east.subscribe(key)
        for rogue in (east, north, south):
            rogue.until_linked()
        # East sends under the names of north and south, and to an agent that is not its neighbour.
        forbidden = [f"elmesh/test/{key}" for key in ("north/to/south", "south/to/north", "east/to/south")]
        for key in forbidden:
            east.put(key, b"forged")
        for sender, receiver in ((east, north), (north, south), (north, east)):
            # Until the router knows the subscriptions, what is sent is lost.
            key = f"elmesh/test/{sender.name}/to/{receiver.name}"
            receiver.until(lambda s=sender, r=receiver, k=key: s.put(k, b"hello") or (k, b"hello") in r.received)
        for key in forbidden:
            east.put(key, b"forged")
        for sender, receiver in ((east, north), (north, south)):
            sender.send_bytes(receiver.name, b"end")
            receiver.until(lambda r=receiver: b"end" in [data for _, data in r.received])
        assert set(south.received) == {("elmesh/test/north/to/south", data) for data in (b"hello", b"end")}
        assert {key for key, _ in east.received} == {"elmesh/test/north/to/east"}
        assert {key for key, _ in north.received} == {"elmesh/test/east/to/north"}


@pytest.mark.parametrize("file", ["key.pem", "certificate.pem", "ca.pem"])
def test_without_one_of_its_files_an_agent_does_not_run(site, file):
    (site / file).unlink()
    with pytest.raises(ElmeshError, match=f"{file} does not exist"):
        Identity.read(site / "agent.toml")


# Secrets.


def test_a_key_that_others_can_read_is_refused_and_never_shown(tmp_path):
    with ForkedNetwork(tmp_path, make_config(("north", "south"), "path")) as network:
        key = network.agents["north"].folder / "key.pem"
        key.chmod(0o644)
        north = network.start("north")
        assert network.wait("north") == {"north": 2}
        assert "key.pem" in north.errors
        assert secrets_in(tmp_path, key) == []


def secrets_in(folder: Path, key: Path) -> list[Path]:
    """Files other than keys that hold a line of a key."""
    lines = [line for line in key.read_text().splitlines() if not line.startswith("-----")]
    files = [path for path in folder.rglob("*") if path.is_file() and path.name not in ("key.pem", "ca.key")]
    assert files
    return [path for path in files if any(line.encode() in path.read_bytes() for line in lines)]


def run_loud(*args: object) -> None:
    """Run an agent with the most detailed log of zenoh."""
    os.environ |= {"RUST_LOG": "zenoh=debug,zenoh_link_tls=trace,zenoh_config=trace", "RUST_BACKTRACE": "full"}
    run_command(*args)


class LoudNetwork(ForkedNetwork, ProxiedNetwork):
    """Agents with detailed logs, behind proxies."""

    def fork(self, name: str, *args: object) -> ForkedProcess:
        return ForkedProcess(*args, target=run_loud)


def test_an_agent_writes_no_secret_and_only_its_user_can_read_its_files(tmp_path):
    with LoudNetwork(tmp_path, make_config(("north", "south"), "path", rounds=1000)) as network:
        for proxy in network.proxies.values():
            proxy.delay = 0.1  # they are stopped long before their last round
        agents = [network.start("north"), network.start("south")]
        network.until(lambda: all((agent.folder / "state" / "checkpoint.safetensors").exists() for agent in agents))
        network.until_round("north", 1)
        for agent in agents:
            state = agent.folder / "state"
            assert stat.S_IMODE(state.stat().st_mode) == 0o700
            modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in state.iterdir() if path.suffix}
            assert {modes[name] for name in ("checkpoint.safetensors", "run.json", "status.json")} == {0o600}
        for agent in agents:
            agent.process.send_signal(signal.SIGTERM)
        assert network.wait() == {"north": 130, "south": 130}
        for agent in agents:
            assert secrets_in(tmp_path, agent.folder / "key.pem") == []
