"""The transport of an MPI job.

A neighbour sum is one persistent collective over the graph of processes: an agent's value goes to a process once,
however many neighbours it has there. Agents whose neighbours are all in the same process get their sums while the
collective is under way. Every sum is taken agent by agent in a fixed order, so that no result depends on how agents are
spread over processes.

A round's metrics are gathered by nonblocking collectives beside the run: a few numbers per agent and, where each agent
has its own U, the mean of those, summed as integers, whose sum does not depend on the order.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Generator, Iterable, Sequence
from dataclasses import replace
from itertools import repeat
from typing import Any

import numpy as np
from numpy.typing import NDArray

from elmesh.comm.allreduce import ROOT, Relay
from elmesh.comm.graph import Topology
from elmesh.comm.integer_sums import run_sums, sum_wide
from elmesh.comm.local import check_hub, trimmed_widths
from elmesh.comm.mpi.communicator import MPICommunicator, mpi_module
from elmesh.comm.requests import (
    AllReduce,
    AllReduceResult,
    HubReduce,
    IntegerSum,
    NeighborMessages,
    NeighborSum,
    Request,
)
from elmesh.comm.traffic import TrafficLog
from elmesh.comm.transport import CommState, LocalMetrics, Noise, PendingMetrics, RoundMetrics, Transport
from elmesh.typing import FloatArray, IndexArray, IntArray

__all__ = ["MPITransport"]

# Numbers per agent that are gathered each round (five and the distance from the mean), and per process: bytes, halt.
_PER_AGENT, _PER_PROCESS = 6, 2
# Bits of the integers that means are summed in, and bits by which values may outgrow the scale before it is renewed.
_INTEGER_BITS, _HEADROOM = 62, 8


class MPITransport(Transport):
    """The agents of this process, and how they reach the others; ``ranks`` has the process of each agent.

    If sums are ``masked``, every process masks the sum of its agents' terms. Keys are fresh whenever a transport is
    made, so that no mask is used twice; MPI does not authenticate them.
    """

    def __init__(
        self,
        world: MPICommunicator,
        topology: Topology,
        ranks: IndexArray,
        message_bits: int | str = 64,
        masked: bool = False,
        noise: Noise | None = None,
    ) -> None:
        self._relay = _MPIRelay(world.comm, ranks, int(topology.tree.order[0]))
        agents = np.flatnonzero(ranks == world.rank).tolist()
        super().__init__(topology, agents, message_bits, self._relay, masked, noise)
        self._masks = world.mask() if masked else None
        if masked:
            self._count_keys()
        self._world, self._ranks = world, ranks
        self._routes = _Routes(world, topology, ranks)
        self._exchanges: dict[tuple[int, ...], _NeighborExchange] = {}
        self._gatherer = _MetricsGatherer(world, topology, ranks)

    def neighbor_sum(self, request: NeighborSum) -> FloatArray | NeighborMessages:
        """Return the neighbours' sum, or each neighbour's value."""
        value = np.ascontiguousarray(request.value)
        self.n_exchanges += 1
        if self._bits != 64:
            messages, sent = self._encode(request.topic, value)
            receive, routes = self._tree.channels.receive, self._routes
            others = [receive(request.topic, m, s, value.shape[1:]) for s, m in routes.swap(messages)]
            pool = np.stack([*sent, *others])
            decoded = NeighborMessages.decoded(value, sent, pool[routes.source], routes.receiver)
            return decoded if request.each else decoded.sum(decoded.values, value)
        self._log.record_senders(self.agents, value.nbytes // len(value))
        shape = value.shape[1:]
        if shape not in self._exchanges:
            self._exchanges[shape] = _NeighborExchange(self._routes, shape)
        exchange = self._exchanges[shape]
        return exchange.each(value) if request.each else exchange.sum(value)

    def reduce_at_hub(self, request: HubReduce) -> FloatArray:
        """Return the hub's result; agent 0 sends itself no message."""
        check_hub(self._topology)
        m, hub = self._topology.n_agents, int(self._ranks[0])
        rows, send = request.value.shape[1], self._tree.channels.send
        matrices: dict[int, FloatArray] = {}
        messages: dict[int, bytes] = {}
        for agent, value, width in zip(self.agents.tolist(), request.value, trimmed_widths(request.value), strict=True):
            matrices[agent] = np.ascontiguousarray(value[:, :width])
            messages[agent] = matrices[agent].tobytes()
            if agent and self._bits != 64:
                messages[agent], matrices[agent] = send(request.topic, matrices[agent], agent)
        widths = np.array([matrix.shape[1] for matrix in matrices.values()], np.int64)
        gathered = self._world.gather_bytes(widths.tobytes() + _framed(messages.values()), hub)
        result, back = np.empty(0), b""
        if gathered:
            for rank, data in enumerate(gathered):
                matrices = matrices if rank == hub else matrices | self._received(request, rank, data)
            stack = np.zeros((m, rows, max(matrix.shape[1] for matrix in matrices.values())))
            for agent, matrix in matrices.items():
                stack[agent, :, : matrix.shape[1]] = matrix
            result = np.ascontiguousarray(request.function(stack))
            back = result.tobytes()
            if m > 1 and self._bits != 64:
                back, decoded = send(request.topic, result.reshape(len(result), -1), ROOT)
                result = decoded.reshape(result.shape)
        shape = tuple(int(n) for n in self._world.broadcast(np.array(result.shape, dtype=np.float64), hub))
        back = self._world.broadcast_bytes(back, hub)
        if self._world.rank != hub:
            result = self._decoded(request, back, ROOT, (shape[0], math.prod(shape[1:]))).reshape(shape)
        if m > 1:
            self.n_exchanges += 2  # to the hub and back
        for agent, message in messages.items():
            if agent:
                self._log.record(agent, 0, len(message))
            else:
                self._log.record_senders(np.zeros(1, np.intp), len(back))
        return result

    def _received(self, request: HubReduce, rank: int, data: bytes) -> dict[int, FloatArray]:
        """Return the matrices that a process has sent to the hub, by agent."""
        agents, rows = np.flatnonzero(self._ranks == rank).tolist(), request.value.shape[1]
        widths = np.frombuffer(data[: 8 * len(agents)], np.int64).tolist()
        parts = zip(agents, widths, _unframed(data[8 * len(agents) :]), strict=True)
        return {agent: self._decoded(request, part, agent, (rows, width)) for agent, width, part in parts}

    def _decoded(self, request: HubReduce, message: bytes, sender: int, shape: tuple[int, int]) -> FloatArray:
        if self._bits == 64:
            return np.frombuffer(message).reshape(shape)
        return self._tree.channels.receive(request.topic, message, sender, shape)

    def allreduce(self, request: AllReduce) -> AllReduceResult:
        """Return the sum over all agents."""
        result = super().allreduce(request)
        self._relay.wait()
        return result

    def integer_sum(self, request: IntegerSum) -> IntArray:
        """Return the sum of integers over all agents, by one collective: integers may be added in any order."""
        self._count_integer_sum(request)
        return self._world.allreduce_sum(request.value) if self._masks is None else self._masks.sum(request)

    def max_request_bytes(self, request: Request) -> int:
        """Return an upper bound on what a request sends, over all agents."""
        most = super().max_request_bytes(request)
        # Ranks have values of different widths for the hub.
        return int(self._world.allreduce_max(np.array([float(most)]))[0]) if isinstance(request, HubReduce) else most

    def start_metrics(self, local: LocalMetrics, halt: bool) -> PendingMetrics:
        """Start to gather a round's metrics; where sums are masked, the numbers of all agents are summed first."""
        self._world.set_round(local.round)
        unknown = local.unknown
        if unknown.any() and self._masks is not None:
            sums = run_sums(sum_wide(local.values[:, unknown]), self._masks.sum)
            # What is gathered then is the same at every agent, and its sum is theirs.
            local = replace(local, values=np.zeros_like(local.values))
            local.values[np.ix_(self.agents == 0, unknown)] = sums
        pending = self._gatherer.gather(local, self._log.total, halt)
        next(pending)
        return pending

    def traffic(self) -> TrafficLog:
        """Return the traffic along every edge so far."""
        return TrafficLog(self._topology, self._world.allreduce_sum(self._log.counts()))

    def state(self) -> CommState:
        """Return what to resume from."""
        state = super().state()
        if self._gatherer.exponent is not None:
            state.common["scale"] = np.array(float(self._gatherer.exponent))
        return state

    def restore(self, state: CommState) -> None:
        """Resume from a state."""
        super().restore(state)
        self._gatherer.exponent = int(state.common["scale"]) if "scale" in state.common else None


