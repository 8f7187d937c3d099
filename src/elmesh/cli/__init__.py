"""The command ``elmesh``: one file per command, imported when it runs."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from elmesh.cli.errors import BAD_INPUT, print_error
from elmesh.cli.lazy import CommandSpec, lazy_group
from elmesh.version import __version__

__all__ = ["app", "main"]

_SUMMARY = "Learn many small related data sets together, without pooling their data."
_NETWORK_SUMMARY = "Create, check and monitor a network of sites."

_COMMANDS = [
    CommandSpec(
        "demo",
        "Compare learning alone and together on bundled digits, and write an HTML report.",
        """
        elmesh demo
        elmesh demo --json
        """,
    ),
    CommandSpec(
        "fit",
        "Fit the tasks of a table together and save the model.",
        """
        elmesh fit patients.csv --task site --target outcome --out model/
        elmesh fit sites/ --target dose --kind regression --rank 4 --graph star --out model/
        elmesh fit patients.parquet --task site --target outcome --drop patient_id --out model/ --force
        elmesh fit sites/ --target dose --out models/ --runtime mpi --ranks 4 --checkpoint state/ --restarts 3
        """,
    ),
    CommandSpec(
        "predict",
        "Predict new rows with a saved model.",
        """
        elmesh predict model/ new.csv --out predictions.csv
        elmesh predict model/ new.csv --proba --quiet > predictions.csv
        """,
    ),
    CommandSpec(
        "evaluate",
        "Score a saved model on rows with known targets.",
        """
        elmesh evaluate model/ test.csv
        elmesh evaluate model/ test.csv --json --quiet
        """,
    ),
    CommandSpec(
        "reproduce",
        "Run the paper's experiments, and compare the results with its claims.",
        """
        elmesh reproduce table1 --runs 100 --out paper/
        elmesh reproduce all --out paper/
        elmesh reproduce fig3 --runs 20 --json --quiet
        """,
    ),
    CommandSpec(
        "agent",
        "Run one site of a network, and save this site's model.",
        """
        elmesh agent net/north/agent.toml --data north.csv --target y --out north-model/
        elmesh agent north/agent.toml --data rows.parquet --target dose --out model/ --on-loss continue --patience 3600
        """,
    ),
]

_NETWORK_COMMANDS = [
    CommandSpec(
        "create",
        "Create a network: its file, and for a trial an authority and one folder per agent.",
        """
        elmesh network create net/ --agents north,south --listen 127.0.0.1:7451 --like synthetic.csv --target y
        elmesh network create net/ --agents a,b --listen a.example.org:7451,b.example.org:7451 --csr
        """,
        "network_create",
    ),
    CommandSpec(
        "csr",
        "At a site: make the agent's key, and a request for its certificate.",
        "elmesh network csr network.toml --agent north --out north/",
        "network_certificates",
    ),
    CommandSpec(
        "sign",
        "Sign an agent's certificate request.",
        "elmesh network sign net/ca north.csr --network net/network.toml",
        "network_certificates",
    ),
    CommandSpec(
        "check",
        "Check an agent's files, and its connections to its neighbours.",
        """
        elmesh network check net/north/agent.toml
        elmesh network check net/north/agent.toml --wait 600 --json
        """,
        "network_check",
    ),
    CommandSpec(
        "status",
        "Show the state of an agent on this machine.",
        """
        elmesh network status net/north/agent.toml
        elmesh network status net/north/agent.toml --watch
        """,
        "network_status",
    ),
    CommandSpec(
        "router", "Run the router of a network.", "elmesh network router net/router/agent.toml", "network_router"
    ),
]

app = typer.Typer(
    name="elmesh",
    cls=lazy_group(_COMMANDS),
    help=_SUMMARY,
    epilog="Start with: elmesh demo",
    rich_markup_mode="rich",
    add_completion=False,
    pretty_exceptions_enable=False,
)
_network = typer.Typer(
    name="network",
    cls=lazy_group(_NETWORK_COMMANDS),
    help=_NETWORK_SUMMARY,
    epilog="Start with: elmesh network create --help",
)
app.add_typer(_network)


@app.callback(invoke_without_command=True)
def _start(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version.", is_eager=True)] = False,
) -> None:
    if version:
        typer.echo(f"elmesh {__version__}")
    elif context.invoked_subcommand is None:
        typer.echo(context.get_help())
    else:
        return
    raise typer.Exit


@_network.callback(invoke_without_command=True)
def _start_network(context: typer.Context) -> None:
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


def main() -> None:
    """Run the command line; a usage error is one sentence and exit code 2 as well."""
    try:
        code = app(prog_name="elmesh", standalone_mode=False)
    except Exception as error:
        # What typer raises on an unknown option has no public name that is the same in all its versions.
        if not hasattr(error, "format_message"):
            raise
        message = error.format_message()
        print_error(f"{message}{'' if message.endswith(('.', '?')) else '.'} See elmesh --help.")
        code = BAD_INPUT
    sys.exit(code)
