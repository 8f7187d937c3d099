"""What leaves a site: the gate allows it, the log has it first, a masked term never leaves in two forms."""

from __future__ import annotations

import hashlib
import json
import os
import stat
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("cryptography", reason="networks need cryptography, of elmesh[network]")

from elmesh.agent.confirmation import answer_confirmation, asked_confirmation, pending_confirmation
from elmesh.agent.gate import Gate, GateError
from elmesh.agent.release_log import LogDamagedError, ReleaseLog, read_log
from elmesh.agent.releases import Releases, RunFacts
from elmesh.agent.term_spool import TermSpool
from elmesh.comm.network.transport import Release
from elmesh.errors import ElmeshError
from helpers.credentials import NamedCredentials
from helpers.examples import examples

ME = NamedCredentials("north")
SITES = ("east", "north", "south", "west")


def facts(
    run: str = "1", sites: tuple[str, ...] = SITES, table: str = "t", rows: int = 50, k: int = 0, delta: float = 1e-5
) -> RunFacts:
    return RunFacts(run, "net", "ab", "sums", tuple(sorted(sites)), table, rows, k, delta)


def masked(number: int = 0, what: str = "matrix", label: bytes | None = None, rho: float = 0.0) -> Release:
    return Release(what, (3,), ("south",), number, label=label or b"label %d" % number, rho=rho)


class Site:
    """A site's releases, which can be closed and opened again as an agent that is restarted does."""

    def __init__(self, folder: Path, **gate: object) -> None:
        self._folder, self.gate, self.asked, self.answer = folder, Gate(**gate), [], True
        self.releases: Releases | None = None
        self.open()

    @property
    def log(self) -> Path:
        return self._folder / "releases.jsonl"

    def open(self) -> Releases:
        if self.releases is not None:
            self.releases.close()
        self.releases = Releases(
            self.log, self._folder / "masked.bin", "north", ME, self.gate, lambda write: write(), self._confirm,
            epsilon=lambda rho, delta: 1e-4 / delta * rho,
        )  # fmt: skip
        return self.releases

    def _confirm(self, text: str) -> bool:
        self.asked.append(text)
        return self.answer

    def lines(self, event: str | None = None) -> list[dict]:
        found = list(read_log(self.log, "north", ME))
        return [line for line in found if event is None or line["event"] == event]


@pytest.fixture
def make(tmp_path):
    sites = []

    def start(**gate: object) -> Site:
        sites.append(Site(tmp_path, **gate))
        return sites[-1]

    yield start
    for site in sites:
        site.releases.close()


# The log.


BASIS = {"event": "release", "what": "basis", "rho": 0.0}


def write_log(path: Path, n: int, frequent: bool = False) -> None:
    log = ReleaseLog(path, "north", ME, lambda line: None)
    for k in range(n):
        log.append({**BASIS, "k": k} if frequent else {"event": "release", "what": k}, frequent=frequent)
    log.close()


def read(path: Path) -> list[dict]:
    return list(read_log(path, "north", ME))


def chained(lines: list[dict]) -> bytes:
    """Lines whose hashes are right, as anybody can make them."""
    last, made = "0" * 64, []
    for line in lines:
        content = {key: value for key, value in line.items() if key not in ("hash", "signature")} | {"previous": last}
        own = {"previous": last, "hash": hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()}
        made.append(json.dumps(line | own) + "\n")
        last = hashlib.sha256(json.dumps(line | own, sort_keys=True).encode()).hexdigest()
    return "".join(made).encode()


def test_a_log_is_read_back_and_goes_on_where_it_was(tmp_path):
    path = tmp_path / "log"
    write_log(path, 3)
    write_log(path, 2)
    lines = list(read_log(path, "north", ME))
    assert [line["line"] for line in lines] == [1, 2, 3, 4, 5]
    assert [line["what"] for line in lines] == [0, 1, 2, 0, 1]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


