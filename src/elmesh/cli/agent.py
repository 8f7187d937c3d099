"""``elmesh agent``: one site of a network, from its own table to its own model."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import typer

from elmesh.agent import AgentResult, NetworkAgent, status_file
from elmesh.agent.schedule import Schedule, make_schedule
from elmesh.agent.site_data import exchange_caution, load_table, table_cautions
from elmesh.cli.console import (
    AgentArgument,
    ForceOption,
    JsonOption,
    LogJsonOption,
    Output,
    QuietOption,
    at_intervals,
    check_model_folder,
)
from elmesh.cli.errors import INTERRUPTED, LOST, REFUSED, check_option, fail
from elmesh.cli.event_log import EventLog, capture_zenoh_log
from elmesh.cli.metrics import serve_metrics
from elmesh.cli.network_confirm import ask_on_terminal
from elmesh.cli.scheduled_runs import ScheduledRuns
from elmesh.cli.signals import act_on_signal
from elmesh.cli.summary import print_own_gain, print_result, problem
from elmesh.comm.network.errors import PeerError, RefusedError, StoppedError
from elmesh.errors import ElmeshError
from elmesh.netconfig.expiry import expiry_sentences
from elmesh.netconfig.identity import Identity
from elmesh.run import Progress
from elmesh.text import count

__all__ = ["agent"]

_LOG_INTERVAL = 10.0  # seconds between log entries about rounds


def agent(
    agent: AgentArgument,
    data: Annotated[Path, typer.Option(metavar="TABLE", help="This site's rows: a CSV or Parquet file.")],
    target: Annotated[list[str], typer.Option(metavar="COLUMN", help="Column to predict; several for a regression.")],
    out: Annotated[Path, typer.Option(help="Folder to save this site's model in.")],
    patience: Annotated[
        float, typer.Option(help="Seconds that a neighbour may be absent before it is lost.", min=1.0)
    ] = 600.0,
    on_loss: Annotated[
        str, typer.Option(metavar="stop|continue", help="On the loss of a neighbour: stop, or start again without it.")
    ] = "stop",
    on_bad: Annotated[
        str,
        typer.Option(
            metavar="stop|isolate",
            help="On an invalid message: stop, or start again without its sender, and without whom others evict.",
        ),
    ] = "stop",
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Start again, whatever the checkpoint holds; all sites must.")
    ] = False,
    release_again: Annotated[
        bool,
        typer.Option(
            "--release-again",
            help="Release totals although earlier ones, of other rows or nearly the same sites, differ by little.",
        ),
    ] = False,
    every: Annotated[
        str | None,
        typer.Option(
            metavar="INTERVAL", help="Run again at this interval, such as 24h or 30m.", show_default="one run, now"
        ),
    ] = None,
    at: Annotated[
        str | None,
        typer.Option(metavar="HH:MM", help="Run every day at this time, such as 02:00, or 02:00Z in UTC."),
    ] = None,
    keep: Annotated[int, typer.Option(help="With --every or --at: number of versions to keep.", min=2)] = 10,
    log_json: LogJsonOption = False,
    log_file: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Append the log to this file, which may be rotated.", show_default="standard error"
        ),
    ] = None,
    metrics_port: Annotated[
        int | None, typer.Option(help="Port of this machine for Prometheus.", min=1, max=65535, show_default="none")
    ] = None,
    force: ForceOption = False,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Run one site of a network: learn together with the others, and save this site's model.

    The table stays here. What leaves are terms of sums, masked so that no one learns anything but the total over all
    sites (or, with exchange = "basis" in the network file, U_t in every round, which is not masked). All that leaves is
    in the log releases.jsonl beside agent.toml, which elmesh network audit verifies; a policy beside it, gate.toml, can
    forbid or limit it.

    An agent that is stopped or killed resumes when the same command is run again; the others wait for it, as long as
    their --patience. Exit codes: 0 done; 2 bad input; 3 a neighbour was lost or has ended the run; 4 a neighbour sent
    an invalid message; 130 stopped by Ctrl-C.

    With --every or --at the network learns again and again, until Ctrl-C: the first run begins at once, each other one
    at its time, when all sites have come; if there is a model already, the first one waits for its time, too. A run
    that cannot take place is skipped. Every model is kept as a version beside --out (elmesh versions, elmesh rollback),
    and compared with the former one on the rows that are new. What may leave this site is limited over all runs: with
    differential privacy by the budget of its rows; without it, a changed table is not summed a second time, and the
    site's own part alone learns from the new rows.
    """
    check_option("--on-loss", on_loss, "stop", "continue")
    check_option("--on-bad", on_bad, "stop", "isolate")
    schedule = _schedule(every, at, fresh, release_again)
    identity = Identity.read(agent)
    log = EventLog(identity.name, log_json, quiet, log_file)
    output = _LogOutput(as_json, quiet, log=log) if log_json else Output(as_json, quiet)

    def log_round(step: Progress) -> None:
        log("round", round=step.round, rounds=step.max_iter, gap=step.consensus_gap)

    def make(identity: Identity, fresh: bool) -> NetworkAgent:
        for text in expiry_sentences(identity):
            log("expires", text=text)
        return NetworkAgent(
            identity,
            patience=patience,
            on_loss=on_loss,
            on_invalid=on_bad,
            fresh=fresh,
            release_again=release_again,
            confirm=ask_on_terminal if sys.stdin.isatty() and sys.stderr.isatty() else None,
            log=log,
        )

    log_if_due = at_intervals(log_round, _LOG_INTERVAL)
    with output.warnings_as_notes(), capture_zenoh_log(log):
        frame = load_table(data, identity.config, identity.name, target)
        risk = exchange_caution(identity.config)
        if risk is not None:
            output.caution(risk)
        for caution in table_cautions(frame, identity.config):
            output.note(caution)
        if schedule is not None:
            check_model_folder(out, force=True)
            runs = ScheduledRuns(agent, make, data, target, out, schedule, keep, log, log_if_due)
            _run_scheduled(runs, metrics_port, output, log)
            return
        site = make(identity, fresh)

        def report() -> dict[str, Any]:
            return {**site.status(), "log": log.recent()}

        with site, _failures(site, output, log), status_file(identity.state, report), site.record_failure():
            # A resumed run may replace the model that it has saved.
            check_model_folder(out, force or (site.resumes and (out / "model.json").is_file()))
            with (
                serve_metrics(site, metrics_port),
                output.progress("Fitting") as show,
                act_on_signal(site.stop, signal.SIGINT, signal.SIGTERM),
            ):
                result = site.fit(
                    frame, target, out, overwrite=True, callback=lambda step: show(step) or log_if_due(step)
                )
            _report_result(result, site, out, output)