def _framed(messages: Iterable[bytes]) -> bytes:
    """Return messages one after the other, each with its length."""
    return b"".join(len(message).to_bytes(4, "little") + message for message in messages)


def _unframed(data: bytes) -> list[bytes]:
    messages, start = [], 0
    while start < len(data):
        end = start + 4 + int.from_bytes(data[start : start + 4], "little")
        messages.append(data[start + 4 : end])
        start = end
    return messages


class _MPIRelay(Relay):
    """Partial sums by nonblocking sends to the parent's rank, tagged by agent; the root's total by a broadcast."""

    def __init__(self, comm: Any, ranks: IndexArray, root: int) -> None:
        self._comm, self._ranks, self._root = comm, ranks.tolist(), int(ranks[root])
        self._sending: list[tuple[Any, bytes]] = []

    def send_partial(self, agent: int, parent: int, shape: tuple[int, int], data: bytes) -> None:
        # The buffer must live until the message is sent.
        self._sending.append((self._comm.Isend(data, self._ranks[parent], agent), data))

    def wait(self) -> None:
        """Complete all sends."""
        for message, _ in self._sending:
            message.Wait()
        self._sending.clear()

    def receive_partial(self, child: int, shape: tuple[int, int], size: int | None) -> bytes:
        rank = self._ranks[child]
        if size is None:
            status = mpi_module().Status()
            self._comm.Probe(rank, child, status)
            size = status.Get_count()
        buffer = bytearray(size)
        self._comm.Recv(buffer, rank, child)
        return bytes(buffer)

    def share_total(self, data: bytes | None, shape: tuple[int, int], size: int | None) -> bytes:
        if size is None:
            length = np.array([0 if data is None else len(data)])
            self._comm.Bcast(length, self._root)
            size = int(length[0])
        buffer = bytearray(size) if data is None else bytearray(data)
        self._comm.Bcast(buffer, self._root)
        return bytes(buffer)