@examples(80)
@given(st.data())
def test_a_line_that_is_removed_changed_moved_or_added_is_found(tmp_path_factory, data):
    path = tmp_path_factory.mktemp("log") / "log"
    write_log(path, 5)
    lines = path.read_text().splitlines(keepends=True)
    k, other = data.draw(st.integers(0, 4)), data.draw(st.integers(0, 4))
    change = data.draw(st.sampled_from(["remove", "change", "swap", "copy", "cut"]))
    if change == "remove":
        del lines[k]
    elif change == "change":
        place = data.draw(st.integers(0, len(lines[k]) - 2))
        lines[k] = lines[k][:place] + ("x" if lines[k][place] != "x" else "y") + lines[k][place + 1 :]
    elif change == "swap" and k != other:
        lines[k], lines[other] = lines[other], lines[k]
    elif change == "copy":
        lines.insert(k, lines[other])
    else:
        lines = lines[: data.draw(st.integers(0, 4))]
    path.write_text("".join(lines))
    with pytest.raises(LogDamagedError):
        list(read_log(path, "north", ME))
    with pytest.raises(LogDamagedError):
        ReleaseLog(path, "north", ME, lambda line: None)


def test_a_chain_that_is_made_anew_lacks_the_seal_of_the_agent(tmp_path):
    """Whoever can write the file can compute hashes; only the agent can sign the last one."""
    path, forged = tmp_path / "log", tmp_path / "forged"
    write_log(path, 5)
    other = ReleaseLog(forged, "north", NamedCredentials("mallory"), lambda line: None)
    for k in range(5):
        other.append({"event": "release", "what": 10 * k})
    other.close()
    path.write_bytes(forged.read_bytes())
    with pytest.raises(LogDamagedError, match="not the log that this agent has sealed"):
        list(read_log(path, "north", ME))
    (tmp_path / "log.seal").write_bytes((tmp_path / "forged.seal").read_bytes())
    with pytest.raises(LogDamagedError, match="not signed by this agent"):
        list(read_log(path, "north", ME))
    (tmp_path / "log.seal").unlink()
    with pytest.raises(LogDamagedError, match=r"Line 1 of .* was not written by this agent"):
        list(read_log(path, "north", ME))


def test_a_log_without_its_seal_is_not_complete(tmp_path):
    write_log(tmp_path / "log", 3)
    (tmp_path / "log.seal").unlink()
    with pytest.raises(LogDamagedError, match="is missing, by which the end"):
        list(read_log(tmp_path / "log", "north", ME))


@pytest.mark.parametrize("text", ["", "{", "[]", '{"line": 1}', "\x00", "[" * 100_000])
def test_a_damaged_seal_is_found(tmp_path, text):
    write_log(tmp_path / "log", 2)
    (tmp_path / "log.seal").write_text(text)
    with pytest.raises(LogDamagedError):
        list(read_log(tmp_path / "log", "north", ME))


def test_an_interrupted_line_is_removed_because_what_it_describes_was_not_sent(tmp_path):
    path = tmp_path / "log"
    write_log(path, 2)
    with path.open("a") as file:
        file.write('{"line": 3, "event": "rel')
    write_log(path, 1)
    assert [line["line"] for line in read_log(path, "north", ME)] == [1, 2, 3]


def test_lines_whose_seal_was_not_written_before_a_failure_are_accepted_if_they_are_signed(tmp_path, monkeypatch):
    path = tmp_path / "log"
    write_log(path, 2)
    log = ReleaseLog(path, "north", ME, lambda line: None)
    monkeypatch.setattr(log, "_write_seal", lambda *_: None)
    for k in range(3):
        log.append({"event": k})
    log.close()
    assert len(list(read_log(path, "north", ME))) == 5
    lines = path.read_text().splitlines(keepends=True)
    last = json.loads(lines[-1])
    path.write_text("".join([*lines[:-1], json.dumps(last | {"signature": "00"}) + "\n"]))
    with pytest.raises(LogDamagedError, match=r"Line 5 of .* was not written by this agent"):
        list(read_log(path, "north", ME))


