"""The container file: a user without rights, versions that are tested, and steps that work outside of a container."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from elmesh.version import __version__

ROOT = Path(__file__).parents[2]
FILE = ROOT / "deploy" / "Containerfile"
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


def test_every_instruction_is_known_and_the_base_has_a_fixed_version_that_elmesh_supports():
    known = {"FROM", "WORKDIR", "COPY", "RUN", "ENV", "USER", "VOLUME", "ENTRYPOINT", "CMD"}
    assert {name for stage in stages() for name, _ in stage} <= known
    bases = [values(stage, "FROM")[0].split(" ")[0] for stage in stages()]
    assert len(set(bases)) == 1
    version = re.fullmatch(r"python:(\d+)\.(\d+)-slim", bases[0])
    assert tuple(map(int, version.groups())) >= (3, 11)


def test_the_image_runs_as_a_user_without_rights_and_without_a_shell():
    last = stages()[-1]
    (user,) = values(last, "USER")
    assert all(int(number) > 0 for number in user.split(":"))
    after = [name for name, _ in last[[name for name, _ in last].index("USER") :]]
    assert "RUN" not in after
    for name in ("ENTRYPOINT", "CMD", "VOLUME"):
        (value,) = values(last, name)
        assert isinstance(json.loads(value), list)
    assert json.loads(values(last, "ENTRYPOINT")[0]) == ["elmesh"]
    assert "/usr/bin/sh" in values(last, "RUN")[0].split()


def test_only_the_package_is_copied_and_the_last_stage_has_no_source():
    first, last = stages()
    copied = [path for line in values(first, "COPY") for path in line.split()[:-1]]
    assert sorted(copied) == ["LICENSE", "README.md", "constraints.txt", "pyproject.toml", "src"]
    assert all((ROOT / path).exists() for path in copied)
    assert values(last, "COPY") == ["--from=build /opt/elmesh /opt/elmesh"]
    sent = {line[1:] for line in (ROOT / ".containerignore").read_text().splitlines() if line.startswith("!")}
    assert sent == set(copied)
    assert "--constraint constraints.txt" in values(first, "RUN")[0]


def python_for_all() -> str:
    """Return a Python that other users can run; that of the tests may be in a home folder."""
    for python in (sys.executable, "/usr/bin/python3"):
        with contextlib.suppress(OSError):
            done = subprocess.run([python, "-c", "import ensurepip, venv"], user=10001, check=False)
            if done.returncode == 0:
                return python
    pytest.skip("no Python with venv that another user can run")


@pytest.fixture
def installed() -> Iterator[Path]:
    """The result of the first stage, in a folder that other users can read."""
    python = python_for_all()
    folder = Path(tempfile.mkdtemp(prefix="elmesh-container-"))
    folder.chmod(0o755)
    try:
        source, target = folder / "source", folder / "opt"
        source.mkdir()
        (first, _) = stages()
        for path in [path for line in values(first, "COPY") for path in line.split()[:-1]]:
            copy = shutil.copytree if (ROOT / path).is_dir() else shutil.copy
            copy(ROOT / path, source / path)
        (command,) = values(first, "RUN")
        command = command.replace("/opt/elmesh", str(target)).replace("python -m venv", f"{python} -m venv", 1)
        done = subprocess.run(
            ["/bin/sh", "-ec", command], cwd=source, capture_output=True, text=True, timeout=1200, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
        shutil.rmtree(source)
        yield target
    finally:
        shutil.rmtree(folder)


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_its_steps_install_a_command_that_any_user_runs_in_a_read_only_folder(installed):
    empty = installed.parent / "empty"
    empty.mkdir(mode=0o555)
    (last,) = values(stages()[-1], "ENV")
    environment = dict(pair.split("=", 1) for pair in last.split()) | {"HOME": str(empty)}
    environment["PATH"] = str(installed / "bin")
    (user,) = values(stages()[-1], "USER")
    for words, shown in (["--version"], f"elmesh {__version__}"), (["network", "join", "--help"], "INVITATION"):
        done = subprocess.run(
            ["elmesh", *words], cwd=empty, env=environment, user=int(user.split(":")[0]), group=int(user.split(":")[1]),
            extra_groups=[], capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        assert shown in done.stdout
    assert list(empty.iterdir()) == []
    assert stat.S_IMODE(empty.stat().st_mode) == 0o555
    assert not (installed / "bin" / "pip").exists()
