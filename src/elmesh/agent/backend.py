"""The backend of one agent of a network: its fit takes place together with the other sites'."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence, Set
from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from elmesh.agent.limits import max_norm
from elmesh.comm.communicator import SERIAL, Communicator
from elmesh.comm.integer_sums import run_sums, sum_wide
from elmesh.comm.network.transport import NetworkTransport
from elmesh.comm.requests import AllReduce, IntegerSum, NoisySum, Request, Topic
from elmesh.data.statistics import Statistics
from elmesh.errors import ElmeshError
from elmesh.math.blas import limit_blas_threads
from elmesh.netconfig.exchange import PROVIDES
from elmesh.privacy.report import ReleasedTotal
from elmesh.run.array_io import task_digest
from elmesh.run.backend import Assignment, Backend, FitContext, make_problem
from elmesh.run.result import RunResult
from elmesh.run.runner import LocalAgents, agent_context, run_solver
from elmesh.solvers.base import Solver
from elmesh.typing import FloatArray, IntArray, Label

if TYPE_CHECKING:
    from elmesh.agent.network_agent import NetworkAgent

__all__ = ["NetworkBackend"]

# Numbers of outputs above this count as this for an automatic rank.
_MOST_OUTPUTS = 64


class NetworkBackend(Backend):
    """One agent of a network, which is open."""

    description = "a network of sites"
    scales_targets: ClassVar[bool] = True
    communicator: Communicator = SERIAL

    def __init__(self, agent: NetworkAgent) -> None:
        self._agent = agent

    @property
    def masked(self) -> bool:
        """Whether agents exchange masked sums."""
        return self._agent.config.exchange == "sums"

    @property
    def most_rows(self) -> int:
        """Most rows of any agent, as the network file declares."""
        return self._agent.config.most_rows

    @property
    def released(self) -> tuple[ReleasedTotal, ...]:
        """Totals that were released with noise before the fit, for the scales of columns."""
        return self._agent.released

    @property
    def provides(self) -> Set[type[Request]]:
        """Kinds of request that the network file allows."""
        return PROVIDES[self._agent.config.exchange]

    def check(self, solver: Solver) -> None:
        """Raise unless a solver's agents exchange messages that the network file allows."""
        super().check(solver)
        if not solver.requires:
            raise ElmeshError(
                f"The agents of {solver.name} exchange nothing; fit it without a network, or use mesh-elm."
            )

    def assign(self, solver: Solver, labels: Sequence[Label], seed: int) -> Assignment:
        """Return all agents; the only task here is this agent's."""
        agent = self._agent
        if list(labels) != [agent.name]:
            raise ElmeshError(f"An agent of a network has one task, which is named after it: {agent.name}.")
        names = agent.config.agent_names
        ranks = np.arange(len(names), dtype=np.intp)
        return Assignment(list(names), [agent.name], agent.config.topology, ranks, names.index(agent.name))

    def transport(self, message_bits: int | str = 64, *, sums_needed: bool = True) -> NetworkTransport:
        """Return a transport to the agents that take part; if sums are needed, they agree on keys first."""
        agent, config = self._agent, self._agent.config
        sums = agent.masked_sums() if sums_needed else None
        return NetworkTransport(
            agent.messenger,
            config.agent_names,
            config.topology,
            message_bits,
            max_norm(config),
            sums,
            agent.security.releases,
            agent.security.keys_sent,
            agent.security.noise(),
        )

    @property
    def colluders(self) -> int:
        """How many agents may collude."""
        return self._agent.config.colluders

    def run(self, fit: FitContext, tasks: Sequence[Statistics]) -> RunResult:
        """Run this agent's part of a solver, or resume it from the agent's checkpoint."""
        agent, solver, (task,) = self._agent, fit.solver, tasks
        checkpoint = agent.checkpoint
        transport = self.transport(solver.message_bits, sums_needed=IntegerSum in self.provides)
        topology, number = agent.config.topology, transport.agent
        digest, state = task_digest(task), checkpoint.latest_state()
        if state is not None and state.data != digest:
            raise ElmeshError(
                f"The data differ from those of the checkpoint in {agent.identity.state}; finish that run with its own "
                "data, or start again with --fresh."
            )
        if state is None:
            rank = self._agree_on_rank(solver, task, transport)
        else:
            rank = state.rank
            agent.messenger.restore(state.links)
            agent.on_resume(state.round)
        checkpoint.about = {"agent": number, "rank": rank, "data": digest}
        fewest = self.fewest_terms(topology.n_agents)
        context = agent_context(topology, fit.seed, np.array([number], dtype=np.intp), fewest)
        problem = make_problem(fit.features, tasks, context, rank)
        agents = LocalAgents(
            [number],
            fit.assignment.own,
            tasks,
            [int(topology.degree[number])],
            [np.array([0], dtype=np.intp)],
            [problem if agent.start is None else replace(problem, start=agent.start[None])],
        )
        try:
            return run_solver(
                solver,
                agents,
                transport,
                zero_objective=float(task.target_energy) / 2,
                threads=limit_blas_threads(always=True),
                callback=fit.config.callback,
                alone=fit.alone,
                store=agent,
            )
        except np.linalg.LinAlgError:
            raise ElmeshError(
                "The sums over all agents are not those of any data, so an agent has sent wrong numbers; check the "
                "tables of all agents, and start again with --fresh."
            ) from None

    def _agree_on_rank(self, solver: Solver, task: Statistics, transport: NetworkTransport) -> int:
        """Return the number of columns of U: the file's, at most what all tasks can use if sums are allowed."""
        if solver.privacy is not None:
            return 0
        if AllReduce not in self.provides:
            return int(solver.rank)
        outputs, width = task.outputs, task.width
        # A histogram of numbers of outputs: its sum gives the largest.
        histogram = np.zeros(_MOST_OUTPUTS + 1)
        histogram[min(outputs, _MOST_OUTPUTS)] = 1.0
        numbers = [*histogram, float(solver.directions(task))]
        *counts, directions = self.sum(numbers, Topic.NUMBERS, transport).tolist()
        widest = max(n for n, count in enumerate(counts) if count > 0)
        with warnings.catch_warnings():
            if transport.agent:
                warnings.simplefilter("ignore")  # one agent warns for all
            return solver.rank_for(widest, width, round(directions))

    def sum_after_run(self, values: Mapping[Label, FloatArray]) -> FloatArray:
        """Return this agent's own array: its keys are erased when all have finished."""
        (value,) = values.values()
        return value

    def sure_rows(self, rows: Mapping[Label, int]) -> int:
        """Return how many rows the agents that do not collude have at least, as all have stated with their keys."""
        self._agent.masked_sums()
        return self._agent.security.sure_rows()

    def noisy_sum_over_tasks(self, values: Mapping[Label, IntArray], sigma: IntArray, rho: float) -> IntArray:
        """Return the sum of integers over all agents, each with noise of its own."""
        (value,) = values.values()
        return self.transport().noisy_sum(NoisySum(value[None], sigma, rho))

    def sum(self, numbers: Sequence[float], topic: Topic, transport: NetworkTransport | None = None) -> FloatArray:
        """Return the sums of a few numbers over all agents."""
        own = np.array([numbers], dtype=np.float64)
        return run_sums(sum_wide(own, topic), (transport or self.transport()).integer_sum)
