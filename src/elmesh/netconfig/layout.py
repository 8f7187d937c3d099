"""The folders of a network on disk: one for the authority, and one per agent, to be handed to its site.

Only this user can open the folders. Existing files are replaced only with ``force``, and only those that this module
writes.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509

from elmesh.errors import ElmeshError
from elmesh.netconfig.config import MAX_NETWORK_BYTES, NetworkConfig
from elmesh.netconfig.files import create_file, read_text
from elmesh.netconfig.identity import agent_toml
from elmesh.netconfig.invitation import Invitation
from elmesh.netconfig.names import ROUTER
from elmesh.netconfig.pki.authority import (
    CA_CERTIFICATE,
    CA_KEY,
    Authority,
    make_authority,
    record_issued,
    sign,
)
from elmesh.netconfig.pki.csr import load_request, make_request
from elmesh.netconfig.pki.keys import make_key

__all__ = ["NetworkLayout", "create_agent_folder", "sign_request"]

_NETWORK, _AUTHORITY, _AGENT, _INVITATIONS = "network.toml", "ca", "agent.toml", "invitations"
_KEY, _CERTIFICATE = "key.pem", "certificate.pem"
_MAX_BYTES = 64 * 2**10


@dataclass(frozen=True)
class NetworkLayout:
    """The files of a network, with its config, in a folder."""

    folder: Path
    config: NetworkConfig

    @property
    def network_file(self) -> Path:
        """The network file."""
        return self.folder / _NETWORK

    @property
    def authority(self) -> Path:
        """The folder of the authority."""
        return self.folder / _AUTHORITY

    @property
    def names(self) -> list[str]:
        """The names of all folders besides the authority's: the agents, and the router if there is one."""
        return [*self.config.agent_names, *([ROUTER] if self.config.routers else [])]

    def write(self, remark: str = "", *, days: int = 365, keys: bool = True, force: bool = False) -> None:
        """Write the network file, with a remark at its top, an authority, and with keys one folder per agent.

        Without keys each site makes its own, with its invitation (:meth:`invite`) or with :func:`create_agent_folder`.
        Certificates are valid for ``days``.
        """
        if keys and _AUTHORITY in self.config.agent_names:
            raise ElmeshError(f"No agent can be named {_AUTHORITY}, which is the authority's folder; rename it.")
        files = [self.network_file, self.authority / CA_KEY, self.authority / CA_CERTIFICATE]
        if keys:
            names = (_AGENT, _NETWORK, _KEY, _CERTIFICATE, CA_CERTIFICATE)
            files += [self.folder / folder / name for folder in self.names for name in names]
        _remove_existing(files, force)
        text = self._write_network_file(remark)
        _make_folder(self.authority, close=True)
        authority = make_authority(self.authority, self.config.name)
        if not keys:
            return
        for name in self.names:
            folder = self.folder / name
            _make_folder(folder, close=True)
            request = make_request(make_key(folder / _KEY), name, self.config.address_of(name).hosts)
            certificate = sign(request, authority, days)
            record_issued(self.authority, certificate)
            create_file(folder / _CERTIFICATE, certificate)
            create_file(folder / CA_CERTIFICATE, authority.pem)
            create_file(folder / _NETWORK, text)
            create_file(folder / _AGENT, agent_toml(name).encode())

    def write_network_file(self, remark: str = "", *, force: bool = False) -> None:
        """Write the network file only, for a network with an authority of its own."""
        _remove_existing([self.network_file], force)
        self._write_network_file(remark)

    def _write_network_file(self, remark: str) -> bytes:
        text = self.config.to_toml(remark).encode()
        _make_folder(self.folder)
        create_file(self.network_file, text)
        return text

    def invite(self, authorities: list[x509.Certificate], *, force: bool = False) -> dict[str, Path]:
        """Write an invitation for every agent, and for the router; return their files by name."""
        text = read_text(self.network_file, "network file", MAX_NETWORK_BYTES)
        folder = self.folder / _INVITATIONS
        found = {name: folder / f"{name}.toml" for name in self.names}
        contents = {name: Invitation.make(text, name, authorities).to_toml() for name in found}
        _remove_existing(found.values(), force)
        folder.mkdir(exist_ok=True)
        for name, path in found.items():
            create_file(path, contents[name].encode())
        return found


def create_agent_folder(network_file: Path, name: str, folder: Path, *, force: bool = False) -> Path:
    """Make an agent's folder at its own site; return the file of the certificate request for the authority.

    With ``force`` existing files are replaced, including the private key.
    """
    hosts = NetworkConfig.read(network_file).address_of(name).hosts
    text, copy, request = network_file.read_bytes(), folder / _NETWORK, folder / f"{name}.csr"
    is_copied = copy.exists() and copy.read_bytes() == text
    _remove_existing([folder / _AGENT, folder / _KEY, request, *([] if is_copied else [copy])], force)
    _make_folder(folder)
    create_file(request, make_request(make_key(folder / _KEY), name, hosts))
    create_file(folder / _AGENT, agent_toml(name).encode())
    if not is_copied:
        create_file(copy, text)
    return request


def sign_request(
    authority: Path, request: Path, config: NetworkConfig, out: Path | None, *, days: int = 365, force: bool = False
) -> tuple[str, Path]:
    """Sign the request of an agent, for the hosts in the network file; return its name and the certificate's file.

    ``authority`` is the folder of the authority. Without ``out`` the certificate is written beside the request.
    """
    signer = Authority.read(authority)
    data = read_text(request, "request for a certificate", _MAX_BYTES).encode()
    try:
        name, _ = load_request(data)
        certificate = sign(data, signer, days, hosts=config.address_of(name).hosts)
    except ElmeshError as error:
        raise ElmeshError(f"{request}: {error}") from None
    target = out or request.with_name(f"{name}.pem")
    _remove_existing([target], force)
    record_issued(authority, certificate)
    create_file(target, certificate)
    return name, target


def _remove_existing(files: Iterable[Path], force: bool) -> None:
    """Remove files that exist, or raise unless ``force`` is given."""
    existing = [path for path in files if os.path.lexists(path)]
    if existing and not force:
        raise ElmeshError(f"{existing[0]} exists; choose another place, or give --force to replace it.")
    for path in existing:
        path.unlink()


def _make_folder(folder: Path, *, close: bool = False) -> None:
    """Make a folder that only this user can open; with ``close`` change the mode of an existing one."""
    if not folder.is_dir():
        folder.mkdir(parents=True, mode=0o700)
    if close:
        folder.chmod(0o700)
