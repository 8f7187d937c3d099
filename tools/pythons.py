"""Test the wheel in dist/ as users install it: with several Pythons, and once with the oldest allowed dependencies.

    python tools/pythons.py python3.11 python3.12 python3.13
    python tools/pythons.py --oldest python3.11

Every Python has an environment of its own in build/pythons, with the wheel and without the source: the tests are copied
beside it. Run are the unit and contract tests without the slow ones. A Python that is not on this machine is named and
left out; if none is, the command fails.
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
#: Extras that the quick tests need.
EXTRAS = "compare,network,onnx,duckdb,mpi,paper"


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


def test_with(python: str, constraints: list[str]) -> bool:
    """Install the wheel for a Python, and run the tests against it; return whether they pass."""
    ask = "import sys; print('%d.%d.%d' % sys.version_info[:3])"
    version = subprocess.run([python, "-c", ask], capture_output=True, text=True, check=True).stdout.strip()
    name = f"{version}-oldest" if "--constraint" not in constraints else version
    folder = ENVIRONMENTS / name
    shutil.rmtree(folder, ignore_errors=True)
    subprocess.run([python, "-m", "venv", folder / "venv"], check=True)
    own = folder / "venv" / "bin" / "python"
    wanted = [f"{wheel()}[{EXTRAS}]", "pytest", "pytest-xdist", "hypothesis", "onnxruntime", "opendp", "polars"]
    pip = [own, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, *wanted, *constraints], check=True)
    for part in ("tests", "tools", "benchmarks"):
        shutil.copytree(ROOT / part, folder / part, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", folder)
    print(f"Python {name}", flush=True)
    command = [own, "-m", "pytest", "-q", "-n", "2", "-m", "not slow and not thorough", "--hypothesis-profile", "quick"]
    return subprocess.run([*command, "tests/contracts", "tests/unit"], cwd=folder, check=False).returncode == 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pythons", nargs="+")
    parser.add_argument("--oldest", action="store_true")
    asked = parser.parse_args()
    constraints = ["--constraint", str(ROOT / "constraints.txt")]
    if asked.oldest:
        project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
        extras = project["optional-dependencies"]
        wanted = [*project["dependencies"], *(r for extra in EXTRAS.split(",") for r in extras[extra])]
        constraints = oldest(wanted)
    found = [python for python in asked.pythons if shutil.which(python)]
    for python in set(asked.pythons) - set(found):
        print(f"{python} is not on this machine.", file=sys.stderr)
    passed = [test_with(python, constraints) for python in found]
    return 0 if passed and all(passed) else 1


if __name__ == "__main__":
    sys.exit(main())
