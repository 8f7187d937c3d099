"""What a network of real agents survives: kills, freezes, cuts, slow links, full disks, wrong clocks and losses.

Whatever happens, the end is the same to the bit as that of a run to which nothing did.
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
from helpers.doors import DoorTrial
from helpers.network import ROOT, Trial, free_ports, make_config, rows_of, same, with_ports
from helpers.nursery import Forked, Forking

PAIR, THREE, FOUR = ("east", "north"), ("east", "north", "south"), ("east", "north", "south", "west")


class Trouble(Forking, DoorTrial):
    """Agents that start at once, behind doors."""

    def pace(self, seconds: float) -> None:
        """Have every message take so long, so that a run lasts."""
        for door in self.doors.values():
            door.delay = seconds

    def fast_to_the_end(self, *names: str, seconds: float = 120) -> dict[str, int]:
        self.pace(0.0)
        return self.wait(*names, seconds=seconds)

    def until_event(self, name: str, kind: str, seconds: float = 60) -> dict:
        self.until(lambda: self.agents[name].events(kind), seconds)
        return self.agents[name].events(kind)[-1]


@contextmanager
def trouble(folder, config, pace=0.004):
    with Trouble(folder, config) as trial:
        trial.pace(pace)
        yield trial


@pytest.fixture(scope="module")
def end_of(tmp_path_factory):
    """What a config ends with when nothing disturbs it; each config is run once."""
    known = {}

    def find(config):
        key = with_ports(config, list(range(1, len(config.agents) + 1))).digest
        if key not in known:
            moved = with_ports(config, free_ports(len(config.agents)))
            with Forking(tmp_path_factory.mktemp("undisturbed"), moved) as trial:
                trial.start_all()
                assert set(trial.wait().values()) == {0}, {n: a.errors for n, a in trial.agents.items()}
                known[key] = trial.weights()
        return known[key]

    return find


def all_well(codes):
    return set(codes.values()) == {0}


# Kills.


def kill_at_random(trial, rng, kills):
    """Kill agents at random and start them again; a kill counts if its victim had got further since its last."""
    reached = dict.fromkeys(trial.config.agent_names, -1)
    counted = 0
    while counted < kills:
        victims = rng.choice(trial.config.agent_names, 2 if rng.random() < 0.15 else 1, replace=False).tolist()
        for name in victims:
            trial.until(
                lambda name=name: trial.round_of(name) > reached[name] or trial.agents[name].process.poll() is not None
            )
        time.sleep(rng.uniform(0.0, 0.4))
        if any(trial.agents[name].process.poll() is not None for name in trial.config.agent_names):
            return counted  # the run is over
        for name in victims:
            reached[name] = trial.round_of(name)
            trial.kill(name)
            counted += 1
        time.sleep(max(rng.uniform(-2.0, 1.0), 0.0))
        for name in victims:
            trial.start(name)
            if rng.random() < 0.2:  # and once more, while it starts
                time.sleep(rng.uniform(0.0, 0.3))
                trial.kill(name)
                trial.start(name)
    return counted


def rejoined_in(agent):
    """Seconds from each start of an agent to the first round that it had not been in."""
    found, opened = [], None
    for event in agent.events():
        moment = datetime.fromisoformat(event["time"])
        if event["event"] == "open":
            opened = moment
        elif event["event"] == "rejoined":
            found.append((moment - opened).total_seconds())
    return found


def test_agents_killed_at_random_moments_rejoin_and_the_end_is_the_same_to_the_bit(tmp_path, end_of):
    config = make_config(THREE, "path", rounds=1500)
    with trouble(tmp_path, config) as trial:
        trial.start_all()
        assert kill_at_random(trial, np.random.default_rng(1), 5) >= 5
        assert all_well(trial.fast_to_the_end())
        assert same(trial.weights(), end_of(config))


@pytest.mark.slow
def test_fifty_kills_at_random_moments_leave_no_trace_in_the_end(tmp_path, end_of, record_property):
    config = make_config(THREE, "path", rounds=12_000)
    with trouble(tmp_path, config, pace=0.01) as trial:
        trial.start_all()
        assert kill_at_random(trial, np.random.default_rng(50), 50) >= 50
        assert all_well(trial.fast_to_the_end(seconds=300))
        taken = sorted(seconds for agent in trial.agents.values() for seconds in rejoined_in(agent))
        record_property("seconds to rejoin", taken)
        print(f"\n{len(taken)} times rejoined: median {taken[len(taken) // 2]:.2f} s, most {taken[-1]:.2f} s")
        assert len(taken) >= 25
        assert same(trial.weights(), end_of(config))


@pytest.mark.slow
@pytest.mark.parametrize("parameters", [{}, {"message_bits": 4}])
def test_agents_that_exchange_sums_and_statistics_survive_kills_as_well(tmp_path, end_of, parameters):
    config = by_statistics(THREE, "path", parameters)
    rng = np.random.default_rng(3)
    with trouble(tmp_path, config, pace=0.06) as trial:
        trial.start_all()
        # While statistics are agreed on, or the start, before the first entry; and then between rounds.
        for name in ("north", "east", "south"):
            time.sleep(rng.uniform(0.2, 1.2))
            trial.kill(name)
            trial.start(name)
        for number, name in enumerate(("north", "east", "south"), start=1):
            trial.until_round(name, 2 * number)
            trial.kill(name)
            trial.start(name)
        assert all_well(trial.fast_to_the_end())
        assert any(agent.events("resumed") for agent in trial.agents.values())
        assert same(trial.weights(), end_of(config))


def by_statistics(names, graph, parameters):
    """A config whose agents exchange sums, and agree on scales by statistics."""
    columns = tuple(InputColumn(f"x{j}") for j in range(4))
    changes = {"exchange": "sums", "rank": "auto", "rounds": 200, "parameters": parameters}
    return make_config(names, graph, columns=columns, statistics=True, **changes)


def test_all_agents_killed_at_once_go_on_where_their_journals_are(tmp_path, end_of):
    config = make_config(THREE, "path", rounds=1500)
    with trouble(tmp_path, config) as trial:
        trial.start_all()
        for name in THREE:
            trial.until_round(name, 150)
        for agent in trial.agents.values():
            agent.process.kill()
        for agent in trial.agents.values():
            assert agent.process.wait() == -signal.SIGKILL
        trial.start_all()
        assert all_well(trial.fast_to_the_end())
        assert all(agent.events("resumed") for agent in trial.agents.values())
        assert same(trial.weights(), end_of(config))


@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.slow)])
def test_an_agent_that_is_asked_to_stop_goes_on_with_the_same_command(tmp_path, end_of, number):
    config = make_config(PAIR, "path", rounds=900)
    with trouble(tmp_path, config) as trial:
        trial.start_all()
        trial.until_round("north", 60)
        trial.agents["north"].process.send_signal(number)
        assert trial.wait("north", seconds=10) == {"north": 130}
        assert trial.agents["north"].status["phase"] == "stopped"
        assert "the same command goes on" in trial.agents["north"].errors
        trial.start("north")
        assert all_well(trial.fast_to_the_end())
        assert same(trial.weights(), end_of(config))


# Freezes, cuts and slow links.


@pytest.mark.slow
def test_an_agent_frozen_for_longer_than_the_lease_is_waited_for(tmp_path, end_of):
    config = make_config(THREE, "path", rounds=1500)
    with trouble(tmp_path, config) as trial:
        trial.start_all()
        trial.until_round("north", 60)
        trial.agents["north"].process.send_signal(signal.SIGSTOP)
        time.sleep(8)
        trial.agents["north"].process.send_signal(signal.SIGCONT)
        assert all_well(trial.fast_to_the_end())
        assert any(not event["here"] for event in trial.agents["east"].events("neighbour"))
        assert same(trial.weights(), end_of(config))


@pytest.mark.slow
@pytest.mark.parametrize("seconds", [7, 30])
def test_a_partition_is_waited_out(tmp_path, end_of, seconds):
    config = make_config(THREE, "path", rounds=1500)
    with trouble(tmp_path, config) as trial:
        trial.start_all()
        trial.until_round("south", 60)
        trial.doors["south"].hold()
        time.sleep(seconds)
        trial.doors["south"].release()
        assert all_well(trial.fast_to_the_end())
        assert any(not event["here"] for event in trial.agents["south"].events("neighbour"))
        assert same(trial.weights(), end_of(config))


def test_connections_that_are_cut_are_made_again(tmp_path, end_of):
    config = make_config(THREE, "path", rounds=1500)
    with trouble(tmp_path, config) as trial:
        trial.start_all()
        for name in ("north", "south"):
            trial.until_round(name, 60)
            trial.doors[name].cut()
            trial.until(lambda: not all(event["here"] for event in trial.agents["north"].events("neighbour")[-1:]))
            trial.doors[name].mend()
            trial.until(lambda: all(event["here"] for event in trial.agents["north"].events("neighbour")[-1:]))
        assert all_well(trial.fast_to_the_end())
        assert same(trial.weights(), end_of(config))


@pytest.mark.slow
def test_a_slow_link_that_loses_packets_only_takes_time(tmp_path, end_of):
    config = make_config(PAIR, "path", rounds=30)
    with trouble(tmp_path, config, pace=0.2) as trial:
        trial.doors["north"].loss = 0.02
        trial.start_all()
        assert all_well(trial.wait(seconds=180))
        assert same(trial.weights(), end_of(config))


# The same between network namespaces, where the machine lets us.


def ip(*words):
    return subprocess.run(["ip", *words], capture_output=True, text=True, check=False)


@contextmanager
def two_places():
    """Two network namespaces joined by a cable; their names, addresses and ends of the cable."""
    if os.geteuid() != 0 or shutil.which("ip") is None:
        pytest.skip("network namespaces need root and iproute2")
    places = [f"elm{os.getpid()}{side}" for side in "ab"]
    hosts = ["10.213.7.1", "10.213.7.2"]
    try:
        for place in places:
            done = ip("netns", "add", place)
            if done.returncode:
                pytest.skip(f"no network namespaces here: {done.stderr.strip()}")
        ends = [f"elm{os.getpid() % 100_000}{side}" for side in "ab"]
        done = ip(
            "link", "add", ends[0], "netns", places[0], "type", "veth", "peer", "name", ends[1], "netns", places[1]
        )
        if done.returncode:
            pytest.skip(f"no veth pairs here: {done.stderr.strip()}")
        for place, end, host in zip(places, ends, hosts, strict=True):
            assert ip("-n", place, "addr", "add", f"{host}/24", "dev", end).returncode == 0
            assert ip("-n", place, "link", "set", end, "up").returncode == 0
            assert ip("-n", place, "link", "set", "lo", "up").returncode == 0
        yield places, hosts, ends
    finally:
        for place in places:
            ip("netns", "del", place)


@contextmanager
def apart(folder, **changes):
    """A network of two agents, each in a namespace of its own."""
    with two_places() as (places, hosts, ends):
        config = make_config(PAIR, "path", **changes)
        agents = tuple(AgentEntry(name, f"{host}:7451") for name, host in zip(PAIR, hosts, strict=True))
        with Trial(folder, msgspec.structs.replace(config, agents=agents)) as trial:
            trial.places, trial.ends = dict(zip(PAIR, places, strict=True)), dict(zip(PAIR, ends, strict=True))
            yield trial


def start_apart(trial):
    for name, place in trial.places.items():
        trial.start(name, before=("ip", "netns", "exec", place))


@pytest.mark.slow
def test_a_cable_that_is_out_for_half_a_minute_is_waited_for(tmp_path, end_of):
    with apart(tmp_path, rounds=6000) as trial:
        start_apart(trial)
        trial.until_round("north", 30)
        assert ip("-n", trial.places["east"], "link", "set", trial.ends["east"], "down").returncode == 0
        time.sleep(30)
        assert ip("-n", trial.places["east"], "link", "set", trial.ends["east"], "up").returncode == 0
        assert all_well(trial.wait())
        assert any(not event["here"] for event in trial.agents["east"].events("neighbour"))
        assert same(trial.weights(), end_of(trial.config))


@pytest.mark.slow
def test_packets_that_are_late_or_lost_between_namespaces_only_take_time(tmp_path, end_of):
    with apart(tmp_path, rounds=30) as trial:
        for name, place in trial.places.items():
            netem = ("netem", "delay", "200ms", "loss", "2%")
            command = ["ip", "netns", "exec", place, "tc", "qdisc", "add", "dev", trial.ends[name], "root", *netem]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode:
                pytest.skip(f"tc netem is not to be had: {done.stderr.strip()}")
        start_apart(trial)
        assert all_well(trial.wait(seconds=240))
        assert same(trial.weights(), end_of(trial.config))


# Disks.


@contextmanager
def small_disk(trial, name):
    """Put what an agent keeps on a disk of its own, with hardly any room; what fills it up, and what empties it."""
    state = trial.agents[name].folder / "state"
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
        for agent in trial.agents.values():
            if agent.process is not None and agent.process.poll() is None:
                agent.process.kill()
                agent.process.wait()
        subprocess.run(["umount", str(state)], check=True)


@pytest.mark.slow
def test_a_full_disk_is_waited_out_and_told_of(tmp_path, end_of):
    config = make_config(PAIR, "path", rounds=1500)
    with trouble(tmp_path, config, pace=0.002) as trial, small_disk(trial, "north") as (fill, empty):
        trial.start_all()
        trial.until_round("north", 30)
        fill()
        agent = trial.agents["north"]
        told = trial.until_event("north", "journal")
        assert told["problem"] == "No space left on device"
        trial.until(lambda: (agent.status or {}).get("journal", {}).get("problem") == "No space left on device")
        trial.pace(0.0)
        # It goes on for as many rounds as its neighbours keep for it, and no further.
        time.sleep(3)
        assert agent.process.poll() is None
        assert trial.round_of("north") < 1000
        empty()
        assert all_well(trial.wait())
        assert agent.events("journal")[-1]["problem"] is None
        assert same(trial.weights(), end_of(config))


@pytest.mark.slow
def test_a_disk_that_stays_full_ends_the_agent_and_with_room_it_goes_on(tmp_path, end_of):
    config = make_config(PAIR, "path", rounds=1500)
    with trouble(tmp_path, config, pace=0.0) as trial, small_disk(trial, "north") as (fill, empty):
        trial.start("east")
        trial.start("north", "--patience", "2")
        trial.until_round("north", 30)
        fill()
        assert trial.wait("north", seconds=40) == {"north": 2}
        assert "make room, and start the agent again: it goes on where it was" in trial.agents["north"].errors
        assert "Traceback" not in trial.agents["north"].errors
        empty()
        trial.start("north")
        assert all_well(trial.wait())
        assert same(trial.weights(), end_of(config))


def test_an_agent_on_a_disk_without_any_room_says_so_in_a_sentence(tmp_path):
    with trouble(tmp_path, make_config(PAIR, "path")) as trial, small_disk(trial, "north") as (fill, _):
        fill()
        trial.start("north", "--patience", "1")
        assert trial.wait("north", seconds=30) == {"north": 2}
        assert "no space left on device" in trial.agents["north"].errors.lower()
        assert "Traceback" not in trial.agents["north"].errors


# Clocks.


@pytest.mark.slow
def test_clocks_an_hour_off_change_nothing_and_a_check_tells_of_them(tmp_path, end_of):
    if shutil.which("faketime") is None:
        pytest.skip("faketime is not installed")
    config = make_config(THREE, "path", rounds=3000)
    with trouble(tmp_path, config) as trial:
        true = {"FAKETIME_DONT_FAKE_MONOTONIC": "1"}
        trial.start("east", before=("faketime", "-f", "+1h"), env=true)
        trial.start("south", before=("faketime", "-f", "-1h"), env=true)
        trial.start("north")
        trial.until_round("north", 60)
        command = [sys.executable, "-m", "elmesh", "network", "check", str(trial.agents["north"].folder / "agent.toml")]
        environ = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
        done = subprocess.run([*command, "--json"], capture_output=True, text=True, check=False, env=environ)
        assert done.returncode == 0, done.stderr
        clocks = {found["name"]: found["clock"] for found in json.loads(done.stdout)["neighbours"]}
        assert clocks == {"east": pytest.approx(3600, abs=60), "south": pytest.approx(-3600, abs=60)}
        assert "east: its clock is 3" in done.stderr
        assert "seconds behind" in done.stderr
        assert all_well(trial.fast_to_the_end())
        assert same(trial.weights(), end_of(config))


# Agents that never come back.


def test_an_agent_that_never_comes_back_ends_the_run_of_all_others_who_are_told_its_name(tmp_path):
    with trouble(tmp_path, make_config(FOUR, "path", rounds=3000)) as trial:
        trial.start_all("--patience", "3")
        trial.until_round("west", 30)
        trial.kill("east")
        assert trial.wait("north", "south", "west", seconds=30) == {"north": 3, "south": 3, "west": 3}
        for name in ("north", "south", "west"):
            assert "east has been away for more than 3 seconds" in trial.agents[name].errors, name
            assert trial.agents[name].status["phase"] == "failed"


def test_an_agent_that_never_came_ends_the_run_as_well(tmp_path):
    with trouble(tmp_path, make_config(PAIR, "path")) as trial:
        trial.start("east", "--patience", "2")
        assert trial.wait("east", seconds=30) == {"east": 3}
        assert "north has not come for more than 2 seconds" in trial.agents["east"].errors


def test_a_ring_goes_on_without_an_agent_as_if_it_had_never_been_there(tmp_path, end_of):
    config = make_config(FOUR, "ring", rounds=600)
    with trouble(tmp_path, config) as trial:
        trial.start_all("--patience", "3", "--on-loss", "continue")
        trial.until_round("west", 30)
        trial.kill("west")
        trial.until_event("north", "regrouped")
        trial.pace(0.02)
        # Whoever was left out and comes back is told.
        trial.start("west")
        assert trial.wait("west", seconds=30) == {"west": 3}
        assert "have gone on without west" in trial.agents["west"].errors
        rest = [name for name in FOUR if name != "west"]
        assert all_well(trial.fast_to_the_end(*rest))
        assert all(trial.result(name)["without"] == ["west"] for name in rest)
        assert same(trial.weights(), end_of(config.without({"west"}, "east")))


@pytest.mark.slow
def test_parts_that_a_loss_leaves_are_named_and_each_goes_on_by_itself(tmp_path, end_of):
    config = make_config(FOUR, "path", rounds=600)
    with trouble(tmp_path, config) as trial:
        trial.start_all("--patience", "3", "--on-loss", "continue")
        trial.until_round("north", 30)
        trial.kill("north")
        assert all_well(trial.fast_to_the_end("east", "south", "west"))
        for name in ("east", "south", "west"):
            (event,) = trial.agents[name].events("regrouped")
            assert event["parts"] == [["east"], ["south", "west"]]
        ends = end_of(config.without({"north"}, "east")) | end_of(config.without({"north"}, "south"))
        assert same(trial.weights(), ends)


@pytest.mark.slow
def test_two_agents_lost_at_the_same_time_are_left_out_together(tmp_path, end_of):
    config = make_config(FOUR, "ring", rounds=600)
    with trouble(tmp_path, config) as trial:
        trial.start_all("--patience", "3", "--on-loss", "continue")
        trial.until_round("west", 30)
        trial.kill("west")
        trial.kill("south")
        assert all_well(trial.fast_to_the_end("east", "north"))
        assert same(trial.weights(), end_of(config.without({"south", "west"}, "east")))


@pytest.mark.slow
def test_an_agent_that_was_told_to_stop_is_left_out_by_those_that_go_on(tmp_path, end_of):
    config = make_config(FOUR, "ring", rounds=600)
    with trouble(tmp_path, config) as trial:
        for name in FOUR:
            trial.start(name, "--patience", "3", "--on-loss", "stop" if name == "south" else "continue")
        trial.until_round("west", 30)
        trial.kill("west")
        assert trial.fast_to_the_end("east", "north", "south") == {"east": 0, "north": 0, "south": 3}
        assert "west" in trial.agents["south"].errors
        assert same(trial.weights(), end_of(config.without({"south", "west"}, "east")))


@pytest.mark.slow
def test_an_agent_killed_after_others_were_left_out_goes_on_among_the_rest(tmp_path, end_of):
    config = make_config(FOUR, "ring", rounds=600)
    with trouble(tmp_path, config) as trial:
        trial.start_all("--patience", "6", "--on-loss", "continue")
        trial.until_round("west", 30)
        trial.kill("west")
        trial.until_event("north", "regrouped")
        trial.kill("north")
        trial.start("north")
        assert all_well(trial.fast_to_the_end("east", "north", "south"))
        assert same(trial.weights(), end_of(config.without({"west"}, "east")))


@pytest.mark.slow
def test_statistics_are_agreed_on_again_without_whoever_is_lost(tmp_path, end_of):
    config = by_statistics(THREE, "ring", {})
    with trouble(tmp_path, config, pace=0.06) as trial:
        trial.start_all("--patience", "3", "--on-loss", "continue")
        trial.until_round("south", 2)
        trial.kill("south")
        trial.until_event("north", "regrouped")
        trial.kill("north")
        trial.start("north")
        assert all_well(trial.fast_to_the_end("east", "north"))
        assert same(trial.weights(), end_of(config.without({"south"}, "east")))


# Mistakes of whoever runs an agent.


def test_a_second_process_of_an_agent_is_refused_and_the_first_undisturbed(tmp_path, end_of):
    config = make_config(PAIR, "path", rounds=900)
    with trouble(tmp_path, config) as trial:
        trial.start_all()
        trial.until_round("north", 30)
        again = [str(tmp_path / "again.out"), str(tmp_path / "again.err"), str(tmp_path)]
        assert Forked(trial.command("north")[3:], *again).wait(30) == 2
        text = (tmp_path / "again.err").read_text()
        assert "Another process is this agent already" in text
        assert "Traceback" not in text
        assert all_well(trial.fast_to_the_end())
        assert same(trial.weights(), end_of(config))


def test_an_agent_that_alone_begins_anew_ends_the_run_with_a_word_at_both_ends(tmp_path):
    with trouble(tmp_path, make_config(THREE, "path", rounds=3000)) as trial:
        trial.start_all()
        trial.until_round("north", 60)
        trial.kill("south")
        trial.start("south", "--fresh")
        assert trial.wait(seconds=30) == {"east": 3, "north": 3, "south": 3}
        for agent in trial.agents.values():
            assert "south has begun anew" in agent.errors, agent.name
            assert "with --fresh" in agent.errors, agent.name


def test_a_journal_of_other_data_is_not_gone_on_from(tmp_path, end_of):
    config = make_config(PAIR, "path", rounds=900)
    with trouble(tmp_path, config) as trial:
        trial.start_all()
        trial.until_round("north", 60)
        trial.kill("north")
        table = tmp_path / "net" / "north.csv"
        text = table.read_text()
        rows_of("someone else").to_csv(table, index=False)
        trial.start("north")
        assert trial.wait("north", seconds=30) == {"north": 2}
        assert "data differs" in trial.agents["north"].errors
        table.write_text(text)
        trial.start("north")
        assert all_well(trial.fast_to_the_end())
        assert same(trial.weights(), end_of(config))


def test_a_model_of_before_is_not_replaced_however_often_the_command_is_given(tmp_path):
    with trouble(tmp_path, make_config(PAIR, "path")) as trial:
        old = trial.agents["north"].out
        old.mkdir()
        (old / "model.json").write_text("{}")
        for _ in range(2):
            trial.start("north", "--patience", "1")
            assert trial.wait("north", seconds=30) == {"north": 2}
            assert "--force" in trial.agents["north"].errors
        assert (old / "model.json").read_text() == "{}"


# The end.


@pytest.mark.parametrize(
    "moment", ["as soon as its model is saved", pytest.param("when others have left", marks=pytest.mark.slow)]
)
def test_an_agent_killed_while_it_stays_for_others_ends_well_and_so_do_they(tmp_path, end_of, moment):
    config = make_config(THREE, "path", rounds=600)
    with trouble(tmp_path, config) as trial:
        trial.start_all()
        trial.until_round("south", 30)
        # What stands where its model is to go keeps south from its end, and so north from leaving.
        south = trial.agents["south"].out
        south.write_text("in the way")
        assert trial.fast_to_the_end("south") == {"south": 2}
        trial.until_event("north", "saved")
        if moment == "when others have left":
            assert trial.wait("east", seconds=30) == {"east": 0}
        trial.kill("north")
        trial.start("north")
        trial.until(lambda: len(trial.agents["north"].events("saved")) == 2)
        assert not trial.agents["north"].events("resumed")
        south.unlink()
        trial.start("south")
        assert all_well(trial.wait(seconds=30))
        assert trial.result("north")["late"] == []
        assert same(trial.weights(), end_of(config))


@pytest.mark.slow
def test_an_agent_that_stays_can_be_stopped_and_stays_again(tmp_path, end_of):
    config = make_config(PAIR, "path", rounds=300)
    with trouble(tmp_path, config) as trial:
        trial.start_all()
        trial.until_round("north", 30)
        north = trial.agents["north"].out
        north.write_text("in the way")
        assert trial.fast_to_the_end("north") == {"north": 2}
        trial.until_event("east", "saved")
        trial.agents["east"].process.send_signal(signal.SIGINT)
        assert trial.wait("east", seconds=10) == {"east": 130}
        model = trial.agents["east"].out
        model.rename(tmp_path / "elsewhere")
        trial.start("east")
        assert trial.wait("east", seconds=30) == {"east": 2}
        assert "is gone; put it back" in trial.agents["east"].errors
        (tmp_path / "elsewhere").rename(model)
        north.unlink()
        trial.start_all()
        assert all_well(trial.wait(seconds=30))
        assert same(trial.weights(), end_of(config))
