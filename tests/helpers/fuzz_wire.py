"""Arbitrary bytes from a neighbour: everything that reads them, fed by atheris or by a test.

Run ``python tests/helpers/fuzz_wire.py -runs=1000000``; options are those of libFuzzer. The first byte of an input
selects the reader of the rest.
"""

from __future__ import annotations

import contextlib
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np

from elmesh.agent.diagnostics import PeerCheck, Pinger
from elmesh.comm.allreduce import TreeAllReduce
from elmesh.comm.graph import make_topology
from elmesh.comm.masking import MaskedSums, PairwiseMasks
from elmesh.comm.network.edge_queue import EdgeQueue
from elmesh.comm.network.endpoint import Endpoint
from elmesh.comm.network.errors import EvictionError, PeerError, RefusedError
from elmesh.comm.network.gather import TreeGather
from elmesh.comm.network.keys import RunKeys, make_bundle, open_bundle
from elmesh.comm.network.messenger import ReliableMessenger
from elmesh.comm.network.peer import LinkState, Timing
from elmesh.comm.network.sealing import SealedSession
from elmesh.comm.network.transport import NetworkTransport
from elmesh.comm.network.wire import HEADER_BYTES, Kind, Message, WireError, encode, epoch_of, parse
from elmesh.comm.requests import IntegerSum, NeighborSum, Topic
from helpers.credentials import NamedCredentials

SHAPE = (4, 3)
DIGEST = bytes(range(32))
ENDPOINT = Endpoint(
    network="fuzz",
    name="north",
    neighbors={"mallory": ("north",), "north": ("mallory",), "south": ()},
    addresses={name: f"127.0.0.1:{7000 + k}" for k, name in enumerate(("mallory", "north", "south"))},
    routers=(),
    listen="127.0.0.1:7001",
    key=Path("key.pem"),
    certificate=Path("certificate.pem"),
    authority=Path("ca.pem"),
    digest=DIGEST,
)
#: What is summed, in integers of each width.
REQUESTS = {bits: IntegerSum(np.zeros(12, np.int64), Topic.BLOCK, bits) for bits in (16, 32, 64)}
VIEW = bytes(range(100, 132))
MAX_NORM = 1e3
RUN, MALLORY_RUN = 7, 1
# Inputs that one agent reads before the next one has its turn, and bytes of memory that fuzzing may take.
_TURNS, _MOST = 500, 100 << 20


class Discard:
    """A session that sends nothing, after a check that it could be read."""

    def put(self, to: str, data: bytes) -> None:
        parse(data)


class Nothing:
    """A session that sends nothing."""

    def put(self, to: str, data: bytes) -> None:
        pass


ORDERS = (["north", "mallory"], ["mallory", "north"])


class Victim:
    """North, whose neighbour mallory sends anything."""

    def __init__(self, patience: float = 0.0) -> None:
        self.logged: list[str] = []
        # Without patience an agent that waits for a message that has not arrived gives up at once.
        self.messenger = ReliableMessenger(ENDPOINT, Discard(), Timing(patience=patience), RUN, self.log)
        self.root = self.transport(max_norm=MAX_NORM)
        self.leaf = self.transport(root="mallory")
        self.gathers = [TreeGather(self.messenger, names, make_topology("path", range(2))) for names in ORDERS]
        keys = RunKeys(bytes(32))
        bundle = make_bundle("north", DIGEST, RUN, keys, NamedCredentials("north"))
        self.sealed = SealedSession(Nothing(), "north", DIGEST, keys, bundle, NamedCredentials("north"), log=self.log)
        self.sealed.listen(self.messenger.on_message, lambda name: None, self.messenger.on_invalid)
        self.check = PeerCheck("mallory", ENDPOINT.addresses["mallory"])
        self.pinger = Pinger(ENDPOINT, {"mallory": self.check}, Discard())
        self.turns = 0

    def transport(self, root: str = "north", masked: bool = True, **options: Any) -> NetworkTransport:
        """Return a transport between the two, in which one of them is the root of sums."""
        names = next(order for order in ORDERS if order[0] == root)
        me = names.index("north")
        sums = MaskedSums(PairwiseMasks(me, {1 - me: bytes(32)}), VIEW) if masked else None
        return NetworkTransport(self.messenger, names, make_topology("path", range(2)), sums=sums, **options)

    def log(self, event: str, **fields: object) -> None:
        self.logged.append(f"{event} {' '.join(map(str, fields.values()))}")
        if event == "worker":
            raise AssertionError(self.logged[-1])

    def close(self) -> None:
        self.sealed.close()
        self.messenger.close()

    def deliver(self, data: bytes) -> None:
        """Have a message arrive as mallory's first."""
        self.messenger.restore({"mallory": LinkState(MALLORY_RUN, 0, 0, ())})
        self.messenger.on_message("mallory", data)

    def read(self, data: bytes) -> None:
        """Read a message as a value, a partial sum and a total."""
        self.deliver(data)
        with self.refusing():
            value = self.root.neighbor_sum(NeighborSum(np.zeros((1, *SHAPE))))[0]
            assert value.shape == SHAPE
            assert np.linalg.norm(value) <= MAX_NORM * (1 + 1e-9)
        for transport in (self.root, self.leaf):
            self.deliver(data)
            self.sum(transport)
        for gather in self.gathers:
            self.deliver(data)
            with self.refusing():
                assert len(gather.gather(b"own", 100, lambda name, entry: None)) == 2

    def sum(self, transport: NetworkTransport, bits: int = 64) -> None:
        with self.refusing():
            total = transport.integer_sum(REQUESTS[bits])
            assert total.shape == (12,)

    @contextlib.contextmanager
    def refusing(self) -> Iterator[None]:
        try:
            yield
        except (PeerError, EvictionError) as problem:
            text = str(problem)
            assert text.isprintable(), repr(text)
            assert len(text) < 1000
            # It cannot be known whose mask has not cancelled, nor who has changed a list.
            if isinstance(problem, RefusedError) and not problem.names <= {"mallory"}:
                raise AssertionError(problem.names) from None


