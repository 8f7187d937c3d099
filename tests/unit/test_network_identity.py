"""An agent proves its identity by its key and certificate; files that do not belong together are refused."""

from __future__ import annotations

import errno
import ipaddress
import json
import os
import ssl
import stat
import tempfile
import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elmesh.errors import ElmeshError

pytest.importorskip("cryptography", reason="keys and certificates need cryptography, of elmesh[network]")
pytest.importorskip("msgspec", reason="network files need msgspec, of elmesh[network]")

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from elmesh.agent.release_log import LogDamagedError, ReleaseLog, read_log
from elmesh.netconfig.config import AgentEntry, NetworkConfig
from elmesh.netconfig.identity import FORMER_AUTHORITIES, Identity, agent_toml
from elmesh.netconfig.pki.authority import Authority, make_authority, sign
from elmesh.netconfig.pki.csr import load_request, make_request
from elmesh.netconfig.pki.keys import make_key
from helpers.network import free_ports

CONFIG = NetworkConfig(
    name="net",
    kind="classification",
    agents=(AgentEntry("north", "127.0.0.1:7451"), AgentEntry("south", "south.example.org:7452")),
    edges=(("north", "south"),),
    fewest_sites=2,
)
LOOPBACK = ["localhost", "127.0.0.1", "::1"]
NOW = datetime.now(UTC)


@pytest.fixture(scope="module")
def authority(tmp_path_factory) -> Authority:
    return make_authority(tmp_path_factory.mktemp("authority") / "ca", "net")


@pytest.fixture(scope="module")
def stranger(tmp_path_factory) -> Authority:
    """Another authority, of the same name."""
    return make_authority(tmp_path_factory.mktemp("stranger") / "ca", "net")


def site(folder: Path, authority: Authority, certificate: bytes | None = None, name: str = "north") -> Path:
    """An agent's folder; return its agent.toml."""
    folder.mkdir(parents=True, exist_ok=True)
    key = make_key(folder / "key.pem")
    (folder / "certificate.pem").write_bytes(certificate or sign(make_request(key, name, LOOPBACK), authority))
    (folder / "ca.pem").write_bytes(authority.pem)
    (folder / "network.toml").write_text(CONFIG.to_toml())
    (folder / "agent.toml").write_text(agent_toml(name))
    return folder / "agent.toml"


def resign(folder: Path, authority: Authority, name: str = "north", **options) -> None:
    """Give the agent another certificate for the key it has."""
    (folder / "certificate.pem").write_bytes(sign(make_request(key_in(folder), name, LOOPBACK), authority, **options))


def key_in(folder: Path) -> ec.EllipticCurvePrivateKey:
    key = serialization.load_pem_private_key((folder / "key.pem").read_bytes(), None)
    assert isinstance(key, ec.EllipticCurvePrivateKey)
    return key


def by_hand(key, issuer: x509.Name, signer, *extensions: x509.ExtensionType, name: str = "north") -> x509.Certificate:
    """A certificate made without the code under test."""
    builder = x509.CertificateBuilder(
        issuer, x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]), key.public_key()
    )
    builder = builder.serial_number(x509.random_serial_number())
    builder = builder.not_valid_before(NOW - timedelta(days=1)).not_valid_after(NOW + timedelta(days=1))
    for extension in extensions:
        builder = builder.add_extension(
            extension, critical=isinstance(extension, x509.BasicConstraints | x509.KeyUsage)
        )
    return builder.sign(signer, hashes.SHA256())


def pem(*certificates: x509.Certificate) -> bytes:
    return b"".join(certificate.public_bytes(serialization.Encoding.PEM) for certificate in certificates)


HOSTS = x509.SubjectAlternativeName([x509.DNSName("localhost")])


# Reading


