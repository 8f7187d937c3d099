"""``elmesh network create``, ``csr`` and ``sign``: the files of a network, with all keys for a trial or without any.

Without, each site makes its own key, and the authority signs a certificate for it.
"""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from elmesh.agent.site_data import exchange_caution
from elmesh.cli.console import ForceOption, JsonOption, Output, QuietOption
from elmesh.cli.fit_options import check_kind
from elmesh.cli.network_join import print_invitations
from elmesh.comm.graph import GRAPH_NAMES
from elmesh.errors import ElmeshError
from elmesh.netconfig.config import NetworkConfig
from elmesh.netconfig.config_builder import DataSpec, build_config, default_name
from elmesh.netconfig.layout import NetworkLayout, create_agent_folder, sign_request
from elmesh.netconfig.names import ROUTER
from elmesh.netconfig.pki.authority import CA_CERTIFICATE, issued_certificates
from elmesh.netconfig.pki.csr import common_name
from elmesh.netconfig.pki.verify import fingerprint, key_fingerprint, load_certificates
from elmesh.tables import ProblemKind, read_table
from elmesh.text import count

__all__ = ["create", "csr", "sign"]

DaysOption = Annotated[int, typer.Option(help="Days that certificates are valid.", min=1, max=3650)]


def create(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="Folder for the network's files.")],
    agents: Annotated[str, typer.Option(metavar="NAMES", help="Names of the agents, separated by commas.")],
    listen: Annotated[
        str,
        typer.Option(
            metavar="HOST:PORT",
            help="Addresses of the agents: one each, separated by commas; or the first, with consecutive ports.",
        ),
    ],
    graph: Annotated[
        str,
        typer.Option(metavar="NAME", help=f"Communication graph: {', '.join(GRAPH_NAMES)}; agents in the order given."),
    ] = "ring",
    like: Annotated[
        Path | None,
        typer.Option(
            metavar="TABLE", help="An example table for the columns, synthetic or public: they become public."
        ),
    ] = None,
    target: Annotated[str | None, typer.Option(metavar="COLUMN", help="With --like: the column to predict.")] = None,
    drop: Annotated[
        list[str] | None, typer.Option(metavar="COLUMN", help="With --like: a column to leave out; repeatable.")
    ] = None,
    kind: Annotated[
        str | None,
        typer.Option(
            metavar="classification|regression",
            help="The kind of problem.",
            show_default="inferred from --target of --like",
        ),
    ] = None,
    target_range: Annotated[
        str | None,
        typer.Option(metavar="LEAST,MOST", help="With --kind regression: the range of the target, without --like."),
    ] = None,
    name: Annotated[str | None, typer.Option(help="The network's name.", show_default="the folder's")] = None,
    rounds: Annotated[int, typer.Option(help="Rounds of messages.")] = 300,
    hidden: Annotated[
        int | None, typer.Option(help="Hidden units.", show_default="200; 300 with --exchange basis")
    ] = None,
    rank: Annotated[
        str | None,
        typer.Option(
            help="Columns of U, the shared part; auto with sums: as many as help, in many more sums.",
            show_default="0; with --exchange basis 6, or one less than classes if more",
        ),
    ] = None,
    exchange: Annotated[
        str,
        typer.Option(
            metavar="sums|basis",
            help="What agents send: masked sums over all agents, or U_t, from which neighbours can reconstruct rows.",
        ),
    ] = "sums",
    fewest_sites: Annotated[
        int, typer.Option(help="Fewest agents in a sum; with 2 each can compute the other's part of it.", min=1)
    ] = 3,
    epsilon: Annotated[
        float | None,
        typer.Option(
            help="Differential privacy of single rows: noise is added to all that leaves a site.", show_default="none"
        ),
    ] = None,
    delta: Annotated[
        float | None, typer.Option(help="With --epsilon: well below one in the number of rows.", show_default="1e-5")
    ] = None,
    max_colluders: Annotated[
        int | None,
        typer.Option(
            help="Sites that may put together what they know, or send wrong numbers.", show_default="a third of all"
        ),
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of the hidden weights.")] = 0,
    router: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT",
            help="Send all messages through a router there, for sites that accept no connections.",
            show_default="none",
        ),
    ] = None,
    days: DaysOption = 365,
    csr: Annotated[
        bool, typer.Option("--csr", help="Make no keys: sites make their own, each with its invitation.")
    ] = False,
    authority: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="With --csr: the certificate of an authority of yours, which then signs.",
            show_default="a new authority",
        ),
    ] = None,
    force: ForceOption = False,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Create a network: its file, an authority, and one folder per agent or, with --csr, one invitation per agent.

    With --csr keys never leave their sites: send each site its invitation, with which it runs elmesh network join.
    Without, each agent's folder is complete, for a trial. It contains the agent's key: hand it to its site in private.
    """
    output = Output(as_json, quiet)
    if authority is not None and not csr:
        raise ElmeshError("--authority is for a network whose sites make their own keys; give --csr too.")
    own = None if authority is None else load_certificates(authority)
    with output.warnings_as_notes():
        data = _data_spec(like, target, drop or [], check_kind(kind), target_range)
        config = build_config(
            name if name is not None else default_name(folder.absolute().name),
            [part.strip() for part in agents.split(",")],
            graph,
            [part.strip() for part in listen.split(",")],
            data,
            rounds=rounds,
            n_hidden=(300 if exchange == "basis" else 200) if hidden is None else hidden,
            rank=_rank(rank, exchange, data),
            exchange=exchange,
            fewest_sites=fewest_sites,
            epsilon=epsilon,
            delta=delta,
            max_colluders=max_colluders,
            seed=seed,
            routers=() if router is None else (router,),
        )
    risk = exchange_caution(config)
    if risk is not None:
        output.caution(risk)
    remark = "" if like is None else _public_facts(config, like)
    network = NetworkLayout(folder, config)
    if own is None:
        network.write(remark, days=days, keys=not csr, force=force)
    else:
        network.write_network_file(remark, force=force)
    trusted = own or load_certificates(network.authority / CA_CERTIFICATE)
    invitations = network.invite(trusted, force=force) if csr else {}
    _print_network(output, network, data, remark, csr=csr, target=target or "COLUMN")
    if csr:
        print_invitations(output, network, invitations, trusted, own=own is not None)
    output.result(
        {
            "command": "network create",
            "network": config.name,
            "file": str(network.network_file),
            "digest": config.digest.hex(),
            "authority": str(network.authority) if own is None else str(authority),
            "fingerprints": list(map(fingerprint, trusted)),
            "agents": [
                {
                    "name": agent.name,
                    "address": agent.address,
                    "neighbors": config.neighbors(agent.name),
                    "folder": None if csr else str(folder / agent.name),
                    "invitation": invitations.get(agent.name),
                }
                for agent in config.agents
            ],
            "kind": config.kind,
            "columns": [column.name for column in config.columns],
            "epsilon": config.epsilon,
            "delta": config.delta,
            "public": remark or None,
        }
    )


def _rank(text: str | None, exchange: str, data: DataSpec) -> int | str:
    """Return the rank, which the config checks."""
    if text is None:
        # With fewer directions than differences between classes, some classes cannot be distinguished.
        return 0 if exchange == "sums" else max(6, len(data.classes or ()) - 1)
    return int(text) if text.isdecimal() and len(text) < 10 else text


def _data_spec(
    like: Path | None, target: str | None, drop: list[str], kind: ProblemKind | None, target_range: str | None
) -> DataSpec:
    """Return the columns of the example table, or none."""
    if like is None:
        if target is not None or drop:
            raise ElmeshError(
                f"--{'drop' if target is None else 'target'} is about the table of --like; give that too."
            )
        return DataSpec(kind or "classification", target_range=_range(target_range))
    if target is None:
        raise ElmeshError("--like needs --target, the column of the table to predict.")
    if target_range is not None:
        raise ElmeshError("--target-range is for a network without --like, which has the range from the table.")
    return DataSpec.from_table(read_table(like), target, kind, drop)


def _range(text: str | None) -> tuple[float, float] | None:
    if text is None:
        return None
    try:
        least, most = map(float, text.split(","))
    except ValueError:
        raise ElmeshError(f'--target-range must be two numbers such as 0,100, not "{text}".') from None
    return least, most


def _public_facts(config: NetworkConfig, like: Path) -> str:
    facts = "The columns, their ranges and categories, and whether values are missing"
    target = ", and the range of the target," if config.target_range is not None else ""
    target = ", and the classes," if config.classes is not None else target
    return f"{facts}{target} were taken from {like.name}: whoever has this file knows these facts about that table."


def _print_network(
    output: Output, network: NetworkLayout, data: DataSpec, remark: str, *, csr: bool, target: str
) -> None:
    config, folder, file = network.config, network.folder, network.network_file
    output.print(f"{file}: {count(len(config.agents), 'agent')}, {count(len(config.edges), 'edge')}, {config.kind}.")
    if remark:
        output.print(f"{config.kind.capitalize()}: {data.reason}.")
        output.note(remark)
    if not csr:
        if any(not config.address_of(agent.name).is_loopback for agent in config.agents):
            output.caution(
                "The keys of all agents were made here, for a trial. For real sites create the network with --csr: "
                "each site then makes its own key, which never leaves it."
            )
        output.print(f"{network.authority}: the authority. Its key signs for any agent: give it to no one.")
        for agent in config.agents:
            output.print(
                f"{folder / agent.name}: for {agent.name} at {agent.address}, with its key: hand it over in private."
            )
        if config.routers:
            output.print(
                f"{folder / ROUTER}: for the router at {config.routers[0]}; there: elmesh network router agent.toml"
            )
        output.print("Then at each site, with its own table:")
        first = config.agent_names[0]
        output.print(
            f"  elmesh agent {folder / first / 'agent.toml'} --data {first}.csv --target {target} --out {first}-model/"
        )
    if not config.columns:
        copies = ", and copy it over the network.toml in each agent's folder"
        copies = f", and then make new invitations: elmesh network invite {folder} --force" if csr else copies
        output.note(f"{file} names no feature columns yet: add a section [[columns]] for each{copies}.")


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
    own, key = authority / "ca.pem", load_certificates(certificate)[0].public_key()
    output.print(f"{certificate} is the certificate of {agent}, valid for {count(days, 'day')}.")
    output.print(f"Fingerprint of its key {key_fingerprint(key)}: compare it by telephone before you return it.")
    others = {
        key_fingerprint(one.public_key())
        for one in issued_certificates(authority)
        if common_name(one.subject) == agent and one.not_valid_after_utc > datetime.now(UTC)
    } - {key_fingerprint(key)}
    if others:
        output.note(
            f"{agent} has a valid certificate of another key, too; if that may have been stolen: elmesh network revoke."
        )
    output.print(
        f"Return {certificate} to {agent}, which installs it with the command of its request: elmesh network join or "
        f"renew, with --certificate. After elmesh network csr it needs {own}, too: certificate.pem and ca.pem beside "
        "its agent.toml."
    )
    output.result({"command": "network sign", "agent": agent, "certificate": certificate, "authority": own,
                   "key": key_fingerprint(key), "other_keys": sorted(others)})  # fmt: skip