class _Routes:
    """Which values go to which process, and where each agent finds its neighbours'."""

    def __init__(self, world: MPICommunicator, topology: Topology, ranks: IndexArray) -> None:
        own, rank_of = np.flatnonzero(ranks == world.rank).tolist(), ranks.tolist()
        receiver, sender = (end.tolist() for end in topology.ends)
        edges = [(r, s) for r, s in zip(receiver, sender, strict=True) if rank_of[r] == world.rank]
        # Remote agents with neighbours here, and agents here with neighbours there: sorted by process and then by
        # agent, so that both sides agree.
        remote = [(r, s) for r, s in edges if rank_of[s] != world.rank]
        arriving = sorted({(rank_of[s], s) for _, s in remote})
        leaving = sorted({(rank_of[s], r) for r, s in remote})
        incoming, outgoing = (Counter(rank for rank, _ in values) for values in (arriving, leaving))
        self.peers = sorted(incoming)
        #: Numbers of values from and to each peer.
        self.incoming, self.outgoing = [incoming[p] for p in self.peers], [outgoing[p] for p in self.peers]
        self.n_own = len(own)
        # The row of each agent's value: own agents first, then arrivals.
        row = {agent: k for k, agent in enumerate([*own, *(s for _, s in arriving)])}
        self._arriving = [s for _, s in arriving]
        self.leaving: IndexArray = np.array([row[r] for _, r in leaving], dtype=np.intp)
        #: For each directed edge to an agent here, the rows of its receiver and of its sender.
        self.receiver: IndexArray = np.array([row[r] for r, _ in edges], dtype=np.intp)
        self.source: IndexArray = np.array([row[s] for _, s in edges], dtype=np.intp)
        self.comm = world.comm.Create_dist_graph_adjacent(self.peers, self.peers, reorder=False)
        # The k-th neighbour of all agents that have one, for k = 0, 1, ...: first agents with no remote neighbours.
        waiting = np.zeros(self.n_own, dtype=bool)
        waiting[self.receiver[self.source >= self.n_own]] = True
        self.local = self._by_neighbor(~waiting[self.receiver])
        self.remote = self._by_neighbor(waiting[self.receiver])

    def swap(self, messages: Sequence[bytes]) -> list[tuple[int, bytes]]:
        """Send the messages of the agents here; return the senders and messages that arrive, in their order."""
        sending, arrived, start = [], list[bytes](), 0
        for peer, n in zip(self.peers, self.outgoing, strict=True):
            data = _framed(messages[k] for k in self.leaving[start : start + n].tolist())
            sending.append((self.comm.Isend(data, peer), data))  # the buffer must live until it is sent
            start += n
        for peer in self.peers:
            status = mpi_module().Status()
            self.comm.Probe(peer, 0, status)
            buffer = bytearray(status.Get_count())
            self.comm.Recv(buffer, peer, 0)
            arrived += _unframed(bytes(buffer))
        for message, _ in sending:
            message.Wait()
        return list(zip(self._arriving, arrived, strict=True))

    def _by_neighbor(self, chosen: NDArray[np.bool_]) -> list[tuple[IndexArray, IndexArray]]:
        receiver, source = self.receiver[chosen], self.source[chosen]
        if not len(receiver):
            return []
        starts = np.flatnonzero(np.diff(receiver, prepend=-1))
        k = np.arange(len(receiver)) - np.repeat(starts, np.diff(np.append(starts, len(receiver))))
        return [(receiver[k == i], source[k == i]) for i in range(int(k.max()) + 1)]