def test_an_agents_folder_is_read_from_any_working_directory(tmp_path, authority, monkeypatch):
    path = site(tmp_path / "north", authority)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    found = Identity.read(Path("..") / "north" / "agent.toml")
    assert (found.name, found.config) == ("north", CONFIG)
    assert found.folder.samefile(path.parent)
    for name, file in (("key", "key.pem"), ("certificate", "certificate.pem"), ("authority", "ca.pem")):
        assert getattr(found, name).samefile(tmp_path / "north" / file)
    assert found.state == found.folder / "state"
    assert not found.state.exists()
    assert (found.listen, found.listen_address, found.address) == (None, "127.0.0.1:7451", "127.0.0.1:7451")
    assert found.hosts == LOOPBACK


def test_the_remaining_validity_of_the_certificate_is_known(tmp_path, authority):
    path = site(tmp_path, authority)
    resign(tmp_path, authority, days=20, now=NOW)
    found = Identity.read(path)
    assert found.valid_until == (NOW + timedelta(days=20)).replace(microsecond=0)
    assert found.days_left(NOW) == pytest.approx(20, abs=1e-4)
    assert 19 < found.days_left() < 20


def test_listening_address_and_state_folder_can_be_set(tmp_path, authority):
    path = site(tmp_path, authority)
    text = path.read_text().replace('state = "state"', 'state = "/var/lib/elmesh"')
    path.write_text(text.replace('# listen = "0.0.0.0:7451"', 'listen = "0.0.0.0:8000"'))
    found = Identity.read(path)
    assert (found.listen, found.listen_address, found.address) == ("0.0.0.0:8000", "0.0.0.0:8000", "127.0.0.1:7451")
    assert found.state == Path("/var/lib/elmesh")


@pytest.mark.parametrize(
    ("file", "words"),
    [
        ("network.toml", "The network file .*network.toml does not exist; copy"),
        ("key.pem", "The key file .*key.pem does not exist; make one with elmesh network csr"),
        (
            "certificate.pem",
            "The certificate file .*certificate.pem does not exist; copy the certificate that the authority returned",
        ),
        ("ca.pem", "The authority file .*ca.pem does not exist; copy the certificate of the network's authority"),
    ],
)
def test_the_error_on_a_missing_file_gives_a_remedy(tmp_path, authority, file, words):
    path = site(tmp_path, authority)
    (tmp_path / file).unlink()
    with pytest.raises(ElmeshError, match=words):
        Identity.read(path)


def test_a_missing_agent_file_is_refused(tmp_path):
    with pytest.raises(ElmeshError, match="There is no agent file"):
        Identity.read(tmp_path / "agent.toml")


@pytest.mark.parametrize(
    ("before", "after", "words"),
    [
        ('name = "north"', 'nmae = "north"', r'agent.toml: The field "nmae" is unknown; did you mean "name"\?'),
        ('name = "north"', 'name = "North"', "agent.toml: name is 'North'; expected 1 to 32"),
        ('name = "north"', 'name = "east"', "no agent 'east' in the network net; there are 'north', 'south'"),
        ('key = "key.pem"', "", 'The field "key" is missing; expected a string'),
        ('key = "key.pem"', "key = 3", 'The field "key" is 3; expected a string'),
        ('certificate = "certificate.pem"', "", 'The field "certificate" is missing; expected a string'),
        ('authority = "ca.pem"', "", 'The field "authority" is missing; expected a string'),
        ('network = "network.toml"', "", 'The field "network" is missing; expected a string'),
        ("# listen = ", "plaintext = true # ", 'The field "plaintext" is unknown'),
        ('# listen = "0.0.0.0:7451"', 'listen = "here"', "agent.toml: listen is 'here'"),
        ("name", "=", "agent.toml: This is not TOML"),
    ],
)
def test_an_invalid_agent_file_is_refused(tmp_path, authority, before, after, words):
    path = site(tmp_path, authority)
    path.write_text(path.read_text().replace(before, after, 1) if before != "name" else "= 3")
    with pytest.raises(ElmeshError, match=words):
        Identity.read(path)


