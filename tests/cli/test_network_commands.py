"""What looks after a network: check, status, metrics, router."""

import json
import subprocess
import sys
import urllib.request

import pytest
from click.testing import Result
from typer.testing import CliRunner

from elmesh.cli import app
from elmesh.cli.logbook import Logbook
from helpers.network import free_ports, make_config, same
from helpers.nursery import Forking


def elmesh(*words: object) -> Result:
    """Give a command in this process; agents are processes of their own."""
    return CliRunner().invoke(app, list(map(str, words)))


def test_checks_at_two_sites_meet_and_find_all_well(tmp_path):
    with Forking(tmp_path, make_config(("left", "right"), graph="path")) as trial:
        files = {name: agent.folder / "agent.toml" for name, agent in trial.agents.items()}
        other = subprocess.Popen(
            [sys.executable, "-m", "elmesh", "network", "check", str(files["left"]), "--wait", "40", "--quiet"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        found = elmesh("network", "check", files["right"], "--wait", 40, "--json")
        assert found.exit_code == 0, found.stderr
        said = json.loads(found.stdout)
        assert said["sound"]
        assert not said["running"]
        (left,) = said["neighbours"]
        assert (left["certificate"], left["same_file"], left["problem"]) == ("left", True, None)
        assert abs(left["clock"]) < 30
        other.communicate(timeout=60)


def test_a_check_names_a_neighbour_that_is_not_there_and_one_with_another_file(tmp_path):
    with Forking(tmp_path, make_config(("left", "right"), graph="path")) as trial:
        left, right = (trial.agents[name].folder for name in ("left", "right"))
        alone = elmesh("network", "check", right / "agent.toml", "--wait", 0)
        assert alone.exit_code == 1
        assert "left: it cannot be reached: connection refused" in alone.stderr
        text = (left / "network.toml").read_text()
        (left / "network.toml").write_text(text.replace("rounds = 40", "rounds = 41"))
        trial.start("left")
        trial.until(lambda: trial.agents["left"].events("open"))
        found = elmesh("network", "check", right / "agent.toml", "--wait", 20, "--json")
        assert found.exit_code == 1, found.stderr
        (said,) = json.loads(found.stdout)["neighbours"]
        assert said["same_file"] is False
        assert said["problem"] == "it has another network file"
        # Who checks does not end the run of whom is checked.
        assert trial.agents["left"].process.poll() is None


def test_status_and_metrics_tell_of_an_agent_that_waits(tmp_path):
    with Forking(tmp_path, make_config(("left", "right"), graph="path")) as trial:
        file, (port,) = trial.agents["left"].folder / "agent.toml", free_ports(1)
        never = elmesh("network", "status", file)
        assert never.exit_code == 2
        assert "has not run here yet" in never.stderr
        trial.start("left", "--metrics-port", str(port))
        trial.until(lambda: (trial.agents["left"].status or {}).get("phase") == "fitting")
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
            metrics = answer.read().decode()
        assert 'elmesh_neighbour_here{agent="left",neighbour="right",network="test"} 0.0' in metrics
        assert "elmesh_sent_bytes_total" in metrics
        assert "elmesh_certificate_days_left" in metrics
        said = json.loads(elmesh("network", "status", file, "--json").stdout)
        assert said["running"]
        assert said["neighbours"]["right"] == {"here": False, "said": 1, "heard": 0, "kept": 1, "done": False}
        trial.kill("left")
        killed = elmesh("network", "status", file)
        assert killed.exit_code == 0
        assert "Agent left of test: killed" in killed.stdout


def test_through_a_router_the_end_is_the_same_to_the_bit(tmp_path):
    (port,) = free_ports(1)
    config = make_config(("a", "b", "c"), graph="path", routers=(f"127.0.0.1:{port}",))
    direct = make_config(("a", "b", "c"), graph="path")
    with Forking(tmp_path / "routed", config) as trial:
        router = subprocess.Popen(
            [sys.executable, "-m", "elmesh", "network", "router", str(tmp_path / "routed/net/router/agent.toml"), "-q"]
        )
        try:
            trial.start_all()
            assert set(trial.wait().values()) == {0}
            weights = trial.weights()
        finally:
            router.terminate()
            assert router.wait(20) == 130
    with Forking(tmp_path / "direct", direct) as trial:
        trial.start_all()
        assert set(trial.wait().values()) == {0}
        assert same(weights, trial.weights())


@pytest.mark.parametrize("as_json", [False, True])
def test_what_is_logged_is_one_line_whatever_somebody_is_called(as_json, capsys):
    log = Logbook("left", as_json, quiet=False)
    log("refused", name="right", reason="it \x1b[31m is \n a trick")
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1
    assert "\x1b" not in lines[0]
    if as_json:
        assert json.loads(lines[0])["event"] == "refused"
    else:
        assert "A message from right was refused" in lines[0]
