"""A program that runs a command in a session of its own, and leaves no process of the session behind.

It exits with the command's exit code. A byte on standard input is passed on to the command as SIGUSR1. The end of
standard input ends the command: also if the process at the other end was killed. At the end all processes that are left
in the session are killed, and the temporary folder of the command is removed.

It imports only the standard library and is run by its path: ``python -I -S session_reaper.py VARIABLES COMMAND...``.
"""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

__all__ = ["TIMEOUT", "kill_session", "members", "run"]

#: Seconds for the command to end after SIGTERM, and for other processes after SIGKILL.
TIMEOUT = 5.0

_POLL = 0.05


def run(command: Sequence[str], variables: Sequence[str]) -> int:
    """Run a command until it ends or standard input does; return its exit code, as a shell does for a signal.

    ``variables`` of its environment are set to its temporary folder.
    """
    memory = "/dev/shm"  # noqa: S108  (TemporaryDirectory makes a folder of its own in it)
    base = memory if os.access(memory, os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="elmesh-", dir=base, ignore_cleanup_errors=True) as folder:
        environ = {**os.environ, **dict.fromkeys(variables, folder)}
        process = subprocess.Popen(command, env=environ, stdin=subprocess.DEVNULL)  # noqa: S603  (no shell; the command that Job gives)
        while process.poll() is None:
            if select.select([0], [], [], _POLL)[0]:
                if not os.read(0, 1):
                    process.terminate()
                    break
                process.send_signal(signal.SIGUSR1)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(TIMEOUT)
        kill_session(os.getsid(0))
        code = process.wait()
    return code if code >= 0 else 128 - code


def kill_session(session: int) -> None:
    """Kill every process of a session except this one."""
    end = time.monotonic() + TIMEOUT
    while time.monotonic() < end and (left := [pid for pid in members(session) if pid != os.getpid()]):
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(_POLL)


def members(session: int, processes: Path = Path("/proc")) -> list[int]:
    """Return the processes of a session that have not ended, from the kernel's folder or else from ``ps``."""
    found = []
    if (processes / "self").exists():
        for entry in processes.glob("[0-9]*"):
            with contextlib.suppress(OSError):  # it may have ended in the meantime
                # "number (name) state parent group session ...", and the name may contain anything.
                state, _, _, owner = (entry / "stat").read_bytes().rpartition(b")")[2].split()[:4]
                if int(owner) == session and state not in (b"Z", b"X"):
                    found.append(int(entry.name))
        return found
    command = [shutil.which("ps") or "/bin/ps", "-A", "-o", "pid=,stat="]
    listing = subprocess.run(command, capture_output=True, text=True, check=True)  # noqa: S603  (no shell, no user input)
    for pid, status in (line.split() for line in listing.stdout.splitlines()):
        with contextlib.suppress(OSError):
            if os.getsid(int(pid)) == session and not status.startswith("Z"):
                found.append(int(pid))
    return found


if __name__ == "__main__":
    sys.exit(run(sys.argv[2:], [name for name in sys.argv[1].split(",") if name]))
