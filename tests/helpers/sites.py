"""The sites of a network in threads of one process, each with its own agent."""

import threading
import warnings

import numpy as np

from elmesh import MultiTaskELMClassifier, MultiTaskELMRegressor
from elmesh.agent import Site
from elmesh.netconfig.identity import Identity
from elmesh.netconfig.layout import Network
from helpers.network import rows_of

PAIR = ("left", "right")


def identities(folder, plan):
    Network(folder, plan).write("", days=2, keys=True, force=False)
    return [Identity.read(folder / name / "agent.toml") for name in plan.names]


def together(plan, folder, work, log=lambda *_, **__: None):
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

    threads = [threading.Thread(target=at, args=(identity,)) for identity in identities(folder, plan)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert found.keys() == set(plan.names)
    errors = [error for error in found.values() if isinstance(error, Exception)]
    if errors:
        raise errors[0]
    return found


def estimator(plan):
    make = MultiTaskELMClassifier if plan.kind == "classification" else MultiTaskELMRegressor
    return make(plan.n_hidden, solver=plan.make_solver(), random_state=plan.seed, weight_scale=0.5)


def fitted(site):
    plan, frame = site.identity.plan, rows_of(site.name, kind=site.identity.plan.kind)
    X, y = frame.drop(columns="y").to_numpy(), frame["y"].to_numpy()
    model = estimator(plan)
    with site.hosting():
        return model.fit(X, y, tasks=[site.name] * len(X))


def all_here(plan):
    """The same fit with everything in this process."""
    frames = {name: rows_of(name, kind=plan.kind) for name in plan.names}
    X = np.concatenate([frame.drop(columns="y").to_numpy() for frame in frames.values()])
    y = np.concatenate([frame["y"].to_numpy() for frame in frames.values()])
    tasks = np.concatenate([[name] * len(frame) for name, frame in frames.items()])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return estimator(plan).fit(X, y, tasks=tasks)
