"""Agents of many processes, reached by MPI.

Neighbours' messages are one collective over the graph of processes, its buffers made once: an agent's value goes to a
process once, however many neighbours it has there. Agents whose neighbours are all at hand get their sums while it is
under way. Every sum is taken agent by agent in a fixed order, so that no result hangs on how agents are spread.

What a run is followed by is gathered beside it: a few numbers an agent, and for agents that have a U of their own the
mean of those, added up as whole numbers, which come to the same in any order.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from elmesh.comm.graph import Topology
from elmesh.comm.mpi.communicator import MPICommunicator
from elmesh.comm.mpi.tree_allreduce import TreeSums
from elmesh.comm.requests import Heard, Hub, Neighbours, Report, Sum, Total
from elmesh.comm.traffic import Ledger
from elmesh.errors import ElmeshError
from elmesh.run.base import Figures, Mark
from elmesh.typing import FloatArray

__all__ = ["MPILink"]

Index = NDArray[np.intp]

# Numbers an agent that a run is followed by; and what a process says beside them: bytes, and whether to stop.
_FIGURES, _BESIDE = 6, 2
# Bits of whole numbers that means are added up in, and how much larger than the last ones seen values may be.
_BITS, _ROOM = 62, 8


class MPILink:
    """The agents of this process, and how they reach the others.

    Parameters
    ----------
    world : World
        All processes.
    topology : Topology
        All agents.
    ranks : ndarray of int of shape (m,)
        The process of each.
    message_bits : int or "auto"
        Bits a number of sums over all agents.
    """

    def __init__(self, world: MPICommunicator, topology: Topology, ranks: Index, message_bits: int | str = 64) -> None:
        self._world, self._topology, self._ranks = world, topology, ranks
        self.agents: Index = np.flatnonzero(ranks == world.rank)
        self._own = Ledger(topology)
        self._sums = TreeSums(world.comm, topology, ranks, message_bits, self._own)
        self._routes = _Routes(world, topology, ranks)
        self._mails: dict[tuple[int, ...], _Mail] = {}
        self._counts = np.bincount(ranks, minlength=world.size)
        # Where every agent's numbers are among those gathered, and what every process says beside them.
        self._sizes = self._counts * _FIGURES + _BESIDE
        ends = np.cumsum(self._sizes)
        order = np.argsort(ranks, kind="stable")
        turn = np.arange(len(ranks)) - np.repeat(np.cumsum(self._counts) - self._counts, self._counts)
        first = np.empty(len(ranks), dtype=np.intp)
        first[order] = (ends - self._sizes)[ranks[order]] + _FIGURES * turn
        self._numbers_at = first[:, None] + np.arange(_FIGURES)
        self._beside_at = ends[:, None] - _BESIDE + np.arange(_BESIDE)
        self._scale: int | None = None
        self.n_exchanges = 0

    @property
    def alone(self) -> bool:
        """Whether there is no other process."""
        return self._world.size == 1

    def exchange(self, request: Neighbours) -> FloatArray | Heard:
        """Return the neighbours' sum, or each neighbour's value."""
        value = np.ascontiguousarray(request.value)
        self.n_exchanges += 1
        self._own.spoken(self.agents, value.nbytes // len(value))
        shape = value.shape[1:]
        if shape not in self._mails:
            self._mails[shape] = _Mail(self._routes, shape)
        mail = self._mails[shape]
        return mail.each(value) if request.each else mail.total(value)

    def consult(self, request: Hub) -> FloatArray:
        """Return the hub's answer; what agent 0 tells itself is no message."""
        topology, comm, hub = self._topology, self._world.comm, int(self._ranks[0])
        if topology.degree[0] != topology.n_agents - 1:
            raise ElmeshError("The graph has no hub: its first agent must be everybody's neighbour, as in a star.")
        values = request.value
        rows, columns = values.shape[1:]
        widths = np.max(values.any(axis=1) * np.arange(1, columns + 1), axis=1, initial=0).astype(np.int64)
        all_widths = np.empty(topology.n_agents, np.int64)
        at_hub = self._world.rank == hub
        comm.Gatherv(widths, [all_widths, self._counts] if at_hub else None, hub)
        told = np.concatenate([value[:, :width].ravel() for value, width in zip(values, widths, strict=True)])
        answer = np.empty(0)
        if at_hub:
            # In the order of ranks, and within each of agents.
            order = np.argsort(self._ranks, kind="stable")
            sizes = np.bincount(self._ranks[order], weights=all_widths * rows, minlength=self._world.size)
            everything = np.empty(int(all_widths.sum()) * rows)
            comm.Gatherv(told, [everything, sizes.astype(np.int64)], hub)
            stack = np.zeros((topology.n_agents, rows, int(all_widths.max(initial=0))))
            place = 0
            for agent, width in zip(order.tolist(), all_widths.tolist(), strict=True):
                stack[agent, :, :width] = everything[place : place + rows * width].reshape(rows, width)
                place += rows * width
            answer = np.ascontiguousarray(request.function(stack))
        else:
            comm.Gatherv(told, None, hub)
        answer = self._world.broadcast(answer, hub)
        if topology.n_agents > 1:
            self.n_exchanges += 2  # up and down
        for agent, width in zip(self.agents.tolist(), widths.tolist(), strict=True):
            if agent:
                self._own.along(agent, 0, 8 * rows * width)
            else:
                self._own.spoken(np.zeros(1, np.intp), answer.nbytes)
        return answer

    def add_up(self, request: Total) -> Sum:
        """Return the sum over all agents."""
        self.n_exchanges += self._sums.rounds
        return self._sums.add_up(request)

    def most_bytes(self, request: Neighbours | Hub | Total) -> int:
        """Return what a request takes at most, over all agents."""
        if isinstance(request, Total):
            return self._sums.most_bytes(request)
        m, size = self._topology.n_agents, request.value[0].nbytes
        if isinstance(request, Hub):
            return int(2 * m * self._world.allreduce_max(np.array([float(size)]))[0])
        return int(size * 2 * len(self._topology.edges))

    def books(self) -> Ledger:
        """Return the bytes along every edge so far."""
        counts = self._world.allreduce_sum(self._own.counts())
        return Ledger(self._topology, counts)

    def mark(self) -> Mark:
        """Return where the link stands."""
        spoken = self._sums.kept()
        own = {int(agent): self._own.kept_of(int(agent)) for agent in self.agents}
        for speaker, arrays in spoken.items():
            if speaker >= 0:
                own[speaker] = {**own.get(speaker, {}), **arrays}
        scale = {} if self._scale is None else {"scale": np.array(float(self._scale))}
        return Mark(own, {"exchanges": np.array(float(self.n_exchanges)), **scale, **spoken.get(-1, {})})

    def rewind(self, mark: Mark) -> None:
        """Go back to where the mark was taken."""
        self.n_exchanges = int(mark.common["exchanges"])
        self._scale = int(mark.common["scale"]) if "scale" in mark.common else None
        for agent in self.agents.tolist():
            self._own.take_up_of(agent, mark.own[agent])
        self._sums.take_up({-1: mark.common, **mark.own})

    @property
    def others(self) -> list[int]:
        """Agents of other processes whose words this one remembers."""
        return self._sums.far

    def follow(self, report: Report, halt: bool) -> _Following:
        """Set out to find a round's figures."""
        self._world.at(report.round)
        return _Following(self, report, halt)