def read_parse(victim: Victim, data: bytes) -> None:
    with contextlib.suppress(WireError):
        message = parse(data)
        assert len(message.body) == len(data) - HEADER_BYTES
        value, square = message.matrix(*SHAPE)
        assert value.shape == SHAPE
        assert np.isfinite(value).all()
        assert square >= 0


def read_message(victim: Victim, data: bytes) -> None:
    victim.read(data)


def read_header(victim: Victim, data: bytes) -> None:
    """Read a message of mallory's own whose other fields are arbitrary."""
    fields = np.frombuffer(data[:32].ljust(32, b"\0"), "<u4").tolist()
    kind = list(Kind)[fields[0] % len(Kind)]
    head = {
        "epoch": fields[1] if fields[0] & 0x100 else 0,
        "number": fields[2] if fields[0] & 0x200 else fields[2] % 4,
        "acked": fields[3] if fields[0] & 0x400 else 0,
        "run_id": fields[4] if fields[0] & 0x800 else MALLORY_RUN,
        "peer_run_id": fields[5] if fields[0] & 0x1000 else RUN,
        "shape": (fields[6], fields[7]) if fields[0] & 0x2000 else SHAPE,
        "is_bytes": bool(fields[0] & 0x4000),
        "view": VIEW if fields[0] & 0x8000 else bytes(32),
    }
    victim.read(encode(kind, "mallory", DIGEST, **head, body=data[32:]))


def read_evicted(victim: Victim, data: bytes) -> None:
    names = data.decode("latin-1").split("\n")
    victim.read(encode(Kind.EVICTED, "mallory", DIGEST, epoch=epoch_of(names), run_id=MALLORY_RUN, body=data))


def read_failed(victim: Victim, data: bytes) -> None:
    victim.read(encode(Kind.FAILED, "mallory", DIGEST, run_id=MALLORY_RUN, peer_run_id=RUN, body=data))


def read_sum(victim: Victim, data: bytes) -> None:
    """Read a partial sum of mallory's, with masks and without, in integers of every width."""
    for masked in (True, False):
        for bits in REQUESTS:
            victim.deliver(partial_sum(data, VIEW if masked else bytes(32)))
            victim.sum(victim.transport(masked=masked), bits)


def read_list(victim: Victim, data: bytes) -> None:
    for gather, kind in zip(victim.gathers, (Kind.PARTIAL_LIST, Kind.LIST), strict=True):
        victim.deliver(encode(kind, "mallory", DIGEST, run_id=MALLORY_RUN, is_bytes=True, body=data))
        with victim.refusing():
            assert len(gather.gather(b"own", 100, lambda name, entry: None)) == 2


def read_bundle(victim: Victim, data: bytes) -> None:
    with contextlib.suppress(WireError):
        assert len(open_bundle(data, DIGEST, NamedCredentials("north")).agreement) == 32


def read_frame(victim: Victim, data: bytes) -> None:
    victim.messenger.restore({"mallory": LinkState(MALLORY_RUN, 0, 0, ())})
    victim.sealed.receive("mallory", data)
    with victim.refusing():
        victim.messenger.receive([], Kind.VALUE)


