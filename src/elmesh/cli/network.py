"""``elmesh network``: make the files of a network; a trial's all at once, or each site's own.

The group's further commands have files of their own; :mod:`elmesh.cli` puts them together.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from elmesh import netconfig
from elmesh.cli.console import ForceOption, JsonOption, Output, QuietOption
from elmesh.cli.wish import check_kind
from elmesh.comm.graph import GRAPH_NAMES
from elmesh.errors import ElmeshError
from elmesh.netconfig.names import ROUTER
from elmesh.tables import ProblemKind, read_table
from elmesh.text import count

if TYPE_CHECKING:
    from elmesh.netconfig.config import NetworkConfig
    from elmesh.netconfig.data_spec import DataSpec
    from elmesh.netconfig.layout import NetworkLayout

__all__ = ["create", "csr", "sign"]

DaysOption = Annotated[int, typer.Option(help="For how many days certificates are good.", min=1, max=3650)]


def create(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="Where the network's files go.")],
    agents: Annotated[str, typer.Option(metavar="NAMES", help="Names of the agents, with commas between them.")],
    listen: Annotated[
        str,
        typer.Option(
            metavar="HOST:PORT",
            help="Where agents are reached: an address each, with commas; or one, from which ports count up.",
        ),
    ],
    graph: Annotated[
        str,
        typer.Option(metavar="NAME", help=f"Who talks to whom: {', '.join(GRAPH_NAMES)}; agents in the order given."),
    ] = "ring",
    like: Annotated[
        Path | None,
        typer.Option(metavar="TABLE", help="An example table for the columns, made up or public: they become public."),
    ] = None,
    target: Annotated[str | None, typer.Option(metavar="COLUMN", help="With --like: the column to predict.")] = None,
    drop: Annotated[
        list[str] | None, typer.Option(metavar="COLUMN", help="With --like: a column to leave out; repeatable.")
    ] = None,
    kind: Annotated[
        str | None,
        typer.Option(
            metavar="classification|regression", help="What is learned.", show_default="told by --target of --like"
        ),
    ] = None,
    target_range: Annotated[
        str | None,
        typer.Option(metavar="LEAST,MOST", help="With --kind regression: the range of the target, without --like."),
    ] = None,
    name: Annotated[str | None, typer.Option(help="The network's name.", show_default="the folder's")] = None,
    rounds: Annotated[int, typer.Option(help="Rounds of messages.")] = 300,
    hidden: Annotated[int, typer.Option(help="Hidden units.")] = 300,
    rank: Annotated[
        str | None,
        typer.Option(
            help="Directions the agents share.", show_default="6, or one less than classes if more; auto with sums"
        ),
    ] = None,
    exchange: Annotated[
        str, typer.Option(metavar="basis|sums", help="What agents tell: U_t to neighbours only, or sums over all too.")
    ] = "basis",
    seed: Annotated[int, typer.Option(help="Seed of the hidden weights.")] = 0,
    router: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT",
            help="Have all messages go through a router there, for sites that nobody can connect to.",
            show_default="none",
        ),
    ] = None,
    days: DaysOption = 365,
    csr: Annotated[
        bool, typer.Option("--csr", help="Make no keys: sites make their own, and an authority of yours signs.")
    ] = False,
    force: ForceOption = False,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Make a network: its file, and for a trial an authority and a folder for each agent.

    Each agent's folder is complete, to be handed to its site in private: it holds the agent's key. Where keys must not
    leave their sites, use --csr, and elmesh network csr at each site.
    """
    output = Output(as_json, quiet)
    chosen = check_kind(kind)
    with output.warnings_as_notes():
        data = _data_spec(like, target, drop or [], chosen, target_range)
        config = netconfig.config_builder.build_config(
            name if name is not None else netconfig.config_builder.default_name(folder.absolute().name),
            [part.strip() for part in agents.split(",")],
            graph,
            [part.strip() for part in listen.split(",")],
            data,
            rounds=rounds,
            n_hidden=hidden,
            rank=_rank(rank, exchange, data),
            exchange=exchange,
            seed=seed,
            routers=() if router is None else (router,),
        )
    remark = "" if like is None else _what_is_public(config, like)
    network = netconfig.layout.NetworkLayout(folder, config)
    network.write(remark, days=days, keys=not csr, force=force)
    _tell_network(output, network, data, remark, csr=csr, target=target or "COLUMN")
    output.result(
        {
            "command": "network create",
            "network": config.name,
            "file": str(network.network_file),
            "digest": config.digest.hex(),
            "authority": None if csr else str(network.authority),
            "agents": [
                {
                    "name": agent.name,
                    "address": agent.address,
                    "neighbours": config.neighbors(agent.name),
                    "folder": None if csr else str(folder / agent.name),
                }
                for agent in config.agents
            ],
            "kind": config.kind,
            "columns": [column.name for column in config.columns],
            "public": remark or None,
        }
    )


