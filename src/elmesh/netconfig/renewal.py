"""A new certificate, or a new key with one, in the place of an agent's old one; and new authorities to trust.

The request is in a folder of its own beside ``agent.toml`` until the authority has signed it. The new certificate takes
the place of the old one in one step, at any time: a process that runs goes on with what it has read. The former
certificate, and former authorities, are kept in files by which the agent's log is verified, and nothing else.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from cryptography import x509

from elmesh.errors import ElmeshError
from elmesh.files import atomic_write
from elmesh.netconfig.files import create_file
from elmesh.netconfig.identity import FORMER_AUTHORITIES, FORMER_CERTIFICATES, REVOKED, Identity
from elmesh.netconfig.joining import accepted_certificate
from elmesh.netconfig.pki.csr import make_request
from elmesh.netconfig.pki.keys import make_key, public_bytes, read_key
from elmesh.netconfig.pki.revocation import is_signed_by, lists_to_pem, load_lists
from elmesh.netconfig.pki.verify import check_authorities, has_fingerprint, load_certificates, to_pem, verify_chain

__all__ = ["Renewal", "trust_authorities"]

_FOLDER = "renewal"


@dataclass(frozen=True)
class Renewal:
    """The renewal of the certificate of an agent, whose present one may have expired."""

    identity: Identity

    @property
    def folder(self) -> Path:
        """The folder of the request, which is there until the new certificate is installed."""
        return self.identity.folder / _FOLDER

    @property
    def request(self) -> Path:
        """The request for a certificate."""
        return self.folder / f"{self.identity.name}.csr"

    @property
    def key(self) -> Path:
        """The private key of the new certificate: a new one in the folder of the request, or the present one."""
        new = self.folder / "key.pem"
        return new if new.exists() else self.identity.key

    @property
    def has_new_key(self) -> bool:
        """Whether the key is another one than that of the present certificate."""
        own = load_certificates(self.identity.certificate)[0].public_key()
        return public_bytes(read_key(self.key).public_key()) != public_bytes(own)

    def ask(self, *, new_key: bool, force: bool = False) -> bool:
        """Make a request, unless there is one; return whether it was made. With ``force`` make it anew.

        A new key that is there already stays, unless another one is asked for by ``new_key`` and ``force``.
        """
        if force:
            for earlier in (self.request, self._returned, self._accepted):
                earlier.unlink(missing_ok=True)
            if new_key:
                (self.folder / "key.pem").unlink(missing_ok=True)
        if self.request.exists():
            if new_key and not self.has_new_key:
                raise ElmeshError(f"{self.request} is for the present key; give --force to make it anew.")
            return False
        self.folder.mkdir(exist_ok=True, mode=0o700)
        if new_key and not self.has_new_key:
            (self.folder / "key.pem").unlink(missing_ok=True)
            make_key(self.folder / "key.pem")
        hosts = self.identity.config.address_of(self.identity.name).hosts
        create_file(self.request, make_request(read_key(self.key), self.identity.name, hosts))
        return True

    @property
    def _returned(self) -> Path:
        return self.folder / f"{self.identity.name}.pem"

    @property
    def _accepted(self) -> Path:
        """A certificate that is being installed."""
        return self.folder / "accepted.pem"

    def find_certificate(self) -> Path | None:
        """Return the certificate that the authority has returned, if it is beside the request."""
        return next((path for path in (self._accepted, self._returned) if path.is_file()), None)

    def install(self, certificate: Path) -> x509.Certificate:
        """Check a certificate and put it in the place of the present one; return it.

        An interrupt between a new key, its certificate, and the end of the request is made good by the same call.
        """
        identity, key = self.identity, read_key(self.key)
        address = identity.config.address_of(identity.name)
        chain = accepted_certificate(
            certificate, key.public_key(), identity.name, address, identity.authorities, key_file=self.key
        )
        identity.revocations.check(chain[0], str(certificate))
        present = load_certificates(identity.certificate)
        if chain == present and self._accepted.exists() and load_certificates(self._accepted) == present:
            self._finish()
            return chain[0]
        if chain == present:
            raise ElmeshError(
                f"{certificate} is the certificate that {identity.name} has already, valid until "
                f"{chain[0].not_valid_after_utc:%Y-%m-%d}; give the one that the authority has signed for "
                f"{self.request}."
            )
        new, made = ((one.not_valid_before_utc, one.not_valid_after_utc) for one in (chain[0], present[0]))
        if new < made and not self.has_new_key:
            raise ElmeshError(
                f"{certificate} is valid from {new[0]:%Y-%m-%d %H:%M} UTC and the present certificate from "
                f"{made[0]:%Y-%m-%d %H:%M} UTC: it is an old one."
            )
        if self.folder.exists():
            atomic_write(self._accepted, to_pem(chain), mode=0o644)
        _append(identity.folder / FORMER_CERTIFICATES, present)
        if self.has_new_key:
            _replace(identity.key, self.key.read_bytes())
        _replace(identity.certificate, to_pem(chain))
        self._finish()
        return chain[0]

    def _finish(self) -> None:
        """Remove the folder of the request. It is renamed first, so that no part of it is ever taken for a request."""
        done = self.folder.with_name(f".{_FOLDER}-done")
        shutil.rmtree(done, ignore_errors=True)
        if self.folder.exists():
            self.folder.rename(done)
            shutil.rmtree(done, ignore_errors=True)


def trust_authorities(
    identity: Identity, path: Path, fingerprints: Sequence[str] = (), *, force: bool = False
) -> tuple[list[x509.Certificate], list[x509.Certificate]]:
    """Trust the authorities in a file in the place of the present ones; return those that are new, and those dropped.

    The fingerprint of a new one must be among those that a person was given by telephone. One of the present ones must
    be in the file, unless ``force`` is given, and one of the file must have signed the agent's certificate. Dropped
    ones remain trusted for the log of the past.
    """
    if not path.is_file():
        raise ElmeshError(f"There is no file {path}; give the ca.pem of the network's authority.")
    wanted, present = check_authorities(load_certificates(path), str(path)), identity.authorities
    new, dropped = [one for one in wanted if one not in present], [one for one in present if one not in wanted]
    if len(new) == len(wanted) and not force:
        raise ElmeshError(
            f"{path} has none of the authorities that this agent trusts; get the file of the overlap, with both, or "
            "give --force if you have compared the fingerprint."
        )
    unknown = [one for one in new if not any(has_fingerprint(one, given) for given in fingerprints)]
    if unknown:
        but = f" It is not {', '.join(map(repr, fingerprints))}." if fingerprints else ""
        raise ElmeshError(
            f"{path} has a new authority; have its keeper read out its fingerprint by telephone, and give it with "
            f"--fingerprint.{but}"
        )
    leaf, *intermediates = load_certificates(identity.certificate)
    if dropped:
        try:
            verify_chain(leaf, intermediates, wanted, datetime.now(UTC), str(identity.certificate), str(path))
        except ElmeshError as error:
            raise ElmeshError(f"{error} Renew it first: elmesh network renew.") from None
    _append(identity.folder / FORMER_AUTHORITIES, dropped)
    revoked = identity.folder / REVOKED
    lists = [one for one in load_lists(revoked) if any(is_signed_by(one, authority) for authority in wanted)]
    _replace(identity.authority, to_pem(wanted))
    if lists:
        _replace(revoked, lists_to_pem(lists))
    else:
        revoked.unlink(missing_ok=True)
    return new, dropped


def _append(path: Path, certificates: list[x509.Certificate]) -> None:
    """Add certificates to a file, each once."""
    known = load_certificates(path) if path.exists() else []
    new = [one for one in certificates if one not in known]
    if new:
        atomic_write(path, to_pem([*known, *new]), mode=0o644)


def _replace(path: Path, data: bytes) -> None:
    """Replace a file in one step; it keeps its owner and its permissions, and a link stays a link."""
    path = path.resolve()
    status = path.stat()
    atomic_write(path, data, mode=status.st_mode & 0o777)
    if hasattr(os, "geteuid") and os.geteuid() == 0:
        os.chown(path, status.st_uid, status.st_gid)
