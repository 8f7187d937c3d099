"""Private keys, in files that only their owner can read from the moment they are created."""

from __future__ import annotations

import os
import shlex
import stat
from pathlib import Path

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.types import PrivateKeyTypes, PublicKeyTypes

from elmesh.errors import ElmeshError
from elmesh.netconfig.files import create_file

__all__ = ["credential_file", "make_key", "public_bytes", "read_key"]

_MAX_BYTES = 64 * 2**10
_OTHER_USERS = stat.S_IRWXG | stat.S_IRWXO


def make_key(path: Path) -> ec.EllipticCurvePrivateKey:
    """Make a private key and write it to a new file that only this user can read."""
    key = ec.generate_private_key(ec.SECP256R1())
    pem = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    create_file(path, pem, 0o600)
    return key


def read_key(path: Path) -> PrivateKeyTypes:
    """Read a private key in PEM from a file that no other user can read. Errors contain nothing of its content."""
    # Non-blocking, so that a named pipe gives an error instead of a wait.
    descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))
    with os.fdopen(descriptor, "rb") as file:
        _check_private(path, os.fstat(descriptor))
        data = file.read(_MAX_BYTES)
    try:
        return serialization.load_pem_private_key(data, None)
    except TypeError:
        raise ElmeshError(f"The key {path} is protected by a password; an agent needs one without.") from None
    except (ValueError, UnsupportedAlgorithm):
        raise ElmeshError(f"{path} holds no private key; expected one in PEM.") from None


def credential_file(name: str) -> Path | None:
    """Return the file of this name that systemd has handed to this service (``LoadCredential``), None without one."""
    folder = os.environ.get("CREDENTIALS_DIRECTORY")
    path = Path(folder or ".") / name
    return path if folder and path.is_file() else None


def public_bytes(key: PublicKeyTypes) -> bytes:
    """Return a public key in its DER encoding, by which keys are compared."""
    return key.public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)


def _check_private(path: Path, status: os.stat_result) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise ElmeshError(f"The key {path} is not a regular file.")
    if os.name != "posix":
        return
    if status.st_uid not in (0, os.geteuid()):
        raise ElmeshError(
            f"The key {path} belongs to another user (number {status.st_uid}), who can read and replace it; change its "
            "owner with chown."
        )
    # systemd opens a credential to the user of the service by an access list, which shows as a right of the group.
    others = stat.S_IRWXO if path == credential_file(path.name) else _OTHER_USERS
    if status.st_mode & others:
        raise ElmeshError(
            f"The key {path} is open to other users (mode {stat.S_IMODE(status.st_mode):04o}); close it with: "
            f"chmod 600 {shlex.quote(str(path))}"
        )
