"""What an operator meets, as docs/running.md has it: the message, and that what the page advises helps."""

import json
import os
import re
import shutil
import socket
import ssl
import subprocess
import sys
import threading
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from typing import ClassVar

import pytest
from typer.testing import CliRunner

from elmesh.cli import app
from elmesh.cli.event_log import EventLog
from elmesh.netconfig.layout import NetworkLayout
from elmesh.netconfig.pki.authority import Authority, sign
from elmesh.netconfig.pki.csr import make_request
from elmesh.netconfig.pki.keys import read_key
from elmesh.privacy.accounting import epsilon_of, rho_for
from helpers.forked import ForkedNetwork, ForkedProcess, run_command, undisturbed
from helpers.network import ROOT, SUMS_REGRESSION, equal_weights, make_config, rows_of
from helpers.odd_agents import run_on_small_disk, run_other_format, run_other_version

PAIR, THREE = ("east", "north"), ("east", "north", "south")
PAGE = (ROOT / "docs" / "running.md").read_text(encoding="utf-8")


def documented(message):
    """Return a message that the page shows, word for word."""
    assert message in PAGE, message
    return message


class OddNetwork(ForkedNetwork):
    """A network in which some agents run in another way."""

    odd: ClassVar[dict] = {}

    def fork(self, name, *args):
        return ForkedProcess(*args, target=self.odd.get(name, run_command))


def elmesh(*words):
    return CliRunner().invoke(app, list(map(str, words)))


@pytest.fixture(scope="module")
def usual(tmp_path_factory):
    """The weights that two agents find when nothing is odd."""
    return undisturbed(tmp_path_factory.mktemp("usual"), make_config(PAIR, "path"))


def test_the_page_states_how_many_runs_a_budget_allows():
    rows = re.findall(r"^ *\| ([0-9.]+) \| (\d+) \| (\d+) \| (\d+) \|$", PAGE, re.MULTILINE)
    assert len(rows) == 3
    for epsilon, *runs in rows:
        cost = rho_for(float(epsilon), 1e-5)
        for most, number in zip((1.0, 3.0, 10.0), map(int, runs), strict=True):
            assert epsilon_of(number * cost, 1e-5) <= most * (1 + 1e-9) < epsilon_of((number + 1) * cost, 1e-5)


# A full disk.


@pytest.mark.thorough
def test_an_agent_whose_disk_takes_no_more_ends_with_a_sentence_and_resumes_when_it_does(tmp_path, usual):
    with OddNetwork(tmp_path, make_config(PAIR, "path")) as network:
        network.odd = {"north": run_on_small_disk}
        network.start("east")
        network.start("north", "--patience", "2")
        assert network.wait("north") == {"north": 2}
        message = network.agents["north"].status["problem"]
        assert documented("free some space and start the agent again: it resumes where it was.") in message
        assert "no space left on device" in message
        assert "Traceback" not in network.agents["north"].errors
        network.odd = {}
        network.start("north", "--patience", "600")
        assert set(network.wait().values()) == {0}, network.logs()
        assert equal_weights(network.weights(), usual)


# A wrong clock.


def agent_words(folder):
    """Write a network and a table; return the command of its agent north."""
    NetworkLayout(folder, make_config(PAIR, "path")).write(days=30)
    rows_of("north").to_csv(folder / "north.csv", index=False)
    words = ("agent", folder / "north" / "agent.toml", "--data", folder / "north.csv", "--target", "y")
    return (*words, "--out", folder / "model")


CLOCKS = pytest.mark.parametrize(("days", "message"), [(-40, "is not valid before"), (40, "expired on")])


@CLOCKS
def test_a_certificate_that_is_not_valid_now_is_named_before_anything_is_sent(tmp_path, days, message):
    words = agent_words(tmp_path)
    # What a clock that is ahead sees: a certificate of as many days ago.
    request = make_request(read_key(tmp_path / "north" / "key.pem"), "north", ["127.0.0.1"])
    now = datetime.now(UTC) - timedelta(days=days)
    certificate = sign(request, Authority.read(tmp_path / "ca"), days=30, now=now)
    (tmp_path / "north" / "certificate.pem").write_bytes(certificate)
    done = elmesh(*words)
    assert done.exit_code == 2
    assert documented(message) in done.stderr
    assert not (tmp_path / "north" / "releases.jsonl").exists()


