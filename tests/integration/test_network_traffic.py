"""What leaves an agent: every call it makes to zenoh is written down, and what is on the wire is decrypted and read."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import ssl
import threading
import warnings
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import msgspec.structs
import numpy as np
import pandas as pd
import pytest

from elmesh.cli.agent import _estimator
from elmesh.comm.network.wire import HEADER_BYTES, Kind, Message, parse
from elmesh.netconfig.columns import InputColumn
from elmesh.netconfig.pki.authority import Authority, sign
from elmesh.netconfig.pki.csr import make_request
from elmesh.netconfig.pki.keys import make_key
from elmesh.netconfig.schema import make_schema
from elmesh.tables import FILE_TASK
from helpers.network import ROOT, P, Trial, free_ports, make_config

NAMES, ROUNDS = ("north", "south"), 12


class Recording(Trial):
    """Agents that write down what they say before it is encrypted, and their private state."""

    def command(self, name: str, *more: str) -> list[str]:
        python, _, _, *rest = super().command(name, *more)
        return [python, str(ROOT / "tests" / "helpers" / "recorder.py"), str(self.calls_of(name)), *rest]

    def calls_of(self, name: str) -> Path:
        return self.folder / f"{name}.calls"

    def calls(self, name: str) -> list[dict]:
        return [json.loads(line) for line in self.calls_of(name).read_text().splitlines()]

    def said(self, name: str) -> list[tuple[str, bytes]]:
        """What an agent has sent: under which key, and all of it."""
        puts = [call for call in self.calls(name) if call["data"]]
        assert {(call["call"], *call["on"][:2]) for call in puts} == {("put", "session", "declare_publisher")}
        return [(call["on"][2], bytes.fromhex(data)) for call in puts for data in call["data"]]

    def messages(self, name: str) -> list[Message]:
        return [parse(data) for _, data in self.said(name)]

    def states(self, name: str) -> dict[str, np.ndarray]:
        return dict(np.load(f"{self.calls_of(name)}.npz"))


class Between:
    """A man in the middle with the authority's own key: he has both ends' papers, and reads all of it."""

    def __init__(self, trial: Trial, door: int, inner: int) -> None:
        self.streams = {"north": bytearray(), "south": bytearray()}
        self._door, self._inner, self._trial = door, inner, trial
        self._loop, self._ready = asyncio.new_event_loop(), threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        assert self._ready.wait(10)

    def _context(self, name: str, purpose: int) -> ssl.SSLContext:
        folder = self._trial.folder / f"as-{name}"
        folder.mkdir()
        ca = Authority.read(self._trial.folder / "net" / "ca")
        request = make_request(make_key(folder / "key.pem"), name, ["127.0.0.1"])
        (folder / "certificate.pem").write_bytes(sign(request, ca))
        context = ssl.SSLContext(purpose)
        context.load_cert_chain(folder / "certificate.pem", folder / "key.pem")
        context.load_verify_locations(self._trial.folder / "net" / "ca" / "ca.pem")
        context.verify_mode = ssl.CERT_REQUIRED
        return context

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._server_side = self._context("south", ssl.PROTOCOL_TLS_SERVER)
        self._client_side = self._context("north", ssl.PROTOCOL_TLS_CLIENT)
        self._server = self._loop.run_until_complete(
            asyncio.start_server(self._meet, "127.0.0.1", self._door, ssl=self._server_side)
        )
        self._ready.set()
        self._loop.run_forever()

    async def _meet(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            there = await asyncio.open_connection("127.0.0.1", self._inner, ssl=self._client_side)
            await asyncio.gather(self._pass(reader, there[1], "north"), self._pass(there[0], writer, "south"))
        writer.close()

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, speaker: str) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(65536):
                self.streams[speaker] += data
                writer.write(data)
                await writer.drain()
            writer.close()

    def close(self) -> None:
        async def end() -> None:
            self._server.close()
            others = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
            for task in others:
                task.cancel()
            await asyncio.gather(*others, return_exceptions=True)
            await self._loop.shutdown_asyncgens()

        asyncio.run_coroutine_threadsafe(end(), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()


@pytest.fixture(scope="module")
def basis(tmp_path_factory) -> Iterator[SimpleNamespace]:
    """A run in which nothing but U_t may be told, with somebody reading in between."""
    folder = tmp_path_factory.mktemp("basis")
    config = make_config(NAMES, "path", rounds=ROUNDS, rank=2)
    with Recording(folder, config) as trial:
        (inner,) = free_ports(1)
        with open(trial.agents["south"].folder / "agent.toml", "a") as file:
            file.write(f'listen = "127.0.0.1:{inner}"\n')
        between = Between(trial, int(config.agents[1].address.rpartition(":")[2]), inner)
        try:
            trial.start_all()
            assert set(trial.wait().values()) == {0}, {n: a.errors for n, a in trial.agents.items()}
        finally:
            between.close()
        yield SimpleNamespace(trial=trial, config=config, streams=between.streams)


def numbers_of(run: SimpleNamespace, name: str) -> np.ndarray:
    """All numbers of an agent that are nobody else's business."""
    trial, config = run.trial, run.config
    frame = pd.read_csv(trial.folder / "net" / f"{name}.csv")
    X, _ = make_schema(config, FILE_TASK, ["y"], False).encode(frame.assign(**{FILE_TASK: name}))
    raw = frame[[f"x{j}" for j in range(P)]].to_numpy()
    found = [raw, X, raw.mean(axis=0), raw.std(axis=0), raw.sum(axis=0), X.mean(axis=0), X.T @ X]
    found.append(trial.agents[name].weights()["A.0"])
    for key, x in trial.states(name).items():
        if key.partition("/")[2] in ("A", "dual", "own/A", "own/dual", "own/HU", "own/R", "own/gradient"):
            found.append(x)
    numbers = np.unique(np.concatenate([np.ravel(np.asarray(x, dtype=np.float64)) for x in found]))
    # Zeros and small whole numbers are everywhere, and nobody's secret.
    return numbers[(numbers != np.round(numbers)) & (np.abs(numbers) > 1e-30)]