@given(st.text(max_size=200))
def test_random_text_is_not_an_agent_file(text):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "agent.toml")
        path.write_text(text, encoding="utf-8", errors="surrogatepass")
        with pytest.raises(ElmeshError, match=r"agent\.toml"):
            Identity.read(path)


# The key


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660, 0o644, 0o777, 0o610, 0o601])
def test_a_key_that_others_can_read_is_refused_with_the_command_that_closes_it(tmp_path, authority, mode):
    path = site(tmp_path / "a b", authority)
    key = tmp_path / "a b" / "key.pem"
    key.chmod(mode)
    with pytest.raises(ElmeshError, match=f"mode {mode:04o}") as caught:
        Identity.read(path)
    assert str(caught.value).endswith(f"close it with: chmod 600 '{key}'")
    assert os.system(str(caught.value).split("close it with: ")[1]) == 0  # noqa: S605  (it is what a user would do)
    Identity.read(path)


@pytest.mark.parametrize("mode", [0o400, 0o600])
def test_a_key_that_only_its_owner_can_read_is_accepted(tmp_path, authority, mode):
    path = site(tmp_path, authority)
    (tmp_path / "key.pem").chmod(mode)
    assert Identity.read(path).name == "north"


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root can give a file away")
def test_a_key_of_another_user_is_refused(tmp_path, authority):
    path = site(tmp_path, authority)
    os.chown(tmp_path / "key.pem", 12345, -1)
    with pytest.raises(ElmeshError, match=r"belongs to another user \(number 12345\)"):
        Identity.read(path)


def test_a_key_that_is_not_a_regular_file_is_refused(tmp_path, authority):
    path = site(tmp_path, authority)
    (tmp_path / "key.pem").unlink()
    os.mkfifo(tmp_path / "key.pem", 0o600)
    with pytest.raises(ElmeshError, match="is not a regular file"):
        Identity.read(path)


def test_a_symbolic_link_to_a_key_is_accepted(tmp_path, authority):
    path = site(tmp_path, authority)
    (tmp_path / "key.pem").rename(tmp_path / "secret.pem")
    (tmp_path / "key.pem").symlink_to(tmp_path / "secret.pem")
    assert Identity.read(path).name == "north"


def test_the_error_on_an_invalid_key_contains_nothing_of_the_file(tmp_path, authority):
    path = site(tmp_path, authority)
    real = (tmp_path / "key.pem").read_text()
    secret = real.splitlines()[1]
    for text in (
        "SECRET-WORDS",
        "",
        real.replace("PRIVATE KEY", "SECRET"),
        real.replace(secret, secret[:-8] + "SECRET=="),
    ):
        (tmp_path / "key.pem").write_text(text)
        with pytest.raises(ElmeshError, match="holds no private key; expected one in PEM") as caught:
            Identity.read(path)
        assert "SECRET" not in str(caught.value)
        assert secret[:20] not in str(caught.value)
        assert caught.value.__cause__ is None


def test_a_key_with_a_password_is_refused(tmp_path, authority):
    path = site(tmp_path, authority)
    lock = serialization.BestAvailableEncryption(b"word")
    format = serialization.PrivateFormat.PKCS8
    (tmp_path / "key.pem").write_bytes(key_in(tmp_path).private_bytes(serialization.Encoding.PEM, format, lock))
    with pytest.raises(ElmeshError, match="protected by a password"):
        Identity.read(path)


def test_a_key_of_another_certificate_is_refused(tmp_path, authority):
    path = site(tmp_path, authority)
    (tmp_path / "key.pem").unlink()
    make_key(tmp_path / "key.pem")
    with pytest.raises(ElmeshError, match=r"certificate.pem is not the certificate of .*key.pem"):
        Identity.read(path)


def test_printing_an_identity_or_an_authority_shows_no_key(tmp_path, authority):
    found = Identity.read(site(tmp_path, authority))
    for text in (repr(found), repr(authority), str(authority)):
        assert "PRIVATE" not in text
        assert "PrivateKey" not in text


# The certificate


