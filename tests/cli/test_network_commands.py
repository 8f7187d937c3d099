"""Commands and metrics for operators of a network: check, status, router, log."""

import json
import re
import signal
import time
import urllib.request
from pathlib import Path

import pytest
from click.testing import Result
from typer.testing import CliRunner

from elmesh.cli import app
from elmesh.cli.event_log import EventLog
from helpers.forked import ForkedNetwork, ForkedProcess, undisturbed
from helpers.network import LIMIT, equal_weights, free_ports, make_config


def elmesh(*words: object) -> Result:
    """Run a command in this process; agents are processes of their own."""
    return CliRunner().invoke(app, list(map(str, words)))


def fork(folder: Path, *words: object) -> ForkedProcess:
    """Run a command in a process of its own."""
    return ForkedProcess(list(map(str, words)), str(folder / "other.out"), str(folder / "other.err"), str(folder))


def test_simultaneous_checks_at_two_sites_find_no_problem(tmp_path):
    with ForkedNetwork(tmp_path, make_config(("left", "right"), graph="path")) as network:
        files = {name: agent.folder / "agent.toml" for name, agent in network.agents.items()}
        other = fork(tmp_path, "network", "check", files["left"], "--wait", 120, "--quiet")
        found = elmesh("network", "check", files["right"], "--wait", 120, "--json")
        assert found.exit_code == 0, found.stderr
        report = json.loads(found.stdout)
        assert report["sound"]
        assert not report["running"]
        (left,) = report["neighbors"]
        assert (left["certificate"], left["same_file"], left["problem"]) == ("left", True, None)
        assert abs(left["clock"]) < 30
        other.wait(LIMIT)


def test_a_check_names_an_absent_neighbour_and_one_with_another_file(tmp_path):
    with ForkedNetwork(tmp_path, make_config(("left", "right"), graph="path")) as network:
        left, right = (network.agents[name].folder for name in ("left", "right"))
        alone = elmesh("network", "check", right / "agent.toml", "--wait", 0)
        assert alone.exit_code == 1
        assert "left: it cannot be reached: connection refused" in alone.stderr
        text = (left / "network.toml").read_text()
        (left / "network.toml").write_text(text.replace("rounds = 40", "rounds = 41"))
        network.start("left")
        network.until_event("left", "open")
        found = elmesh("network", "check", right / "agent.toml", "--wait", 120, "--json")
        assert found.exit_code == 1, found.stderr
        (report,) = json.loads(found.stdout)["neighbors"]
        assert report["same_file"] is False
        assert report["problem"] == "its network file differs"
        # The check does not end the run of the checked agent.
        assert network.agents["left"].process.poll() is None


def test_status_and_metrics_show_an_agent_that_waits(tmp_path):
    with ForkedNetwork(tmp_path, make_config(("left", "right"), graph="path")) as network:
        file, (port,) = network.agents["left"].folder / "agent.toml", free_ports(1)
        never = elmesh("network", "status", file)
        assert never.exit_code == 2
        assert "has not run here yet" in never.stderr
        network.start("left", "--metrics-port", str(port))
        left = network.agents["left"]
        network.until(lambda: left.status and left.status["neighbors"].get("right", {}).get("sent") == 1)
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
            metrics = answer.read().decode()
        assert 'elmesh_neighbor_present{agent="left",neighbor="right",network="test"} 0.0' in metrics
        assert "elmesh_sent_bytes_total" in metrics
        assert "elmesh_certificate_days_left" in metrics
        seconds = dict(re.findall(r'elmesh_certificate_expires_seconds\{.*what="(\w+)"\} (\S+)', metrics))
        assert 29 * 86400 < float(seconds["certificate"]) < 30 * 86400 < float(seconds["authority"])
        (warning,) = left.events("expires")
        assert warning["text"].startswith("The certificate of left expires in 30 days")
        report = json.loads(elmesh("network", "status", file, "--json").stdout)
        assert report["running"]
        assert report["phase"] == "fitting"
        assert report["warnings"] == [warning["text"]]
        assert [one["what"] for one in report["expires"]] == ["certificate", "authority"]
        link = report["neighbors"]["right"]
        assert time.time() - link.pop("since") < LIMIT
        assert link == {"present": False, "sent": 1, "received": 0, "buffered": 1, "done": False}
        network.kill("left")
        killed = elmesh("network", "status", file)
        assert killed.exit_code == 0
        assert "Agent left of test is not running: its process was killed" in killed.stdout
        assert warning["text"] in killed.stdout


def test_an_agent_that_refuses_its_output_folder_has_failed_in_its_status(tmp_path):
    with ForkedNetwork(tmp_path, make_config(("left", "right"), graph="path")) as network:
        left = network.agents["left"]
        left.out.mkdir()
        (left.out / "notes.txt").touch()
        network.start("left")
        assert network.wait("left") == {"left": 2}
        assert (left.status["phase"], left.status["running"]) == ("failed", False)
        expected = f"{left.out} exists and is not an elmesh model, so it is not replaced; choose another name."
        assert left.status["problem"] == expected
        (failed,) = left.events("failed")
        assert failed["reason"] == left.status["problem"]


def test_through_a_router_the_result_is_the_same_to_the_bit(tmp_path):
    (port,) = free_ports(1)
    config = make_config(("a", "b", "c"), graph="path", routers=(f"127.0.0.1:{port}",))
    direct = make_config(("a", "b", "c"), graph="path")
    with ForkedNetwork(tmp_path / "routed", config) as network:
        router = fork(tmp_path, "network", "router", tmp_path / "routed/net/router/agent.toml", "-q")
        try:
            network.start_all()
            assert set(network.wait().values()) == {0}
            weights = network.weights()
        finally:
            router.send_signal(signal.SIGTERM)
            assert router.wait(LIMIT) == 130
    assert equal_weights(weights, undisturbed(tmp_path / "direct", direct))


@pytest.mark.parametrize("as_json", [False, True])
def test_an_event_is_one_printable_line_whatever_a_neighbour_sends(as_json, capsys):
    log = EventLog("left", as_json, quiet=False)
    log("refused", name="right", reason="it \x1b[31m is \n a trick")
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1
    assert "\x1b" not in lines[0]
    if as_json:
        assert json.loads(lines[0])["event"] == "refused"
    else:
        assert "A message from right was refused" in lines[0]
