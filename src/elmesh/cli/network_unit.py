"""``elmesh network unit``: a hardened systemd unit that runs an agent or a router."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from elmesh.cli.console import AgentArgument, ForceOption, JsonOption, Output, QuietOption, check_writable
from elmesh.errors import ElmeshError
from elmesh.files import atomic_write
from elmesh.netconfig.identity import Identity
from elmesh.netconfig.names import ROUTER
from elmesh.netconfig.systemd_unit import ServiceUnit, timer_text

__all__ = ["unit"]


def unit(
    agent: AgentArgument,
    data: Annotated[Path | None, typer.Option(metavar="TABLE", help="This site's rows.")] = None,
    target: Annotated[list[str] | None, typer.Option(metavar="COLUMN", help="Column to predict.")] = None,
    model: Annotated[Path | None, typer.Option(metavar="FOLDER", help="Folder to save the model in.")] = None,
    timer: Annotated[
        str | None,
        typer.Option(metavar="HH:MM", help="Make a timer too, for a run every night at this time in UTC."),
    ] = None,
    user: Annotated[str, typer.Option(help="System user that runs it, who owns the agent's folder.")] = "elmesh",
    write: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Write the files there.", show_default="print them")
    ] = None,
    force: ForceOption = False,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Print a systemd unit that runs an agent with few rights, and with --timer a timer that starts it every night.

    Of a router's agent.toml the unit runs the router. The key file may belong to root: systemd hands its content to the
    service. Write the files with --write /etc/systemd/system, then: systemctl daemon-reload.
    """
    output = Output(as_json, quiet)
    identity, program = Identity.load(agent), _program()
    if identity.name == ROUTER:
        if data is not None or target or model is not None or timer is not None:
            raise ElmeshError("A router has no table and no timer; leave out --data, --target, --model and --timer.")
        service = ServiceUnit(
            identity, agent, [*program, "network", "router", str(agent.absolute()), "--log-json"], user
        )
    else:
        if data is None or not target or model is None:
            raise ElmeshError("The unit of an agent needs --data, --target and --model.")
        words = ["agent", str(agent.absolute()), "--data", str(data.absolute())]
        words += [word for column in target for word in ("--target", column)]
        words += ["--out", str(model.absolute()), "--log-json", "--force"]
        service = ServiceUnit(identity, agent, [*program, *words], user, [model], [data], timer is not None)
    texts = {f"{service.name}.service": service.text()}
    if timer is not None:
        texts[f"{service.name}.timer"] = timer_text(service.name, timer)
        output.note(
            "Every run releases totals. The log allows nine matrix totals of the same rows, three runs, and none of "
            "other rows: see the gate and --release-again in docs/security.md."
        )
    if write is None and not as_json:
        typer.echo("\n".join(texts.values()), nl=False)
    elif write is not None:
        for name in texts:
            check_writable(write / name, force)
        for name, text in texts.items():
            atomic_write(write / name, text.encode(), mode=0o644)
        started = list(texts)[-1]
        output.print(f"Written to {write}: {', '.join(texts)}.")
        output.print(f"Next, you: systemctl daemon-reload && systemctl enable --now {started}")
    output.result({"command": "network unit", "agent": identity.name, "files": texts, "folder": write})


def _program() -> list[str]:
    """Return the command of this installation."""
    script = Path(sys.executable).with_name("elmesh")
    return [str(script)] if script.exists() else [sys.executable, "-m", "elmesh"]
