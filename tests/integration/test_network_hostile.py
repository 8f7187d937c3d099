"""Who a network keeps out: neighbours that lie, strangers with the wrong papers, and noise at the door."""

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

import msgspec.structs
import numpy as np
import pytest
from rich.console import Console

from elmesh.cli.logbook import overhearing
from elmesh.cli.network_look import _screen
from elmesh.comm.network.wire import Kind, epoch_of
from elmesh.comm.network.zenoh_session import Router, configuration, router_configuration
from elmesh.errors import ElmeshError
from elmesh.netconfig.config import NetworkConfig
from elmesh.netconfig.identity import Identity
from elmesh.netconfig.layout import NetworkLayout
from elmesh.netconfig.pki.authority import Authority, make_authority, sign
from elmesh.netconfig.pki.csr import make_request
from elmesh.netconfig.pki.keys import make_key
from helpers.network import copy_agent, free_ports, make_config, same, with_ports
from helpers.nursery import Forking
from helpers.rogue import Rogue

SHAPE = (30, 3)
GOOD = np.zeros(SHAPE).tobytes()
HOSTS = ["127.0.0.1", "localhost"]


def number(x: float) -> bytes:
    """A value that is good but for one number."""
    value = np.zeros(SHAPE)
    value[7, 1] = x
    return value.tobytes()


def a_value(**fields) -> Callable[[Rogue, int], None]:
    def tell(rogue: Rogue, epoch: int) -> None:
        rogue.say("north", fields.pop("kind", Kind.VALUE), **({"shape": SHAPE, "body": GOOD, "epoch": epoch} | fields))

    return tell


def gone(*names: str) -> Callable[[Rogue, int], None]:
    body = "\n".join(names).encode()
    return lambda rogue, _: rogue.say("north", Kind.GONE, epoch=epoch_of(names), body=body)


#: What a neighbour may try, and what is said of it.
LIES: dict[str, tuple[Callable[[Rogue, int], None], str]] = {
    "nan": (a_value(body=number(np.nan)), "not a finite number"),
    "infinity": (a_value(body=number(-np.inf)), "not a finite number"),
    "shape": (a_value(shape=SHAPE[::-1]), "it is of 3 x 30, not 30 x 3"),
    "length": (a_value(body=GOOD[:-8]), "712 bytes, not 720"),
    "dtype": (a_value(coarse=True), "not of double precision"),
    "norm": (a_value(body=number(1e6)), "its norm is 1e+06, and no honest one is above"),
    "kind": (a_value(kind=Kind.OUTWARDS), "it is of kind OUTWARDS, when VALUE is due"),
    "digest": (a_value(digest=bytes(32)), "another network file"),
    "ahead": (a_value(number=5000), "its number is 5000, when 0 is due"),
    "garbage": (lambda rogue, _: rogue.tell("north", os.urandom(5000)), "not in the format"),
    "short": (lambda rogue, _: rogue.tell("north", b""), "fewer than a header"),
    "name": (a_value(sender="south"), 'it says that it is from "south"'),
    "nobody": (gone("eve"), "agents that nobody knows"),
    "itself": (gone("a-itself"), "itself"),
}


def undisturbed(folder: Path, config: NetworkConfig) -> dict:
    """The weights of an undisturbed run."""
    folder.mkdir()
    with Forking(folder, with_ports(config, free_ports(len(config.agents)))) as trial:
        trial.start_all()
        assert set(trial.wait().values()) == {0}
        return trial.weights()


def most_memory(pid: int) -> int:
    """The most bytes of memory that a process ever had."""
    return 1024 * int(re.search(r"VmHWM:\s+(\d+)", Path(f"/proc/{pid}/status").read_text())[1])


# Neighbours with a good certificate.


