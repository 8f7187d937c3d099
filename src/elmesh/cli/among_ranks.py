"""``elmesh fit`` as one of many ranks: each reads its own tasks, and none sees another's rows."""

from __future__ import annotations

import os
import signal
import socket
import sys
import threading
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import quote

import numpy as np
import pandas as pd
import typer

from elmesh.cli.console import BAD_INPUT, INTERRUPTED, Output, StopRequest, check_writable, complain
from elmesh.cli.summary import summarise, tell_summary
from elmesh.cli.telling import Events, rank_output
from elmesh.cli.wish import Wish
from elmesh.comm.communicator import raise_on_all
from elmesh.comm.graph import make_topology
from elmesh.comm.mpi import Loss, MPICommunicator, world_communicator
from elmesh.errors import ElmeshError
from elmesh.run import check_alike, watch
from elmesh.run.placement import cut_edges, place_agents
from elmesh.tables import TableSchema, agree_schema, find_tasks
from elmesh.text import count, listed
from elmesh.version import __version__

__all__ = ["check_out", "fit_among_ranks"]


def fit_among_ranks(wish: Wish, *, events: bool, as_json: bool, quiet: bool) -> None:
    """Fit as one rank of the job that this process is part of, and save what is this rank's own.

    Parameters
    ----------
    wish
        What was asked for.
    events
        Whether a launcher listens.
    as_json, quiet
        As every command has them.
    """
    world = world_communicator()
    output = rank_output(world.rank, events, as_json, quiet)
    kept: list[int] = []
    world.on_loss(lambda loss: _tell_loss(output, loss, kept))
    try:
        # From the first to the last: a rank that does not know the signal dies of it.
        with _stop_on_signal() as request, output.warnings_as_notes(), world.working():
            stopped = _fit(wish, world, output, request, kept)
    except ElmeshError as error:
        # All ranks have come to the same end; one says so.
        if world.rank == 0:
            _complain(output, str(error))
        raise typer.Exit(BAD_INPUT) from None
    except MemoryError:
        _complain(output, f"There is not enough memory on rank {world.rank}; use more ranks or fewer hidden units.")
        world.abort(BAD_INPUT)
        raise
    except Exception:
        # This rank alone has failed, and the others would wait for it for ever.
        traceback.print_exc()
        world.abort(1)
        raise
    if stopped and not isinstance(output, Events):
        raise typer.Exit(INTERRUPTED)


def _fit(wish: Wish, world: MPICommunicator, output: Output, request: StopRequest, kept: list[int]) -> bool:
    """Fit, save and tell; return whether somebody asked to stop."""
    check_alike(world, {"version": __version__, **wish.fields()})
    if not isinstance(output, Events):
        output.say(_machines(world))
    frames, labels = _read(wish, world, output)
    kind, reason, schema = agree_schema(
        frames, wish.column, wish.target, wish.check_kind(), drop=wish.drop, communicator=world
    )
    with _all_or_none(world):
        encoded = [schema.encode(frame) for frame in frames.values()]
        X, tasks = np.concatenate([X for X, _ in encoded]), np.concatenate([tasks for _, tasks in encoded])
        y = np.concatenate([schema.targets(frame) for frame in frames.values()])
    model = wish.make_estimator(kind, X.shape[1])

    def have(k: int) -> None:
        kept[:] = [k]
        if isinstance(output, Events) and output.speaks:
            output.tell("checkpoint", round=k)

    with (
        output.progress("Fitting") as show,
        wish.keeping(output, have),
        watch(lambda step: show(step) or request.asked),
    ):
        model.fit(X, y, tasks=tasks)
    _save(wish, world, model, schema)
    summary = _summary(wish, world, model, schema, labels, len(X)) | {"kind_reason": reason}
    stopped = int(world.allreduce_sum(np.array([int(request.asked)]))[0]) > 0
    if stopped:
        output.note(f"Stopped after round {model.n_iter_}; the models so far are in {wish.out}.")
    for note in (note for notes in world.allgather(output.notes) for note in notes):
        output.note(note)
    if not isinstance(output, Events):
        tell_summary(output, summary)
    output.result(summary)
    return stopped


def _read(wish: Wish, world: MPICommunicator, output: Output) -> tuple[dict[str, pd.DataFrame], list[str]]:
    """Read this rank's tasks; return them, and the names of all."""
    with _all_or_none(world):
        if world.rank == 0 or not wish.gather:
            check_out(wish)
        wish.check_checkpoint()
        sources = find_tasks(wish.data, wish.task)
        wish.check_task()
    labels = _same_tasks(wish, world, list(sources))
    solver = wish.make_solver()
    topology = make_topology(solver.graph, labels, wish.seed)
    ranks = np.array(world.allgather(place_agents(topology, world.size).tolist())[0])
    sizes = np.bincount(ranks)
    each = f"{sizes.min()}" if sizes.min() == sizes.max() else f"{sizes.min()} to {sizes.max()}"
    output.say(
        f"{count(len(labels), 'task')} on {count(world.size, 'rank')}, {each} on each; "
        f"{cut_edges(topology, ranks)} of {count(len(topology.edges), 'edge')} between ranks."
    )
    with _all_or_none(world):
        mine = [label for label, rank in zip(labels, ranks.tolist(), strict=True) if rank == world.rank]
        return {label: sources[label].read() for label in mine}, labels


