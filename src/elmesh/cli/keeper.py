"""A program that keeps another one, and sees to it that nothing of it lives on.

It leads a session, runs a command in it and ends with its exit code. A byte on standard input is passed on to the
command as SIGUSR1; the end of standard input ends the command, however the other side came to end: also when it was
killed. At the end whoever is left in the session is killed, be it stopped or deaf, and a folder for its files removed.

It imports nothing but the standard library and is run by its path: ``python -I -S keeper.py VARIABLES COMMAND...``.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

__all__ = ["PATIENCE", "keep", "kill_session", "members"]

# Seconds in which the command must end once told to, and the rest once killed.
PATIENCE = 5.0

_TICK = 0.05


def keep(command: Sequence[str], variables: Sequence[str]) -> int:
    """Run a command until it ends or standard input does.

    Parameters
    ----------
    command
        What to run.
    variables
        Those of its environment that are to name a folder of its own.

    Returns
    -------
    int
        Its exit code, or as a shell would tell of a signal.
    """
    memory = "/dev/shm"  # noqa: S108 - the folder in it is new and nobody else's
    base = memory if os.access(memory, os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="elmesh-", dir=base, ignore_cleanup_errors=True) as folder:
        environ = {**os.environ, **dict.fromkeys(variables, folder)}
        process = subprocess.Popen(command, env=environ, stdin=subprocess.DEVNULL)  # noqa: S603 - it is ours
        while process.poll() is None:
            if select.select([0], [], [], _TICK)[0]:
                if not os.read(0, 1):
                    process.terminate()
                    break
                process.send_signal(signal.SIGUSR1)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(PATIENCE)
        kill_session(os.getsid(0))
        code = process.wait()
    return code if code >= 0 else 128 - code


def kill_session(session: int) -> None:
    """Kill every process of a session but this one.

    Parameters
    ----------
    session
        Its number, which the kernel gives to nobody else as long as one of them lives.
    """
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end and (left := [pid for pid in members(session) if pid != os.getpid()]):
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(_TICK)


def members(session: int, processes: Path = Path("/proc")) -> list[int]:
    """Give the processes of a session that have not ended.

    Parameters
    ----------
    session
        Its number.
    processes
        Where the kernel tells of processes; if there is no such place, ``ps`` is asked.
    """
    found = []
    if (processes / "self").exists():
        for entry in processes.glob("[0-9]*"):
            with contextlib.suppress(OSError):  # it may have ended in the meantime
                # "number (name) state parent group session ...", and the name may be anything.
                state, _, _, owner = (entry / "stat").read_bytes().rpartition(b")")[2].split()[:4]
                if int(owner) == session and state not in (b"Z", b"X"):
                    found.append(int(entry.name))
        return found
    listing = subprocess.run(["ps", "-A", "-o", "pid=,stat="], capture_output=True, text=True, check=True)  # noqa: S607 - it is the system's own
    for pid, status in (line.split() for line in listing.stdout.splitlines()):
        with contextlib.suppress(OSError):
            if os.getsid(int(pid)) == session and not status.startswith("Z"):
                found.append(int(pid))
    return found


if __name__ == "__main__":
    sys.exit(keep(sys.argv[2:], [name for name in sys.argv[1].split(",") if name]))
