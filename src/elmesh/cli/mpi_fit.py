"""``elmesh fit`` as one rank of an MPI job: each rank reads its own tasks, and no rows of another."""

from __future__ import annotations

import os
import signal
import socket
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import quote

import numpy as np
import pandas as pd
import typer

from elmesh.cli.console import Output, check_model_folder, check_writable
from elmesh.cli.errors import BAD_INPUT, INTERRUPTED, describe_os_error, print_error
from elmesh.cli.events import EventOutput, rank_output
from elmesh.cli.fit_options import FitOptions, check_kind
from elmesh.cli.signals import StopRequest, handle_signals
from elmesh.cli.summary import print_fit, summarize
from elmesh.comm.communicator import raise_on_all
from elmesh.comm.graph import make_topology
from elmesh.comm.mpi import MPICommunicator, RankFailure, world_communicator
from elmesh.errors import ElmeshError
from elmesh.run import MPIBackend, RunConfig
from elmesh.run.backend import check_consistent
from elmesh.run.placement import cut_edges, place_agents
from elmesh.tables import agree_targets, find_tasks, read_targets
from elmesh.tables.access import check_same_columns
from elmesh.tables.columns import concat_tables
from elmesh.text import count, listed
from elmesh.version import __version__

__all__ = ["check_output_folder", "fit_on_rank", "save_models"]


def fit_on_rank(options: FitOptions) -> None:
    """Fit as one rank of the job that this process is part of, and save this rank's models."""
    world = world_communicator()
    output = rank_output(world.rank, options.events, options.as_json, options.quiet)
    checkpoints: list[int] = []  # the round of the last one
    request = StopRequest()
    world.on_failure(lambda failure: _report_failure(output, failure, checkpoints))
    try:
        # From the first line to the last: without a handler the signal would end the rank.
        with handle_signals(request.ask, signal.SIGUSR1), output.warnings_as_notes(), world.monitored():
            stopped = _fit(options, world, output, request, checkpoints)
    except ElmeshError as error:
        # All ranks raise the same error; one prints it.
        if world.rank == 0:
            _report_error(output, str(error))
        raise typer.Exit(BAD_INPUT) from None
    except MemoryError:
        _report_error(output, f"There is not enough memory on rank {world.rank}; use more ranks or fewer hidden units.")
        world.abort(BAD_INPUT)
        raise
    except Exception:
        # Only this rank has failed, and the others would wait for it for ever.
        traceback.print_exc()
        world.abort(1)
        raise
    if stopped and not isinstance(output, EventOutput):
        raise typer.Exit(INTERRUPTED)


def _fit(
    options: FitOptions, world: MPICommunicator, output: Output, request: StopRequest, checkpoints: list[int]
) -> bool:
    """Fit, save and report; return whether any rank was asked to stop."""
    check_consistent(world, {"version": __version__, **options.by_option()})
    if not isinstance(output, EventOutput):
        output.print(_describe_machines(world))
    frames, labels = _read_own_tasks(options, world, output)
    with _sentence_on_all(world):
        inputs = {task: options.inputs(frame) for task, frame in frames.items()}
    kind, reason, whole = agree_targets(frames, options.target, check_kind(options.kind), communicator=world)
    with _sentence_on_all(world):
        columns = check_same_columns(
            "Every task must have the same columns",
            {f'task "{task}"': [str(name) for name in frame.columns] for task, frame in inputs.items()},
        )
        X = concat_tables(list(inputs.values()), columns).set_axis(
            pd.concat([frame[[]] for frame in inputs.values()]).index
        )
        y = pd.concat([read_targets(frame, options.target, kind, whole) for frame in frames.values()])
        weights = [own for frame in frames.values() if (own := options.weights(frame)) is not None]
        sample_weight = np.concatenate(weights) if weights else None
    model = options.make_estimator(kind)
    options.note_unused(output)

    def on_checkpoint(k: int) -> None:
        checkpoints[:] = [k]
        if isinstance(output, EventOutput) and output.reports:
            output.emit("checkpoint", round=k)

    with output.progress("Fitting") as show:
        backend = MPIBackend(world, mask=options.mask)
        run = options.run_config(output, lambda step: show(step) or request.asked, backend, on_checkpoint)
        model.fit(X, y if len(options.target) > 1 else y.iloc[:, 0], sample_weight=sample_weight, run=run)
    save_models(options, world, model)
    summary = _summarize(options, world, model, labels, len(X)) | {"kind_reason": reason}
    stopped = int(world.allreduce_sum(np.array([int(request.asked)]))[0]) > 0
    if stopped:
        output.note(f"Stopped after round {model.n_iter_}; the models so far are in {options.out}.")
    for note in (note for notes in world.allgather(output.notes) for note in notes):
        output.note(note)
    if not isinstance(output, EventOutput):
        print_fit(output, summary)
    output.result(summary)
    return stopped


