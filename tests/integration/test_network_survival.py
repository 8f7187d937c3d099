"""A network of real agents survives kills, freezes, cuts, slow links, full disks, wrong clocks and losses.

Whatever happens, the result is the same to the bit as that of an undisturbed run.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from datetime import datetime

import msgspec.structs
import numpy as np
import pytest

from elmesh.netconfig.columns import InputColumn
from elmesh.netconfig.config import AgentEntry
from helpers.forked import ForkedNetwork, ForkedProcess, undisturbed
from helpers.network import ROOT, SUMS_REGRESSION, LocalNetwork, equal_weights, make_config, rows_of, with_ports
from helpers.proxies import ProxiedNetwork

PAIR, THREE, FOUR = ("east", "north"), ("east", "north", "south"), ("east", "north", "south", "west")


# Seconds that lost agents are waited for: more than lies between the starts of two agents on a busy machine.
PATIENCE = "5"
# Rounds of a run that is disturbed. Proxies, which delay every message, are threads of the test: while it waits for a
# processor, so does the run.
ROUNDS = 40


class DisturbedNetwork(ForkedNetwork, ProxiedNetwork):
    """Agents that start at once, behind proxies."""

    def set_delay(self, seconds: float) -> None:
        """Delay every message, so that a run takes a while."""
        for proxy in self.proxies.values():
            proxy.delay = seconds

    def finish(self, *names: str) -> dict[str, int]:
        """Let the run end without delays; return the exit codes."""
        self.set_delay(0.0)
        return self.wait(*names)


@contextmanager
def disturbed(folder, config, delay=0.1):
    with DisturbedNetwork(folder, config) as network:
        network.set_delay(delay)
        yield network


@pytest.fixture(scope="module")
def result_of(tmp_path_factory):
    """Return the weights that a config leads to when nothing disturbs it; each config is run once."""
    known = {}

    def find(config):
        key = with_ports(config, list(range(1, len(config.agents) + 1))).digest
        if key not in known:
            known[key] = undisturbed(tmp_path_factory.mktemp("undisturbed"), config)
        return known[key]

    return find


def all_well(codes):
    return set(codes.values()) == {0}


def was_absent(agent):
    """Return whether an agent has logged that a neighbour was absent."""
    return any(not event["present"] for event in agent.events("neighbor"))


def is_linked(agent):
    """Return whether the neighbour of an agent was present when its log last mentioned it."""
    return agent.events("neighbor")[-1]["present"]


# Kills.


def kill_at_random(network, rng, kills):
    """Kill agents at random and restart them; a kill counts if its victim has made progress since its last one."""
    reached = dict.fromkeys(network.config.agent_names, -1)
    counted = 0
    while counted < kills:
        victims = rng.choice(network.config.agent_names, 2 if rng.random() < 0.15 else 1, replace=False).tolist()
        for name in victims:
            network.until(
                lambda name=name: (
                    network.round_of(name) > reached[name] or network.agents[name].process.poll() is not None
                )
            )
        time.sleep(rng.uniform(0.0, 0.4))
        if any(network.agents[name].process.poll() is not None for name in network.config.agent_names):
            return counted  # the run is over
        for name in victims:
            reached[name] = network.round_of(name)
            network.kill(name)
            counted += 1
        time.sleep(max(rng.uniform(-2.0, 1.0), 0.0))
        for name in victims:
            network.start(name)
            if rng.random() < 0.2:  # and once more, while it starts
                time.sleep(rng.uniform(0.0, 0.3))
                network.kill(name)
                network.start(name)
    return counted


def rejoined_in(agent):
    """Return the seconds from each start of an agent to its first new round."""
    found, opened = [], None
    for event in agent.events():
        moment = datetime.fromisoformat(event["time"])
        if event["event"] == "open":
            opened = moment
        elif event["event"] == "rejoined":
            found.append((moment - opened).total_seconds())
    return found


def test_agents_killed_at_random_moments_rejoin_and_the_result_is_the_same_to_the_bit(tmp_path, result_of):
    config = make_config(THREE, "path", rounds=ROUNDS)
    with disturbed(tmp_path, config, delay=0.2) as network:
        network.start_all()
        assert kill_at_random(network, np.random.default_rng(1), 3) >= 3
        assert all_well(network.finish())
        assert equal_weights(network.weights(), result_of(config))


@pytest.mark.slow
def test_fifty_kills_at_random_moments_do_not_change_the_result(tmp_path, result_of, record_property):
    config = make_config(THREE, "path", rounds=12_000)
    with disturbed(tmp_path, config, delay=0.01) as network:
        network.start_all()
        assert kill_at_random(network, np.random.default_rng(50), 50) >= 50
        assert all_well(network.finish())
        taken = sorted(seconds for agent in network.agents.values() for seconds in rejoined_in(agent))
        record_property("seconds to rejoin", taken)
        print(f"\n{len(taken)} times rejoined: median {taken[len(taken) // 2]:.2f} s, most {taken[-1]:.2f} s")
        assert len(taken) >= 25
        assert equal_weights(network.weights(), result_of(config))


@pytest.mark.slow
@pytest.mark.parametrize("parameters", [{}, {"message_bits": 16}])  # all parts: the next test
def test_agents_that_exchange_sums_and_statistics_survive_kills_as_well(tmp_path, result_of, parameters):
    config = by_statistics(THREE, "path", parameters)
    rng = np.random.default_rng(3)
    with disturbed(tmp_path, config, delay=0.06) as network:
        network.start_all()
        # During the exchange of statistics or the start, before the first checkpoint; and then between rounds.
        for name in ("north", "east", "south"):
            time.sleep(rng.uniform(0.2, 1.2))
            network.kill(name)
            network.start(name)
        for number, name in enumerate(("north", "east", "south"), start=1):
            network.until_round(name, 2 * number)
            network.kill(name)
            network.start(name)
        assert all_well(network.finish())
        assert any(agent.events("resumed") for agent in network.agents.values())
        assert equal_weights(network.weights(), result_of(config))


@pytest.mark.slow  # test_network_masks.py kills agents between their sums as well
def test_agents_with_common_shared_and_private_parts_survive_kills_as_well(tmp_path, result_of):
    parameters = {"common": "auto", "private": "auto", "mu1": 1.0, "mu2": 1.0, "tol": 1e-4}
    config = by_statistics(THREE, "path", parameters)
    with disturbed(tmp_path, config, delay=0.02) as network:
        network.start_all()
        # Before the first checkpoint, while variances are estimated; and then between rounds.
        network.until(lambda: network.agents["east"].events("neighbor"))
        network.kill("north")
        network.start("north")
        for number, name in enumerate(("north", "south"), start=1):
            network.until_round(name, 2 * number)
            network.kill(name)
            network.start(name)
        assert all_well(network.finish())
        assert any(agent.events("resumed") for agent in network.agents.values())
        found = network.weights()
        assert all(weights["common.U"].shape[1] > 0 for weights in found.values())
        assert equal_weights(found, result_of(config))


def by_statistics(names, graph, parameters):
    """Return a config whose agents exchange sums and statistics."""
    columns = tuple(InputColumn(f"x{j}") for j in range(4))
    changes = {"exchange": "sums", "solver": "mesh-elm", "rank": "auto", "rounds": 200, "parameters": parameters}
    if "common" in parameters:
        changes["classes"] = ("high", "low")
    return make_config(names, graph, columns=columns, statistics=True, **changes)


def test_all_agents_killed_at_once_resume_from_their_checkpoints(tmp_path, result_of):
    config = make_config(PAIR, "path", rounds=ROUNDS)
    with disturbed(tmp_path, config) as network:
        network.start_all()
        for name in PAIR:
            network.until_round(name, 5)
        for agent in network.agents.values():
            agent.process.kill()
        for agent in network.agents.values():
            assert agent.process.wait() == -signal.SIGKILL
        network.start_all()
        assert all_well(network.finish())
        assert all(agent.events("resumed") for agent in network.agents.values())
        assert equal_weights(network.weights(), result_of(config))


@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.slow)])
def test_a_stopped_agent_resumes_with_the_same_command(tmp_path, result_of, number):
    config = make_config(PAIR, "path", rounds=ROUNDS)
    with disturbed(tmp_path, config) as network:
        network.start_all()
        network.until_round("north", 5)
        network.agents["north"].process.send_signal(number)
        assert network.wait("north") == {"north": 130}
        assert network.agents["north"].status["phase"] == "stopped"
        assert "the same command resumes" in network.agents["north"].errors
        network.start("north")
        assert all_well(network.finish())
        assert equal_weights(network.weights(), result_of(config))


# Freezes, cuts and slow links.


@pytest.mark.slow
def test_an_agent_frozen_for_longer_than_the_lease_is_waited_for(tmp_path, result_of):
    config = make_config(THREE, "path", rounds=ROUNDS)
    with disturbed(tmp_path, config) as network:
        network.start_all()
        network.until_round("north", 5)
        network.agents["north"].process.send_signal(signal.SIGSTOP)
        network.until(lambda: was_absent(network.agents["east"]))
        network.agents["north"].process.send_signal(signal.SIGCONT)
        assert all_well(network.finish())
        assert equal_weights(network.weights(), result_of(config))


@pytest.mark.slow
@pytest.mark.parametrize("seconds", [0, 30])
def test_a_partition_only_takes_time(tmp_path, result_of, seconds):
    config = make_config(THREE, "path", rounds=ROUNDS)
    with disturbed(tmp_path, config) as network:
        network.start_all()
        network.until_round("south", 5)
        network.proxies["south"].pause()
        network.until(lambda: was_absent(network.agents["south"]))
        time.sleep(seconds)
        network.proxies["south"].resume()
        assert all_well(network.finish())
        assert equal_weights(network.weights(), result_of(config))


def test_cut_connections_are_established_again(tmp_path, result_of):
    config = make_config(PAIR, "path", rounds=ROUNDS)
    with disturbed(tmp_path, config) as network:
        network.start_all()
        for agent in network.agents.values():
            network.until_round(agent.name, 5)
            for proxy in network.proxies.values():
                proxy.cut()
            network.until(lambda: not any(is_linked(agent) for agent in network.agents.values()))
            for proxy in network.proxies.values():
                proxy.accept()
            network.until(lambda: all(is_linked(agent) for agent in network.agents.values()))
        assert all_well(network.finish())
        assert equal_weights(network.weights(), result_of(config))


@pytest.mark.slow
def test_a_slow_link_with_packet_loss_only_takes_time(tmp_path, result_of):
    config = make_config(PAIR, "path", rounds=30)
    with disturbed(tmp_path, config, delay=0.2) as network:
        network.proxies["north"].loss = 0.02
        network.start_all()
        assert all_well(network.wait())
        assert equal_weights(network.weights(), result_of(config))


# The same between network namespaces, where the machine allows them.


def ip(*words):
    return subprocess.run(["ip", *words], capture_output=True, text=True, check=False)


@contextmanager
def two_namespaces():
    """Two connected network namespaces: their names, addresses and interfaces."""
    if os.geteuid() != 0 or shutil.which("ip") is None:
        pytest.skip("network namespaces need root and iproute2")
    namespaces = [f"elm{os.getpid()}{side}" for side in "ab"]
    hosts = ["10.213.7.1", "10.213.7.2"]
    try:
        for namespace in namespaces:
            done = ip("netns", "add", namespace)
            if done.returncode:
                pytest.skip(f"no network namespaces here: {done.stderr.strip()}")
        ends = [f"elm{os.getpid() % 100_000}{side}" for side in "ab"]
        done = ip(
            "link",
            "add",
            ends[0],
            "netns",
            namespaces[0],
            "type",
            "veth",
            "peer",
            "name",
            ends[1],
            "netns",
            namespaces[1],
        )
        if done.returncode:
            pytest.skip(f"no veth pairs here: {done.stderr.strip()}")
        for namespace, end, host in zip(namespaces, ends, hosts, strict=True):
            assert ip("-n", namespace, "addr", "add", f"{host}/24", "dev", end).returncode == 0
            assert ip("-n", namespace, "link", "set", end, "up").returncode == 0
            assert ip("-n", namespace, "link", "set", "lo", "up").returncode == 0
        yield namespaces, hosts, ends
    finally:
        for namespace in namespaces:
            ip("netns", "del", namespace)


@contextmanager
def apart(folder, **changes):
    """A network of two agents, each in its own namespace."""
    with two_namespaces() as (namespaces, hosts, ends):
        config = make_config(PAIR, "path", **changes)
        agents = tuple(AgentEntry(name, f"{host}:7451") for name, host in zip(PAIR, hosts, strict=True))
        with LocalNetwork(folder, msgspec.structs.replace(config, agents=agents)) as network:
            network.namespaces, network.ends = (
                dict(zip(PAIR, namespaces, strict=True)),
                dict(zip(PAIR, ends, strict=True)),
            )
            yield network


def start_apart(network):
    for name, namespace in network.namespaces.items():
        network.start(name, before=("ip", "netns", "exec", namespace))


@pytest.mark.slow
def test_an_interface_that_is_down_for_half_a_minute_only_takes_time(tmp_path, result_of):
    with apart(tmp_path, rounds=6000) as network:
        start_apart(network)
        network.until_round("north", 30)
        assert ip("-n", network.namespaces["east"], "link", "set", network.ends["east"], "down").returncode == 0
        time.sleep(30)
        assert ip("-n", network.namespaces["east"], "link", "set", network.ends["east"], "up").returncode == 0
        assert all_well(network.wait())
        assert was_absent(network.agents["east"])
        assert equal_weights(network.weights(), result_of(network.config))


@pytest.mark.slow
def test_delayed_and_lost_packets_between_namespaces_only_take_time(tmp_path, result_of):
    with apart(tmp_path, rounds=30) as network:
        for name, namespace in network.namespaces.items():
            netem = ("netem", "delay", "200ms", "loss", "2%")
            command = [
                "ip",
                "netns",
                "exec",
                namespace,
                "tc",
                "qdisc",
                "add",
                "dev",
                network.ends[name],
                "root",
                *netem,
            ]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode:
                pytest.skip(f"tc netem is not available: {done.stderr.strip()}")
        start_apart(network)
        assert all_well(network.wait())
        assert equal_weights(network.weights(), result_of(network.config))


# Disks.


@contextmanager
def small_disk(network, name):
    """Put an agent's state on a small disk of its own; yield functions that fill and empty the disk."""
    state = network.agents[name].folder / "state"
    state.mkdir(mode=0o700)
    command = ["mount", "-t", "tmpfs", "-o", "size=2m,mode=700", "tmpfs", str(state)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"a disk of its own cannot be mounted here: {done.stderr.strip()}")
    ballast = state / "ballast"

    def fill():
        with open(ballast, "wb", buffering=0) as file:
            for size in (65_536, 4096, 1):
                try:
                    while True:
                        file.write(bytes(size))
                except OSError:
                    continue

    try:
        yield fill, ballast.unlink
    finally:
        for agent in network.agents.values():
            if agent.process is not None and agent.process.poll() is None:
                agent.process.kill()
                agent.process.wait()
        subprocess.run(["umount", str(state)], check=True)