def sealed_lines(path: Path) -> int:
    return json.loads(path.with_name(path.name + ".seal").read_text())["lines"]


def test_the_last_lines_cannot_be_removed_with_what_the_log_itself_holds(tmp_path):
    """The hash and the signature of an earlier line are no seal."""
    path = tmp_path / "log"
    write_log(path, 5)
    seal = json.loads((tmp_path / "log.seal").read_text())
    lines = read(path)
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:3]))
    third = hashlib.sha256(json.dumps(lines[2], sort_keys=True).encode()).hexdigest()
    forged = seal | {"lines": 3, "hash": third, "signature": lines[2]["signature"]}
    (tmp_path / "log.seal").write_text(json.dumps(forged))
    with pytest.raises(LogDamagedError, match="not signed by this agent"):
        read(path)
    (tmp_path / "log.seal").write_text(json.dumps(seal | {"lines": 3, "hash": third}))
    with pytest.raises(LogDamagedError, match="not signed by this agent"):
        read(path)


def test_the_signature_of_the_last_line_cannot_be_changed_either(tmp_path):
    path = tmp_path / "log"
    write_log(path, 3)
    *first, last = path.read_text().splitlines(keepends=True)
    signature = json.loads(last)["signature"]
    path.write_text("".join([*first, last.replace(signature, signature[:-1] + ("0" if signature[-1] != "0" else "1"))]))
    with pytest.raises(LogDamagedError, match="not the log that this agent has sealed"):
        read(path)


@pytest.mark.parametrize("change", [{"event": "confirmed"}, {"what": "matrix"}, {"rho": -1.0}])
def test_lines_that_need_no_signature_are_those_of_a_basis_only(tmp_path, change):
    path = tmp_path / "log"
    write_log(path, 1)
    added = {"line": 2, "time": "2026-01-01T00:00:00+00:00", **BASIS, "frequent": True}
    path.write_bytes(chained([*read(path), added]))
    assert len(read(path)) == 2
    path.write_bytes(chained([*read(path)[:1], added | change]))
    with pytest.raises(LogDamagedError, match=r"Line 2 of .* was changed"):
        read(path)


def test_a_line_that_only_reads_the_same_is_found(tmp_path):
    """Another reader may take the first of two values of the same name."""
    path = tmp_path / "log"
    write_log(path, 2)
    path.write_text(path.read_text().replace('{"line": 1,', '{"line": 7, "line": 1,'))
    with pytest.raises(LogDamagedError, match=r"Line 1 of .* was changed"):
        read(path)


def test_frequent_lines_are_signed_together_and_at_the_end(tmp_path):
    path = tmp_path / "log"
    write_log(path, 300, frequent=True)
    lines = read(path)
    assert [line["line"] for line in lines if "signature" in line] == [256, 301]
    assert (lines[-1]["event"], sealed_lines(path)) == ("closed", 301)
    write_log(path, 1)
    assert sealed_lines(path) == 302


def test_more_frequent_lines_than_are_signed_together_are_not_accepted(tmp_path, monkeypatch):
    path = tmp_path / "log"
    write_log(path, 1)
    monkeypatch.setattr("elmesh.agent.release_log._SIGN_EVERY", 1000)
    log = ReleaseLog(path, "north", ME, lambda line: None)
    for _ in range(400):
        log.append(BASIS, frequent=True)
    os.close(log._descriptor)
    monkeypatch.setattr("elmesh.agent.release_log._SIGN_EVERY", 256)
    with pytest.raises(LogDamagedError, match=r"The last 400 lines of .* are not signed"):
        list(read_log(path, "north", ME))


def test_a_log_has_one_writer(tmp_path):
    log = ReleaseLog(tmp_path / "log", "north", ME, lambda line: None)
    with pytest.raises(ElmeshError, match="Another process writes to the log"):
        ReleaseLog(tmp_path / "log", "north", ME, lambda line: None)
    log.close()