def found_in(numbers: np.ndarray, data: bytes) -> list[float]:
    """Numbers whose eight bytes, or whose four in single precision, are somewhere in the data, in either order."""
    found = []
    for kind in ("<f8", ">f8", "<f4", ">f4"):
        width = int(kind[-1])
        windows = np.lib.stride_tricks.sliding_window_view(np.frombuffer(data, np.uint8), width)
        there = np.ascontiguousarray(windows).view(f"V{width}").ravel()
        wanted = np.ascontiguousarray(numbers.astype(kind)).view(f"V{width}")
        present = set(there.tolist())
        found += [x for x, pattern in zip(numbers.tolist(), wanted.tolist(), strict=True) if pattern in present]
    return found


def test_the_search_for_private_numbers_finds_one_wherever_it_is(basis):
    x = numbers_of(basis, "north")[:1]
    for kind in ("<f8", ">f8", "<f4", ">f4"):
        assert found_in(x, b"abc" + x.astype(kind).tobytes() + b"de") == x.tolist()
    assert found_in(x, b"abcdefghijk") == []


def test_an_agent_asks_of_zenoh_what_it_needs_and_no_more(basis):
    for me, other in (NAMES, NAMES[::-1]):
        asked = Counter((call["call"], *call["texts"]) for call in basis.trial.calls(me) if call["call"] != "put")
        key = f"elmesh/test/{me}"
        assert set(asked) == {
            ("open",),
            ("declare_publisher", f"{key}/to/{other}"),
            ("declare_link_events_listener",),
            ("declare_subscriber", f"elmesh/test/{other}/to/{me}"),
            ("declare_subscriber", f"elmesh/test/{other}/here"),
            ("liveliness",),
            ("declare_token", f"{key}/here"),
            ("close",),
        }
        assert asked[("open",)] == 1


def test_what_leaves_is_u_of_every_round_with_its_number_name_and_network_file(basis):
    for me, other in (NAMES, NAMES[::-1]):
        said, states = basis.trial.messages(me), basis.trial.states(me)
        assert {key for key, _ in basis.trial.said(me)} == {f"elmesh/test/{me}/to/{other}"}
        assert {message.kind for message in said} <= {Kind.VALUE, Kind.WANT, Kind.DONE, Kind.HEARD}
        values = {message.number: message for message in said if message.kind is Kind.VALUE}
        assert sorted(values) == list(range(ROUNDS + 1))
        for k, message in values.items():
            assert bytes(message.body) == np.ascontiguousarray(states[f"{k}/U"], "<f8").tobytes()
        last = np.ascontiguousarray(basis.trial.agents[me].weights()["U.0"], "<f8").tobytes()
        assert bytes(values[ROUNDS].body) == last
        lives = {message.life for message in basis.trial.messages(other)}
        for message in said:
            assert message.sender == me
            assert message.digest == basis.config.digest
            assert message.epoch == 0
            assert message.yours in {0, *lives}
            assert message.number <= ROUNDS
            assert message.settled <= ROUNDS + 1
            assert len(message.body) == (8 * message.rows * message.columns if message.kind is Kind.VALUE else 0)
        assert len({message.life for message in said}) == 1


