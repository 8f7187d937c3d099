"""One agent of a network: from its table to its model, together with the other sites.

    with NetworkAgent("net/north/agent.toml") as agent:
        result = agent.fit("north.csv", target="y", out="north-model")

An agent that is killed or stopped resumes from its checkpoint when the same is run again. A neighbour that is lost for
good, or sends invalid messages, ends the run or, by choice, is evicted: then the other agents start again without it,
as if it had never been there.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self

import pandas as pd

from elmesh.agent.backend import NetworkBackend
from elmesh.agent.checkpoint import AgentCheckpoint, CheckpointTiming
from elmesh.agent.column_scales import exchange_scales
from elmesh.agent.confirmation import pending_confirmation
from elmesh.agent.earlier_basis import earlier_basis
from elmesh.agent.limits import max_message_bytes
from elmesh.agent.run_security import RunSecurity
from elmesh.agent.site_data import load_table, table_digest
from elmesh.agent.status import seconds_left
from elmesh.checks import check_choice, check_number
from elmesh.comm.masking import MaskedSums
from elmesh.comm.network.errors import EvictionError, FailedError, LostError, PeerError, RefusedError, StoppedError
from elmesh.comm.network.messenger import Log, ReliableMessenger
from elmesh.comm.network.peer import Counters, Timing
from elmesh.comm.network.sealing import SealedSession
from elmesh.comm.network.zenoh_session import ZenohSession
from elmesh.errors import ElmeshError
from elmesh.estimators.classifier import MultiTaskELMClassifier
from elmesh.estimators.regressor import MultiTaskELMRegressor
from elmesh.estimators.storage import CARD
from elmesh.files import atomic_write
from elmesh.netconfig.identity import Identity
from elmesh.netconfig.schema import make_schema
from elmesh.privacy.report import ReleasedTotal
from elmesh.run.array_io import SavedRun
from elmesh.run.config import RunConfig
from elmesh.run.monitor import RoundSnapshot
from elmesh.run.result import Progress, RunHistory
from elmesh.solvers.traffic_estimate import TrafficEstimate
from elmesh.tables import FILE_TASK, TableSchema, whole_labels
from elmesh.text import listed
from elmesh.typing import FloatArray, StrPath

__all__ = ["AgentResult", "NetworkAgent", "Phase"]

Phase = Literal["starting", "waiting", "fitting", "staying", "scheduled", "ended", "failed", "stopped"]
# Seconds between looks for a person's answer.
_CONFIRMATION_INTERVAL = 0.2
Estimator = MultiTaskELMClassifier | MultiTaskELMRegressor


@dataclass(frozen=True)
class AgentResult:
    """What an agent's fit produced; the model itself is in the folder ``out``.

    Parameters
    ----------
    out : str
        The folder of the model.
    summary : dict
        Plain JSON about the model: solver, rank, rounds, bytes, certificate, columns and more.
    evicted : list of str
        Agents that the run continued without.
    unconfirmed : list of str
        Neighbours that never confirmed that they need nothing more of this agent.
    """

    out: str
    summary: dict[str, Any]
    evicted: list[str]
    unconfirmed: list[str]


class NetworkAgent:
    """One agent of a network.

    Parameters
    ----------
    identity : path or Identity
        The agent's file, ``agent.toml``.
    patience : float, default=600.0
        Seconds that a neighbour may be absent before it is lost.
    on_loss : {"stop", "continue"}, default="stop"
        When a neighbour is lost: end the run, or start again without it.
    on_invalid : {"stop", "isolate"}, default="stop"
        When a neighbour sends an invalid message: end the run, or start again without it.
    fresh : bool, default=False
        Whether to start again, whatever the checkpoint holds; all agents must.
    release_again : bool, default=False
        Whether to release totals although an earlier run has released totals of other rows of this site, or of nearly
        the same sites; their difference may reveal what has changed.
    confirm : callable, optional
        Called with a text before the first release, if the gate of the site asks for a person; returns whether that
        person confirms. By default the agent waits for ``elmesh network confirm``.
    log : callable, optional
        Called with the name of an event, and fields.
    timing, checkpoint_timing : optional
        Timing of messages and of checkpoints; ``patience`` takes precedence.

    Examples
    --------
    In a program at the site "north"::

        with NetworkAgent("net/north/agent.toml") as agent:
            result = agent.fit("north.csv", target="y", out="north-model")
    """

    def __init__(
        self,
        identity: StrPath | Identity,
        *,
        patience: float = 600.0,
        on_loss: str = "stop",
        on_invalid: str = "stop",
        fresh: bool = False,
        release_again: bool = False,
        confirm: Callable[[str], bool] | None = None,
        log: Log = lambda *_, **__: None,
        timing: Timing | None = None,
        checkpoint_timing: CheckpointTiming | None = None,
    ) -> None:
        check_number("patience", patience)
        check_choice("on_loss", on_loss, ("stop", "continue"))
        check_choice("on_invalid", on_invalid, ("stop", "isolate"))
        self.identity = identity if isinstance(identity, Identity) else Identity.read(identity)
        #: The network of the agents that take part: without those that were evicted.
        self.config = self.identity.config
        self._timing = replace(timing or Timing(), patience=patience)
        self._on_loss, self._on_invalid, self._fresh, self.log = on_loss, on_invalid, fresh, log
        self._release_again, self._confirm = release_again, confirm or self._wait_for_confirmation
        self.checkpoint = AgentCheckpoint(
            self.identity.state, replace(checkpoint_timing or CheckpointTiming(), patience=patience), log
        )
        self._session: ZenohSession | None = None
        self._sealed: SealedSession | None = None
        self._messenger: ReliableMessenger | None = None
        self._security: RunSecurity | None = None
        self._table, self._rows = "", 0
        #: Totals that were released with noise before the fit.
        self.released: tuple[ReleasedTotal, ...] = ()
        #: The basis of an earlier model that the run starts from, if any.
        self.start: FloatArray | None = None
        self._stopping = False
        self._resumed: int | None = None
        #: The last round of the run, -1 before the first; the phase and the problem of the agent; the last progress.
        self.round = -1
        self.phase: Phase = "starting"
        self.problem: str | None = None
        self.progress: Progress | None = None
        self._first: tuple[float, int] | None = None  # time and number of the first round of this process
        self._latest = 0.0  # time of the last round

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def name(self) -> str:
        """The agent's name."""
        return self.identity.name

    @property
    def resumes(self) -> bool:
        """Whether there is a run to resume."""
        return self.checkpoint.exists and not self._fresh

    @property
    def messenger(self) -> ReliableMessenger:
        """The agent's messages, once it is open."""
        if self._messenger is None:
            raise TypeError("The agent is not open yet.")
        return self._messenger

    @property
    def security(self) -> RunSecurity:
        """What protects the run, once the agent is open."""
        if self._security is None:
            raise TypeError("The agent is not open yet.")
        return self._security

    # A fit from the table to the saved model.

    def fit(
        self,
        data: StrPath | pd.DataFrame,
        target: str | Sequence[str],
        out: StrPath,
        *,
        overwrite: bool = False,
        earlier: StrPath | None = None,
        callback: Callable[[Progress], bool | None] | None = None,
    ) -> AgentResult:
        """Learn together with the other agents, save this agent's model, and stay until the neighbours are done.

        Parameters
        ----------
        data : path or DataFrame
            This site's rows: a CSV or Parquet file, or a table. They do not leave the site.
        target : str or sequence of str
            Column to predict; several for a regression.
        out : path
            Folder to save the model in.
        overwrite : bool, default=False
            Whether to replace a model that is there; a resumed run replaces its own.
        earlier : path, optional
            A model of an earlier run of this network. With ``exchange = "basis"`` the run starts from its basis, if
            its features and its rank are the same.
        callback : callable, optional
            Called with a :class:`~elmesh.run.Progress` after every round.

        Raises
        ------
        PeerError
            If a neighbour was lost, sent an invalid message, or ended the run.
        StoppedError
            If :meth:`stop` was called; the same call resumes later.
        """
        targets, folder = [target] if isinstance(target, str) else list(target), Path(out)
        with self.record_failure():
            own = self.resumes and (folder / "model.json").is_file()
            if folder.exists() and not overwrite and not own:
                raise ElmeshError(f"{folder} exists already; choose another path, or pass overwrite=True.")
            frame = load_table(data, self.identity.config, self.name, targets)
            fields = {"target": targets, "out": str(folder.absolute()), "data": table_digest(frame)}
            if not self.identity.config.unscaled_columns:
                # What is wrong with the table or the target is an error before there is a run to resume.
                self.schema(frame, targets).encode(frame)
            self.open(fields, rows=len(frame))
            state = self.checkpoint.latest_state()
            result = None if state is None else state.result
            if result is not None and not (folder / "model.json").is_file():
                raise ElmeshError(
                    f"The model that this run saved in {folder} is missing; restore it, or start again with --fresh, "
                    "here and at every other agent."
                )
            while True:
                try:
                    if result is None:
                        result = self._learn(frame, targets, folder, earlier, callback)
                    self.phase = "staying"
                    self.log("saved", out=str(folder))
                    unconfirmed = self.finish()
                    break
                except (PeerError, EvictionError) as problem:
                    self.handle_failure(problem)  # starts again without some agents, or raises
                    result = None
            if unconfirmed:
                self.log("unconfirmed", names=unconfirmed)
            self.phase = "ended"
            return AgentResult(str(folder), result, sorted(self.checkpoint.evicted), unconfirmed)

    @contextmanager
    def record_failure(self) -> Iterator[None]:
        """Record what ends the agent inside, as its phase and its problem."""
        try:
            yield
        except StoppedError:
            self.phase = "stopped"
            raise
        except ElmeshError as error:
            self.phase, self.problem = "failed", str(error)
            raise

    def _learn(
        self,
        frame: pd.DataFrame,
        targets: Sequence[str],
        out: Path,
        earlier: StrPath | None,
        callback: Callable[[Progress], bool | None] | None,
    ) -> dict[str, Any]:
        """Fit together with the others and save the model; return its summary."""
        schema = self.schema(frame, targets)
        X, tasks = schema.encode(frame)
        model = self.estimator(X.shape[1])
        self.phase = "fitting"
        config = self.identity.config
        if earlier is not None and config.exchange == "basis":
            self.start = earlier_basis(earlier, model, X.shape[1], int(config.make_solver().rank))
            self.log("warm start", earlier=str(earlier), found=self.start is not None)
        if config.model_solver().grouped_features != config.make_solver().grouped_features:
            self.log("undeclared classes", network=config.name)

        def on_round(progress: Progress) -> bool | None:
            self.progress, self._latest = progress, time.monotonic()
            self._first = self._first or (self._latest, progress.round)
            return None if callback is None else callback(progress)

        def on_estimate(estimate: TrafficEstimate) -> None:
            text = f"{estimate.sentence()} Headers, keys and small sums come on top."
            self.log("estimate", text=text, bytes=estimate.start, bytes_per_round=estimate.per_round)

        run = RunConfig(backend=NetworkBackend(self), callback=on_round, on_estimate=on_estimate)
        model.fit(X, schema.targets(frame), tasks=tasks, run=run)
        self.security.confirm_totals(self.config, self.messenger)
        model.save(out, overwrite=out.exists(), extra={"table": schema.to_json()})
        columns: dict[str, Any] = {
            "columns": schema.feature_names,
            "rows": len(X),
            "tasks": list(self.config.agent_names),
        }
        facts = model.summary()
        columns |= {"noise": schema.noise_in_units(facts["noise"]), "gains": None}
        if model.model_.common is not None:
            gains = model.site_gains(X, schema.targets(frame), tasks=tasks, pooled=False)
            units = schema.target_units if schema.kind == "regression" else 1.0
            gains = gains.in_units(units) if isinstance(units, float) else gains
            columns["gains"] = gains.to_json()
            atomic_write(out / CARD, model.model_card(gains, schema).encode())
        summary = {**facts, **columns, "targets": [column.name for column in schema.target_columns]}
        self.checkpoint.mark_saved(summary)
        return summary

    def schema(self, frame: pd.DataFrame, targets: Sequence[str]) -> TableSchema:
        """Return how the table is encoded: as the network file declares, or by exchanged statistics."""
        config = self.identity.config
        if config.classes is not None:
            whole = isinstance(config.classes[0], int)
        else:
            whole = config.kind == "classification" and whole_labels(frame, targets[0])
        statistics = exchange_scales(self, frame, config.unscaled_columns) if config.unscaled_columns else {}
        return make_schema(config, FILE_TASK, targets, whole, statistics)

    def estimator(self, n_columns: int) -> Estimator:
        """Return the estimator that the network file declares, for so many encoded columns."""
        config = self.identity.config
        parameters: dict[str, Any] = {
            "n_hidden": config.n_hidden,
            "activation": config.activation,
            "weight_scale": config.weight_scale_for(n_columns),
            "solver": config.model_solver(),
            "fit_intercept": config.fit_intercept,
            "random_state": config.seed,
        }
        if config.kind == "regression":
            return MultiTaskELMRegressor(**parameters)
        declared = config.classes is not None and config.model_solver().has_common_part
        return MultiTaskELMClassifier(**parameters, shared_classes=list(config.classes or ()) if declared else False)

    # The run, and what interrupts it.

    def open(self, fields: Mapping[str, Any], rows: int = 0) -> None:
        """Connect to the neighbours, to compute what ``fields`` describe; a checkpoint of something else is refused."""
        identity, checkpoint = self.identity, self.checkpoint
        asked = {"network file": identity.config.digest.hex(), "agent": identity.name, **fields}
        resumes = checkpoint.open(asked, self._fresh)
        self._fresh = False
        self._table, self._rows = str(fields.get("data", "")), rows
        endpoint, evicted = identity.endpoint(), checkpoint.evicted
        self._security = RunSecurity(identity, checkpoint, self._confirm, self.log)
        if evicted:
            self.config = identity.config.without(evicted, identity.name)
        try:
            self._begin_releases()
        except ElmeshError:
            if not resumes:
                checkpoint.clear()  # nothing has left, so that there is nothing to resume
            raise
        self._session = ZenohSession(
            endpoint,
            max_message_bytes(identity.config),
            on_stranger=lambda name, address: self.log("stranger", name=name, address=address),
        )
        self._sealed = self._security.seal(self._session)
        self._messenger = ReliableMessenger(endpoint, self._sealed, self._timing, checkpoint.run_id, self.log)
        if evicted:
            self._messenger.evict(evicted, self.config.neighbors(identity.name))
        # Before the first message: neighbours continue from numbers that only the checkpoint has.
        state = checkpoint.latest_state()
        if state is not None:
            self._messenger.restore(state.links)
        self._messenger.recall(checkpoint.notes.get("done", ()), checkpoint.notes.get("acknowledged", ()))
        checkpoint.attach(self._messenger)
        if self._stopping:
            self._messenger.stop()
        self._sealed.listen(self._messenger.on_message, self._messenger.on_link, self._messenger.on_invalid)
        self._session.listen(self._sealed.receive, self._messenger.on_presence)
        self.log(
            "open",
            agent=identity.name,
            network=identity.config.name,
            address=identity.address,
            neighbors=identity.config.neighbors(identity.name),
            file=identity.config.digest.hex(),
        )

    # What protects the run.

    def _begin_releases(self) -> None:
        self.security.begin(self.config, self._table, self._rows, again=self._release_again)

    def masked_sums(self) -> MaskedSums:
        """Return the masked sums of this run; all agents agree on keys first."""
        return self.security.masked_sums(self.config, self.messenger)

    def _wait_for_confirmation(self, text: str) -> bool:
        """Wait until a person has answered with ``elmesh network confirm``."""
        self.phase = "waiting"
        self.log("confirmation", text=text)
        with pending_confirmation(self.identity.state, text) as answer:
            while (found := answer()) is None:
                self.messenger.check_stop()
                time.sleep(_CONFIRMATION_INTERVAL)
        self.phase = "fitting"
        return found

    def latest(self, remote: Sequence[int] = ()) -> SavedRun | None:
        """Return the saved run that a fit resumes from."""
        return self.checkpoint.latest(remote)

    def save(self, snapshot: RoundSnapshot, history: Callable[[], RunHistory]) -> None:
        """Save a snapshot if one is due, and note the round."""
        self.round = snapshot.report.round
        if self._resumed is not None and self.round > self._resumed:
            self._resumed = None
            self.log("rejoined", round=self.round)
        self.checkpoint.save(snapshot, history)

    def on_resume(self, k: int) -> None:
        """Note the round that a run resumes from."""
        self._resumed = k
        self.log("resumed", round=k)

    def handle_failure(self, problem: EvictionError | PeerError) -> None:
        """Evict lost agents if that is wanted, so that the run starts again without them; otherwise raise."""
        messenger = self.messenger
        if isinstance(problem, LostError):
            self.checkpoint.check()  # neighbours stall when they have to buffer too much for this agent
        if isinstance(problem, EvictionError):
            # Others may have refused what has not reached this agent.
            if self._on_loss == "stop" and self._on_invalid == "stop":
                without = ", ".join(sorted(problem.evicted))
                raise self._fail(
                    FailedError(
                        [],
                        f"{problem.by} continues without {without}, and this agent is set to stop then; with --on-loss "
                        "continue it would continue as well.",
                        f"{messenger.name} is set to stop when an agent is lost.",
                    )
                ) from None
            self._evict(problem.evicted)
            return
        wanted = self._on_invalid == "isolate" if isinstance(problem, RefusedError) else self._on_loss != "stop"
        if not wanted or not problem.names or messenger.name in problem.names:
            raise self._fail(problem) from None
        self.log("lost", names=sorted(problem.names), reason=str(problem))
        self._evict(messenger.evicted | problem.names)

    def _fail(self, problem: PeerError) -> PeerError:
        """Inform the neighbours that the run is over, and why."""
        own = not isinstance(problem, FailedError)
        self.messenger.fail(f"{self.name}: {problem.reason}" if own else problem.reason)
        return problem

    def _evict(self, evicted: frozenset[str]) -> None:
        """Start again without some agents, unless a second total without them would reveal what the first one hides."""
        network, names = self.identity.config, listed(sorted(evicted))
        if self.security.releases.begun:
            raise self._fail(
                FailedError(
                    [],
                    f"The run cannot continue without {names}: sums over all agents were released already, and their "
                    "difference from sums without them would reveal their part. Start again with --fresh at every "
                    "agent when all are back.",
                )
            )
        try:
            rest = network.without(evicted, self.name)
        except ElmeshError as error:
            raise self._fail(FailedError([], f"The run cannot continue without {names}. {error}")) from None
        self.checkpoint.evict(evicted)
        self.config = rest
        self.messenger.evict(evicted, rest.neighbors(self.name))
        self._begin_releases()
        others = [name for name in rest.agent_names if name != self.name]
        self.log("restarted", evicted=sorted(evicted), parts=network.components(evicted), rest=others)

    def finish(self) -> list[str]:
        """Stay until the neighbours have what they need; return those that never confirmed it. Then remove the run."""
        unconfirmed = self.messenger.finish()
        self.checkpoint.clear()
        return unconfirmed

    def stop(self) -> None:
        """Stop where the checkpoint can resume; may be called from a signal handler."""
        self._stopping = True
        if self._messenger is not None:
            self._messenger.stop()

    def status(self) -> dict[str, Any]:
        """Return the state of the run, the neighbours, the traffic and the checkpoint, in plain JSON."""
        messenger, step, totals = self._messenger, self.progress, self._totals()
        if totals is not None and step is not None and step.round == 0:
            step = None  # a fit by sums alone has no rounds
        names = ("round", "rounds", "objective", "consensus_gap", "residual")
        figures: Sequence[float | None] = [None] * len(names)
        left = None
        if step is not None:
            figures = [step.round, step.max_iter, step.objective, step.consensus_gap, step.dual_residual]
        if step is not None and self._first is not None and self.phase == "fitting":
            left = seconds_left(self._first, (self._latest, step.round), step.max_iter)
        elif totals is not None and self.phase == "fitting":
            left = self._left_by_totals(totals["of"])
        return {
            "time": time.time(),
            "phase": self.phase,
            "problem": self.problem,
            **{name: x if x is None or math.isfinite(x) else None for name, x in zip(names, figures, strict=True)},
            "totals": totals,
            "seconds_left": left,
            "patience": self._timing.patience,
            "on_loss": self._on_loss,
            "agent": self.name,
            "network": self.identity.config.name,
            "file": self.identity.config.digest.hex(),
            "neighbors": {} if messenger is None else messenger.status(),
            "traffic": asdict(Counters() if messenger is None else messenger.counters),
            "checkpoint": self.checkpoint.status(),
            "evicted": sorted(self.checkpoint.evicted),
            "keys": None if self._security is None else self._security.fingerprint,
            "releases": None if self._security is None else self._security.releases.summary(),
        }

    def _totals(self) -> dict[str, int] | None:
        """Return how many totals of matrices this run has formed, and how many it takes; None if it forms none."""
        config = self.identity.config
        if self._security is None or config.exchange != "sums" or config.epsilon is not None:
            return None
        most = config.make_solver().matrix_sums
        return {"done": min(self._security.releases.summary()["matrices"], most), "of": most} if most else None

    def _left_by_totals(self, most: int) -> float | None:
        """Return the seconds until all totals of matrices are formed, at their pace here; None if unknown."""
        releases = self.security.releases
        first, times = releases.first_time, releases.matrix_times
        return seconds_left((first, 0), (times[-1], len(times)), most) if first is not None and times else None

    def close(self) -> None:
        """Disconnect, and release the checkpoint and the log."""
        if self._session is not None:
            self._session.close()
        if self._sealed is not None:
            self._sealed.close()
        if self._messenger is not None:
            self._messenger.close()
        if self._security is not None:
            self._security.close()
        self.checkpoint.close()
