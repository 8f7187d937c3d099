"""``elmesh agent``: one site of a network, from its own table to its own model."""

from __future__ import annotations

import contextlib
import hashlib
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import pandas as pd
import typer

from elmesh import MultiTaskELMClassifier, MultiTaskELMRegressor, netconfig
from elmesh.agent import Phase, Site, StatusFile
from elmesh.cli.console import INTERRUPTED, ForceOption, JsonOption, Output, QuietOption, check_writable, fail, plain
from elmesh.cli.logbook import Logbook, overhearing
from elmesh.cli.metrics import serving
from elmesh.cli.summary import summarise
from elmesh.comm.network.errors import PeerError, RefusedError, RegroupedError, StoppedError
from elmesh.errors import ElmeshError
from elmesh.math.certificate import Certificate
from elmesh.run import Progress, watch
from elmesh.tables import FILE_TASK, TableSchema, find_column, finite_numbers, read_table, whole_labels
from elmesh.text import count

if TYPE_CHECKING:
    from elmesh.netconfig.config import NetworkConfig
    from elmesh.netconfig.identity import Identity

__all__ = ["LOST", "REFUSED", "agent"]

#: Exit codes: a neighbour was lost, or has ended the run; a neighbour said what it must not.
LOST, REFUSED = 3, 4
# Days before its end from which on a certificate is worth a word, and seconds from one word on progress to the next.
_SOON, _PACE = 30, 10.0
# Rows a hidden unit below which what is sent tells of single rows (docs/security.md).
_TELLING = 10


