"""The page for operators: its commands work one after the other, at every site, as the page describes."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest
from typer.main import get_command

from elmesh.agent.release_log import ReleaseLog, read_log
from elmesh.cli import app
from elmesh.errors import ElmeshError
from elmesh.netconfig.identity import Identity
from elmesh.netconfig.pki.verify import fingerprint, load_certificates
from helpers.code_blocks import code_blocks, run_commands
from helpers.network import free_ports, rows_of

PAGE = Path(__file__).parents[2] / "docs" / "operations.md"
BLOCKS = code_blocks(PAGE.read_text(encoding="utf-8"), "sh")
SITES = ("north", "south", "west")


def send(source: Path, target: Path) -> None:
    """What people send each other, by mail or otherwise."""
    shutil.copy(source, target)


@pytest.mark.parametrize("block", BLOCKS)
def test_every_command_and_option_of_the_page_exists(block):
    (line,) = block.strip().splitlines()
    command, rest = get_command(app), line.split()[1:]
    while rest[0] in getattr(command, "commands", {}):
        command = command.commands[rest.pop(0)]
    known = {option for parameter in command.loaded.params for option in parameter.opts}
    assert {word for word in rest if word.startswith("--")} <= known


def test_the_commands_of_the_page_lead_a_network_through_its_life(tmp_path):
    create, join, sign, again, renew, sign_again, install, revoke, rotate, trust, finish, _ = BLOCKS
    for name, port in zip(SITES, free_ports(3), strict=True):
        create = create.replace(f"{name}.example.org:7451", f"127.0.0.1:{port}")
        rows_of(name).to_csv(tmp_path / f"{name}.csv", index=False)
    rows_of("example").to_csv(tmp_path / "example.csv", index=False)

    def at(site: str, block: str) -> str:
        return run_commands(block.replace("north", site), tmp_path)

    def identity(site: str) -> Identity:
        return Identity.read(tmp_path / site / "agent.toml")

    def renew_all() -> None:
        for site in SITES:
            at(site, renew)
            send(tmp_path / site / "renewal" / f"{site}.csr", tmp_path / f"{site}.csr")
            at(site, sign_again)
            at(site, install)

    def verify(by: str, of: str) -> None:
        there = identity(of).credentials()
        identity(by).credentials().verify(of, there.chain, b"data", there.sign(b"data"))

    run_commands(create, tmp_path)
    for site in SITES:
        send(tmp_path / "net" / "invitations" / f"{site}.toml", tmp_path / f"{site}.toml")
        assert "Compare" in (tmp_path / f"{site}.toml").read_text()
        at(site, join)
        send(tmp_path / site / f"{site}.csr", tmp_path / f"{site}.csr")
        at(site, sign)
        shown = at(site, again.replace("\n", " --wait 0\n"))
        assert f"Next, you: elmesh agent {site}/agent.toml" in shown
        log = ReleaseLog(identity(site).log, site, identity(site).credentials(), lambda line: None)
        log.append({"event": "run"})
        log.close()
    before = identity("north").certificate.read_bytes()
    renew_all()
    assert before in (tmp_path / "north" / "former-certificates.pem").read_bytes()
    # Another authority.
    run_commands(rotate, tmp_path)
    for step in ("both", "the new one"):
        send(tmp_path / "net" / "ca" / "ca.pem", tmp_path / "ca.pem")
        digits = fingerprint(load_certificates(tmp_path / "ca.pem")[0])
        for site in SITES:
            at(site, re.sub(r'"[0-9a-f ]+"', f'"{digits}"', trust))
        if step == "both":
            renew_all()
            run_commands(finish, tmp_path)
    for site in SITES:
        assert len(identity(site).authorities) == 1
        assert (tmp_path / site / "former-ca.pem").is_file()
        assert len(list(read_log(identity(site).log, site, identity(site).credentials()))) == 1
    # A site that must leave.
    verify("north", "west")
    run_commands(revoke, tmp_path)
    send(tmp_path / "net" / "revoked.pem", tmp_path / "north" / "revoked.pem")
    with pytest.raises(ElmeshError, match="was revoked by the authority"):
        verify("north", "west")
    verify("north", "south")
