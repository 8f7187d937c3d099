"""The folders of a network on disk: one for the authority, and one for each agent that can be handed to its site.

Every folder is for this user only. Nothing that is there is replaced unless told to, and then only files that this
module writes.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from elmesh.errors import ElmeshError
from elmesh.netconfig.authority import (
    CA_CERTIFICATE,
    CA_KEY,
    Authority,
    make_authority,
    make_key,
    make_request,
    request_name,
    sign,
)
from elmesh.netconfig.config import Plan
from elmesh.netconfig.fields import read_text
from elmesh.netconfig.identity import agent_toml
from elmesh.netconfig.keys import need_cryptography, write_new
from elmesh.netconfig.names import ROUTER

__all__ = ["AUTHORITY", "NETWORK", "Network", "clear", "sign_request", "write_site"]

NETWORK, AUTHORITY, AGENT = "network.toml", "ca", "agent.toml"
KEY, CERTIFICATE = "key.pem", "certificate.pem"
_MOST_BYTES = 64 * 2**10


@dataclass(frozen=True)
class Network:
    """Where a network's files go.

    Attributes
    ----------
    folder
        The folder of all of it.
    plan
        What the network is.
    """

    folder: Path
    plan: Plan

    @property
    def _names(self) -> list[str]:
        """Whoever needs a folder: the agents, and the router if there is one."""
        return [*self.plan.names, *([ROUTER] if self.plan.routers else [])]

    def files(self, *, keys: bool) -> list[Path]:
        """Name all files there will be, with keys and certificates or without."""
        agents = [self.folder / name / file for name in self._names for file in (AGENT, NETWORK, KEY, CERTIFICATE)]
        trusted = [self.folder / name / CA_CERTIFICATE for name in self._names]
        secret = [self.folder / AUTHORITY / name for name in (CA_KEY, CA_CERTIFICATE)]
        return [self.folder / NETWORK, *(secret + agents + trusted if keys else [])]

    def write(self, remark: str = "", *, days: int = 365, keys: bool = True, force: bool = False) -> None:
        """Write the network file, and with keys an authority and a folder for each agent.

        Parameters
        ----------
        remark
            What to say at the top of the network file.
        days
            For how long certificates are good.
        keys
            Whether to make keys here; without, each site makes its own (:func:`write_site`).
        force
            Whether files of a network that is there already may be replaced.
        """
        if keys and AUTHORITY in self.plan.names:
            raise ElmeshError(f"An agent cannot be called {AUTHORITY}, for that is the authority's folder; rename it.")
        if keys:
            need_cryptography()
        clear(self.files(keys=keys), force)
        text = self.plan.to_toml(remark).encode()
        _make_folder(self.folder)
        write_new(self.folder / NETWORK, text)
        if not keys:
            return
        _make_folder(self.folder / AUTHORITY)
        (self.folder / AUTHORITY).chmod(0o700)
        authority = make_authority(self.folder / AUTHORITY, self.plan.name)
        for name in self._names:
            folder = self.folder / name
            _make_folder(folder)
            folder.chmod(0o700)
            request = make_request(make_key(folder / KEY), name, self.plan.address_of(name).hosts)
            write_new(folder / CERTIFICATE, sign(request, authority, days))
            write_new(folder / CA_CERTIFICATE, authority.pem)
            write_new(folder / NETWORK, text)
            write_new(folder / AGENT, agent_toml(name).encode())


def write_site(network: Path, name: str, folder: Path, *, force: bool = False) -> Path:
    """Make an agent's folder at its own site: the key, which stays there, and the request for a certificate.

    Parameters
    ----------
    network
        The network file.
    name
        The agent.
    folder
        Where its files go.
    force
        Whether an agent's files that are there may be replaced, its key too.

    Returns
    -------
    Path
        The request, to be sent to the authority.
    """
    need_cryptography()
    plan = Plan.read(network)
    address = plan.address_of(name)
    text, copy, request = network.read_bytes(), folder / NETWORK, folder / f"{name}.csr"
    # The network file may be in its place already.
    there = copy.exists() and copy.read_bytes() == text
    clear([folder / AGENT, folder / KEY, request, *([] if there else [copy])], force)
    _make_folder(folder)
    write_new(request, make_request(make_key(folder / KEY), name, address.hosts))
    write_new(folder / AGENT, agent_toml(name).encode())
    if not there:
        write_new(copy, text)
    return request


def sign_request(
    authority: Path, request: Path, plan: Plan, out: Path | None, *, days: int = 365, force: bool = False
) -> tuple[str, Path]:
    """Sign an agent's request, for the hosts that the network file says it has.

    Parameters
    ----------
    authority
        The authority's folder.
    request
        The request's file.
    plan
        The network, one of whose agents it must be.
    out
        Where the certificate goes; by default beside the request.
    days
        For how long it is good.
    force
        Whether a file that is there may be replaced.

    Returns
    -------
    tuple
        The agent, and the certificate's file.
    """
    signer = Authority.read(authority)
    asked = read_text(request, "request for a certificate", _MOST_BYTES).encode()
    try:
        name = request_name(asked)
        certificate = sign(asked, signer, days, hosts=plan.address_of(name).hosts)
    except ElmeshError as error:
        raise ElmeshError(f"{request}: {error}") from None
    target = out or request.with_name(f"{name}.pem")
    clear([target], force)
    write_new(target, certificate)
    return name, target


def clear(files: Iterable[Path], force: bool) -> None:
    """See to it that files are not there: remove them if told to, or refuse.

    Parameters
    ----------
    files
        The files.
    force
        Whether they may be removed.
    """
    there = [path for path in files if os.path.lexists(path)]
    if there and not force:
        raise ElmeshError(f"{there[0]} exists; choose another place, or give --force to replace it.")
    for path in there:
        path.unlink()


def _make_folder(folder: Path) -> None:
    """Make a folder for this user only; one that is there may hold other things, and is left as it is."""
    if not folder.is_dir():
        folder.mkdir(parents=True, mode=0o700)