def agent(
    agent: Annotated[Path, typer.Argument(metavar="AGENT", help="The agent's file, agent.toml.")],
    data: Annotated[Path, typer.Option(metavar="TABLE", help="This site's rows: a CSV or Parquet file.")],
    target: Annotated[list[str], typer.Option(metavar="COLUMN", help="Column to predict; several for a regression.")],
    out: Annotated[Path, typer.Option(help="Folder to save this site's model in.")],
    patience: Annotated[
        float, typer.Option(help="Seconds that a neighbour may be away before it is lost.", min=1.0)
    ] = 600.0,
    on_loss: Annotated[
        str, typer.Option(metavar="stop|continue", help="When a neighbour is lost: stop, or begin anew without it.")
    ] = "stop",
    on_bad: Annotated[
        str, typer.Option(metavar="stop|isolate", help="When a neighbour says what it must not: stop, or leave it out.")
    ] = "stop",
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Begin anew, whatever the journal holds; all sites must.")
    ] = False,
    log_json: Annotated[bool, typer.Option("--log-json", help="Log a JSON object a line.")] = False,
    metrics_port: Annotated[
        int | None,
        typer.Option(help="Port of this machine for Prometheus to read.", min=1, max=65535, show_default="none"),
    ] = None,
    force: ForceOption = False,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Run one site of a network: learn together with the others, and save this site's own model.

    The table stays here. What leaves is what the network file says under exchange: U_t and its round, or sums as well.

    An agent that is stopped or killed goes on where it was when the same command is given again; the others wait for
    it, for as long as their --patience. Exit codes: 0 done; 2 bad input; 3 a neighbour was lost or has ended the run; 4
    a neighbour was refused; 130 stopped by Ctrl-C.
    """
    for name, value, choices in (("loss", on_loss, ("stop", "continue")), ("bad", on_bad, ("stop", "isolate"))):
        if value not in choices:
            raise ElmeshError(f'--on-{name} must be {" or ".join(choices)}, not "{value}".')
    identity = netconfig.identity.Identity.read(agent)
    log = Logbook(identity.name, log_json, quiet)
    output = _Logged(as_json, quiet, log=log) if log_json else Output(as_json, quiet)
    with output.warnings_as_notes():
        frame = _read(data, identity, target)
        site = Site(identity, patience=patience, on_loss=on_loss, on_bad=on_bad, fresh=fresh, log=log)
        status = StatusFile(identity.state, site.look)
        with overhearing(log), site, contextlib.closing(status), serving(metrics_port, identity, status):
            try:
                with _stopping(site):
                    _run(site, status, frame, target, out, force, output, log)
            except StoppedError:
                status.phase = Phase.STOPPED
                output.note(f"Stopped at round {max(site.round, 0)}; the same command goes on from there.")
                raise typer.Exit(INTERRUPTED) from None
            except ElmeshError as error:
                status.phase, status.problem = Phase.FAILED, str(error)
                log("failed", reason=str(error))
                if isinstance(error, PeerError):
                    fail(str(error), REFUSED if isinstance(error, RefusedError) else LOST)
                raise


@dataclass(frozen=True)
class _Logged(Output):
    """Where words go when the log is in JSON: notes are part of it."""

    log: Logbook = field(kw_only=True)

    def note(self, text: str) -> None:
        """Log something worth a mention, once."""
        if text not in self.notes:
            self.notes.append(text)
            self.log("note", text=text)


def _run(
    site: Site,
    status: StatusFile,
    frame: pd.DataFrame,
    target: list[str],
    out: Path,
    force: bool,
    output: Output,
    log: Logbook,
) -> None:
    identity = site.identity
    config = identity.config
    # What a run that is gone on with has saved already is its own to replace.
    check_writable(out, force or (site.resumes and (out / "model.json").is_file()))
    site.open({"target": target, "out": str(out.absolute()), "data": _digest(frame)})
    log(
        "open",
        agent=identity.name,
        network=config.name,
        address=identity.address,
        neighbours=config.neighbors(identity.name),
        file=config.digest.hex(),
    )
    if identity.days_left() < _SOON:
        log("certificate", agent=identity.name, days=identity.days_left())
    _note_oddities(output, config, frame)
    if site.saved is not None and not (out / "model.json").is_file():
        raise ElmeshError(
            f"The model that this run has saved in {out} is gone; put it back, or begin anew with --fresh, here and at "
            "every other agent."
        )
    while True:
        try:
            summary = site.saved or _learn(site, status, frame, target, out, output, log)
            status.phase = Phase.STAYING
            log("saved", out=str(out))
            late = site.finish()
            break
        except (PeerError, RegroupedError) as trouble:
            site.carry_on(trouble)  # without some, from the start; or it raises
    if late:
        log("late", names=late)
    status.phase = Phase.ENDED
    summary |= {"without": sorted(site.gone), "late": late}
    _tell(output, summary)
    output.result(summary)


def _tell(output: Output, summary: dict[str, Any]) -> None:
    """Say how it went."""
    classes = "" if summary["classes"] is None else f" of {len(summary['classes'])} classes"
    columns, others = len(summary["columns"]), len(summary["tasks"]) - 1
    rows = f"{count(summary['rows'], 'row')} here, {count(columns, 'column')} once encoded"
    output.say(f"{summary['kind'].capitalize()}{classes}: {rows}; learned together with {count(others, 'other site')}.")
    rounds = f"{count(summary['rounds'], 'round')}, {summary['bytes'] / 1e6:.3g} MB sent from here"
    output.say(f"{summary['solver']} of rank {summary['rank']}: {rounds}.")
    if summary["certificate"] is not None:
        output.say(f"Certified {Certificate(**summary['certificate'])}.")
    output.say(f"Saved in {summary['model']}.")


def _learn(
    site: Site, status: StatusFile, frame: pd.DataFrame, target: list[str], out: Path, output: Output, log: Logbook
) -> dict[str, Any]:
    """Fit together with the others and save the model; return what there is to say of it."""
    config = site.identity.config
    schema = _schema(site, frame, target)
    X, tasks = schema.encode(frame)
    model = _estimator(config, X.shape[1])
    status.phase = Phase.FITTING
    with output.progress("Fitting") as show, site.hosting(), watch(_telling(show, status, log)):
        model.fit(X, schema.targets(frame), tasks=tasks)
    model.save(out, overwrite=out.exists(), extra={"table": schema.to_json()})
    summary = summarise(model, schema, config.solver, len(X)) | {"model": str(out)}
    summary |= {"command": "agent", "agent": site.name, "network": config.name, "file": config.digest.hex()}
    summary |= {"tasks": list(site.config.agent_names)}
    told: dict[str, Any] = plain(summary)
    site.conclude(told)
    return told


def _digest(frame: pd.DataFrame) -> str:
    """Return what a site's rows are told from others by."""
    return hashlib.sha256(pd.util.hash_pandas_object(frame, index=False).to_numpy().tobytes()).hexdigest()


