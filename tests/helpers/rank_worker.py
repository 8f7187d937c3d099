"""The program that ranks run in the tests of the command: the command itself, with faults injected.

========================================== ================================================================
``rank_worker.py FOLDER fit ...``          a rank of ``elmesh fit ...``
``rank_worker.py FOLDER``                  a rank of all commands in ``commands.json``, one after the other
``rank_worker.py launch FOLDER fit ...``   ``elmesh fit ...`` as the user runs it, whose ranks run the first
========================================== ================================================================

``faults.json`` in the folder has the shortest duration of a round, and a list of faults, one for each start of the
ranks: the rank, when and how. ``commands.json`` has the arguments of each command and, for single ranks, changes to it.
Every rank writes its process number to the folder, and for every command its output and the bytes it read.
"""

from __future__ import annotations

import contextlib
import functools
import io
import json
import os
import resource
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from elmesh.cli import fit, main, mpi_fit
from elmesh.comm.mpi import MPITransport
from elmesh.tables.dataset import TaskSource

rank = int(os.environ.get("OMPI_COMM_WORLD_RANK", "0"))


def launch(folder: Path) -> None:
    """Run the command that starts ranks."""
    fit.launch = functools.partial(fit.launch, program=(sys.executable, __file__, str(folder)))
    main()


# Faults


def inject(folder: Path) -> None:
    """Inject the fault of this start of the ranks."""
    plan: dict[str, Any] = {"round_seconds": 0.0, "faults": []}
    with contextlib.suppress(FileNotFoundError):
        plan |= json.loads((folder / "faults.json").read_text())
    # Every fault leaves a file before it takes effect.
    number = len(list(folder.glob("*.fault")))
    fault = plan["faults"][number] if number < len(plan["faults"]) else None
    own = fault if fault is not None and fault["rank"] == rank else None
    fail = functools.cache(lambda: _fail(folder / f"{number}.fault", own))
    when = None if own is None else own["when"]

    def at(k: int) -> None:
        time.sleep(plan["round_seconds"])
        if k >= 3:
            (folder / f"{rank}.in-rounds").touch()
        if isinstance(when, int) and k >= when:
            fail()

    _before(MPITransport, "start_metrics", lambda _, local, *__: at(local.round))
    if when == "reading":
        _before(TaskSource, "read", lambda *_: fail())
    if when == "saving":
        _after(mpi_fit, "save_models", fail)


def _fail(file: Path, fault: dict[str, Any]) -> None:
    def now() -> None:
        file.write_text(repr(time.monotonic()))
        if fault["how"] == "wait":
            threading.Event().wait()
        if fault["how"] == "no memory":
            raise MemoryError
        os.kill(os.getpid(), getattr(signal, fault["how"]))

    if fault.get("delay"):
        threading.Timer(fault["delay"], now).start()
    else:
        now()


def _before(where: Any, name: str, do: Callable[..., object]) -> None:
    """Have something done before each call of a function."""
    plain = getattr(where, name)

    @functools.wraps(plain)
    def wrapped(*args: Any) -> Any:
        do(*args)
        return plain(*args)

    setattr(where, name, wrapped)


def _after(where: Any, name: str, do: Callable[[], object]) -> None:
    """Have something done after each call of a function."""
    plain = getattr(where, name)

    @functools.wraps(plain)
    def wrapped(*args: Any) -> Any:
        result = plain(*args)
        do()
        return result

    setattr(where, name, wrapped)


# A rank of many commands


def run_all(folder: Path) -> None:
    """Run every command of the folder, and write its output."""
    os.chdir(folder)
    for name, command in json.loads((folder / "commands.json").read_text()).items():
        out, err = io.StringIO(), io.StringIO()
        own = command.get("ranks", {}).get(str(rank), {})
        sys.argv = ["elmesh", *command["arguments"], *own.get("arguments", [])]
        before = _bytes_read()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), _changed(own):
            code = _exit_code()
        result = {"code": code, "out": out.getvalue(), "err": err.getvalue(), "read": _bytes_read() - before}
        (folder / f"{name}-{rank}.json").write_text(json.dumps(result))


def _exit_code() -> object:
    try:
        main()
    except SystemExit as end:
        return end.code or 0
    return None  # main always exits


@contextlib.contextmanager
def _changed(own: dict[str, Any]) -> Iterator[None]:
    """Work in another folder, or with a disk that is full when models are saved, or be asked to stop."""
    here = Path.cwd()
    os.chdir(own.get("cwd", here))
    save, start_metrics, read = mpi_fit.save_models, MPITransport.start_metrics, TaskSource.read
    if "disk" in own:
        mpi_fit.save_models = functools.partial(_with_disk_of, own["disk"], save)
    if "stop" in own:
        steps = {
            "reading": (TaskSource, "read"),
            "rounds": (MPITransport, "start_metrics"),
            "saving": (mpi_fit, "save_models"),
        }
        _before(*steps[own["stop"]], lambda *_: os.kill(os.getpid(), signal.SIGUSR1))
    try:
        yield
    finally:
        os.chdir(here)
        mpi_fit.save_models, MPITransport.start_metrics, TaskSource.read = save, start_metrics, read


def _with_disk_of(size: int, save: Callable[..., None], *args: Any) -> None:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        save(*args)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def _bytes_read() -> int:
    """Return how many bytes this process has read from files, as the kernel counts them."""
    counts = dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())
    return int(counts["rchar"])


if __name__ == "__main__":
    if sys.argv[1] == "launch":
        where, sys.argv = Path(sys.argv[2]), ["elmesh", *sys.argv[3:]]
        launch(where)
    else:
        where, sys.argv = Path(sys.argv[1]), ["elmesh", *sys.argv[2:]]
        (where / f"{os.getpid()}.pid").write_text(str(os.getsid(0)))
        if sys.argv[1:]:
            inject(where)
            main()
        else:
            run_all(where)
