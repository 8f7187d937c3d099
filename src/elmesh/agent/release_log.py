"""The log of all that has left a site: append-only, each line bound to the one before it by its hash.

A line is a JSON object. Its ``hash`` is the SHA-256 of its content, signed with the key of the agent's certificate, and
``previous`` is the SHA-256 of the line before with its signature: a line that is removed, changed or moved breaks the
chain, and the chain cannot be made anew without that key. Beside the log a small file, its *seal*, has a copy of the
last hash and signature, so that the last lines cannot be removed either. A line is on disk before what it describes is
sent.

Lines that come many times a second (a U_t in every round) are signed together, by the next line that is.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import Any

import msgspec

from elmesh.comm.network.keys import Credentials
from elmesh.errors import ElmeshError

__all__ = ["LogDamagedError", "ReleaseLog", "read_log"]

_START = "0" * 64
# Of frequent lines, every so many is signed.
_SIGN_EVERY = 256
Line = dict[str, Any]


class LogDamagedError(ElmeshError):
    """A log whose lines are not those that were written."""


class _Seal(msgspec.Struct, forbid_unknown_fields=True):
    """The number of the last signed line, its hash, and the signature with the certificates of that time."""

    line: int
    hash: str
    signature: str
    time: datetime
    chain: list[str]


class ReleaseLog:
    """The log in a file, open for appending; only one process can have it open.

    ``on_line`` is called with every line: those that are there, and each that is added.
    """

    def __init__(self, path: Path, name: str, credentials: Credentials, on_line: Callable[[Line], None]) -> None:
        self._on_line, self._lines, self._last = on_line, 0, _START
        self._path, self._name, self._credentials = path, name, credentials
        self._seal, self._partial = str(_seal_file(path)), str(path.with_name(f".{path.name}.seal.partial"))
        try:
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
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
            self.close()
            raise
        self._size = os.fstat(self._descriptor).st_size

    def _note(self, line: Line) -> None:
        self._lines, self._last = line["line"], _digest(line)
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
        data = (json.dumps(line) + "\n").encode()
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
        """Replace the seal, without waiting for the disk: lines that are on disk and signed are accepted without it."""
        seal = _Seal(line["line"], line["hash"], line["signature"], time, self._chain)
        descriptor = os.open(self._partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        try:
            os.write(descriptor, msgspec.json.encode(seal))
        finally:
            os.close(descriptor)
        os.replace(self._partial, self._seal)

    @cached_property
    def _chain(self) -> list[str]:
        return [one.hex() for one in self._credentials.chain]

    def close(self) -> None:
        """Release the file."""
        os.close(self._descriptor)


def read_log(path: Path, name: str, credentials: Credentials) -> Iterator[Line]:
    """Yield the lines of an agent's log; raise :class:`LogDamagedError` if they are not those that were written."""
    seal = _read_seal(path, name, credentials)
    number, last, waiting = 0, _START, 0
    for number, line in enumerate(_parsed(path), 1):
        if line is None or line.get("hash") != _hash(line):
            raise LogDamagedError(f"Line {number} of {path} was changed.")
        if line.get("line") != number or line.get("previous") != last:
            raise LogDamagedError(f"Before line {number} of {path} a line was removed, added or moved.")
        last, waiting = _digest(line), waiting + 1 if line.get("frequent") else 0
        if seal is None or number > seal.line:
            # After the seal come lines of a process that was killed, or whose machine failed, before it was written.
            if not line.get("frequent"):
                _check_signature(path, number, line, name, credentials)
        elif number == seal.line and (seal.hash, seal.signature) != (line["hash"], line.get("signature")):
            raise LogDamagedError(f"{path} is not the log that this agent has sealed.")
        yield line
    if waiting > _SIGN_EVERY:
        raise LogDamagedError(f"The last {waiting} lines of {path} are not signed.")
    if seal is not None and seal.line > number:
        raise LogDamagedError(f"The last {seal.line - number} of {seal.line} lines of {path} were removed.")
    if seal is None and number > 1:
        raise LogDamagedError(f"{_seal_file(path)} is missing, by which the end of {path} is verified.")


def _read_seal(path: Path, name: str, credentials: Credentials) -> _Seal | None:
    file = _seal_file(path)
    if not file.exists():
        return None
    try:
        seal = msgspec.json.decode(file.read_bytes(), type=_Seal)
        chain, signature = [bytes.fromhex(one) for one in seal.chain], bytes.fromhex(seal.signature)
        # With the certificate of that time, which may have expired since.
        credentials.verify(name, chain, _statement(name, seal.hash), signature, seal.time)
    except (ValueError, RecursionError):  # errors of msgspec and ElmeshErrors are ValueErrors
        raise LogDamagedError(f"{file} was not signed by this agent.") from None
    return seal


def _check_signature(path: Path, number: int, line: Line, name: str, credentials: Credentials) -> None:
    try:
        signature = bytes.fromhex(str(line.get("signature")))
        credentials.verify(name, credentials.chain, _statement(name, line["hash"]), signature)
    except ValueError:
        raise LogDamagedError(f"Line {number} of {path} was not written by this agent.") from None


def _seal_file(path: Path) -> Path:
    return path.with_name(f"{path.name}.seal")


def _statement(name: str, last: str) -> bytes:
    return f"elmesh log of {name} {last}".encode()


def _parsed(path: Path) -> Iterator[Line | None]:
    """Yield each line, None if it is no JSON object."""
    if not path.exists():
        return
    with path.open("rb") as file:
        for data in file:
            try:
                line = json.loads(data)
            except (ValueError, RecursionError):
                line = None
            yield line if isinstance(line, dict) else None


def _hash(line: Mapping[str, Any]) -> str:
    """Return the hash of a line's content, which is signed."""
    return _digest({key: value for key, value in line.items() if key not in ("hash", "signature")})


def _digest(line: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(line, sort_keys=True).encode()).hexdigest()
