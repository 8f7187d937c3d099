"""``elmesh network status``: the state of an agent on this machine."""

from __future__ import annotations

import sys
import time
from datetime import datetime
from typing import Annotated, Any, NoReturn

import typer
from rich.live import Live
from rich.table import Table
from rich.text import Text

from elmesh.agent import read_status
from elmesh.cli.console import AgentArgument, JsonOption, Output, QuietOption, make_console, make_table
from elmesh.cli.errors import INTERRUPTED, one_line
from elmesh.cli.status_text import moment, one_liner, status_lines
from elmesh.errors import ElmeshError
from elmesh.netconfig.expiry import expiries, expiry_sentences
from elmesh.netconfig.identity import Identity

__all__ = ["status", "status_screen"]

_HEAD = ("neighbour", "", "sent", "received", "buffered")


def status(
    agent: AgentArgument,
    watch: Annotated[bool, typer.Option("--watch", help="Repeat every second, until Ctrl-C.")] = False,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Show the state of an agent on this machine: its round, the time left, its neighbours and its traffic.

    The time left is that of all rounds at the pace so far; a run that converges ends earlier. With --watch, where the
    output is not a terminal, one line for every change; with --json and --watch, one JSON object per second.
    """
    output = Output(as_json, quiet)
    identity = Identity.load(agent)
    if not watch:
        found = _read(identity)
        for line in status_lines(found):
            output.print(line)
        output.table(_HEAD, _neighbors(found), left=2)
        output.result(found)
        return
    try:
        _wait_for_first_run(identity)
        if as_json:
            while True:
                output.result(_read(identity))
                sys.stdout.flush()
                time.sleep(1.0)
        if not sys.stdout.isatty():
            _print_changes(identity)
        with Live(status_screen(_read(identity)), console=make_console(sys.stdout), auto_refresh=False) as live:
            while True:
                live.update(status_screen(_read(identity)), refresh=True)
                time.sleep(1.0)
    except KeyboardInterrupt:
        raise typer.Exit(INTERRUPTED) from None


def _wait_for_first_run(identity: Identity) -> None:
    """Wait until an agent has a status, and say so."""
    if read_status(identity.state) is None:
        sys.stderr.write(f"Agent {identity.name} has not run here yet; waiting for its first run.\n")
    while read_status(identity.state) is None:
        time.sleep(1.0)


def _print_changes(identity: Identity) -> NoReturn:
    """Print a line whenever the status is another one than a second ago, until a signal ends it."""
    shown = ""
    while True:
        line = one_line(one_liner(_read(identity)))
        if line != shown:
            sys.stdout.write(f"{datetime.now().astimezone().isoformat(timespec='seconds')} {line}\n")
            sys.stdout.flush()
            shown = line
        time.sleep(1.0)


def _read(identity: Identity) -> dict[str, Any]:
    found = read_status(identity.state)
    if found is None:
        raise ElmeshError(
            f"Agent {identity.name} has not run here yet; start it with elmesh agent {identity.folder / 'agent.toml'}."
        )
    dates = [{"what": one.what, "seconds": one.seconds_left()} for one in expiries(identity)]
    return {
        "command": "network status",
        **found,
        "address": identity.address,
        "days_left": identity.days_left(),
        "expires": dates,
        "warnings": expiry_sentences(identity),
    }


def status_screen(status: dict[str, Any]) -> Table:
    """Return an agent's status as it is shown with --watch."""
    screen = Table.grid()
    for line in status_lines(status):
        screen.add_row(Text(one_line(line)))
    screen.add_row(make_table(_HEAD, _neighbors(status), left=2))
    return screen


def _neighbors(status: dict[str, Any]) -> list[list[str]]:
    rows = []
    for name, link in status["neighbors"].items():
        there = f"{'present' if link['present'] else 'absent'} since {moment(link['since'])}"
        rows.append([name, there, *(f"{link[key]:,}" for key in _HEAD[2:])])
    return rows