class _Routes:
    """Which values go to which process, and where each agent finds its neighbours'."""

    def __init__(self, world: MPICommunicator, topology: Topology, ranks: Index) -> None:
        mine = np.flatnonzero(ranks == world.rank)
        place = {agent: k for k, agent in enumerate(mine.tolist())}
        hearer, speaker = topology.ends
        near = ranks[hearer] == world.rank
        hearer, speaker = hearer[near], speaker[near]
        far = ranks[speaker] != world.rank
        # Every foreign agent that somebody here listens to, and every agent here that somebody there does: sorted by
        # process and then by agent, so that both sides agree.
        self.peers = sorted({int(rank) for rank in ranks[speaker[far]]})
        self.incoming = [sorted({int(s) for s in speaker[far] if ranks[s] == peer}) for peer in self.peers]
        heard = [sorted({int(h) for h in hearer[ranks[speaker] == peer]}) for peer in self.peers]
        self.outgoing = [[place[agent] for agent in agents] for agents in heard]
        self.n_mine = len(mine)
        arrived = {agent: self.n_mine + k for k, agent in enumerate(a for peer in self.incoming for a in peer)}
        self.hearer: Index = np.array([place[int(h)] for h in hearer], dtype=np.intp)
        #: For each direction of an edge to here, where its speaker's value is: among those here, or behind them.
        self.source: Index = np.array(
            [place[int(s)] if int(s) in place else arrived[int(s)] for s in speaker], dtype=np.intp
        )
        self.comm = world.comm.Create_dist_graph_adjacent(self.peers, self.peers, reorder=False)
        # The k-th neighbour of all agents that have one, for k = 0, 1, ...: first those whose neighbours are all here.
        waits = np.zeros(self.n_mine, dtype=bool)
        waits[self.hearer[self.source >= self.n_mine]] = True
        self.near = self._turns(~waits[self.hearer])
        self.far = self._turns(waits[self.hearer])

    def _turns(self, chosen: NDArray[np.bool_]) -> list[tuple[Index, Index]]:
        hearer, source = self.hearer[chosen], self.source[chosen]
        if not len(hearer):
            return []
        starts = np.flatnonzero(np.diff(hearer, prepend=-1))
        turn = np.arange(len(hearer)) - np.repeat(starts, np.diff(np.append(starts, len(hearer))))
        return [(hearer[turn == k], source[turn == k]) for k in range(int(turn.max()) + 1)]


