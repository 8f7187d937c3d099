"""A network that learns by a schedule: versions, rows that come in, what may not leave again, and kills."""

import json
import signal

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

from elmesh import load
from elmesh.cli import app
from elmesh.estimators.versions import ModelVersions
from elmesh.tables import FILE_TASK
from helpers.forked import ForkedNetwork
from helpers.network import PRIVATE_REGRESSION, SUMS_REGRESSION, make_config, rows_of
from helpers.proxies import ProxiedNetwork

THREE = ("east", "north", "south")


class SlowNetwork(ForkedNetwork, ProxiedNetwork):
    """Agents that take a while, because every message does."""


def versions_of(network, name):
    return ModelVersions(network.agents[name].out)


def until_version(network, number, names=THREE):
    network.until(lambda: all(versions_of(network, name).current() == number for name in names))


def add_rows(network, name, n=30):
    """Add rows to a site's table, as a whole new file."""
    table = network.folder / "net" / f"{name}.csv"
    frame = pd.read_csv(table)
    rng = np.random.default_rng(len(frame))
    X = rng.normal(size=(n, 4)).round(6)
    new = pd.DataFrame(X, columns=[f"x{j}" for j in range(4)]).assign(y=(X.sum(axis=1)).round(6))
    partial = table.with_suffix(".partial")
    pd.concat([frame, new]).to_csv(partial, index=False)
    partial.replace(table)


def cut_rows(network, name, n):
    """Take rows from a site's table, as a whole new file."""
    table = network.folder / "net" / f"{name}.csv"
    partial = table.with_suffix(".partial")
    pd.read_csv(table).iloc[n:].to_csv(partial, index=False)
    partial.replace(table)


@pytest.mark.thorough
def test_sites_learn_together_when_all_have_come_and_then_alone_from_rows_that_came_in(tmp_path):
    config = make_config(THREE, "path", **SUMS_REGRESSION)
    with ForkedNetwork(tmp_path, config) as network:
        for name in ("east", "north"):
            network.start(name, "--every", "3s", "--patience", "2")
        # A run that not all come to is skipped, and nothing is learned.
        assert "south has not come" in network.until_event("north", "missed")["reason"]
        assert versions_of(network, "north").numbers() == []
        network.start("south", "--every", "3s")
        until_version(network, 1)
        assert all(versions_of(network, name).facts(1)["how"] == "network" for name in THREE)
        network.until_event("east", "unchanged")
        # Totals of a changed table do not leave a second time; the site's own part learns without them.
        released = (network.agents["north"].folder / "releases.jsonl").read_bytes()
        add_rows(network, "north")
        until_version(network, 2, ("north",))
        facts = versions_of(network, "north").facts(2)
        assert facts["how"] == "alone"
        assert "The table has changed since an earlier run released totals" in facts["reason"]
        assert facts["change"]["rows"] == 30
        assert "new rows the new model is" in facts["sentence"]
        assert (network.agents["north"].folder / "releases.jsonl").read_bytes() == released
        before, after = (load(versions_of(network, "north").folder / number) for number in "12")
        assert np.array_equal(before.W_, after.W_)
        table = pd.read_csv(tmp_path / "net" / "north.csv", dtype=str).assign(**{FILE_TASK: "north"})
        y = after.table_.true_targets(table)
        known = [model.known_rows(table, y, table[FILE_TASK]) for model in (before, after)]
        assert known[0].tolist() == [True] * (len(table) - 30) + [False] * 30
        assert known[1].all()
        network.until(lambda: "Version 2, learned alone" in network.agents["north"].status["schedule"]["last"])
        network.until(lambda: network.agents["north"].status["phase"] == "scheduled")
        assert network.agents["north"].status["running"]
        assert network.agents["north"].status["schedule"]["version"] == 2
        shown = CliRunner().invoke(app, ["network", "status", str(network.agents["north"].folder / "agent.toml")])
        assert "waits for its next run" in shown.stdout
        assert "Version 2, learned alone" in shown.stdout
        # Rows that are not in the table any more are mentioned: it may have been cut.
        cut_rows(network, "north", 20)
        add_rows(network, "north", 5)
        until_version(network, 3, ("north",))
        network.until(lambda: network.agents["north"].status["schedule"]["rows_gone"] == 20)
        schedule = network.agents["north"].status["schedule"]
        assert "20 rows of the table before are not in this one" in schedule["warning"]
        assert f"learned alone from {len(table) + 5} rows" in schedule["last"]
        assert not schedule["worse"]
        for name in THREE:
            network.agents[name].process.send_signal(signal.SIGTERM)
        assert set(network.wait().values()) == {130}
        assert network.agents["north"].status["phase"] == "stopped"
        assert all("Traceback" not in agent.errors for agent in network.agents.values())
        # Nothing is left of the copy of the table.
        assert not list(network.agents["north"].folder.glob("state/*table*"))