def test_an_expired_certificate_is_refused_with_its_date(tmp_path, authority):
    path = site(tmp_path, authority)
    resign(tmp_path, authority, days=30, now=NOW - timedelta(days=31))
    end = NOW - timedelta(days=1)
    with pytest.raises(ElmeshError, match=f"certificate.pem expired on {end:%Y-%m-%d %H:%M} UTC; get a new one"):
        Identity.read(path)


def test_a_certificate_that_is_not_valid_yet_is_refused_with_both_dates(tmp_path, authority):
    path = site(tmp_path, authority)
    resign(tmp_path, authority, now=NOW + timedelta(days=3))
    with pytest.raises(
        ElmeshError, match=r"is not valid before 20.* UTC, and the clock of this machine shows 20.*correct"
    ):
        Identity.read(path)


def test_a_clock_may_be_an_hour_off(tmp_path, authority):
    path = site(tmp_path, authority)
    for hours in (-1, 1):
        assert Identity.read(path, now=NOW + timedelta(hours=hours)).name == "north"


def test_the_certificate_of_another_agent_is_refused(tmp_path, authority):
    path = site(tmp_path, authority)
    resign(tmp_path, authority, "south")
    with pytest.raises(ElmeshError, match="is the certificate of 'south', not of agent north"):
        Identity.read(path)


def test_a_certificate_with_no_or_two_common_names_is_refused(tmp_path, authority):
    path = site(tmp_path, authority)
    for names in ([], ["north", "south"]):
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name) for name in names])
        builder = x509.CertificateBuilder(
            authority.certificate.subject, subject, key_in(tmp_path).public_key(), 1, NOW, NOW + timedelta(days=1)
        )
        (tmp_path / "certificate.pem").write_bytes(pem(builder.sign(authority.key, hashes.SHA256())))
        with pytest.raises(ElmeshError, match="is the certificate of 'no agent', not of agent north"):
            Identity.read(path)


def test_a_certificate_of_another_authority_is_refused_even_if_it_has_the_same_name(tmp_path, authority, stranger):
    assert stranger.certificate.subject == authority.certificate.subject
    path = site(tmp_path, authority)
    resign(tmp_path, stranger)
    with pytest.raises(ElmeshError, match=r"certificate.pem was not issued by the authority in .*ca.pem"):
        Identity.read(path)


def test_a_self_signed_certificate_is_refused(tmp_path, authority):
    path = site(tmp_path, authority)
    key = key_in(tmp_path)
    for issuer in (x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "north")]), authority.certificate.subject):
        (tmp_path / "certificate.pem").write_bytes(pem(by_hand(key, issuer, key, HOSTS)))
        with pytest.raises(ElmeshError, match="was not issued by the authority"):
            Identity.read(path)


def test_a_certificate_that_an_agent_signed_is_refused(tmp_path, authority):
    site(tmp_path / "south", authority, name="south")
    path = site(tmp_path / "north", authority)
    south = x509.load_pem_x509_certificate((tmp_path / "south" / "certificate.pem").read_bytes())
    forged = by_hand(key_in(tmp_path / "north"), south.subject, key_in(tmp_path / "south"), HOSTS)
    (tmp_path / "north" / "certificate.pem").write_bytes(pem(forged, south))
    with pytest.raises(ElmeshError, match="was not issued by the authority"):
        Identity.read(path)


def test_an_authority_made_by_the_authority_is_refused(tmp_path, authority):
    path = site(tmp_path, authority)
    middle, signer = make_intermediate(authority.certificate.subject, authority.key)
    (tmp_path / "certificate.pem").write_bytes(pem(by_hand(key_in(tmp_path), middle.subject, signer, HOSTS), middle))
    with pytest.raises(ElmeshError, match="was not issued by the authority"):
        Identity.read(path)


