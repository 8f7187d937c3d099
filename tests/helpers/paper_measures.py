"""Measurements for the tests of the paper's evaluation; worker processes import them by name."""

from __future__ import annotations

import os
import signal
import sys
import time
from concurrent.futures import Executor, Future
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from threadpoolctl import threadpool_info

from elmesh.paper.trials import run_trials
from elmesh.trial_log import Numbers, Trial, TrialLog

PATIENCE = 300.0


class Inline(Executor):
    """An executor that runs everything in this process."""

    def submit(self, function, /, *args, **kwargs):
        future: Future = Future()
        try:
            future.set_result(function(*args, **kwargs))
        except Exception as error:
            future.set_exception(error)
        return future


@contextmanager
def inline_workers(processes: int):
    """Replace worker processes by this process."""
    yield Inline()


def until(condition, what: str, seconds: float = PATIENCE):
    """Wait until a condition is true, and return its value."""
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        if time.monotonic() > deadline:
            raise TimeoutError(f"{what} did not happen within {seconds} seconds")
        time.sleep(0.02)
    return value


def alive(pid: int) -> bool:
    """Return whether a process runs; a zombie does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def children(pid: int, doing: str) -> list[int]:
    """Return the child processes of a process whose command line contains a word."""
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


# The case of a trial is the folder where its measurement writes files.


def note(trial: Trial) -> Numbers:
    """Record that it ran, and return numbers that several threads would sum in another order."""
    with (Path(trial.case) / "ran").open("a") as file:
        file.write(f"{trial.run}\n")
    X = np.random.default_rng(trial.seed).normal(size=(200, 200))
    return {"values": np.linalg.svd(X, compute_uv=False).tolist(), "some": {"text": "x", "none": None}}


def die_once(trial: Trial) -> Numbers:
    """Get killed in the third trial, the first time."""
    mark = Path(trial.case) / "killed"
    if trial.run == 2 and not mark.exists():
        mark.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return note(trial)


def hang(trial: Trial) -> Numbers:
    """Write the process id, and wait for the file `release`."""
    folder = Path(trial.case)
    (folder / f"{os.getpid()}.pid").touch()
    until((folder / "release").exists, "release")
    return note(trial)


def fail(trial: Trial) -> Numbers:
    """Fail in the second trial."""
    if trial.run == 1:
        raise ZeroDivisionError("raised by the measurement")
    return note(trial)


def process_state(trial: Trial) -> Numbers:
    """Return the number of threads of each numerical library, and whether Ctrl-C is ignored."""
    np.linalg.eigh(np.eye(3))
    return {
        "threads": [library["num_threads"] for library in threadpool_info()],
        "ignores": signal.getsignal(signal.SIGINT) is signal.SIG_IGN,
    }


def main() -> None:
    """Run trials that hang, in a process that a test can kill."""
    folder = Path(sys.argv[1])
    trials = [Trial("t", str(folder), run, run) for run in range(4)]
    run_trials(trials, hang, TrialLog(folder / "trials.jsonl", 0), processes=2)


if __name__ == "__main__":
    main()