class _NeighborExchange:
    """Buffers and the persistent collective for values of one shape."""

    def __init__(self, routes: _Routes, shape: tuple[int, ...]) -> None:
        self._routes = routes
        #: Values of the agents here, followed by those that arrive.
        self._pool = np.zeros((routes.n_own + sum(routes.incoming), *shape))
        self._out = np.zeros((len(routes.leaving), *shape))
        sent, received = ([math.prod(shape) * n for n in counts] for counts in (routes.outgoing, routes.incoming))
        arrivals = self._pool[routes.n_own :]
        self._collective = (
            routes.comm.Neighbor_alltoallv_init([self._out, sent], [arrivals, received]) if routes.peers else None
        )

    def _start(self, value: FloatArray) -> None:
        if self._collective is not None:
            np.take(value, self._routes.leaving, axis=0, out=self._out)
            self._collective.Start()

    def _finish(self) -> None:
        if self._collective is not None:
            self._collective.Wait()

    def sum(self, value: FloatArray) -> FloatArray:
        """Return the sum of each agent's neighbours, in their order."""
        routes = self._routes
        self._start(value)
        sums = np.zeros_like(value)
        for receiver, source in routes.local:
            sums[receiver] += value[source]
        self._pool[: routes.n_own] = value
        self._finish()
        for receiver, source in routes.remote:
            sums[receiver] += self._pool[source]
        return sums

    def each(self, value: FloatArray) -> NeighborMessages:
        """Return each neighbour's value."""
        self._start(value)
        self._pool[: self._routes.n_own] = value
        self._finish()
        return NeighborMessages(self._pool[self._routes.source], self._routes.receiver)


