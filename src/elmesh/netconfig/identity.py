"""The identity of an agent: ``agent.toml``, and the files by which the agent proves who it is.

All files are checked before any connection is opened, so that a wrong file gives an error message here and not a failed
connection: only this user can read the key, the key belongs to the certificate, and an authority of this network has
signed the certificate for this agent and the current date. An agent cannot run without these files.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path

from cryptography import x509
from msgspec.structs import force_setattr

from elmesh.comm.network.endpoint import Endpoint
from elmesh.errors import ElmeshError
from elmesh.netconfig.config import NetworkConfig
from elmesh.netconfig.files import read_text
from elmesh.netconfig.names import check_name, parse_address
from elmesh.netconfig.pki.credentials import CertificateCredentials
from elmesh.netconfig.pki.csr import host_names
from elmesh.netconfig.pki.keys import credential_file, read_key
from elmesh.netconfig.pki.revocation import Revocations
from elmesh.netconfig.pki.verify import check_owner, load_certificates, verify_certificate
from elmesh.netconfig.toml import CheckedStruct, decode_toml
from elmesh.typing import StrPath

__all__ = ["FORMER_AUTHORITIES", "FORMER_CERTIFICATES", "REVOKED", "Identity", "agent_toml"]

_MAX_BYTES = 64 * 2**10
_GATE = "gate.toml"
#: Certificates of authorities that the network had before: what they signed then is valid in the agent's log.
FORMER_AUTHORITIES = "former-ca.pem"
#: Certificates that the agent had before: what was signed with their keys then is valid in the agent's log.
FORMER_CERTIFICATES = "former-certificates.pem"
#: Lists of the authority of revoked certificates.
REVOKED = "revoked.pem"
_REMEDIES = {
    "network": "copy the network file to this path",
    "key": "make one with elmesh network csr, or copy the one that elmesh network create made",
    "certificate": "copy the certificate that the authority returned to this path",
    "authority": "copy the certificate of the network's authority to this path",
}


class _AgentFile(CheckedStruct, frozen=True):
    """The content of ``agent.toml``; paths are relative to its folder."""

    name: str
    network: str
    key: str
    certificate: str
    authority: str
    state: str = "state"
    log: str = "releases.jsonl"
    gate: str | None = None
    listen: str | None = None

    def __post_init__(self) -> None:
        CheckedStruct.__post_init__(self)
        check_name("name", self.name)
        if self.listen is not None:
            force_setattr(self, "listen", str(parse_address("listen", self.listen)))


@dataclass(frozen=True)
class Identity:
    """An agent, its network, and the files by which it proves who it is.

    Attributes
    ----------
    name, config
        The name of the agent, and the network.
    folder, state
        The folder of ``agent.toml``, and the folder for data that is kept between runs.
    key, certificate, authority
        The private key, the certificate with any intermediate ones, and the certificates of the trusted authorities.
    log, gate
        The log of all that has left the site, and the file of its policy on what may leave; it need not exist.
    listen
        The address to listen at, if it is not the one in the network file.
    """

    name: str
    config: NetworkConfig
    folder: Path
    key: Path
    certificate: Path
    authority: Path
    state: Path
    log: Path
    gate: Path
    listen: str | None = None

    @classmethod
    def read(cls, path: StrPath, *, now: datetime | None = None) -> Identity:
        """Read ``agent.toml`` and check all files it names, at the current time or another one.

        Raises
        ------
        ElmeshError
            If a file is missing or readable by others, files do not belong together, or the network has no such agent.
        """
        identity, now = cls.load(path), now or datetime.now(UTC)
        key = read_key(identity.key).public_key()
        check_owner(identity._leaf, key, identity.name, str(identity.certificate), str(identity.key))
        verify_certificate(identity.certificate, identity.authority, now)
        try:
            identity.revocations.check(identity._leaf, str(identity.certificate), now)
        except ElmeshError as error:
            raise ElmeshError(f"{error} Ask for a new one: elmesh network renew {path} --new-key") from None
        return identity

    @classmethod
    def load(cls, path: StrPath) -> Identity:
        """Read ``agent.toml`` and the network file, without a check of key and certificate: they may be renewed."""
        fields = decode_toml(read_text(Path(path), "agent file", _MAX_BYTES), _AgentFile, str(path))
        folder = Path(path).absolute().parent
        paths = {name: folder / getattr(fields, name) for name in _REMEDIES}
        paths["key"] = credential_file(paths["key"].name) or paths["key"]
        for name, remedy in _REMEDIES.items():
            if not paths[name].exists():
                raise ElmeshError(f"The {name} file {paths[name]} does not exist; {remedy}.")
        config = NetworkConfig.read(paths.pop("network"))
        config.address_of(fields.name)  # raises if the network has no such agent
        gate = folder / (fields.gate or _GATE)
        if fields.gate is not None and not gate.is_file():
            raise ElmeshError(f"The gate file {gate} does not exist; write it, or remove the field gate in {path}.")
        others = {"state": folder / fields.state, "log": folder / fields.log, "gate": gate}
        return cls(fields.name, config, folder, **paths, **others, listen=fields.listen)

    def endpoint(self) -> Endpoint:
        """Return what a transport must know of the network and of this agent."""
        config = self.config
        return Endpoint(
            config.name,
            self.name,
            {name: tuple(config.neighbors(name)) for name in config.agent_names},
            {agent.name: agent.address for agent in config.agents},
            config.routers,
            self.listen_address,
            self.key,
            self.certificate,
            self.authority,
            config.digest,
        )

    def credentials(self) -> CertificateCredentials:
        """Return what the agent proves itself with, and verifies others by."""
        former = self.folder / FORMER_AUTHORITIES, self.folder / FORMER_CERTIFICATES
        return CertificateCredentials(self.key, self.certificate, self.authority, *former, self.revocations)

    @property
    def authorities(self) -> list[x509.Certificate]:
        """The certificates of the trusted authorities."""
        return load_certificates(self.authority)

    @property
    def revocations(self) -> Revocations:
        """The revoked certificates of the network, none if there is no list beside ``agent.toml``."""
        return Revocations.read(self.folder / REVOKED, self.authorities)

    @property
    def address(self) -> str:
        """The address at which neighbours reach the agent."""
        return str(self.config.address_of(self.name))

    @property
    def listen_address(self) -> str:
        """The address at which the agent listens."""
        return self.listen or self.address

    @cached_property
    def _leaf(self) -> x509.Certificate:
        return load_certificates(self.certificate)[0]

    @property
    def valid_until(self) -> datetime:
        """The end of the certificate's validity, in UTC."""
        return self._leaf.not_valid_after_utc

    def days_left(self, now: datetime | None = None) -> float:
        """Return the number of days until the certificate expires."""
        return (self.valid_until - (now or datetime.now(UTC))).total_seconds() / 86400.0

    @property
    def hosts(self) -> list[str]:
        """The hosts that the certificate names."""
        return host_names(self._leaf.extensions)


def agent_toml(name: str) -> str:
    """Return an ``agent.toml`` with a comment on each field."""
    return f"""\
# One agent of the network. Paths are relative to the folder of this file.
name = "{name}"  # as in the network file
network = "network.toml"  # the network file, identical at every agent
key = "key.pem"  # private key of this agent: never give it to anyone
certificate = "certificate.pem"  # certificate of this agent, signed by the authority for this name
authority = "ca.pem"  # certificate of the network's authority
state = "state"  # folder for checkpoints, from which a run resumes after a crash
log = "releases.jsonl"  # log of all that leaves this site, over all runs; keep it
# gate = "gate.toml"  # this site's policy on what may leave it; a gate.toml beside this file is used without this line
# listen = "0.0.0.0:7451"  # address to listen at, if it is not the address in the network file
"""
