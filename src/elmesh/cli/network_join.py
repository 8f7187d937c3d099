"""``elmesh network invite`` and ``join``: from an invitation to the first run of a site, step by step."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer
from cryptography import x509

from elmesh.cli.console import ForceOption, JsonOption, Output, QuietOption
from elmesh.cli.network_check import check_agent
from elmesh.errors import ElmeshError
from elmesh.netconfig.config import NetworkConfig
from elmesh.netconfig.identity import Identity
from elmesh.netconfig.invitation import Invitation
from elmesh.netconfig.joining import JoiningSite
from elmesh.netconfig.layout import NetworkLayout
from elmesh.netconfig.names import ROUTER
from elmesh.netconfig.pki.authority import CA_CERTIFICATE
from elmesh.netconfig.pki.csr import load_request
from elmesh.netconfig.pki.verify import fingerprint, has_fingerprint, key_fingerprint, load_certificates

__all__ = ["invite", "join", "print_invitations", "print_key"]


def invite(
    folder: Annotated[Path, typer.Argument(metavar="NETWORK", help="Folder that elmesh network create made.")],
    authority: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="The certificate of an authority of yours.", show_default="the one of the network"
        ),
    ] = None,
    force: ForceOption = False,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Write an invitation for every site of a network, with the present network file and the present authorities.

    elmesh network create --csr has written them already. Make them again after a change of network.toml, or of the
    authority, and send them to the sites.
    """
    output = Output(as_json, quiet)
    network = NetworkLayout(folder, NetworkConfig.read(folder / "network.toml"))
    trusted = load_certificates(authority or network.authority / CA_CERTIFICATE)
    found = network.invite(trusted, force=force)
    print_invitations(output, network, found, trusted, own=authority is not None)
    output.result(
        {
            "command": "network invite",
            "network": network.config.name,
            "digest": network.config.digest.hex(),
            "fingerprints": list(map(fingerprint, trusted)),
            "invitations": found,
        }
    )


def print_invitations(
    output: Output, network: NetworkLayout, files: dict[str, Path], trusted: list[x509.Certificate], *, own: bool
) -> None:
    """Print what to do with invitations; ``own`` is whether the authority is one of the user's."""
    for name, path in files.items():
        output.print(f"{path}: send it to {name}. There: elmesh network join {path.name}")
    _print_fingerprints(output, trusted, "read it out to each site by telephone")
    if own:
        output.print("Have your authority sign each NAME.csr for client and server, with its common name and hosts,")
        output.print("and return the certificate.")
        return
    output.print(f"{network.authority}: the authority. Its key signs for any agent: give it to no one.")
    sign = shlex.join(["elmesh", "network", "sign", str(network.authority)])
    output.print(f"Sign what sites return: {sign} NAME.csr --network {shlex.quote(str(network.network_file))}")


