"""``elmesh network renew`` and ``trust``: a new certificate for an agent, and other authorities to trust."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer

from elmesh.agent.checkpoint import is_locked
from elmesh.cli.console import AgentArgument, JsonOption, Output, QuietOption
from elmesh.cli.network_join import print_key
from elmesh.errors import ElmeshError
from elmesh.netconfig.identity import FORMER_AUTHORITIES, FORMER_CERTIFICATES, Identity
from elmesh.netconfig.pki.verify import fingerprint
from elmesh.netconfig.renewal import Renewal, trust_authorities

__all__ = ["renew", "trust"]


def renew(
    agent: AgentArgument,
    certificate: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="The certificate that the authority has returned.", show_default="beside the request"
        ),
    ] = None,
    new_key: Annotated[
        bool, typer.Option("--new-key", help="Make a new key too: others see another fingerprint of all keys.")
    ] = False,
    force: Annotated[bool, typer.Option("--force", "-f", help="Make the request anew.")] = False,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Renew the certificate of an agent, which may run meanwhile. Run it again with the signed certificate.

    The first step makes a request, for the present key unless --new-key is given. The second step checks what the
    authority has signed and puts it in the place of the old certificate, which is kept for the log. A run that goes on
    uses the old certificate on the connections it has; the next run uses the new one.
    """
    output = Output(as_json, quiet)
    if certificate is not None and (force or new_key):
        raise ElmeshError(
            "--certificate installs what the authority has signed, and --force and --new-key are about the request; "
            "give the certificate alone."
        )
    identity = Identity.load(agent)
    renewal = Renewal(identity)
    found = certificate or renewal.find_certificate()
    report = {"command": "network renew", "agent": identity.name, "valid_until": identity.valid_until}
    if found is None or force:
        is_new = renewal.ask(new_key=new_key, force=force)
        done = "Done" if is_new else "Done before"
        output.print(f"The certificate of {identity.name} is valid until {identity.valid_until:%Y-%m-%d}.")
        output.print(f"{done}: the request for a new one, {renewal.request}. It contains no secret.")
        print_key(output, renewal.request)
        output.print(f"Next, you: send {renewal.request} to the keeper of the authority.")
        sign = f"elmesh network sign net/ca {renewal.request.name} --network net/network.toml --force"
        output.print(f"Next, the keeper of the authority: {sign}, and return {identity.name}.pem.")
        words = ["elmesh", "network", "renew", str(agent), "--certificate", f"{identity.name}.pem"]
        output.print(f"Then, you: {shlex.join(words)}")
        output.result(report | {"step": "request", "request": renewal.request, "new_key": renewal.has_new_key})
        return
    new_key = renewal.has_new_key
    until = renewal.install(found).not_valid_after_utc
    output.print(f"Done: {identity.certificate} is the new certificate of {identity.name}, until {until:%Y-%m-%d}.")
    output.print(f"The former one is kept in {identity.folder / FORMER_CERTIFICATES}, for the log.")
    if new_key:
        output.note("The key is a new one: the fingerprint of all keys, which sites compare, is another one now.")
    running = is_locked(identity.state)
    if running:
        output.note(
            "The agent is running: connections that it accepts use the old certificate until it ends, or is stopped "
            "and started again, which resumes its run."
        )
    output.result(report | {"step": "installed", "valid_until": until, "new_key": new_key, "running": running})


def trust(
    agent: AgentArgument,
    authorities: Annotated[Path, typer.Argument(metavar="FILE", help="The ca.pem of the network's authority.")],
    given: Annotated[
        list[str] | None,
        typer.Option(
            "--fingerprint",
            metavar="DIGITS",
            help="The fingerprint of a new authority, as its keeper reads it out by telephone; repeatable.",
            show_default="none",
        ),
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", "-f", help="Although the file has none of the present authorities.")
    ] = False,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Trust the authorities in a file, in the place of the present ones, when the authority is replaced.

    First all sites trust both the former and the new authority; then they renew their certificates; then they trust the
    new one only. A new authority is trusted only with its fingerprint, which its keeper reads out by telephone.
    """
    output = Output(as_json, quiet)
    identity = Identity.load(agent)
    new, dropped = trust_authorities(identity, authorities, given or [], force=force)
    for one in new:
        output.print(f"Trusted from now on: {fingerprint(one)}.")
    for one in dropped:
        output.print(
            f"Not trusted any more: {fingerprint(one)}; kept in {identity.folder / FORMER_AUTHORITIES}, for the log."
        )
    if not new and not dropped:
        output.print("These authorities are trusted already.")
    output.result(
        {
            "command": "network trust",
            "agent": identity.name,
            "new": list(map(fingerprint, new)),
            "dropped": list(map(fingerprint, dropped)),
        }
    )
