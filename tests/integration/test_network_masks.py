"""Masked sums between real agents: no stream is used twice whatever is killed, and a site's gate and log hold."""

from __future__ import annotations

import hashlib
import json
import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner, Result

from elmesh.cli import app
from helpers.forked import ForkedNetwork, ForkedProcess, run_command, undisturbed
from helpers.network import Agent, equal_weights, free_ports, make_config, rows_of, with_ports
from helpers.proxies import ProxiedNetwork

THREE = ("east", "north", "south")
PARTS = {"exchange": "sums", "solver": "mesh-elm", "rank": "auto", "rounds": 200, "classes": ("high", "low")}


def config_of(names=THREE, graph="path", **parameters: object):
    """Return a network that learns common, shared and private parts, in many sums."""
    chosen = {"common": "auto", "private": "auto", "mu1": 1.0, "mu2": 1.0, "tol": 1e-4} | parameters
    return make_config(names, graph, **PARTS, parameters=chosen)


# All penalties are chosen, before the first round.
AUTO = config_of(mu1="auto", mu2="auto")


def elmesh(*words: object, text: str | None = None) -> Result:
    env = {"NO_COLOR": "1", "COLUMNS": "200"}
    return CliRunner(env=env).invoke(app, [str(word) for word in words], input=text)


# Streams.


def run_tapped(path: str, *args: object) -> None:
    """Run an agent whose every use of a stream is recorded before it has an effect."""
    from elmesh.agent.releases import Releases
    from elmesh.comm.masking import PairwiseMasks

    file = open(path, "a")  # noqa: SIM115  (closed by the end of the process)
    stream, release = PairwiseMasks.stream, Releases.release

    def note(**fields: str) -> None:
        file.write(json.dumps(fields) + "\n")
        file.flush()

    def tapped_stream(key: bytes, label: bytes, zeros: memoryview, out: memoryview) -> None:
        note(stream=hashlib.sha256(key + label).hexdigest(), label=hashlib.sha256(label).hexdigest())
        stream(key, label, zeros, out)

    def tapped_release(self, released, make) -> bytes:
        data = release(self, released, make)
        note(sent=hashlib.sha256(data).hexdigest(), label=hashlib.sha256(released.label).hexdigest())
        return data

    PairwiseMasks.stream, Releases.release = staticmethod(tapped_stream), tapped_release
    run_command(*args)


class TappedNetwork(ForkedNetwork):
    """Agents whose streams are recorded."""

    def fork(self, name: str, *args: object) -> ForkedProcess:
        return ForkedProcess(str(self.folder / f"{name}.streams"), *args, target=run_tapped)

    def uses(self, name: str) -> list[dict]:
        lines = (self.folder / f"{name}.streams").read_text().splitlines()
        # The last line of a process that was killed may be incomplete.
        return [json.loads(line) for line in lines if line.endswith("}")]

    def count(self, name: str) -> int:
        """Return the number of records of an agent so far."""
        path = self.folder / f"{name}.streams"
        return path.read_bytes().count(b"\n") if path.exists() else 0


class SlowNetwork(TappedNetwork, ProxiedNetwork):
    """Agents whose streams are recorded, behind proxies."""


@dataclass(frozen=True)
class Finished:
    """A run to its end, with the seed of one agent's keys."""

    network: TappedNetwork
    seed: str

    def copy(self, folder: Path) -> ForkedNetwork:
        """Return a network that goes on where this one has ended."""
        return ForkedNetwork.copy_of(self.network, folder)


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> Iterator[Finished]:
    """A run of three sites; tests that change its files copy it."""
    with TappedNetwork(tmp_path_factory.mktemp("finished"), AUTO) as network:
        network.start_all()
        run_file = network.agents["north"].folder / "state" / "run.json"
        network.until(run_file.exists)
        seed = json.loads(run_file.read_text())["seed"]
        assert set(network.wait().values()) == {0}, network.logs()
        yield Finished(network, seed)


def kill_during_sums(network: SlowNetwork, rng: np.random.Generator, kills: int) -> int:
    """Kill agents at random moments between their sums, before and after the first round."""
    counted, seen = 0, dict.fromkeys(THREE, 0)
    while counted < kills:
        name = str(rng.choice(THREE))
        network.until(
            lambda name=name: network.count(name) > seen[name] or network.agents[name].process.poll() is not None
        )
        time.sleep(rng.uniform(0.0, 0.3))
        if any(agent.process.poll() is not None for agent in network.agents.values()):
            return counted  # the run is over
        seen[name] = network.count(name)
        network.kill(name)
        counted += 1
        network.start(name)
    return counted


