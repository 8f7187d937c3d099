"""``elmesh network unit`` prints units that systemd accepts, with few rights, under which an agent can work."""

from __future__ import annotations

import ctypes
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

pytest.importorskip("cryptography", reason="keys and certificates need cryptography, of elmesh[network]")

from elmesh.errors import ElmeshError
from elmesh.netconfig.identity import Identity
from helpers.commands import Command
from helpers.forked import ForkedNetwork, ForkedProcess, run_command
from helpers.network import make_config

needs_systemd = pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed")
#: systemd's measure of what a service could do, from 0 to 10; without any of this hardening it is 9.6.
EXPOSURE = 2.0
# Refuses memory that is writable and executable, as MemoryDenyWriteExecute= does: prctl(PR_SET_MDWE, REFUSE_EXEC_GAIN).
PR_SET_MDWE = (65, 1, 0, 0, 0)
DENY_WRITE_EXECUTE = f"""
import ctypes, os, sys
if ctypes.CDLL(None, use_errno=True).prctl{PR_SET_MDWE}:
    sys.exit(77)
os.execv(sys.argv[1], sys.argv[1:])
"""
NETWORK = Command("network")
run, refused = NETWORK.run, NETWORK.refused


@pytest.fixture
def place(monkeypatch) -> Path:
    """A folder outside of temporary ones, with a network and a table."""
    # The project itself may be in a temporary folder.
    parents = (Path(sys.prefix), Path.home(), Path("/dev/shm"))  # noqa: S108
    usable = (p for p in parents if os.access(p, os.W_OK) and p.resolve().parts[1:2] not in (("tmp",), ("var",)))
    folder = Path(tempfile.mkdtemp(dir=next(usable)))
    try:
        monkeypatch.chdir(folder)
        router = ["--router", "127.0.0.1:7447", "--quiet"]
        created = run("create", "net", "--agents", "north,south,west", "--listen", "127.0.0.1:7451", *router)
        assert created.exit_code == 0, created.output
        (folder / "rows.csv").write_text("x,y\n1,2\n")
        yield folder
    finally:
        shutil.rmtree(folder)


def options(place: Path, **changes: object) -> list[object]:
    given = {"data": place / "rows.csv", "target": "y", "model": place / "models" / "north"} | changes
    return [word for name, value in given.items() if value is not None for word in (f"--{name}", value)]


def settings(text: str) -> list[tuple[str, str]]:
    return re.findall(r"^([A-Z]\w+)=(.*)$", text, re.MULTILINE)


def test_the_service_writes_only_to_its_log_its_state_and_its_model(place):
    text = run("unit", "net/north/agent.toml", *options(place)).stdout
    found = settings(text)
    assert [value for name, value in found if name == "ReadWritePaths"] == [
        str(place / "models"),
        str(place / "net" / "north"),
    ]
    assert ("ReadOnlyPaths", str(place / "net/north/agent.toml")) in found
    assert ("LoadCredential", f"key.pem:{place}/net/north/key.pem") in found
    assert ("InaccessiblePaths", f"-{place}/net/north/key.pem") in found
    expected = {"NoNewPrivileges": "yes", "ProtectSystem": "strict", "PrivateTmp": "yes", "CapabilityBoundingSet": "",
                "SystemCallFilter": "@system-service", "MemoryDenyWriteExecute": "yes", "User": "elmesh",
                "Restart": "on-failure", "WantedBy": "multi-user.target"}  # fmt: skip
    assert expected.items() <= dict(found).items()
    command = dict(found)["ExecStart"]
    assert command.endswith(
        f"agent {place}/net/north/agent.toml --data {place}/rows.csv --target y --out {place}/models/north "
        "--log-json --force"
    )