def join(
    invitation: Annotated[Path, typer.Argument(metavar="INVITATION", help="The invitation of this site.")],
    out: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Folder for the agent's files.", show_default="its name")
    ] = None,
    certificate: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="The certificate that the authority has returned.", show_default="in the folder"
        ),
    ] = None,
    given: Annotated[
        str | None,
        typer.Option(
            "--fingerprint",
            metavar="DIGITS",
            help="The authority's fingerprint, as given by telephone; it is compared.",
        ),
    ] = None,
    data: Annotated[
        Path | None, typer.Option(metavar="TABLE", help="This site's rows: run the agent when all is ready.")
    ] = None,
    target: Annotated[
        list[str] | None, typer.Option(metavar="COLUMN", help="With --data: the column to predict.")
    ] = None,
    model: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="With --data: folder for the model.", show_default="NAME-model"),
    ] = None,
    wait: Annotated[float, typer.Option(help="Seconds to wait for neighbours to answer.", min=0.0, max=3600.0)] = 5.0,
    force: Annotated[
        bool, typer.Option("--force", "-f", help="Take the network file and the authority of a newer invitation.")
    ] = False,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """At a site: join a network with an invitation. Run it again after each step; it continues where it was.

    The first step makes the key, which stays here, and a request for its certificate. The keeper of the authority signs
    the request. With the certificate the second step checks it, writes agent.toml, checks the connections, and prints
    the command of the first run; with --data and --target it runs that command.
    """
    output = Output(as_json, quiet)
    if (data is None) != (not target):
        raise ElmeshError("--data and --target belong together: the table of this site, and the column to predict.")
    invited = Invitation.read(invitation)
    if data is not None and invited.agent == ROUTER:
        raise ElmeshError("A router has no table; leave out --data and --target.")
    _compare(invited, given)
    site = JoiningSite(invited, out or Path(invited.agent))
    is_new = site.prepare(force=force)
    found = certificate or site.find_certificate()
    if found is not None:
        site.install(found)
    output.print(f"{invited.agent} joins {invited.network}, reached at {invited.address}; its folder is {site.folder}.")
    output.print(f"Network file fingerprint {invited.digest[:16]}: compare it with the other sites'.")
    if given is None:
        _print_fingerprints(output, invited.authorities, "compare it by telephone with the keeper of the authority")
    report = {
        "command": "network join",
        "agent": invited.agent,
        "network": invited.network,
        "digest": invited.digest,
        "fingerprints": invited.fingerprints,
        "folder": site.folder,
        "request": site.request,
    }
    if found is None:
        _print_request(output, site, invitation, is_new)
        output.result(report | {"step": "request", "agent_file": None, "next": f"sign {site.request.name}"})
        return
    output.print(f"Done: the certificate is that of {site.key}, and the authority has signed it for {invited.agent}.")
    output.print(f"Done: {site.agent_file}.")
    identity = Identity.read(site.agent_file)
    if invited.agent == ROUTER:
        command = ["elmesh", "network", "router", str(site.agent_file)]
    else:
        checks = check_agent(output, identity, wait)
        report |= {"sound": checks["sound"], "neighbors": checks["neighbors"]}
        targets = [word for column in target or ["COLUMN"] for word in ("--target", column)]
        options = ["--data", str(data or "TABLE"), *targets, "--out", str(model or f"{invited.agent}-model")]
        command = ["elmesh", "agent", str(site.agent_file), *options]
    output.print(f"Next, you: {shlex.join(command)}")
    if data is None:
        output.result(report | {"step": "ready", "agent_file": site.agent_file, "next": shlex.join(command)})
        return
    from elmesh.cli.agent import agent  # noqa: PLC0415  (only here, because it imports all that a fit needs)

    agent(
        site.agent_file, data, list(target or []), model or Path(f"{invited.agent}-model"), as_json=as_json, quiet=quiet
    )


def _compare(invited: Invitation, given: str | None) -> None:
    """Raise if a fingerprint that was given by telephone is not that of the invitation's only authority."""
    if given is None:
        return
    if len(invited.authorities) != 1 or not has_fingerprint(invited.authorities[0], given):
        raise ElmeshError(
            f"The authority of the invitation has the fingerprint {', '.join(invited.fingerprints)}, not "
            f"{given[:80]!r}: do not join, and ask for the invitation again."
        )


def _print_fingerprints(output: Output, authorities: list[x509.Certificate], what: str) -> None:
    for one in authorities:
        output.print(f"Fingerprint of the authority {fingerprint(one)}: {what}.")


def print_key(output: Output, request: Path) -> None:
    """Print the fingerprint of the key of a request, by which its keeper knows that it is this site's."""
    _, asked = load_request(request.read_bytes())
    known = key_fingerprint(asked.public_key())
    output.print(f"Fingerprint of the key {known}: read it out to the keeper of the authority by telephone.")


def _print_request(output: Output, site: JoiningSite, invitation: Path, is_new: bool) -> None:
    done, name = "Done" if is_new else "Done before", site.invitation.agent
    output.print(f"{done}: the key of {name}, {site.key}. It stays here, and is given to no one.")
    output.print(f"{done}: the request for its certificate, {site.request}. It contains no secret.")
    print_key(output, site.request)
    output.print(f"Next, you: send {site.request} to the keeper of the authority.")
    sign = f"elmesh network sign net/ca {site.request.name} --network net/network.toml"
    output.print(f"Next, the keeper of the authority: {sign}, and return {name}.pem.")
    words = ["elmesh", "network", "join", str(invitation), "--out", str(site.folder), "--certificate", f"{name}.pem"]
    output.print(f"Then, you: {shlex.join(words)}")