@pytest.mark.slow
def test_a_full_disk_is_reported_and_only_takes_time(tmp_path, result_of):
    config = make_config(PAIR, "path", rounds=1500)
    with disturbed(tmp_path, config, delay=0.002) as network, small_disk(network, "north") as (fill, empty):
        network.start_all()
        network.until_round("north", 30)
        fill()
        agent = network.agents["north"]
        assert network.until_event("north", "checkpoint")["problem"] == "No space left on device"
        network.until(lambda: (agent.status or {}).get("checkpoint", {}).get("problem") == "No space left on device")
        network.set_delay(0.0)
        # It continues for as many rounds as its neighbours buffer messages for it, and no further.
        time.sleep(3)
        assert agent.process.poll() is None
        assert network.round_of("north") < 1000
        empty()
        assert all_well(network.wait())
        assert agent.events("checkpoint")[-1]["problem"] is None
        assert equal_weights(network.weights(), result_of(config))


@pytest.mark.slow
def test_a_disk_that_stays_full_ends_the_agent_which_resumes_once_there_is_space(tmp_path, result_of):
    config = make_config(PAIR, "path", rounds=1500)
    with disturbed(tmp_path, config, delay=0.0) as network, small_disk(network, "north") as (fill, empty):
        network.start("east")
        network.start("north", "--patience", PATIENCE)
        network.until_round("north", 30)
        fill()
        assert network.wait("north") == {"north": 2}
        assert "free some space and start the agent again: it resumes where it was" in network.agents["north"].errors
        assert "Traceback" not in network.agents["north"].errors
        empty()
        network.start("north")
        assert all_well(network.wait())
        assert equal_weights(network.weights(), result_of(config))