def test_a_log_that_cannot_be_opened_says_that_nothing_may_leave(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(ElmeshError, match=r"cannot be opened .*nothing may leave"):
        ReleaseLog(tmp_path / "file" / "log", "north", ME, lambda line: None)


def test_after_a_failed_write_the_log_is_as_it_was(tmp_path, monkeypatch):
    path = tmp_path / "log"
    write_log(path, 2)
    before = path.read_bytes()
    log = ReleaseLog(path, "north", ME, lambda line: None)
    with monkeypatch.context() as patch:
        patch.setattr(os, "fdatasync", lambda descriptor: (_ for _ in ()).throw(OSError(28, "No space left on device")))
        with pytest.raises(OSError, match="No space"):
            log.append({"event": "release"})
    assert path.read_bytes() == before
    log.append({"event": "release"})
    log.close()
    assert len(list(read_log(path, "north", ME))) == 3


# Releases.


def test_a_release_is_in_the_log_before_it_is_handed_out(make):
    site = make()
    site.releases.begin(facts())
    data = site.releases.release(masked(), lambda: b"bytes")
    assert data == b"bytes"
    (line,) = site.lines("release")
    expected = {"what": "matrix", "shape": [3], "bits": 64, "number": 0, "bytes": 5, "to": ["south"], "run": "1"}
    assert {name: line[name] for name in expected} == expected
    assert line["digest"] == hashlib.sha256(b"bytes").hexdigest()
    assert line["epsilon"] is None
    assert "content" not in line
    assert (site.releases.summary()["releases"], site.releases.summary()["matrices"]) == (1, 1)


def test_the_content_is_in_the_log_only_if_that_is_asked_for(make):
    site = make(content=True)
    site.releases.begin(facts())
    site.releases.release(masked(), lambda: b"bytes")
    assert site.lines("release")[0]["content"] == "Ynl0ZXM="


def test_an_agent_that_is_restarted_sends_the_same_bytes_and_no_others(make):
    site = make()
    site.releases.begin(facts())
    first = site.releases.release(masked(), lambda: b"first")
    for _ in range(2):
        releases = site.open()
        releases.begin(facts())
        assert releases.release(masked(), lambda: b"computed in another way") == first
    assert len(site.lines("release")) == 1
    assert len(site.lines("run")) == 1


def test_an_agent_killed_between_disk_and_log_logs_what_it_sends_after_its_restart(make, monkeypatch):
    site = make()
    site.releases.begin(facts())
    with monkeypatch.context() as patch:
        patch.setattr(ReleaseLog, "append", lambda *_, **__: (_ for _ in ()).throw(OSError(5, "killed")))
        with pytest.raises(OSError, match="killed"):
            site.releases.release(masked(), lambda: b"first")
    releases = site.open()
    releases.begin(facts())
    assert releases.release(masked(), lambda: b"second") == b"first"
    assert len(site.lines("release")) == 1


def test_a_term_that_is_not_on_disk_any_more_is_not_sent_in_another_form(make, tmp_path):
    site = make()
    site.releases.begin(facts())
    site.releases.release(masked(), lambda: b"first")
    (tmp_path / "masked.bin").unlink()
    releases = site.open()
    releases.begin(facts())
    with pytest.raises(ElmeshError, match=r"must not be sent in another form; start again with --fresh"):
        releases.release(masked(), lambda: b"first")


def test_if_the_log_cannot_be_written_nothing_leaves(make, monkeypatch):
    site = make()
    site.releases.begin(facts())
    sent = []
    monkeypatch.setattr(ReleaseLog, "append", lambda *_, **__: (_ for _ in ()).throw(OSError(28, "full")))
    for release in (masked(), Release("basis", (3, 2), ("south",), 0)):
        with pytest.raises(OSError, match="full"):
            sent.append(site.releases.release(release, lambda: b"x"))
    assert sent == []


# Masked terms on disk.


def label(k: int) -> bytes:
    return bytes([k]) * 32


def put(spool: TermSpool, k: int, term: bytes) -> None:
    spool.put(k, label(k), term, hashlib.sha256(term).digest())


def test_terms_are_found_again_and_are_private_to_the_user(tmp_path):
    spool = TermSpool(tmp_path / "spool")
    assert not (tmp_path / "spool").exists()
    for k in range(5):
        put(spool, k, bytes(100 * k))
    spool.close()
    again = TermSpool(tmp_path / "spool")
    assert [again.get(label(k)) for k in range(6)] == [*(bytes(100 * k) for k in range(5)), None]
    assert stat.S_IMODE((tmp_path / "spool").stat().st_mode) == 0o600
    again.close()


@pytest.mark.parametrize("cut", [1, 40, 80, 99, 150])
def test_a_term_whose_writing_was_interrupted_is_not_there(tmp_path, cut):
    spool = TermSpool(tmp_path / "spool")
    for k in range(2):
        put(spool, k, b"x" * 100)
    spool.close()
    data = (tmp_path / "spool").read_bytes()
    (tmp_path / "spool").write_bytes(data[:-cut])
    again = TermSpool(tmp_path / "spool")
    assert (again.get(label(0)), again.get(label(1))) == (b"x" * 100, None)
    put(again, 1, b"y")
    assert again.get(label(1)) == b"y"
    again.close()


def test_after_a_failed_write_the_terms_before_are_there(tmp_path, monkeypatch):
    spool = TermSpool(tmp_path / "spool")
    put(spool, 0, b"first")
    with monkeypatch.context() as patch:
        patch.setattr(os, "fdatasync", lambda descriptor: (_ for _ in ()).throw(OSError(28, "No space left on device")))
        with pytest.raises(OSError, match="No space"):
            put(spool, 1, b"second")
    assert spool.get(label(1)) is None
    put(spool, 1, b"again")
    assert (spool.get(label(0)), spool.get(label(1))) == (b"first", b"again")
    spool.close()


def test_terms_that_are_not_needed_any_more_give_up_their_space(tmp_path, monkeypatch):
    monkeypatch.setattr("elmesh.agent.term_spool._MOST_OLD", 1000)
    spool = TermSpool(tmp_path / "spool")
    for k in range(20):
        put(spool, k, bytes([k]) * 100)
    spool.forget(5)
    assert spool.get(label(0)) is not None  # not yet worth while
    spool.forget(15)
    assert [spool.get(label(k)) for k in (0, 14)] == [None, None]
    assert [spool.get(label(k)) for k in range(15, 20)] == [bytes([k]) * 100 for k in range(15, 20)]
    put(spool, 20, b"new")
    spool.close()
    again = TermSpool(tmp_path / "spool")
    assert [again.get(label(k)) for k in (14, 15, 20)] == [None, bytes([15]) * 100, b"new"]
    again.close()


# Differences between totals.


@pytest.mark.parametrize(
    ("sites", "table", "why"),
    [
        (SITES, "t", None),
        (SITES[:3], "t", "'west': the difference .* would reveal the part of this one"),
        (SITES[:2], "t", "'south', 'west': .*of these"),
        ((*SITES, "mid"), "t", "'mid'"),
        (("mid", "north", "far", "near"), "t", None),
        (("north", "x", "y", "z", "w"), "other", None),
        (SITES, "other", "table has changed since an earlier run"),
    ],
)
def test_a_second_run_is_refused_if_its_totals_differ_from_earlier_ones_by_little(make, sites, table, why):
    site = make()
    site.releases.begin(facts())
    site.releases.release(masked(), lambda: b"x")
    releases = site.open()
    second = facts("2", sites, table)
    if why is None:
        releases.begin(second)
        return
    with pytest.raises(ElmeshError, match=why):
        releases.begin(second)
    assert len(site.lines("run")) == 1
    releases.begin(second, again=True)
    assert len(site.lines("run")) == 2


def test_a_run_without_releases_reveals_nothing_to_compare_with(make):
    site = make()
    site.releases.begin(facts())
    site.open().begin(facts("2", SITES[:3], "other"))


def test_a_private_release_is_nothing_to_compare_with(make):
    site = make()
    site.releases.begin(facts(), rho=0.1)
    site.releases.release(masked(what="private", rho=0.1), lambda: b"x")
    assert not site.releases.begun
    site.open().begin(facts("2", SITES[:3], "other"), rho=0.1)


def test_sites_that_may_collude_do_not_hide_a_difference(make):
    site = make()
    site.releases.begin(facts(sites=tuple("abcdefgh"), k=1))
    site.releases.release(masked(), lambda: b"x")
    with pytest.raises(ElmeshError, match="same sites but for 'a', 'b', 'c'"):
        site.open().begin(facts("2", tuple("defgh"), k=1))
    site.open().begin(facts("2", tuple("efgh"), k=1))


def test_what_is_sent_as_it_is_has_no_total_to_compare_with(make):
    site = make()
    site.releases.begin(facts())
    site.releases.release(Release("basis", (3,), ("south",), 0), lambda: b"x")
    assert not site.releases.begun
    site.open().begin(facts("2", SITES[:3], "other"))


def test_a_basis_that_others_receive_is_another_release(make):
    site = make()
    site.releases.begin(facts())
    site.releases.release(Release("basis", (3,), ("south",), 0), lambda: b"x")
    site.releases.begin(facts(sites=SITES[:3]))
    site.releases.release(Release("basis", (3,), ("south",), 0), lambda: b"y")
    site.releases.release(Release("basis", (3,), ("south",), 0), lambda: b"y")
    assert [line["digest"] for line in site.lines("release")] == [hashlib.sha256(x).hexdigest() for x in (b"x", b"y")]


def test_the_rows_of_a_site_are_in_few_matrix_totals_over_all_runs(make):
    site = make()
    for k in range(3):
        releases = site.open()
        releases.begin(facts(str(k)))
        for number in range(3):
            releases.release(masked(number, label=b"%d %d" % (k, number)), lambda: b"x")
    releases = site.open()
    releases.begin(facts("2"))  # resumes
    with pytest.raises(GateError, match="allows 9 matrix totals of the same rows"):
        releases.release(masked(4), lambda: b"x")
    with pytest.raises(ElmeshError, match="released 9 totals of matrices of the same rows"):
        releases.begin(facts("3"))
    releases.begin(facts("3"), again=True)
    releases.release(masked(), lambda: b"x")


def test_after_private_runs_nothing_without_noise_leaves_unless_it_is_accepted(make):
    site = make()
    site.releases.begin(facts(), rho=0.1)
    site.releases.release(masked(what="private", rho=0.1), lambda: b"x")
    with pytest.raises(ElmeshError, match="epsilon 1, which would not hold any more"):
        site.open().begin(facts("2"))
    site.open().begin(facts("2"), again=True)


def test_the_budget_is_that_of_the_smallest_delta(make):
    site = make(largest_epsilon=3.0)
    site.releases.begin(facts(), rho=0.1)
    site.releases.release(masked(what="private", rho=0.1), lambda: b"x")
    with pytest.raises(ElmeshError, match="epsilon 1 of 3 is spent, and the run would make it 4"):
        site.open().begin(facts("2", delta=1e-3), rho=0.3)


def test_a_log_that_is_shorter_than_in_an_earlier_run_is_named(make):
    site = make()
    site.releases.begin(facts())
    assert site.releases.witness({"east": (5, b"a" * 32), "south": (7, b"b" * 32)}) == []
    assert site.releases.witness({"east": (0, b"a" * 32)}) == []  # once per run
    releases = site.open()
    releases.begin(facts("2"))
    ends = {"east": (4, b"c" * 32), "south": (7, b"c" * 32), "west": (0, bytes(32))}
    assert releases.witness(ends) == ["east", "south"]
    assert [line["replaced"] for line in site.lines("witness")] == [[], ["east", "south"]]


def test_the_gate_may_state_a_smaller_delta(make):
    site = make(largest_epsilon=3.0, delta=1e-6)
    with pytest.raises(ElmeshError, match="the run would make it 10"):
        site.releases.begin(facts(), rho=0.1)


def test_a_run_has_begun_with_its_first_release_without_noise(make):
    site = make()
    site.releases.begin(facts())
    assert not site.releases.begun
    site.releases.release(masked(), lambda: b"x")
    assert site.releases.begun
    releases = site.open()
    releases.begin(facts())
    assert releases.begun


# The gate.


def test_without_a_file_everything_is_allowed_and_nobody_is_asked(make):
    site = make()
    site.releases.begin(facts(rows=1))
    for k, what in enumerate(("statistics", "numbers", "block", "matrix", "basis")):
        site.releases.release(masked(k, what), lambda: b"x")
    assert site.asked == []


@pytest.mark.parametrize(
    ("gate", "allowed", "refused", "why"),
    [
        ({"kinds": ["numbers"]}, ["numbers"] * 3, "matrix", 'kind "matrix", only numbers'),
        ({"kinds": []}, [], "numbers", "only none"),
        (
            {"most_matrix_totals": 2},
            ["matrix", "numbers", "matrix", "block"],
            "matrix",
            "2 matrix totals of the same rows",
        ),
        ({"most_rounds": 2}, ["matrix", "numbers"], "numbers", "2 releases in a run"),
        ({"most_numbers": 2}, [], "numbers", '2 numbers in a release, and this one of kind "numbers" has 3'),
        ({"largest_epsilon": 1.0}, [], "numbers", "without noise has no epsilon"),
    ],
)
def test_the_gate_allows_what_it_names_and_no_more(make, gate, allowed, refused, why):
    site = make(**gate)
    site.releases.begin(facts())
    for k, what in enumerate(allowed):
        site.releases.release(masked(k, what), lambda: b"x")
    made = []
    with pytest.raises(GateError, match=why):
        site.releases.release(masked(99, refused), lambda: made.append(1) or b"x")
    assert made == []
    assert len(site.lines("release")) == len(allowed)
    # A restart does not begin to count anew.
    releases = site.open()
    releases.begin(facts())
    with pytest.raises(GateError, match=why):
        releases.release(masked(99, refused), lambda: b"x")


@pytest.mark.parametrize(
    ("gate", "why"),
    [
        ({"fewest_rows": 51}, "at least 51 rows, and the table has 50"),
        ({"fewest_sites": 5}, "sums over at least 5 sites, and there are 4"),
    ],
)
def test_the_gate_keeps_small_tables_and_small_networks_from_starting(make, gate, why):
    site = make(**gate)
    with pytest.raises(GateError, match=why):
        site.releases.begin(facts())
    assert site.lines() == []


def test_epsilon_adds_up_over_runs_and_what_is_spent_is_not_spent_again(make):
    site = make(largest_epsilon=1.0)
    for run in ("1", "2"):
        releases = site.open()
        releases.begin(facts(run, table=run), rho=0.05)
        releases.release(masked(what="private", rho=0.05), lambda: b"x")
    assert [line["epsilon"] for line in site.lines("release")] == pytest.approx([0.5, 1.0])
    releases = site.open()
    # A run that the budget does not allow is refused before anything leaves, and so is a release that was not planned.
    with pytest.raises(ElmeshError, match=r"epsilon 1 of 1 is spent, and the run would make it 1\.5. Nothing leaves"):
        releases.begin(facts("3"), rho=0.05)
    releases.begin(facts("3"), rho=1e-12)
    with pytest.raises(GateError, match=r"epsilon of 1 for its rows in all, and this release would make it 1\.5"):
        releases.release(masked(what="private", rho=0.05), lambda: b"x")
    assert releases.summary()["epsilon"] == pytest.approx(1.0)
    # What was sent in run 2 is sent again at no cost.
    releases = site.open()
    releases.begin(facts("2", table="2"), rho=0.05)
    assert releases.release(masked(what="private", rho=0.05), lambda: b"y") == b"x"


def test_after_a_total_without_noise_no_epsilon_holds_for_the_rows(make):
    site = make(largest_epsilon=1.0)
    without_limit = site.gate
    site.gate = Gate()
    releases = site.open()
    releases.begin(facts("1"))
    releases.release(masked(), lambda: b"x")
    assert releases.summary()["epsilon"] is None
    site.gate = without_limit
    with pytest.raises(ElmeshError, match="Totals without noise have left this site before"):
        site.open().begin(facts("2"), rho=0.05)


def test_a_private_run_that_is_resumed_has_been_allowed_already(make):
    site = make(largest_epsilon=0.5)
    site.releases.begin(facts("1"), rho=0.05)
    site.releases.release(masked(what="private", rho=0.05), lambda: b"x")
    releases = site.open()
    releases.begin(facts("1"), rho=0.05)
    assert releases.release(masked(what="private", rho=0.05), lambda: b"y") == b"x"


def test_a_person_is_asked_once_per_run_before_anything_leaves(make):
    site = make(confirm=True)
    site.releases.begin(facts())
    for k in range(3):
        site.releases.release(masked(k), lambda: b"x")
    releases = site.open()
    releases.begin(facts())
    releases.release(masked(3), lambda: b"x")
    assert len(site.asked) == 1
    assert "releases of 50 rows to a network of 4 sites" in site.asked[0]
    assert [line["event"] for line in site.lines()][:3] == ["run", "confirmed", "release"]


def test_without_a_person_s_confirmation_nothing_leaves(make):
    site = make(confirm=True)
    site.answer = False
    site.releases.begin(facts())
    with pytest.raises(ElmeshError, match="has not confirmed the release, so that nothing leaves"):
        site.releases.release(masked(), lambda: b"x")
    assert site.lines("release") == []


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ('kinds = ["rows"]', r"\"kinds\[0\]\" is 'rows'; expected one of"),
        ("most_rows = 3", '"most_rows" is unknown; did you mean "most_rounds"'),
        ("largest_epsilon = 0", '"largest_epsilon" is 0; expected a number above 0'),
        ("fewest_sites = 0", '"fewest_sites" is 0'),
        ("confirm = 1", '"confirm" is 1; expected true or false'),
        ("kinds = [", "This is not TOML"),
    ],
)
def test_a_gate_file_that_is_not_valid_is_refused(tmp_path, text, why):
    (tmp_path / "gate.toml").write_text(text)
    with pytest.raises(ElmeshError, match=why):
        Gate.read(tmp_path / "gate.toml")


