"""``elmesh network check``: the files of an agent, and its connections to its neighbours."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Any

import typer

from elmesh.agent.checkpoint import is_locked
from elmesh.agent.diagnostics import PeerCheck, check_neighbors
from elmesh.cli.console import AgentArgument, JsonOption, Output, QuietOption
from elmesh.cli.errors import UNSOUND
from elmesh.netconfig.expiry import EXPIRES_SOON, expiries, expiry_sentences
from elmesh.netconfig.identity import Identity
from elmesh.text import count

__all__ = ["check", "check_agent"]

_CLOCK_DIFFERENCE = 60.0  # seconds between clocks that are mentioned


def check(
    agent: AgentArgument,
    wait: Annotated[float, typer.Option(help="Seconds to wait for neighbours to answer.", min=0.0, max=3600.0)] = 5.0,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Check an agent's files, and whether its neighbours are reachable and have the same network file and time.

    A neighbour answers while its agent or its own check runs: with --wait 600 sites can check at the same time. A run
    is not affected. Exit codes: 0 no problem; 1 a problem with a neighbour; 2 a problem with the agent's own files.
    """
    output = Output(as_json, quiet)
    identity = Identity.read(agent)
    report = check_agent(output, identity, wait)
    output.result({"command": "network check", **report})
    if not report["sound"]:
        raise typer.Exit(UNSOUND)


def check_agent(output: Output, identity: Identity, wait: float) -> dict[str, Any]:
    """Check an agent's certificate and its neighbours, show what is found, and return it."""
    config, days = identity.config, identity.days_left()
    output.print(f"Agent {identity.name} of {config.name}, reached at {identity.address}.")
    output.print(f"Network file fingerprint {config.digest.hex()[:16]}: compare it with the other sites'.")
    output.print(f"Its certificate is valid until {_day(identity.valid_until)}, {days:.0f} days from now.")
    for text in expiry_sentences(identity):
        output.note(text)
    running = is_locked(identity.state)
    with output.bar("Asking the neighbours") as show:
        show(0, 1, f"for at most {wait:g} seconds")
        checks = check_neighbors(identity.endpoint(), wait, listening=not running, revocations=identity.revocations)
    output.table(
        ["neighbour", "address", "certificate until", "answers", "same file", "clock"], list(map(_row, checks)), left=6
    )
    for found in checks:
        if found.problem is not None:
            output.note(f"{found.name}: {found.problem}.")
        if found.valid_until is not None and (left := (found.valid_until - datetime.now(UTC)).days) < EXPIRES_SOON:
            output.note(f"{found.name}: its certificate expires in {left} days; it should renew it.")
        if found.clock is not None and abs(found.clock) > _CLOCK_DIFFERENCE:
            output.note(
                f"{found.name}: its clock is {abs(found.clock):.0f} seconds "
                f"{'ahead' if found.clock > 0 else 'behind'}; this does not affect runs, but may affect certificates."
            )
    silent = [found.name for found in checks if not found.answers]
    sound = all(found.problem is None for found in checks)
    if sound:
        output.print("No problem found.")
    elif silent:
        output.print(
            f"{len(silent)} of {count(len(checks), 'neighbour')} did not answer: {', '.join(silent)}. A neighbour that "
            "has not joined yet, or whose agent does not run, cannot answer; a run waits for it."
        )
    else:
        output.print("All neighbours answered; the notes above state what is wrong.")
    return {
        "agent": identity.name,
        "network": config.name,
        "file": config.digest.hex(),
        "valid_until": identity.valid_until,
        "expires": [{"what": one.what, "file": one.file, "until": one.until} for one in expiries(identity)],
        "running": running,
        "sound": sound,
        "neighbors": list(map(vars, checks)),
    }


def _row(found: PeerCheck) -> list[str]:
    answer = {True: "yes", False: "no", None: "?"}
    clock = "?" if found.clock is None else f"{found.clock:+.1f} s"
    until = "?" if found.valid_until is None else _day(found.valid_until)
    return [found.name, found.address, until, answer[found.answers], answer[found.same_file], clock]


def _day(time: datetime) -> str:
    return f"{time.astimezone(UTC):%Y-%m-%d}"