@needs_systemd
@pytest.mark.parametrize("name", ["north", "router"])
def test_systemd_accepts_the_files_and_rates_them_as_safe(place, name):
    more = [] if name == "router" else [*options(place, target='a $HOME 100% "b"'), "--at", "02:00Z"]
    found = run("unit", f"net/{name}/agent.toml", *more, "--user", "root", "--write", place)
    assert found.exit_code == 0, found.output
    files = sorted(place.glob("elmesh-net-*"))
    assert [path.suffix for path in files] == [".service"]
    checked = subprocess.run(
        ["systemd-analyze", "verify", "--recursive-errors=no", *files], capture_output=True, text=True, check=False
    )
    assert (checked.returncode, checked.stderr) == (0, ""), checked.stderr
    rated = subprocess.run(
        ["systemd-analyze", "security", "--offline=yes", f"--threshold={EXPOSURE * 10:.0f}", files[0]],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert rated.returncode == 0, rated.stdout


@pytest.mark.parametrize(("option", "value"), [("--at", "02:00Z"), ("--every", "24h")])
def test_files_are_written_once_and_a_schedule_is_that_of_the_agent(place, option, value):
    words = ["unit", "net/north/agent.toml", *options(place), option, value, "--metrics-port", "9100"]
    words += ["--write", place]
    shown = json.loads(run(*words, "--json").stdout)
    assert list(shown["files"]) == ["elmesh-net-north.service"]
    command = dict(settings((place / "elmesh-net-north.service").read_text()))["ExecStart"]
    assert command.endswith(f"--log-json {option} {value} --metrics-port 9100")
    assert "exists; choose another name" in refused(*words)
    assert run(*words, "--force").exit_code == 0


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"data": None}, "needs --data, --target and --model"),
        ({"at": "25:00"}, "--at is '25:00'"),
        ({"at": "daily\nExecStart=/bin/sh"}, "--at is 'daily"),
        ({"at": "02:00", "every": "24h"}, "--every or --at, not both"),
        ({"user": "root; rm"}, "The user is 'root; rm'"),
        ({"model": "/var/tmp/model"}, "is in a temporary folder"),  # noqa: S108
        ({"target": "y\nUser=root"}, "cannot be in a unit"),
        ({"model": "/srv/a b/model"}, "has a space"),
        ({"model": "/srv/a\nUser=root/model"}, "cannot be in a unit"),
    ],
)
def test_what_a_unit_cannot_hold_is_refused(place, changes, words):
    assert words in refused("unit", "net/north/agent.toml", *options(place, **changes))


def test_a_router_has_a_unit_without_a_table(place):
    text = run("unit", "net/router/agent.toml").stdout
    assert dict(settings(text))["ExecStart"].endswith(f"network router {place}/net/router/agent.toml --log-json")
    assert "ReadWritePaths" not in text
    assert "A router has no table" in refused("unit", "net/router/agent.toml", *options(place))


def test_the_key_that_systemd_hands_over_is_used_although_its_group_has_a_right(place, monkeypatch):
    key = place / "net/north/key.pem"
    credentials = place / "credentials"
    credentials.mkdir()
    shutil.move(key, credentials / "key.pem")
    (credentials / "key.pem").chmod(0o440)
    with pytest.raises(ElmeshError, match=r"The key file .* does not exist"):
        Identity.read("net/north/agent.toml")
    monkeypatch.setenv("CREDENTIALS_DIRECTORY", str(credentials))
    assert Identity.read("net/north/agent.toml").key == credentials / "key.pem"
    (credentials / "key.pem").chmod(0o444)
    with pytest.raises(ElmeshError, match="is open to other users"):
        Identity.read("net/north/agent.toml")
    monkeypatch.delenv("CREDENTIALS_DIRECTORY")
    shutil.copy(credentials / "key.pem", key)
    key.chmod(0o440)
    with pytest.raises(ElmeshError, match="is open to other users"):
        Identity.read("net/north/agent.toml")


def run_denied(*args: object) -> None:
    """Run ``elmesh`` in a forked process that may have no such memory from now on."""
    if ctypes.CDLL(None, use_errno=True).prctl(*PR_SET_MDWE):
        sys.exit(77)
    run_command(*args)


class DeniedNetwork(ForkedNetwork):
    """Agents that may have no such memory."""

    def fork(self, name: str, *args: object) -> ForkedProcess:
        return ForkedProcess(*args, target=run_denied)


@pytest.mark.thorough
@pytest.mark.skipif(sys.platform != "linux", reason="a right of Linux")
@pytest.mark.parametrize("from_its_start", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_agents_need_no_memory_that_is_writable_and_executable(tmp_path, from_its_start):
    before = (sys.executable, "-c", DENY_WRITE_EXECUTE)
    if subprocess.run([*before, "/bin/true"], check=False).returncode == 77:
        pytest.skip("this kernel cannot refuse it")
    with DeniedNetwork(tmp_path, make_config(("left", "right"), graph="path", rounds=5)) as network:
        for name in ("left", "right"):
            network.start(name, **({"before": before} if from_its_start else {}))
        assert network.wait() == {"left": 0, "right": 0}, network.logs()
