"""What a solver requires and a backend does not provide is found before anything starts."""

from __future__ import annotations

from collections.abc import Sequence, Set
from typing import ClassVar

import networkx as nx
import numpy as np
import pytest

from elmesh import ElmeshError, MeshELM, MPIBackend, MultiTaskELMClassifier, MultiTaskELMRegressor, RunConfig
from elmesh.comm.communicator import SERIAL, Communicator
from elmesh.comm.requests import AllReduce, HubReduce, NeighborSum, Request
from elmesh.data.statistics import Task
from elmesh.netconfig.exchange import PROVIDES, choose_solver
from elmesh.run import Backend, RunResult, resolve_backend
from elmesh.run.backend import Assignment, FitContext
from elmesh.solvers import Solver, solver_classes

SOLVERS = {name: cls for name, cls in solver_classes().items() if cls.__module__.startswith("elmesh.")}
POOLED = [name for name, cls in SOLVERS.items() if cls().pooled]
DISTRIBUTED = [name for name in SOLVERS if name not in POOLED]
# Rows that no fit accepts: an error about the backend comes before one about them.
INVALID_ROWS = np.full((4, 2), np.nan), [1.0, 2.0, 3.0, 4.0]


class LimitedBackend(Backend):
    """Several processes whose transport answers some requests only; a fit must not come as far as to use them."""

    description: ClassVar[str] = "a limited backend"

    def __init__(self, *provides: type[Request]) -> None:
        self._provides = frozenset(provides)

    @property
    def communicator(self) -> Communicator:
        return SERIAL

    @property
    def provides(self) -> Set[type[Request]]:
        return self._provides

    def assign(self, solver: Solver, labels: Sequence[str | int], seed: int) -> Assignment:
        raise AssertionError("the fit has started")

    def run(self, fit: FitContext, tasks: Sequence[Task]) -> RunResult:
        raise AssertionError("the fit has started")


@pytest.mark.parametrize("estimator", [MultiTaskELMClassifier, MultiTaskELMRegressor])
@pytest.mark.parametrize("solver", [*POOLED, MeshELM(graph=None)])
def test_a_solver_with_all_data_in_one_place_is_refused_under_mpi(estimator, solver):
    name = solver if isinstance(solver, str) else solver.name
    model = estimator(solver=solver)
    with pytest.raises(ElmeshError, match=f"{name} needs all data in one place, which an MPI job does not offer"):
        model.fit(*INVALID_ROWS, run=RunConfig(backend=MPIBackend(SERIAL)))


@pytest.mark.parametrize("name", DISTRIBUTED)
def test_every_other_solver_runs_under_mpi_and_in_one_process(name):
    for backend in (MPIBackend(SERIAL), resolve_backend("local")):
        backend.check(SOLVERS[name]())


@pytest.mark.parametrize("provided", [NeighborSum, HubReduce, AllReduce])
@pytest.mark.parametrize("name", DISTRIBUTED)
def test_a_request_that_a_backend_does_not_answer_is_named_before_the_fit_starts(name, provided):
    solver = SOLVERS[name]()
    missing = sorted(request.__name__ for request in solver.requires if request is not provided)
    model = MultiTaskELMRegressor(solver=solver)
    if missing:
        message = f"{name} requires {' and '.join(missing)}, which a limited backend does not provide"
        with pytest.raises(ElmeshError, match=message):
            model.fit(*INVALID_ROWS, run=RunConfig(backend=LimitedBackend(provided)))
    else:
        with pytest.raises(ElmeshError, match="X is NaN or infinite"):
            model.fit(*INVALID_ROWS, run=RunConfig(backend=LimitedBackend(provided)))


@pytest.mark.parametrize("name", SOLVERS)
@pytest.mark.parametrize("exchange", PROVIDES)
def test_a_network_file_names_only_solvers_that_its_exchange_allows(name, exchange):
    cls, graph = SOLVERS[name], nx.cycle_graph(["aix", "bonn", "cork"])
    parameters = {"mu1": 1.0, "mu2": 1.0, "rho": 1.0} if cls.sends_only_basis else {}
    usable = {"graph", "rank"} <= set(cls().get_params())
    if cls.sends_only_basis if exchange == "basis" else usable and NeighborSum not in cls().requires:
        solver = choose_solver(name, parameters, exchange, rank=2, rounds=10, graph=graph)
        assert set(solver.requires) <= PROVIDES[exchange]
        assert not solver.pooled
    else:
        with pytest.raises(ElmeshError, match=f"{name} (cannot be used|sends U_t)|a network can use one of"):
            choose_solver(name, parameters, exchange, rank=2, rounds=10, graph=graph)


def test_an_unknown_backend_is_refused():
    with pytest.raises(ElmeshError, match='backend must be "local", "mpi" or a Backend; got \'cloud\''):
        MultiTaskELMRegressor().fit(*INVALID_ROWS, run=RunConfig(backend="cloud"))
