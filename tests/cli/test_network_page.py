"""The live page of an agent: who may read it, what it shows, and that it follows agents that come and go."""

import html
import http.client
import json
import re
import threading
import time
from contextlib import ExitStack, contextmanager

import pytest

from elmesh.agent.status import read_status
from elmesh.cli.live_page import render_state
from elmesh.cli.network_page import make_server
from elmesh.cli.status_text import status_lines
from elmesh.errors import ElmeshError
from elmesh.netconfig.identity import Identity
from elmesh.netconfig.layout import NetworkLayout
from helpers.browser import Browser
from helpers.forked import ForkedNetwork
from helpers.network import SUMS_REGRESSION, free_ports, make_config
from helpers.pages import Reader, needs_browser
from helpers.proxies import ProxiedNetwork

LINK = {"present": True, "since": time.time(), "sent": 1, "received": 1, "buffered": 0, "done": False}
TRAFFIC = dict.fromkeys(("sent_bytes", "sent_messages", "resent", "received_messages", "received_bytes"), 1)


class SlowNetwork(ForkedNetwork, ProxiedNetwork):
    """Agents that take a while, because every message does."""


@pytest.fixture(scope="module")
def identity(tmp_path_factory):
    folder = tmp_path_factory.mktemp("page")
    NetworkLayout(folder, make_config(("east", "north", "south", "west"))).write(days=2)
    return Identity.read(folder / "north" / "agent.toml")


@contextmanager
def served(identity):
    """Serve the page of an agent; yield its port."""
    (port,) = free_ports(1)
    with make_server(identity, f"127.0.0.1:{port}") as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield port
        finally:
            server.shutdown()
            thread.join()


def ask(port, method="GET", path="/", host=None):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    try:
        connection.request(method, path, headers={"Host": host or f"127.0.0.1:{port}"})
        answer = connection.getresponse()
        return answer.status, dict(answer.headers), "" if path == "/events" else answer.read().decode()
    finally:
        connection.close()


def status_of(**changes):
    status = {"agent": "north", "network": "test", "phase": "fitting", "running": True, "age": 0.5, "time": time.time()}
    status |= {"totals": None, "patience": 600.0, "on_loss": "stop"}
    status |= {"problem": None, "round": 20, "rounds": 600, "consensus_gap": 0.0123, "seconds_left": 75.0}
    status |= {"neighbors": {"east": LINK, "south": LINK | {"present": False}}, "traffic": TRAFFIC, "evicted": []}
    status |= {"checkpoint": {"problem": None}, "keys": None, "log": [(time.time(), "south is absent.")]}
    status |= {"releases": {"releases": 3, "epsilon": 0.5, "largest_epsilon": 2.0}}
    return status | changes


def shown(identity, status):
    return Reader(render_state(identity, status)).text()


@pytest.mark.parametrize("listen", ["0.0.0.0:8760", "192.0.2.7:8760", "north.example.org:8760", "[::]:8760"])
def test_an_address_that_other_machines_reach_is_refused(identity, listen):
    with pytest.raises(ElmeshError, match="other machines may reach"):
        make_server(identity, listen)


def test_the_page_can_be_read_and_nothing_else(identity):
    with served(identity) as port:
        for method in ("POST", "PUT", "DELETE", "HEAD", "OPTIONS"):
            assert ask(port, method)[0] == 405, method
        assert ask(port, path="/../key.pem")[0] == ask(port, path="/status.json")[0] == 404
        code, headers, _ = ask(port, path="/events")
        assert (code, headers["Content-Type"]) == (200, "text/event-stream; charset=utf-8")


@pytest.mark.parametrize("host", ["evil.example.org", "evil.example.org:{port}", "127.0.0.1:1", "127.0.0.1"])
def test_a_name_that_someone_else_lets_resolve_to_this_machine_is_not_answered(identity, host):
    with served(identity) as port:
        for path in ("/", "/events"):
            code, _, text = ask(port, path=path, host=host.format(port=port))
            assert code == 421
            assert "north" not in text
        assert ask(port, host=f"localhost:{port}")[0] == 200