def read_ping(victim: Victim, data: bytes) -> None:
    victim.pinger.on_message("mallory", data)
    assert victim.check.clock is None or np.isfinite(victim.check.clock)


READERS: tuple[Callable[[Victim, bytes], None], ...] = (
    read_parse,
    read_message,
    read_header,
    read_evicted,
    read_failed,
    read_sum,
    read_list,
    read_bundle,
    read_frame,
    read_ping,
)
_now = SimpleNamespace(victim=None, check=lambda: None)


def partial_sum(body: bytes, view: bytes = VIEW, kind: Kind = Kind.PARTIAL_SUM, length: int | None = None) -> bytes:
    """Return a partial sum of mallory's: of 12 integers, and with masks of the words that totals are checked by."""
    checks = 0 if view == bytes(32) else 64 * 12 // max(8 * len(body) - 64, 1)
    shape = (1, 12 + checks if length is None else length)
    return encode(kind, "mallory", DIGEST, run_id=MALLORY_RUN, shape=shape, is_bytes=True, view=view, body=body)


def feed(data: bytes) -> None:
    """Have one reader read an input; raises whatever is not a refusal."""
    if not data:
        return
    if _now.victim is None or _now.victim.turns >= _TURNS:
        if _now.victim is not None:
            _now.victim.close()
        _now.victim = Victim()
        _now.check()
    victim = _now.victim
    victim.turns += 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        READERS[data[0] % len(READERS)](victim, data[1:])


def resident() -> int:
    """Return the bytes of memory that this process has."""
    return 4096 * int(Path("/proc/self/statm").read_text().split()[1])


def seeds() -> list[bytes]:
    """Return valid inputs for every reader."""
    rng = np.random.default_rng(0)
    value = rng.normal(size=SHAPE)
    own = {"run_id": MALLORY_RUN, "peer_run_id": RUN}
    whole = [encode(kind, "mallory", DIGEST, **own, shape=SHAPE, body=value.tobytes()) for kind in Kind]
    whole += [partial_sum(bytes(8 * 13), VIEW, kind) for kind in (Kind.PARTIAL_SUM, Kind.TOTAL)]
    whole += [encode(Kind.EVICTED, "mallory", DIGEST, epoch=epoch_of(["south"]), run_id=MALLORY_RUN, body=b"south")]
    whole += [encode(Kind.PONG, "mallory", DIGEST, number=1, body=bytes(8))]
    sums = [bytes(12 * bits // 8 + checks) for bits in REQUESTS for checks in (0, 8)]
    lists = [msgspec.msgpack.encode({"mallory": b"entry"}), msgspec.msgpack.encode({"mallory": b"x", "north": b"own"})]
    bundle = make_bundle("mallory", DIGEST, MALLORY_RUN, RunKeys(bytes(range(32))), NamedCredentials("mallory"))
    inputs = {
        read_parse: whole,
        read_message: whole,
        read_header: [np.arange(8, dtype="<u4").tobytes() + value.tobytes()],
        read_evicted: [b"south"],
        read_failed: [b"the disk is full"],
        read_sum: sums,
        read_list: lists,
        read_bundle: [bundle],
        read_frame: [b"ELH1" + bundle, b"ELH2" + bundle, b"ELS1" + bytes(60), whole[0]],
        read_ping: whole,
    }
    return [bytes([k]) + one for k, reader in enumerate(READERS) for one in inputs[reader]]


def main() -> None:
    """Fuzz with the options of libFuzzer; a folder among them is the corpus, filled with seeds if it is empty."""
    import atheris

    for folder in (Path(option) for option in sys.argv[1:] if not option.startswith("-")):
        folder.mkdir(exist_ok=True)
        if not any(folder.iterdir()):
            for number, seed in enumerate(seeds()):
                (folder / f"seed-{number}").write_bytes(seed)
    # Not by libFuzzer's own limit, which counts what the process has used before.
    before = resident()

    def check() -> None:
        assert resident() < before + _MOST, "memory is not released"

    _now.check = check
    for function in (
        parse,
        Message.check_shape,
        Message.matrix,
        Message.evicted,
        EdgeQueue.put,
        TreeAllReduce.integer_sum,
        TreeGather.gather,
        open_bundle,
        SealedSession.receive,
        ReliableMessenger.on_message,
        Pinger.on_message,
    ):
        atheris.instrument_func(function)
    atheris.Setup(sys.argv, feed)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
