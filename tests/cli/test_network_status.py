"""``elmesh network status``: the time left, and what a pipe is given with --watch."""

import time

import pytest
from typer.testing import CliRunner

from elmesh.agent import NetworkAgent, read_status, status_file
from elmesh.agent.status import seconds_left
from elmesh.cli import app
from elmesh.netconfig.identity import Identity
from elmesh.netconfig.layout import NetworkLayout
from helpers.forked import ForkedProcess
from helpers.network import LIMIT, make_config


@pytest.fixture
def agent(tmp_path):
    NetworkLayout(tmp_path, make_config(("east", "north", "south"))).write(days=2)
    with NetworkAgent(Identity.read(tmp_path / "north" / "agent.toml")) as agent:
        yield agent


def test_the_time_left_is_that_of_the_rounds_left_at_the_pace_so_far(agent):
    assert seconds_left((0.0, 5), (10.0, 5), 100) is None
    # A resumed run starts at a later round, and its pace is that of this process.
    assert seconds_left((50.0, 40), (60.0, 60), 100) == pytest.approx(20.0)
    assert seconds_left((50.0, 40), (60.0, 100), 100) == 0.0
    status = agent.status() | {"round": 60, "rounds": 100, "seconds_left": 3725.0, "log": []}
    with status_file(agent.identity.state, lambda: status):
        pass
    shown = CliRunner().invoke(app, ["network", "status", str(agent.identity.folder / "agent.toml")])
    assert "Round 60 of 100; consensus gap unknown; at most 1 h 2 min left at this pace." in shown.stdout


def test_a_pipe_is_given_a_line_for_every_change_without_control_characters(agent, tmp_path):
    link = {"present": True, "since": time.time(), "sent": 1, "received": 1, "buffered": 0, "done": False}
    status = agent.status() | {"phase": "fitting", "log": [], "neighbors": {"east": link, "south": link}}
    out = tmp_path / "lines.txt"
    words = ["network", "status", str(agent.identity.folder / "agent.toml"), "--watch"]

    def until_lines(number):
        end = time.monotonic() + LIMIT
        while not out.exists() or out.read_text().count("\n") < number:
            assert time.monotonic() < end, out.read_text()
            time.sleep(0.05)

    with status_file(agent.identity.state, lambda: status | {"time": time.time()}):
        while read_status(agent.identity.state) is None:
            time.sleep(0.05)
        watching = ForkedProcess(words, str(out), str(tmp_path / "errors.txt"), str(tmp_path))
        try:
            until_lines(1)
            status["neighbors"] = {"east": link, "south": link | {"present": False}}
            until_lines(2)
            status |= {"phase": "failed", "problem": "south \x1b[31mhas been absent."}
            until_lines(3)
        finally:
            watching.kill()
            watching.wait()
    lines = out.read_text().splitlines()
    times, texts = zip(*(line.split(" ", 1) for line in lines), strict=True)
    assert texts == (
        "fitting; 2 of 2 neighbours present",
        "fitting; 1 of 2 neighbours present (absent: south)",
        "not running; south  [31mhas been absent.",
    )
    assert all(len(moment) == len("2026-01-01T00:00:00+00:00") for moment in times)