def test_a_port_in_use_is_named_with_what_to_do(identity):
    with served(identity) as port, pytest.raises(ElmeshError, match="give another port with --listen"):
        make_server(identity, f"127.0.0.1:{port}")


def test_the_policy_allows_nothing_from_elsewhere_and_the_page_needs_nothing(identity):
    with served(identity) as port:
        _, headers, text = ask(port)
        allowed = dict(part.strip().split(" ", 1) for part in headers["Content-Security-Policy"].split(";"))
        assert allowed.pop("img-src") == "data:"
        assert set(allowed.values()) <= {"'none'", "'self'"}
        assert allowed["default-src"] == "'none'"
        tags = Reader(text).tags
        links = [value for _, found in tags for name, value in found.items() if name in ("src", "href")]
        assert sorted(links) == ["data:,", "live_page.css", "live_page.js"]
        assert all(ask(port, path=f"/{name}")[0] == 200 for name in ("live_page.css", "live_page.js"))
        assert not any("style" in found or any(name.startswith("on") for name in found) for _, found in tags)


def test_an_agent_that_has_not_run_is_shown_as_that(identity):
    assert "Agent north of test is not running: it has not run here yet." in shown(identity, None)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"running": False}, "is not running: its process was killed"),
        ({"running": False, "phase": "ended"}, "is not running: it has ended; its model is saved"),
        ({"running": False, "phase": "failed", "problem": "south has been absent."}, "south has been absent."),
        ({"running": False, "phase": "stopped"}, "the same command resumes"),
        ({"age": 100.0}, "has not renewed its status for 1 min 40 s"),
        ({"neighbors": {"east": LINK}}, "is learning with the other sites."),
        ({}, "is learning with the other sites, and waits for south since "),
        ({"on_loss": "continue"}, "; it goes on without at "),
        ({"traffic": TRAFFIC | {"received_messages": 0}}, "Agent north of test waits for south since "),
    ],
)
def test_the_headline_states_whether_the_agent_runs(identity, changes, words):
    text = render_state(identity, status_of(**changes))
    assert words in Reader(text).text()
    # A colour and a sign, for readers who cannot see the colour.
    sound = "neighbors" in changes or changes.get("phase") == "ended"
    waits = " since " in words or "goes on" in words
    marks = [f'class="{mark}"' in text for mark in ("sound", "waiting", "unsound")]
    assert marks == [sound, waits, not sound and not waits]
    assert [sign in text.split("</h1>")[0] for sign in "●◐▲"] == marks


def test_a_fit_by_sums_shows_its_totals_in_the_place_of_rounds(identity):
    sums = status_of(round=None, consensus_gap=None, totals={"done": 1, "of": 3}, neighbors={"east": LINK})
    text = shown(identity, sums)
    assert "1 of 3" in text
    assert "left at the pace so far about 1 min 15 s" in text
    assert "rounds done" not in text
    assert "consensus gap" not in text
    assert "1 of 3 totals of matrices formed; about 1 min 15 s left at this pace." in status_lines(sums)


def test_rounds_time_left_agreement_bytes_epsilon_and_log_are_shown(identity):
    text = shown(identity, status_of(traffic=TRAFFIC | {"sent_bytes": 1_200_000}))
    for words in ("20 of 600", "1 min 15 s", "0.012", "1.2 MB", "0.5 of 2", "south is absent."):
        assert words in text, words
    drawing = render_state(identity, status_of())
    states = re.findall(r'<circle class="(\w+)"', drawing)
    assert sorted(states) == ["absent", "own", "present", "unknown"]
    assert sorted(re.findall(r'<line class="(\w+)"', drawing)) == ["absent", "present", "unknown", "unknown"]


def test_text_from_elsewhere_is_escaped(identity):
    evil = "<img src=x onerror=alert(1)>"
    text = render_state(identity, status_of(problem=evil, log=[(0.0, evil)], keys=evil, evicted=[evil]))
    assert evil not in text
    assert text.count(html.escape(evil)) == 4