def test_an_agent_on_a_full_disk_ends_with_a_sentence(tmp_path):
    with disturbed(tmp_path, make_config(PAIR, "path")) as network, small_disk(network, "north") as (fill, _):
        fill()
        network.start("north", "--patience", "1")
        assert network.wait("north") == {"north": 2}
        assert "no space left on device" in network.agents["north"].errors.lower()
        assert "Traceback" not in network.agents["north"].errors


# Clocks.


@pytest.mark.slow
def test_clocks_an_hour_off_change_nothing_and_a_check_reports_them(tmp_path, result_of):
    if shutil.which("faketime") is None:
        pytest.skip("faketime is not installed")
    config = make_config(THREE, "path", rounds=1200)
    with disturbed(tmp_path, config) as network:
        true = {"FAKETIME_DONT_FAKE_MONOTONIC": "1"}
        network.start("east", before=("faketime", "-f", "+1h"), env=true)
        network.start("south", before=("faketime", "-f", "-1h"), env=true)
        network.start("north")
        network.until_round("north", 5)
        command = [
            sys.executable,
            "-m",
            "elmesh",
            "network",
            "check",
            str(network.agents["north"].folder / "agent.toml"),
        ]
        environ = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
        done = subprocess.run([*command, "--json"], capture_output=True, text=True, check=False, env=environ)
        assert done.returncode == 0, done.stderr
        clocks = {found["name"]: found["clock"] for found in json.loads(done.stdout)["neighbors"]}
        assert clocks == {"east": pytest.approx(3600, abs=60), "south": pytest.approx(-3600, abs=60)}
        assert "east: its clock is 3" in done.stderr
        assert "seconds behind" in done.stderr
        assert all_well(network.finish())
        assert equal_weights(network.weights(), result_of(config))


