"""Test the wheel in dist/ as users install it: with several Pythons, and once with the oldest allowed dependencies.

    python tools/pythons.py python3.11 python3.12 python3.13
    python tools/pythons.py --oldest python3.11

Every Python has an environment of its own in build/pythons, with the wheel and without the source: the tests are copied
beside it. Unit and contract tests are run, and those of the command, without the slow ones. A Python that is not on
this machine is named and left out; if none is, the command fails. With the oldest dependencies warnings are no errors:
some of these packages use what others have deprecated since.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
ENVIRONMENTS = ROOT / "build" / "pythons"
#: Extras that the tests need, and packages that are needed by tests alone.
EXTRAS = "compare,network,onnx,duckdb,mpi,paper"
TESTING = ("pytest", "pytest-xdist", "hypothesis", "onnxruntime", "opendp", "polars")
TESTS = ("tests/contracts", "tests/unit", "tests/cli/test_cli.py", "tests/cli/test_bad_input.py")


def oldest(requirements: list[str]) -> list[str]:
    """Return the lower bounds of requirements as exact versions."""
    pins = []
    for requirement in requirements:
        bound = re.fullmatch(r"([A-Za-z0-9_.\-]+)>=([0-9.]+)(;.*)?", requirement.replace(" ", ""))
        if bound:
            pins.append(f"{bound[1]}=={bound[2]}")
    return pins


def wheel() -> Path:
    """Return the one wheel in dist/."""
    (found,) = (ROOT / "dist").glob("*.whl")
    return found


def starting(name: str) -> str:
    """Return the path of a Python that starts; an empty text, and its name on screen, if there is none.

    Version managers put commands on the path that start no Python; their own folders are looked into as well.
    """
    folders = sorted(Path.home().glob(f".pyenv/versions/{name.removeprefix('python')}*/bin"), reverse=True)
    for path in filter(None, [shutil.which(name), *(shutil.which(name, path=str(folder)) for folder in folders)]):
        if subprocess.run([path, "-c", ""], capture_output=True, check=False).returncode == 0:
            return path
    print(f"{name} is not on this machine.", file=sys.stderr)
    return ""


def test_with(python: str, pins: list[str], *, old: bool) -> bool:
    """Install the wheel for a Python, and run the tests against it; return whether they pass."""
    ask = "import sys; print('%d.%d.%d' % sys.version_info[:3])"
    version = subprocess.run([python, "-c", ask], capture_output=True, text=True, check=True).stdout.strip()
    name = f"{version}-oldest" if old else version
    folder = ENVIRONMENTS / name
    shutil.rmtree(folder, ignore_errors=True)
    subprocess.run([python, "-m", "venv", folder / "venv"], check=True)
    own = folder / "venv" / "bin" / "python"
    wanted = [f"{wheel()}[{EXTRAS}]", *TESTING]
    pip = [own, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, *wanted, *pins], check=True)
    for part in ("tests", "tools", "benchmarks"):
        shutil.copytree(ROOT / part, folder / part, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", folder)
    print(f"Python {name}", flush=True)
    command = [own, "-m", "pytest", "-q", "-n", "2", "-m", "not slow and not thorough", "--hypothesis-profile", "quick"]
    command += ["-o", "filterwarnings=default"] if old else []
    return subprocess.run([*command, *TESTS], cwd=folder, check=False).returncode == 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pythons", nargs="+")
    parser.add_argument("--oldest", action="store_true")
    asked = parser.parse_args()
    pins = ["--constraint", str(ROOT / "constraints.txt")]
    if asked.oldest:
        project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
        extras = project["optional-dependencies"]
        wanted = [*project["dependencies"], *(r for extra in EXTRAS.split(",") for r in extras[extra])]
        # Old packages do not know new ones; pytest and hypothesis are the tests' own, at any version.
        wanted += [r for r in extras["dev"] if r.startswith("polars")]
        pins = oldest(wanted)
    found = [python for python in map(starting, asked.pythons) if python]
    passed = [test_with(python, pins, old=asked.oldest) for python in found]
    return 0 if passed and all(passed) else 1


if __name__ == "__main__":
    sys.exit(main())
