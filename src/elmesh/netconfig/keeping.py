"""What the keeper of a network's authority does over the years: revoke certificates, and replace the authority.

The authority's folder has the record of all certificates it has signed, by which those of an agent are revoked. While
an authority is replaced, the former one is in a folder inside, and both are trusted: the file of certificates then has
the new one first, then the former one. A folder is replaced as a whole, so that an interrupt leaves the old one or the
new one.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

from cryptography import x509

from elmesh.errors import ElmeshError
from elmesh.files import atomic_write, replace_folder
from elmesh.netconfig.layout import NetworkLayout
from elmesh.netconfig.pki.authority import CA_CERTIFICATE, ISSUED, Authority, issued_certificates, make_authority
from elmesh.netconfig.pki.csr import common_name
from elmesh.netconfig.pki.revocation import is_signed_by, load_lists, make_list
from elmesh.netconfig.pki.verify import load_certificates, to_pem

__all__ = ["finish_rotation", "revoke_certificates", "rotate_authority"]

_FORMER = "former"
_REVOKED = "revoked.pem"


def revoke_certificates(
    network: NetworkLayout, name: str | None, more: Path | None = None, *, days: int = 180
) -> tuple[Path, int]:
    """Revoke all certificates of an agent, and write the lists of all authorities anew.

    Parameters
    ----------
    network : NetworkLayout
        The network, with its authority.
    name : str or None
        The agent; None to write the same lists with new dates.
    more : path, optional
        A certificate that is not in the authority's record.
    days : int
        Days until the next list is due.

    Returns
    -------
    file, count : Path, int
        The file of the lists, and how many certificates are newly revoked.
    """
    folders = [folder for folder in (network.authority, network.authority / _FORMER) if folder.is_dir()]
    signers = [Authority.read(folder) for folder in folders]
    path, now = network.folder / _REVOKED, datetime.now(UTC).replace(microsecond=0)
    known = load_lists(path)
    asked = [] if name is None else _certificates_of(network, name, more)
    if name is not None and not asked:
        raise ElmeshError(
            f"The record in {network.authority} has no certificate of {name} that is still valid; give its file with "
            "--certificate."
        )
    lists, new = [], 0
    for signer in signers:
        before = [one for one in known if is_signed_by(one, signer.certificate)]
        revoked = {entry.serial_number: entry.revocation_date_utc for one in before for entry in one}
        wanted = {one.serial_number for one in asked if _was_issued_by(one, signer)} - revoked.keys()
        number = max((_number(one) for one in before), default=0) + 1
        lists.append(make_list(signer, revoked | dict.fromkeys(wanted, now), days, number, now))
        new += len(wanted)
    if more is not None and not any(_was_issued_by(one, signer) for one in asked[:1] for signer in signers):
        raise ElmeshError(f"{more} was not issued by the authority in {network.authority}; only that can revoke it.")
    atomic_write(path, b"".join(lists), mode=0o644)
    return path, new


def rotate_authority(network: NetworkLayout) -> Authority:
    """Make a new authority, which signs from now on; the former one is trusted until :func:`finish_rotation`."""
    folder = network.authority
    if (folder / _FORMER).exists():
        raise ElmeshError(f"{folder} is being replaced already; end that first, with elmesh network rotate --finish.")
    former = Authority.read(folder)

    def fill(new: Path) -> None:
        authority = make_authority(new, network.config.name)
        (new / _FORMER).mkdir(mode=0o700)
        for path in folder.iterdir():
            if path.is_file():
                shutil.copy2(path, new / _FORMER / path.name)
        (new / CA_CERTIFICATE).write_bytes(to_pem([authority.certificate, former.certificate]))

    _replace(folder, fill)
    return Authority.read(folder)


def finish_rotation(network: NetworkLayout, *, force: bool = False) -> list[str]:
    """Drop the former authority, and its key; return the agents without a certificate of the new one.

    If there are any, raise unless ``force`` is given.
    """
    folder = network.authority
    if not (folder / _FORMER).exists():
        raise ElmeshError(f"{folder} is not being replaced; begin with elmesh network rotate.")
    authority = Authority.read(folder)
    certified = {common_name(one.subject) for one in _valid(network) if _was_issued_by(one, authority)}
    left = [name for name in network.names if name not in certified]
    if left and not force:
        raise ElmeshError(
            f"The new authority has signed no certificate yet for {', '.join(left)}; have them renew theirs, or give "
            "--force to leave them out."
        )

    def fill(new: Path) -> None:
        for path in folder.iterdir():
            if path.is_file():
                shutil.copy2(path, new / path.name)
        (new / CA_CERTIFICATE).write_bytes(authority.pem)

    _replace(folder, fill)
    if (network.folder / _REVOKED).exists():
        revoke_certificates(network, None)  # without the list of the former one
    return left


def _certificates_of(network: NetworkLayout, name: str, more: Path | None) -> list[x509.Certificate]:
    """Return an agent's certificates: a given one, and those in the record that have not expired."""
    given = [] if more is None else load_certificates(more)[:1]
    if given and common_name(given[0].subject) != name:
        raise ElmeshError(f"{more} is the certificate of {common_name(given[0].subject)!r}, not of {name}.")
    return [*given, *(one for one in _valid(network) if common_name(one.subject) == name)]


def _valid(network: NetworkLayout) -> list[x509.Certificate]:
    now = datetime.now(UTC)
    return [one for one in issued_certificates(network.authority) if one.not_valid_after_utc > now]


def _replace(folder: Path, fill: Callable[[Path], None]) -> None:
    """Replace the authority's folder by one that ``fill`` fills, with the same record, in one step."""
    new = folder.with_name(f".{folder.name}.new")
    shutil.rmtree(new, ignore_errors=True)
    try:
        new.mkdir(mode=0o700)
        fill(new)
        if (folder / ISSUED).is_dir():
            shutil.copytree(folder / ISSUED, new / ISSUED)
        replace_folder(new, folder)
    except shutil.Error as error:  # one reason for each file that could not be copied
        raise ElmeshError(f"{folder} could not be copied ({error.args[0][0][2]}); nothing was changed.") from None
    finally:
        shutil.rmtree(new, ignore_errors=True)


def _was_issued_by(certificate: x509.Certificate, authority: Authority) -> bool:
    try:
        certificate.verify_directly_issued_by(authority.certificate)
    except Exception:  # a different issuer, key type or signature each raise another error
        return False
    return True


def _number(one: x509.CertificateRevocationList) -> int:
    return one.extensions.get_extension_for_class(x509.CRLNumber).value.crl_number
