"""The processes that run trials.

The numbers of a trial (:mod:`elmesh.trial_log`) depend on its seed alone. After a request to stop, the running trials
are finished and saved.

Workers use one BLAS thread, so that numbers do not depend on the number of cores. They ignore Ctrl-C, which a terminal
sends to all processes, and they exit when their parent does. ``joblib.Parallel`` would not do: it fetches trials ahead
and starts them even after a request to stop, drops finished results when a worker dies, and runs a single job in the
calling process.
"""

from __future__ import annotations

import os
import signal
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Executor, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import AbstractContextManager, contextmanager
from multiprocessing import active_children, get_context, parent_process

import numpy as np
from threadpoolctl import threadpool_limits

from elmesh.errors import ElmeshError
from elmesh.trial_log import Numbers, Trial, TrialLog

__all__ = ["make_trials", "run_trials", "start_workers"]

# Seconds between checks of whether to stop.
_POLL_INTERVAL = 0.2


def make_trials(experiment: str, cases: Sequence[str], runs: int, seed: int) -> list[Trial]:
    """Return every case in every run, run by run; all cases of a run have the same seed."""
    seeds = [int(np.random.SeedSequence((seed, run)).generate_state(1)[0]) for run in range(runs)]
    return [Trial(experiment, case, run, run_seed) for run, run_seed in enumerate(seeds) for case in cases]


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
                log[trial] = numbers
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
