"""Trials, the log file of their results, and the processes that run them.

A trial is one random draw of one case of an experiment. Its numbers depend on its seed alone. Every finished trial is a
line of the log, so that an interrupted evaluation continues where it stopped. After a request to stop, the running
trials are finished and saved.

Workers use one BLAS thread, so that numbers do not depend on the number of cores. They ignore Ctrl-C, which a terminal
sends to all processes, and they exit when their parent does. ``joblib.Parallel`` would not do: it fetches trials ahead
and starts them even after a request to stop, drops finished results when a worker dies, and runs a single job in the
calling process.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import signal
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Executor, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, dataclass
from importlib.metadata import version
from multiprocessing import active_children, get_context, parent_process
from pathlib import Path
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

import elmesh
from elmesh.errors import ElmeshError
from elmesh.files import atomic_write

__all__ = [
    "Numbers", "Trial", "TrialLog", "code_fingerprint", "make_trials", "run_trials", "software_versions",
    "start_workers",
]  # fmt: skip

Numbers = dict[str, Any]

# Code that presents, requests, runs or saves trials does not change their numbers.
_NOT_FINGERPRINTED = (
    "cli", "report", "tables", "files.py", "paper/analysis", "paper/reproduction.py", "paper/trials.py",
)  # fmt: skip
# Seconds between checks of whether to stop.
_POLL_INTERVAL = 0.2


@dataclass(frozen=True)
class Trial:
    """One run (counted from 0) of one case of an experiment, such as a data set, with its random seed."""

    experiment: str
    case: str
    run: int
    seed: int


def make_trials(experiment: str, cases: Sequence[str], runs: int, seed: int) -> list[Trial]:
    """Return every case in every run, run by run; all cases of a run have the same seed."""
    seeds = [int(np.random.SeedSequence((seed, run)).generate_state(1)[0]) for run in range(runs)]
    return [Trial(experiment, case, run, run_seed) for run, run_seed in enumerate(seeds) for case in cases]


class TrialLog:
    """Finished trials on disk: a header line, then one line of JSON per trial.

    The file is created if it does not exist, and with ``fresh`` it is started again. A log of another seed or of
    another version of the software is refused, because its numbers must not be combined with new ones.
    """

    def __init__(self, path: Path, seed: int, *, fresh: bool = False, fingerprint: str | None = None) -> None:
        self._path = path
        header = {"elmesh": fingerprint or code_fingerprint(), "versions": software_versions(), "seed": seed}
        self._done: dict[Trial, Numbers] = {}
        if path.exists() and not fresh:
            first, *rest = path.read_text(encoding="utf-8").splitlines() or [""]
            self._check_header(_parse_header(first), header)
            # A line that a crash cut short is dropped, so its trial runs again.
            self._done = dict(filter(None, map(_parse_trial, rest)))
        lines = [json.dumps(header), *(_trial_line(trial, numbers) for trial, numbers in self._done.items())]
        path.parent.mkdir(parents=True, exist_ok=True)
        atomic_write(path, "".join(f"{line}\n" for line in lines).encode())

    def _check_header(self, found: Numbers, expected: Numbers) -> None:
        remedy = "choose another folder, or use --force to start again"
        if set(found) != set(expected):
            raise ElmeshError(f"{self._path} has no valid header of a trial log; {remedy}.")
        names = {"elmesh": "version of elmesh", "versions": "version of NumPy, SciPy or scikit-learn", "seed": "seed"}
        for key, name in names.items():
            if found[key] != expected[key]:
                raise ElmeshError(f"{self._path} contains trials of another {name}; {remedy}.")

    def __contains__(self, trial: Trial) -> bool:
        return trial in self._done

    def __getitem__(self, trial: Trial) -> Numbers:
        return self._done[trial]

    def add(self, trial: Trial, numbers: Numbers) -> None:
        """Append a finished trial."""
        line = _trial_line(trial, numbers)
        with self._path.open("a", encoding="utf-8") as file:
            file.write(line + "\n")
        # Parsed again, so that a resumed evaluation uses exactly the same numbers.
        self._done[trial] = json.loads(line)["numbers"]


def _trial_line(trial: Trial, numbers: Numbers) -> str:
    return json.dumps({"trial": asdict(trial), "numbers": numbers})


def _parse_header(line: str) -> Numbers:
    try:
        return dict(json.loads(line))
    except (TypeError, ValueError):
        return {}


def _parse_trial(line: str) -> tuple[Trial, Numbers] | None:
    try:
        entry = json.loads(line)
        return Trial(**entry["trial"]), dict(entry["numbers"])
    except (KeyError, TypeError, ValueError):
        return None


def software_versions() -> dict[str, str]:
    """Return the versions of Python and of the numerical libraries."""
    return {"python": platform.python_version()} | {name: version(name) for name in ("numpy", "scipy", "scikit-learn")}


def code_fingerprint(package: Path = Path(elmesh.__file__).parent) -> str:
    """Return a digest of the code that computes numbers, so that trials of different code are not combined."""
    skipped = [package / name for name in _NOT_FINGERPRINTED]
    digest = hashlib.sha256()
    for file in sorted(package.rglob("*.py")):
        if not any(file.is_relative_to(path) for path in skipped):
            digest.update(file.read_bytes())
    return digest.hexdigest()[:16]


@contextmanager
def start_workers(processes: int) -> Iterator[Executor]:
    """Start a pool of worker processes; if the body raises, kill them instead of waiting for their trials."""
    others = set(active_children())
    # Spawned, because a forked process can inherit locked locks of BLAS threads.
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn"), initializer=_initialize_worker) as pool:
        try:
            yield pool
        except BaseException:
            for child in set(active_children()) - others:
                child.kill()
            raise


def run_trials(
    trials: Iterable[Trial],
    measure: Callable[[Trial], Numbers],
    log: TrialLog,
    *,
    processes: int | None = None,
    on_trial: Callable[[Trial], object] = lambda trial: None,
    should_stop: Callable[[], bool] = lambda: False,
    workers: Callable[[int], AbstractContextManager[Executor]] = start_workers,
) -> dict[Trial, Numbers]:
    """Run the trials that are not in the log yet, and return the numbers of all of them, in order.

    ``measure`` maps a trial to its numbers; workers import it by name. ``on_trial`` is called after each trial that was
    run, and ``should_stop`` several times per second. If it returns True, running trials are finished and saved, and
    :class:`KeyboardInterrupt` is raised. The number of processes is by default the number of cores.
    """
    wanted = list(trials)
    waiting = deque(trial for trial in wanted if trial not in log)
    if waiting:
        slots = min(len(waiting), processes or _count_cores())
        with workers(slots) as pool:
            for trial, numbers in _finished_trials(waiting, measure, pool, slots, should_stop):
                log.add(trial, numbers)
                on_trial(trial)
    return {trial: log[trial] for trial in wanted}


def _finished_trials(
    waiting: deque[Trial],
    measure: Callable[[Trial], Numbers],
    pool: Executor,
    slots: int,
    should_stop: Callable[[], bool],
) -> Iterator[tuple[Trial, Numbers]]:
    running: dict[Future[Numbers], Trial] = {}
    error: BaseException | None = None
    while error is None and (running or (waiting and not should_stop())):
        # No more trials are submitted than can run, so that few have to be finished after a request to stop.
        while waiting and len(running) < slots and not should_stop():
            trial = waiting.popleft()
            with _interrupts_blocked():
                running[pool.submit(_measure_with_one_thread, measure, trial)] = trial
        for future in wait(running, timeout=_POLL_INTERVAL, return_when=FIRST_COMPLETED).done:
            trial = running.pop(future)
            if future.exception() is None:
                yield trial, future.result()
            else:
                error = future.exception()  # raised after the other finished trials are saved
    if isinstance(error, BrokenProcessPool):
        raise ElmeshError(
            "A worker process was killed during a trial, perhaps for lack of memory. Finished trials are saved: run "
            "the same command again to continue."
        ) from error
    if error is not None:
        raise error
    if waiting:
        raise KeyboardInterrupt


def _measure_with_one_thread(measure: Callable[[Trial], Numbers], trial: Trial) -> Numbers:
    with threadpool_limits(1):
        return measure(trial)


@contextmanager
def _interrupts_blocked() -> Iterator[None]:
    """Block Ctrl-C, so that processes started inside inherit the block and are not interrupted while they start."""
    if not hasattr(signal, "pthread_sigmask"):  # Windows
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _initialize_worker() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # Otherwise a worker whose parent was killed would wait for the next trial for ever.
    threading.Thread(target=_exit_with_parent, daemon=True).start()


def _exit_with_parent() -> None:
    if (parent := parent_process()) is not None:
        parent.join()
        os._exit(1)


def _count_cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