class _MetricsGatherer:
    """Nonblocking collectives for metrics: every agent's numbers in agent order, and the mean of U.

    The mean is summed in integers of a scale that all processes share, a power of two, which is renewed when values
    outgrow it.
    """

    def __init__(self, world: MPICommunicator, topology: Topology, ranks: IndexArray) -> None:
        self._world, self._n_agents = world, topology.n_agents
        counts = np.bincount(ranks, minlength=world.size)
        self._sizes = counts * _PER_AGENT + _PER_PROCESS
        ends = np.cumsum(self._sizes)
        # Where each agent's and each process's numbers are in the gathered array.
        order = np.argsort(ranks, kind="stable")
        within = np.arange(len(ranks)) - np.repeat(np.cumsum(counts) - counts, counts)
        first = np.empty(len(ranks), dtype=np.intp)
        first[order] = (ends - self._sizes)[ranks[order]] + _PER_AGENT * within
        self._agents_at = first[:, None] + np.arange(_PER_AGENT)
        self._processes_at = ends[:, None] - _PER_PROCESS + np.arange(_PER_PROCESS)
        #: Exponent of the power of two that no entry of any U exceeds; None before the first mean.
        self.exponent: int | None = None

    def gather(self, local: LocalMetrics, sent: int, halt: bool) -> PendingMetrics:
        """Gather first the mean of U, where agents have one each; then all agents' numbers.

        The first step starts the first collective. Buffers live as long as this generator.
        """
        if local.totals is not None and not local.unknown.any():
            counts = np.empty((self._world.size, _PER_PROCESS))
            pending = self._world.comm.Iallgather(np.array([float(sent), float(halt)]), counts)
            yield None
            pending.Wait()
            total, halts = counts.sum(axis=0).tolist()
            yield from repeat(RoundMetrics.from_sums(local.totals, 0.0, 1.0, int(total), halts > 0))
        own, size = np.concatenate([local.values, np.zeros((len(local.values), 1))], axis=-1), 1.0
        if local.U is not None:
            U = local.U.reshape(len(local.U), -1)
            mean = yield from self._mean(U)
            apart = U - mean
            own[:, -1] = np.vecdot(apart, apart)
            size = math.sqrt(float(np.vdot(mean, mean)))
        numbers = np.concatenate([own.ravel(), [float(sent), float(halt)]])
        gathered = np.empty(self._agents_at.size + self._processes_at.size)
        pending = self._world.comm.Iallgatherv(numbers, [gathered, self._sizes])
        yield None
        pending.Wait()
        sums = gathered[self._agents_at].sum(axis=0)
        total, halts = gathered[self._processes_at].sum(axis=0).tolist()
        distance, sums = math.sqrt(float(sums[-1]) / self._n_agents), local.complete(sums[:-1])
        yield from repeat(RoundMetrics.from_sums(sums, distance, size, int(total), halts > 0))

    def _mean(self, U: FloatArray) -> Generator[None, None, FloatArray]:
        """Return the mean of all agents' U, summed in integers; NaN if one is not finite."""
        largest = float(np.abs(U).max(initial=0.0))
        if self.exponent is None:
            self.exponent = self._agree_on_exponent(largest) or 0
        shift, integers = self._to_integers(U, largest, self.exponent)
        total = np.empty_like(integers)
        pending = self._world.comm.Iallreduce(integers, total)
        yield
        pending.Wait()
        if total[-1]:
            # An agent's values have outgrown the scale, and all processes see it: again, with a larger one.
            exponent = self._agree_on_exponent(largest)
            if exponent is None:
                return np.full(U.shape[1], np.nan)
            self.exponent = exponent
            shift, integers = self._to_integers(U, largest, exponent)
            self._world.comm.Allreduce(integers, total)
        return np.ldexp(total[:-1].astype(np.float64), -shift) / self._n_agents

    def _to_integers(self, U: FloatArray, largest: float, exponent: int) -> tuple[int, NDArray[np.int64]]:
        """Return the sum of this process's U, shifted by so many bits, and whether it is too large for that."""
        shift = _INTEGER_BITS - math.ceil(math.log2(self._n_agents + 1)) - _HEADROOM - exponent
        integers = np.zeros(U.shape[1] + 1, np.int64)
        if largest < math.ldexp(1.0, exponent + _HEADROOM):
            integers[:-1] = np.rint(np.ldexp(U, shift)).astype(np.int64).sum(axis=0)
        else:
            integers[-1] = 1
        return shift, integers

    def _agree_on_exponent(self, largest: float) -> int | None:
        """Return the exponent of the power of two that no process's largest entry exceeds; None if one is infinite."""
        over_all = self._world.allreduce_max(np.array([largest if np.isfinite(largest) else math.inf]))[0]
        return int(np.frexp(over_all)[1]) if np.isfinite(over_all) else None
