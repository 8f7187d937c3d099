"""The log of all that has left a site: append-only, each line bound to the one before it by its hash.

A line is a JSON object. Its ``hash`` is the SHA-256 of its content, signed with the key of the agent's certificate, and
``previous`` is the SHA-256 of the line before with its signature: a line that is removed, changed or moved breaks the
chain, and the chain cannot be made anew without that key. Beside the log a small file, its *seal*, states how many
lines there are and the hash of the last one, with a signature that is nowhere else, so that the last lines cannot be
removed either. A line is on disk before what it describes is sent.

Lines that come many times a second (a U_t in every round) are signed together, by the next line that is.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import json
import os
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import Any

import msgspec

from elmesh.comm.network.keys import Credentials
from elmesh.errors import ElmeshError
from elmesh.files import sync_folder

__all__ = ["FREQUENT", "LogDamagedError", "ReleaseLog", "line_digest", "read_log"]

_START = "0" * 64
# Of frequent lines, every so many is signed.
_SIGN_EVERY = 256
# The seal is written in place, as one block of the disk.
_SEAL_BYTES = 4096
#: Event, kind and cost of the lines that come often.
FREQUENT = ("release", "basis", 0.0)
Line = dict[str, Any]


class LogDamagedError(ElmeshError):
    """A log whose lines are not those that were written."""


class _Seal(msgspec.Struct, forbid_unknown_fields=True):
    """The number of lines and the SHA-256 of the last one, signed, and the certificates of that time, in base64."""

    lines: int
    hash: str
    signature: str
    time: datetime
    chain: list[str]


class ReleaseLog:
    """The log in a file, open for appending; only one process can have it open.

    ``on_line`` is called with every line: those that are there, and each that is added.
    """

    def __init__(self, path: Path, name: str, credentials: Credentials, on_line: Callable[[Line], None]) -> None:
        self._on_line, self._lines, self._last, self._unsigned = on_line, 0, _START, 0
        self._path, self._name, self._credentials, self._seal = path, name, credentials, -1
        try:
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
            sync_folder(path.parent)
        except OSError as error:
            reason = (error.strerror or str(error)).lower()
            raise ElmeshError(f"The log {path} cannot be opened ({reason}), so that nothing may leave.") from None
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(self._descriptor)
            raise ElmeshError(f"Another process writes to the log {path}; end that one first.") from None
        try:
            self._cut_incomplete_line()
            for line in read_log(path, name, credentials):
                self._note(line)
        except BaseException:
            os.close(self._descriptor)
            raise
        self._size = os.fstat(self._descriptor).st_size

    @property
    def end(self) -> tuple[int, bytes]:
        """The number of lines, and the digest of the last one."""
        return self._lines, bytes.fromhex(self._last)

    def _note(self, line: Line) -> None:
        self._lines, self._last = line["line"], line_digest(line)
        self._unsigned = self._unsigned + 1 if line.get("frequent") else 0
        self._on_line(line)

    def _cut_incomplete_line(self) -> None:
        """Remove the beginning of a line whose writing was interrupted: what it describes was not sent."""
        data = self._path.read_bytes()
        complete = data.rfind(b"\n") + 1
        if complete < len(data):
            os.ftruncate(self._descriptor, complete)

    def append(self, content: Mapping[str, Any], *, frequent: bool = False) -> Line:
        """Add a line; unless it is a ``frequent`` one, it is on disk and signed when this returns.

        After an error the log is as it was.
        """
        number, signed = self._lines + 1, not frequent or (self._lines + 1) % _SIGN_EVERY == 0
        time = datetime.now(UTC)
        line: Line = {
            "line": number,
            "time": time.isoformat(timespec="seconds"),
            **content,
            **({} if signed else {"frequent": True}),
            "previous": self._last,
        }
        line["hash"] = _hash(line)
        if signed:
            line["signature"] = self._credentials.sign(_statement(self._name, line["hash"])).hex()
        data = _text(line)
        try:
            if os.write(self._descriptor, data) < len(data):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            if signed:
                os.fdatasync(self._descriptor)
                self._write_seal(line, time)
        except OSError:
            os.ftruncate(self._descriptor, self._size)
            raise
        self._size += len(data)
        self._note(line)
        return line

    def _write_seal(self, line: Line, time: datetime) -> None:
        """Replace the seal, without waiting for the disk: lines that it then lacks are signed themselves."""
        if self._seal < 0:
            self._seal = os.open(_seal_file(self._path), os.O_WRONLY | os.O_CREAT, 0o600)
            sync_folder(self._path.parent)
        last = line_digest(line)
        signature = self._credentials.sign(_seal_statement(self._name, line["line"], last))
        seal = _Seal(line["line"], last, signature.hex(), time, self._chain)
        os.pwrite(self._seal, msgspec.json.encode(seal).ljust(_SEAL_BYTES), 0)

    @cached_property
    def _chain(self) -> list[str]:
        return [b64encode(one).decode() for one in self._credentials.chain]

    def close(self) -> None:
        """Sign what is not signed yet, and release the files."""
        try:
            # On a full disk the next process signs them.
            with contextlib.suppress(OSError):
                if self._unsigned:
                    self.append({"event": "closed"})
                if self._seal >= 0:
                    os.fsync(self._seal)
        finally:
            os.close(self._descriptor)
            if self._seal >= 0:
                os.close(self._seal)


def read_log(path: Path, name: str, credentials: Credentials) -> Iterator[Line]:
    """Yield the lines of an agent's log; raise :class:`LogDamagedError` if they are not those that were written."""
    seal = _read_seal(path, name, credentials)
    number, last, unsigned = 0, _START, 0
    for number, line in enumerate(_parsed(path), 1):
        if line is None or line.get("hash") != _hash(line) or not _may_be_unsigned(line):
            raise LogDamagedError(f"Line {number} of {path} was changed.")
        if line.get("line") != number or line.get("previous") != last:
            raise LogDamagedError(f"Before line {number} of {path} a line was removed, added or moved.")
        last, unsigned = line_digest(line), unsigned + 1 if line.get("frequent") else 0
        if seal is None or number > seal.lines:
            # After the seal come lines of a process that was killed, or whose machine failed, before it was written.
            if not line.get("frequent"):
                _check_signature(path, number, line, name, credentials)
        elif number == seal.lines and seal.hash != last:
            raise LogDamagedError(f"{path} is not the log that this agent has sealed.")
        yield line
    if unsigned > _SIGN_EVERY:
        raise LogDamagedError(f"The last {unsigned} lines of {path} are not signed.")
    if seal is not None and seal.lines > number:
        raise LogDamagedError(f"The last {seal.lines - number} of {seal.lines} lines of {path} were removed.")
    if seal is None and number > 1:
        raise LogDamagedError(f"{_seal_file(path)} is missing, by which the end of {path} is verified.")


