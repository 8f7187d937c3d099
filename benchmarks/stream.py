"""A table larger than memory allows: `elmesh fit` of ten million rows, against the matrix products that it needs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from threadpoolctl import threadpool_limits

from benchmarks.measure import machine, seconds

ROWS, COLUMNS, SITES, HIDDEN = 10_000_000, 20, 100, 300
_GROUP = 250_000  # rows of a row group
_BLOCK = 1_250  # rows of a site in half of it


def run(results: Path) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "rows.parquet"
        _write(path)
        before = _products()
        fit = _fit(path, Path(folder) / "model")
    products = (before + _products()) / 2
    ratio, peak = fit["fit_seconds"] / products, fit["gigabytes"]
    return {
        "benchmark": "stream",
        "size": {"rows": ROWS, "columns": COLUMNS, "sites": SITES, "hidden": HIDDEN},
        "unit": "seconds on all cores, the products timed before and after the fit; gigabytes (1e9) at most",
        "machine": machine(),
        "figures": {**fit, "products_seconds": products, "fit_over_products": ratio},
        "goals": {
            "at most 1.5 gigabytes": peak <= 1.5,
            "at most twice the time of the matrix products": ratio <= 2.0,
        },
    }


def _write(path: Path) -> None:
    """Write rows of sites whose slopes differ."""
    rng = np.random.default_rng(0)
    common, own = rng.normal(size=COLUMNS), 0.3 * rng.normal(size=(SITES, COLUMNS))
    names = [f"x{k}" for k in range(COLUMNS)]
    schema = pa.schema([*((name, pa.float64()) for name in names), ("site", pa.string()), ("y", pa.float64())])
    with pq.ParquetWriter(path, schema) as writer:
        for _ in range(ROWS // _GROUP):
            X, site = rng.normal(size=(_GROUP, COLUMNS)), rng.integers(SITES, size=_GROUP)
            y = np.sum(X * (common + own[site]), axis=1) / np.sqrt(COLUMNS) + np.sin(2 * X[:, 0])
            columns = [*X.T, np.char.add("s", site.astype(str)), y + rng.normal(size=_GROUP)]
            writer.write_table(pa.Table.from_arrays([pa.array(values) for values in columns], schema=schema))


# Prints the seconds of the fit itself, without gains and page, which do not grow with the rows.
_WORKER = """
import sys, time
from elmesh.cli import main
import elmesh.cli.fit as command
fit = command.FitOptions.make_estimator
def timed(options, kind):
    model = fit(options, kind)
    whole = model.fit
    def measured(*args, **kwargs):
        begin = time.perf_counter()
        whole(*args, **kwargs)
        print("seconds", time.perf_counter() - begin, file=sys.stderr)
        return model
    model.fit = measured
    return model
command.FitOptions.make_estimator = timed
main()
"""


def _fit(path: Path, out: Path) -> dict[str, float]:
    """Fit by the command in a process of its own, and return its times and its largest memory."""
    options = ["--task", "site", "--target", "y", "--hidden", str(HIDDEN), "--out", str(out), "--json"]
    command = [sys.executable, "-c", _WORKER, "fit", str(path), *options]
    usage: dict[str, float] = {}

    def work() -> None:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        stdout, stderr = process.communicate()
        if process.returncode:
            raise RuntimeError(stderr)
        json.loads(stdout)
        words = next(line for line in stderr.splitlines() if line.startswith("seconds")).split()
        usage["fit_seconds"] = float(words[1])

    whole = seconds(work)
    # The largest of all children so far: no other one is as large.
    import resource  # noqa: PLC0415 (not on every system)

    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024 / 1e9
    return usage | {"command_seconds": whole, "gigabytes": peak}


def _products() -> float:
    """Time the products alone: inputs times hidden weights, and features times features, on all cores."""
    rng, width = np.random.default_rng(0), 1 + COLUMNS + HIDDEN + 1
    W = rng.normal(size=(COLUMNS + 1, HIDDEN))
    cores = len(os.sched_getaffinity(0))

    def work(n_blocks: int) -> None:
        rows, Phi = rng.normal(size=(_BLOCK, COLUMNS + 1)), rng.normal(size=(_BLOCK, width))
        for _ in range(n_blocks):
            rows @ W
            Phi.T @ Phi

    share = -(-ROWS // _BLOCK // cores)
    with threadpool_limits(1), ThreadPoolExecutor(cores) as pool:
        return seconds(lambda: list(pool.map(work, [share] * cores)))
