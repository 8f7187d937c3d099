"""``elmesh network router``: passes messages on between sites that cannot reach each other."""

from __future__ import annotations

import signal
import threading
from pathlib import Path
from typing import Annotated

import typer

from elmesh import netconfig
from elmesh.cli.console import INTERRUPTED, QuietOption
from elmesh.cli.logbook import Logbook, overhearing
from elmesh.comm.network.zenoh_session import Router
from elmesh.errors import ElmeshError
from elmesh.netconfig.names import ROUTER

__all__ = ["router"]


def router(
    agent: Annotated[Path, typer.Argument(metavar="ROUTER", help="The router's file, agent.toml.")],
    log_json: Annotated[bool, typer.Option("--log-json", help="Log a JSON object a line.")] = False,
    quiet: QuietOption = False,
) -> None:
    """Run the router of a network, until Ctrl-C.

    It lets in who has a certificate of the network, passes on what an agent says under its own name to its neighbours,
    and nothing else. It keeps nothing, so it may be stopped and started at any time: agents wait for it. It can read
    what passes through it, and agents rely on it for who says what; run it where all sites trust the machine.
    """
    identity = netconfig.identity.Identity.read(agent)
    if identity.name != ROUTER:
        raise ElmeshError(
            f"{agent} is that of agent {identity.name}; the router's is made by elmesh network create --router."
        )
    log = Logbook(ROUTER, log_json, quiet)
    over = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: over.set())
    with overhearing(log), Router(identity, lambda name, here: log("neighbour", name=name, here=here)):
        log(
            "open",
            agent=ROUTER,
            network=identity.config.name,
            address=identity.address,
            neighbours=identity.config.agent_names,
        )
        over.wait()
    raise typer.Exit(INTERRUPTED)