# Agents that are lost.


def test_the_loss_of_an_agent_ends_the_run_of_all_others_which_name_it(tmp_path):
    with disturbed(tmp_path, make_config(THREE, "path", rounds=ROUNDS)) as network:
        network.start_all("--patience", PATIENCE)
        network.until_round("south", 5)
        network.kill("east")
        # North is its neighbour, south is not.
        assert network.wait("north", "south") == {"north": 3, "south": 3}
        for name in ("north", "south"):
            assert f"east has been absent for more than {PATIENCE} seconds" in network.agents[name].errors, name
            assert network.agents[name].status["phase"] == "failed"


def test_an_agent_that_never_starts_ends_the_run_as_well(tmp_path):
    with disturbed(tmp_path, make_config(PAIR, "path")) as network:
        network.start("east", "--patience", "2")
        assert network.wait("east") == {"east": 3}
        assert "north has not come for more than 2 seconds" in network.agents["east"].errors


def test_a_ring_continues_without_a_lost_agent_as_if_it_had_never_been_there(tmp_path, result_of):
    config = make_config(FOUR, "ring", rounds=ROUNDS)
    with disturbed(tmp_path, config) as network:
        network.start_all("--patience", PATIENCE, "--on-loss", "continue")
        network.until_round("west", 5)
        network.kill("west")
        network.until_event("north", "restarted")
        network.set_delay(0.3)
        # An evicted agent that returns is informed.
        network.start("west")
        assert network.wait("west") == {"west": 3}
        assert "and others continue without west" in network.agents["west"].errors
        rest = [name for name in FOUR if name != "west"]
        assert all_well(network.finish(*rest))
        assert all(network.result(name)["evicted"] == ["west"] for name in rest)
        assert equal_weights(network.weights(), result_of(config.without({"west"}, "east")))


