"""What leaves an agent: all its calls to zenoh are recorded, and the TLS stream is decrypted by a man in the middle."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import re
import ssl
import threading
import warnings
from collections import Counter
from collections.abc import Iterator
from types import SimpleNamespace

import msgspec.structs
import numpy as np
import pandas as pd
import pytest

from elmesh.agent import NetworkAgent
from elmesh.comm.fixed_point import from_wide
from elmesh.comm.network.sealing import SEALED_BYTES
from elmesh.comm.network.wire import HEADER_BYTES, Kind, parse
from elmesh.netconfig.columns import InputColumn
from elmesh.netconfig.pki.authority import Authority, sign
from elmesh.netconfig.pki.csr import make_request
from elmesh.netconfig.pki.keys import make_key
from elmesh.netconfig.schema import make_schema
from elmesh.tables import FILE_TASK
from helpers.network import LIMIT, LocalNetwork, P, free_ports, make_config
from helpers.recorder import OWN, RecordedNetwork

NAMES, ROUNDS = ("north", "south"), 12


class ManInTheMiddle:
    """A proxy with the authority's own key, which has certificates of both ends and reads everything."""

    def __init__(self, network: LocalNetwork, outer: int, inner: int) -> None:
        self.streams = {"north": bytearray(), "south": bytearray()}
        self._outer, self._inner, self._network = outer, inner, network
        self._loop, self._ready = asyncio.new_event_loop(), threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        assert self._ready.wait(LIMIT)

    def _context(self, name: str, purpose: int) -> ssl.SSLContext:
        folder = self._network.folder / f"as-{name}"
        folder.mkdir()
        ca = Authority.read(self._network.folder / "net" / "ca")
        request = make_request(make_key(folder / "key.pem"), name, ["127.0.0.1"])
        (folder / "certificate.pem").write_bytes(sign(request, ca))
        context = ssl.SSLContext(purpose)
        context.load_cert_chain(folder / "certificate.pem", folder / "key.pem")
        context.load_verify_locations(self._network.folder / "net" / "ca" / "ca.pem")
        context.verify_mode = ssl.CERT_REQUIRED
        return context

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._server_side = self._context("south", ssl.PROTOCOL_TLS_SERVER)
        self._client_side = self._context("north", ssl.PROTOCOL_TLS_CLIENT)
        self._server = self._loop.run_until_complete(
            asyncio.start_server(self._connect, "127.0.0.1", self._outer, ssl=self._server_side)
        )
        self._ready.set()
        self._loop.run_forever()

    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            there = await asyncio.open_connection("127.0.0.1", self._inner, ssl=self._client_side)
            await asyncio.gather(self._forward(reader, there[1], "north"), self._forward(there[0], writer, "south"))
        writer.close()

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, sender: str) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(65536):
                self.streams[sender] += data
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

        asyncio.run_coroutine_threadsafe(end(), self._loop).result(LIMIT)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(LIMIT)
        self._loop.close()


@pytest.fixture(scope="module")
def basis(tmp_path_factory) -> Iterator[SimpleNamespace]:
    """A run in which agents may send U_t and nothing else, through a man in the middle."""
    folder = tmp_path_factory.mktemp("basis")
    config = make_config(NAMES, "path", rounds=ROUNDS, rank=2)
    with RecordedNetwork(folder, config) as network:
        (inner,) = free_ports(1)
        with open(network.agents["south"].folder / "agent.toml", "a") as file:
            file.write(f'listen = "127.0.0.1:{inner}"\n')
        middle = ManInTheMiddle(network, int(config.agents[1].address.rpartition(":")[2]), inner)
        try:
            network.start_all()
            assert set(network.wait().values()) == {0}, network.logs()
        finally:
            middle.close()
        yield SimpleNamespace(network=network, config=config, streams=middle.streams)