def _machines(world: MPICommunicator) -> str:
    """Say where ranks run and on how many cores; whoever started them has decided."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    everybody = world.allgather([socket.gethostname(), cores])
    machines, most = len({host for host, _ in everybody}), max(n for _, n in everybody)
    bound = "each bound to a core" if most == 1 else f"free to use {count(most, 'core')}"
    return f"{count(world.size, 'rank')} on {count(machines, 'machine')}, {bound}, one BLAS thread each."


def _same_tasks(wish: Wish, world: MPICommunicator, found: list[str]) -> list[str]:
    """Return the tasks, which all ranks must find alike."""
    everybody = world.allgather(found)
    union = sorted({label for labels in everybody for label in labels})
    for rank, labels in enumerate(everybody):
        missing = [label for label in union if label not in set(labels)]
        if missing:
            other = next(r for r, theirs in enumerate(everybody) if missing[0] in theirs)
            raise ElmeshError(
                f"Rank {rank} does not find {listed(missing)} in {wish.data}, which rank {other} does; all ranks need "
                "to see the same files."
            )
    return union


def check_out(wish: Wish) -> None:
    """Refuse an output folder that is in the way, before the work and not after it."""
    check_writable(wish.out, wish.force)
    if not wish.out.exists():
        return
    inside = list(wish.out.iterdir()) if wish.out.is_dir() else [wish.out]
    if wish.gather and inside and not (wish.out / "model.json").is_file():
        raise ElmeshError(f"{wish.out} is not an elmesh model, so it is not replaced; choose another name.")
    if not wish.gather and not all((entry / "model.json").is_file() for entry in inside):
        raise ElmeshError(f"{wish.out} is not a folder of models, so it is not replaced; choose another name.")


def _save(wish: Wish, world: MPICommunicator, model: Any, schema: TableSchema) -> None:
    """Save each task's model in a folder of its own, by the rank that has it; or all in one, if asked to."""
    extra = {"table": schema.to_json()}
    if wish.gather:
        whole = model.gather()
        with _all_or_none(world):
            if whole is not None:
                whole.save(wish.out, overwrite=wish.force, extra=extra)
        return
    with _all_or_none(world):
        for label in model.model_.heads:
            # A task may be called anything; its folder must not.
            name = quote(label, safe=" +,;=@") if label.strip(".") else quote(label.replace(".", "%2E"), safe="%")
            model.for_task(label).save(wish.out / name, overwrite=wish.force, extra=extra)


def _summary(
    wish: Wish, world: MPICommunicator, model: Any, schema: TableSchema, labels: list[str], rows: int
) -> dict[str, Any]:
    summary = summarise(model, schema, wish.solver, int(world.allreduce_sum(np.array([rows]))[0]))
    classes = None
    if schema.kind == "classification":
        classes = sorted({name for names in world.allgather(model.classes_.tolist()) for name in names})
    return summary | {"classes": classes, "tasks": labels, "ranks": world.size, "model": str(wish.out)}


@contextmanager
def _all_or_none(world: MPICommunicator) -> Iterator[None]:
    """Have what is wrong on one rank end all of them alike, in words."""
    with raise_on_all(world):
        try:
            yield
        except OSError as error:
            name = f" {error.filename}" if error.filename is not None else ""
            raise ElmeshError(f"Cannot read or write{name}: {(error.strerror or str(error)).lower()}.") from error


def _complain(output: Output, text: str) -> None:
    if isinstance(output, Events):
        output.tell("error", text=text, code=BAD_INPUT)
    else:
        complain(text)


def _tell_loss(output: Output, loss: Loss, kept: list[int]) -> None:
    newest = kept[0] if kept else None
    if isinstance(output, Events):
        output.tell("lost", rank=loss.rank, round=loss.round, how=loss.how, checkpoint=newest)
        return
    left = f" The checkpoint of round {newest} is good: the same command goes on from it." if newest is not None else ""
    sys.stderr.write(f"elmesh: {loss}{left}\n")
    sys.stderr.flush()


@contextmanager
def _stop_on_signal() -> Iterator[StopRequest]:
    """Have SIGUSR1, which mpiexec passes on to all ranks, stop the fit after a round."""
    request = StopRequest()
    if threading.current_thread() is not threading.main_thread():
        yield request
        return

    def handle(*_: object) -> None:
        request.asked = True

    before = signal.signal(signal.SIGUSR1, handle)
    try:
        yield request
    finally:
        signal.signal(signal.SIGUSR1, before)