def make_intermediate(issuer: x509.Name, signer) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
    """A certificate that may sign others, with its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    return (
        by_hand(
            key,
            issuer,
            signer,
            x509.BasicConstraints(ca=True, path_length=None),
            x509.KeyUsage(False, False, False, False, False, True, True, False, False),
            x509.SubjectKeyIdentifier.from_public_key(key.public_key()),
            x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()),
            name="an intermediate",
        ),
        key,
    )


def test_a_chain_with_an_intermediate_certificate_is_accepted(tmp_path, authority):
    path = site(tmp_path, authority)
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "an authority")])
    own = ec.generate_private_key(ec.SECP384R1())
    middle, signer = make_intermediate(name, own)
    top = by_hand(
        own,
        name,
        own,
        x509.BasicConstraints(ca=True, path_length=None),
        x509.KeyUsage(False, False, False, False, False, True, True, False, False),
        x509.SubjectKeyIdentifier.from_public_key(own.public_key()),
        name="an authority",
    )
    leaf = by_hand(key_in(tmp_path), middle.subject, signer, HOSTS)
    (tmp_path / "certificate.pem").write_bytes(pem(leaf, middle))
    # While authorities change, both are trusted.
    (tmp_path / "ca.pem").write_bytes(authority.pem + pem(top))
    assert Identity.read(path).name == "north"
    (tmp_path / "certificate.pem").write_bytes(pem(leaf))
    with pytest.raises(ElmeshError, match="was not issued by the authority"):
        Identity.read(path)


@pytest.mark.parametrize("uses", [[ExtendedKeyUsageOID.SERVER_AUTH], [ExtendedKeyUsageOID.CLIENT_AUTH]])
def test_a_certificate_for_one_end_of_a_connection_is_refused(tmp_path, authority, uses):
    path = site(tmp_path, authority)
    half = by_hand(key_in(tmp_path), authority.certificate.subject, authority.key, HOSTS, x509.ExtendedKeyUsage(uses))
    (tmp_path / "certificate.pem").write_bytes(pem(half))
    with pytest.raises(ElmeshError, match="with clientAuth and serverAuth"):
        Identity.read(path)


def test_a_certificate_without_hosts_is_refused(tmp_path, authority):
    path = site(tmp_path, authority)
    bare = by_hand(key_in(tmp_path), authority.certificate.subject, authority.key)
    (tmp_path / "certificate.pem").write_bytes(pem(bare))
    with pytest.raises(ElmeshError, match="names no hosts"):
        Identity.read(path)


@pytest.mark.parametrize("file", ["certificate.pem", "ca.pem"])
def test_an_invalid_certificate_is_refused(tmp_path, authority, file):
    path = site(tmp_path, authority)
    (tmp_path / file).write_text("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n")
    with pytest.raises(ElmeshError, match=f"{file} holds no certificate; expected one in PEM"):
        Identity.read(path)


def test_an_expired_authority_is_refused(tmp_path):
    old = make_authority(tmp_path / "ca", "net", years=1, now=NOW - timedelta(days=364))
    path = site(tmp_path / "north", old)
    assert Identity.read(path).valid_until <= old.certificate.not_valid_after_utc
    with pytest.raises(ElmeshError, match=r"expired on"):
        Identity.read(path, now=NOW + timedelta(days=2))
    with pytest.raises(ElmeshError, match="own certificate expired on"):
        resign(tmp_path / "north", old, now=NOW + timedelta(days=2))


# The authority


def test_key_files_are_private_from_their_creation_with_any_umask(tmp_path, monkeypatch):
    seen = []
    sync = os.fsync

    def look(descriptor):
        mode = os.fstat(descriptor).st_mode
        if stat.S_ISREG(mode):
            seen.append(stat.S_IMODE(mode))
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", look)
    before = os.umask(0)
    try:
        make_authority(tmp_path / "ca", "net")
        make_key(tmp_path / "key.pem")
    finally:
        os.umask(before)
    for file in (tmp_path / "ca" / "ca.key", tmp_path / "key.pem"):
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE((tmp_path / "ca").stat().st_mode) == 0o700
    assert seen == [0o600, 0o644, 0o600]


def test_a_full_disk_leaves_no_part_of_a_key_and_names_the_file(tmp_path, monkeypatch):
    def full(descriptor):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", full)
        with pytest.raises(OSError, match=r"No space left on device: .*key\.pem"):
            make_key(tmp_path / "key.pem")
    assert list(tmp_path.iterdir()) == []
    make_key(tmp_path / "key.pem")
    assert [path.name for path in tmp_path.iterdir()] == ["key.pem"]


def test_a_key_is_never_overwritten(tmp_path):
    make_key(tmp_path / "key.pem")
    before = (tmp_path / "key.pem").read_bytes()
    with pytest.raises(ElmeshError, match="exists already and is not overwritten"):
        make_key(tmp_path / "key.pem")
    (tmp_path / "link.pem").symlink_to(tmp_path / "nowhere.pem")
    with pytest.raises(ElmeshError, match="exists already"):
        make_key(tmp_path / "link.pem")
    assert (tmp_path / "key.pem").read_bytes() == before
    assert not (tmp_path / "nowhere.pem").exists()


def test_an_authority_read_from_its_folder_signs_certificates(tmp_path):
    made = make_authority(tmp_path / "ca", "net")
    read = Authority.read(tmp_path / "ca")
    assert read.pem == made.pem
    path = site(tmp_path / "north", read)
    assert Identity.read(path).name == "north"


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda folder: (folder / "ca.key").unlink(), "has no file ca.key"),
        (lambda folder: (folder / "ca.pem").unlink(), "has no file ca.pem"),
        (lambda folder: (folder / "ca.key").write_text("x"), "ca.key holds no private key"),
        (lambda folder: (folder / "ca.pem").write_text("x"), "ca.pem holds no certificate"),
        (lambda folder: (folder / "ca.key").chmod(0o644), "chmod 600"),
        (lambda folder: (folder / "ca.key").unlink() or make_key(folder / "ca.key"), "is not the key of"),
    ],
)
def test_an_authority_with_missing_or_wrong_files_is_refused(tmp_path, spoil, words):
    make_authority(tmp_path / "ca", "net")
    spoil(tmp_path / "ca")
    with pytest.raises(ElmeshError, match=words):
        Authority.read(tmp_path / "ca")


def test_a_certificate_has_the_requested_name_and_hosts_and_no_other_rights(tmp_path, authority):
    key = make_key(tmp_path / "key.pem")
    request = make_request(key, "north", ["north.example.org", "192.0.2.7", "2001:db8::7"])
    assert load_request(request)[0] == "north"
    made = x509.load_pem_x509_certificate(sign(request, authority, days=10, now=NOW))
    assert made.version is x509.Version.v3
    assert made.subject.rfc4514_string() == "CN=north"
    assert made.not_valid_before_utc < NOW - timedelta(hours=1)
    assert made.not_valid_after_utc == (NOW + timedelta(days=10)).replace(microsecond=0)
    value = {extension.oid._name: extension.value for extension in made.extensions}
    assert value["basicConstraints"] == x509.BasicConstraints(ca=False, path_length=None)
    names = value["subjectAltName"]
    assert names.get_values_for_type(x509.DNSName) == ["north.example.org"]
    assert names.get_values_for_type(x509.IPAddress) == [
        ipaddress.ip_address("192.0.2.7"),
        ipaddress.ip_address("2001:db8::7"),
    ]
    assert not value["keyUsage"].key_cert_sign
    assert set(value["extendedKeyUsage"]) == {ExtendedKeyUsageOID.CLIENT_AUTH, ExtendedKeyUsageOID.SERVER_AUTH}
    other = x509.load_pem_x509_certificate(sign(request, authority, hosts=["else.example.org"]))
    found = other.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert found.get_values_for_type(x509.DNSName) == ["else.example.org"]
    assert not found.get_values_for_type(x509.IPAddress)
    assert other.serial_number != made.serial_number


def test_extensions_that_a_request_asks_for_are_not_granted(tmp_path, authority):
    key = make_key(tmp_path / "key.pem")
    greedy = (
        x509.CertificateSigningRequestBuilder()
        .subject_name(
            x509.Name(
                [
                    x509.NameAttribute(NameOID.COMMON_NAME, "north"),
                    x509.NameAttribute(NameOID.ORGANIZATION_NAME, "Another organisation"),
                ]
            )
        )
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .add_extension(HOSTS, critical=False)
        .sign(key, hashes.SHA256())
    )
    made = x509.load_pem_x509_certificate(sign(greedy.public_bytes(serialization.Encoding.PEM), authority))
    assert made.subject.rfc4514_string() == "CN=north"
    assert not made.extensions.get_extension_for_class(x509.BasicConstraints).value.ca


def asking(key, name: str, hosts: bool = True) -> bytes:
    builder = x509.CertificateSigningRequestBuilder().subject_name(
        x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    )
    builder = builder.add_extension(HOSTS, critical=False) if hosts else builder
    hashed = None if isinstance(key, ed25519.Ed25519PrivateKey) else hashes.SHA256()
    return builder.sign(key, hashed).public_bytes(serialization.Encoding.PEM)


def test_invalid_requests_are_refused(authority):
    key = ec.generate_private_key(ec.SECP256R1())
    changed = x509.load_pem_x509_csr(asking(key, "north")).public_bytes(serialization.Encoding.DER)
    changed = changed.replace(b"north", b"south")
    for request, words in (
        (b"nothing", "This is not a request for a certificate"),
        (b"x" * 100_000, "This is not a request for a certificate"),
        (ssl.DER_cert_to_PEM_cert(changed).replace("CERTIFICATE", "CERTIFICATE REQUEST").encode(), "not signed with"),
        (asking(key, "North Pole"), "common name in the request is 'North Pole'"),
        (asking(key, "north", hosts=False), "names no hosts"),
        (asking(ed25519.Ed25519PrivateKey.generate(), "north"), "too weak or of another type"),
        (asking(rsa.generate_private_key(65537, 1024), "north"), "too weak or of another type"),  # noqa: S505
    ):
        with pytest.raises(ElmeshError, match=words):
            sign(request, authority)


def test_rsa_and_p384_keys_are_accepted(tmp_path, authority):
    for key in (rsa.generate_private_key(65537, 2048), ec.generate_private_key(ec.SECP384R1())):
        folder = tmp_path / type(key).__name__
        path = site(folder, authority, sign(asking(key, "north"), authority))
        (folder / "key.pem").write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            )
        )
        assert Identity.read(path).name == "north"


# Real connections


def shake_hands(client: Path, server: Path, host: str) -> str:
    """Connect two folders by OpenSSL's TLS in memory, both ways checked; return whom the server sees."""
    ends = []
    for folder, purpose in ((client, ssl.Purpose.SERVER_AUTH), (server, ssl.Purpose.CLIENT_AUTH)):
        context = ssl.create_default_context(purpose, cafile=str(folder / "ca.pem"))
        context.load_cert_chain(folder / "certificate.pem", folder / "key.pem")
        context.verify_mode = ssl.CERT_REQUIRED
        context.verify_flags |= ssl.VERIFY_X509_STRICT
        into, out = ssl.MemoryBIO(), ssl.MemoryBIO()
        serving = purpose is ssl.Purpose.CLIENT_AUTH
        name = None if serving else host
        ends.append((context.wrap_bio(into, out, server_side=serving, server_hostname=name), into, out))
    for _ in range(6):
        for (end, _, out), (_, into, _) in zip(ends, ends[::-1], strict=True):
            try:
                end.do_handshake()
            except ssl.SSLWantReadError:
                pass
            finally:
                into.write(out.read())
    subject = dict(pair for part in ends[1][0].getpeercert()["subject"] for pair in part)
    return subject["commonName"]


