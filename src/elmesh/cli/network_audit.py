"""``elmesh network audit``: the log of all that has left a site, verified."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer

from elmesh.agent.release_log import LogDamagedError, read_log
from elmesh.cli.console import AgentArgument, JsonOption, Output, QuietOption
from elmesh.cli.errors import UNSOUND
from elmesh.netconfig.identity import Identity
from elmesh.text import count, data_size

__all__ = ["audit"]

_KINDS = ("statistics", "numbers", "block", "matrix", "private", "basis")


def audit(
    agent: AgentArgument,
    every: Annotated[bool, typer.Option("--all", help="Show every line, as JSON, and not only each run.")] = False,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Show and verify the log of all that has left a site.

    The log is releases.jsonl beside agent.toml. A line that was removed, changed or moved is found. Exit codes: 0 the
    log is as it was written; 1 it is not; 2 it cannot be read.
    """
    output = Output(as_json, quiet)
    identity = Identity.read(agent)
    runs: dict[str, dict[str, Any]] = {}
    problem, lines = None, 0
    try:
        for line in read_log(identity.log, identity.name, identity.credentials()):
            lines += 1
            _note(runs, line)
            if every and not quiet and not as_json:
                typer.echo(json.dumps(line))
    except LogDamagedError as error:
        problem = str(error)
    if not every:
        for run in runs.values():
            _print_run(output, run)
    if problem is None:
        output.print(f"{identity.log}: {count(lines, 'line')}, complete and unchanged.")
    else:
        output.print(f"{problem} What is shown is before it.")
    output.result(
        {
            "command": "network audit",
            "agent": identity.name,
            "log": str(identity.log),
            "lines": lines,
            "sound": problem is None,
            "problem": problem,
            "runs": list(runs.values()),
        }
    )
    if problem is not None:
        raise typer.Exit(UNSOUND)


def _note(runs: dict[str, dict[str, Any]], line: dict[str, Any]) -> None:
    """Add a line of the log to the summary of its run."""
    name = str(line.get("run", ""))
    if line["event"] == "run":
        known = runs.setdefault(name, {"run": name, "started": line["time"], "releases": {}, "bytes": 0, "to": []})
        known |= {key: line[key] for key in ("network", "exchange", "sites", "rows")}
    elif line["event"] == "release" and name in runs:
        run = runs[name]
        run["releases"][line["what"]] = run["releases"].get(line["what"], 0) + 1
        run["bytes"] += line["bytes"]
        run["to"] = sorted({*run["to"], *line["to"]})
        run["epsilon"] = line["epsilon"]


def _print_run(output: Output, run: dict[str, Any]) -> None:
    released = [f"{run['releases'][kind]} of {kind}" for kind in _KINDS if kind in run["releases"]]
    what = f"{', '.join(released)} ({data_size(run['bytes'])}) to {', '.join(run['to'])}" if released else "nothing"
    epsilon = run.get("epsilon")
    spent = "" if epsilon is None else f"; epsilon of all runs so far {epsilon:.3g}"
    sizes = f"{count(len(run['sites']), 'site')}, {count(run['rows'], 'row')} here"
    output.print(f"{run['started']}, {run['network']} with {sizes}, exchange {run['exchange']}: {what}{spent}.")