def numbers_of(run: SimpleNamespace, name: str) -> np.ndarray:
    """Return all private numbers of an agent."""
    network, config = run.network, run.config
    frame = pd.read_csv(network.folder / "net" / f"{name}.csv")
    X, _ = make_schema(config, FILE_TASK, ["y"], False).encode(frame.assign(**{FILE_TASK: name}))
    raw = frame[[f"x{j}" for j in range(P)]].to_numpy()
    found = [raw, X, raw.mean(axis=0), raw.std(axis=0), raw.sum(axis=0), X.mean(axis=0), X.T @ X]
    found.append(network.agents[name].weights()["A.0"])
    for key, x in network.states(name).items():
        if key.partition("/")[2] in ("A", "dual", "HU", "R", "gradient"):
            found.append(x)
    numbers = np.unique(np.concatenate([np.ravel(np.asarray(x, dtype=np.float64)) for x in found]))
    # Zeros and small integers are everywhere, and no secret.
    return numbers[(numbers != np.round(numbers)) & (np.abs(numbers) > 1e-30)]


def found_in(numbers: np.ndarray, data: bytes) -> list[float]:
    """Return the numbers whose bytes, in double or single precision and either order, are somewhere in the data.

    Four bytes are found by chance in long data that look random: singles count if more are found than chance explains.
    """
    found = []
    for kind in ("<f8", ">f8", "<f4", ">f4"):
        width = int(kind[-1])
        windows = np.lib.stride_tricks.sliding_window_view(np.frombuffer(data, np.uint8), width)
        there = np.ascontiguousarray(windows).view(f"V{width}").ravel()
        wanted = np.ascontiguousarray(numbers.astype(kind)).view(f"V{width}")
        present = set(there.tolist())
        hits = [x for x, pattern in zip(numbers.tolist(), wanted.tolist(), strict=True) if pattern in present]
        chance = len(numbers) * len(data) / 2.0 ** (8 * width)
        # With the mean of a Poisson distribution below one, more than its tenfold and four is rarer than 1e-4.
        found += hits if len(hits) > (10 * chance + 4 if chance > 1e-3 else 0) else []
    return found


def test_the_search_for_private_numbers_finds_one_at_any_offset(basis):
    x = numbers_of(basis, "north")[:1]
    for kind in ("<f8", ">f8", "<f4", ">f4"):
        assert found_in(x, b"abc" + x.astype(kind).tobytes() + b"de") == x.tolist()
    assert found_in(x, b"abcdefghijk") == []


def test_an_agent_makes_only_the_calls_to_zenoh_that_it_needs(basis):
    for me, other in (NAMES, NAMES[::-1]):
        calls = [call for call in basis.network.calls(me) if call["call"] not in ("put", *OWN)]
        calls = Counter((call["call"], *call["texts"]) for call in calls)
        key = f"elmesh/test/{me}"
        assert set(calls) == {
            ("open",),
            ("declare_publisher", f"{key}/to/{other}"),
            ("declare_link_events_listener",),
            ("declare_subscriber", f"elmesh/test/{other}/to/{me}"),
            ("declare_subscriber", f"elmesh/test/{other}/here"),
            ("liveliness",),
            ("declare_token", f"{key}/here"),
            ("close",),
        }
        assert calls[("open",)] == 1


def test_an_agent_sends_the_u_of_every_round_with_its_number_name_and_network_file(basis):
    for me, other in (NAMES, NAMES[::-1]):
        sent, states = basis.network.messages(me), basis.network.states(me)
        assert {key for key, _ in basis.network.sent(me)} == {f"elmesh/test/{me}/to/{other}"}
        assert {message.kind for message in sent} <= {Kind.VALUE, Kind.RESEND, Kind.DONE, Kind.ACK}
        values = {message.number: message for message in sent if message.kind is Kind.VALUE}
        assert sorted(values) == list(range(ROUNDS + 1))
        for k, message in values.items():
            assert bytes(message.body) == np.ascontiguousarray(states[f"{k}/U"], "<f8").tobytes()
        last = np.ascontiguousarray(basis.network.agents[me].weights()["U.0"], "<f8").tobytes()
        assert bytes(values[ROUNDS].body) == last
        run_ids = {message.run_id for message in basis.network.messages(other)}
        for message in sent:
            assert message.sender == me
            assert message.digest == basis.config.digest
            assert message.epoch == 0
            assert message.peer_run_id in {0, *run_ids}
            assert message.number <= ROUNDS
            assert message.acked <= ROUNDS + 1
            assert len(message.body) == (8 * message.rows * message.columns if message.kind is Kind.VALUE else 0)
        assert len({message.run_id for message in sent}) == 1


