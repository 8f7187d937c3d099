"""Time and memory of a fit with nothing set, against the number of sites and of rows.

Every size runs in a process of its own, on one thread, so that the peak memory is that of this size alone. Memory is
above that of a fit of a hundred rows, which is nearly all imports.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from benchmarks.measure import machine
from benchmarks.scores import short

ROWS_PER_SITE, SITES = 50, 20
SWEEPS = {
    "sites": [(10**k, ROWS_PER_SITE) for k in (1, 2, 3, 4)],
    "rows": [(SITES, 10**k // SITES) for k in (3, 4, 5, 6)],
}
# How much more than ten times as much ten times the size may take.
GOAL = 1.3

WORKER = """
import json, sys, time
import numpy as np
from threadpoolctl import threadpool_limits
from elmesh import MultiTaskELMRegressor
m, n = map(int, sys.argv[1:])
rng = np.random.default_rng(0)
X, site = rng.normal(size=(m * n, 6)), np.repeat(np.arange(m), n)
weights = rng.normal(size=6) + 0.3 * rng.normal(size=(m, 6))
y = np.sum(X * weights[site], axis=1) + np.sin(2 * X[:, 0]) + rng.normal(size=m * n)
with threadpool_limits(1):
    begin = time.process_time()
    MultiTaskELMRegressor(random_state=0).fit(X, y, tasks=site)
    seconds = time.process_time() - begin
status = dict(line.split(":", 1) for line in open("/proc/self/status").read().splitlines())
print(json.dumps({"seconds": seconds, "peak_bytes": int(status["VmHWM"].split()[0]) * 1024}))
"""


def measure(sites: int, rows: int) -> dict[str, float]:
    command = [sys.executable, "-c", WORKER, str(sites), str(rows)]
    result = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    print(f"{sites} sites of {rows} rows: {result}", file=sys.stderr)
    return {"sites": sites, "rows": sites * rows, **result}


def growth(sweep: list[dict[str, float]], name: str, base: float = 0.0) -> float:
    """Return how much faster than the size a figure grows from the last size but one to the last."""
    before, last = sweep[-2:]
    return (last[name] - base) / (before[name] - base) / (last["rows"] / before["rows"])


def run(results: Path) -> dict[str, Any]:
    base = measure(2, ROWS_PER_SITE)["peak_bytes"]
    sweeps = {name: [measure(*size) for size in sizes] for name, sizes in SWEEPS.items()}
    grown = {
        name: {"seconds": growth(sweep, "seconds"), "memory": growth(sweep, "peak_bytes", base)}
        for name, sweep in sweeps.items()
    }
    return {
        "benchmark": "fit_growth",
        "unit": "CPU seconds on one thread, peak bytes; growth: of the last step, over that of the size",
        "machine": machine(),
        "base_bytes": base,
        "sweeps": short(sweeps),
        "growth": short(grown),
        "goals": {
            f"{what} grow with {name} at most {GOAL} times as fast": value <= GOAL
            for name, both in grown.items()
            for what, value in both.items()
        },
    }
