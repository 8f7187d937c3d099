"""Code blocks of Markdown pages, and scripts made from them."""

from __future__ import annotations

import contextlib
import io
import os
import re
import runpy
import shlex
import subprocess
import sys
import warnings
from collections.abc import Container
from pathlib import Path

from typer.testing import CliRunner

from elmesh.cli import app

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


def run_python_apart(code: str, folder: Path) -> str:
    """The same in a process of its own, which alone has the solvers that the code defines."""
    script = folder / "script.py"
    script.write_text(code, encoding="utf-8")
    return run([sys.executable, str(script)], folder)
