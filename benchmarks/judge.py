"""An outside judge of the consensus part: averages over graphs by elmesh and by the methods of decent-bench.

Every agent has a vector, and all are to know the mean: what a sum by gossip does. elmesh takes the averaging schedule
of its transport; the methods of decent-bench minimise the sum of squared distances, with the best of six steps in
hindsight for every number of rounds. decent-bench needs Python 3.13 or newer: the environment variable
``ELMESH_DECENT_PYTHON`` names such a Python, in whose environment it is installed.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.measure import machine
from elmesh.comm.allreduce import GOSSIP_PRECISION
from elmesh.comm.graph import Topology, make_topology
from elmesh.comm.local import LocalTransport
from elmesh.comm.requests import NeighborSum

AGENTS, SIZE, ROUNDS, STEPS = 10, 5, (5, 10, 20, 50), (0.1, 0.2, 0.3, 0.5, 0.8, 1.0)
GRAPHS = ("ring", "star", "random")


def own_errors(topology: Topology, values: np.ndarray) -> tuple[int, float]:
    """Return the rounds of the averaging schedule, and the distance from the mean after them, relative to the first."""
    transport, x = LocalTransport(topology), values[..., None]
    roots = topology.averaging_roots(GOSSIP_PRECISION)
    for root in roots:
        x = x - (topology.degree[:, None, None] * x - transport.neighbor_sum(NeighborSum(x))) / root
    mean = values.mean(axis=0)
    return len(roots), float(np.linalg.norm(x[..., 0] - mean) / np.linalg.norm(values - mean))


def run(results: Path) -> dict[str, Any]:
    python = os.environ.get("ELMESH_DECENT_PYTHON")
    if python is None:
        raise SystemExit("Set ELMESH_DECENT_PYTHON to a Python of 3.13 or newer that has decent-bench.")
    values = np.random.default_rng(0).normal(size=(AGENTS, SIZE))
    graphs = {name: make_topology(name, range(AGENTS), 1) for name in GRAPHS}
    jobs = [
        {"edges": graph.edges.tolist(), "values": values.tolist(), "rounds": ROUNDS, "steps": STEPS}
        for graph in graphs.values()
    ]
    worker = Path(__file__).with_name("judge_worker.py")
    done = subprocess.run([python, str(worker)], input=json.dumps(jobs), capture_output=True, text=True, check=True)
    print(done.stderr[-500:], file=sys.stderr)
    figures: dict[str, Any] = {}
    for (name, graph), others in zip(graphs.items(), json.loads(done.stdout), strict=True):
        n, error = own_errors(graph, values)
        figures[name] = {"elmesh": {"rounds": n, "error": error}, "others": others}
    return {
        "benchmark": "judge",
        "unit": "distance of all agents from the mean, relative to the first; ten agents",
        "machine": machine(),
        "rounds": list(ROUNDS),
        "figures": figures,
        "goals": {
            "elmesh's averages are closer than those of any method of decent-bench after 50 rounds": all(
                figure["elmesh"]["error"] < min(errors[-1] for errors in figure["others"].values() if errors)
                for figure in figures.values()
            )
        },
    }
