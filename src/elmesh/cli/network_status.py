"""``elmesh network status``: the state of an agent on this machine."""

from __future__ import annotations

import sys
import time
from typing import Annotated, Any

import typer
from rich.live import Live
from rich.table import Table
from rich.text import Text

from elmesh.agent import read_status
from elmesh.cli.console import AgentArgument, JsonOption, Output, QuietOption, make_console, make_table
from elmesh.cli.errors import INTERRUPTED, one_line
from elmesh.errors import ElmeshError
from elmesh.netconfig.identity import Identity
from elmesh.text import count, data_size

__all__ = ["status", "status_screen"]

_HEAD = ("neighbour", "", "sent", "received", "buffered")


def status(
    agent: AgentArgument,
    watch: Annotated[bool, typer.Option("--watch", help="Repeat every second, until Ctrl-C.")] = False,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Show the state of an agent on this machine: its round, its neighbours, its consensus gap and its traffic.

    With --json and --watch, one JSON object per second.
    """
    output = Output(as_json, quiet)
    identity = Identity.read(agent)
    if not watch:
        found = _read(identity)
        for line in _lines(found):
            output.print(line)
        output.table(_HEAD, _neighbors(found), left=2)
        output.result(found)
        return
    try:
        if as_json:
            while True:
                output.result(_read(identity))
                time.sleep(1.0)
        with Live(status_screen(_read(identity)), console=make_console(sys.stdout), auto_refresh=False) as live:
            while True:
                live.update(status_screen(_read(identity)), refresh=True)
                time.sleep(1.0)
    except KeyboardInterrupt:
        raise typer.Exit(INTERRUPTED) from None


def _read(identity: Identity) -> dict[str, Any]:
    found = read_status(identity.state)
    if found is None:
        raise ElmeshError(
            f"Agent {identity.name} has not run here yet; start it with elmesh agent {identity.folder / 'agent.toml'}."
        )
    return {"command": "network status", **found, "address": identity.address, "days_left": identity.days_left()}


def status_screen(status: dict[str, Any]) -> Table:
    """Return an agent's status as it is shown with --watch."""
    screen = Table.grid()
    for line in _lines(status):
        screen.add_row(Text(one_line(line)))
    screen.add_row(make_table(_HEAD, _neighbors(status), left=2))
    return screen


def _lines(status: dict[str, Any]) -> list[str]:
    running = status["running"] or status["phase"] in ("ended", "failed", "stopped")
    phase = status["phase"] if running else "killed"
    lines = [f"Agent {status['agent']} of {status['network']}: {phase}, {_ago(status['time'])}."]
    if status["problem"]:
        lines.append(status["problem"])
    if status["round"] is not None:
        gap = "unknown" if status["consensus_gap"] is None else f"{status['consensus_gap']:.2g}"
        lines.append(f"Round {status['round']} of {status['rounds']}; consensus gap {gap}.")
    traffic = status["traffic"]
    lines.append(
        f"{data_size(traffic['sent_bytes'])} sent in {traffic['sent_messages']:,} messages, {traffic['resent']:,} "
        f"resent; {data_size(traffic['received_bytes'])} received."
    )
    if status["keys"]:
        lines.append(f"Keys of all sites: {status['keys']}; compare them with the other sites'.")
    released = status["releases"]
    if released is not None and released["releases"]:
        spent = "" if released["epsilon"] is None else f"; epsilon of all runs so far {released['epsilon']:.3g}"
        lines.append(f"{count(released['releases'], 'release')} in this run{spent}.")
    if status["phase"] == "waiting":
        lines.append("It waits for a person: elmesh network confirm.")
    if status["checkpoint"]["problem"]:
        lines.append(f"The checkpoint cannot be written: {status['checkpoint']['problem'].lower()}.")
    if status["evicted"]:
        lines.append(f"Continuing without {', '.join(status['evicted'])}.")
    return lines


def _neighbors(status: dict[str, Any]) -> list[list[str]]:
    return [
        [name, "present" if link["present"] else "absent", *(f"{link[key]:,}" for key in _HEAD[2:])]
        for name, link in status["neighbors"].items()
    ]


def _ago(moment: float) -> str:
    seconds = max(time.time() - moment, 0.0)
    if seconds < 120:
        return "just now" if seconds < 3 else f"{seconds:.0f} seconds ago"
    return f"{seconds / 60:.0f} min ago"
