"""Whatever bytes a neighbour sends: everything that reads them, fed by atheris or by a test.

Run ``python tests/fuzz_wire.py -runs=1000000``; options are libFuzzer's. An input's first byte says who reads the rest.
"""

from __future__ import annotations

import contextlib
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import patch

import numpy as np

from elmesh.agent.diagnostics import Finding, _Asking
from elmesh.comm.codec import decode
from elmesh.comm.codec import encode as coarse
from elmesh.comm.network.errors import PeerError, RegroupedError
from elmesh.comm.network.messenger import Post
from elmesh.comm.network.transport import NetworkLink
from elmesh.comm.network.wire import CARRIES, HEADER_BYTES, Kind, WireError, doubles, encode, epoch_of, parse
from elmesh.comm.requests import Total
from elmesh.errors import ElmeshError
from elmesh.netconfig.config import AgentEntry, NetworkConfig

SHAPE, BESIDE = (4, 3), 2
CONFIG = NetworkConfig(
    name="fuzz",
    kind="classification",
    agents=tuple(AgentEntry(name, f"127.0.0.1:{7000 + k}") for k, name in enumerate(("mallory", "north", "south"))),
    edges=(("mallory", "north"), ("north", "south")),
    n_hidden=SHAPE[0],
    rank=SHAPE[1],
    parameters={"mu1": 1.0, "mu2": 1.0, "rho": 1.0},
)
TOTAL = Total(np.zeros((1, *SHAPE)), np.zeros((1, BESIDE)), "fuzz", fine=1)
_LIFE = 7
# So much is taken in by one agent before the next one has its turn.
_TURN = 500
# Bytes of memory that fuzzing may take.
_MOST = 100 << 20


class Mailbox:
    """A carrier that loses everything."""

    def put(self, to: str, data: bytes) -> None:
        parse(data)


class Victim:
    """North, whose neighbour mallory sends anything."""

    def __init__(self) -> None:
        self.logged: list[str] = []
        self.post = Post("north", CONFIG, Mailbox(), 5.0, _LIFE, self.log)
        self.exact = NetworkLink(self.post, CONFIG.agent_names, CONFIG.topology, 64, 1e3)
        self.rough = {
            bits: NetworkLink(self.post, CONFIG.agent_names, CONFIG.topology, bits) for bits in (2, 8, "auto")
        }
        self.finding = Finding("mallory", "127.0.0.1:7000")
        with patch("elmesh.agent.diagnostics.Transport", lambda *_, **__: Mailbox()):
            self.inquiry = _Asking(SimpleNamespace(name="north", config=CONFIG), {"mallory": self.finding}, False)
        self.turns = 0

    def log(self, event: str, **fields: object) -> None:
        self.logged.append(f"{event} {' '.join(map(str, fields.values()))}")
        if event == "errand":
            raise AssertionError(self.logged[-1])

    def close(self) -> None:
        self.post.close()

    def arrive(self, data: bytes) -> None:
        """Take it in as a neighbour's, and take what is due as an algorithm does."""
        self.post.arrive("mallory", data)
        trouble, self.post._trouble = self.post._trouble, None
        assert trouble is None or isinstance(trouble, PeerError | RegroupedError), trouble
        self.check(str(trouble))
        edge = self.post._of["mallory"].edge
        assert len(edge._come) <= 1025
        if edge.has_next:
            message = edge.take()
            assert message.kind in CARRIES
            with self.refusing():
                value = self.exact._value("mallory", message, SHAPE)
                assert value.shape == SHAPE
                assert np.linalg.norm(value) <= 1e3 * (1 + 1e-9)
            with self.refusing():
                self.exact._partial(TOTAL, "mallory", message, SHAPE, BESIDE, 0)

    @contextlib.contextmanager
    def refusing(self):
        try:
            yield
        except PeerError as refusal:
            if refusal.names != {"mallory"}:
                raise AssertionError(refusal.names) from None
            self.check(str(refusal))

    @staticmethod
    def check(text: str) -> None:
        assert text.isprintable(), repr(text)
        assert len(text) < 1000

    def partial(self, body: bytes) -> None:
        """Read a coarse sum."""
        link = list(self.rough.values())[len(body) % len(self.rough)]
        message = parse(encode(Kind.INWARDS, "mallory", CONFIG.digest, shape=SHAPE, coarse=True, body=body))
        with self.refusing():
            value, numbers = link._partial(TOTAL, "mallory", message, SHAPE, BESIDE, 0)
            assert value.shape == SHAPE
            assert numbers.shape == (BESIDE,)
            assert np.isfinite(value).all()
            assert np.isfinite(numbers).all()


def read_parse(victim: Victim, data: bytes) -> None:
    with contextlib.suppress(WireError):
        message = parse(data)
        assert len(message.body) == len(data) - HEADER_BYTES
        message.value(*SHAPE, beside=BESIDE)