def test_what_an_agent_sends_is_the_u_of_a_fit_in_one_process_round_by_round(basis):
    frames = [
        pd.read_csv(basis.network.folder / "net" / f"{name}.csv").assign(**{FILE_TASK: name})
        for name in basis.config.agent_names
    ]
    frame = pd.concat(frames, ignore_index=True)
    schema = make_schema(basis.config, FILE_TASK, ["y"], False)
    X, tasks = schema.encode(frame)
    sent = {me: {m.number: m for m in basis.network.messages(me) if m.kind is Kind.VALUE} for me in NAMES}
    with NetworkAgent(basis.network.agents["north"].folder / "agent.toml") as agent:
        model = agent.estimator(X.shape[1])
    for k in range(1, ROUNDS + 1):
        model.solver.set_params(max_iter=k)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # it does not converge in so few rounds
            model.fit(X, schema.targets(frame), tasks=tasks)
        for t, me in enumerate(basis.config.agent_names):
            U = model.U_[t]
            np.testing.assert_allclose(sent[me][k].matrix(*U.shape)[0], U, rtol=1e-8, atol=1e-12)


def test_the_bytes_sent_are_those_in_the_traffic_log(basis):
    for me in NAMES:
        traffic = basis.network.agents[me].status["traffic"]
        every = [data for (data,) in basis.network.recorded(me, "message", "no keys yet")]
        assert traffic["sent_messages"] == len(every)
        assert traffic["sent_bytes"] == sum(map(len, every))
        # Resent messages are not in the traffic log of the model.
        values = {m.number: len(m.body) for m in map(parse, every) if m.kind is Kind.VALUE}
        assert basis.network.result(me)["bytes"] == sum(values.values())
        again = 8 * 30 * 2 * traffic["resent"]
        assert traffic["sent_bytes"] - HEADER_BYTES * len(every) == sum(values.values()) + again


def test_what_an_agent_sends_are_its_keys_and_sealed_messages_and_nothing_else(basis):
    for me in NAMES:
        frames, messages = [data for _, data in basis.network.sent(me)], basis.network.messages(me)
        sealed = [frame for frame in frames if frame.startswith(b"ELS1")]
        # In any order, as two threads send; and keys may arrive between the record of a message and its sending.
        extra = SEALED_BYTES + HEADER_BYTES
        more = Counter(len(frame) for frame in sealed) - Counter(extra + len(m.body) for m in messages)
        early = [data for (data,) in basis.network.recorded(me, "no keys yet")]
        assert len(sealed) == len(messages) + more.total()
        assert more <= Counter(SEALED_BYTES + len(data) for data in early)
        assert len(set(sealed)) == len(sealed)
        bundles = {frame[4:] for frame in frames if frame[:4] in (b"ELH1", b"ELH2")}
        assert len(bundles) == 1
        assert len(sealed) + sum(frame[:4] in (b"ELH1", b"ELH2") for frame in frames) == len(frames)


def test_an_agent_sends_no_private_number(basis):
    for me in NAMES:
        private = numbers_of(basis, me)
        assert len(private) > 1000
        assert found_in(private, b"".join(data for _, data in basis.network.sent(me))) == []
        assert found_in(private, b"".join(data for (data,) in basis.network.recorded(me, "message"))) == []


def test_a_man_in_the_middle_with_both_certificates_cannot_read_a_message(basis):
    for me in NAMES:
        U = np.unique(np.concatenate([x.ravel() for key, x in basis.network.states(me).items() if key.endswith("/U")]))
        assert found_in(U, b"".join(data for (data,) in basis.network.recorded(me, "message"))) != []
        assert found_in(U[np.abs(U) > 1e-30], bytes(basis.streams[me])) == []


def test_the_stream_between_two_agents_holds_their_frames_and_little_else(basis):
    for me in NAMES:
        stream, sent = bytes(basis.streams[me]), basis.network.sent(me)
        # What is put before the other agent is present is lost, and resent.
        carried = [data for _, data in sent if data in stream]
        values = SEALED_BYTES + HEADER_BYTES + 8 * 30 * 2
        assert sum(len(data) == values for data in carried) >= ROUNDS + 1
        rest = stream
        for data in carried:
            rest = rest.replace(data, b"", 1)
        assert len(rest) <= 0.05 * len(stream) + 1000
        # Of what zenoh adds, only the keys can be read.
        names = set(re.findall(rb"[a-z][a-z/_-]{7,}", rest))
        assert all(name.startswith(b"elmesh/test/") for name in names), names
        assert found_in(numbers_of(basis, me), stream) == []