def csr(
    network: Annotated[Path, typer.Argument(metavar="NETWORK", help="The network file, network.toml.")],
    agent: Annotated[str, typer.Option(metavar="NAME", help="The agent at this site.")],
    out: Annotated[Path, typer.Option(help="Folder for the agent's files.")],
    force: ForceOption = False,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """At a site: make the agent's key, which stays there, and a request for its certificate.

    The request holds no secret. Whoever runs the network's authority signs it, with elmesh network sign or with the
    tools of an authority that is there already, and sends back the certificate and the authority's own.
    """
    output = Output(as_json, quiet)
    request = netconfig.layout.create_agent_folder(network, agent, out, force=force)
    output.say(f"The key of {agent} is {out / 'key.pem'}: keep it there, and give it to nobody.")
    output.say(f"Send {request} to whoever runs the network's authority. What comes back goes to")
    output.say(f"  {out / 'certificate.pem'}  the certificate of {agent}")
    output.say(f"  {out / 'ca.pem'}  the certificate of the authority")
    output.say(f"Then: elmesh network check {out / 'agent.toml'}")
    output.result(
        {
            "command": "network csr",
            "agent": agent,
            "request": str(request),
            "key": str(out / "key.pem"),
            "certificate": str(out / "certificate.pem"),
            "authority": str(out / "ca.pem"),
        }
    )


def sign(
    authority: Annotated[Path, typer.Argument(metavar="AUTHORITY", help="The authority's folder, such as net/ca.")],
    request: Annotated[
        Path, typer.Argument(metavar="REQUEST", help="The request that a site sent, such as north.csr.")
    ],
    network: Annotated[Path, typer.Option(metavar="FILE", help="The network file; only its agents are signed for.")],
    out: Annotated[
        Path | None, typer.Option(help="Where the certificate goes.", show_default="beside the request")
    ] = None,
    days: DaysOption = 365,
    force: ForceOption = False,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Sign an agent's request with the authority that elmesh network create made.

    The certificate is for the agent whose name the request has and for the host that the network file says. Make sure
    that the request came from that site: whoever holds the certificate and its key is that agent.
    """
    output = Output(as_json, quiet)
    config = netconfig.config.NetworkConfig.read(network)
    agent, certificate = netconfig.layout.sign_request(authority, request, config, out, days=days, force=force)
    output.say(f"{certificate} is the certificate of {agent}, good for {count(days, 'day')}.")
    output.say(
        f"Send it back with {authority / 'ca.pem'}; beside {agent}'s agent.toml they are certificate.pem and ca.pem."
    )
    output.result(
        {
            "command": "network sign",
            "agent": agent,
            "certificate": str(certificate),
            "authority": str(authority / "ca.pem"),
        }
    )


def _rank(text: str | None, exchange: str, data: DataSpec) -> int | str:
    """Read a rank; the config checks it."""
    if text is None:
        # With fewer directions than there are between classes, some cannot be told apart.
        return "auto" if exchange == "sums" else max(6, data.n_classes - 1)
    return int(text) if text.isdecimal() and len(text) < 10 else text


def _data_spec(
    like: Path | None, target: str | None, drop: list[str], kind: ProblemKind | None, target_range: str | None
) -> DataSpec:
    """Find out about the columns, or that there are none yet."""
    if like is None:
        if target is not None or drop:
            raise ElmeshError(
                f"--{'drop' if target is None else 'target'} is about the table of --like; give that too."
            )
        return netconfig.data_spec.DataSpec(kind or "classification", target_range=_ends(target_range))
    if target is None:
        raise ElmeshError("--like needs --target, the column of the table that is to be predicted.")
    if target_range is not None:
        raise ElmeshError("--target-range is for a network without --like, which has the range from the table.")
    return netconfig.data_spec.DataSpec.from_table(read_table(like), target, kind, drop)


def _ends(text: str | None) -> tuple[float, float] | None:
    if text is None:
        return None
    try:
        least, most = map(float, text.split(","))
    except ValueError:
        raise ElmeshError(f'--target-range must be two numbers such as 0,100, not "{text}".') from None
    return least, most


def _what_is_public(config: NetworkConfig, like: Path) -> str:
    facts = "The columns, their ranges and categories, and whether values are missing"
    target = ", and the range of the target," if config.target_range is not None else ""
    return f"{facts}{target} were taken from {like.name}: whoever has this file knows these facts of that table."


def _tell_network(
    output: Output, network: NetworkLayout, data: DataSpec, remark: str, *, csr: bool, target: str
) -> None:
    config, folder, file = network.config, network.folder, network.network_file
    output.say(f"{file}: {count(len(config.agents), 'agent')}, {count(len(config.edges), 'edge')}, {config.kind}.")
    if remark:
        output.say(f"{config.kind.capitalize()}: {data.reason}.")
        output.note(remark)
    if csr:
        output.say(f"Send {file} to every site. There: elmesh network csr network.toml --agent NAME --out NAME/")
        output.say(
            "Have your authority sign each NAME.csr for client and server, with its common name and hosts as they are,"
        )
        output.say("and send back the certificate together with the authority's own.")
    else:
        output.say(f"{network.authority}: the authority. Its key signs for any agent: keep it to yourself.")
        for agent in config.agents:
            output.say(
                f"{folder / agent.name}: for {agent.name} at {agent.address}, with its key: hand it over in private."
            )
        if config.routers:
            output.say(
                f"{folder / ROUTER}: for the router at {config.routers[0]}; there: elmesh network router agent.toml"
            )
        output.say("Then at each site, with its own table:")
        some = config.agent_names[0]
        output.say(
            f"  elmesh agent {folder / some / 'agent.toml'} --data {some}.csv --target {target} --out {some}-model/"
        )
    if not config.columns:
        copies = "" if csr else ", and copy it over the network.toml in each agent's folder"
        output.note(f"{file} names no columns to learn from yet: add a section [[columns]] for each{copies}.")
