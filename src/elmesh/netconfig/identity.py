"""Who an agent is: ``agent.toml``, which names it, and the files that prove it.

Everything is checked before anybody is talked to, so that a wrong file is a sentence here and not a connection that
does not come about: the key is this user's alone, belongs to the certificate, which an authority of this network has
signed for this agent and for today. There is no way to run without: a missing file is an error.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path

from elmesh.errors import ElmeshError
from elmesh.netconfig.authority import common_name
from elmesh.netconfig.config import Plan
from elmesh.netconfig.fields import parse_toml, read_text
from elmesh.netconfig.keys import need_cryptography, public_bytes, read_key
from elmesh.netconfig.names import check_name, parse_address
from elmesh.netconfig.verify import check_chain, load_certificates

with contextlib.suppress(ImportError):
    from cryptography import x509

__all__ = ["Identity", "agent_toml"]

_MOST_BYTES = 64 * 2**10
_REMEDY = {
    "network": "copy the network file there",
    "key": "make one with elmesh network csr, or copy the one that elmesh network create made",
    "certificate": "put the certificate there that the authority sent back",
    "authority": "put the certificate of the network's authority there",
}


@dataclass(frozen=True)
class Identity:
    """An agent, with all that it needs to prove that it is the one.

    Attributes
    ----------
    name
        Its name in the network.
    plan
        The network.
    folder
        Where its ``agent.toml`` is.
    key, certificate, authority
        Its private key, its certificate with any intermediate ones, and those of the authorities it trusts.
    state
        The folder for what it keeps between runs.
    listen
        Where it listens, if not at the address by which others reach it.
    """

    name: str
    plan: Plan
    folder: Path
    key: Path
    certificate: Path
    authority: Path
    state: Path
    listen: str | None = None

    @classmethod
    def read(cls, path: str | Path, *, now: datetime | None = None) -> Identity:
        """Read ``agent.toml`` and check everything it names.

        Parameters
        ----------
        path
            The file.
        now
            The time at which the certificate must be good, if not now.

        Raises
        ------
        ElmeshError
            If a file is missing, open to others, or does not belong to the others, or the agent is not in the network.
        """
        need_cryptography()
        identity = cls._named(Path(path))
        for name, remedy in _REMEDY.items():
            if name != "network" and not getattr(identity, name).exists():
                raise ElmeshError(f"The {name} file {getattr(identity, name)} is not there; {remedy}.")
        key = read_key(identity.key)
        leaf, *between = load_certificates(identity.certificate)
        if public_bytes(leaf.public_key()) != public_bytes(key.public_key()):
            raise ElmeshError(
                f"{identity.certificate} is not the certificate of {identity.key}; put the two there that were made "
                "for each other."
            )
        found = common_name(leaf.subject)
        if found != identity.name:
            raise ElmeshError(
                f"{identity.certificate} is the certificate of {found or 'nobody'!r}, not of agent {identity.name}; "
                "each agent needs its own."
            )
        check_chain(leaf, between, identity.certificate, identity.authority, now or datetime.now(UTC))
        return identity

    @classmethod
    def _named(cls, path: Path) -> Identity:
        """Read what the file says, and the network file."""
        text = read_text(path, "agent file", _MOST_BYTES)
        folder = path.absolute().parent
        try:
            fields = parse_toml(text)
            fields.only("name", "network", "key", "certificate", "authority", "state", "listen")
            name = check_name(fields.text("name"), "name")
            listen = str(parse_address(fields.text("listen"), "listen")) if fields.has("listen") else None
            paths = {key: folder / fields.text(key) for key in _REMEDY}
            state = folder / fields.text("state", "state")
        except ElmeshError as error:
            raise ElmeshError(f"{path}: {error}") from None
        network = paths.pop("network")
        if not network.exists():
            raise ElmeshError(f"The network file {network} is not there; {_REMEDY['network']}.")
        plan = Plan.read(network)
        plan.address_of(name)  # or it is not in the network
        return cls(name=name, plan=plan, folder=folder, **paths, state=state, listen=listen)

    @property
    def address(self) -> str:
        """Where others reach it."""
        return str(self.plan.address_of(self.name))

    @property
    def bind(self) -> str:
        """Where it listens."""
        return self.listen or self.address

    @cached_property
    def _leaf(self) -> x509.Certificate:
        return load_certificates(self.certificate)[0]

    @property
    def valid_until(self) -> datetime:
        """When its certificate ends, in UTC."""
        return self._leaf.not_valid_after_utc

    def days_left(self, now: datetime | None = None) -> float:
        """Say for how many days its certificate is still good."""
        return (self.valid_until - (now or datetime.now(UTC))).total_seconds() / 86400.0

    @property
    def hosts(self) -> list[str]:
        """The hosts that its certificate names."""
        try:
            names = self._leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        except x509.ExtensionNotFound:
            return []
        return [*names.get_values_for_type(x509.DNSName), *map(str, names.get_values_for_type(x509.IPAddress))]


def agent_toml(
    name: str, *, key: str = "key.pem", certificate: str = "certificate.pem", authority: str = "ca.pem"
) -> str:
    """Give an ``agent.toml`` with comments for whoever edits it.

    Parameters
    ----------
    name
        The agent's name.
    key, certificate, authority
        The files, beside this one.

    Examples
    --------
    >>> agent_toml("north").splitlines()[1]
    'name = "north"  # as in the network file'
    """
    return f"""\
# One agent of the network. Names of files are relative to the folder of this one.
name = "{name}"  # as in the network file
network = "network.toml"  # the network file, the same at every agent
key = "{key}"  # this agent's private key: never give it to anybody
certificate = "{certificate}"  # its certificate, signed by the authority for this name
authority = "{authority}"  # the certificate of the network's authority
state = "state"  # folder for the journal, from which a run goes on after a crash
# listen = "0.0.0.0:7451"  # where to listen, if not at the address in the network file
"""
