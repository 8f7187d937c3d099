"""The sites of a network in threads of one process, each with its own agent."""

import threading
import warnings

import numpy as np

from elmesh import MultiTaskELMClassifier, MultiTaskELMRegressor
from elmesh.agent import Site
from elmesh.netconfig.identity import Identity
from elmesh.netconfig.layout import NetworkLayout
from helpers.network import rows_of

PAIR = ("left", "right")


def identities(folder, config):
    NetworkLayout(folder, config).write("", days=2, keys=True, force=False)
    return [Identity.read(folder / name / "agent.toml") for name in config.agent_names]


def together(config, folder, work, log=lambda *_, **__: None):
    """Run the same work at all sites at the same time; what each returns, or raises."""
    found: dict[str, object] = {}

    def at(identity: Identity) -> None:
        try:
            with Site(identity, patience=20, log=log) as site:
                site.open({})
                found[identity.name] = work(site)
                site.finish()
        except Exception as error:
            found[identity.name] = error

    threads = [threading.Thread(target=at, args=(identity,)) for identity in identities(folder, config)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert found.keys() == set(config.agent_names)
    errors = [error for error in found.values() if isinstance(error, Exception)]
    if errors:
        raise errors[0]
    return found


def estimator(config):
    make = MultiTaskELMClassifier if config.kind == "classification" else MultiTaskELMRegressor
    return make(config.n_hidden, solver=config.make_solver(), random_state=config.seed, weight_scale=0.5)


def fitted(site):
    config, frame = site.identity.config, rows_of(site.name, kind=site.identity.config.kind)
    X, y = frame.drop(columns="y").to_numpy(), frame["y"].to_numpy()
    model = estimator(config)
    with site.hosting():
        return model.fit(X, y, tasks=[site.name] * len(X))


def all_here(config):
    """The same fit with everything in this process."""
    frames = {name: rows_of(name, kind=config.kind) for name in config.agent_names}
    X = np.concatenate([frame.drop(columns="y").to_numpy() for frame in frames.values()])
    y = np.concatenate([frame["y"].to_numpy() for frame in frames.values()])
    tasks = np.concatenate([[name] * len(frame) for name, frame in frames.items()])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return estimator(config).fit(X, y, tasks=tasks)