@pytest.mark.slow
@CLOCKS
def test_a_clock_outside_the_validity_of_the_certificate_is_named_before_anything_is_sent(tmp_path, days, message):
    if shutil.which("faketime") is None:
        pytest.skip("faketime is not installed")
    words = map(str, agent_words(tmp_path))
    done = subprocess.run(
        ["faketime", "-f", f"{days:+d}d", sys.executable, "-m", "elmesh", *words],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src"), "FAKETIME_DONT_FAKE_MONOTONIC": "1"},
    )
    assert done.returncode == 2
    assert documented(message) in done.stderr
    assert not (tmp_path / "north" / "releases.jsonl").exists()


# A proxy that looks into TLS.


def test_a_check_names_a_proxy_that_puts_its_own_certificate_in_place_of_the_neighbours(tmp_path):
    config = make_config(PAIR, "path")
    NetworkLayout(tmp_path / "net", config).write(days=30)
    NetworkLayout(tmp_path / "other", make_config(PAIR, "path")).write(days=30)
    theirs = tmp_path / "other" / "east"
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(theirs / "certificate.pem", theirs / "key.pem")
    port = int(str(config.address_of("east")).rpartition(":")[2])

    def serve(listener):
        while True:
            try:
                link, _ = listener.accept()
                context.wrap_socket(link, server_side=True).close()
            except ssl.SSLError:
                continue
            except OSError:
                return

    with socket.create_server(("127.0.0.1", port)) as listener:
        thread = threading.Thread(target=serve, args=(listener,), daemon=True)
        thread.start()
        found = elmesh("network", "check", tmp_path / "net" / "north" / "agent.toml", "--wait", 0)
        listener.shutdown(socket.SHUT_RDWR)
    thread.join(10)
    assert found.exit_code == 1
    assert documented("its certificate is not valid:") in found.stderr


# A firewall, and an HTTP proxy.


def test_a_check_says_that_an_address_behind_a_firewall_that_drops_packets_times_out(tmp_path):
    """A full queue of connections drops further ones, as such a firewall does."""
    config = make_config(PAIR, "path")
    NetworkLayout(tmp_path / "net", config).write(days=30)
    port = int(str(config.address_of("east")).rpartition(":")[2])
    with ExitStack() as stack:
        listener = stack.enter_context(socket.socket())
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("127.0.0.1", port))
        listener.listen(0)
        for _ in range(4):
            waiting = stack.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(("127.0.0.1", port))
        found = elmesh("network", "check", tmp_path / "net" / "north" / "agent.toml", "--wait", 0)
    assert found.exit_code == 1
    assert "it cannot be reached: timed out" in found.stderr
    documented("`timed out`")