def _read_own_tasks(
    options: FitOptions, world: MPICommunicator, output: Output
) -> tuple[dict[str, pd.DataFrame], list[str]]:
    """Return the tables of this rank's tasks, and the names of all tasks."""
    with _sentence_on_all(world):
        if world.rank == 0 or not options.gather:
            check_output_folder(options)
        options.check_checkpoint()
        sources = find_tasks(options.data, options.task, csv_format=options.csv_format)
        options.check_task()
    labels = _agree_on_tasks(options, world, list(sources))
    solver = options.make_solver()
    MPIBackend(world, mask=options.mask).check(solver)
    topology = make_topology(solver.graph if solver.distributed else "path", labels, options.seed)
    ranks = np.array(world.allgather(place_agents(topology, world.size).tolist())[0])
    sizes = np.bincount(ranks)
    each = f"{sizes.min()}" if sizes.min() == sizes.max() else f"{sizes.min()} to {sizes.max()}"
    between = f"; {cut_edges(topology, ranks)} of {count(len(topology.edges), 'edge')} between ranks"
    output.print(
        f"{count(len(labels), 'task')} on {count(world.size, 'rank')}, {each} on each"
        f"{between if solver.distributed else ''}."
    )
    with _sentence_on_all(world):
        own = [label for label, rank in zip(labels, ranks.tolist(), strict=True) if rank == world.rank]
        return {label: sources[label].read() for label in own}, labels


def _describe_machines(world: MPICommunicator) -> str:
    """Return where ranks run, and on how many cores."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    by_rank = world.allgather([socket.gethostname(), cores])
    machines, most = len({host for host, _ in by_rank}), max(n for _, n in by_rank)
    bound = "each bound to a core" if most == 1 else f"free to use {count(most, 'core')}"
    return f"{count(world.size, 'rank')} on {count(machines, 'machine')}, {bound}, one BLAS thread each."


def _agree_on_tasks(options: FitOptions, world: MPICommunicator, found: list[str]) -> list[str]:
    """Return the tasks; raise unless all ranks find the same."""
    by_rank = world.allgather(found)
    union = sorted({label for labels in by_rank for label in labels})
    for rank, labels in enumerate(by_rank):
        missing = [label for label in union if label not in set(labels)]
        if missing:
            other = next(r for r, theirs in enumerate(by_rank) if missing[0] in theirs)
            raise ElmeshError(
                f"Rank {rank} does not find {listed(missing)} in {options.data}, which rank {other} does; all ranks "
                "need to see the same files."
            )
    return union


def check_output_folder(options: FitOptions) -> None:
    """Raise if models cannot be saved in the output folder: before the work."""
    out = options.out
    if options.gather:
        check_model_folder(out, options.force)
        return
    check_writable(out, options.force)
    inside = [] if not out.exists() else list(out.iterdir()) if out.is_dir() else [out]
    if not all((entry / "model.json").is_file() for entry in inside):
        raise ElmeshError(f"{out} is not a folder of models, so it is not replaced; choose another name.")


def save_models(options: FitOptions, world: MPICommunicator, model: Any) -> None:
    """Save the model of each own task in a folder of its own, or with --gather one model of all tasks at rank 0."""
    if options.gather:
        whole = model.gather(RunConfig(MPIBackend(world)))
        with _sentence_on_all(world):
            if whole is not None:
                whole.save(options.out, overwrite=options.force)
        return
    with _sentence_on_all(world):
        for label in model.model_.heads:
            # A task may have any name, a folder may not.
            name = quote(label, safe=" +,;=@") if label.strip(".") else quote(label.replace(".", "%2E"), safe="%")
            model.for_task(label).save(options.out / name, overwrite=options.force)


def _summarize(options: FitOptions, world: MPICommunicator, model: Any, labels: list[str], rows: int) -> dict[str, Any]:
    summary = summarize(model, int(world.allreduce_sum(np.array([rows]))[0]))
    classes = None
    if summary["kind"] == "classification":
        classes = sorted({name for names in world.allgather(model.classes_.tolist()) for name in names})
    noise = summary["noise"]
    if noise is not None:
        noise = dict(sorted(pair for part in world.allgather(noise) for pair in part.items()))
    return summary | {
        "noise": noise,
        "classes": classes,
        "tasks": labels,
        "ranks": world.size,
        "model": str(options.out),
    }


@contextmanager
def _sentence_on_all(world: MPICommunicator) -> Iterator[None]:
    """Raise an error of one rank in all of them, as a sentence."""
    with raise_on_all(world):
        try:
            yield
        except OSError as error:
            raise ElmeshError(describe_os_error(error)) from error


def _report_error(output: Output, text: str) -> None:
    if isinstance(output, EventOutput):
        output.emit("error", text=text, code=BAD_INPUT)
    else:
        print_error(text)


def _report_failure(output: Output, failure: RankFailure, checkpoints: list[int]) -> None:
    newest = checkpoints[0] if checkpoints else None
    if isinstance(output, EventOutput):
        output.emit("lost", rank=failure.rank, round=failure.round, how=failure.how, checkpoint=newest)
        return
    resume = f" The same command resumes from the checkpoint of round {newest}." if newest is not None else ""
    sys.stderr.write(f"elmesh: {failure}{resume}\n")
    sys.stderr.flush()