def _report_result(result: AgentResult, site: NetworkAgent, out: Path, output: Output) -> None:
    """Print what a run has produced."""
    config = site.identity.config
    summary = {
        **result.summary,
        "command": "agent",
        "agent": site.name,
        "network": config.name,
        "file": config.digest.hex(),
        "model": str(out),
        "evicted": result.evicted,
        "unconfirmed": result.unconfirmed,
    }
    others = count(len(summary["tasks"]) - 1, "other site")
    encoded = count(len(summary["columns"]), "encoded column")
    output.print(f"{problem(summary)}: {count(summary['rows'], 'row')} here, {encoded}; learned with {others}.")
    if summary["gains"] is not None:
        print_own_gain(output, summary["gains"])
    print_result(output, summary, sender=" from here")
    output.result(summary)


def _schedule(every: str | None, at: str | None, fresh: bool, release_again: bool) -> Schedule | None:
    """Return the schedule of runs; None if there is to be one run, now."""
    schedule = make_schedule(every, at)
    if schedule is not None and (fresh or release_again):
        option = "--fresh" if fresh else "--release-again"
        raise ElmeshError(
            f"{option} is a decision about one run, and --every and --at repeat runs; give {option} in a single run "
            "before, or leave it out."
        )
    return schedule


def _run_scheduled(runs: ScheduledRuns, metrics_port: int | None, output: Output, log: EventLog) -> None:
    """Run by a schedule until a signal."""

    def report() -> dict[str, Any]:
        return {**runs.status(), "log": log.recent()}

    def show(facts: dict[str, Any]) -> None:
        output.result({"command": "agent", "agent": runs.identity.name, "model": str(runs.versions.model), **facts})
        sys.stdout.flush()

    with (
        closing(runs),
        status_file(runs.identity.state, report),
        serve_metrics(runs, metrics_port),
        act_on_signal(runs.stop, signal.SIGINT, signal.SIGTERM),
    ):
        try:
            runs.run(show)
        except StoppedError:
            output.note("Stopped; the same command continues by the schedule, and resumes a run that had begun.")
            raise typer.Exit(INTERRUPTED) from None


@dataclass(frozen=True)
class _LogOutput(Output):
    """Output whose notes are part of the log in JSON."""

    log: EventLog = field(kw_only=True)

    def show_note(self, text: str) -> None:
        self.log("note", text=text)

    def caution(self, text: str) -> None:
        if self.quiet:
            super().caution(text)
            return
        self.notes.append(text)
        self.log("caution", text=text)


@contextmanager
def _failures(site: NetworkAgent, output: Output, log: EventLog) -> Iterator[None]:
    """Exit with the code for a failure."""
    try:
        yield
    except StoppedError:
        output.note(f"Stopped at round {max(site.round, 0)}; the same command resumes there.")
        raise typer.Exit(INTERRUPTED) from None
    except ElmeshError as error:
        log("failed", reason=str(error))
        if isinstance(error, PeerError):
            fail(str(error), REFUSED if isinstance(error, RefusedError) else LOST)
        raise
