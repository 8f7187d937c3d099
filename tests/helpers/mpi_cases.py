"""Runs for ranks and for one process: tasks of unequal rows and outputs, graphs, and solvers."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache, partial

import numpy as np
from numpy.typing import NDArray

from elmesh import DGSP, DMTLELM, DNSP, FODMTLELM, DifAltGDmin, FedRep, MeshELM, Privacy
from elmesh.comm.graph import Topology, make_topology
from elmesh.data.statistics import Reduced, SiteRows, Task
from elmesh.estimators.base import MultiTaskELM
from elmesh.estimators.classifier import MultiTaskELMClassifier
from elmesh.estimators.regressor import MultiTaskELMRegressor
from elmesh.run.placement import place_agents
from elmesh.solvers import Solver
from elmesh.solvers.base import GroupedFeatures
from helpers.transports import CHECKS

SEED = 3
#: Numbers of ranks by the amount that is run: a few cases for `make test`, and all of them for `make test-all`. Each
#: number resumes from the checkpoints of the one before it; one rank, the last, runs solvers and resumes only.
RANKS = {"few": (3, 1), "all": (3, 2, 5, 1)}
# Rows and outputs of each task: some are equal, so that processes stack them; some have more rows than features.
_SHAPES = ((9, 1), (20, 2), (9, 1), (40, 3), (20, 2), (9, 1), (33, 2))


def diverging(make: Callable[..., Solver], **parameters: object) -> Solver:
    """Return a solver whose steps are far too long."""
    return make(**{"rank": 3, "rho": 1.0, "zeta": 0.0, "init": "random", **parameters})


@dataclass(frozen=True)
class Case:
    """A run: its graph and its solver."""

    graph: str
    make: Callable[[], Solver]
    width: int = 16
    #: Factor of the features, with which some runs diverge.
    scale: float = 1.0
    #: What is known of features in groups, for solvers with a common or a private part.
    features: GroupedFeatures | None = None

    @property
    def tasks(self) -> list[Task] | list[SiteRows]:
        """One per agent; with features in groups, those of two outputs each."""
        return make_tasks(self.width, self.scale) if self.features is None else make_sites(self.width, self.scale)

    @property
    def data(self) -> Task | list[SiteRows]:
        """All tasks, for one process."""
        return make_stack(self.width, self.scale) if self.features is None else self.tasks

    @property
    def topology(self) -> Topology:
        """All agents."""
        return _topology(self.graph)


@cache
def _topology(graph: str) -> Topology:
    return make_topology(graph, range(len(_SHAPES)), SEED)


def make_stack(width: int = 16, scale: float = 1.0) -> Task:
    """Return all tasks, stacked."""
    return Task.stack(make_tasks(width, scale))


@cache
def make_tasks(width: int, scale: float) -> list[Task]:
    """Return decomposed tasks."""
    return [Task.from_reduced(task) for task in reduced_tasks(width, scale)]


@cache
def make_sites(width: int, scale: float) -> list[SiteRows]:
    """Return the rows of tasks of two outputs each."""
    return [SiteRows.from_reduced(task) for task in reduced_tasks(width, scale, 2)]


@cache
def reduced_tasks(width: int, scale: float, outputs: int | None = None) -> list[Reduced]:
    """Return the rows of tasks whose targets lie in three directions, plus noise.

    ``outputs`` is the number of outputs of every task; None for different numbers.
    """
    rng = np.random.default_rng(SEED)
    basis = rng.normal(size=(width, 3))
    tasks = []
    for rows, own in _SHAPES:
        d = own if outputs is None else outputs
        H = rng.normal(size=(rows, width))
        T = H @ basis @ rng.normal(size=(3, d)) + rng.normal(size=(rows, d))
        tasks.append(Reduced.from_rows(scale * H, T, centre=True))
    return tasks


def names(amount: str, few: Iterable[str], every: Iterable[str]) -> list[str]:
    """Return the names of what is run: a few, or all."""
    return list(few if amount == "few" else every)


def placements(amount: str, name: str, n_ranks: int) -> tuple[str, ...]:
    """Return the placements of the agents of a case: all three for some cases, uneven ones of others on three ranks."""
    if n_ranks == 1:
        return ("even",)
    if amount == "few":
        return FEW_CASES[name]
    if name in ALL_PLACEMENTS:
        return ("even", "uneven", "scattered")
    return ("uneven",) if n_ranks == 3 else ("even",)


def site_placements(amount: str, name: str) -> tuple[str, ...]:
    """Return the placements of sites on ranks."""
    return FEW_SITES[name] if amount == "few" else SITES[name][2]


def check_placements(amount: str, name: str) -> tuple[str, ...]:
    """Return the placements of agents in a check of transports: one of two, or both."""
    both = ("even", "scattered")
    return (both[list(CHECKS).index(name) % 2],) if amount == "few" else both


def placed(topology: Topology, placement: str, n_ranks: int) -> NDArray[np.intp]:
    """Return the rank of each agent."""
    if placement == "even":
        return place_agents(topology, n_ranks)
    agents = np.arange(topology.n_agents)
    return agents % n_ranks if placement == "scattered" else np.minimum(agents, n_ranks - 1)


_ON_ANY_GRAPH: dict[str, Callable[..., Solver]] = {
    "mesh": MeshELM,
    "mesh with 2 bits": partial(MeshELM, message_bits=2, max_iter=14),
    "mesh with automatic bits": partial(MeshELM, message_bits="auto", rank=4),
    "admm": partial(DMTLELM, max_iter=25, tol=1e-9),
    "admm with the paper's rule": partial(DMTLELM, gamma="paper", max_iter=12, tol=0.0),
    "admm with numbers": partial(
        DMTLELM, rank=3, mu1=0.5, mu2=2.0, rho=1.5, tau="4 + d", zeta=0.5, gamma=0.9, max_iter=10
    ),
    "fo": partial(FODMTLELM, max_iter=15),
    "dif": partial(DifAltGDmin, rank=3, max_iter=8, tol=0.0),
    "dif with 4 bits": partial(DifAltGDmin, rank=3, max_iter=8, tol=0.0, message_bits=4),
}
_ON_ONE_GRAPH: dict[str, Callable[..., Solver]] = {
    "admm with numbers and the paper's rule": partial(
        DMTLELM, rank=3, gamma="paper", proximal="standard", tau=3.0, init="ones", max_iter=10, certify=False
    ),
    "fo with the paper's rule": partial(FODMTLELM, rank=2, gamma="paper", init="random", max_iter=10),
}
_ON_A_STAR: dict[str, Callable[..., Solver]] = {
    "dgsp": partial(DGSP, rank=5),
    "dnsp": partial(DNSP, rank=5),
    "dgsp with every direction": partial(DGSP, rank=13),
    "fedrep": partial(FedRep, rank=3, max_iter=8),
    "dnsp with 4 bits": partial(DNSP, rank=5, message_bits=4),
    "fedrep with automatic bits": partial(FedRep, rank=3, max_iter=8, message_bits="auto"),
    "mesh from weights": partial(
        MeshELM, common=False, private=False, graph="star", start="weights", message_bits=8, max_iter=6
    ),
    "fedrep from a random start": partial(FedRep, rank=2, local_steps=3, init="random", step_scale=0.5, max_iter=5),
}
#: Runs that end for each reason, named after it.
ENDINGS: dict[str, Case] = {
    "CONVERGED": Case("random", partial(DMTLELM, graph="random", rank=3, tol=0.05)),
    "CONVERGED at the start": Case("ring", partial(DMTLELM, rank=3, tol=1e6)),
    "SETTLED": Case("star", partial(MeshELM, graph="star", tol=0.0, rank=3)),
    "MAX_ITER": Case("ring", partial(MeshELM, tol=0.0, rank=3, max_iter=4)),
    "BUDGET": Case("star", partial(MeshELM, graph="star", max_bytes=150_000)),
    "BUDGET with quantised messages": Case(
        "random", partial(MeshELM, graph="random", message_bits=2, max_bytes=30_000)
    ),
    "DIVERGED": Case("star", partial(diverging, DMTLELM, graph="star", tau=1e-6)),
    "DIVERGED from one round to the next": Case("ring", partial(diverging, FODMTLELM, tau=1e-9), scale=1e9),
    "DIVERGED by overflow": Case("ring", partial(diverging, FODMTLELM, tau=1e-160)),
    "DIVERGED by overflow, admm": Case("ring", partial(diverging, DMTLELM, rho=1e8, tau=1e-90), scale=1e-50),
    "COMPLETED": Case("star", partial(DNSP, rank=2)),
}
# Targets are centred, so that there is no constant.
_GROUPED = GroupedFeatures(np.repeat([1, 2], [6, 10]))
CASES: dict[str, Case] = {
    **{
        f"{name}, {graph}": Case(graph, partial(make, graph=graph))
        for graph in ("ring", "star", "random")
        for name, make in _ON_ANY_GRAPH.items()
    },
    **{f"{name}, random": Case("random", partial(make, graph="random")) for name, make in _ON_ONE_GRAPH.items()},
    **{name: Case("star", make) for name, make in _ON_A_STAR.items()},
    **{
        f"mesh with three parts, {graph}": Case(
            graph,
            partial(MeshELM, graph=graph, common=True, private=True, mu1=2.0, mu2=2.0, tol=1e-4),
            features=_GROUPED,
        )
        for graph in ("ring", "random")
    },
    "mesh with two parts": Case(
        "star", partial(MeshELM, graph="star", common=True, private=True, rank=0), features=_GROUPED
    ),
    "wide features": Case("ring", partial(DMTLELM, rank=6, max_iter=5), width=90),
    "wide features, mesh": Case("random", partial(MeshELM, graph="random", max_iter=12), width=90),
    **{f"ends {name}": case for name, case in ENDINGS.items()},
}
#: Runs with all three placements, if all cases are run.
ALL_PLACEMENTS = (
    "mesh with three parts, random",
    "mesh, random",
    "mesh with 2 bits, star",
    "admm with the paper's rule, random",
    "fo, ring",
    "dif, random",
    "dnsp",
    "ends CONVERGED",
)
#: The runs of `make test` and their placements: every solver once, on one of the graphs, and most reasons to end.
FEW_CASES: dict[str, tuple[str, ...]] = {
    "mesh, ring": ("uneven",),
    "mesh with automatic bits, star": ("even",),
    "mesh with three parts, ring": ("scattered",),
    "admm, random": ("uneven",),
    "fo, ring": ("even", "scattered"),
    "dif, random": ("even",),
    "dgsp": ("uneven",),
    "dnsp": ("scattered",),
    "fedrep": ("even",),
    "ends CONVERGED": ("uneven",),
    "ends CONVERGED at the start": ("uneven",),
    "ends SETTLED": ("uneven",),
    "ends BUDGET": ("uneven",),
    "ends DIVERGED": ("uneven",),
    "ends DIVERGED by overflow": ("uneven",),
}

#: Runs that one rank asks to stop, and in which round.
HALTED, HALTS_AT = ("mesh, ring", "admm, ring", "fo, star", "dif, random"), 4
FEW_HALTED = ("mesh, ring", "dif, random")
#: Runs that are interrupted in every job but the last, each with another number of ranks, and in which round.
CHAIN = (
    "mesh, ring",
    "mesh with three parts, ring",
    "mesh with 2 bits, random",
    "mesh with automatic bits, star",
    "admm, random",
    "admm with the paper's rule, ring",
    "fo, star",
    "dif, ring",
    "dgsp with every direction",
    "fedrep",
)
FEW_CHAIN = ("mesh with three parts, ring", "mesh with automatic bits, star", "admm, random", "fedrep")
ENDING_ROUNDS: dict[int, int | None] = {3: 3, 2: 5, 5: 7, 1: None}


# Rows for estimators -------------------------------------------------------------------------------------------------


@cache
def _rows() -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.str_]]:
    """Return inputs, true values and the task of each row: six tasks of nine to 24 rows, shuffled."""
    rng = np.random.default_rng(SEED)
    tasks = rng.permutation(np.repeat(["oslo", "bath", "rome", "nice", "york", "bonn"], [12, 9, 24, 15, 12, 20]))
    X = rng.normal(size=(len(tasks), 4))
    return X, np.tanh(X @ rng.normal(size=(4, 2))) + 0.1 * rng.normal(size=(len(tasks), 2)), tasks


def _regression() -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.str_]]:
    X, y, tasks = _rows()
    return X, y * [3.0, 0.2] + [10.0, 0.0], tasks


def _classification() -> tuple[NDArray[np.float64], NDArray[np.str_], NDArray[np.str_]]:
    X, y, tasks = _rows()
    labels = np.where(y[:, 0] > 0, np.where(y[:, 1] > 0, "ant", "bee"), "cat")
    # One task has two of the classes only, so that tasks differ in outputs.
    return X, np.where((tasks == "rome") & (labels == "bee"), "ant", labels), tasks


DATA = {"regressor": _regression, "classifier": _classification}


def _sites(
    n_sites: int = 7, seed: int = 1, rows: tuple[int, int] = (25, 36)
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.str_]]:
    """Return a site of one row, and others of so many, whose slopes differ along one direction."""
    rng = np.random.default_rng(seed)
    sizes = [1, *rng.integers(rows[0], rows[1] + 1, n_sites - 1).tolist()]
    sites = rng.permutation(np.repeat([f"site{k}" for k in range(n_sites)], sizes))
    X = rng.normal(size=(len(sites), 5))
    own = dict(zip(np.unique(sites).tolist(), 2.0 * rng.normal(size=n_sites), strict=True))
    slopes = np.array([own[site] for site in sites.tolist()])
    direction = rng.normal(size=5)
    y = X @ rng.normal(size=5) + slopes * (X @ direction) / np.linalg.norm(direction)
    return X, 20.0 + y + 0.3 * rng.normal(size=len(y)), sites


def _sites_with_two_targets() -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.str_]]:
    X, y, sites = _sites()
    return X, np.column_stack([y, np.tanh(X[:, 0])]), sites


def _sites_with_classes() -> tuple[NDArray[np.float64], NDArray[np.str_], NDArray[np.str_]]:
    """Return sites with some of three classes each, of which one has a single class and names differ in length."""
    X, y, sites = _sites()
    classes = np.where(y > 21.0, "high", np.where(y > 19.0, "mid", "lowest"))
    classes = np.where((sites == "site2") & (classes == "mid"), "high", classes)
    return X, np.where(sites == "site5", "lowest", classes), sites


def _small_sites() -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.str_]]:
    """Return sites so small that a shared part pays, whatever halves of their rows it is tried on."""
    return _sites(seed=3, rows=(8, 13))


#: A solver whose fits are private, for data of order one.
PRIVATE = MeshELM(privacy=Privacy(epsilon=20.0, input_range=(-2.0, 2.0), target_range=(-3.0, 3.0)))
#: Data for the default solver, what makes the estimator, and the placements of sites on ranks.
SITES: dict[str, tuple[Callable[[], tuple], Callable[[], MultiTaskELM], tuple[str, ...]]] = {
    "regression": (_small_sites, partial(MultiTaskELMRegressor, 12, random_state=1), ("scattered", "uneven")),
    "no shared part": (
        _sites_with_two_targets,
        partial(MultiTaskELMRegressor, 12, solver=MeshELM(rank=0, graph="star"), random_state=0),
        ("scattered", "uneven"),
    ),
    "classes": (_sites_with_classes, partial(MultiTaskELMClassifier, 12, random_state=0), ("scattered", "all rows")),
    "classes with a shared part": (
        _sites_with_classes,
        partial(MultiTaskELMClassifier, 12, solver=MeshELM(mu1=1.0, mu2=1.0), random_state=0),
        ("uneven", "all rows"),
    ),
    "private": (_sites, partial(MultiTaskELMRegressor, 12, solver=PRIVATE, random_state=0), ("scattered", "uneven")),
}
FEW_SITES: dict[str, tuple[str, ...]] = {
    "regression": ("scattered",),
    "no shared part": ("uneven",),
    "classes with a shared part": ("all rows",),
    "private": ("uneven",),
}


def rows_of(tasks: NDArray[np.str_], rank: int, n_ranks: int) -> NDArray[np.bool_]:
    """Return which rows a rank has if each rank has its own tasks: every n-th of them."""
    return np.isin(tasks, np.unique(tasks)[rank::n_ranks])


def _estimator(kind: str, make: Callable[..., Solver]) -> MultiTaskELM:
    estimator = MultiTaskELMRegressor if kind == "regressor" else MultiTaskELMClassifier
    return estimator(n_hidden=12, solver=make(), random_state=5)


#: From a name to the kind of estimator, and what makes one.
FITS: dict[str, tuple[str, Callable[[], MultiTaskELM]]] = {
    f"{kind}, {name}": (kind, partial(_estimator, kind, make))
    for kind in DATA
    for name, make in {
        "mesh": partial(MeshELM, common=False, private=False, tol=1e-3),
        "mesh with 2 bits": partial(MeshELM, common=False, private=False, graph="star", message_bits=2, tol=1e-3),
        # The default, with a given penalty: it has a shared part for certain.
        "mesh with three parts": partial(MeshELM, rank=3, mu1=1.0, mu2=1.0, tol=1e-3),
        "admm": partial(DMTLELM, graph="random", rank=3, max_iter=15, tol=0.0),
        "dgsp": partial(DGSP, rank=4),
    }.items()
}
#: Whether ranks of a fit have all rows, or those of their own tasks.
WAYS = ("all rows", "own rows")
FEW_FITS: dict[str, tuple[str, ...]] = {
    "regressor, mesh with three parts": WAYS,
    "regressor, dgsp": ("own rows",),
    "classifier, admm": WAYS,
}


def ways(amount: str, name: str) -> tuple[str, ...]:
    """Return the ways in which ranks have rows."""
    return FEW_FITS[name] if amount == "few" else WAYS


#: Fits whose messages are searched for private numbers.
RECORDED = ("mesh", "mesh with 2 bits", "mesh with three parts", "admm", "dgsp")
