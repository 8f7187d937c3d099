"""Runs in one process that are interrupted and resumed; also for processes that tests kill."""

from __future__ import annotations

import json
import os
import signal
import warnings
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from elmesh import GOMTL, MTFL, MTLELM, CheckpointConfig, MeshELM, RunConfig, TraceNorm
from elmesh.data.statistics import SiteRows, Task
from elmesh.errors import RankWarning
from elmesh.run import RunResult, checkpoints, run_local
from elmesh.solvers import Solver
from helpers.mpi_cases import CASES, SEED, make_stack

POOLED: dict[str, Callable[[], Solver]] = {
    "mesh-elm without a graph": partial(MeshELM, graph=None, max_iter=40),
    "mtl-elm": partial(MTLELM, rank=2, max_iter=8),
    "mtfl": partial(MTFL, max_iter=8),
    "go-mtl": partial(GOMTL, rank=3, mu2=0.1, max_iter=8),
    "trace-norm": partial(TraceNorm, mu1=0.1, max_iter=12),
}
# On one graph each; without those that end before the first checkpoint.
_SHORT = ("ends CONVERGED at the start", "ends DIVERGED from one round to the next")
_DISTRIBUTED = [name for name in CASES if name.endswith("random") or ("," not in name and name not in _SHORT)]
RUNS = [name for name in (*_DISTRIBUTED, *POOLED) if "overflow" not in name and name != "mesh with two parts"]
#: Those of `make test`: every method once, with quantised messages if it can send them.
FEW_RUNS = (
    "mesh with automatic bits, random",
    "mesh with three parts, random",
    "admm, random",
    "fo, random",
    "dif with 4 bits, random",
    "dgsp with every direction",
    "dnsp with 4 bits",
    "fedrep with automatic bits",
    "ends CONVERGED",
    *(name for name in POOLED if name != "mesh-elm without a graph"),
)


def data_of(name: str) -> Task | list[SiteRows]:
    """Return the tasks of a run."""
    return make_stack() if name in POOLED else CASES[name].data


def run(
    name: str,
    config: RunConfig | None = None,
    *,
    seed: int = SEED,
    data: Task | list[SiteRows] | None = None,
    fields: Mapping[str, Any] | None = None,
) -> RunResult:
    """Run a case, or a solver of pooled tasks, in this process."""
    solver, topology = (POOLED[name](), None) if name in POOLED else (CASES[name].make(), CASES[name].topology)
    features = None if name in POOLED else CASES[name].features
    known = {"solver": repr(solver), "seed": seed, **(fields or {})}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RankWarning)
        return run_local(
            solver, data or data_of(name), topology, seed, config or RunConfig(), fields=known, features=features
        )


def run_until_killed(name: str, folder: str, at: int) -> None:
    """Run with checkpoints, and be killed when that of a round is complete but not published."""
    write = checkpoints.atomic_write

    def killed(path: Path, data: bytes, **options: Any) -> None:
        if path.name == "checkpoint.json" and json.loads(data)["round"] == at:
            os.kill(os.getpid(), signal.SIGKILL)
        write(path, data, **options)

    checkpoints.atomic_write = killed
    run(name, RunConfig(checkpoint=CheckpointConfig(folder, every=3)))
