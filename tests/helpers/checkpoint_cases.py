"""Runs in one process that are interrupted and resumed; also for processes that tests kill."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from elmesh import GOMTL, MTFL, MTLELM, MeshELM, RunConfig, TraceNorm
from elmesh.data.statistics import SiteRows, Task
from elmesh.errors import RankWarning
from elmesh.run import RunResult, run_local
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