def test_a_gate_file_is_read(tmp_path):
    (tmp_path / "gate.toml").write_text('kinds = ["private"]\nlargest_epsilon = 2\nfewest_sites = 5\nconfirm = true\n')
    gate = Gate.read(tmp_path / "gate.toml")
    assert gate == Gate(kinds=("private",), largest_epsilon=2.0, fewest_sites=5, confirm=True)


# A person's answer.


def test_only_the_answer_to_this_question_counts(tmp_path):
    assert asked_confirmation(tmp_path) is None
    with pending_confirmation(tmp_path, "text") as answer:
        assert answer() is None
        question = asked_confirmation(tmp_path)
        assert question["text"] == "text"
        answer_confirmation(tmp_path, "another token", True)
        assert answer() is None
        answer_confirmation(tmp_path, question["token"], False)
        assert answer() is False
    assert asked_confirmation(tmp_path) is None
    with pending_confirmation(tmp_path, "text") as answer:
        answer_confirmation(tmp_path, question["token"], True)
        assert answer() is None
        answer_confirmation(tmp_path, asked_confirmation(tmp_path)["token"], True)
        assert answer() is True


def test_random_bytes_in_place_of_an_answer_are_named(tmp_path):
    (tmp_path / "confirmation.json").write_bytes(np.random.default_rng(0).bytes(50))
    with pytest.raises(ElmeshError, match=r"confirmation\.json is not a question or an answer"):
        asked_confirmation(tmp_path)
