"""``elmesh network unit``: a hardened systemd unit that runs an agent or a router."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from elmesh.agent.schedule import make_schedule
from elmesh.cli.console import AgentArgument, ForceOption, JsonOption, Output, QuietOption, check_writable
from elmesh.cli.event_log import ONE_RUN
from elmesh.errors import ElmeshError
from elmesh.files import atomic_write
from elmesh.netconfig.identity import Identity
from elmesh.netconfig.names import ROUTER
from elmesh.netconfig.systemd_unit import ServiceUnit

__all__ = ["unit"]


def unit(
    agent: AgentArgument,
    data: Annotated[Path | None, typer.Option(metavar="TABLE", help="This site's rows.")] = None,
    target: Annotated[list[str] | None, typer.Option(metavar="COLUMN", help="Column to predict.")] = None,
    model: Annotated[Path | None, typer.Option(metavar="FOLDER", help="Folder to save the model in.")] = None,
    every: Annotated[
        str | None,
        typer.Option(metavar="INTERVAL", help="Run again at this interval, as elmesh agent --every."),
    ] = None,
    at: Annotated[
        str | None,
        typer.Option(metavar="HH:MM", help="Run every day at this time, as elmesh agent --at, such as 02:00Z."),
    ] = None,
    metrics_port: Annotated[
        int | None, typer.Option(help="Port of this machine for Prometheus.", min=1, max=65535, show_default="none")
    ] = None,
    user: Annotated[str, typer.Option(help="System user that runs it, who owns the agent's folder.")] = "elmesh",
    write: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Write the files there.", show_default="print them")
    ] = None,
    force: ForceOption = False,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Print a systemd unit that runs an agent with few rights: once, or by a schedule with --at or --every.

    Of a router's agent.toml the unit runs the router. The key file may belong to root: systemd hands its content to the
    service. Write the files with --write /etc/systemd/system, then: systemctl daemon-reload.
    """
    output = Output(as_json, quiet)
    identity, program = Identity.load(agent), _program()
    if identity.name == ROUTER:
        if data is not None or target or model is not None or every is not None or at is not None:
            raise ElmeshError(
                "A router has no table and no schedule; leave out --data, --target, --model, --at and --every."
            )
        service = ServiceUnit(
            identity, agent, [*program, "network", "router", str(agent.absolute()), "--log-json"], user
        )
    else:
        if data is None or not target or model is None:
            raise ElmeshError("The unit of an agent needs --data, --target and --model.")
        words = ["agent", str(agent.absolute()), "--data", str(data.absolute())]
        words += [word for column in target for word in ("--target", column)]
        words += ["--out", str(model.absolute()), "--log-json"]
        schedule = make_schedule(every, at)
        # The versions of a schedule are kept beside the model, which is replaced by each.
        words += ["--force"] if schedule is None else ["--every", every] if every is not None else ["--at", str(at)]
        if schedule is not None and identity.config.exchange == "sums" and identity.config.epsilon is None:
            output.note(ONE_RUN)
        words += [] if metrics_port is None else ["--metrics-port", str(metrics_port)]
        service = ServiceUnit(identity, agent, [*program, *words], user, [model], [data])
    if service.has_hidden_program:
        output.note(f"{program[0]} is in a temporary folder, of which a service has its own; install elmesh elsewhere.")
    texts = {f"{service.name}.service": service.text()}
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
