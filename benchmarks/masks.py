"""What masks cost: a masked sum against the same sum of integers without masks, over mutual TLS on one machine.

All agents sum the totals of p features in turns, in the same processes: without masks, with masks, and with all that a
run adds (each term is on disk and in the log before it is sent; here all agents share one disk). The time of a sum is
that of the slowest agent, the best of several turns. What it takes an agent to mask one term is measured by itself, for
up to 4,096 agents.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.measure import machine
from benchmarks.network import ROOT, config_for, environ
from elmesh.comm.masking import MaskedSums, MaskSecret, PairwiseMasks
from elmesh.comm.partners import colluders_withstood, draw_partners
from elmesh.comm.requests import IntegerSum, Topic
from elmesh.netconfig.layout import NetworkLayout

FEATURES, AGENTS, SUMS, REPEATS = 300, (5, 16), 10, 7
SUMS_CONFIG = {"exchange": "sums", "solver": "mesh-elm", "rank": "auto", "parameters": {}}
MANY = (5, 16, 64, 65, 300, 1000, 4096)


def numbers(p: int) -> int:
    """Return the integers of the totals of p features and one target."""
    return p * (p + 1) // 2 + p + 1


def sums(m: int) -> dict[str, Any]:
    """Measure the seconds of a sum over m agents."""
    config = config_for(m, 1, **SUMS_CONFIG)
    with tempfile.TemporaryDirectory() as folder:
        NetworkLayout(Path(folder) / "net", config).write(days=2)
        settings = json.dumps({"sums": SUMS, "repeats": REPEATS, "numbers": numbers(FEATURES), "out": folder})
        agents = [
            subprocess.Popen(
                [sys.executable, "-m", "benchmarks.masks_worker", f"{folder}/net/{name}/agent.toml", settings],
                env=environ(),
                cwd=ROOT,
            )
            for name in config.agent_names
        ]
        for agent in agents:
            if agent.wait(900):
                raise RuntimeError("An agent of the benchmark failed.")
        taken = [json.loads(Path(folder, f"{name}.json").read_text()) for name in config.agent_names]
    slowest = {kind: np.max([agent[kind] for agent in taken], axis=0) for kind in taken[0]}
    seconds = {kind: float(values.min()) for kind, values in slowest.items()}
    ratios = {kind: seconds[kind] / seconds["plain"] for kind in ("masked", "released")}
    return {"agents": m, "features": FEATURES, "bytes": 8 * numbers(FEATURES), "seconds": seconds, "ratio": ratios}


def one_term(m: int) -> dict[str, Any]:
    """Measure what it takes one of m agents to mask its term."""
    secret = MaskSecret.generate()
    partners = draw_partners(m, b"benchmark")[0]
    others = [MaskSecret.generate() for _ in partners]
    begin = time.perf_counter()
    keys = {j: secret.agree(other.public, other.number, b"") for j, other in zip(partners, others, strict=True)}
    agreed = time.perf_counter() - begin
    masked = MaskedSums(PairwiseMasks(0, keys), bytes(32))
    request, taken = IntegerSum(np.zeros(numbers(FEATURES), np.int64), Topic.MATRIX), []
    for _ in range(5):
        begin = time.perf_counter()
        masked.mask(request)
        taken.append(time.perf_counter() - begin)
    return {
        "agents": m,
        "partners": len(partners),
        "withstands": colluders_withstood(m),
        "agreement": agreed,
        "seconds": min(taken),
    }


def run(results: Path) -> dict[str, Any]:
    figures = {"sums": [sums(m) for m in AGENTS], "one term": [one_term(m) for m in MANY]}
    return {
        "benchmark": "masks",
        "unit": "seconds per sum of the slowest agent, best of 7 in turns, TLS on loopback; seconds to mask a term",
        "machine": machine(),
        "figures": figures,
        "goals": {
            "a masked sum takes at most 1.5 times as long as a plain one (p = 300, 16 sites)": (
                figures["sums"][-1]["ratio"]["masked"] <= 1.5
            ),
        },
    }
