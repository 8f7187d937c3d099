"""``elmesh network router``: forwards messages between sites that cannot reach each other."""

from __future__ import annotations

import signal
import threading
from pathlib import Path
from typing import Annotated

import typer

from elmesh.agent.limits import max_message_bytes
from elmesh.cli.console import LogJsonOption, QuietOption
from elmesh.cli.errors import INTERRUPTED
from elmesh.cli.event_log import EventLog, capture_zenoh_log
from elmesh.cli.signals import handle_signals
from elmesh.comm.network.zenoh_session import Router
from elmesh.errors import ElmeshError
from elmesh.netconfig.identity import Identity
from elmesh.netconfig.names import ROUTER

__all__ = ["router"]


def router(
    agent: Annotated[Path, typer.Argument(metavar="ROUTER", help="The router's file, agent.toml.")],
    log_json: LogJsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Run the router of a network, until Ctrl-C.

    It admits sites with a certificate of the network, and forwards what an agent sends under its own name to its
    neighbours, and nothing else. It stores nothing, so it may be stopped and started at any time: agents wait for it.
    It can read the messages, and agents trust it to identify the sender; run it on a machine that all sites trust.
    """
    identity = Identity.read(agent)
    if identity.name != ROUTER:
        raise ElmeshError(
            f"{agent} is the file of agent {identity.name}; elmesh network create --router makes that of the router."
        )
    log, config, stop = EventLog(ROUTER, log_json, quiet), identity.config, threading.Event()
    with (
        handle_signals(lambda *_: stop.set(), signal.SIGINT, signal.SIGTERM),
        capture_zenoh_log(log),
        Router(
            identity.endpoint(),
            max_message_bytes(config),
            lambda name, present: log("neighbor", name=name, present=present),
        ),
    ):
        log("open", agent=ROUTER, network=config.name, address=identity.address, neighbors=list(config.agent_names))
        stop.wait()
    raise typer.Exit(INTERRUPTED)
