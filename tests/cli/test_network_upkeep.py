"""Certificates over the years: they are renewed, revoked, expire, and their authority is replaced."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import ssl
import stat
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

pytest.importorskip("cryptography", reason="keys and certificates need cryptography, of elmesh[network]")

from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from elmesh.agent.release_log import LogDamagedError, ReleaseLog, read_log
from elmesh.errors import ElmeshError
from elmesh.netconfig.expiry import expiries, expiry_sentences
from elmesh.netconfig.identity import Identity
from elmesh.netconfig.pki.authority import Authority, make_authority, sign
from elmesh.netconfig.pki.csr import make_request
from elmesh.netconfig.pki.keys import public_bytes, read_key
from elmesh.netconfig.pki.revocation import Revocations, make_list
from elmesh.netconfig.pki.verify import fingerprint, load_certificates
from elmesh.netconfig.renewal import Renewal
from helpers.commands import Command
from helpers.forked import ForkedNetwork
from helpers.network import LIMIT, make_config

SITES = ("north", "south", "west")
LOOPBACK = ["localhost", "127.0.0.1", "::1"]
NOW = datetime.now(UTC)
NETWORK = Command("network")
run, worked, refused = NETWORK.run, NETWORK.worked, NETWORK.refused


@pytest.fixture(scope="module")
def created(tmp_path_factory) -> Path:
    """A network with the folders of three agents."""
    folder = tmp_path_factory.mktemp("created") / "net"
    worked("create", folder, "--agents", ",".join(SITES), "--listen", "127.0.0.1:7451", "--days", 40, "--quiet")
    return folder


@pytest.fixture
def net(created, tmp_path, monkeypatch) -> Path:
    """The same in the present folder."""
    monkeypatch.chdir(tmp_path)
    shutil.copytree(created, "net")
    return Path("net")


def agent(name: str) -> Path:
    return Path("net") / name / "agent.toml"


def signed(name: str, request: Path, *more: object) -> Path:
    worked("sign", "net/ca", request, "--network", "net/network.toml", "--out", f"{name}.pem", "--force", *more)
    return Path(f"{name}.pem")


def renew(name: str, *more: object) -> None:
    """Renew at the site, at the authority, and at the site again."""
    asked = json.loads(worked("renew", agent(name), "--json", *more).stdout)
    worked("renew", agent(name), "--certificate", signed(name, asked["request"]))


def resign(name: str, **how: object) -> None:
    """Give an agent another certificate for its key."""
    folder = Path("net") / name
    request = make_request(read_key(folder / "key.pem"), name, LOOPBACK)
    (folder / "certificate.pem").write_bytes(sign(request, Authority.read(Path("net/ca")), **how))


def verify(by: str, of: str) -> None:
    """Verify a signature of an agent as another one does."""
    there = Identity.load(agent(of)).credentials()
    Identity.read(agent(by)).credentials().verify(of, there.chain, b"data", there.sign(b"data"))


# Renewal.


@pytest.mark.parametrize("new_key", [False, True])
def test_a_renewed_certificate_takes_the_place_of_the_old_one_and_the_log_goes_on(net, new_key):
    before = Identity.read(agent("north"))
    key, certificate = before.key.read_bytes(), before.certificate.read_bytes()
    log = ReleaseLog(before.log, "north", before.credentials(), lambda line: None)
    for _ in range(2):
        log.append({"event": "run"})
    # As a process that is killed before the seal of the second line is on disk.
    seal = before.log.with_name("releases.jsonl.seal")
    log.close()
    log = ReleaseLog(before.log, "north", before.credentials(), lambda line: None)
    kept = seal.read_bytes()
    log.append({"event": "run"})
    log.close()
    seal.write_bytes(kept)
    renew("north", *(["--new-key"] if new_key else []))
    after = Identity.read(agent("north"))
    assert after.days_left() > 300 > before.days_left()
    assert (after.key.read_bytes() == key) is not new_key
    assert stat.S_IMODE(after.key.stat().st_mode) == 0o600
    assert certificate in (net / "north" / "former-certificates.pem").read_bytes()
    assert not (net / "north" / "renewal").exists()
    assert len(list(read_log(after.log, "north", after.credentials()))) == 3
    verify("south", "north")
    if new_key:
        (net / "north" / "former-certificates.pem").unlink()
        with pytest.raises(LogDamagedError, match=r"Line 3 of .* was not written by this agent"):
            list(read_log(after.log, "north", after.credentials()))


def test_a_renewal_is_resumed_and_its_key_is_made_once(net):
    first = json.loads(worked("renew", agent("north"), "--new-key", "--json").stdout)
    assert first["new_key"]
    request, key = Path(first["request"]).read_bytes(), (net / "north/renewal/key.pem").read_bytes()
    assert "Done before: the request" in worked("renew", agent("north"), "--new-key").stdout
    assert (Path(first["request"]).read_bytes(), (net / "north/renewal/key.pem").read_bytes()) == (request, key)
    assert (net / "north/key.pem").read_bytes() != key
    # Interrupted after the new key is in place, and before its certificate is.
    shutil.copy(net / "north/renewal/key.pem", net / "north/key.pem")
    with pytest.raises(ElmeshError, match="is not the certificate of"):
        Identity.read(agent("north"))
    signed("north", Path(first["request"])).rename(net / "north/renewal/north.pem")
    worked("renew", agent("north"))
    assert (net / "north/key.pem").read_bytes() == key
    Identity.read(agent("north"))


def test_a_request_for_the_present_key_becomes_one_for_a_new_key_only_with_force(net):
    worked("renew", agent("north"))
    assert "give --force" in refused("renew", agent("north"), "--new-key")
    found = json.loads(worked("renew", agent("north"), "--new-key", "--force", "--json").stdout)
    assert found["new_key"]


def test_the_present_certificate_and_an_older_one_do_not_take_its_place(net):
    stale = Path("stale.pem")
    shutil.copy(net / "north/certificate.pem", stale)
    worked("renew", agent("north"))
    assert "is the certificate that north has already" in refused("renew", agent("north"), "--certificate", stale)
    request = net / "north/renewal/north.csr"
    assert request.is_file()
    worked("renew", agent("north"), "--certificate", signed("north", request))
    worked("renew", agent("north"))
    assert "it is an old one" in refused("renew", agent("north"), "--certificate", stale)
    assert Identity.read(agent("north")).days_left() > 300


@pytest.mark.parametrize("new_key", [False, True])
@pytest.mark.parametrize("beside", [False, True])
def test_a_renewal_that_was_killed_at_its_end_is_completed(net, monkeypatch, new_key, beside):
    worked("renew", agent("north"), *(["--new-key"] if new_key else []))
    request = net / "north/renewal/north.csr"
    new = signed("north", request)
    if beside:
        new = new.rename(net / "north/renewal/north.pem")
    # As a process that is killed before it removes the request.
    with monkeypatch.context() as patch:
        patch.setattr(Renewal, "_finish", lambda _: None)
        Renewal(Identity.read(agent("north"))).install(new)
    assert request.exists()
    assert "is the new certificate of north" in worked("renew", agent("north")).stdout
    assert not (net / "north/renewal").exists()
    assert Identity.read(agent("north")).days_left() > 300


@pytest.mark.parametrize("left", ["key.pem", "north.csr", "accepted.pem"])
def test_what_a_renewal_that_was_killed_while_it_cleaned_up_leaves_is_no_request(net, monkeypatch, left):
    worked("renew", agent("north"), "--new-key")
    new = signed("north", net / "north/renewal/north.csr")

    def stop_early(folder, **_):
        for path in Path(folder).glob("*"):
            if path.name != left:
                path.unlink()

    with monkeypatch.context() as patch:
        patch.setattr("elmesh.netconfig.renewal.shutil.rmtree", stop_early)
        worked("renew", agent("north"), "--certificate", new)
    key = public_bytes(read_key(net / "north/key.pem").public_key())
    assert json.loads(worked("renew", agent("north"), "--new-key", "--json").stdout)["new_key"]
    assert public_bytes(read_key(net / "north/renewal/key.pem").public_key()) != key
    worked("renew", agent("north"), "--certificate", signed("north", net / "north/renewal/north.csr"))
    assert public_bytes(read_key(net / "north/key.pem").public_key()) != key
    assert not list(net.glob("north/*renewal*"))


def test_with_force_an_earlier_answer_of_the_authority_is_not_installed(net):
    worked("renew", agent("north"))
    signed("north", net / "north/renewal/north.csr").rename(net / "north/renewal/north.pem")
    worked("renew", agent("north"), "--new-key", "--force")
    assert "Done before: the request" in worked("renew", agent("north")).stdout


def test_a_certificate_for_a_shorter_time_is_installed_if_it_was_made_later(net):
    worked("renew", agent("north"))
    request = net / "north/renewal/north.csr"
    before = Identity.read(agent("north")).days_left()
    later = datetime.now(UTC) + timedelta(minutes=1)
    Path("shorter.pem").write_bytes(sign(request.read_bytes(), Authority.read(net / "ca"), days=10, now=later))
    worked("renew", agent("north"), "--certificate", "shorter.pem")
    assert Identity.read(agent("north")).days_left() < 11 < before


def test_a_new_key_stays_until_its_certificate_is_installed(net):
    worked("renew", agent("north"), "--new-key")
    new = signed("north", net / "north/renewal/north.csr")
    message = refused("renew", agent("north"), "--certificate", new, "--force")
    assert "give the certificate alone" in message
    key = (net / "north/renewal/key.pem").read_bytes()
    assert "Done: the request" in worked("renew", agent("north"), "--force").stdout
    assert (net / "north/renewal/key.pem").read_bytes() == key
    worked("renew", agent("north"), "--certificate", new)
    assert (net / "north/key.pem").read_bytes() == key


def test_the_keeper_and_the_site_see_the_same_fingerprint_of_the_key(net):
    asked = worked("renew", agent("north"), "--new-key").stdout
    (shown,) = re.findall(r"Fingerprint of the key ([0-9a-f ]{39})", asked)
    result = worked("sign", "net/ca", net / "north/renewal/north.csr", "--network", "net/network.toml")
    assert f"Fingerprint of its key {shown}" in result.stdout
    assert "north has a valid certificate of another key, too" in result.stderr


def test_an_expired_certificate_is_renewed(net):
    resign("north", days=30, now=NOW - timedelta(days=60))
    with pytest.raises(ElmeshError, match="expired on"):
        Identity.read(agent("north"))
    renew("north")
    assert Identity.read(agent("north")).days_left() > 300


def test_what_the_authority_has_signed_for_another_is_not_installed(net):
    asked = json.loads(worked("renew", agent("north"), "--json").stdout)
    before = (net / "north/certificate.pem").read_bytes()
    other = json.loads(worked("renew", agent("south"), "--json").stdout)
    wrong = refused("renew", agent("north"), "--certificate", signed("south", other["request"]))
    assert "is not the certificate of" in wrong
    stranger = make_authority(Path("stranger"), "net")
    Path("forged.pem").write_bytes(sign(Path(asked["request"]).read_bytes(), stranger))
    assert "was not issued by the authority" in refused("renew", agent("north"), "--certificate", "forged.pem")
    assert (net / "north/certificate.pem").read_bytes() == before


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_a_renewed_file_keeps_its_owner_and_a_link_stays_a_link(net):
    real = net / "north" / "real.pem"
    (net / "north/certificate.pem").rename(real)
    (net / "north/certificate.pem").symlink_to("real.pem")
    os.chown(real, 12345, 12345)
    renew("north")
    assert (net / "north/certificate.pem").is_symlink()
    assert real.stat().st_uid == 12345


# Revocation.


def test_a_revoked_certificate_is_refused_and_a_later_one_is_not(net):
    verify("south", "north")
    old = (net / "north/certificate.pem").read_bytes()
    shown = worked("revoke", net, "north")
    assert "1 certificate of north revoked." in shown.stdout
    shutil.copy(net / "revoked.pem", net / "south/revoked.pem")
    with pytest.raises(ElmeshError, match=r"its certificate was revoked by the authority on \d{4}-\d\d-\d\d"):
        verify("south", "north")
    verify("west", "north")  # has no list
    verify("south", "west")
    # At the revoked site, with the list.
    shutil.copy(net / "revoked.pem", net / "north/revoked.pem")
    with pytest.raises(ElmeshError, match=r"certificate.pem was revoked .* elmesh network renew .* --new-key"):
        Identity.read(agent("north"))
    assert "was revoked" in refused("check", agent("north"))
    renew("north", "--new-key")
    verify("south", "north")
    Path("old.pem").write_bytes(old)
    worked("revoke", net, "north", "--json")
    shutil.copy(net / "revoked.pem", net / "south/revoked.pem")
    with pytest.raises(ElmeshError, match="was revoked"):
        verify("south", "north")


def test_a_list_is_written_again_with_the_same_entries_and_a_higher_number(net):
    worked("revoke", net, "north", "--days", 10)
    authorities = load_certificates(net / "ca/ca.pem")
    (before,) = Revocations.read(net / "revoked.pem", authorities).lists
    found = json.loads(worked("revoke", net, "--days", 200, "--json").stdout)
    assert (found["revoked"], found["agent"]) == (0, None)
    (after,) = Revocations.read(net / "revoked.pem", authorities).lists
    assert [e.serial_number for e in after] == [e.serial_number for e in before]
    assert [e.revocation_date_utc for e in after] == [e.revocation_date_utc for e in before]
    assert after.next_update_utc > before.next_update_utc + timedelta(days=180)
    number = lambda one: one.extensions[0].value.crl_number  # noqa: E731
    assert number(after) == number(before) + 1


def test_a_certificate_without_a_record_is_revoked_by_its_file(net):
    shutil.rmtree(net / "ca/issued")
    assert "has no certificate of north" in refused("revoke", net, "north")
    assert not (net / "revoked.pem").exists()
    file = net / "north/certificate.pem"
    assert "is the certificate of 'north', not of south" in refused("revoke", net, "south", "--certificate", file)
    assert "needs the name" in refused("revoke", net, "--certificate", file)
    worked("revoke", net, "north", "--certificate", file)
    shutil.copy(net / "revoked.pem", net / "south/revoked.pem")
    with pytest.raises(ElmeshError, match="was revoked"):
        verify("south", "north")
    stranger = make_authority(Path("stranger"), "net")
    Path("x.pem").write_bytes(sign(make_request(read_key(net / "west/key.pem"), "west", LOOPBACK), stranger))
    assert "was not issued by the authority" in refused("revoke", net, "west", "--certificate", "x.pem")


def test_a_list_of_another_authority_or_of_nonsense_is_never_ignored(net):
    stranger = make_authority(Path("stranger"), "net")
    forged = make_list(stranger, {1: NOW}, 30, 1, NOW)
    worked("revoke", net, "north")
    good = (net / "revoked.pem").read_bytes()
    for data, words in [
        (forged, "was not signed by an authority that this agent trusts"),
        (b"", "is no list of revoked certificates"),
        (good[:-60], "is no list of revoked certificates"),
        (good.replace(b"-----BEGIN X509 CRL-----\n", b"-----BEGIN X509 CRL-----\nAAAA"), "is no list of revoked"),
        (good + b"#" * 2**20, "is no list of revoked certificates"),
    ]:
        (net / "south/revoked.pem").write_bytes(data)
        with pytest.raises(ElmeshError, match=words):
            Identity.read(agent("south"))


def test_in_a_file_with_lists_of_several_authorities_those_that_are_trusted_count(net):
    """While the authority is replaced, a site may not trust both yet."""
    stranger = make_authority(Path("stranger"), "net")
    south = load_certificates(net / "south/certificate.pem")[0]
    worked("revoke", net, "north")
    lists = (net / "revoked.pem").read_bytes() + make_list(stranger, {south.serial_number: NOW}, 30, 1, NOW)
    (net / "south/revoked.pem").write_bytes(lists)
    found = Identity.read(agent("south")).revocations
    assert found.time_of(load_certificates(net / "north/certificate.pem")[0]) is not None
    assert found.time_of(south) is None


def test_an_empty_record_of_a_certificate_does_not_keep_others_from_being_revoked(net):
    (net / "ca/issued/west-0.pem").touch()
    assert "1 certificate of west revoked" in worked("revoke", net, "west").stdout


def test_a_rotation_that_fails_leaves_the_authority_and_no_second_key(net, monkeypatch):
    def full(*_, **__):
        raise shutil.Error([("a", "b", "[Errno 28] No space left on device: 'b'")])

    with monkeypatch.context() as patched:
        patched.setattr(shutil, "copytree", full)
        assert "could not be copied ([Errno 28] No space left" in refused("rotate", net)
    assert not list(net.glob(".ca*"))
    assert (net / "ca/ca.key").is_file()
    assert "has a new authority" in worked("rotate", net).stdout


# Expiry.


def test_everything_that_expires_within_thirty_days_is_mentioned(net):
    worked("revoke", net, "west", "--days", 20)
    shutil.copy(net / "revoked.pem", net / "north/revoked.pem")
    resign("north", days=12)
    identity = Identity.read(agent("north"))
    assert [one.what for one in expiries(identity)] == ["certificate", "authority", "revocations"]
    certificate, lists = expiry_sentences(identity)
    assert certificate.startswith("The certificate of north expires in 12 days, on 20")
    assert "elmesh network renew" in certificate
    assert lists.startswith("The list of revoked certificates in revoked.pem expires in 20 days")
    late = expiry_sentences(identity, NOW + timedelta(days=25))
    assert len(late) == 2
    assert all(" expired on " in text for text in late)
    assert "The certificate of the authority in ca.pem expires" in " ".join(
        expiry_sentences(identity, NOW + timedelta(days=3640))
    )
    resign("north", days=31)
    (only,) = expiry_sentences(Identity.read(agent("north")))
    assert "list" in only


def test_a_stale_list_still_counts_and_only_warns(net):
    ca = Authority.read(net / "ca")
    (north,) = load_certificates(net / "north/certificate.pem")
    old = NOW - timedelta(days=40)
    (net / "south/revoked.pem").write_bytes(make_list(ca, {north.serial_number: old}, 30, 1, old))
    found = run("check", agent("south"), "--wait", 0)
    assert found.exit_code == 1, found.output  # the neighbours do not run
    assert "note: The list of revoked certificates in revoked.pem expired on" in found.stderr
    with pytest.raises(ElmeshError, match="was revoked"):
        verify("south", "north")


# Another authority.


def test_both_authorities_are_trusted_in_an_overlap_and_then_the_new_one_alone(net):
    for name in SITES:
        identity = Identity.read(agent(name))
        book = ReleaseLog(identity.log, name, identity.credentials(), lambda line: None)
        book.append({"event": "run"})
        book.close()
    old_key = (net / "ca/ca.key").read_bytes()
    worked("revoke", net, "west")
    for name in ("north", "south"):
        shutil.copy(net / "revoked.pem", net / name / "revoked.pem")
    worked("rotate", net)
    assert "is being replaced already" in refused("rotate", net)
    assert "signed no certificate yet for north, south, west" in refused("rotate", net, "--finish")
    both = net / "ca/ca.pem"
    assert len(load_certificates(both)) == 2
    # A certificate of the new authority is refused before a site trusts it.
    asked = json.loads(worked("renew", agent("north"), "--json").stdout)
    new = signed("north", asked["request"])
    assert "was not issued by the authority" in refused("renew", agent("north"), "--certificate", new)
    digits = fingerprint(load_certificates(both)[0])
    before = (net / "north/ca.pem").read_bytes()
    assert "read out its fingerprint by telephone" in refused("trust", agent("north"), both)
    wrong = fingerprint(load_certificates(both)[1])
    assert f"It is not '{wrong}'" in refused("trust", agent("north"), both, "--fingerprint", wrong)
    assert (net / "north/ca.pem").read_bytes() == before
    for name in SITES:
        shown = json.loads(worked("trust", agent(name), both, "--fingerprint", digits, "--json").stdout)
        assert (len(shown["new"]), len(shown["dropped"])) == (1, 0)
        assert "trusted already" in worked("trust", agent(name), both).stdout
    worked("renew", agent("north"), "--certificate", new)
    verify("south", "north")
    verify("north", "south")
    # In the overlap certificates of both are revoked.
    worked("revoke", net, "north")
    for name in ("north", "south"):
        shutil.copy(net / "revoked.pem", net / name / "revoked.pem")
    for name in ("north", "west"):
        with pytest.raises(ElmeshError, match="was revoked"):
            verify("south", name)
    (net / "north/revoked.pem").unlink()
    renew("north")
    # The former one is dropped last, and not before a site has renewed.
    assert "signed no certificate yet for south, west" in refused("rotate", net, "--finish")
    shutil.copy(net / "ca/ca.pem", "overlap.pem")
    renew("south")
    found = json.loads(worked("rotate", net, "--finish", "--force", "--json").stdout)
    assert found["left"] == ["west"]
    assert old_key not in [path.read_bytes() for path in net.glob("ca/**/*") if path.is_file()]
    assert "Renew it first" in refused("trust", agent("west"), net / "ca/ca.pem")
    for name in ("north", "south"):
        shown = json.loads(worked("trust", agent(name), net / "ca/ca.pem", "--json").stdout)
        assert (len(shown["new"]), len(shown["dropped"])) == (0, 1)
        identity = Identity.read(agent(name))
        assert len(list(read_log(identity.log, name, identity.credentials()))) == 1
    verify("south", "north")
    with pytest.raises(ElmeshError, match="was not issued by the authority"):
        verify("south", "west")


def test_an_authority_that_replaces_all_others_is_refused_without_force(net):
    make_authority(Path("stranger"), "net")
    before = (net / "north/ca.pem").read_bytes()
    assert "has none of the authorities" in refused("trust", agent("north"), "stranger/ca.pem")
    digits = fingerprint(load_certificates(Path("stranger/ca.pem"))[0]).replace(" ", ":").upper()
    words = ["trust", agent("north"), "stranger/ca.pem", "--force"]
    assert "read out its fingerprint" in refused(*words)
    assert "Renew it first" in refused(*words, "--fingerprint", digits)
    assert "no certificate of an authority" in refused("trust", agent("north"), net / "south/certificate.pem")
    assert "There is no file nowhere.pem" in refused("trust", agent("north"), "nowhere.pem")
    assert (net / "north/ca.pem").read_bytes() == before
    assert "begin with elmesh network rotate" in refused("rotate", net, "--finish")


# Real agents.


def install(network: ForkedNetwork, name: str, **how: object) -> bytes:
    """Put another certificate for the same key into an agent's folder, as a renewal does; return it."""
    folder = network.agents[name].folder
    request = make_request(read_key(folder / "key.pem"), name, LOOPBACK)
    data = sign(request, Authority.read(network.folder / "net" / "ca"), **how)
    Path("new.pem").write_bytes(data)
    worked("renew", folder / "agent.toml", "--certificate", "new.pem")
    return data


