"""``elmesh network confirm``: a person answers whether an agent may release what it wants to."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from elmesh.agent.confirmation import answer_confirmation, asked_confirmation
from elmesh.cli.console import AgentArgument, JsonOption, Output, QuietOption
from elmesh.cli.errors import one_line
from elmesh.errors import ElmeshError
from elmesh.netconfig.identity import Identity

__all__ = ["ask_on_terminal", "confirm"]


def ask_on_terminal(text: str) -> bool:
    """Ask on the terminal; only "yes" confirms."""
    sys.stderr.write(f"\n{one_line(text)}\nRelease it? Type yes or no: ")
    sys.stderr.flush()
    return sys.stdin.readline().strip().lower() == "yes"


def confirm(
    agent: AgentArgument,
    refuse: Annotated[bool, typer.Option("--refuse", help="Refuse instead.")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Confirm without asking on the terminal.")] = False,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Confirm, or refuse, what an agent on this machine wants to release.

    If gate.toml has confirm = true, an agent asks once per run, before anything of its rows leaves. On a terminal it
    asks there; otherwise it waits for this command.
    """
    output = Output(as_json, quiet)
    identity = Identity.read(agent)
    question = asked_confirmation(identity.state)
    if question is None:
        raise ElmeshError(f"The agent {identity.name} has not asked for a confirmation.")
    confirmed = not refuse and (yes or ask_on_terminal(question["text"]))
    answer_confirmation(identity.state, question["token"], confirmed)
    output.print("Confirmed." if confirmed else "Refused: nothing leaves, and the agent ends.")
    output.result({"command": "network confirm", "agent": identity.name, "confirmed": confirmed})