def test_what_leaves_is_what_all_rows_in_one_place_give_round_by_round(basis):
    frames = [
        pd.read_csv(basis.trial.folder / "net" / f"{name}.csv").assign(**{FILE_TASK: name})
        for name in basis.config.agent_names
    ]
    frame = pd.concat(frames, ignore_index=True)
    schema = make_schema(basis.config, FILE_TASK, ["y"], False)
    X, tasks = schema.encode(frame)
    said = {me: {m.number: m for m in basis.trial.messages(me) if m.kind is Kind.VALUE} for me in NAMES}
    for k in range(1, ROUNDS + 1):
        model = _estimator(msgspec.structs.replace(basis.config, rounds=k), X.shape[1])
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that it did not converge in so few rounds
            model.fit(X, schema.targets(frame), tasks=tasks)
        for t, me in enumerate(basis.config.agent_names):
            U = model.U_[t]
            np.testing.assert_allclose(said[me][k].value(*U.shape), U.ravel(), rtol=1e-8, atol=1e-12)


def test_the_bytes_that_leave_are_those_in_the_books(basis):
    for me in NAMES:
        said, traffic = basis.trial.said(me), basis.trial.agents[me].status["traffic"]
        assert traffic["sent_messages"] == len(said)
        assert traffic["sent_bytes"] == sum(len(data) for _, data in said)
        # What was said again after a lost message is no news, and not in the ledger.
        values = {m.number: len(m.body) for m in basis.trial.messages(me) if m.kind is Kind.VALUE}
        assert basis.trial.result(me)["bytes"] == sum(values.values())
        assert traffic["sent_bytes"] - HEADER_BYTES * len(said) == sum(values.values()) + 8 * 30 * 2 * traffic["again"]


def test_no_private_number_is_in_what_leaves(basis):
    for me in NAMES:
        private = numbers_of(basis, me)
        assert len(private) > 1000
        assert found_in(private, b"".join(data for _, data in basis.trial.said(me))) == []


def test_the_stream_between_two_agents_holds_their_messages_and_hardly_more(basis):
    for me in NAMES:
        stream, said = bytes(basis.streams[me]), basis.trial.said(me)
        # What is put before the other one is there goes nowhere, and is said again.
        carried = [data for _, data in said if data in stream]
        assert {parse(data).number for data in carried if parse(data).kind is Kind.VALUE} == set(range(ROUNDS + 1))
        rest = stream
        for data in carried:
            rest = rest.replace(data, b"", 1)
        assert len(rest) <= 0.05 * len(stream) + 1000
        # Of what zenoh adds, only the keys can be read.
        names = set(re.findall(rb"[a-z][a-z/_-]{5,}", rest))
        assert all(name.startswith(b"elmesh/test/") for name in names), names
        assert found_in(numbers_of(basis, me), stream) == []


@pytest.mark.parametrize("statistics", [False, True])
def test_where_sums_may_be_told_there_are_sums_as_well_and_no_row_or_target(tmp_path, statistics):
    config = make_config(NAMES, "path", exchange="sums", rank="auto", parameters={}, rounds=30)
    if statistics:
        columns = (InputColumn("x0"), *config.columns[1:])
        config = msgspec.structs.replace(config, columns=columns, statistics=True)
    with Recording(tmp_path, config) as trial:
        trial.start_all()
        assert set(trial.wait().values()) == {0}
        kinds = {me: {message.kind for message in trial.messages(me)} for me in NAMES}
        control = {Kind.WANT, Kind.DONE, Kind.HEARD}
        assert kinds["north"] - control <= {Kind.VALUE, Kind.INWARDS, Kind.OUTWARDS}
        # One is the root of the tree: partial sums come to it, and sums go out.
        assert (
            {Kind.INWARDS in kinds[me] for me in NAMES} == {Kind.OUTWARDS in kinds[me] for me in NAMES} == {True, False}
        )
        for me in NAMES:
            said = trial.messages(me)
            assert all(len(message.body) == 0 for message in said if message.kind in control)
            assert trial.agents[me].status["traffic"]["sent_bytes"] == sum(len(d) for _, d in trial.said(me))
            frame = pd.read_csv(tmp_path / "net" / f"{me}.csv")
            rows = frame[[f"x{j}" for j in range(P)]].to_numpy().ravel()
            assert found_in(np.unique(rows), b"".join(bytes(message.body) for message in said)) == []
            told = trial.agents[me].events("statistics")
            assert [event["columns"] for event in told] == ([["x0"]] if statistics else [])
            if statistics:
                sums = list({m.number: m for m in said if m.kind in (Kind.INWARDS, Kind.OUTWARDS)}.values())[:2]
                assert [(m.columns, len(m.body)) for m in sums] == [(0, 16), (0, 8)]
                n, total = np.frombuffer(sums[0].body, "<f8")
                if sums[0].kind is Kind.INWARDS:
                    assert n == len(frame)
                    assert total == pytest.approx(frame["x0"].sum())