@pytest.mark.slow
def test_a_loss_that_cuts_the_network_leaves_parts_that_continue_separately(tmp_path, result_of):
    config = make_config(FOUR, "path", rounds=ROUNDS)
    with disturbed(tmp_path, config) as network:
        network.start_all("--patience", PATIENCE, "--on-loss", "continue")
        network.until_round("north", 5)
        network.kill("north")
        assert all_well(network.finish("east", "south", "west"))
        for name in ("east", "south", "west"):
            (event,) = network.agents[name].events("restarted")
            assert event["parts"] == [["east"], ["south", "west"]]
        ends = result_of(config.without({"north"}, "east")) | result_of(config.without({"north"}, "south"))
        assert equal_weights(network.weights(), ends)


@pytest.mark.slow
def test_two_agents_lost_at_the_same_time_are_both_evicted(tmp_path, result_of):
    config = make_config(FOUR, "ring", rounds=ROUNDS)
    with disturbed(tmp_path, config) as network:
        network.start_all("--patience", PATIENCE, "--on-loss", "continue")
        network.until_round("west", 5)
        network.kill("west")
        network.kill("south")
        assert all_well(network.finish("east", "north"))
        assert equal_weights(network.weights(), result_of(config.without({"south", "west"}, "east")))


@pytest.mark.slow
def test_an_agent_set_to_stop_on_loss_is_evicted_by_those_that_continue(tmp_path, result_of):
    config = make_config(FOUR, "ring", rounds=ROUNDS)
    with disturbed(tmp_path, config) as network:
        for name in FOUR:
            network.start(name, "--patience", PATIENCE, "--on-loss", "stop" if name == "south" else "continue")
        network.until_round("west", 5)
        network.kill("west")
        assert network.finish("east", "north", "south") == {"east": 0, "north": 0, "south": 3}
        assert "west" in network.agents["south"].errors
        assert equal_weights(network.weights(), result_of(config.without({"south", "west"}, "east")))


