"""The folder of an agent at its own site, from an invitation to a certificate that was signed elsewhere.

First the site makes its key and a request. Once the authority has signed the request, the certificate is checked and
installed: it belongs to this key, this agent and this host, and an authority of the invitation has issued it. Each file
is written once and never overwritten, so that the steps can be repeated after an interrupt; the key is never replaced.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.types import PublicKeyTypes

from elmesh.errors import ElmeshError
from elmesh.files import atomic_write
from elmesh.netconfig.config import NetworkConfig
from elmesh.netconfig.files import create_file
from elmesh.netconfig.identity import agent_toml
from elmesh.netconfig.invitation import Invitation
from elmesh.netconfig.names import Address
from elmesh.netconfig.pki.csr import host_names, make_request
from elmesh.netconfig.pki.keys import make_key, read_key
from elmesh.netconfig.pki.verify import check_owner, load_certificates, to_pem, verify_chain

__all__ = ["JoiningSite", "accepted_certificate"]


@dataclass(frozen=True)
class JoiningSite:
    """The folder in which an invited site joins a network."""

    invitation: Invitation
    folder: Path

    @property
    def agent_file(self) -> Path:
        """The agent's file, which is there when the site has joined."""
        return self.folder / "agent.toml"

    @property
    def key(self) -> Path:
        """The private key."""
        return self.folder / "key.pem"

    @property
    def request(self) -> Path:
        """The request for a certificate."""
        return self.folder / f"{self.invitation.agent}.csr"

    @property
    def certificate(self) -> Path:
        """The certificate, once it is installed."""
        return self.folder / "certificate.pem"

    def prepare(self, *, force: bool = False) -> bool:
        """Write the network file, the authority, the key and the request, as far as missing; return whether any was.

        With ``force`` another network file, and another authority, are replaced by those of the invitation.
        """
        network, authority = self.folder / "network.toml", self.folder / "ca.pem"
        if os.path.lexists(self.folder) and not network.is_file() and (self._is_used or not self.folder.is_dir()):
            raise ElmeshError(f"{self.folder} exists and is not the folder of an agent; choose another with --out.")
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        same_file = _agree(network, lambda: NetworkConfig.read(network).digest == self.invitation.config.digest)
        same_authority = _agree(authority, lambda: load_certificates(authority) == self.invitation.authorities)
        for path, same in ((network, same_file), (authority, same_authority)):
            if same is False and not force:
                raise ElmeshError(
                    f"{path} is not the one of the invitation; choose another folder with --out or, if the invitation "
                    "is the newer one, give --force to replace it."
                )
        self._check_installed()
        contents = ((network, same_file, self.invitation.file.encode()),
                    (authority, same_authority, self.invitation.authority.encode()))  # fmt: skip
        changed = False
        for path, same, content in contents:
            if not same:
                atomic_write(path, content, mode=0o644)
                changed = True
        if not os.path.lexists(self.key):
            make_key(self.key)
            changed = True
        if not os.path.lexists(self.request):
            hosts = self._address.hosts
            create_file(self.request, make_request(read_key(self.key), self.invitation.agent, hosts))
            changed = True
        return changed

    def _check_installed(self) -> None:
        """Raise if an authority of the invitation has not issued the installed certificate, before it is replaced."""
        if not self.certificate.is_file():
            return
        leaf, *intermediates = load_certificates(self.certificate)
        what = f"the invitation for {self.invitation.agent}"
        try:
            verify_chain(
                leaf, intermediates, self.invitation.authorities, datetime.now(UTC), str(self.certificate), what
            )
        except ElmeshError as error:
            raise ElmeshError(
                f"{error} The invitation is older or newer than the authority of this site; nothing was changed. To "
                "trust another authority: elmesh network trust."
            ) from None

    def find_certificate(self) -> Path | None:
        """Return the file of a certificate in the folder: the installed one, or the one that the authority named."""
        files = (self.certificate, self.folder / f"{self.invitation.agent}.pem")
        return next((path for path in files if path.is_file()), None)

    def install(self, certificate: Path) -> None:
        """Check the certificate, and write it and the agent's file into the folder."""
        chain = accepted_certificate(
            certificate,
            read_key(self.key).public_key(),
            self.invitation.agent,
            self._address,
            self.invitation.authorities,
            key_file=self.key,
        )
        if not self.certificate.exists():
            create_file(self.certificate, to_pem(chain))
        elif load_certificates(self.certificate) != chain:
            raise ElmeshError(
                f"{self.certificate} exists and is another certificate; to replace it: elmesh network renew "
                f"{self.agent_file} --certificate {certificate}"
            )
        if not self.agent_file.exists():
            create_file(self.agent_file, agent_toml(self.invitation.agent).encode())

    @property
    def _address(self) -> Address:
        return self.invitation.config.address_of(self.invitation.agent)

    @property
    def _is_used(self) -> bool:
        return self.folder.is_dir() and any(self.folder.iterdir())


def accepted_certificate(
    path: Path,
    key: PublicKeyTypes,
    agent: str,
    address: Address,
    authorities: list[x509.Certificate],
    *,
    key_file: Path,
) -> list[x509.Certificate]:
    """Return the certificate in a file, with any intermediate ones, if other agents accept it; raise otherwise."""
    if not path.is_file():
        raise ElmeshError(f"There is no certificate {path}; give the file that the authority has returned.")
    leaf, *intermediates = load_certificates(path)
    check_owner(leaf, key, agent, str(path), str(key_file))
    verify_chain(leaf, intermediates, authorities, datetime.now(UTC), str(path), "the network's ca.pem")
    hosts = host_names(leaf.extensions)
    if address.host not in hosts:
        raise ElmeshError(
            f"{path} is for the hosts {', '.join(hosts)}, and the network file has {address.host} for {agent}; have it "
            "signed with the present network file."
        )
    return [leaf, *intermediates]


def _agree(path: Path, same: Callable[[], bool]) -> bool | None:
    """Return whether a file has the expected content, None if it does not exist."""
    if not os.path.lexists(path):
        return None
    try:
        return same()
    except ElmeshError:
        return False