class _Mail:
    """Buffers and the persistent collective for values of one shape, made once."""

    def __init__(self, routes: _Routes, shape: tuple[int, ...]) -> None:
        size = math.prod(shape)
        self._routes = routes
        #: Values of the agents here, and behind them those that have come.
        self._pool = np.zeros((routes.n_mine + sum(map(len, routes.incoming)), *shape))
        self._leaving: Index = np.array([k for peer in routes.outgoing for k in peer], dtype=np.intp)
        self._out = np.zeros((len(self._leaving), *shape))
        sent, come = ([size * len(peer) for peer in peers] for peers in (routes.outgoing, routes.incoming))
        arrivals = self._pool[routes.n_mine :]
        self._collective = (
            routes.comm.Neighbor_alltoallv_init([self._out, sent], [arrivals, come]) if routes.peers else None
        )

    def _start(self, value: FloatArray) -> None:
        if self._collective is not None:
            np.take(value, self._leaving, axis=0, out=self._out)
            self._collective.Start()

    def _finish(self) -> None:
        if self._collective is not None:
            self._collective.Wait()

    def total(self, value: FloatArray) -> FloatArray:
        """Return the sum of each agent's neighbours, in their order."""
        routes = self._routes
        self._start(value)
        sums = np.zeros_like(value)
        for hearer, source in routes.near:
            sums[hearer] += value[source]
        self._pool[: routes.n_mine] = value
        self._finish()
        for hearer, source in routes.far:
            sums[hearer] += self._pool[source]
        return sums

    def each(self, value: FloatArray) -> Heard:
        """Return each neighbour's value."""
        self._start(value)
        self._pool[: self._routes.n_mine] = value
        self._finish()
        return Heard(self._pool[self._routes.source], self._routes.hearer)


