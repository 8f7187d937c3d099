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

import numpy as np

from elmesh.agent.diagnostics import PeerCheck, Pinger
from elmesh.comm import codec
from elmesh.comm.allreduce import ChannelSet, TreeAllReduce
from elmesh.comm.graph import make_topology
from elmesh.comm.network.edge_queue import EdgeQueue
from elmesh.comm.network.endpoint import Endpoint
from elmesh.comm.network.errors import EvictionError, PeerError, RefusedError
from elmesh.comm.network.messenger import ReliableMessenger
from elmesh.comm.network.peer import LinkState, Timing
from elmesh.comm.network.transport import NetworkTransport
from elmesh.comm.network.wire import HEADER_BYTES, Kind, Message, WireError, encode, epoch_of, parse
from elmesh.comm.requests import AllReduce, NeighborSum
from elmesh.errors import ElmeshError

SHAPE, N_EXACT = (4, 3), 2
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
REQUEST = AllReduce(np.zeros((1, *SHAPE)), np.zeros((1, N_EXACT)), "fuzz", fine_columns=1)
MAX_NORM = 1e3
RUN, MALLORY_RUN = 7, 1
# Inputs that one agent reads before the next one has its turn, and bytes of memory that fuzzing may take.
_TURNS, _MOST = 500, 100 << 20


class Discard:
    """A session that sends nothing, after a check that it could be read."""

    def put(self, to: str, data: bytes) -> None:
        parse(data)


class Victim:
    """North, whose neighbour mallory sends anything."""

    def __init__(self, patience: float = 0.0) -> None:
        self.logged: list[str] = []
        # Without patience an agent that waits for a message that has not arrived gives up at once.
        self.messenger = ReliableMessenger(ENDPOINT, Discard(), Timing(patience=patience), RUN, self.log)
        self.root = self.transport(max_norm=MAX_NORM)
        self.leaf = self.transport(root="mallory")
        self.quantized = [self.transport(bits) for bits in (2, 8, "auto")]
        self.check = PeerCheck("mallory", ENDPOINT.addresses["mallory"])
        self.pinger = Pinger(ENDPOINT, {"mallory": self.check}, Discard())
        self.turns = 0

    def transport(self, bits: int | str = 64, root: str = "north", **options: Any) -> NetworkTransport:
        """Return a transport between the two, in which one of them is the root of sums."""
        names = ["north", "mallory"] if root == "north" else ["mallory", "north"]
        return NetworkTransport(self.messenger, names, make_topology("path", range(2)), bits, **options)

    def log(self, event: str, **fields: object) -> None:
        self.logged.append(f"{event} {' '.join(map(str, fields.values()))}")
        if event == "worker":
            raise AssertionError(self.logged[-1])

    def close(self) -> None:
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
            self.allreduce(transport)

    def allreduce(self, transport: NetworkTransport) -> None:
        with self.refusing():
            result = transport.allreduce(REQUEST)
            assert result.value.shape == SHAPE
            assert result.exact.shape == (N_EXACT,)
            assert np.isfinite(result.value).all()
            assert np.isfinite(result.exact).all()

    @contextlib.contextmanager
    def refusing(self) -> Iterator[None]:
        try:
            yield
        except (PeerError, EvictionError) as problem:
            text = str(problem)
            assert text.isprintable(), repr(text)
            assert len(text) < 1000
            if isinstance(problem, RefusedError) and problem.names != {"mallory"}:
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
        "quantized": bool(fields[0] & 0x4000),
    }
    victim.read(encode(kind, "mallory", DIGEST, **head, body=data[32:]))


def read_evicted(victim: Victim, data: bytes) -> None:
    names = data.decode("latin-1").split("\n")
    victim.read(encode(Kind.EVICTED, "mallory", DIGEST, epoch=epoch_of(names), run_id=MALLORY_RUN, body=data))


def read_failed(victim: Victim, data: bytes) -> None:
    victim.read(encode(Kind.FAILED, "mallory", DIGEST, run_id=MALLORY_RUN, peer_run_id=RUN, body=data))


def read_quantized(victim: Victim, data: bytes) -> None:
    victim.deliver(partial_sum(data, quantized=True))
    victim.allreduce(victim.quantized[len(data) % len(victim.quantized)])


def read_decode(victim: Victim, data: bytes) -> None:
    with contextlib.suppress(ElmeshError), np.errstate(over="ignore", invalid="ignore"):
        assert codec.decode(data, SHAPE).shape == SHAPE


def read_ping(victim: Victim, data: bytes) -> None:
    victim.pinger.on_message("mallory", data)
    assert victim.check.clock is None or np.isfinite(victim.check.clock)


READERS: tuple[Callable[[Victim, bytes], None], ...] = (
    read_parse,
    read_message,
    read_header,
    read_evicted,
    read_failed,
    read_quantized,
    read_decode,
    read_ping,
)
_now = SimpleNamespace(victim=None, check=lambda: None)


def partial_sum(body: bytes, quantized: bool = False) -> bytes:
    """Return a partial sum of mallory's."""
    return encode(Kind.PARTIAL_SUM, "mallory", DIGEST, run_id=MALLORY_RUN, shape=SHAPE, quantized=quantized, body=body)


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
    value, exact = rng.normal(size=SHAPE), rng.normal(size=N_EXACT)
    own = {"run_id": MALLORY_RUN, "peer_run_id": RUN}
    whole = [encode(kind, "mallory", DIGEST, **own, shape=SHAPE, body=value.tobytes()) for kind in Kind]
    whole += [
        encode(kind, "mallory", DIGEST, **own, shape=SHAPE, body=value.tobytes() + exact.tobytes())
        for kind in (Kind.PARTIAL_SUM, Kind.TOTAL)
    ]
    whole += [encode(Kind.EVICTED, "mallory", DIGEST, epoch=epoch_of(["south"]), run_id=MALLORY_RUN, body=b"south")]
    whole += [encode(Kind.PONG, "mallory", DIGEST, number=1, body=bytes(8))]
    quantized = [
        codec.encode(value[:, :2], bits) + codec.encode(value[:, 2:], 16) + exact.tobytes()
        for bits in (0, 2, 4, 8, 16, 32)
    ]
    inputs = {
        read_parse: whole,
        read_message: whole,
        read_header: [np.arange(8, dtype="<u4").tobytes() + value.tobytes()],
        read_evicted: [b"south"],
        read_failed: [b"the disk is full"],
        read_quantized: quantized,
        read_decode: [codec.encode(value, bits) for bits in (0, 2, 4, 8, 16, 32, 64)],
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
        codec.decode,
        EdgeQueue.put,
        ChannelSet.decode,
        TreeAllReduce.sum,
        ReliableMessenger.on_message,
        Pinger.on_message,
    ):
        atheris.instrument_func(function)
    atheris.Setup(sys.argv, feed)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