def _read_seal(path: Path, name: str, credentials: Credentials) -> _Seal | None:
    file = _seal_file(path)
    if not file.exists():
        return None
    try:
        seal = msgspec.json.decode(file.read_bytes(), type=_Seal)
        chain, signature = [b64decode(one, validate=True) for one in seal.chain], bytes.fromhex(seal.signature)
        # With the certificate of that time, which may have expired since.
        credentials.verify(name, chain, _seal_statement(name, seal.lines, seal.hash), signature, seal.time)
    except (ValueError, RecursionError):  # errors of msgspec and ElmeshErrors are ValueErrors
        raise LogDamagedError(
            f"{file} was not signed by this agent. If the network's authority has changed, keep the certificate of the "
            "former one as former-ca.pem beside agent.toml."
        ) from None
    return seal


def _check_signature(path: Path, number: int, line: Line, name: str, credentials: Credentials) -> None:
    # Lines after the seal may have been signed before the certificate was renewed.
    with contextlib.suppress(ValueError):
        signature, time = bytes.fromhex(str(line.get("signature"))), datetime.fromisoformat(str(line.get("time")))
        for chain, at in [(credentials.chain, None), *((former, time) for former in credentials.former_chains)]:
            with contextlib.suppress(ElmeshError):
                credentials.verify(name, chain, _statement(name, line["hash"]), signature, at)
                return
    raise LogDamagedError(f"Line {number} of {path} was not written by this agent.")


def _seal_file(path: Path) -> Path:
    return path.with_name(f"{path.name}.seal")


def _statement(name: str, last: str) -> bytes:
    return f"elmesh log of {name} {last}".encode()


def _seal_statement(name: str, lines: int, last: str) -> bytes:
    return f"elmesh seal of {name} {lines} lines {last}".encode()


def _may_be_unsigned(line: Line) -> bool:
    """Return whether a line is signed, or one of those that are signed together."""
    return not line.get("frequent") or (line.get("event"), line.get("what"), line.get("rho")) == FREQUENT


def _text(line: Line) -> bytes:
    return (json.dumps(line) + "\n").encode()


def _parsed(path: Path) -> Iterator[Line | None]:
    """Yield each line, None if it is no JSON object as this module writes it."""
    if not path.exists():
        return
    with path.open("rb") as file:
        for data in file:
            try:
                line = json.loads(data)
            except (ValueError, RecursionError):
                line = None
            yield line if isinstance(line, dict) and _text(line) == data else None


def _hash(line: Mapping[str, Any]) -> str:
    """Return the hash of a line's content, which is signed."""
    return line_digest({key: value for key, value in line.items() if key not in ("hash", "signature")})


def line_digest(line: Mapping[str, Any]) -> str:
    """Return the digest of a line, which the next one contains, and which other sites keep."""
    return hashlib.sha256(json.dumps(line, sort_keys=True).encode()).hexdigest()