def test_every_lie_is_refused_by_name_and_the_honest_go_on_without_the_liars(tmp_path):
    liars = [f"a-{lie}" for lie in LIES]
    config = make_config(("north", "south", *liars), "star")
    with contextlib.ExitStack() as stack:
        trial = stack.enter_context(Forking(tmp_path, config))
        north = trial.agents["north"]
        for name in ("north", "south"):
            trial.start(name, "--on-bad", "isolate", "--on-loss", "continue")
        trial.until(lambda: north.events("open"))
        rogues = {name: stack.enter_context(Rogue(trial.agents[name].folder)) for name in liars}
        for rogue in rogues.values():
            rogue.until(rogue.messages)
        for k, (name, (lie, why)) in enumerate(zip(liars, LIES.values(), strict=True)):
            epoch = epoch_of(liars[:k])
            for other in liars[k + 1 :]:
                a_value()(rogues[other], epoch)
            lie(rogues[name], epoch)
            trial.until(lambda k=k: len(north.events("regrouped")) > k)
            event = north.events("refused")[-1]
            assert event["name"] == name
            assert why in event["reason"]
            assert north.events("regrouped")[-1]["gone"] == sorted(liars[: k + 1])
        assert trial.wait("north", "south") == {"north": 0, "south": 0}
        assert len(north.events("refused")) == len(LIES)
        assert trial.result("north")["without"] == sorted(liars)
        ours = trial.weights()
    assert same(ours, undisturbed(tmp_path / "again", config.without(liars, "north")))


@pytest.mark.parametrize("lie", ["nan", "garbage"])
def test_a_lie_ends_the_run_where_that_is_wanted_and_the_sentence_names_the_liar(tmp_path, lie):
    tell, why = LIES[lie]
    with Forking(tmp_path, make_config(("mallory", "north"), "path")) as trial:
        north = trial.start("north")
        with Rogue(trial.agents["mallory"].folder) as rogue:
            rogue.until(rogue.messages)
            tell(rogue, 0)
            assert trial.wait("north") == {"north": 4}
            rogue.until(lambda: rogue.messages(Kind.FAILED))
        assert "A message from mallory was refused" in north.errors.splitlines()[-1]
        assert why in north.errors.splitlines()[-1]
        assert "mallory" in north.status["problem"]
        assert not north.out.exists()


@pytest.mark.parametrize("size", [200 << 20, pytest.param((2 << 30) - (1 << 20), marks=pytest.mark.slow)])
def test_a_huge_message_and_anothers_name_do_not_get_in(tmp_path, size):
    with Forking(tmp_path, make_config(("mallory", "north", "south"), "complete")) as trial:
        north = trial.start("north")
        with Rogue(trial.agents["mallory"].folder) as rogue:
            rogue.until(rogue.messages)
            before = most_memory(north.process.pid)
            rogue.tell("north", bytes(size))
            rogue.tell("north", bytes(1 << 20))  # that would go through the machine's memory, if there were a way
            # South is not there, and mallory cannot be it.
            rogue.tell("north", b"not south", under="south")
            rogue.put(rogue.key("south", "to", "*"), b"not south")
            rogue.put(rogue.key("**"), b"everybody")
            rogue.put(rogue.key("north", "to", "north"), b"itself")
            with rogue._session.liveliness().declare_token(rogue.key("south", "here")):
                rogue.say("north", Kind.WANT, number=0)
                rogue.until(lambda: rogue.messages(Kind.VALUE))  # it has got as far as this
                assert most_memory(north.process.pid) - before < 64 << 20
                rogue.tell("north", b"enough")
                assert trial.wait("north") == {"north": 4}
        assert [event["name"] for event in north.events("neighbour")] == ["mallory"]
        assert [event["name"] for event in north.events("refused")] == ["mallory"]
        heard = north.status["traffic"]["heard_messages"]
        assert heard == 2, "the request and the last one, and none of the others"
        # Nothing that was meant for south was given to mallory.
        assert {key for key, _ in rogue.heard} == {"elmesh/test/north/to/mallory"}


def test_a_neighbour_that_says_that_others_are_gone_is_named(tmp_path):
    with Forking(tmp_path, make_config(("mallory", "north", "south"), "complete")) as trial:
        north = trial.start("north")
        with Rogue(trial.agents["mallory"].folder) as rogue:
            rogue.until(rogue.messages)
            gone("south")(rogue, 0)
            assert trial.wait("north") == {"north": 3}
        assert "mallory goes on without south" in north.errors.splitlines()[-1]
        assert [(event["name"], event["names"]) for event in north.events("gone")] == [("mallory", ["south"])]


# Strangers.


def papers(trial: Forking, name: str, to: Path, authority: Authority, of: str | None = None, **how) -> Path:
    """An agent's folder with another key, and a certificate that an authority signs for some name."""
    copy_agent(trial, name, to)
    (to / "key.pem").unlink()
    request = make_request(make_key(to / "key.pem"), of or name, how.pop("hosts", HOSTS))
    (to / "certificate.pem").write_bytes(sign(request, authority, **how))
    return to