def test_openssl_accepts_the_certificates_in_both_directions(tmp_path, authority):
    for name in ("north", "south"):
        site(tmp_path / name, authority, name=name)
    for host in LOOPBACK:
        assert shake_hands(tmp_path / "north", tmp_path / "south", host) == "north"
    with pytest.raises(ssl.SSLCertVerificationError, match="Hostname mismatch"):
        shake_hands(tmp_path / "north", tmp_path / "south", "south.example.org")


def test_openssl_refuses_a_certificate_of_another_authority(tmp_path, authority, stranger):
    site(tmp_path / "north", authority)
    site(tmp_path / "south", stranger, name="south")
    (tmp_path / "south" / "ca.pem").write_bytes(authority.pem)
    with pytest.raises(ssl.SSLCertVerificationError):
        shake_hands(tmp_path / "north", tmp_path / "south", "localhost")


def test_zenoh_connects_two_agents_and_refuses_a_third(tmp_path, authority, stranger):
    zenoh = pytest.importorskip("zenoh", reason="the engine of networks, eclipse-zenoh, is not installed")
    address = f"127.0.0.1:{free_ports(1)[0]}"

    def session(name: str, signer: Authority, timeout: int = 20_000, **ends: list[str]):
        folder = tmp_path / name
        site(folder, signer, name=name)
        (folder / "ca.pem").write_bytes(authority.pem)
        mine = {"private_key": str(folder / "key.pem"), "certificate": str(folder / "certificate.pem")}
        tls = {f"{end}_{file}": path for end in ("listen", "connect") for file, path in mine.items()}
        tls |= {"root_ca_certificate": str(folder / "ca.pem"), "enable_mtls": True, "verify_name_on_connect": True}
        config = zenoh.Config()
        for key, value in {
            "mode": "peer",
            "listen/endpoints": [f"tls/{place}" for place in ends.get("listen", [])],
            "connect/endpoints": [f"tls/{place}" for place in ends.get("connect", [])],
            # Opened is connected, or else an error.
            "connect/timeout_ms": timeout,
            "connect/exit_on_failure": True,
            "scouting/multicast/enabled": False,
            "scouting/gossip/enabled": False,
            "transport/link/tls": tls,
        }.items():
            config.insert_json5(key, json.dumps(value))
        return zenoh.open(config)

    received = threading.Event()
    with session("south", authority, listen=[address]) as south:
        south.declare_subscriber("elmesh/test", lambda sample: received.set())
        with session("north", authority, connect=[address]) as north:
            assert [str(peer) for peer in north.info.peers_zid()] == [str(south.zid())]
            north.put("elmesh/test", b"hello")
            assert received.wait(20)
            with pytest.raises(zenoh.ZError):
                session("east", stranger, 1000, connect=[address])
            assert [str(peer) for peer in south.info.peers_zid()] == [str(north.zid())]


# The log after a change of the authority.


def test_a_log_is_verified_by_the_former_authority_which_is_trusted_for_nothing_else(tmp_path, authority, stranger):
    before = Identity.read(site(tmp_path / "before", stranger))
    old = before.credentials()
    log = ReleaseLog(tmp_path / "log", "north", old, lambda line: None)
    log.append({"event": "run"})
    log.close()
    after = Identity.read(site(tmp_path / "after", authority))
    with pytest.raises(LogDamagedError, match=r"keep the certificate of the former one as former-ca\.pem"):
        list(read_log(tmp_path / "log", "north", after.credentials()))
    (after.folder / FORMER_AUTHORITIES).write_bytes(before.authority.read_bytes())
    credentials = after.credentials()
    assert len(list(read_log(tmp_path / "log", "north", credentials))) == 1
    log = ReleaseLog(tmp_path / "log", "north", credentials, lambda line: None)
    log.append({"event": "run"})
    log.close()
    (after.folder / FORMER_AUTHORITIES).unlink()
    assert len(list(read_log(tmp_path / "log", "north", after.credentials()))) == 2
    with pytest.raises(ElmeshError):
        credentials.verify("north", old.chain, b"data", old.sign(b"data"))
