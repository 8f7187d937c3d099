"""What the tests of the paper's evaluation run in other processes: those must find it by name."""

from __future__ import annotations

import os
import signal
import sys
import time
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from threadpoolctl import threadpool_info

from elmesh.paper.trials import Journal, Numbers, Trial, run_trials

PATIENCE = 60.0


class Inline:
    """A pool that is no other process: for what has nothing to do with processes."""

    def submit(self, function, *args):
        future: Future = Future()
        try:
            future.set_result(function(*args))
        except Exception as error:
            future.set_exception(error)
        return future


@contextmanager
def inline_pool(processes: int):
    """Stand in for the pool of processes."""
    yield Inline(), processes


def until(condition, what: str):
    """Ask now and then until the answer is true, and return it."""
    deadline = time.monotonic() + PATIENCE
    while not (answer := condition()):
        if time.monotonic() > deadline:
            raise TimeoutError(f"{what} did not happen within {PATIENCE} seconds")
        time.sleep(0.02)
    return answer


def alive(pid: int) -> bool:
    """Whether a process runs; one that ended and was not asked after yet does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def children(pid: int, doing: str) -> list[int]:
    """Return the processes that a process started, of those whose command line has a word in it."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            parent = int((entry / "stat").read_text().rsplit(")", 1)[1].split()[1])
            words = (entry / "cmdline").read_text()
        except OSError:  # it ended in the meantime
            continue
        if parent == pid and doing in words:
            found.append(int(entry.name))
    return found


# A trial's case is the folder where its measurement leaves marks.


def note(trial: Trial) -> Numbers:
    """Write down that it ran, and return numbers that many threads would sum in another order."""
    with (Path(trial.case) / "ran").open("a") as file:
        file.write(f"{trial.run}\n")
    X = np.random.default_rng(trial.seed).normal(size=(200, 200))
    return {"values": np.linalg.svd(X, compute_uv=False).tolist(), "some": {"text": "x", "none": None}}


def die_once(trial: Trial) -> Numbers:
    """Be killed in the middle of the third trial, the first time."""
    mark = Path(trial.case) / "killed"
    if trial.run == 2 and not mark.exists():
        mark.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return note(trial)


def hang(trial: Trial) -> Numbers:
    """Say who it is, and go on only when told to."""
    folder = Path(trial.case)
    (folder / f"{os.getpid()}.pid").touch()
    until((folder / "release").exists, "release")
    return note(trial)


def fail(trial: Trial) -> Numbers:
    """Fail in the second trial."""
    if trial.run == 1:
        raise ZeroDivisionError("of the measurement's own")
    return note(trial)


def surroundings(trial: Trial) -> Numbers:
    """Return how many threads each numerical library has, and what becomes of Ctrl-C."""
    np.linalg.eigh(np.eye(3))
    return {
        "threads": [library["num_threads"] for library in threadpool_info()],
        "ignores": signal.getsignal(signal.SIGINT) is signal.SIG_IGN,
    }


def main() -> None:
    """Run trials that hang, in a process of their own that can be killed."""
    folder = Path(sys.argv[1])
    trials = [Trial("t", str(folder), run, run) for run in range(4)]
    run_trials(trials, hang, Journal(folder / "trials.jsonl", 0), processes=2)


if __name__ == "__main__":
    main()