def without_papers(config: dict) -> None:
    for name in ("connect_private_key", "connect_certificate", "listen_private_key", "listen_certificate"):
        del config["transport"]["link"]["tls"][name]
    config["transport"]["link"]["tls"]["enable_mtls"] = False


def in_the_clear(config: dict) -> None:
    config["connect"]["endpoints"] = [end.replace("tls/", "tcp/") for end in config["connect"]["endpoints"]]
    config["transport"]["link"]["protocols"] = ["tcp", "tls"]


def test_strangers_and_noise_are_turned_away_and_the_run_takes_no_notice(tmp_path):
    config = make_config(("north", "south", "west"), "path", rounds=300)
    with contextlib.ExitStack() as stack:
        trial = stack.enter_context(Forking(tmp_path, config))
        south = trial.start("south")
        trial.start("west")
        trial.until(lambda: [e for e in south.events("neighbour") if e["name"] == "west"])
        ca = Authority.read(tmp_path / "net" / "ca")
        other = make_authority(tmp_path / "other", config.name)
        old = {"now": datetime.now(UTC) - timedelta(days=60), "days": 30}
        folder = trial.agents["north"].folder
        turned_away = {
            "nothing": (folder, {"change": without_papers}),
            "another authority's": (papers(trial, "north", tmp_path / "a", other), {}),
            "expired": (papers(trial, "north", tmp_path / "b", ca, **old), {}),
            "no TLS": (folder, {"change": in_the_clear}),
        }
        reasons = {}
        for what, (papers_of, how) in turned_away.items():
            # One at a time, for each keeps trying; what it is told of is then its own doing.
            before = len(south.events("turned away"))
            with Rogue(papers_of, **how) as rogue:
                trial.until(lambda n=before: len(south.events("turned away")) > n + 1)
                assert rogue.links == 0, what
            reasons[what] = south.events("turned away")[-1]["reason"]
        for what, why in zip(turned_away, ("no certificates", "BadSignature", "expired", "corrupt"), strict=True):
            assert why in reasons[what], reasons
        again = [stack.enter_context(Rogue(papers_of, **how)) for papers_of, how in turned_away.values()]
        # Good papers, but not a neighbour's.
        eve = papers(trial, "north", tmp_path / "c", ca, of="eve")
        as_north = stack.enter_context(Rogue(eve, name="north"))
        as_eve = stack.enter_context(Rogue(eve, name="north", token=False))
        trial.until(lambda: len(south.events("stranger")) >= 2)
        assert {event["name"] for event in south.events("stranger")} == {"eve"}
        for rogue in (as_north, as_eve):
            rogue.tell("south", b"nonsense")
            rogue.tell("south", b"nonsense", under="eve")
            rogue.say("south", Kind.FAILED, sender="north", body=b"give up")
        # Noise.
        place = ("127.0.0.1", int(config.agents[1].address.rpartition(":")[2]))
        noise = [stack.enter_context(socket.create_connection(place)) for _ in range(200)]
        for one in noise[:10]:
            one.sendall(b"GET / HTTP/1.1\r\n\r\n")
        hello = bytes.fromhex("16030101000100")  # the beginning of a handshake that never goes on
        for one in noise[10:20]:
            one.sendall(hello)
        trial.start("north")
        assert set(trial.wait().values()) == {0}
        assert south.events("refused") == []
        assert south.status["traffic"]["refused"] == 0
        assert all(rogue.heard == [] for rogue in (as_north, as_eve, *again))
        assert all(rogue.links == 0 for rogue in again)
        ours = trial.weights()
    assert same(ours, undisturbed(tmp_path / "again", config))


def test_whoever_knocks_a_thousand_times_does_not_fill_the_log():
    told = []
    with overhearing(lambda event, **fields: told.append((event, fields))):
        line = b"2026-01-01T00:00:00Z \x1b[33m WARN\x1b[0m acc-0 zenoh_link_tls::unicast: received corrupt message\n"
        os.write(1, b"something else\n" + 1000 * line)
    (listener,) = [thread for thread in threading.enumerate() if thread.name == "elmesh-overhearing"] or [None]
    if listener is not None:
        listener.join(10)
    assert told[0] == ("turned away", {"reason": "received corrupt message"})
    assert 20 <= len(told) <= 25