def test_a_revoked_agent_is_refused_with_a_plain_sentence_and_the_others_go_on(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    config = make_config(("east", "north", "south"), "complete", rounds=20)
    with ForkedNetwork(tmp_path, config) as network:
        worked("revoke", tmp_path / "net", "east")
        for name in ("north", "south"):
            shutil.copy(tmp_path / "net/revoked.pem", network.agents[name].folder / "revoked.pem")
            network.start(name, "--on-bad", "isolate", "--on-loss", "continue")
        network.start("east")
        assert network.wait("north", "south") == {"north": 0, "south": 0}, network.logs()
        # The one that a message of east reaches first tells the other, which need not see east at all.
        refusals = [event["reason"] for name in ("north", "south") for event in network.agents[name].events("refused")]
        assert refusals
        assert all("its certificate was revoked by the authority on" in text for text in refusals), refusals
        for name in ("north", "south"):
            assert network.result(name)["evicted"] == ["east"]
        assert not network.agents["east"].out.exists()


def test_by_default_a_revoked_neighbour_ends_the_run_with_its_name_and_the_date(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with ForkedNetwork(tmp_path, make_config(("left", "right"), "path")) as network:
        worked("revoke", tmp_path / "net", "right")
        left = network.agents["left"]
        shutil.copy(tmp_path / "net/revoked.pem", left.folder / "revoked.pem")
        network.start_all()
        assert network.wait("left") == {"left": 4}, network.logs()
        sentence = r"elmesh: A message from right was refused: .* its certificate was revoked by the authority on "
        assert re.search(rf"{sentence}\d{{4}}-\d\d-\d\d \d\d:\d\d UTC", left.errors.replace("(", " "))
        assert not left.out.exists()
        # Another site sees it before a run.
        found = run("check", left.folder / "agent.toml", "--json")
        (right,) = json.loads(found.stdout)["neighbors"]
        assert right["problem"].startswith("its certificate was revoked by the authority on ")
        assert found.exit_code == 1


def dialled_certificate(network: ForkedNetwork, name: str) -> bytes:
    """Return the certificate that the next agent to connect to the address of an absent one shows."""
    folder = network.agents[name].folder
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=folder / "ca.pem")
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_cert_chain(folder / "certificate.pem", folder / "key.pem")
    host, _, port = str(network.config.address_of(name)).rpartition(":")
    with socket.create_server((host, int(port))) as server:
        server.settimeout(LIMIT)
        connection, _ = server.accept()
        with context.wrap_socket(connection, server_side=True) as link:
            return x509.load_der_x509_certificate(link.getpeercert(binary_form=True)).public_bytes(Encoding.PEM)


def test_a_run_goes_on_while_its_certificate_is_renewed_and_new_connections_use_the_new_one(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    config = make_config(("left", "right"), "path", rounds=100)
    with ForkedNetwork(tmp_path, config) as network:
        network.start_all()
        network.until_round("left", 2)
        network.agents["right"].process.send_signal(signal.SIGSTOP)
        second = install(network, "left", days=200)
        network.agents["right"].process.send_signal(signal.SIGCONT)
        assert set(network.wait().values()) == {0}, network.logs()
        # The next run uses the new certificate; and connections that it opens use one that comes while it runs.
        network.start("left", "--force")
        network.until_event("left", "open", 2)
        assert dialled_certificate(network, "right") == second
        third = install(network, "left", days=300)
        assert dialled_certificate(network, "right") == third
        # Connections that it accepts use the one with which it was started.
        (left,) = json.loads(run("check", network.agents["right"].folder / "agent.toml", "--json").stdout)["neighbors"]
        end = x509.load_pem_x509_certificate(second).not_valid_after_utc
        assert datetime.fromisoformat(left["valid_until"]) == end


def test_agents_with_certificates_of_the_former_and_the_new_authority_run_together(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with ForkedNetwork(tmp_path, make_config(("left", "right"), "path", rounds=20)) as network:
        worked("rotate", tmp_path / "net")
        for name in ("left", "right"):
            digits = fingerprint(load_certificates(tmp_path / "net/ca/ca.pem")[0])
            worked("trust", agent(name), "net/ca/ca.pem", "--fingerprint", digits)
        renew("left")
        issuers = {name: load_certificates(tmp_path / "net" / name / "certificate.pem")[0] for name in network.agents}
        new, former = load_certificates(tmp_path / "net/ca/ca.pem")
        issuers["left"].verify_directly_issued_by(new)
        issuers["right"].verify_directly_issued_by(former)
        network.start("right")
        network.until_event("right", "open")
        # By OpenSSL, and by zenoh.
        found = run("check", agent("left"), "--wait", LIMIT, "--json")
        assert found.exit_code == 0, found.output
        network.start("left")
        assert network.wait() == {"left": 0, "right": 0}, network.logs()