@pytest.mark.slow
def test_with_a_budget_sites_learn_together_again_until_it_is_spent(tmp_path):
    config = make_config(THREE, "path", **{**PRIVATE_REGRESSION, "rank": 0, "n_hidden": 5})
    data = {name: rows_of(name, 400, kind="regression").clip(-4, 4) for name in THREE}
    with ForkedNetwork(tmp_path, config, data) as network:
        for name in THREE:
            # Two runs of epsilon 1 have an epsilon of 1.45 together, three of 1.8.
            (network.agents[name].folder / "gate.toml").write_text("largest_epsilon = 1.5\n")
        for name in THREE:
            network.start(name, "--every", "20s")
        for number in (1, 2, 3):
            until_version(network, number)
            for name in THREE:
                add_rows(network, name)
        facts = {number: versions_of(network, "north").facts(number) for number in (1, 2, 3)}
        assert [facts[number]["how"] for number in (1, 2, 3)] == ["network", "network", "alone"]
        assert facts[2]["change"]["rows"] == 30
        assert "The budget of this site's rows does not allow another run" in facts[3]["reason"]
        assert network.agents["north"].status["releases"]["epsilon"] == pytest.approx(1.45, abs=0.05)


@pytest.mark.thorough
def test_an_agent_that_is_killed_resumes_its_scheduled_run_with_the_rows_of_then(tmp_path):
    config = make_config(THREE, "path", **SUMS_REGRESSION)
    with SlowNetwork(tmp_path, config) as network:
        for proxy in network.proxies.values():
            proxy.delay = 0.1
        for name in THREE:
            network.start(name, "--every", "1h")
        network.until(lambda: (network.agents["north"].status or {}).get("keys"))
        network.kill("north")
        add_rows(network, "north")
        network.start("north")
        for proxy in network.proxies.values():
            proxy.delay = 0.0
        until_version(network, 1)
        facts = versions_of(network, "north").facts(1)
        assert (facts["how"], facts["rows"]) == ("network", len(rows_of("north")))
        for name in THREE:
            assert network.until_event(name, "scheduled")["next"] % 3600 == 0
            assert len(network.agents[name].events("version")) == 1
        result = json.loads((tmp_path / "net" / "north.out").read_text())
        assert result["version"] == 1


@pytest.mark.slow
def test_a_run_that_failed_after_a_release_is_resumed_at_the_next_moment_with_the_rows_of_then(tmp_path):
    config = make_config(THREE, "path", **SUMS_REGRESSION)
    with SlowNetwork(tmp_path, config) as network:
        for proxy in network.proxies.values():
            proxy.delay = 0.2
        for name in THREE:
            network.start(name, "--every", "5s", "--patience", "6")
        north = network.agents["north"]
        network.until(lambda: ((north.status or {}).get("releases") or {}).get("releases", 0) > 0)
        network.kill("south")
        assert "south has been absent" in network.until_event("north", "run failed")["reason"]
        for name in THREE:
            add_rows(network, name)
        for proxy in network.proxies.values():
            proxy.delay = 0.0
        network.start("south", "--every", "5s", "--patience", "60")
        # Of the rows of then with the network, and of the new ones at each site alone.
        network.until(lambda: all(versions_of(network, name).current() == 2 for name in THREE))
        facts = [versions_of(network, "north").facts(number) for number in (1, 2)]
        assert [one["how"] for one in facts] == ["network", "alone"]
        assert facts[0]["rows"] + 30 == facts[1]["rows"]
        lines = [json.loads(line) for line in (north.folder / "releases.jsonl").read_text().splitlines()]
        assert len({line["run"] for line in lines if "run" in line}) == 1
        assert sum(line.get("what") == "matrix" for line in lines) == 3


@pytest.mark.slow
def test_with_a_basis_every_run_is_with_the_network_and_models_are_not_compared(tmp_path):
    config = make_config(("east", "north"), "path")
    with ForkedNetwork(tmp_path, config) as network:
        for name in config.agent_names:
            network.start(name, "--every", "5s", "--keep", "2")
        network.until_event("north", "version", 3)
        events = network.agents["north"].events("version")
        assert [event["number"] for event in events] == list(range(1, len(events) + 1))
        assert {(event["how"], event["change"]) for event in events} == {("network", None)}
        # Later runs start where the one before ended.
        assert all(event["found"] for event in network.agents["north"].events("warm start"))
        assert len(network.agents["north"].events("warm start")) >= 2
        network.until_event("north", "scheduled", 3)
        assert 1 not in versions_of(network, "north").numbers()
        assert not network.agents["north"].events("run failed")


@pytest.mark.parametrize("option", ["--release-again", "--fresh"])
def test_a_decision_about_one_run_is_not_repeated_every_night(tmp_path, option):
    with ForkedNetwork(tmp_path, make_config(THREE, "path", **SUMS_REGRESSION)) as network:
        words = network.command("north", "--every", "24h", option)[3:]
        found = CliRunner().invoke(app, words)
        assert found.exit_code == 2
        assert f"{option} is a decision about one run" in found.stderr


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--every", "24h", "--at", "02:00"), "Give --every or --at, not both."),
        (("--every", "daily"), "such as 24h"),
        (("--at", "2am"), "such as 02:00"),
    ],
)
def test_a_schedule_that_cannot_be_meant_is_a_sentence(options, message):
    found = CliRunner().invoke(app, ["agent", "agent.toml", "--data", "x", "--target", "y", "--out", "m", *options])
    assert found.exit_code == 2
    assert message in found.stderr
