"""One run of mpiexec: how it starts, what its ranks say, and how it ends.

mpiexec and its ranks are in a session of their own, so that the terminal's Ctrl-C reaches only the command. What leads
that session is :mod:`elmesh.cli.keeper`, which lets no rank outlive mpiexec or the command.
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

from elmesh.cli import keeper
from elmesh.errors import ElmeshError

__all__ = ["Job", "find_mpiexec"]

_KEPT = 65_536  # bytes of standard error: the end is what matters


def find_mpiexec() -> str:
    """Find the mpiexec of this Python's environment, or else of the path.

    Returns
    -------
    str
        Where it is.
    """
    beside = Path(sys.executable).parent
    found = shutil.which("mpiexec", path=str(beside)) or shutil.which("mpiexec")
    if found is None or importlib.util.find_spec("mpi4py") is None:
        raise ElmeshError('MPI is not installed; run pip install "elmesh[mpi]".')
    return found


class Job:
    """A running mpiexec with all that it started; leaving the context ends every process of it.

    Parameters
    ----------
    command
        mpiexec and its arguments.
    environ
        The environment to run it in.
    folders
        Variables of it that are to name a folder which is gone afterwards.
    """

    def __init__(self, command: Sequence[str], environ: Mapping[str, str], folders: Sequence[str] = ()) -> None:
        self._process = subprocess.Popen(  # noqa: S603 - the command is the user's own
            [sys.executable, "-I", "-S", str(keeper.__file__), ",".join(folders), *command],
            env=environ,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
            bufsize=0,
        )
        self._selector = selectors.DefaultSelector()
        for stream in (self._process.stdout, self._process.stderr):
            if stream is not None:
                self._selector.register(stream, selectors.EVENT_READ)
        self._line = b""
        self._errors = b""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.end()
        self._selector.close()
        for stream in (self._process.stdout, self._process.stderr):
            if stream is not None:
                stream.close()

    @property
    def code(self) -> int | None:
        """What mpiexec ended with, None as long as it or one of its ranks runs."""
        return self._process.poll()

    @property
    def errors(self) -> list[str]:
        """The last lines of standard error."""
        return self._errors.decode(errors="replace").splitlines()

    def read(self, seconds: float) -> list[str]:
        """Wait until the ranks say something, and give the lines of standard output that are whole.

        Parameters
        ----------
        seconds
            How long to wait at most.
        """
        for key, _ in self._selector.select(seconds):
            chunk = os.read(key.fd, 65_536)
            if key.fileobj is self._process.stderr:
                self._errors = (self._errors + chunk)[-_KEPT:]
            elif chunk or self._line:
                self._line += chunk or b"\n"  # the last line may have no end
            if not chunk:
                self._selector.unregister(key.fileobj)
        *lines, self._line = self._line.split(b"\n")
        return [line.decode(errors="replace").removesuffix("\r") for line in lines]

    def ask_to_stop(self) -> None:
        """Send SIGUSR1 to mpiexec, which passes it on to every rank."""
        if self._process.stdin is not None:
            with contextlib.suppress(BrokenPipeError):  # it has just ended
                self._process.stdin.write(b"1")

    def end(self) -> list[str]:
        """End every process that is left, by force if need be, and give the last lines of standard output."""
        if self._process.stdin is not None:
            self._process.stdin.close()
        lines = self._read_while(lambda: self._process.poll() is None, 3 * keeper.PATIENCE)
        if self.code is None or self.code < 0:  # the keeper was stopped or killed
            keeper.kill_session(self._process.pid)
        return lines + self._read_while(lambda: bool(self._selector.get_map()), keeper.PATIENCE)

    def _read_while(self, more: Callable[[], bool], seconds: float) -> list[str]:
        """Read as long as there may be more, or the time is not over."""
        lines: list[str] = []
        end = time.monotonic() + seconds
        while more() and time.monotonic() < end:
            lines += self.read(0.05)
        return lines
