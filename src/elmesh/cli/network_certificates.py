"""``elmesh network csr`` and ``elmesh network sign``: a site's own key, and the authority's certificate for it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from elmesh.cli.console import ForceOption, JsonOption, Output, QuietOption
from elmesh.netconfig.config import NetworkConfig
from elmesh.netconfig.layout import create_agent_folder, sign_request
from elmesh.text import count

__all__ = ["DaysOption", "csr", "sign"]

DaysOption = Annotated[int, typer.Option(help="Days that certificates are valid.", min=1, max=3650)]


def csr(
    network: Annotated[Path, typer.Argument(metavar="NETWORK", help="The network file, network.toml.")],
    agent: Annotated[str, typer.Option(metavar="NAME", help="The agent at this site.")],
    out: Annotated[Path, typer.Option(help="Folder for the agent's files.")],
    force: ForceOption = False,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """At a site: make the agent's key, which stays there, and a request for its certificate.

    The request contains no secret. The authority of the network signs it, with elmesh network sign or with the tools of
    an existing authority, and returns the certificate and the authority's own.
    """
    output = Output(as_json, quiet)
    request = create_agent_folder(network, agent, out, force=force)
    files = {"key": out / "key.pem", "certificate": out / "certificate.pem", "authority": out / "ca.pem"}
    output.print(f"The key of {agent} is {files['key']}: it stays there, and is given to no one.")
    output.print(f"Send {request} to the authority of the network. Save what it returns as")
    output.print(f"  {files['certificate']}  the certificate of {agent}")
    output.print(f"  {files['authority']}  the certificate of the authority")
    output.print(f"Then: elmesh network check {out / 'agent.toml'}")
    output.result({"command": "network csr", "agent": agent, "request": str(request), **files})


def sign(
    authority: Annotated[Path, typer.Argument(metavar="AUTHORITY", help="The authority's folder, such as net/ca.")],
    request: Annotated[Path, typer.Argument(metavar="REQUEST", help="The request of a site, such as north.csr.")],
    network: Annotated[
        Path, typer.Option(metavar="FILE", help="The network file; only requests of its agents are signed.")
    ],
    out: Annotated[
        Path | None, typer.Option(help="File of the certificate.", show_default="beside the request")
    ] = None,
    days: DaysOption = 365,
    force: ForceOption = False,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Sign an agent's certificate request with the authority that elmesh network create made.

    The certificate is for the agent that the request names and for the host in the network file. Make sure that the
    request came from that site: whoever has the certificate and its key is that agent.
    """
    output = Output(as_json, quiet)
    agent, certificate = sign_request(authority, request, NetworkConfig.read(network), out, days=days, force=force)
    own = authority / "ca.pem"
    output.print(f"{certificate} is the certificate of {agent}, valid for {count(days, 'day')}.")
    output.print(f"Return it with {own}; beside {agent}'s agent.toml they are certificate.pem and ca.pem.")
    output.result({"command": "network sign", "agent": agent, "certificate": certificate, "authority": own})