@pytest.mark.slow
def test_an_agent_killed_after_an_eviction_resumes_with_the_rest(tmp_path, result_of):
    config = make_config(FOUR, "ring", rounds=ROUNDS)
    with disturbed(tmp_path, config) as network:
        network.start_all("--patience", PATIENCE, "--on-loss", "continue")
        network.until_round("west", 5)
        network.kill("west")
        network.until_event("north", "restarted")
        network.kill("north")
        network.start("north")
        assert all_well(network.finish("east", "north", "south"))
        assert equal_weights(network.weights(), result_of(config.without({"west"}, "east")))


@pytest.mark.parametrize("on_loss", ["continue", pytest.param("stop", marks=pytest.mark.slow)])
def test_a_loss_after_the_first_sum_ends_the_run_because_a_second_one_would_reveal_the_lost_part(tmp_path, on_loss):
    config = by_statistics(FOUR, "ring", {})
    with disturbed(tmp_path, config, delay=0.06) as network:
        network.start_all("--patience", PATIENCE, "--on-loss", on_loss)
        network.until_round("south", 1)
        network.kill("south")
        assert set(network.finish("east", "north", "west").values()) == {3}
        agents = [network.agents[name] for name in ("east", "north", "west")]
        assert not any(agent.out.exists() or agent.events("restarted") for agent in agents)
        if on_loss == "continue":
            why = "The run cannot continue without 'south': sums over all agents were released already"
            assert any(why in agent.errors for agent in agents)
        assert all("Traceback" not in agent.errors for agent in agents)


def test_agents_that_exchange_sums_continue_without_one_that_never_comes(tmp_path, result_of):
    columns = tuple(InputColumn(f"x{j}") for j in range(4))
    config = make_config(FOUR, "ring", columns=columns, statistics=True, max_colluders=0, **SUMS_REGRESSION)
    rest = ("east", "north", "south")
    with disturbed(tmp_path, config, delay=0.0) as network:
        for name in rest:
            network.start(name, "--patience", PATIENCE, "--on-loss", "continue")
        assert all_well(network.wait(*rest))
        assert all(network.result(name)["evicted"] == ["west"] for name in rest)
        assert equal_weights(network.weights(), result_of(config.without({"west"}, "east")))


def test_a_part_of_a_network_with_too_few_agents_for_a_sum_ends(tmp_path):
    config = by_statistics(FOUR, "path", {})
    with disturbed(tmp_path, config, delay=0.0) as network:
        for name in ("east", "south", "west"):
            network.start(name, "--patience", PATIENCE, "--on-loss", "continue")
        assert set(network.wait("east", "south", "west").values()) == {3}
        assert "There is 1 agent (east), the total is its own part" in network.agents["east"].errors
        pair = network.agents["south"].errors + network.agents["west"].errors
        assert "There are 2 agents (south, west), each can subtract its own part" in pair
        assert not any(agent.out.exists() for agent in network.agents.values())


# Mistakes of an operator.


