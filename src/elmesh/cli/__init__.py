"""The command ``elmesh``: one file a command, and this one to put them together."""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable
from typing import Annotated

import typer

import elmesh
from elmesh.cli.agent import agent
from elmesh.cli.console import BAD_INPUT, complain, guard
from elmesh.cli.demo import demo
from elmesh.cli.evaluate import evaluate
from elmesh.cli.fit import fit
from elmesh.cli.network import create, csr, sign
from elmesh.cli.network_look import check, status
from elmesh.cli.network_router import router
from elmesh.cli.predict import predict
from elmesh.cli.reproduce import reproduce

__all__ = ["app", "main"]

app = typer.Typer(
    name="elmesh",
    help="Learn many small related data sets together, without their data meeting.",
    epilog="Start with: elmesh demo",
    rich_markup_mode="rich",
    add_completion=False,
    pretty_exceptions_enable=False,
)


@app.callback(invoke_without_command=True)
def start(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version.", is_eager=True)] = False,
) -> None:
    """Learn many small related data sets together, without their data meeting."""
    if version:
        typer.echo(f"elmesh {elmesh.__version__}")
    elif context.invoked_subcommand is None:
        typer.echo(context.get_help())
    else:
        return
    raise typer.Exit


network_commands = typer.Typer(
    name="network",
    help="Make and look after a network of sites.",
    epilog="Start with: elmesh network create --help",
)
app.add_typer(network_commands)


@network_commands.callback(invoke_without_command=True)
def about_network(context: typer.Context) -> None:
    """Make and look after a network of sites."""
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


def _add(command: Callable[..., None], *examples: str, to: typer.Typer = app) -> None:
    # typer keeps the line ends within a paragraph of help, and takes an empty line for one line end of an epilog.
    words = re.sub(r"(?<!\n)\n(?!\n)", " ", inspect.getdoc(command) or "")
    to.command(help=words, epilog="\n\n".join(["Examples:", *examples]))(guard(command))


_add(demo, "elmesh demo", "elmesh demo --json")
_add(
    fit,
    "elmesh fit patients.csv --task site --target outcome --out model/",
    "elmesh fit sites/ --target dose --kind regression --rank 4 --graph star --out model/",
    "elmesh fit patients.parquet --task site --target outcome --drop patient_id --out model/ --force",
)
_add(
    predict,
    "elmesh predict model/ new.csv --out predictions.csv",
    "elmesh predict model/ new.csv --proba --quiet > predictions.csv",
)
_add(
    reproduce,
    "elmesh reproduce table1 --runs 100 --out paper/",
    "elmesh reproduce all --out paper/",
    "elmesh reproduce fig3 --runs 20 --json --quiet",
)
_add(evaluate, "elmesh evaluate model/ test.csv", "elmesh evaluate model/ test.csv --json --quiet")
_add(
    create,
    "elmesh network create net/ --agents north,south,east,west --listen 127.0.0.1:7451 --like made-up.csv --target y",
    "elmesh network create net/ --agents a,b --listen a.example.org:7451,b.example.org:7451 --csr",
    to=network_commands,
)
_add(
    agent,
    "elmesh agent net/north/agent.toml --data north.csv --target y --out north-model/",
    "elmesh agent north/agent.toml --data rows.parquet --target dose --out model/ --on-loss continue --patience 3600",
)
_add(
    check,
    "elmesh network check net/north/agent.toml",
    "elmesh network check net/north/agent.toml --wait 600 --json",
    to=network_commands,
)
_add(
    status,
    "elmesh network status net/north/agent.toml",
    "elmesh network status net/north/agent.toml --watch",
    to=network_commands,
)
_add(router, "elmesh network router net/router/agent.toml", to=network_commands)
_add(csr, "elmesh network csr network.toml --agent north --out north/", to=network_commands)
_add(sign, "elmesh network sign net/ca north.csr --network net/network.toml", to=network_commands)


def main() -> None:
    """Run the command line; a misuse of it, too, is one sentence and exit code 2."""
    try:
        code = app(prog_name="elmesh", standalone_mode=False)
    except Exception as error:
        # What typer raises on an unknown option has no public name that is the same in all its versions.
        if not hasattr(error, "format_message"):
            raise
        message = error.format_message()
        complain(f"{message}{'' if message.endswith(('.', '?')) else '.'} See elmesh --help.")
        code = BAD_INPUT
    sys.exit(code)
