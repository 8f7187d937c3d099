"""The container file: a user without rights and tested versions; the image it builds, and agents that run in it."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from elmesh.netconfig.config import NetworkConfig
from elmesh.version import __version__
from helpers.containers import BASE, FILE, IMAGE, ROOT, Podman, missing
from helpers.forked import undisturbed
from helpers.network import SUMS_REGRESSION, LocalNetwork, equal_weights, make_config

Instruction = tuple[str, str]


def stages() -> list[list[Instruction]]:
    """Return the instructions of each stage, with lines that are continued joined."""
    text = re.sub(r"\\\n\s*", " ", re.sub(r"^#.*\n", "", FILE.read_text(encoding="utf-8"), flags=re.MULTILINE))
    found: list[list[Instruction]] = []
    for line in filter(None, map(str.strip, text.splitlines())):
        name, _, rest = line.partition(" ")
        if name == "FROM":
            found.append([])
        found[-1].append((name, rest.strip()))
    return found


def values(stage: list[Instruction], name: str) -> list[str]:
    return [rest for found, rest in stage if found == name]


def test_every_instruction_is_known_and_the_image_starts_from_nothing():
    known = {"FROM", "WORKDIR", "COPY", "RUN", "ENV", "USER", "VOLUME", "ENTRYPOINT", "CMD"}
    assert {name for stage in stages() for name, _ in stage} <= known
    assert [values(stage, "FROM")[0] for stage in stages()] == [f"{BASE} AS build", "scratch"]


def test_the_image_runs_as_a_user_without_rights():
    last = stages()[-1]
    (user,) = values(last, "USER")
    assert all(int(number) > 0 for number in user.split(":"))
    assert "RUN" not in [name for name, _ in last]
    for name in ("ENTRYPOINT", "CMD", "VOLUME"):
        (value,) = values(last, name)
        assert isinstance(json.loads(value), list)
    assert json.loads(values(last, "ENTRYPOINT")[0]) == ["elmesh"]


def test_only_the_package_is_copied_into_the_build_with_tested_versions():
    first, last = stages()
    copied = [path for line in values(first, "COPY") for path in line.split()[:-1]]
    assert sorted(copied) == ["LICENSE", "README.md", "constraints.txt", "pyproject.toml", "src"]
    assert all((ROOT / path).exists() for path in copied)
    assert values(last, "COPY") == ["--from=build /image /"]
    sent = {line[1:] for line in (ROOT / ".containerignore").read_text().splitlines() if line.startswith("!")}
    assert sent == set(copied)
    assert any("--constraint constraints.txt" in command for command in values(first, "RUN"))


# The image itself ----------------------------------------------------------------------------------------------------

# Takes some minutes and some gigabytes.
needs_podman = pytest.mark.skipif(bool(missing()), reason=missing())
# Prints what an attacker would look for: programs, files that give rights, and whether the system can be written.
INSPECT = """
import json, os
found = {"programs": sorted(os.listdir("/usr/bin")), "setuid": [], "user": os.getuid(), "writable": []}
for folder, _, files in os.walk("/"):
    if folder.startswith(("/proc", "/sys", "/dev")):
        continue
    for name in files:
        path = os.path.join(folder, name)
        if not os.path.islink(path) and os.stat(path).st_mode & 0o6000:
            found["setuid"].append(path)
for folder in ("agent", "etc", "opt/elmesh/bin", "tmp", "usr/bin"):
    try:
        open(f"/{folder}/trial", "w").close()
        found["writable"].append(folder)
    except OSError:
        pass
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def podman(tmp_path_factory) -> Iterator[Podman]:
    """The image, built."""
    podman = Podman(tmp_path_factory.mktemp("podman"))
    podman.build()
    yield podman
    podman.close()


@pytest.mark.slow
@needs_podman
def test_the_image_has_python_and_no_shell_and_nothing_in_it_can_be_written(podman):
    assert podman.worked(*podman.run_words(), "--version").strip() == f"elmesh {__version__}"
    assert "INVITATION" in podman.worked(*podman.run_words(), "network", "join", "--help")
    found = json.loads(podman.worked(*podman.run_words("--entrypoint", "python3"), "-c", INSPECT))
    assert found == {"programs": ["python3", "python3.11"], "setuid": [], "user": 10001, "writable": ["tmp"]}
    shell = podman(*podman.run_words("--entrypoint", "/bin/sh"), "-c", "true")
    assert shell.returncode != 0
    (image,) = json.loads(podman.worked("image", "inspect", IMAGE))
    assert image["User"] == "10001:10001"
    assert image["Size"] < 800e6


@pytest.mark.slow
@needs_podman
def test_agents_in_containers_learn_together_also_after_one_is_killed(podman, tmp_path):
    """The same bits as if none is killed; outside, where other libraries round differently, nearly the same numbers."""
    config = make_config(("east", "north", "south"), **SUMS_REGRESSION)
    killed = learn_in_containers(podman, tmp_path / "killed", config, kill=True)
    assert equal_weights(killed, learn_in_containers(podman, tmp_path / "whole", config, kill=False))
    outside = undisturbed(tmp_path / "outside", config)
    for name, weights in killed.items():
        for key, values in weights.items():
            np.testing.assert_allclose(values, outside[name][key], rtol=1e-9, atol=1e-9, err_msg=f"{name} {key}")


def learn_in_containers(podman: Podman, folder: Path, config: NetworkConfig, *, kill: bool) -> dict[str, Any]:
    """Run an agent per container, of which one may be killed and started again; return the weights of all."""
    folder.mkdir()
    network, net = LocalNetwork(folder, config), folder / "net"
    models = net / "models"
    models.mkdir()
    for path in (folder, *folder.rglob("*")):
        os.chown(path, 10001, 10001)

    def start(name: str, attempt: int = 1) -> subprocess.Popen:
        mounts = (f"{net / name}:/agent", f"{net / name}.csv:/data/rows.csv:ro", f"{models}:/models")
        volumes = [word for mount in mounts for word in ("--volume", mount)]
        agent = ("agent", "/agent/agent.toml", "--data", "/data/rows.csv", "--target", "y", "--out", f"/models/{name}")
        container = f"{folder.name}-{name}-{attempt}"
        with (net / f"{name}.err").open("a") as errors:
            return subprocess.Popen(
                [*podman.command, *podman.run_words("--name", container, *volumes), *agent, "--log-json"],
                stdout=subprocess.DEVNULL, stderr=errors,
            )  # fmt: skip

    started = {name: start(name) for name in ("east", "north")}
    try:
        if kill:
            network.until(lambda: network.agents["north"].status)
            podman.worked("kill", "--signal", "KILL", f"{folder.name}-north-1")
            assert started["north"].wait(60) == 137
            started["north"] = start("north", 2)
        started["south"] = start("south")
        assert [process.wait(180) for process in started.values()] == [0, 0, 0], network.logs()
    finally:
        for process in started.values():
            process.kill()
            process.wait()
    for name, agent in network.agents.items():
        (models / name).rename(agent.out)
    return network.weights()
