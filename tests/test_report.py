"""The report page: what it says follows the numbers, and a browser shows all of it."""

from __future__ import annotations

import networkx as nx
import numpy as np
import pandas as pd

from elmesh.report import Comparison, Method


def comparison(seed=0, n_tasks=10, kind=nx.cycle_graph, sign=-1.0, rounds=300):
    """A comparison as a run would give it, made by hand: errors in steps of one test row, smooth histories."""
    rng = np.random.default_rng(seed)
    tasks = [f"site-{t:02d}" for t in range(1, n_tasks + 1)]
    alone = {task: 100 / 45 * rng.integers(1, 6) for task in tasks}

    def errors(shift):
        return {t: max(0.0, e + sign * 100 / 45 * rng.integers(-1, 2 + shift)) for t, e in alone.items()}

    def history(rounds, speed, end=40.0):
        k = np.arange(rounds + 1)
        gap = 3.0 * np.exp(-speed * k) * (1 + 0.3 * np.cos(k / 3))
        return pd.DataFrame(
            {
                "round": k,
                "objective": end + 60 * np.exp(-speed * k) - 30 * np.exp(-speed * k / 2),
                "consensus_gap": gap,
                "bytes": k * 288_000,
            }
        )

    nothing = pd.DataFrame({"round": [], "objective": [], "consensus_gap": [], "bytes": []})
    central = history(60, 0.2).assign(consensus_gap=0.0, bytes=0)
    return Comparison(
        story="Ten sites hold 90 digits each, of three kinds.",
        methods=[
            Method("Local ELM", "Alone. Always.", alone, 0.01, 0, 0, 0, "DIRECT", "Nothing to do.", nothing),
            Method(
                "MTL-ELM",
                "Pooled. Once.",
                errors(1),
                0.4,
                60,
                0,
                0,
                "CONVERGED",
                "Fine.",
                central,
                True,
                "green",
                ":",
            ),
            Method(
                "DMTL-ELM",
                "Talks. A lot.",
                errors(1),
                0.9,
                rounds,
                rounds + 5,
                288_000 * rounds,
                "CONVERGED",
                "Fine.",
                history(rounds, 0.05),
                False,
                "blue",
            ),
            Method(
                "FO-DMTL-ELM",
                "Talks. More.",
                errors(0),
                1.9,
                2 * rounds,
                2 * rounds + 5,
                576_000 * rounds,
                "MAX_ITER",
                "Give it more rounds.",
                history(2 * rounds, 0.02, 41.0),
                False,
                "orange",
                "--",
            ),
        ],
        alone="Local ELM",
        together="DMTL-ELM",
        pooled="MTL-ELM",
        graph=nx.relabel_nodes(kind(n_tasks), dict(enumerate(tasks))),
        shape=(300, 6),
        test_rows=45,
        settings={"Seed": "0", "Rank": "6"},
        versions={"elmesh": "0.1.0"},
    )
