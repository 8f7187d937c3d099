"""Average vectors over graphs by the methods of decent-bench; run by a Python of 3.13 or newer that has it.

Reads a JSON list of jobs from standard input, each with ``edges``, ``values``, ``rounds`` and ``steps``, and prints for
each job and method the least errors over all steps, after each of the rounds.
"""

from __future__ import annotations

import json
import sys

import networkx as nx
import numpy as np
from decent_array import interoperability as iop
from decent_bench.agents import Agent
from decent_bench.algorithms import p2p
from decent_bench.costs import QuadraticCost
from decent_bench.networks import P2PNetwork

#: From a step to an algorithm.
METHODS = {
    "ADMM": lambda step: p2p.ADMM(penalty=step),
    "EXTRA": lambda step: p2p.EXTRA(step_size=step),
    "gradient tracking": lambda step: p2p.AugDGM(step_size=step),
    "exact diffusion": lambda step: p2p.ED(step_size=step),
    "NIDS": lambda step: p2p.NIDS(step_size=step),
}


def errors(job: dict, method: str, step: float) -> list[float]:
    """Return the distance of all agents from the mean, relative to the first, after some rounds."""
    values = np.array(job["values"])
    make = iop.from_numpy
    agents = [Agent(QuadraticCost(make(np.eye(values.shape[1])), make(-x))) for x in values]
    graph = nx.Graph()
    graph.add_nodes_from(range(len(values)))
    graph.add_edges_from(map(tuple, job["edges"]))
    network = P2PNetwork(graph, agents)
    algorithm, mean, found = METHODS[method](step), values.mean(axis=0), []

    def note(k: int) -> None:
        if k + 1 in job["rounds"]:
            x = np.array([iop.to_numpy(agent.x) for agent in agents])
            found.append(float(np.linalg.norm(x - mean) / np.linalg.norm(values - mean)))

    algorithm.run(network, max(job["rounds"]), progress_callback=note)
    return found


if __name__ == "__main__":
    iop.set_backend("numpy")
    answers = []
    for job in json.load(sys.stdin):
        best = {}
        for method in METHODS:
            runs = [run for step in job["steps"] if np.isfinite(run := errors(job, method, step)).all()]
            best[method] = np.min(runs, axis=0).tolist() if runs else None
        answers.append(best)
    json.dump(answers, sys.stdout)