def test_a_second_process_of_an_agent_is_refused_and_the_first_is_undisturbed(tmp_path, result_of):
    config = make_config(PAIR, "path", rounds=ROUNDS)
    with disturbed(tmp_path, config, delay=0.2) as network:
        network.start_all()
        network.until_round("north", 5)
        again = [str(tmp_path / "again.out"), str(tmp_path / "again.err"), str(tmp_path)]
        assert ForkedProcess(network.command("north")[3:], *again).wait(180) == 2
        text = (tmp_path / "again.err").read_text()
        assert "Another process runs this agent already" in text
        assert "Traceback" not in text
        assert all_well(network.finish())
        assert equal_weights(network.weights(), result_of(config))


def test_an_agent_that_alone_starts_again_ends_the_run_of_all(tmp_path):
    with disturbed(tmp_path, make_config(THREE, "path", rounds=ROUNDS)) as network:
        network.start_all()
        network.until_round("north", 5)
        network.kill("south")
        network.start("south", "--fresh")
        assert network.wait() == {"east": 3, "north": 3, "south": 3}
        for agent in network.agents.values():
            assert "south has started again without its checkpoint" in agent.errors, agent.name
            assert "with --fresh" in agent.errors, agent.name


def test_a_checkpoint_of_other_data_is_refused(tmp_path, result_of):
    config = make_config(PAIR, "path", rounds=ROUNDS)
    with disturbed(tmp_path, config) as network:
        network.start_all()
        network.until_round("north", 5)
        network.kill("north")
        table = tmp_path / "net" / "north.csv"
        text = table.read_text()
        rows_of("someone else").to_csv(table, index=False)
        network.start("north")
        assert network.wait("north") == {"north": 2}
        assert "its table (--data) differs" in network.agents["north"].errors
        table.write_text(text)
        network.start("north")
        assert all_well(network.finish())
        assert equal_weights(network.weights(), result_of(config))


def test_an_older_model_is_never_replaced_without_force(tmp_path):
    with disturbed(tmp_path, make_config(PAIR, "path")) as network:
        old = network.agents["north"].out
        old.mkdir()
        (old / "model.json").write_text("{}")
        for _ in range(2):
            network.start("north", "--patience", "1")
            assert network.wait("north") == {"north": 2}
            assert "--force" in network.agents["north"].errors
        assert (old / "model.json").read_text() == "{}"


# The end of a run.


@pytest.mark.parametrize(
    "moment", ["as soon as its model is saved", pytest.param("when others have left", marks=pytest.mark.slow)]
)
def test_an_agent_killed_while_it_stays_for_others_ends_normally_and_so_do_they(tmp_path, result_of, moment):
    config = make_config(THREE, "path", rounds=ROUNDS)
    with disturbed(tmp_path, config) as network:
        network.start_all()
        network.until_round("south", 5)
        # A file in the place of its model prevents south from ending, and so north from leaving.
        south = network.agents["south"].out
        south.write_text("in the way")
        assert network.finish("south") == {"south": 2}
        network.until_event("north", "saved")
        if moment == "when others have left":
            assert network.wait("east") == {"east": 0}
        network.kill("north")
        network.start("north")
        network.until(lambda: len(network.agents["north"].events("saved")) == 2)
        assert not network.agents["north"].events("resumed")
        south.unlink()
        network.start("south")
        assert all_well(network.wait())
        assert network.result("north")["unconfirmed"] == []
        assert equal_weights(network.weights(), result_of(config))


@pytest.mark.slow
def test_an_agent_that_stays_can_be_stopped_and_stays_again(tmp_path, result_of):
    config = make_config(PAIR, "path", rounds=ROUNDS)
    with disturbed(tmp_path, config) as network:
        network.start_all()
        network.until_round("north", 5)
        north = network.agents["north"].out
        north.write_text("in the way")
        assert network.finish("north") == {"north": 2}
        network.until_event("east", "saved")
        network.agents["east"].process.send_signal(signal.SIGINT)
        assert network.wait("east") == {"east": 130}
        model = network.agents["east"].out
        model.rename(tmp_path / "elsewhere")
        network.start("east")
        assert network.wait("east") == {"east": 2}
        assert "is missing; restore it" in network.agents["east"].errors
        (tmp_path / "elsewhere").rename(model)
        north.unlink()
        network.start_all()
        assert all_well(network.wait())
        assert equal_weights(network.weights(), result_of(config))
