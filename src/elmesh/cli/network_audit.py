"""``elmesh network audit``: the log of all that has left a site, verified."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from elmesh.agent.release_log import LogDamagedError, line_digest, read_log
from elmesh.cli.console import AgentArgument, JsonOption, Output, QuietOption
from elmesh.cli.errors import UNSOUND
from elmesh.errors import ElmeshError
from elmesh.netconfig.identity import Identity
from elmesh.text import count, data_size

__all__ = ["audit"]

_KINDS = ("statistics", "numbers", "block", "matrix", "private", "basis")


def audit(
    agent: AgentArgument,
    every: Annotated[bool, typer.Option("--all", help="Show every line, as JSON, and not only each run.")] = False,
    witness: Annotated[
        list[str] | None,
        typer.Option(
            metavar="SITE=FILE",
            help="Compare with what another site's log has about this one; may be repeated.",
            show_default=False,
        ),
    ] = None,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Show and verify the log of all that has left a site.

    The log is releases.jsonl beside agent.toml. A line that was removed, changed or moved is found. If a whole earlier
    state of the log and its seal was put back, only other sites can tell, whose logs keep where this one ended at each
    run: --witness south=south-releases.jsonl, with the seal of that log beside it. Exit codes: 0 the log is as it was
    written; 1 it is not; 2 it cannot be read.
    """
    output = Output(as_json, quiet)
    identity = Identity.read(agent)
    runs: dict[str, dict[str, Any]] = {}
    ends = _witnessed(witness or [], identity)
    problem, lines = None, 0
    try:
        for line in read_log(identity.log, identity.name, identity.credentials()):
            lines += 1
            if ends.pop(lines, line_digest(line)) != line_digest(line):
                raise LogDamagedError(f"Line {lines} of {identity.log} is not the one in the log of another site.")
            _note(runs, line)
            if every and not quiet and not as_json:
                typer.echo(json.dumps(line))
        if ends:
            raise LogDamagedError(
                f"The log of another site has {max(ends)} lines of {identity.log}; lines were removed."
            )
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


def _witnessed(given: list[str], identity: Identity) -> dict[int, str]:
    """Return where this agent's log ended at each run, by the logs of other sites: the digest of a line, by number."""
    ends: dict[int, str] = {}
    for text in given:
        name, found, file = text.partition("=")
        if not found or name == identity.name or name not in identity.config.agent_names:
            raise ElmeshError(f"--witness {text!r}: expected another site of the network and its log, SITE=FILE.")
        if not Path(file).is_file():
            raise ElmeshError(f"The log {file} does not exist; give the releases.jsonl of {name}, with its seal.")
        for line in read_log(Path(file), name, identity.credentials()):
            number, end = line.get("logs", {}).get(identity.name, (0, ""))
            if number:
                ends[number] = end
    return ends


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
