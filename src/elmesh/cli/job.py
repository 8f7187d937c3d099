"""One run of mpiexec: its start, the output of its ranks, and its end.

mpiexec and its ranks are in a session of their own, so that Ctrl-C on the terminal reaches only the command. The leader
of the session is :mod:`elmesh.cli.session_reaper`: no rank outlives mpiexec or the command.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import selectors
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from elmesh.cli import session_reaper
from elmesh.errors import ElmeshError

__all__ = ["Job", "find_mpiexec"]

_MAX_ERRORS = 65_536  # bytes of standard error that are kept, from its end


def find_mpiexec() -> str:
    """Return the path of mpiexec, of this Python's environment or else of PATH."""
    beside = Path(sys.executable).parent
    found = shutil.which("mpiexec", path=str(beside)) or shutil.which("mpiexec")
    if found is None or importlib.util.find_spec("mpi4py") is None:
        raise ElmeshError('MPI is not installed; run pip install "elmesh[mpi]".')
    return found


class Job:
    """A running mpiexec with all its processes, which end when the context is left.

    ``folders`` are variables of its environment that are set to a temporary folder.
    """

    def __init__(self, command: Sequence[str], environ: Mapping[str, str], folders: Sequence[str] = ()) -> None:
        self._process = subprocess.Popen(  # noqa: S603  (no shell; mpiexec and this Python, as the user has them)
            [sys.executable, "-I", "-S", str(session_reaper.__file__), ",".join(folders), *command],
            env=environ,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
            bufsize=0,
        )
        self._streams = [stream for stream in (self._process.stdout, self._process.stderr) if stream is not None]
        self._selector = selectors.DefaultSelector()
        for stream in self._streams:
            self._selector.register(stream, selectors.EVENT_READ)
        self._line = b""
        self._errors = b""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.end()
        self._selector.close()
        for stream in self._streams:
            stream.close()

    @property
    def code(self) -> int | None:
        """The exit code of mpiexec, None as long as it or one of its ranks runs."""
        return self._process.poll()

    @property
    def errors(self) -> list[str]:
        """The last lines of standard error."""
        return self._errors.decode(errors="replace").splitlines()

    def read(self, seconds: float) -> list[str]:
        """Wait for output, at most so long, and return the complete lines of standard output."""
        for key, _ in self._selector.select(seconds):
            chunk = os.read(key.fd, 65_536)
            if key.fileobj is self._process.stderr:
                self._errors = (self._errors + chunk)[-_MAX_ERRORS:]
            elif chunk or self._line:
                self._line += chunk or b"\n"  # the last line may have no end
            if not chunk:
                self._selector.unregister(key.fileobj)
        *lines, self._line = self._line.split(b"\n")
        return [line.decode(errors="replace").removesuffix("\r") for line in lines]

    def request_stop(self) -> None:
        """Send SIGUSR1 to mpiexec, which passes it on to every rank."""
        if self._process.stdin is not None:
            with contextlib.suppress(BrokenPipeError):  # it has just ended
                self._process.stdin.write(b"1")

    def end(self) -> list[str]:
        """End all processes that are left, by force if needed, and return the last lines of standard output."""
        if self._process.stdin is not None:
            self._process.stdin.close()
        lines = self._read_while(lambda: self._process.poll() is None, 3 * session_reaper.TIMEOUT)
        if self.code is None or self.code < 0:  # the reaper was stopped or killed
            session_reaper.kill_session(self._process.pid)
        return lines + self._read_while(lambda: bool(self._selector.get_map()), session_reaper.TIMEOUT)

    def _read_while(self, more: Callable[[], bool], seconds: float) -> list[str]:
        """Read while there may be more, for a limited time."""
        lines: list[str] = []
        end = time.monotonic() + seconds
        while more() and time.monotonic() < end:
            lines += self.read(0.05)
        return lines