@pytest.mark.parametrize("kills", [3, pytest.param(50, marks=pytest.mark.slow)])
def test_no_stream_masks_two_terms_however_often_agents_are_killed(tmp_path, kills):
    config = config_of(tol=1e-4 if kills < 50 else 1e-6)
    with SlowNetwork(tmp_path, config) as network:
        for proxy in network.proxies.values():
            proxy.delay = 0.02 if kills < 50 else 0.05
        network.start_all()
        assert kill_during_sums(network, np.random.default_rng(7), kills) >= kills
        for proxy in network.proxies.values():
            proxy.delay = 0.0
        assert set(network.wait().values()) == {0}, network.logs()
        streams, again = defaultdict(set), 0
        for name in THREE:
            uses = network.uses(name)
            labels = {use["label"] for use in uses if "sent" in use}
            sent = {(use["label"], use["sent"]) for use in uses if "sent" in use}
            # One sum, one ciphertext: what was sent again is what was sent before.
            assert len(sent) == len(labels) > 30, name
            again += sum("sent" in use for use in uses) - len(labels)
            for use in uses:
                if "stream" in use:
                    streams[use["stream"]].add((name, use["label"]))
            # A term is masked once, with the streams of both others; only one that was not yet on disk is masked again.
            masked = [use["label"] for use in uses if "stream" in use]
            assert len(masked) <= 2 * len(labels) + 2 * network.agents[name].starts
        assert again > 0
        # A stream belongs to one sum, and to the two agents that share it.
        assert all(len({label for _, label in users}) == 1 for users in streams.values())
        assert all(len({name for name, _ in users}) == 2 for users in streams.values())
        found = network.weights()
    assert equal_weights(found, undisturbed(tmp_path / "again", config))


def test_a_fresh_start_has_other_streams(tmp_path, finished):
    before = {name: finished.network.count(name) for name in THREE}
    with TappedNetwork.copy_of(finished.network, tmp_path) as network:
        network.start_all("--fresh", "--force")
        assert set(network.wait().values()) == {0}, network.logs()
        first, second = set(), set()
        for name in THREE:
            uses = network.uses(name)
            first |= {use["stream"] for use in uses[: before[name]] if "stream" in use}
            second |= {use["stream"] for use in uses[before[name] :] if "stream" in use}
    assert len(first) == len(second) > 0
    assert not first & second


# The gate and the log of a site.


def test_what_the_gate_does_not_allow_does_not_leave_and_the_run_resumes_once_it_does(tmp_path, finished):
    with ForkedNetwork(tmp_path, with_ports(AUTO, free_ports(3))) as network:
        gate = network.agents["north"].folder / "gate.toml"
        gate.write_text("most_matrix_totals = 1\n")
        network.start_all()
        assert network.wait("north") == {"north": 2}
        assert "This site allows 1 matrix total of the same rows" in network.agents["north"].errors
        lines = released(network.agents["north"])
        assert [line["what"] for line in lines].count("matrix") == 1
        gate.write_text("most_matrix_totals = 3\n")
        network.start("north")
        assert set(network.wait().values()) == {0}, network.logs()
        assert [line["what"] for line in released(network.agents["north"])].count("matrix") == 3
        assert equal_weights(network.weights(), finished.network.weights())


def released(agent: Agent) -> list[dict]:
    lines = (agent.folder / "releases.jsonl").read_text().splitlines()
    return [line for line in map(json.loads, lines) if line["event"] == "release"]


@pytest.mark.parametrize("answer", ["--yes", "--refuse"])
def test_an_agent_waits_for_a_person_if_its_gate_says_so(tmp_path, answer):
    with ForkedNetwork(tmp_path, with_ports(AUTO, free_ports(3))) as network:
        north = network.agents["north"]
        (north.folder / "gate.toml").write_text("confirm = true\n")
        nothing = elmesh("network", "confirm", north.folder / "agent.toml")
        assert (nothing.exit_code, "has not asked" in nothing.stderr) == (2, True)
        network.start("east", "--patience", "5")
        network.start("south", "--patience", "5")
        network.start("north")
        network.until_event("north", "confirmation")
        network.until(lambda: (north.status or {}).get("phase") == "waiting")
        assert released(north) == []
        shown = elmesh("network", "status", north.folder / "agent.toml")
        assert "Agent north of test waits for a person: elmesh network confirm." in shown.stdout
        done = elmesh("network", "confirm", north.folder / "agent.toml", answer)
        assert done.exit_code == 0, done.stderr
        if answer == "--yes":
            assert set(network.wait().values()) == {0}, network.logs()
            assert released(north)
        else:
            assert network.wait() == {"east": 3, "north": 2, "south": 3}
            assert "has not confirmed the release" in north.errors
            assert released(north) == []
            assert not any(agent.out.exists() for agent in network.agents.values())