def test_an_http_proxy_that_the_machine_is_set_to_use_is_not_asked(tmp_path, monkeypatch):
    NetworkLayout(tmp_path / "net", make_config(PAIR, "path")).write(days=30)
    with socket.create_server(("127.0.0.1", 0)) as proxy:
        proxy.settimeout(0.2)
        for name in ("http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
            monkeypatch.setenv(name, f"http://127.0.0.1:{proxy.getsockname()[1]}")
        found = elmesh("network", "check", tmp_path / "net" / "north" / "agent.toml", "--wait", 0)
        with pytest.raises(TimeoutError):
            proxy.accept()
    assert found.exit_code == 1
    assert documented("it cannot be reached: connection refused") in found.stderr
    documented("and not through HTTP proxies")


# Two versions side by side.


@pytest.mark.thorough
def test_agents_of_versions_with_the_same_messages_work_together(tmp_path, usual):
    with OddNetwork(tmp_path, make_config(PAIR, "path")) as network:
        network.odd = {"north": run_other_version}
        network.start_all()
        assert set(network.wait().values()) == {0}, network.logs()
        assert equal_weights(network.weights(), usual)


@pytest.mark.thorough
def test_agents_of_versions_with_other_messages_refuse_each_other_by_name_and_nothing_is_lost(tmp_path):
    config = make_config(PAIR, "path")
    with OddNetwork(tmp_path / "mixed", config) as network:
        network.odd = {"north": run_other_format}
        network.start_all("--patience", "20")
        codes = network.wait()
        assert set(codes.values()) <= {3, 4}
        assert 4 in codes.values()
        refused = " ".join(agent.status["problem"] for agent in network.agents.values())
        assert documented("is not in the format of this version") in refused
        assert all("Traceback" not in agent.errors for agent in network.agents.values())
        # With the same version at both the same command starts again.
        network.odd = {}
        network.start_all("--patience", "600", "--fresh")
        assert set(network.wait().values()) == {0}, network.logs()


# Backups.


@pytest.mark.thorough
def test_a_site_restored_from_its_backup_remembers_what_was_released(tmp_path):
    config = make_config(THREE, "path", **SUMS_REGRESSION)
    with ForkedNetwork(tmp_path, config) as network:
        network.start_all()
        assert set(network.wait().values()) == {0}, network.logs()
        north, backup = network.agents["north"], tmp_path / "backup"
        shutil.copytree(north.folder, backup, ignore=shutil.ignore_patterns("state"))
        shutil.rmtree(north.folder)
        shutil.copytree(backup, north.folder)
        assert elmesh("network", "audit", north.folder / "agent.toml").exit_code == 0
        # The same rows again: the run takes place, and counts with the one before.
        network.start_all("--force")
        assert set(network.wait().values()) == {0}, network.logs()
        lines = [json.loads(line) for line in (north.folder / "releases.jsonl").read_text().splitlines()]
        assert sum(line.get("what") == "matrix" for line in lines) == 6
        # Other rows: refused, by what the restored log remembers.
        rows_of("someone else", kind="regression").to_csv(tmp_path / "net" / "north.csv", index=False)
        network.start("north", "--force")
        assert network.wait("north") == {"north": 2}
        assert "The table has changed since an earlier run released totals" in north.errors
        # A backup that is older than the last run is found by the others.
        rows_of("north", kind="regression").to_csv(tmp_path / "net" / "north.csv", index=False)
        for name in ("releases.jsonl", "releases.jsonl.seal"):
            shutil.copy(backup / name, north.folder / name)
        network.start_all("--force")
        network.wait()
        (found,) = network.agents["east"].events("replaced logs")
        assert found["names"] == ["north"]


# Log files.


def test_a_log_file_is_opened_again_when_it_was_moved_and_goes_on_when_it_was_truncated(tmp_path):
    file = tmp_path / "agent.log"
    log = EventLog("north", as_json=False, quiet=False, file=file)
    log("neighbor", name="east", present=True)
    file.rename(tmp_path / "agent.log.1")
    log("neighbor", name="east", present=False)
    assert (tmp_path / "agent.log.1").read_text().endswith("east is present.\n")
    assert file.read_text().endswith("east is absent.\n")
    # As logrotate does with copytruncate.
    shutil.copy(file, tmp_path / "agent.log.2")
    os.truncate(file, 0)
    log("neighbor", name="west", present=True)
    assert file.read_text().count("\n") == 1
    assert file.read_text().endswith("west is present.\n")
    assert "\0" not in file.read_text()
    file.unlink()
    log("neighbor", name="west", present=False)
    assert file.read_text().endswith("west is absent.\n")
    assert file.stat().st_mode & 0o077 == 0


def test_a_log_file_that_cannot_be_written_is_an_error_before_anything_starts(tmp_path):
    NetworkLayout(tmp_path, make_config(PAIR, "path")).write(days=30)
    words = [
        "agent",
        tmp_path / "north" / "agent.toml",
        "--data",
        "x.csv",
        "--target",
        "y",
        "--out",
        tmp_path / "model",
    ]
    found = elmesh(*words, "--log-file", tmp_path / "absent" / "agent.log")
    assert found.exit_code == 2
    assert "agent.log: no such file or directory" in found.stderr
