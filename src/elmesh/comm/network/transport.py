"""An agent at a site of its own, as the link that its algorithm is driven over.

Neighbours are added in sorted order and sums go along the graph's spanning tree in its order, as with MPI: the numbers
are the same to the bit. How a run stands is told from what the agent has itself and from what it is told anyway;
nothing is sent for that.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from elmesh.comm.allreduce import Channels, coarse_parts, split_message, tree_bytes
from elmesh.comm.graph import Topology
from elmesh.comm.network.messenger import Post
from elmesh.comm.network.wire import Kind, Message, WireError, doubles
from elmesh.comm.requests import Heard, Hub, Neighbours, Report, Sum, Total
from elmesh.comm.traffic import Ledger
from elmesh.errors import ElmeshError
from elmesh.run.base import Figures, Mark
from elmesh.typing import FloatArray

__all__ = ["NetworkLink"]


# No honest number comes near this, and its square is still a number: the norm of a sum over all agents is below it.
_OVER = 1e150


@dataclass(frozen=True)
class _Known:
    """Figures that are known as soon as they are asked for."""

    figures: Figures

    def advance(self) -> Figures | None:
        return self.figures


class NetworkLink:
    """One agent's link.

    Parameters
    ----------
    post : Post
        Its post.
    names : sequence of str
        All agents, in the order of the graph.
    topology : Topology
        Who talks to whom.
    message_bits : int or "auto"
        Bits a number of sums over all agents.
    most : float
        What the norm of a neighbour's value cannot exceed.
    """

    alone = False

    def __init__(
        self,
        post: Post,
        names: Sequence[str],
        topology: Topology,
        message_bits: int | str = 64,
        most: float = math.inf,
    ) -> None:
        self._post, self._topology, self._bits, self._most = post, topology, message_bits, most
        self._names = list(names)
        self.agent = self._names.index(post.me)
        self._neighbours = [self._names[k] for k in topology.neighbours(self.agent).tolist()]
        self._own = Ledger(topology)
        self._me = np.array([self.agent], dtype=np.intp)
        self._channels = Channels(message_bits)
        tree = topology.tree
        self._root = int(tree.order[0])
        parent = int(tree.parent[self.agent])
        self._parent = None if parent < 0 else self._names[parent]
        # In the order in which sums are added up everywhere.
        inwards = tree.order[::-1].tolist()
        self._children = [self._names[k] for k in inwards if int(tree.parent[k]) == self.agent]
        self._number = {name: k for k, name in enumerate(self._names)}
        # How many agents' shares are in the sum that each passes on.
        self._shares = dict.fromkeys(range(len(self._names)), 1)
        for k in inwards[:-1]:
            self._shares[int(tree.parent[k])] += self._shares[k]
        self._heard: tuple[FloatArray, FloatArray] | None = None
        self.n_exchanges = 0

    def exchange(self, request: Neighbours) -> FloatArray | Heard:
        """Tell every neighbour, and return their sum or each one's value."""
        value = np.ascontiguousarray(request.value[0], dtype="<f8")
        shape, body = (int(value.shape[0]), int(value.shape[1])), value.tobytes()
        for name in self._neighbours:
            self._post.say(name, Kind.VALUE, shape, body)
        self.n_exchanges += 1
        self._own.spoken(self._me, len(body))
        messages = self._post.hear(self._neighbours, Kind.VALUE)
        values = [self._value(name, messages[name], shape) for name in self._neighbours]
        # From zero on, as everywhere: a sum of nothing but a negative zero is zero.
        total = values[0] + 0.0 if values else np.zeros_like(value)
        for theirs in values[1:]:
            total += theirs
        self._heard = value, total
        if request.each:
            return Heard(np.stack(values), np.zeros(len(values), dtype=np.intp))
        return total[None]

    def _value(self, name: str, message: Message, shape: tuple[int, int]) -> FloatArray:
        """Return a neighbour's value, if it can be one."""
        try:
            theirs, square = message.value_and_square(*shape)
            size = math.sqrt(square)
            if not size <= self._most or math.isinf(size):
                raise WireError(f"its norm is {size:.3g}, and no honest one is above {min(self._most, _OVER):.3g}")
        except WireError as error:
            raise self._post.refuse(name, str(error)) from None
        return theirs.reshape(shape)

    def _distance(self) -> tuple[float, float]:
        """Return how far this agent is from its neighbours' mean, and how large its value is."""
        if self._heard is None:
            return 0.0, 1.0
        value, total = self._heard
        apart = total * (1.0 / max(len(self._neighbours), 1))
        apart -= value
        return math.sqrt(float(np.vdot(apart, apart))), math.sqrt(float(np.vdot(value, value)))

    def consult(self, request: Hub) -> FloatArray:
        """Raise: there is no hub that everybody trusts with their values."""
        raise ElmeshError("This method needs a hub, which a network of sites does not have; use dmtl-elm.")

    def add_up(self, request: Total) -> Sum:
        """Return the sum over all agents, along the spanning tree."""
        values, numbers = request.value[0], request.numbers[0]
        if self._topology.n_agents == 1:
            return Sum(values, numbers, request.same, request.settle)
        self.n_exchanges += self._topology.tree.rounds
        coarse = self._bits != 64
        if coarse:
            self._channels.prepare(request)
        shape, k = (int(values.shape[0]), int(values.shape[1])), len(numbers)
        value, beside = values.copy(), numbers.copy()
        messages = self._post.hear(self._children, Kind.INWARDS)
        for child in self._children:
            theirs, more = self._partial(request, child, messages[child], shape, k, self._number[child])
            value += theirs
            beside += more
        if self._parent is not None:
            self._say_sum(self._parent, Kind.INWARDS, self._told(request, value, beside, self.agent), shape)
            message = self._post.hear([self._parent], Kind.OUTWARDS)[self._parent]
            body = bytes(message.body)
            value, beside = self._partial(request, self._parent, message, shape, k, -1)
        else:
            body = self._told(request, value, beside, -1)
            value = self._channels.known(request.topic, -1, value) if coarse else value
        for child in self._children:
            self._say_sum(child, Kind.OUTWARDS, body, shape)
        return Sum(value, beside, request.same, request.settle)

    def _told(self, request: Total, value: FloatArray, numbers: FloatArray, speaker: int) -> bytes:
        exact = np.ascontiguousarray(numbers, "<f8").tobytes()
        if self._bits == 64:
            return np.ascontiguousarray(value, "<f8").tobytes() + exact
        return self._channels.tell(request, value, speaker) + exact

    def _say_sum(self, to: str, kind: Kind, body: bytes, shape: tuple[int, int]) -> None:
        self._post.say(to, kind, shape, body, coarse=self._bits != 64)
        self._own.along(self.agent, self._number[to], len(body))

    def _partial(
        self, request: Total, name: str, message: Message, shape: tuple[int, int], k: int, speaker: int
    ) -> tuple[FloatArray, FloatArray]:
        """Return a neighbour's sum and the numbers beside it, if they can be that."""
        n = shape[0] * shape[1]
        try:
            if self._bits == 64:
                both = message.value(*shape, beside=k)
                value, numbers = both[:n].reshape(shape), both[n:]
            else:
                value, numbers = self._coarse(request, message, shape, k, speaker)
            size = math.sqrt(float(np.vdot(value, value)) + float(np.vdot(numbers, numbers)))
            # A sum of so many shares, each within its part: then whoever adds its own stays within its bound, and is
            # not refused for what it was told.
            most = _OVER * self._shares[self._number[name] if speaker >= 0 else self._root] / len(self._names)
            if not size <= most:
                raise WireError(f"its norm is {size:.3g}, and no honest one is above {most:.3g}")
        except WireError as error:
            raise self._post.refuse(name, str(error)) from None
        except ElmeshError as error:
            raise self._post.refuse(name, f"its body cannot be read ({str(error).rstrip('.')})") from None
        return value, numbers

    def _coarse(
        self, request: Total, message: Message, shape: tuple[int, int], k: int, speaker: int
    ) -> tuple[FloatArray, FloatArray]:
        """Read a coarse message, if it is one."""
        if not message.coarse or (message.rows, message.columns) != shape or len(message.body) < 8 * k:
            raise WireError("it is not a coarse message of the right shape")
        body, exact = bytes(message.body), len(message.body) - 8 * k
        doubles(message.body[exact:], k)
        parts = coarse_parts(shape[1], request.fine, self._bits)
        widths = [len(range(shape[1])[columns]) for _, columns, _ in parts]
        if sum(map(len, split_message(body[:exact], shape[0], widths))) != exact:
            raise WireError("it is longer than a coarse message of its shape")
        with np.errstate(over="ignore", invalid="ignore"):
            value, numbers = self._channels.hear(request, speaker, body, shape, k)
        if not np.isfinite(value).all():
            raise WireError("it has a value that is not a finite number")
        return value, numbers

    def most_bytes(self, request: Neighbours | Hub | Total) -> int:
        """Return what a request takes at most, over all agents."""
        if isinstance(request, Total):
            return tree_bytes(self._topology, request, self._bits)
        return int(request.value[0].nbytes * 2 * len(self._topology.edges))

    def books(self) -> Ledger:
        """Return the bytes that this agent has told, along every edge."""
        return self._own

    def mark(self) -> Mark:
        """Return where the link stands; the post keeps what was said."""
        spoken = self._channels.kept()
        own = {self.agent: {**self._own.kept_of(self.agent), **spoken.pop(self.agent, {})}, **spoken}
        return Mark(own, {"exchanges": np.array(float(self.n_exchanges)), **own.pop(-1, {})})

    def rewind(self, mark: Mark) -> None:
        """Go back to where the mark was taken."""
        self.n_exchanges = int(mark.common["exchanges"])
        self._own.take_up_of(self.agent, mark.own[self.agent])
        self._channels.take_up({-1: mark.common, **mark.own})

    def follow(self, report: Report, halt: bool) -> _Known:
        """Return how this agent stands.

        What belongs to all is said by everybody alike, an even share each: so one share tells the whole. Where every
        agent has a U of its own, these are figures of this one: its share of the objective, its own residuals, and its
        distance from its neighbours' mean.
        """
        U, m = report.state.U, self._topology.n_agents
        own = np.stack([report.objective, *report.residual, *report.scale], axis=-1)
        if U is not None and U.ndim == 2:
            shares = np.repeat(own, m, axis=0)
            _, U_rest, A_rest, U_scale, A_scale = shares.sum(axis=0).tolist()
            distance, size = 0.0, 1.0
        else:
            _, U_rest, A_rest, U_scale, A_scale = own[0].tolist()
            distance, size = self._distance()
        objective = float(report.objective[0])
        return _Known(Figures(objective, (U_rest, A_rest), (U_scale, A_scale), distance, size, self._own.total, halt))
