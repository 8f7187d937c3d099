"""Private keys in files that only their owner may read, from the moment they are made."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shlex
import stat
from pathlib import Path

from elmesh.errors import ElmeshError

# Only those who run a network need it, and all modules can be imported without.
with contextlib.suppress(ImportError):
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.asymmetric.types import PrivateKeyTypes, PublicKeyTypes

__all__ = ["make_key", "need_cryptography", "public_bytes", "read_key", "write_new"]

_MOST_BYTES = 64 * 2**10
_OTHERS = stat.S_IRWXG | stat.S_IRWXO


def need_cryptography() -> None:
    """Say what to install if it is not there."""
    if importlib.util.find_spec("cryptography") is None:
        raise ElmeshError(
            'Keys and certificates need the package cryptography; install it with: pip install "elmesh[network]"'
        )


def make_key(path: str | Path) -> ec.EllipticCurvePrivateKey:
    """Make a private key in a new file that only this user may read.

    Parameters
    ----------
    path
        The file; it must not be there.
    """
    need_cryptography()
    key = ec.generate_private_key(ec.SECP256R1())
    pem = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    write_new(Path(path), pem, 0o600)
    return key


def write_new(path: Path, data: bytes, mode: int = 0o644) -> None:
    """Write a file that is not there yet, with its mode from the start.

    Parameters
    ----------
    path
        The file.
    data
        What it is to hold.
    mode
        Who may do what with it.
    """
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    except FileExistsError:
        raise ElmeshError(f"{path} exists already and is not overwritten.") from None
    with os.fdopen(descriptor, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(descriptor)


def read_key(path: Path) -> PrivateKeyTypes:
    """Read a private key from a file that is open to nobody else. Errors tell nothing of what is in it.

    Parameters
    ----------
    path
        The file, in PEM.
    """
    need_cryptography()
    # Not to wait for anybody, should it be a pipe.
    descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))
    with os.fdopen(descriptor, "rb") as file:
        _check_private(path, os.fstat(descriptor))
        data = file.read(_MOST_BYTES)
    try:
        return serialization.load_pem_private_key(data, None)
    except TypeError:
        raise ElmeshError(
            f"The key {path} is protected by a password, which nobody is there to type; give one that is not."
        ) from None
    except (ValueError, UnsupportedAlgorithm):
        raise ElmeshError(f"{path} holds no private key; expected one in PEM.") from None


def public_bytes(key: PublicKeyTypes) -> bytes:
    """Give a public key in the one way there is to write it."""
    return key.public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)


def _check_private(path: Path, found: os.stat_result) -> None:
    if not stat.S_ISREG(found.st_mode):
        raise ElmeshError(f"The key {path} is not a regular file.")
    if os.name != "posix":
        return
    if found.st_uid not in (0, os.geteuid()):
        raise ElmeshError(
            f"The key {path} belongs to another user (number {found.st_uid}), who can read and replace it; make it "
            "your own, with chown."
        )
    if found.st_mode & _OTHERS:
        raise ElmeshError(
            f"The key {path} is open to other users (mode {stat.S_IMODE(found.st_mode):04o}); close it with: "
            f"chmod 600 {shlex.quote(str(path))}"
        )