def test_what_a_neighbour_says_of_itself_is_shown_as_it_is():
    traffic = dict.fromkeys(("sent_bytes", "sent_messages", "again", "heard_bytes"), 0)
    said = {"phase": "failed", "running": False, "agent": "north", "network": "test", "time": time.time()}
    said |= {"problem": "[/bold] [red]mallory\x1b[2J", "round": None, "traffic": traffic, "gone": [], "neighbours": {}}
    console = Console(file=io.StringIO(), width=200)
    console.print(_screen(said | {"journal": {"problem": None}}))
    assert "[/bold] [red]mallory [2J" in console.file.getvalue()


@pytest.mark.parametrize(("of", "hosts"), [("south", ["elsewhere.example.org"]), ("west", HOSTS)])
def test_somebody_else_at_a_neighbours_address_is_not_talked_to(tmp_path, of, hosts):
    network = make_config(("north", "south", "west"), "path")
    with Forking(tmp_path, network) as trial:
        ca = Authority.read(tmp_path / "net" / "ca")
        impostor = papers(trial, "south", tmp_path / "impostor", ca, of=of, hosts=hosts)

        def there(config: dict) -> None:
            config["listen"]["endpoints"] = [f"tls/{network.agents[1].address}"]
            config["connect"]["endpoints"] = []

        with Rogue(impostor, name="south", change=there) as rogue:
            north = trial.start("north", "--patience", "3")
            assert trial.wait("north") == {"north": 3}
            assert rogue.heard == []
        assert "south has not come" in north.errors.splitlines()[-1]
        assert [event["name"] for event in north.events("stranger")][:1] == ([] if of == "south" else ["west"])
        assert north.events("neighbour") == []


def test_another_agents_certificate_is_refused_before_anything_is_said(tmp_path):
    with Forking(tmp_path, make_config(("north", "south"), "path")) as trial:
        north, south = (trial.agents[name].folder for name in ("north", "south"))
        for file in ("key.pem", "certificate.pem"):
            shutil.copy(south / file, north / file)
        agent = trial.start("north")
        assert trial.wait("north") == {"north": 2}
        assert "is the certificate of 'south', not of agent north" in agent.errors


# There is no other way.


@pytest.fixture
def site(tmp_path) -> Path:
    NetworkLayout(tmp_path / "net", make_config(("north", "south"), "path")).write()
    return tmp_path / "net" / "north"


@pytest.mark.parametrize("listening", [True, False])
@pytest.mark.parametrize("routers", [(), ("127.0.0.1:7999",)])
def test_nothing_is_configured_that_is_not_tls_with_certificates_on_both_sides(site, listening, routers):
    identity = Identity.read(site / "agent.toml")
    identity = replace(identity, config=msgspec.structs.replace(identity.config, routers=routers))
    configs = [configuration(identity, 1000, listening)]
    if routers:
        configs.append(router_configuration(identity, 1000))
    for config in configs:
        ends = config["listen"]["endpoints"] + config.get("connect", {}).get("endpoints", [])
        assert ends
        assert all(end.startswith("tls/") for end in ends)
        assert config["transport"]["link"]["protocols"] == ["tls"]
        assert config["transport"]["link"]["rx"]["max_message_size"] == 1000
        tls = config["transport"]["link"]["tls"]
        assert tls["enable_mtls"] is tls["verify_name_on_connect"] is tls["close_link_on_expiration"] is True
        assert {tls[f"{end}_private_key"] for end in ("listen", "connect")} == {str(identity.key)}
        # Else agents of one machine would hand values to each other in its memory, in the clear.
        assert config["transport"]["shared_memory"] == {"enabled": False}
        assert config["access_control"]["enabled"] is True
        assert config["access_control"]["default_permission"] == "deny"
        assert config["scouting"] == {"multicast": {"enabled": False}, "gossip": {"enabled": False}}
        json.dumps(config)


def test_a_router_gives_an_agent_only_what_is_meant_for_it(tmp_path):
    NetworkLayout(
        tmp_path / "net", make_config(("east", "north", "south"), "path", routers=("127.0.0.1:7999",))
    ).write()
    identity = Identity.read(tmp_path / "net" / "north" / "agent.toml")
    rules = {rule["id"]: rule for rule in router_configuration(identity, 1000)["access_control"]["rules"]}
    assert rules["east hears"]["key_exprs"] == ["elmesh/test/north/to/east", "elmesh/test/north/here"]
    assert rules["east says"]["key_exprs"] == ["elmesh/test/east/**"]


