"""Run many independent trials over processes, and never run one twice.

A trial is a piece of an experiment that gives numbers: one random draw, usually. Trials run in parallel processes with
one BLAS thread each. Each finished one is a line in a journal, so that an interrupted run goes on where it was. A
trial's numbers depend on its seed alone, not on the number of processes nor on what ran before.
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
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import cache
from importlib import resources
from importlib.metadata import version
from multiprocessing import active_children, get_context, parent_process
from pathlib import Path
from typing import Any

import numpy as np

from elmesh.errors import ElmeshError

__all__ = ["Journal", "Numbers", "Trial", "Trials", "repeat", "run_trials", "versions"]

Numbers = dict[str, Any]

# Seconds between looks at whether to stop.
_PATIENCE = 0.2
_THREADS = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS")


@dataclass(frozen=True)
class Trial:
    """One piece of an experiment.

    Parameters
    ----------
    experiment : str
        Which experiment.
    case : str
        Which part of it: a data set, a panel.
    run : int
        Which repetition, counted from 0.
    seed : int
        What its randomness comes from.
    """

    experiment: str
    case: str
    run: int
    seed: int


@dataclass(frozen=True)
class Trials:
    """Finished trials with their numbers, in order."""

    done: Sequence[tuple[Trial, Numbers]]

    def of(self, case: str) -> list[Numbers]:
        """Return the numbers of one case, run by run."""
        return [numbers for trial, numbers in self.done if trial.case == case]


def repeat(experiment: str, cases: Sequence[str], runs: int, seed: int) -> list[Trial]:
    """Return every case in every run, run by run; a run has the same seed in all cases."""
    seeds = [int(np.random.SeedSequence((seed, run)).generate_state(1)[0]) for run in range(runs)]
    return [Trial(experiment, case, run, own) for run, own in enumerate(seeds) for case in cases]


class Journal:
    """Finished trials on disk: one JSON object a line, the first line saying what they are trials of.

    Parameters
    ----------
    path : Path
        The file; made if it is not there.
    seed : int
        The run's seed. A journal of another seed, or of another version of this package, is refused: its numbers do
        not belong with the ones to come.
    fresh : bool
        Whether to begin anew whatever is there.
    """

    def __init__(self, path: Path, seed: int, *, fresh: bool = False) -> None:
        self._path = path
        head = {"elmesh": _fingerprint(), "versions": versions(), "seed": seed}
        self._done: dict[Trial, Numbers] = {}
        if path.exists() and not fresh:
            first, *rest = path.read_text(encoding="utf-8").splitlines() or [""]
            self._check(_parsed(first), head)
            # A line cut short by a crash was never finished: its trial runs again.
            self._done = dict(filter(None, map(_finished, rest)))
        lines = [head, *({"trial": asdict(trial), "numbers": numbers} for trial, numbers in self._done.items())]
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_suffix(".part")
        part.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
        part.replace(path)

    def _check(self, found: Numbers, expected: Numbers) -> None:
        remedy = "choose another folder, or give --force to begin anew"
        if set(found) != set(expected):
            raise ElmeshError(f"{self._path} does not begin as a journal of trials does; {remedy}.")
        if found != expected:
            named = {
                "elmesh": "version of elmesh",
                "versions": "version of NumPy, SciPy or scikit-learn",
                "seed": "seed",
            }
            what = next(named[key] for key in expected if found[key] != expected[key])
            raise ElmeshError(f"{self._path} holds trials of another {what}; {remedy}.")

    def __contains__(self, trial: Trial) -> bool:
        return trial in self._done

    def __getitem__(self, trial: Trial) -> Numbers:
        return self._done[trial]

    def add(self, trial: Trial, numbers: Numbers) -> None:
        """Write a finished trial down."""
        text = json.dumps({"trial": asdict(trial), "numbers": numbers})
        with self._path.open("a", encoding="utf-8") as file:
            file.write(text + "\n")
        # As read back, so that a resumed run computes with the same numbers.
        self._done[trial] = json.loads(text)["numbers"]


def run_trials(
    trials: Iterable[Trial],
    measure: Callable[[Trial], Numbers],
    journal: Journal,
    *,
    processes: int | None = None,
    advance: Callable[[Trial], object] = lambda trial: None,
    stopping: Callable[[], bool] = lambda: False,
) -> Trials:
    """Run the trials that the journal does not have yet, and return all of them.

    Parameters
    ----------
    trials : iterable of Trial
        What to run.
    measure : callable
        From a trial to its numbers; a function at the top level of a module, since processes must find it.
    journal : Journal
        Where finished trials are kept.
    processes : int, optional
        How many at a time; as many as there are cores by default.
    advance : callable
        Called after each trial that was run.
    stopping : callable
        Asked now and then whether to stop. Trials that are running then are finished and kept, and
        :class:`KeyboardInterrupt` is raised.

    Returns
    -------
    Trials
        In the order asked for.
    """
    wanted = list(trials)
    missing = [trial for trial in wanted if trial not in journal]
    if missing:
        with _pool(min(len(missing), processes or _cores())) as (pool, width):
            _work_through(missing, measure, pool, width, journal, advance, stopping)
    return Trials([(trial, journal[trial]) for trial in wanted])


def _work_through(
    trials: Sequence[Trial],
    measure: Callable[[Trial], Numbers],
    pool: ProcessPoolExecutor,
    width: int,
    journal: Journal,
    advance: Callable[[Trial], object],
    stopping: Callable[[], bool],
) -> None:
    # Only as many are handed out as can run, so that there are few to wait for when it is to stop.
    waiting, running = deque(trials), dict[Future[Numbers], Trial]()
    broken: BaseException | None = None
    while broken is None and (running or (waiting and not stopping())):
        while waiting and len(running) < width and not stopping():
            trial = waiting.popleft()
            with _deaf_to_interrupts():
                running[pool.submit(measure, trial)] = trial
        for future in wait(running, timeout=_PATIENCE, return_when=FIRST_COMPLETED).done:
            trial = running.pop(future)
            # One that died must not take with it what the others have finished.
            if (error := future.exception()) is not None:
                broken = error
                continue
            journal.add(trial, future.result())
            advance(trial)
    if isinstance(broken, BrokenProcessPool):
        raise ElmeshError(
            "A process died in the middle of a trial, perhaps for want of memory. What was finished is kept: the same "
            "command goes on from there."
        ) from broken
    if broken is not None:
        raise broken
    if waiting:
        raise KeyboardInterrupt


@contextmanager
def _pool(processes: int) -> Iterator[tuple[ProcessPoolExecutor, int]]:
    # Fresh processes, not forks: BLAS reads its number of threads when it is loaded.
    before = {name: os.environ.get(name) for name in _THREADS}
    os.environ.update(dict.fromkeys(_THREADS, "1"))
    others = set(active_children())
    pool = ProcessPoolExecutor(processes, mp_context=get_context("spawn"), initializer=_prepare_worker)
    try:
        yield pool, processes
    except BaseException:
        # Whoever aborts does not want to wait for the trials under way.
        for child in set(active_children()) - others:
            child.kill()
        raise
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


@contextmanager
def _deaf_to_interrupts() -> Iterator[None]:
    """Have processes that are started inside begin deaf to Ctrl-C, which reaches the whole process group."""
    if not hasattr(signal, "pthread_sigmask"):  # Windows has none
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _prepare_worker() -> None:
    # The parent decides what becomes of a Ctrl-C.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if (parent := parent_process()) is not None:
        threading.Thread(target=_follow, args=(parent.join,), daemon=True).start()


def _follow(until_parent_ends: Callable[[], object]) -> None:
    # A parent that is killed tells nobody, and a worker would wait for its next trial for ever.
    until_parent_ends()
    os._exit(1)


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _parsed(line: str) -> Numbers:
    try:
        value = json.loads(line)
    except json.JSONDecodeError:
        return {}
    return value if isinstance(value, dict) else {}


def _finished(line: str) -> tuple[Trial, Numbers] | None:
    """Read a line of the journal; None if it is not a whole one."""
    try:
        entry = _parsed(line)
        return Trial(**entry["trial"]), dict(entry["numbers"])
    except (KeyError, TypeError, ValueError):
        return None


def versions() -> dict[str, str]:
    """Return the versions of what numbers are computed with."""
    return {"python": platform.python_version()} | {name: version(name) for name in ("numpy", "scipy", "scikit-learn")}


@cache
def _fingerprint() -> str:
    """Return a digest of the code that numbers come from: trials of other code must not be mixed with these."""
    root = Path(str(resources.files("elmesh")))
    # What draws, words, asks for and keeps numbers does not change them.
    paper = root / "paper"
    others = [root / "cli", root / "report", root / "tables", paper / "findings", paper / "reproduction.py"]
    others.append(Path(__file__))
    digest = hashlib.sha256()
    for file in sorted(root.rglob("*.py")):
        if not any(file.is_relative_to(folder) for folder in others):
            digest.update(file.read_bytes())
    return digest.hexdigest()[:16]
