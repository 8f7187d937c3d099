"""The agents of a network in threads of one process, each with its own identity and connections."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from elmesh import MultiTaskELMClassifier, MultiTaskELMRegressor
from elmesh.agent import NetworkAgent
from elmesh.agent.backend import NetworkBackend
from elmesh.netconfig.config import NetworkConfig
from elmesh.netconfig.identity import Identity
from elmesh.netconfig.layout import NetworkLayout
from elmesh.run import Backend, LocalBackend, MPIBackend, RunConfig
from helpers.network import rows_of


def identities(folder: Path, config: NetworkConfig) -> list[Identity]:
    """Write the files of a network and return the identity of each agent."""
    NetworkLayout(folder, config).write(days=2)
    return [Identity.read(folder / name / "agent.toml") for name in config.agent_names]


def run_agents(
    config: NetworkConfig,
    folder: Path,
    work: Callable[[NetworkAgent], Any],
    log: Callable[..., None] = lambda *_, **__: None,
) -> dict[str, Any]:
    """Run the same work at all agents at the same time; return what each returns, or raise what one raises."""
    results: dict[str, Any] = {}

    def run(identity: Identity) -> None:
        try:
            with NetworkAgent(identity, patience=60, log=log) as agent:
                agent.open({}, rows=len(rows_of(identity.name)))
                results[identity.name] = work(agent)
                agent.finish()
        except Exception as error:
            results[identity.name] = error

    threads = [threading.Thread(target=run, args=(identity,), daemon=True) for identity in identities(folder, config)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(180)
    assert results.keys() == set(config.agent_names)
    for result in results.values():
        if isinstance(result, Exception):
            raise result
    return results


def estimator(config: NetworkConfig) -> MultiTaskELMClassifier | MultiTaskELMRegressor:
    make = MultiTaskELMClassifier if config.kind == "classification" else MultiTaskELMRegressor
    return make(config.n_hidden, solver=config.make_solver(), random_state=config.seed, weight_scale=0.5)


def fit_agent(agent: NetworkAgent) -> MultiTaskELMClassifier | MultiTaskELMRegressor:
    """Fit an agent's rows together with the other agents."""
    config = agent.identity.config
    frame = rows_of(agent.name, kind=config.kind)
    X, y = frame.drop(columns="y").to_numpy(), frame["y"].to_numpy()
    return estimator(config).fit(X, y, tasks=[agent.name] * len(X), run=RunConfig(backend=NetworkBackend(agent)))


def fit_all(config: NetworkConfig, run: RunConfig | None = None) -> MultiTaskELMClassifier | MultiTaskELMRegressor:
    """Fit all agents' rows in this process, or as ``run`` says."""
    frames = {name: rows_of(name, kind=config.kind) for name in config.agent_names}
    X = np.concatenate([frame.drop(columns="y").to_numpy() for frame in frames.values()])
    y = np.concatenate([frame["y"].to_numpy() for frame in frames.values()])
    tasks = np.concatenate([[name] * len(frame) for name, frame in frames.items()])
    model = estimator(config)
    if config.exchange == "basis" or model.solver.per_agent_basis:
        model.solver.set_params(tol=0.0)  # agents of a network that see only their own metrics take all rounds
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return model.fit(X, y, tasks=tasks, run=run)


class DeclaredMPI(MPIBackend):
    """MPI with scales that are declared, as in a network."""

    scales_targets = True


class DeclaredLocal(LocalBackend):
    """One process with scales that are declared, as in a network."""

    scales_targets = True


def fit_parts(agent: NetworkAgent) -> dict[str, np.ndarray]:
    """Fit an agent's rows by the estimator of its network file; return every part of its weights."""
    config = agent.identity.config
    frame = rows_of(agent.name, kind=config.kind)
    X, y = frame.drop(columns="y").to_numpy(), frame["y"].to_numpy()
    model = agent.estimator(X.shape[1])
    model.fit(X, y, tasks=[agent.name] * len(X), run=RunConfig(backend=NetworkBackend(agent)))
    return parts_of(model, agent.name)


def fit_all_parts(identity: Identity, backend: Backend) -> dict[str, dict[str, np.ndarray]]:
    """Fit the rows of all agents of a network together; return every part of each one's weights."""
    config = identity.config
    frames = {name: rows_of(name, kind=config.kind) for name in config.agent_names}
    X = np.concatenate([frame.drop(columns="y").to_numpy() for frame in frames.values()])
    y = np.concatenate([frame["y"].to_numpy() for frame in frames.values()])
    tasks = np.concatenate([[name] * len(frame) for name, frame in frames.items()])
    model = NetworkAgent(identity).estimator(X.shape[1]).fit(X, y, tasks=tasks, run=RunConfig(backend=backend))
    return {name: parts_of(model, name) for name in config.agent_names}


def parts_of(model: Any, name: str) -> dict[str, np.ndarray]:
    """Return the parts of one agent's weights, the variances, and what its predictions need."""
    head = model.model_.heads[name]
    return {
        "W": model.W_,
        "U": model.U_,
        "A": model.A_[name],
        "V": model.V_[name],
        "noise": model.noise_[name],
        "variances": model.variances_.to_numpy(),
        "head": head.A,
        "temperature": np.array(0.0 if head.temperature is None else head.temperature),
        "rounds": np.array(model.n_iter_),
        "certificate": np.array(model.certificate_.gap),
    }