def test_a_status_that_cannot_be_read_is_a_sentence(identity):
    identity.state.mkdir(exist_ok=True)
    file = identity.state / "status.json"
    file.write_text("{")
    try:
        with served(identity) as port:
            assert "is not a status file of this version" in Reader(ask(port)[2]).text()
    finally:
        file.unlink()


def test_only_so_many_browsers_are_served_at_the_same_time(identity):
    with served(identity) as port, ExitStack() as stack:
        codes = []
        for _ in range(17):
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
            stack.callback(connection.close)
            connection.request("GET", "/events")
            answer = connection.getresponse()
            stack.callback(answer.close)
            codes.append(answer.status)
        assert codes == [200] * 16 + [503]
        assert ask(port)[0] == 200


@needs_browser
@pytest.mark.thorough
def test_the_page_follows_agents_that_come_and_go(tmp_path):
    config = make_config(("east", "north", "south"), "path", rounds=4000)
    with SlowNetwork(tmp_path / "net", config) as network:
        for proxy in network.proxies.values():
            proxy.delay = 0.1
        north = Identity.read(network.agents["north"].folder / "agent.toml")
        before = {path.name for path in network.agents["north"].folder.iterdir()}
        with served(north) as port, Browser(tmp_path / "profile") as browser:
            browser.open(f"http://127.0.0.1:{port}/")
            browser.until("has not run here yet")
            network.start_all()
            browser.until("is learning with the other sites.")
            browser.until("rounds done")
            network.kill("south")
            assert "is learning" in browser.until("waits for south since")
            assert browser.value("document.querySelectorAll('circle.absent').length") == 1
            network.start("south")
            browser.until_value("document.querySelectorAll('circle.present').length", 2)
            # Neither the key of the certificate nor the seed of the run's keys is in it.
            run = json.loads((north.state / "run.json").read_text())
            secrets = [run["seed"], *north.key.read_text().splitlines()[1:-1]]
            page = ask(port)[2]
            assert "is learning" in page
            assert not any(secret in page for secret in secrets)
            network.kill("north")
            browser.until("is not running: its process was killed")
            browser.picture(tmp_path / "killed.png")
            network.start("north")
            browser.until("Resuming from the checkpoint")
            for width, scheme in ((390, "dark"), (1200, "light")):
                browser.open(f"http://127.0.0.1:{port}/", width, scheme)
                browser.until("is learning")
                assert browser.value("document.documentElement.scrollWidth") <= width
                browser.picture(tmp_path / f"{scheme}-{width}.png")
            assert browser.console == []
        # Whoever looks leaves nothing behind.
        after = {path.name for path in network.agents["north"].folder.iterdir()}
        assert after - before <= {"state", "releases.jsonl", "releases.jsonl.seal"}


@pytest.mark.thorough
def test_a_fit_by_sums_is_followed_from_the_first_agent_to_the_last_total(tmp_path):
    """The first agent waits for its neighbours; then totals are formed; at the end no round is claimed."""
    config = make_config(("east", "north", "south"), "path", **SUMS_REGRESSION)
    with SlowNetwork(tmp_path / "net", config) as network:
        for proxy in network.proxies.values():
            proxy.delay = 0.15
        north = Identity.read(network.agents["north"].folder / "agent.toml")
        seen = []
        network.start("north")
        while "waits for east, south since" not in (seen[-1] if seen else ""):
            assert len(seen) < 600
            seen.append(now_shown(north))
        network.start("east")
        network.start("south")
        while (found := read_status(north.state)) is None or found["phase"] != "ended":
            assert len(seen) < 2000
            seen.append(now_shown(north))
        assert any("is learning with the other sites." in text for text in seen)
        formed = [int(number) for text in seen for number in re.findall(r"(\d) of 3", text)]
        assert formed == sorted(formed)
        assert {0, 3} <= set(formed)
        assert "rounds done" not in "".join(seen)
        assert found["totals"] == {"done": 3, "of": 3}


def now_shown(identity):
    time.sleep(0.1)
    status = read_status(identity.state)
    return "" if status is None else shown(identity, status | {"log": []})
