"""One site of a network: a fit whose only agent is this one, the others being elsewhere.

Inside :meth:`Site.hosting` an estimator's fit is this site's part of the network's: its solver is driven with the
messages of the neighbours. A neighbour that is lost for good, or says what it must not, ends the run, or is left out by
choice: then those that are left begin anew without it, as if it had never been there.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Any, Self

import numpy as np
from threadpoolctl import threadpool_limits

from elmesh.agent.agent_state import Entry
from elmesh.agent.checkpoint import Journal
from elmesh.comm.graph import Topology
from elmesh.comm.network.errors import FailedError, LostError, PeerError, RefusedError, RegroupedError
from elmesh.comm.network.messenger import Post
from elmesh.comm.network.peer import Counters
from elmesh.comm.network.transport import NetworkLink
from elmesh.comm.network.zenoh_session import Transport, largest_message
from elmesh.comm.requests import Total
from elmesh.data.statistics import Task
from elmesh.errors import ElmeshError
from elmesh.netconfig.config import Plan
from elmesh.netconfig.identity import Identity
from elmesh.run.array_io import digest_of
from elmesh.run.base import Moment, Past, Result
from elmesh.run.driver import drive
from elmesh.run.host import hosting
from elmesh.run.local import place_of
from elmesh.solvers.base import Solver
from elmesh.typing import FloatArray

__all__ = ["Site", "most_norm"]


# How far above the norm of any solution a neighbour's U may be on its way there.
_OVERSHOOT = 10.0
# Outputs of an agent that the bound on its U allows for.
_COLUMNS = 64
# Outputs of an agent beyond which their number no longer counts for an automatic rank.
_MOST_OUTPUTS = 64


def most_norm(plan: Plan) -> float:
    r"""Return what the norm of an agent's U cannot exceed, by the objective and what the network file declares.

    At a minimum :math:`\tfrac{\mu_1}2|U|^2` is at most the objective of zero weights, half of all targets' squares. A
    class is at most one, and a declared target at most the square root of twelve of its own standard deviations from
    its mean; so the declared number of rows bounds it. On the way there U may be larger, within reason.

    Examples
    --------
    >>> from elmesh.netconfig.config import Member
    >>> pair = Member("a", "127.0.0.1:1"), Member("b", "127.0.0.1:2")
    >>> plan = Plan("pair", pair, (("a", "b"),), "classification", most_rows=50,
    ...             parameters={"mu1": 1.0, "mu2": 1.0, "rho": 1.0})
    >>> most_norm(plan)
    100.0
    """
    mu1 = plan.parameters.get("mu1", "auto")
    if isinstance(mu1, str):
        return math.inf
    a_row = 1.0 if plan.kind == "classification" else 12.0 * _COLUMNS
    return _OVERSHOOT * math.sqrt(len(plan.members) * plan.most_rows * a_row / float(mu1))


class Site:
    """One agent of a network, from its first word to its last.

    Parameters
    ----------
    identity : Identity
        Who it is.
    patience : float
        Seconds that a neighbour may be away before it is lost.
    on_loss, on_bad : {"stop", "continue"}, {"stop", "isolate"}
        What to do when a neighbour is lost, and when it says what it must not.
    fresh : bool
        Whether to begin anew, whatever the journal holds.
    log : callable
        Is told what happens: a name for the event, and fields.
    """

    def __init__(
        self,
        identity: Identity,
        *,
        patience: float = 600.0,
        on_loss: str = "stop",
        on_bad: str = "stop",
        fresh: bool = False,
        log: Callable[..., None] = lambda *_, **__: None,
    ) -> None:
        self.identity, self._log = identity, log
        self._patience, self._on_loss, self._on_bad = patience, on_loss, on_bad
        self.plan = identity.plan
        self.journal = Journal(identity.state, patience, log)
        self._transport: Transport | None = None
        self.post: Post | None = None
        self.round = -1
        self._fresh, self._stopped = fresh, False
        self._resumed: int | None = None
        #: What there is to say of the model, once it is saved.
        self.saved: dict[str, Any] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def resumes(self) -> bool:
        """Whether there is a run to go on with."""
        return self.journal.begun and not self._fresh

    def open(self, fields: Mapping[str, Any]) -> bool:
        """Be there for the neighbours; say whether there is a journal to go on from.

        Parameters
        ----------
        fields
            What this agent was asked to do, in plain JSON: a journal of something else is refused.
        """
        identity = self.identity
        asked = {"network file": identity.plan.digest.hex(), "agent": identity.name, **fields}
        resumed = self.journal.open(asked, self._fresh)
        gone = self.journal.gone
        self.plan = identity.plan.without(gone, identity.name) if gone else identity.plan
        self._transport = Transport(identity, largest_message(identity.plan), stranger=self._stranger)
        self.post = Post(identity.name, identity.plan, self._transport, self._patience, self.journal.life, self._log)
        if gone:
            self.post.regroup(gone)
        # Before anybody speaks: neighbours go on from numbers that only the journal knows.
        entry = self.journal.latest()
        if entry is not None:
            self.post.restore(entry.stands)
            self.saved = entry.saved
        self.post.recall(self.journal.notes.get("done", ()), self.journal.notes.get("knows", ()))
        self.journal.attach(self.post)
        if self._stopped:
            self.post.stop()
        self._transport.listen(self.post.arrive, self.post.presence)
        return resumed

    def _stranger(self, name: str, address: str) -> None:
        self._log("stranger", name=name, address=address)

    def _there(self) -> Post:
        if self.post is None:
            raise TypeError("The site is not open yet.")
        return self.post

    @property
    def name(self) -> str:
        """The agent's name."""
        return self.identity.name

    @property
    def names(self) -> list[str]:
        """All agents that take part."""
        return self.plan.names

    @property
    def topology(self) -> Topology:
        """Who talks to whom."""
        return self.plan.topology

    def hosting(self) -> AbstractContextManager[None]:
        """Have the fits inside take place here and at the neighbours'."""
        return hosting(self)

    def scale(self, columns: Sequence[str], rows: Mapping[str, FloatArray]) -> dict[str, tuple[float, float]]:
        """Agree with all agents on the mean and standard deviation of columns, by sums along the graph.

        Parameters
        ----------
        columns
            Their names, in the order of the network file.
        rows
            The values that are there of each.
        """
        if not self.plan.statistics:
            raise ElmeshError("The network file does not allow statistics to be exchanged.")
        known = self.journal.notes.get("scale")
        if self.journal.latest() is not None and known is not None:
            return {name: (float(mean), float(std)) for name, (mean, std) in known.items()}
        link = self._link(64)
        counts = np.array([len(rows[name]) for name in columns], dtype=np.float64)
        sums = np.array([rows[name].sum() for name in columns])
        self._log(
            "statistics", columns=list(columns), sent="count and sum, then squared deviations, added up on the way"
        )
        nothing = np.zeros((1, 1, 0))
        first = link.add_up(Total(nothing, np.concatenate([counts, sums])[None], "columns")).numbers
        n, total = np.split(first, 2)
        mean = total / np.maximum(n, 1.0)
        squares = np.array([np.sum((rows[name] - m) ** 2) for name, m in zip(columns, mean.tolist(), strict=True)])
        spread = link.add_up(Total(nothing, squares[None], "spread")).numbers
        std = np.sqrt(spread / np.maximum(n, 1.0))
        found = {name: (float(m), float(s)) for name, m, s in zip(columns, mean, std, strict=True)}
        self.journal.note("scale", found)
        return found

    def _link(self, bits: int | str) -> NetworkLink:
        return NetworkLink(self._there(), self.plan.names, self.plan.topology, bits, most_norm(self.plan))

    def run(self, solver: Solver, task: Task, seed: int) -> Result:
        """Run this agent's part of a solver, with the others.

        Raises :class:`RegroupedError` or a :class:`PeerError` when there is something that :meth:`carry_on` decides.

        Parameters
        ----------
        solver
            What to run.
        task
            This agent's data, reduced.
        seed
            The seed that agents share.
        """
        self._there()
        self.journal.about["data"] = digest_of(task)
        return self._attempt(solver, task, seed)

    def carry_on(self, trouble: RegroupedError | PeerError) -> None:
        """Leave out those that are lost, if that is wanted: then all is done again. If not, raise what to end with.

        Parameters
        ----------
        trouble
            What the run could not go on with.
        """
        post = self._there()
        if isinstance(trouble, LostError):
            self.journal.check()  # neighbours fall silent when they have to keep too much for this agent
        if isinstance(trouble, RegroupedError):
            if self._on_loss == "stop":
                without = ", ".join(sorted(trouble.gone))
                raise self._end(
                    FailedError(
                        [],
                        f"{trouble.by} goes on without {without}, and this agent was told to stop then; with "
                        "--on-loss continue it would go on as well.",
                        f"{post.me} was told to stop when somebody is lost.",
                    )
                ) from None
            self._regroup(trouble.gone)
            return
        going_on = self._on_bad == "isolate" if isinstance(trouble, RefusedError) else self._on_loss != "stop"
        if not going_on or not trouble.names or post.me in trouble.names:
            raise self._end(trouble) from None
        self._log("lost", names=sorted(trouble.names), reason=str(trouble))
        self._regroup(post.gone | trouble.names)

    def _end(self, trouble: PeerError) -> PeerError:
        """Tell the neighbours that the run is over, and why."""
        mine = not isinstance(trouble, FailedError)
        self._there().fail(f"{self.identity.name}: {trouble.reason}" if mine else trouble.reason)
        return trouble

    def _regroup(self, gone: frozenset[str]) -> None:
        plan, me = self.identity.plan, self.identity.name
        parts = plan.parts(gone)
        self.journal.regroup(gone)
        self.plan, self.saved = plan.without(gone, me), None
        self._there().regroup(gone)
        self._log("regrouped", gone=sorted(gone), parts=parts, rest=[name for name in self.plan.names if name != me])

    def _attempt(self, solver: Solver, task: Task, seed: int) -> Result:
        link, topology = self._link(solver.message_bits), self.plan.topology
        stack = Task.stack([task])
        place = place_of(topology, seed, np.array([link.agent], dtype=np.intp))
        entry = self.journal.latest()
        if entry is not None:
            self._take_up(entry, link)
        rank = self._rank(solver, task, link) if entry is None else entry.rank
        self.journal.about["rank"] = rank
        # One thread: with more, products would be added up in an order that hangs on how many cores a site has.
        with threadpool_limits(1, user_api="blas"):
            return drive(
                solver.program(stack, place, rank, entry.kept if entry else None),
                link,
                max_iter=solver.max_iter or rank,
                # Agents with a U of their own would have to tell each other how far they are: they take all rounds.
                tol=None if solver.own_basis else solver.tol,
                start_energy=float(task.target_energy) / 2,
                past=entry.past if entry else None,
                keep=self._keep,
            )

    def _rank(self, solver: Solver, task: Task, link: NetworkLink) -> int:
        """Return the number of columns of U: what the file says, at most what all tasks can use, if sums may tell."""
        if self.plan.exchange == "basis":
            return int(solver.rank)
        outputs, width = int(task.Y.shape[-1]), int(task.V.shape[-2])
        # How many agents have so many outputs: a sum that tells the most.
        own = np.zeros(_MOST_OUTPUTS + 1)
        own[min(outputs, _MOST_OUTPUTS)] = 1.0
        told = np.concatenate([own, [float(solver.directions(task))]])[None]
        *counts, directions = link.add_up(Total(np.zeros((1, 1, 0)), told, "rank")).numbers.tolist()
        widest = max(n for n, count in enumerate(counts) if count > 0)
        with warnings.catch_warnings():
            if link.agent:
                warnings.simplefilter("ignore")  # one site says it for all
            return solver.rank_for(widest, width, round(directions))

    def _take_up(self, entry: Entry, link: NetworkLink) -> None:
        if entry.data != self.journal.about.get("data"):
            raise ElmeshError(
                f"The data are not those that the journal in {self.identity.state} is of; finish that run with its own "
                "data, or begin anew with --fresh."
            )
        self._there().restore(entry.stands)
        link.rewind(entry.link)
        self._resumed = entry.round
        self._log("resumed", round=entry.round)

    def _keep(self, moment: Moment, past: Callable[[], Past]) -> None:
        self.round = moment.report.round
        if self._resumed is not None and self.round > self._resumed:
            self._resumed = None
            self._log("rejoined", round=self.round)
        self.journal.keep(moment, past)

    def stop(self) -> None:
        """Have the run stop where its journal can go on; may be called from a signal's handler."""
        self._stopped = True
        if self.post is not None:
            self.post.stop()

    @property
    def gone(self) -> frozenset[str]:
        """Agents that the run goes on without."""
        return self.journal.gone

    def look(self) -> dict[str, Any]:
        """Return what there is to say of the neighbours, the traffic and the journal."""
        post = self.post
        return {
            "agent": self.identity.name,
            "network": self.identity.plan.name,
            "file": self.identity.plan.digest.hex(),
            "neighbours": {} if post is None else post.look(),
            "traffic": vars(Counters()) if post is None else vars(post.counters),
            "journal": self.journal.look(),
            "gone": sorted(self.gone),
        }

    def conclude(self, saved: Mapping[str, Any]) -> None:
        """Write down that the model is saved: after a restart, nothing is computed again.

        Parameters
        ----------
        saved
            What there is to say of the model, in plain JSON.
        """
        self.journal.conclude(saved)
        self.saved = dict(saved)

    def finish(self) -> list[str]:
        """Stay until the neighbours have what they need; return those that never said so. Then forget the run."""
        late = self._there().finish()
        self.journal.clear()
        return late

    def close(self) -> None:
        """Leave."""
        if self._transport is not None:
            self._transport.close()
        if self.post is not None:
            self.post.close()
        self.journal.close()