THREE = ("east", "north", "south")


@pytest.fixture(scope="module")
def sums(tmp_path_factory) -> Iterator[SimpleNamespace]:
    """A run in which agents send masked sums and nothing else, of statistics as well."""
    folder = tmp_path_factory.mktemp("sums")
    config = make_config(THREE, "path", exchange="sums", solver="mesh-elm", rank="auto", parameters={}, rounds=30)
    columns = (InputColumn("x0"), *config.columns[1:])
    config = msgspec.structs.replace(config, columns=columns, statistics=True)
    with RecordedNetwork(folder, config) as network:
        network.start_all()
        assert set(network.wait().values()) == {0}, network.logs()
        yield SimpleNamespace(
            network=network, config=config, root=config.agent_names[int(config.topology.tree.order[0])]
        )


def test_with_sums_an_agent_sends_partial_sums_totals_and_lists_and_no_row_or_target(sums):
    control = {Kind.RESEND, Kind.DONE, Kind.ACK}
    for me in THREE:
        sent = sums.network.messages(me)
        kinds = {message.kind for message in sent} - control
        # The root of the tree receives partial sums and sends totals.
        assert kinds == ({Kind.TOTAL, Kind.LIST} if me == sums.root else {Kind.PARTIAL_SUM, Kind.PARTIAL_LIST})
        assert all(len(message.body) == 0 for message in sent if message.kind in control)
        every = [data for (data,) in sums.network.recorded(me, "message", "no keys yet")]
        assert sums.network.agents[me].status["traffic"]["sent_bytes"] == sum(map(len, every))
        frame = pd.read_csv(sums.network.folder / "net" / f"{me}.csv")
        rows = frame[[f"x{j}" for j in range(P)]].to_numpy().ravel()
        assert found_in(np.unique(rows), b"".join(every)) == []
        assert [event["columns"] for event in sums.network.agents[me].events("statistics")] == [["x0"]]


def test_what_leaves_a_site_is_its_masked_term_and_looks_like_chance(sums):
    for me in THREE:
        if me == sums.root:
            continue
        terms = sums.network.terms(me)
        partials = {m.number: bytes(m.body) for m in sums.network.messages(me) if m.kind is Kind.PARTIAL_SUM}
        assert [masked for _, masked in terms] == list(partials.values())
        # The first sum is of the number of rows and the sum of x0, in limbs: small integers as they are.
        value, masked = terms[0]
        frame = pd.read_csv(sums.network.folder / "net" / f"{me}.csv")
        assert from_wide(value.reshape(2, -1)) == pytest.approx([len(frame), frame["x0"].sum()])
        assert value.tobytes() not in masked
        bits = np.unpackbits(np.frombuffer(b"".join(masked for _, masked in terms), np.uint8))
        assert len(bits) > 1e5
        assert abs(bits.mean() - 0.5) < 5 * 0.5 / np.sqrt(len(bits))
        plain = np.unpackbits(np.frombuffer(b"".join(value.tobytes() for value, _ in terms), np.uint8))
        assert abs(plain.mean() - 0.5) > 5 * 0.5 / np.sqrt(len(plain))


def test_the_log_of_releases_has_every_term_that_has_left_before_anything_else(sums):
    for me in THREE:
        agent = sums.network.agents[me]
        lines = [json.loads(line) for line in (agent.folder / "releases.jsonl").read_text().splitlines()]
        releases = [line for line in lines if line["event"] == "release"]
        digests = [hashlib.sha256(masked).hexdigest() for _, masked in sums.network.terms(me)]
        assert [line["digest"] for line in releases] == digests
        assert [line["number"] for line in releases] == list(range(len(digests)))
        assert {line["what"] for line in releases} == {"statistics", "numbers", "block"}
        receivers = ["east", "south"] if me == sums.root else [sums.root]
        assert all(sorted(line["to"]) == receivers for line in releases)
