"""The invitation of a site to a network: one file with all that the site must have before it makes its key.

It holds the network file, the certificates of the authorities with their fingerprints, and the name and the address of
the site. Nothing of it is secret. It may come by any way, also one that others can write to: so everything in it is
checked, and people compare the fingerprint of the authority by telephone.
"""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import Annotated, Literal

from cryptography import x509
from msgspec import Meta

from elmesh.errors import ElmeshError
from elmesh.netconfig.config import NetworkConfig
from elmesh.netconfig.files import read_text
from elmesh.netconfig.names import check_name
from elmesh.netconfig.pki.verify import MAX_AUTHORITIES, check_authorities, fingerprint, parse_certificates, to_pem
from elmesh.netconfig.toml import CheckedStruct, decode_toml, encode_toml

__all__ = ["Invitation"]

# The network file has at most 8 MB, and escapes make it longer.
_MAX_BYTES = 12 * 2**20
_HEADER = """\
# The invitation of {agent} to the network {network}. It holds no secret. At the site, with this file:
#   elmesh network join {agent}.toml
# Compare the fingerprint of the authority by telephone with whoever has sent the invitation.

"""


class Invitation(CheckedStruct, frozen=True, kw_only=True, dict=True):
    """The content of an invitation, checked whenever it is made."""

    format: Annotated[Literal[1], Meta(description="version of this format")] = 1
    network: Annotated[str, Meta(description="name of the network")]
    agent: Annotated[str, Meta(description="name of the site that is invited")]
    address: Annotated[str, Meta(description="where its neighbours, or the sites of a router, reach it")]
    digest: Annotated[str, Meta(description="SHA-256 of the content of the network file")]
    fingerprints: Annotated[
        tuple[str, ...],
        Meta(description="of the authorities, to be compared by telephone", max_length=MAX_AUTHORITIES),
    ]
    authority: Annotated[str, Meta(description="certificates of the authorities")]
    file: Annotated[str, Meta(description="the network file")]

    def __post_init__(self) -> None:
        CheckedStruct.__post_init__(self)
        check_name("The name of the network", self.network)
        check_name("The name of the agent", self.agent)
        config = self.config
        stated = (self.network, self.address, self.digest, self.fingerprints)
        found = (
            config.name,
            str(config.address_of(self.agent)),
            config.digest.hex(),
            tuple(map(fingerprint, self.authorities)),
        )
        for what, one, other in zip(("network", "address", "digest", "fingerprints"), stated, found, strict=True):
            if one != other:
                raise ElmeshError(
                    f"The field {what} does not agree with the rest of the invitation, which was changed or damaged; "
                    "ask for it again."
                )

    @classmethod
    def make(cls, text: str, agent: str, authorities: list[x509.Certificate]) -> Invitation:
        """Return the invitation of an agent to the network of a network file, whose text this is."""
        config = NetworkConfig.parse(text, "The network file")
        return cls(
            network=config.name,
            agent=agent,
            address=str(config.address_of(agent)),
            digest=config.digest.hex(),
            fingerprints=tuple(map(fingerprint, authorities)),
            authority=to_pem(authorities).decode(),
            file=text,
        )

    @classmethod
    def read(cls, path: Path) -> Invitation:
        """Read an invitation; raise ElmeshError if it does not exist, or anything in it is not valid."""
        return decode_toml(read_text(path, "invitation file", _MAX_BYTES), cls, str(path))

    def to_toml(self) -> str:
        """Return the file, with a comment on each field."""
        return _HEADER.format(agent=self.agent, network=self.network) + encode_toml(self, {})

    @cached_property
    def config(self) -> NetworkConfig:
        """The network."""
        return NetworkConfig.parse(self.file, "The network file in the invitation")

    @cached_property
    def authorities(self) -> list[x509.Certificate]:
        """The certificates of the authorities, at least one that is valid now."""
        source = "The field authority of the invitation"
        return check_authorities(parse_certificates(self.authority.encode(), source), source)
