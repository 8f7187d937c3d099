"""What ranks run in the tests of the command: the command itself, with something done to it.

========================================== ===============================================================
``rank_worker.py FOLDER fit ...``          a rank of ``elmesh fit ...``
``rank_worker.py FOLDER``                  a rank of all commands in ``commands.json``, one after the other
``rank_worker.py launch FOLDER fit ...``   ``elmesh fit ...`` as the user calls it, whose ranks run the first
========================================== ===============================================================

``plan.json`` in the folder says how long a round takes at least, and what befalls whom and when: a blow each time that
ranks are started. ``commands.json`` has words for each command and, if ranks are on other machines, where each works.
Every rank leaves its process number in the folder, and of every command what it said and how much it read.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
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

from elmesh.cli import among_ranks, main
from elmesh.comm.mpi.transport import MPILink
from elmesh.tables.task_sources import TaskSource

rank = int(os.environ.get("OMPI_COMM_WORLD_RANK", "0"))


def launch(folder: Path) -> None:
    """Be the command that starts ranks."""
    module = importlib.import_module("elmesh.cli.fit")  # elmesh.cli has a function of that name
    program = (sys.executable, __file__, str(folder))
    module.launch = functools.partial(module.launch, program=program)
    main()


# A rank that something befalls


def befall(folder: Path) -> None:
    """Have happen what the plan says."""
    plan: dict[str, Any] = {"pace": 0.0, "blows": []}
    with contextlib.suppress(FileNotFoundError):
        plan |= json.loads((folder / "plan.json").read_text())
    # Whoever was struck before has left a mark.
    struck = len(list(folder.glob("*.struck")))
    blow = plan["blows"][struck] if struck < len(plan["blows"]) else None
    mine = blow if blow is not None and blow["rank"] == rank else None
    strike = functools.cache(lambda: _strike(folder / f"{struck}.struck", mine))
    when = None if mine is None else mine["when"]

    def at(k: int) -> None:
        time.sleep(plan["pace"])
        if k >= 3:
            (folder / f"{rank}.begun").touch()
        if isinstance(when, int) and k >= when:
            strike()

    _before(MPILink, "follow", lambda link, report, *_: at(report.round))
    if when == "reading":
        _before(TaskSource, "read", lambda *_: strike())
    if when == "saving":
        _after(among_ranks, "_save", strike)


def _strike(mark: Path, blow: dict[str, Any]) -> None:
    def now() -> None:
        mark.write_text(repr(time.monotonic()))
        if blow["how"] == "wait":
            threading.Event().wait()
        if blow["how"] == "no memory":
            raise MemoryError
        os.kill(os.getpid(), getattr(signal, blow["how"]))

    if blow.get("delay"):
        threading.Timer(blow["delay"], now).start()
    else:
        now()


def _before(where: Any, name: str, do: Callable[..., object]) -> None:
    plain = getattr(where, name)

    @functools.wraps(plain)
    def instead(*args: Any) -> Any:
        do(*args)
        return plain(*args)

    setattr(where, name, instead)


def _after(where: Any, name: str, do: Callable[[], object]) -> None:
    plain = getattr(where, name)

    @functools.wraps(plain)
    def instead(*args: Any) -> Any:
        answer = plain(*args)
        do()
        return answer

    setattr(where, name, instead)


# A rank of many commands


def run_all(folder: Path) -> None:
    """Run every command in that folder, and write down how it went."""
    os.chdir(folder)
    for name, command in json.loads((folder / "commands.json").read_text()).items():
        out, err = io.StringIO(), io.StringIO()
        own = command.get("ranks", {}).get(str(rank), {})
        sys.argv = ["elmesh", *command["words"], *own.get("words", [])]
        before = _bytes_read()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), _placed(own):
            code = _code()
        notes = {"code": code, "out": out.getvalue(), "err": err.getvalue(), "read": _bytes_read() - before}
        (folder / f"{name}-{rank}.json").write_text(json.dumps(notes))


def _code() -> object:
    try:
        main()
    except SystemExit as end:
        return end.code or 0
    return None  # it always ends so


@contextlib.contextmanager
def _placed(own: dict[str, Any]) -> Iterator[None]:
    """Be on a machine of another folder, or of a disk that is full when models are saved; or be asked to stop."""
    here = Path.cwd()
    os.chdir(own.get("cwd", here))
    save, follow = among_ranks._save, MPILink.follow
    if "disk" in own:
        among_ranks._save = functools.partial(_with_disk_of, own["disk"], save)
    if "stop" in own:
        where, name = {"rounds": (MPILink, "follow"), "saving": (among_ranks, "_save")}[own["stop"]]
        _before(where, name, lambda *_: os.kill(os.getpid(), signal.SIGUSR1))
    try:
        yield
    finally:
        os.chdir(here)
        among_ranks._save, MPILink.follow = save, follow


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
            befall(where)
            main()
        else:
            run_all(where)
