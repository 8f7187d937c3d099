"""Code blocks of Markdown pages, and scripts made from them."""

from __future__ import annotations

import contextlib
import io
import os
import re
import runpy
import shlex
import shutil
import subprocess
import sys
import warnings
from collections.abc import Container, Iterator
from pathlib import Path
from unittest import mock

import pandas as pd
from typer.testing import CliRunner

from elmesh.cli import app
from elmesh.datasets import simulate_visits
from helpers.forked import ForkedProcess

#: Seconds within which a script must end.
TIME_LIMIT = 300


def code_blocks(text: str, language: str) -> list[str]:
    """Return the blocks of a page in one language."""
    return re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)


def markdown_pages(root: Path) -> list[Path]:
    """Return the pages of the project: those beside the README and those of the docs, without what a build wrote."""
    built = ("_build", "gallery", "reference", "paper-joss")
    pages = [path for path in (root / "docs").rglob("*.md") if path.relative_to(root).parts[1] not in built]
    return [*sorted(root.glob("*.md")), *sorted(pages)]


def environment() -> dict[str, str]:
    """Return an environment in which ``elmesh``, ``python`` and ``mpiexec`` are those of the tests."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    return {
        **{name: x for name, x in os.environ.items() if not name.startswith(("OMPI_", "PMIX_", "PRTE_"))},
        "PATH": path,
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
        "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
    }


def run(command: list[str], folder: Path) -> str:
    """Run a command in a folder and return its output; fail if it fails."""
    done = subprocess.run(
        command, cwd=folder, env=environment(), capture_output=True, text=True, timeout=TIME_LIMIT, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


#: What the first commands of pages have printed, and a copy of the folder where they were run.
_STARTS: dict[tuple[str, ...], tuple[str, Path]] = {}


def run_commands(block: str, folder: Path, codes: Container[int] = (0,)) -> str:
    """Run the commands of a block, each a line of ``elmesh``, in a folder, and return their output.

    Each must end with one of the exit codes. They run in this process, because a new one would import everything again.
    """
    shown = ""
    for line in block.strip().splitlines():
        program, *words = shlex.split(line, comments=True)
        assert program == "elmesh"
        with contextlib.chdir(folder):
            done = CliRunner(env={"FORCE_COLOR": None, "NO_COLOR": "1"}).invoke(app, words)
        assert done.exit_code in codes, f"{line}\n{done.output}"
        shown += done.stdout
    return shown


def run_page(block: str, folder: Path) -> str:
    """The same in an empty folder; two commands with which several pages start are run once for all of them."""
    lines = block.strip().splitlines()
    start = tuple(" ".join(shlex.split(line, comments=True)) for line in lines[:2])
    if start not in _STARTS:
        copy = folder.with_name(f"{folder.name}-start")
        copy.mkdir()
        _STARTS[start] = run_commands("\n".join(start), copy), copy
    shown, copy = _STARTS[start]
    shutil.copytree(copy, folder, dirs_exist_ok=True)
    return shown + run_commands("\n".join(lines[2:]), folder)


@contextlib.contextmanager
def small_sample() -> Iterator[None]:
    """Leave most rows of the simulated patients out: three clinics of at most nine."""

    def simulate(*, seed: int = 0) -> tuple[pd.DataFrame, ...]:
        train, new, later = simulate_visits(seed=seed)
        few = [rows[rows["clinic"].isin(["Bath", "Ely", "Leeds"])] for rows in (train, new)]
        return *(rows.groupby("clinic").head(9).reset_index(drop=True) for rows in few), later[:9]

    with (
        mock.patch("elmesh.cli.sample.simulate_visits", simulate),
        mock.patch("elmesh.datasets.simulate_visits", simulate),
    ):
        yield


def run_python(code: str, folder: Path) -> str:
    """Run Python code in a folder, in this process, and return what it prints; warnings are no errors."""
    script = folder / "script.py"
    script.write_text(code, encoding="utf-8")
    with (
        contextlib.chdir(folder),
        contextlib.redirect_stdout(io.StringIO()) as printed,
        warnings.catch_warnings(action="ignore"),
    ):
        runpy.run_path(str(script), run_name="__main__")
    return printed.getvalue()


def run_file(script: str, out: str, errors: str, folder: str) -> None:
    """Run a script in a new process, whose warnings are no errors."""
    os.chdir(folder)
    for path, descriptor in ((out, 1), (errors, 2)):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), descriptor)
    runpy.run_path(script, run_name="__main__")
    sys.stdout.flush()


def run_apart(codes: dict[str, str], folder: Path) -> dict[str, str]:
    """Run Python code in processes of their own, by name, at the same time; return what each has printed.

    The processes are forked, because a new one would import everything again. What they define is not in this one.
    """
    processes = {}
    try:
        for name, code in codes.items():
            files = [folder / f"{name}.{kind}" for kind in ("py", "out", "err")]
            files[0].write_text(code, encoding="utf-8")
            processes[name] = ForkedProcess(*map(str, files), str(folder), target=run_file)
        for name, process in processes.items():
            assert process.wait(TIME_LIMIT) == 0, (folder / f"{name}.err").read_text()
    finally:
        for process in processes.values():
            process.kill()
            process.wait()
    return {name: (folder / f"{name}.out").read_text(encoding="utf-8") for name in codes}