def test_through_a_router_nobody_hears_what_is_not_meant_for_it_or_speaks_as_another(tmp_path):
    config = make_config(("east", "north", "south"), "path", routers=(f"127.0.0.1:{free_ports(1)[0]}",))
    NetworkLayout(tmp_path / "net", config).write()
    folders = {name: tmp_path / "net" / name for name in ("router", *config.agent_names)}
    with contextlib.ExitStack() as stack:
        stack.enter_context(Router(Identity.read(folders["router"] / "agent.toml"), lambda *_: None))
        east, north, south = (stack.enter_context(Rogue(folders[name])) for name in config.agent_names)
        for key in ("elmesh/test/north/to/*", "elmesh/test/north/to/south", "**"):
            east.ask(key)
        for rogue in (east, north, south):
            rogue.until_linked()
        # East says that it is north, and then something of its own, to north and past it.
        for key in ("north/to/south", "south/to/north", "east/to/south"):
            east.put(f"elmesh/test/{key}", b"a lie")
        for speaker, hearer in ((east, north), (north, south), (north, east)):
            # Until what they ask for is known to the router, what is said goes nowhere.
            key = f"elmesh/test/{speaker.name}/to/{hearer.name}"
            hearer.until(lambda s=speaker, h=hearer, k=key: s.put(k, b"hello") or (k, b"hello") in h.heard)
        for key in ("north/to/south", "south/to/north", "east/to/south"):
            east.put(f"elmesh/test/{key}", b"a lie")
        for speaker, hearer in ((east, north), (north, south)):
            speaker.tell(hearer.name, b"the last word")
            hearer.until(lambda h=hearer: b"the last word" in [data for _, data in h.heard])
        assert set(south.heard) == {("elmesh/test/north/to/south", data) for data in (b"hello", b"the last word")}
        assert {key for key, _ in east.heard} == {"elmesh/test/north/to/east"}
        assert {key for key, _ in north.heard} == {"elmesh/test/east/to/north"}


@pytest.mark.parametrize("file", ["key.pem", "certificate.pem", "ca.pem"])
def test_without_one_of_its_files_an_agent_does_not_run(site, file):
    (site / file).unlink()
    with pytest.raises(ElmeshError, match=f"{file} does not exist"):
        Identity.read(site / "agent.toml")


# Secrets.


def test_a_key_that_others_can_read_is_refused_and_never_shown(tmp_path):
    with Forking(tmp_path, make_config(("north", "south"), "path")) as trial:
        key = trial.agents["north"].folder / "key.pem"
        key.chmod(0o644)
        north = trial.start("north")
        assert trial.wait("north") == {"north": 2}
        assert "key.pem" in north.errors
        assert secrets_in(tmp_path, key) == []


def secrets_in(folder: Path, key: Path) -> list[Path]:
    """Files other than keys that hold a line of a key."""
    lines = [line for line in key.read_text().splitlines() if not line.startswith("-----")]
    files = [path for path in folder.rglob("*") if path.is_file() and path.name not in ("key.pem", "ca.key")]
    assert files
    return [path for path in files if any(line.encode() in path.read_bytes() for line in lines)]


def test_no_secret_is_in_what_an_agent_writes_and_what_it_keeps_is_for_its_user_alone(tmp_path):
    with Forking(tmp_path, make_config(("north", "south"), "path", rounds=100_000)) as trial:
        # As much as zenoh can say of itself.
        loud = {"env": {"RUST_LOG": "zenoh=debug,zenoh_link_tls=trace,zenoh_config=trace", "RUST_BACKTRACE": "full"}}
        agents = [trial.start("north", **loud), trial.start("south")]
        trial.until(lambda: all((agent.folder / "state" / "journal.safetensors").exists() for agent in agents))
        trial.until_round("north", 1)
        for agent in agents:
            state = agent.folder / "state"
            assert stat.S_IMODE(state.stat().st_mode) == 0o700
            modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in state.iterdir() if path.suffix}
            assert {modes[name] for name in ("journal.safetensors", "run.json", "status.json")} == {0o600}
        for agent in agents:
            agent.process.send_signal(signal.SIGTERM)
        assert trial.wait() == {"north": 130, "south": 130}
        for agent in agents:
            assert secrets_in(tmp_path, agent.folder / "key.pem") == []
