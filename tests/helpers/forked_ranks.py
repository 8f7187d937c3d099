"""Ranks and scripts that start at once: forked from a process that has imported everything already.

Open MPI knows a rank by its environment. So mpiexec starts a small process for each rank, ``forked_ranks.py SOCKET
PROGRAM ...``, which gives its environment and its streams to a forked process, and ends as that process ends.
"""

from __future__ import annotations

import atexit
import contextlib
import importlib
import json
import os
import runpy
import signal
import socket
import sys
import threading
from collections.abc import Sequence
from typing import NoReturn


def give_place(path: str, arguments: Sequence[str]) -> NoReturn:
    """Let a forked process be the rank that mpiexec started this process as; end when it ends, or it with this one."""
    with socket.socket(socket.AF_UNIX) as fork:
        fork.connect(path)
        job = {"environ": dict(os.environ), "folder": os.getcwd(), "arguments": arguments}
        socket.send_fds(fork, [b"."], [1, 2])
        fork.sendall(json.dumps(job).encode() + b"\n")
        code = int(fork.recv(8))
    if code < 0:
        signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    sys.exit(code)


def fork_ranks(server: socket.socket, n_ranks: int, modules: Sequence[str]) -> None:
    """Fork a rank for each process that asks for one; import before what all of them need."""
    for name in modules:
        importlib.import_module(name)
    places: dict[int, socket.socket] = {}
    for _ in range(n_ranks):
        place, _ = server.accept()
        rank = os.fork()
        if rank == 0:
            _be_rank(place)
        places[rank] = place
    for _ in range(n_ranks):
        rank, status = os.wait()
        with contextlib.suppress(ConnectionError):  # mpiexec has ended the process in whose place it was
            places[rank].sendall(str(os.waitstatus_to_exitcode(status)).encode())


def _be_rank(place: socket.socket) -> NoReturn:
    _, streams, _, _ = socket.recv_fds(place, 1, 2)
    job = json.loads(place.makefile("rb").readline())
    # Tests end what is left of the session of a rank.
    os.setsid()
    os.environ.clear()
    os.environ.update(job["environ"])
    threading.Thread(target=_end_with, args=(place,), daemon=True).start()
    code = _run_program(job["arguments"], job["folder"], streams)
    from mpi4py import MPI  # it starts MPI, which needs the environment

    MPI.Finalize()
    os._exit(code)


def _end_with(place: socket.socket) -> None:
    """End this process when the one whose place it has is ended."""
    place.recv(1)
    os._exit(1)


def run_program(arguments: Sequence[str], folder: str, out: str) -> NoReturn:
    """Run a script with its arguments as ``python`` does, in a new process; its output goes to a file."""
    stream = os.open(out, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    sys.exit(_run_program(arguments, folder, (stream, stream)))


def _run_program(arguments: Sequence[str], folder: str, streams: Sequence[int]) -> int:
    """Run a script as the main program of this process, and return its exit code."""
    os.chdir(folder)
    for number, stream in zip((1, 2), streams, strict=True):
        os.dup2(stream, number)
    sys.argv, code = list(arguments), 0
    try:
        runpy.run_path(arguments[0], run_name="__main__")
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        sys.excepthook(*sys.exc_info())
        code = 1
    # A forked process would end without them.
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    return code


if __name__ == "__main__":
    give_place(sys.argv[1], sys.argv[2:])