class _Following:
    """Figures on their way: the mean of U first, where agents have one each; then everybody's numbers."""

    def __init__(self, link: MPILink, report: Report, halt: bool) -> None:
        self._link, self._halt = link, halt
        self._own = np.stack(
            [report.objective, *report.residual, *report.scale, np.zeros_like(report.objective)], axis=-1
        )
        # What was said until now; by the time that the numbers are gathered there may be more.
        self._sent = link._own.total
        U = report.state.U
        self._U = None if U is None or U.ndim == 2 else U.reshape(len(U), -1)
        self._size = 1.0
        self._mean: _Mean | None = None
        self._gathered: tuple[FloatArray, Any] | None = None
        if self._U is None:
            self._gather()
        else:
            self._mean = _Mean(link, self._U)

    def advance(self) -> Figures | None:
        """Wait for what is under way, and start what comes next; return the figures once they are there."""
        if self._mean is not None and self._U is not None:
            mean, self._mean = self._mean.wait(), None
            apart = self._U - mean
            self._own[:, -1] = np.vecdot(apart, apart)
            self._size = math.sqrt(float(np.vdot(mean, mean)))
            self._gather()
            return None
        return self._figures()

    def _gather(self) -> None:
        link = self._link
        said = np.concatenate([self._own.ravel(), [float(self._sent), float(self._halt)]])
        everything = np.empty(link._numbers_at.size + link._beside_at.size)
        pending = link._world.comm.Iallgatherv(said, [everything, link._sizes])
        # The buffers live as long as the message does.
        self._gathered = everything, (pending, said)

    def _figures(self) -> Figures:
        link = self._link
        if self._gathered is None:
            raise TypeError("Figures were asked for that nobody has set out to find.")
        everything, (pending, _) = self._gathered
        pending.Wait()
        beside, numbers = everything[link._beside_at], everything[link._numbers_at]
        objective, U_rest, A_rest, U_scale, A_scale, apart = numbers.sum(axis=0).tolist()
        distance = math.sqrt(apart / link._topology.n_agents)
        sent, halts = beside.sum(axis=0).tolist()
        return Figures(objective, (U_rest, A_rest), (U_scale, A_scale), distance, self._size, int(sent), halts > 0)


class _Mean:
    """The mean of all agents' U, on its way: whole numbers add up to the same in any order."""

    def __init__(self, link: MPILink, U: FloatArray) -> None:
        self._link, self._U = link, U
        self._m = link._topology.n_agents
        self._largest = float(np.abs(U).max(initial=0.0))
        if link._scale is None:
            link._scale = self._agree()
        self._begin(link._scale)

    def _agree(self) -> int:
        """Return the power of two that no value of any agent exceeds."""
        largest = np.array([self._largest if np.isfinite(self._largest) else math.inf])
        communicator = self._link._world.allreduce_max(largest)[0]
        return int(np.frexp(communicator)[1]) if np.isfinite(communicator) else 0

    def _begin(self, scale: int) -> None:
        spare = _BITS - math.ceil(math.log2(self._m + 1)) - _ROOM
        self._shift = spare - scale
        fits = self._largest < math.ldexp(1.0, scale + _ROOM)
        whole = np.zeros(self._U.shape[1] + 1, np.int64)
        if fits:
            whole[:-1] = np.rint(np.ldexp(self._U, self._shift)).astype(np.int64).sum(axis=0)
        whole[-1] = not fits
        self._together = np.empty_like(whole)
        self._whole = whole
        self._pending = self._link._world.comm.Iallreduce(whole, self._together)

    def wait(self) -> FloatArray:
        """Return it; NaN if some agent's U is not finite any more."""
        self._pending.Wait()
        if self._together[-1]:
            # Somebody's values have outgrown the scale, which is for all to know: once more, with room.
            largest = self._link._world.allreduce_max(
                np.array([self._largest if np.isfinite(self._largest) else math.inf])
            )[0]
            if not np.isfinite(largest):
                return np.full(self._U.shape[1], np.nan)
            self._link._scale = int(np.frexp(largest)[1])
            self._begin(self._link._scale)
            self._pending.Wait()
        return np.ldexp(self._together[:-1].astype(np.float64), -self._shift) / self._m