def _estimator(config: NetworkConfig, n_columns: int) -> MultiTaskELMClassifier | MultiTaskELMRegressor:
    make = MultiTaskELMClassifier if config.kind == "classification" else MultiTaskELMRegressor
    return make(
        config.n_hidden,
        activation=config.activation,
        weight_scale=config.weight_scale_for(n_columns),
        solver=config.make_solver(),
        fit_intercept=config.fit_intercept,
        random_state=config.seed,
    )


def _read(data: Path, identity: Identity, target: list[str]) -> pd.DataFrame:
    """Read this site's rows; all of them are of its own task."""
    frame = read_table(data)
    for name in (*target, *(column.name for column in identity.config.columns)):
        find_column(frame, name)
    if len(frame) > identity.config.most_rows:
        raise ElmeshError(
            f"{data} has {len(frame):,} rows, and the network file says that no site has more than "
            f"{identity.config.most_rows:,}; neighbours would refuse what comes of it. Raise most_rows, everywhere."
        )
    return frame.assign(**{FILE_TASK: identity.name})


def _schema(site: Site, frame: pd.DataFrame, target: list[str]) -> TableSchema:
    """Say how the table becomes numbers: as the network file declares, or as all agents have agreed."""
    config = site.identity.config
    whole = config.kind == "classification" and whole_labels(frame, target[0])
    stats = {}
    if config.unscaled_columns:
        rows = {name: finite_numbers(frame, name) for name in config.unscaled_columns}
        stats = site.scale(config.unscaled_columns, {name: x[~np.isnan(x)] for name, x in rows.items()})
    return netconfig.schema.make_schema(config, FILE_TASK, target, whole, stats)


def _note_oddities(output: Output, config: NetworkConfig, frame: pd.DataFrame) -> None:
    """Mention what the network file did not expect of a column, and takes all the same; and what may be learned."""
    if len(frame) < _TELLING * config.n_hidden:
        output.note(
            f"With {count(len(frame), 'row')} and {config.n_hidden} hidden units a neighbour who wants to can work out "
            "much about these rows from what is sent; docs/security.md says how much, and what to do."
        )
    for column in config.columns:
        if column.is_numeric:
            values = finite_numbers(frame, column.name)
            missing = int(np.isnan(values).sum())
            if column.range is not None:
                least, most = column.range
                outside = int(np.sum((values < least) | (values > most)))
                if outside:
                    output.note(
                        f'Column "{column.name}": {outside} of {len(values)} values are outside the range '
                        f"{least:g} to {most:g} that the network file declares; they are taken as they are."
                    )
            if missing and not column.missing:
                output.note(
                    f'Column "{column.name}": {missing} of {len(values)} values are missing, which the network file '
                    "does not expect; they count as the middle of the range."
                )


def _telling(show: Any, status: StatusFile, log: Logbook) -> Any:
    last = time.monotonic()

    def tell(step: Progress) -> None:
        nonlocal last
        show(step)
        status.progress = step
        now = time.monotonic()
        if now - last >= _PACE:
            last = now
            log("round", round=step.round, rounds=step.max_iter, gap=step.consensus_gap)

    return tell


@contextlib.contextmanager
def _stopping(site: Site) -> Iterator[None]:
    """Have Ctrl-C, and a polite end by the system, stop the agent where its journal can go on; a second one aborts."""
    asked = False

    def handle(*_: object) -> None:
        nonlocal asked
        if asked:
            raise KeyboardInterrupt
        asked = True
        site.stop()

    before = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
