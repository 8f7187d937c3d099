"""CPU time of `elmesh --help` and of `import elmesh`, as ratios to `python -c pass`."""

from __future__ import annotations

import resource
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

from benchmarks.measure import machine

REPEATS = 9
PROGRAMS = {
    "python -c pass": ["-c", "pass"],
    "import elmesh": ["-c", "import elmesh"],
    "elmesh --help": ["-m", "elmesh", "--help"],
    "elmesh fit --help": ["-m", "elmesh", "fit", "--help"],
}


def cpu_seconds(arguments: list[str]) -> float:
    """Return the CPU time of a Python process, user and system."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, *arguments], capture_output=True, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def run(results: Path) -> dict[str, Any]:
    for arguments in PROGRAMS.values():  # writes the byte code
        cpu_seconds(arguments)
    rounds = [{name: cpu_seconds(arguments) for name, arguments in PROGRAMS.items()} for _ in range(REPEATS)]
    seconds = {name: statistics.median(times[name] for times in rounds) for name in PROGRAMS}
    ratios = {
        name: statistics.median(times[name] / times["python -c pass"] for times in rounds)
        for name in PROGRAMS
        if name != "python -c pass"
    }
    return {
        "benchmark": "startup",
        "unit": "seconds of CPU time, medians; ratios to python -c pass within the same repeat",
        "repeats": REPEATS,
        "machine": machine(),
        "seconds": seconds,
        "ratios": ratios,
        "goals": {
            "elmesh --help within 0.5 s of CPU time": seconds["elmesh --help"] <= 0.5,
            "elmesh --help within 25 times python -c pass": ratios["elmesh --help"] <= 25,
        },
    }
