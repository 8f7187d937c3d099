"""What protects one run of an agent: its keys, the sums that are masked with them, and the gate to all that leaves."""

from __future__ import annotations

import hashlib
from collections.abc import Callable

from msgspec import structs

from elmesh.agent.checkpoint import AgentCheckpoint
from elmesh.agent.gate import Gate
from elmesh.agent.releases import Releases, RunFacts
from elmesh.comm.masking import MaskedSums
from elmesh.comm.network.gather import TreeGather
from elmesh.comm.network.keys import RunKeys, make_bundle
from elmesh.comm.network.messenger import Log, ReliableMessenger, Session
from elmesh.comm.network.roster import Roster, agree_on_roster, confirm_view
from elmesh.comm.network.sealing import SealedSession
from elmesh.comm.network.wire import eviction_body
from elmesh.comm.row_counts import sure_rows
from elmesh.netconfig.config import NetworkConfig
from elmesh.netconfig.identity import Identity
from elmesh.privacy.accounting import epsilon_of, rho_for
from elmesh.privacy.discrete_gaussian import NoiseSource

__all__ = ["RunSecurity", "needed_kinds"]

# The delta of an epsilon that is shown where the network file states none.
_DELTA = 1e-5


class RunSecurity:
    """The keys and the releases of a run, whose checkpoint is open.

    ``confirm`` is called with a text if a person has to confirm what leaves, and returns whether that person does.
    """

    def __init__(
        self, identity: Identity, checkpoint: AgentCheckpoint, confirm: Callable[[str], bool], log: Log
    ) -> None:
        self._identity, self._checkpoint, self._log = identity, checkpoint, log
        self._credentials, self._keys = identity.credentials(), RunKeys(checkpoint.seed)
        gate, privacy = Gate.read(identity.gate) if identity.gate.is_file() else Gate(), identity.config.privacy
        if privacy is not None and gate.largest_epsilon is None:
            # What the network file states is the budget of the site's rows, over all runs.
            gate = structs.replace(gate, largest_epsilon=privacy.epsilon)
        self.releases = Releases(
            identity.log,
            checkpoint.spool,
            identity.name,
            self._credentials,
            gate,
            checkpoint.persist,
            confirm,
            epsilon_of,
        )
        checkpoint.on_saved = self.releases.forget
        self._rows, self._colluders = 0, identity.config.colluders
        self._roster: Roster | None = None
        self._sums: MaskedSums | None = None
        #: Bytes of keys that were sent to each neighbour.
        self.keys_sent: dict[str, int] = {}

    @property
    def fingerprint(self) -> str | None:
        """The fingerprint of all agents' certificates, once they have agreed on keys."""
        return None if self._roster is None else self._roster.fingerprint

    def begin(self, config: NetworkConfig, table: str, rows: int, *, again: bool) -> None:
        """Begin a run with the agents of ``config``, or begin it anew without those that were evicted."""
        self._roster, self._sums, self._rows, privacy = None, None, rows, config.privacy
        facts = RunFacts(
            run=f"{self._checkpoint.run_id:016x}",
            network=config.name,
            file=self._identity.config.digest.hex(),
            exchange=config.exchange,
            sites=tuple(config.agent_names),
            table=table,
            rows=rows,
            colluders=config.colluders,
            delta=_DELTA if privacy is None else privacy.delta,
        )
        rho = 0.0 if privacy is None else rho_for(privacy.epsilon, privacy.delta)
        self.releases.begin(facts, rho=rho, again=again, kinds=needed_kinds(config))

    def seal(self, session: Session) -> SealedSession:
        """Return a session whose messages only the neighbours themselves can read."""
        identity = self._identity
        network, routed = identity.config.digest, bool(identity.config.routers)
        return SealedSession(
            session, identity.name, network, self._keys, self._bundle("bundle", self._keys), self._credentials,
            routed=routed, log=self._log,
        )  # fmt: skip

    @property
    def _sum_keys(self) -> RunKeys:
        """The keys of sums: new ones after an eviction."""
        return self._keys.without(self._epoch) if self._checkpoint.evicted else self._keys

    def _bundle(self, note: str, keys: RunKeys) -> bytes:
        """Return a key bundle, which is on disk before it is sent: no two signatures are the same."""
        checkpoint, identity = self._checkpoint, self._identity
        if note not in checkpoint.notes:
            digest, about = identity.config.digest, (self._credentials, self._rows, self.releases.log_end)
            bundle = make_bundle(identity.name, digest, checkpoint.run_id, keys, *about)
            checkpoint.note(note, bundle.hex())
        return bytes.fromhex(checkpoint.notes[note])

    def masked_sums(self, config: NetworkConfig, messenger: ReliableMessenger) -> MaskedSums:
        """Return the masked sums of this run; all agents agree on keys first."""
        if self._sums is None:
            self._roster = self._agree_on_keys(config, messenger)
            self._sums = self._roster.masked_sums(config.index(self._identity.name), self._sum_keys, self._epoch)
            others = [one for one in self._roster.keys if one.name != self._identity.name]
            replaced = self.releases.witness({one.name: (one.log_lines, one.log_end) for one in others})
            if replaced:
                self._log("replaced logs", names=replaced)
            self._log("keys", fingerprint=self._roster.fingerprint, digest=self._roster.digest.hex())
        return self._sums

    def sure_rows(self) -> int:
        """Return how many rows the agents that do not collude have at least, once all have agreed on keys."""
        if self._roster is None:
            raise TypeError("The agents have not agreed on keys yet.")
        return sure_rows([keys.rows for keys in self._roster.keys], self._colluders)

    def _agree_on_keys(self, config: NetworkConfig, messenger: ReliableMessenger) -> Roster:
        network, known = self._identity.config.digest, self._checkpoint.notes.get("roster")
        # Before the first state is saved a run starts from its first message.
        if known is not None and self._checkpoint.latest_state() is not None:
            return Roster.from_json(known, network, self._credentials)
        gather = _gather(config, messenger)
        keys = self._sum_keys
        bundle = self._bundle("bundle" if keys is self._keys else "sum bundle", keys)
        roster = agree_on_roster(gather, config.agent_names, keys, bundle, network, self._credentials)
        self.keys_sent = gather.sent
        self._checkpoint.note("roster", roster.to_json())
        return roster

    def noise(self) -> NoiseSource:
        """Return where this agent draws its noise from: the same after a restart, and other noise after an eviction."""
        return NoiseSource(self._keys.noise(self._epoch))

    @property
    def _epoch(self) -> bytes:
        """The digest of the names of the evicted."""
        return hashlib.sha256(eviction_body(self._checkpoint.evicted)).digest()

    def confirm_totals(self, config: NetworkConfig, messenger: ReliableMessenger) -> None:
        """Make sure that all agents have the same keys and were sent the same totals; raise otherwise."""
        if self._roster is not None and self._sums is not None:
            confirm_view(_gather(config, messenger), self._roster, self._sum_keys, self._sums.view)

    def close(self) -> None:
        """Close the log."""
        self.releases.close()


def _gather(config: NetworkConfig, messenger: ReliableMessenger) -> TreeGather:
    return TreeGather(messenger, config.agent_names, config.topology)


def needed_kinds(config: NetworkConfig) -> list[str]:
    """Return the kinds of release that a run of a network certainly needs."""
    if config.exchange == "basis":
        return ["basis"]
    if config.privacy is not None:
        return ["private"]
    solver = config.make_solver()
    given = solver.get_params()
    blocks = given.get("certify", False) or given.get("rank", 0) != 0
    return ["numbers", *(["block"] if blocks else []), *(["matrix"] if solver.matrix_sums else [])]
