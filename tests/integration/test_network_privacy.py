"""Differential privacy between real agents: the noise that is really sent, the budget over runs, kills and losses."""

from __future__ import annotations

import json

import msgspec.structs
import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

import elmesh
from elmesh.cli import app
from elmesh.netconfig.columns import InputColumn
from elmesh.netconfig.schema import make_schema
from elmesh.privacy.accounting import epsilon_of, rho_for
from elmesh.privacy.release import make_mechanism
from elmesh.solvers.private_part import private_features
from elmesh.tables import FILE_TASK
from helpers.forked import ForkedNetwork
from helpers.network import NAMES, PRIVATE_REGRESSION, Agent, make_config, rows_of
from helpers.recorder import RecordedNetwork

PRIVATE = PRIVATE_REGRESSION | {"epsilon": 2.0}


def tables(names=NAMES, rows: int = 120) -> dict[str, pd.DataFrame]:
    return {name: rows_of(name, rows, "regression") for name in names}


def releases(agent: Agent) -> list[dict]:
    lines = (agent.folder / "releases.jsonl").read_text().splitlines()
    return [line for line in map(json.loads, lines) if line["event"] == "release"]


def command(*words: object):
    return CliRunner(env={"NO_COLOR": "1", "COLUMNS": "200"}).invoke(app, [str(word) for word in words])


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run of four sites, recorded; a test that changes its files copies it."""
    folder = tmp_path_factory.mktemp("private")
    with RecordedNetwork(folder, make_config(**PRIVATE), tables()) as network:
        network.start_all()
        assert set(network.wait().values()) == {0}, network.logs()
        yield network


def test_one_total_leaves_each_site_and_its_cost_is_in_the_log(run):
    rho = rho_for(2.0, 1e-5)
    for agent in run.agents.values():
        (release,) = releases(agent)
        assert release["what"] == "private"
        assert release["rho"] == pytest.approx(rho, rel=1e-3)
        assert release["rho"] <= rho
        assert release["epsilon"] == pytest.approx(2.0, rel=1e-3)
        shown = command("network", "audit", agent.folder / "agent.toml")
        assert "1 of private" in shown.stdout
        assert "epsilon of all runs so far 2" in shown.stdout


def test_what_is_really_sent_has_the_noise_that_is_stated(run):
    """The terms before they are masked, less the totals of the rows, which are computed here."""
    noise = []
    for name, agent in run.agents.items():
        ((term, _),) = run.terms(name)
        model = elmesh.load(agent.out)
        layer = model.model_.layer
        frame = pd.read_csv(run.folder / "net" / f"{name}.csv").assign(**{FILE_TASK: name})
        schema = make_schema(run.config, FILE_TASK, ["y"], False)
        X, _ = schema.encode(frame)
        features, units = private_features(layer.groups)
        mechanism = make_mechanism(len(features), 1, rho_for(2.0, 1e-5), 4 * 1_000_000, 3)
        totals = mechanism.totals(layer(X)[:, features] * units, np.asarray(schema.targets(frame)).reshape(-1, 1))
        assert len(term) == len(totals)
        noise.append((term - totals) / mechanism.sigma)
    noise = np.concatenate(noise)
    assert np.var(noise) == pytest.approx(1.0, abs=5 * np.sqrt(2 / noise.size))
    assert abs(np.mean(noise)) < 5 / np.sqrt(noise.size)
    # Noise of one site has nothing to do with that of another.
    by_site = noise.reshape(4, -1)
    assert np.max(np.abs(np.corrcoef(by_site) - np.eye(4))) < 5 / np.sqrt(by_site.shape[1])


def test_all_sites_find_the_same_common_weights_and_each_its_own(run):
    weights = [agent.weights() for agent in run.agents.values()]
    for other in weights[1:]:
        np.testing.assert_array_equal(weights[0]["common.W"], other["common.W"])
        assert not np.array_equal(weights[0]["A.0"], other["A.0"])
    for name, agent in run.agents.items():
        assert command("evaluate", agent.out, run.folder / "net" / f"{name}.csv", "--json").exit_code == 0


def test_the_result_says_what_is_promised_and_what_is_not(run):
    summary = run.result("north")
    assert summary["privacy"]["epsilon"] == pytest.approx(2.0, rel=1e-3)
    assert (summary["privacy"]["sites"], summary["privacy"]["colluders"]) == (4, 1)
    assert "The model of a site is not private" in summary["privacy"]["model"]
    gains = summary["gains"]
    assert gains["overall"]["rows"] == summary["rows"]
    assert gains["tasks"][0]["pooled"] is None
    card = (run.agents["north"].out / "README.md").read_text(encoding="utf-8")
    assert gains["sentence"] in card
    assert "**Predicts** `y` (regression)" in card
    assert summary["privacy"]["promise"] in card
    status = run.agents["north"].status
    assert status["releases"]["epsilon"] == pytest.approx(2.0, rel=1e-3)


def test_a_budget_that_is_spent_stops_the_next_run_before_anything_leaves_unless_the_gate_allows_more(tmp_path, run):
    with ForkedNetwork.copy_of(run, tmp_path) as network:
        network.start_all("--force")
        assert set(network.wait().values()) == {2}
        for agent in network.agents.values():
            assert "epsilon 2 of 2 is spent" in agent.errors
            assert len(releases(agent)) == 1
            (agent.folder / "gate.toml").write_text('largest_epsilon = 4.0\nkinds = ["private"]\n')
        # Rows may have changed since: what noise hides need not be compared.
        rows_of("north", 90, "regression").to_csv(tmp_path / "net" / "north.csv", index=False)
        network.start_all("--force")
        assert set(network.wait().values()) == {0}, network.logs()
        expected = epsilon_of(2 * rho_for(2.0, 1e-5), 1e-5)
        for agent in network.agents.values():
            assert releases(agent)[-1]["epsilon"] == pytest.approx(expected, rel=1e-3)
            # Two runs cost less than twice one: costs add up, and epsilon grows about as their root.
            assert 2.5 < expected < 4.0


def test_an_agent_that_is_killed_sends_the_same_noise_again(tmp_path):
    names = NAMES[:3]
    with RecordedNetwork(tmp_path, make_config(names, "path", **PRIVATE), tables(names)) as network:
        for name in ("east", "north"):
            network.start(name)
        network.until(log_of(network.agents["north"]).exists)
        network.start("south")
        network.until(lambda: any(releases(agent) for agent in network.agents.values() if log_of(agent).exists()))
        killed = next(name for name, agent in network.agents.items() if log_of(agent).exists() and releases(agent))
        network.kill(killed)
        before = log_of(network.agents[killed]).read_text()
        network.start(killed)
        assert set(network.wait().values()) == {0}, network.logs()
        after = log_of(network.agents[killed]).read_text()
        assert after.startswith(before)
        assert len(releases(network.agents[killed])) == 1
        first = [agent.weights()["common.W"] for agent in network.agents.values()]
        for other in first[1:]:
            np.testing.assert_array_equal(first[0], other)


def log_of(agent: Agent):
    return agent.folder / "releases.jsonl"


@pytest.mark.parametrize("budget", [2.0, 6.0])
def test_a_release_that_is_repeated_without_a_lost_site_is_paid_for_again(tmp_path, budget):
    names = NAMES
    with ForkedNetwork(tmp_path, make_config(names, "complete", **PRIVATE), tables(names)) as network:
        for agent in network.agents.values():
            (agent.folder / "gate.toml").write_text(f"largest_epsilon = {budget}\n")
        # One site has a gate that lets nothing leave, so that the sum of the others cannot be finished.
        (network.agents["west"].folder / "gate.toml").write_text("most_rounds = 0\n")
        for name in names[:-1]:
            network.start(name, "--patience", "4", "--on-loss", "continue")
        network.start("west")
        assert network.wait("west") == {"west": 2}
        codes = network.wait(*names[:-1])
        rest = [network.agents[name] for name in names[:-1]]
        if budget == 2.0:
            assert set(codes.values()) <= {2, 3}
            assert any(
                "allows an epsilon of 2" in agent.errors or "does not allow another run" in agent.errors
                for agent in rest
            )
            assert not any(agent.out.exists() for agent in rest)
        else:
            assert set(codes.values()) == {0}, network.logs()
            for agent in rest:
                # The tree's leaves had released before; all release once more.
                found = releases(agent)
                assert len(found) in (1, 2)
                assert found[-1]["epsilon"] == pytest.approx(
                    epsilon_of(sum(line["rho"] for line in found), 1e-5), rel=1e-6
                )
            assert any(len(releases(agent)) == 2 for agent in rest)


def test_scales_that_the_file_does_not_declare_are_found_and_paid_for(tmp_path):
    names = NAMES[:3]
    config = make_config(names, "path", **(PRIVATE | {"epsilon": 8.0}))
    columns = (InputColumn("x0"), *config.columns[1:])
    config = msgspec.structs.replace(config, columns=columns, statistics=True)
    data = {name: frame.assign(x0=100 * frame["x0"] + 700) for name, frame in tables(names, 600).items()}
    with ForkedNetwork(tmp_path, config, data) as network:
        network.start_all()
        assert set(network.wait().values()) == {0}, network.logs()
        for agent in network.agents.values():
            assert [line["what"] for line in releases(agent)] == ["private"] * 3
            assert releases(agent)[-1]["epsilon"] == pytest.approx(8.0, rel=3e-3)
            assert releases(agent)[-1]["epsilon"] <= 8.0
        summary = network.result("north")
        assert summary["privacy"]["scales"] == "found"
        (event,) = network.agents["north"].events("statistics")
        assert event["sent"] == "two histograms with noise, as masked sums"


def test_classes_are_learnt_privately(tmp_path):
    names = NAMES[:3]
    fields = PRIVATE | {"kind": "classification", "target_range": None, "classes": ("high", "low")}
    data = {name: rows_of(name, 200) for name in names}
    with ForkedNetwork(tmp_path, make_config(names, "path", **fields), data) as network:
        network.start_all()
        assert set(network.wait().values()) == {0}, network.logs()
        for name, agent in network.agents.items():
            model = elmesh.load(agent.out)
            found = json.loads(command("evaluate", agent.out, tmp_path / "net" / f"{name}.csv", "--json").stdout)
            assert found["error_percent"] < 20, found
            assert model.classes_.tolist() == ["high", "low"]
            assert len(releases(agent)) == 1
