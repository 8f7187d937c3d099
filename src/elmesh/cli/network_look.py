"""``elmesh network check`` and ``elmesh network status``: whether a network is sound, and how an agent stands."""

from __future__ import annotations

import fcntl
import os
import re
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from elmesh import netconfig
from elmesh.agent import Phase, read_status
from elmesh.agent.diagnostics import Finding, inquire
from elmesh.cli.console import INTERRUPTED, JsonOption, Output, QuietOption
from elmesh.errors import ElmeshError

if TYPE_CHECKING:
    from elmesh.netconfig.identity import Identity

__all__ = ["UNSOUND", "check", "status"]

#: Exit code of a check that found something wrong.
UNSOUND = 1
# Seconds that clocks may differ by before it is worth a word, and days before a certificate's end.
_APART, _SOON = 60.0, 30

AgentArgument = Annotated[Path, typer.Argument(metavar="AGENT", help="The agent's file, agent.toml.")]


def check(
    agent: AgentArgument,
    wait: Annotated[float, typer.Option(help="Seconds to wait for neighbours to answer.", min=0.0, max=3600.0)] = 5.0,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Check an agent's files, and whether its neighbours are reached, have the same network file and a good clock.

    A neighbour answers while its agent runs, or its own check does: with --wait 600 sites can check at the same time.
    Nothing of a run is disturbed. Exit codes: 0 all is well; 1 something is not; 2 the agent's own files are not.
    """
    output = Output(as_json, quiet)
    identity = netconfig.identity.Identity.read(agent)
    config = identity.config
    output.say(f"Agent {identity.name} of {config.name}, reached at {identity.address}.")
    output.say(f"Network file {config.digest.hex()[:16]}, the same everywhere if this is the same everywhere.")
    output.say(f"Its certificate is good until {_day(identity.valid_until)}, {identity.days_left():.0f} days from now.")
    if identity.days_left() < _SOON:
        output.note(f"The certificate of {identity.name} ends in {identity.days_left():.0f} days; renew it in time.")
    running = _is_running(identity)
    with output.bar("Asking the neighbours") as show:
        show(0, 1, f"for {wait:g} seconds at most")
        found = inquire(identity, wait, listening=not running)
    output.table(
        ["neighbour", "address", "certificate until", "answers", "same file", "clock"],
        [_row(finding) for finding in found],
        left=6,
    )
    for finding in found:
        if finding.problem is not None:
            output.note(f"{finding.name}: {finding.problem}.")
        if finding.clock is not None and abs(finding.clock) > _APART:
            output.note(
                f"{finding.name}: its clock is {abs(finding.clock):.0f} seconds "
                f"{'ahead' if finding.clock > 0 else 'behind'}; runs do not mind, but certificates may."
            )
    sound = all(finding.problem is None for finding in found)
    output.say("All is well." if sound else "Not all is well.")
    output.result(
        {
            "command": "network check",
            "agent": identity.name,
            "network": config.name,
            "file": config.digest.hex(),
            "valid_until": identity.valid_until.isoformat(),
            "running": running,
            "sound": sound,
            "neighbours": [
                {**vars(f), "valid_until": None if f.valid_until is None else f.valid_until.isoformat()} for f in found
            ],
        }
    )
    if not sound:
        raise typer.Exit(UNSOUND)


def status(
    agent: AgentArgument,
    watch: Annotated[bool, typer.Option("--watch", help="Keep looking, every second, until Ctrl-C.")] = False,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Tell how an agent on this machine stands: its round, its neighbours, its distance from them, bytes.

    With --json and --watch, a JSON object a second.
    """
    output = Output(as_json, quiet)
    identity = netconfig.identity.Identity.read(agent)
    if not watch:
        _tell(output, _look(identity))
        return
    try:
        if as_json:
            while True:
                output.result({"command": "network status", **_look(identity)})
                time.sleep(1.0)
        with Live(
            _screen(_look(identity)), console=Console(markup=False, highlight=False, emoji=False), auto_refresh=False
        ) as live:
            while True:
                live.update(_screen(_look(identity)), refresh=True)
                time.sleep(1.0)
    except KeyboardInterrupt:
        raise typer.Exit(INTERRUPTED) from None


def _look(identity: Identity) -> dict[str, Any]:
    said = read_status(identity.state)
    if said is None:
        raise ElmeshError(
            f"Agent {identity.name} has not run here yet; start it with elmesh agent {identity.folder / 'agent.toml'}."
        )
    return {**said, "address": identity.address, "days_left": identity.days_left()}


def _tell(output: Output, said: dict[str, Any]) -> None:
    for line in _lines(said):
        output.say(line)
    output.table(["neighbour", "", "said", "heard", "kept"], _neighbours(said), left=2)
    output.result({"command": "network status", **said})


def _lines(said: dict[str, Any]) -> list[str]:
    words = (
        said["phase"] if said["running"] or said["phase"] in (Phase.ENDED, Phase.FAILED, Phase.STOPPED) else "killed"
    )
    lines = [f"Agent {said['agent']} of {said['network']}: {words}, {_ago(said['time'])}."]
    if said["problem"]:
        lines.append(said["problem"])
    if said["round"] is not None:
        gap = "unknown" if said["consensus_gap"] is None else f"{said['consensus_gap']:.2g}"
        lines.append(f"Round {said['round']} of {said['rounds']}; {gap} away from its neighbours' mean.")
    traffic = said["traffic"]
    lines.append(
        f"{traffic['sent_bytes'] / 1e6:.3g} MB sent in {traffic['sent_messages']:,} messages, "
        f"{traffic['again']:,} said again; {traffic['heard_bytes'] / 1e6:.3g} MB heard."
    )
    if said["journal"]["problem"]:
        lines.append(f"The journal cannot be written: {said['journal']['problem'].lower()}.")
    if said["gone"]:
        lines.append(f"Going on without {', '.join(said['gone'])}.")
    return lines


def _neighbours(said: dict[str, Any]) -> list[list[str]]:
    return [
        [name, "here" if other["here"] else "away", f"{other['said']:,}", f"{other['heard']:,}", f"{other['kept']:,}"]
        for name, other in said["neighbours"].items()
    ]


def _screen(said: dict[str, Any]) -> Table:
    screen = Table.grid()
    for line in _lines(said):
        screen.add_row(Text(re.sub(r"[\x00-\x1f\x7f-\x9f]+", " ", line)))
    inner = Table(box=None, pad_edge=False)
    for name in ("neighbour", "", "said", "heard", "kept"):
        inner.add_column(name, justify="left" if name in ("neighbour", "") else "right")
    for row in _neighbours(said):
        inner.add_row(*row)
    screen.add_row(inner)
    return screen


def _row(finding: Finding) -> list[str]:
    answer = {True: "yes", False: "no", None: "?"}
    clock = "?" if finding.clock is None else f"{finding.clock:+.1f} s"
    until = "?" if finding.valid_until is None else _day(finding.valid_until)
    return [
        finding.name,
        finding.address,
        until,
        answer[finding.answers],
        answer[finding.same_file],
        clock,
    ]


def _day(moment: datetime) -> str:
    return f"{moment.astimezone(UTC):%Y-%m-%d}"


def _ago(moment: float) -> str:
    seconds = max(time.time() - moment, 0.0)
    return (
        "just now" if seconds < 3 else f"{seconds:.0f} seconds ago" if seconds < 120 else f"{seconds / 60:.0f} min ago"
    )


def _is_running(identity: Identity) -> bool:
    """Say whether another process is this agent."""
    path = identity.state / "lock"
    if not path.exists():
        return False
    descriptor = os.open(path, os.O_RDWR)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(descriptor)
    return False