def read_doubles(victim: Victim, data: bytes) -> None:
    with contextlib.suppress(WireError):
        assert np.isfinite(doubles(data, len(data) // 8)).all()


def read_arrive(victim: Victim, data: bytes) -> None:
    victim.arrive(data)


def read_header(victim: Victim, data: bytes) -> None:
    """A message of mallory's own whose other fields are anything."""
    fields = np.frombuffer(data[:32].ljust(32, b"\0"), "<u4").tolist()
    kind = list(Kind)[fields[0] % len(Kind)]
    head = {
        "epoch": fields[1] if fields[0] & 0x100 else 0,
        "number": fields[2] if fields[0] & 0x200 else fields[2] % 4,
        "settled": fields[3] if fields[0] & 0x400 else 0,
        "life": fields[4] if fields[0] & 0x800 else 1,
        "yours": fields[5] if fields[0] & 0x1000 else _LIFE,
        "shape": (fields[6], fields[7]) if fields[0] & 0x2000 else SHAPE,
    }
    coarsely = bool(fields[0] & 0x4000)
    victim.arrive(encode(kind, "mallory", CONFIG.digest, **head, coarse=coarsely, body=data[32:]))


def read_gone(victim: Victim, data: bytes) -> None:
    names = data.decode("latin-1").split("\n")
    victim.arrive(encode(Kind.GONE, "mallory", CONFIG.digest, epoch=epoch_of(names), life=1, body=data))


def read_failed(victim: Victim, data: bytes) -> None:
    victim.arrive(encode(Kind.FAILED, "mallory", CONFIG.digest, life=1, yours=_LIFE, body=data))


def read_coarse(victim: Victim, data: bytes) -> None:
    victim.partial(data)


def read_decode(victim: Victim, data: bytes) -> None:
    with contextlib.suppress(ElmeshError), np.errstate(over="ignore", invalid="ignore"):
        assert decode(data, SHAPE).shape == SHAPE


def read_inquiry(victim: Victim, data: bytes) -> None:
    victim.inquiry._arrive("mallory", data)
    assert victim.finding.clock is None or np.isfinite(victim.finding.clock)


READERS: tuple[Callable[[Victim, bytes], None], ...] = (
    read_parse,
    read_doubles,
    read_arrive,
    read_header,
    read_gone,
    read_failed,
    read_coarse,
    read_decode,
    read_inquiry,
)
_now = SimpleNamespace(victim=None, check=lambda: None)


def feed(data: bytes) -> None:
    """Have one reader read; raises what is raised but refusals."""
    if not data:
        return
    if _now.victim is None or _now.victim.turns >= _TURN:
        if _now.victim is not None:
            _now.victim.close()
        _now.victim = Victim()
        _now.check()
    victim = _now.victim
    victim.turns += 1
    # A warning is for whoever computes, not for whoever is told nonsense.
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        READERS[data[0] % len(READERS)](victim, data[1:])


def resident() -> int:
    """Bytes of memory that this process has."""
    return 4096 * int(Path("/proc/self/statm").read_text().split()[1])


def seeds() -> list[bytes]:
    """Inputs that are as they must be, for every reader."""
    rng = np.random.default_rng(0)
    value, numbers = rng.normal(size=SHAPE), rng.normal(size=BESIDE)
    exact = value.tobytes()
    whole = [
        encode(kind, "mallory", CONFIG.digest, number=0, life=1, yours=_LIFE, shape=SHAPE, body=exact) for kind in Kind
    ]
    whole += [encode(Kind.GONE, "mallory", CONFIG.digest, epoch=epoch_of(["south"]), life=1, body=b"south")]
    whole += [encode(Kind.CLOCK, "mallory", CONFIG.digest, number=1, body=bytes(8))]
    rough = [coarse(value[:, :2], bits) + coarse(value[:, 2:], 16) + numbers.tobytes() for bits in (0, 2, 4, 8, 16, 32)]
    found = [bytes([reader]) + one for reader in (0, 2, 8) for one in whole]
    found += [bytes([1]) + exact, bytes([4]) + b"south", bytes([5]) + b"the disk is full"]
    found += [bytes([3]) + np.arange(8, dtype="<u4").tobytes() + exact]
    found += [bytes([6]) + one for one in rough]
    found += [bytes([7]) + coarse(value, bits) for bits in (0, 2, 4, 8, 16, 32, 64)]
    return found


def main() -> None:
    """Fuzz, as libFuzzer's options say; a folder among them is the corpus, filled with seeds if it is empty."""
    import atheris

    for folder in (Path(option) for option in sys.argv[1:] if not option.startswith("-")):
        folder.mkdir(exist_ok=True)
        if not any(folder.iterdir()):
            for number, seed in enumerate(seeds()):
                (folder / f"seed-{number}").write_bytes(seed)
    # Not by libFuzzer's own limit, which is on the most that whoever started this has ever had.
    least = resident()

    def check() -> None:
        assert resident() < least + _MOST, "what was read is still there"

    _now.check = check
    for function in (parse, doubles, decode, Post.arrive, Post._take_in, Post._hear_of_gone):
        atheris.instrument_func(function)
    atheris.Setup(sys.argv, feed)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
