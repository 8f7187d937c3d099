"""``elmesh network revoke`` and ``rotate``: what the keeper of a network's authority does over the years."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from elmesh.cli.console import JsonOption, Output, QuietOption
from elmesh.errors import ElmeshError
from elmesh.netconfig.config import NetworkConfig
from elmesh.netconfig.keeping import finish_rotation, revoke_certificates, rotate_authority
from elmesh.netconfig.layout import NetworkLayout
from elmesh.netconfig.pki.authority import CA_CERTIFICATE
from elmesh.netconfig.pki.verify import fingerprint, load_certificates
from elmesh.text import count

__all__ = ["revoke", "rotate"]

NetworkArgument = Annotated[Path, typer.Argument(metavar="NETWORK", help="Folder that elmesh network create made.")]


def revoke(
    network: NetworkArgument,
    agent: Annotated[
        str | None,
        typer.Argument(metavar="NAME", help="The agent whose certificates are revoked.", show_default="none"),
    ] = None,
    certificate: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="A certificate that the authority has no record of.", show_default="none"),
    ] = None,
    days: Annotated[int, typer.Option(help="Days until the next list is due.", min=1, max=3650)] = 180,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Revoke all certificates of an agent; without a name, write the list again with new dates.

    The list is revoked.pem in the network's folder. Send it to every site, to be put beside agent.toml: agents refuse
    the keys of whoever is on it, from their next run on. A certificate that is signed afterwards is valid.
    """
    output = Output(as_json, quiet)
    if certificate is not None and agent is None:
        raise ElmeshError("--certificate needs the name of the agent whose certificate it is.")
    layout = _layout(network)
    path, new = revoke_certificates(layout, agent, certificate, days=days)
    if agent is not None:
        output.print(f"{count(new, 'certificate')} of {agent} revoked." if new else f"Those of {agent} were revoked.")
    output.print(f"Next, you: send {path} to every site, also if it has one; the next is due in {count(days, 'day')}.")
    output.print("Next, each site: put it beside agent.toml, as revoked.pem.")
    if agent is not None and agent in layout.config.agent_names:
        output.note(f"{agent} is still in the network file: others wait for it, unless it gets a new certificate.")
    output.result({"command": "network revoke", "agent": agent, "revoked": new, "file": path, "days": days})


def rotate(
    network: NetworkArgument,
    finish: Annotated[bool, typer.Option("--finish", help="Drop the former authority, when all have renewed.")] = False,
    force: Annotated[bool, typer.Option("--force", "-f", help="With --finish: although some have not.")] = False,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Replace the authority of a network: both are trusted in an overlap, and then the former one is dropped.

    The first step makes a new authority, which signs from now on. Send ca.pem, with both, to all sites, which run
    elmesh network trust and then renew their certificates. The second step, --finish, drops the former authority and
    its key, and sites run elmesh network trust once more.
    """
    output = Output(as_json, quiet)
    layout = _layout(network)
    left = finish_rotation(layout, force=force) if finish else []
    if not finish:
        rotate_authority(layout)
    file = layout.authority / CA_CERTIFICATE
    trusted = load_certificates(file)
    output.print(f"{layout.authority} has {'dropped the former authority' if finish else 'a new authority'}.")
    for which, one in zip(("new ", "former ") if len(trusted) > 1 else ("",), trusted, strict=False):
        output.print(f"Fingerprint of the {which}authority {fingerprint(one)}: read it out to each site by telephone.")
    output.print(f"Next, you: send {file} to every site{', and revoked.pem if there is one' if finish else ''}.")
    digits = "" if finish else f' --fingerprint "{fingerprint(trusted[0])}"'
    output.print(f"Next, each site: elmesh network trust agent.toml ca.pem{digits}")
    if finish:
        for name in left:
            output.note(f"{name} has no certificate of the new authority, and is refused once sites have dropped it.")
    else:
        output.print("When all sites have done so, each: elmesh network renew agent.toml")
        output.print(f"When all have new certificates, you: elmesh network rotate {network} --finish")
    output.result(
        {
            "command": "network rotate",
            "network": layout.config.name,
            "finished": finish,
            "fingerprints": list(map(fingerprint, trusted)),
            "file": file,
            "left": left,
        }
    )


def _layout(folder: Path) -> NetworkLayout:
    return NetworkLayout(folder, NetworkConfig.read(folder / "network.toml"))
