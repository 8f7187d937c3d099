"""How much a fit will send, before it sends anything.

A sum over m agents of k numbers takes 2 (m - 1) messages of k numbers, up a tree and down again. The common part needs
a few sums of a symmetric p x p matrix, and between them, with a private part, sums of a smaller one in the search for
variances, of which there is one for each group of features and for each output; the shared part a p x r matrix in every
round, in sums or to every neighbour.
"""

from __future__ import annotations

from dataclasses import dataclass

from elmesh.comm.fixed_point import LIMBS
from elmesh.comm.graph import Topology
from elmesh.comm.requests import AllReduce
from elmesh.solvers.base import Solver
from elmesh.solvers.variance_components import matrix_bits
from elmesh.text import data_size

__all__ = ["TrafficEstimate", "estimate_traffic"]

_BYTES = 8
# Bits of a number at least, with the fewest levels.
_FEWEST_BITS = 1.5
# Groups of features of the default hidden layer, and steps of a search for variances.
_GROUPS, _STEPS = 4, 10


@dataclass(frozen=True)
class TrafficEstimate:
    """Bytes that all agents together will send: at the start, and in each of at most so many rounds.

    ``least`` is what the start certainly takes.
    """

    start: float
    per_round: float
    max_rounds: int
    least: float = 0.0

    def sentence(self, *, simulated: bool = False) -> str:
        """Return the estimate in words; ``simulated`` if all sites are in one process, where nothing is sent.

        Examples
        --------
        >>> TrafficEstimate(7.4e9, 0.0, 0).sentence()
        'Sites will send about 7.4 GB in all.'
        >>> TrafficEstimate(0.0, 2e4, 100).sentence()
        'Sites will send about 20 kB in each round, at most 2 MB in 100 rounds, and some more before and after them.'
        """
        who = "Sites in different places would send" if simulated else "Sites will send"
        if not self.per_round:
            return f"{who} about {data_size(self.start)} in all."
        rounds = f"about {data_size(self.per_round)} in each round"
        most = f"{data_size(self.per_round * self.max_rounds)} in {self.max_rounds} rounds"
        if not self.start:
            return f"{who} {rounds}, at most {most}, and some more before and after them."
        start = f"{who} about {data_size(self.start)}"
        return f"{start} and, if there is a shared part, {rounds} of it, those that choose its penalty among them."


def estimate_traffic(
    solver: Solver, width: int, outputs: int, rank: int, topology: Topology, *, varied: bool = True
) -> TrafficEstimate | None:
    """Return how much a fit will send; None if nothing is sent, or the method does not allow for an estimate.

    ``width`` is the number of features of which totals are summed. ``varied``: whether the targets of every task vary;
    if not, messages of zeros may be left out.
    """
    if not solver.distributed or topology.n_agents < 2:
        return None
    up_and_down = 2 * (topology.n_agents - 1)
    start = least = per_round = 0.0
    if solver.grouped_features and not solver.learns_features:
        sums, bits = (1, 64) if solver.privacy is not None else (solver.matrix_sums, matrix_bits(solver.message_bits))
        start = up_and_down * sums * (width * (width + 1) / 2 + width * outputs + outputs) * bits / 8
        least, size = start, 1 + _GROUPS + outputs
        start += up_and_down * (sums - 1) * _STEPS * size * (size + 1) / 2 * _BYTES * LIMBS
    bits = solver.message_bits if isinstance(solver.message_bits, int) else 8 * _BYTES
    if varied:
        # The fewest bits have a code of three levels as well, for which less is sent; automatic ones begin with it.
        fewest = bits if isinstance(solver.message_bits, int) and bits > 2 else _FEWEST_BITS
        least += solver.least_start(width, outputs, rank, topology.n_agents) * fewest / 8
    if solver.sends_only_basis:
        per_round = 2 * len(topology.edges) * width * rank * bits / 8
    elif rank and AllReduce in solver.requires:
        per_round = up_and_down * width * rank * bits / 8
    if not start and not per_round:
        return None
    return TrafficEstimate(start, per_round, solver.max_iter or 0, least)