def test_an_audit_shows_what_has_left_and_finds_a_change(tmp_path, finished):
    network = finished.copy(tmp_path)
    folder = network.agents["north"].folder
    log = folder / "releases.jsonl"
    shown = elmesh("network", "audit", folder / "agent.toml")
    assert shown.exit_code == 0, shown.stderr
    assert "test with 3 sites" in shown.stdout
    assert "3 of matrix" in shown.stdout
    assert "complete and unchanged" in shown.stdout
    every = elmesh("network", "audit", folder / "agent.toml", "--all")
    assert len([line for line in every.stdout.splitlines() if line.startswith("{")]) == len(
        log.read_text().splitlines()
    )
    report = json.loads(elmesh("network", "audit", folder / "agent.toml", "--json", "--quiet").stdout)
    assert report["sound"] is True
    (run,) = report["runs"]
    assert run["bytes"] == sum(line["bytes"] for line in released(network.agents["north"]))
    text = log.read_text()
    lines = text.splitlines(keepends=True)
    for changed in (lines[:-1], lines[1:], [*lines[:3], *lines[4:]], [lines[0].replace("rows", "sown"), *lines[1:]]):
        log.write_text("".join(changed))
        found = elmesh("network", "audit", folder / "agent.toml", "--json")
        assert found.exit_code == 1
        assert json.loads(found.stdout)["sound"] is False
        # Nor does the agent run with such a log.
        refused = elmesh("agent", folder / "agent.toml", "--data", tmp_path / "net" / "north.csv", "--target", "y",
                         "--out", tmp_path / "other", "--patience", "1")  # fmt: skip
        assert refused.exit_code == 2
        assert "releases.jsonl" in refused.stderr
    log.write_text(text)
    assert elmesh("network", "audit", folder / "agent.toml").exit_code == 0


def test_a_second_run_with_a_changed_table_is_refused_unless_the_site_accepts_what_it_reveals(tmp_path, finished):
    with finished.copy(tmp_path) as network:
        north = network.agents["north"].folder
        kept = {path: path.read_bytes() for path in north.glob("releases.jsonl*")}
        assert len(kept) == 2
        # The same again is no difference.
        network.start_all("--force")
        assert set(network.wait().values()) == {0}, network.logs()
        # An earlier state of the log and its seal is found by what other sites were told.
        witness = ("--witness", f"south={network.agents['south'].folder / 'releases.jsonl'}")
        assert elmesh("network", "audit", north / "agent.toml", *witness).exit_code == 0
        after = {path: path.read_bytes() for path in kept}
        for path, content in kept.items():
            path.write_bytes(content)
        assert elmesh("network", "audit", north / "agent.toml").exit_code == 0
        found = elmesh("network", "audit", north / "agent.toml", *witness)
        assert found.exit_code == 1
        assert "lines were removed" in found.stdout
        assert elmesh("network", "audit", north / "agent.toml", "--witness", "nobody=x").exit_code == 2
        for path, content in after.items():
            path.write_bytes(content)
        rows_of("north", 60).to_csv(tmp_path / "net" / "north.csv", index=False)
        network.start("north", "--force")
        assert network.wait("north") == {"north": 2}
        assert "The table has changed since an earlier run released totals" in network.agents["north"].errors
        for name in THREE:
            network.start(name, "--force", *(["--release-again"] if name == "north" else []))
        assert set(network.wait().values()) == {0}, network.logs()


def test_the_caution_about_bases_is_shown_even_if_nothing_else_is(tmp_path):
    with ForkedNetwork(tmp_path, make_config(("north", "south"), "path", rounds=5)) as network:
        folder = network.agents["north"].folder
        words = ["agent", folder / "agent.toml", "--data", tmp_path / "net" / "north.csv", "--target", "y"]
        result = elmesh(*words, "--out", tmp_path / "model", "--patience", "1", "--quiet")
        assert result.exit_code == 3
        assert "a neighbour that tries can reconstruct rows and labels" in result.stderr


def test_rounds_of_bases_are_in_the_log_as_well(tmp_path):
    with ForkedNetwork(tmp_path, make_config(("north", "south"), "path", rounds=30)) as network:
        network.start_all()
        assert set(network.wait().values()) == {0}, network.logs()
        lines = released(network.agents["north"])
        assert [(line["what"], line["number"], line["to"]) for line in lines] == [
            ("basis", k, ["south"]) for k in range(31)
        ]
        shown = elmesh("network", "audit", network.agents["north"].folder / "agent.toml")
        assert "31 of basis" in shown.stdout
        assert shown.exit_code == 0


def test_no_secret_of_a_run_is_left_behind(finished):
    state = finished.network.agents["north"].folder / "state"
    assert not (state / "run.json").exists()
    files = [path for path in finished.network.folder.rglob("*") if path.is_file()]
    assert files
    assert not [path for path in files if finished.seed.encode() in path.read_bytes()]
    assert not [path for path in files if bytes.fromhex(finished.seed) in path.read_bytes()]
    assert not (state / "masked.bin").exists()
