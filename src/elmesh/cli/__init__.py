"""The command ``elmesh``: one file per command, imported when it runs, so that ``elmesh --help`` starts fast."""

from __future__ import annotations

import importlib
import inspect
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command

from elmesh.cli.errors import BAD_INPUT, fail, handle_errors, print_error
from elmesh.errors import ElmeshError
from elmesh.version import __version__

__all__ = ["app", "main"]

# Packages of optional dependencies, and the extra that installs them.
_EXTRAS = {"cryptography": "network", "msgspec": "network"}

_SUMMARY = "Learn many small related data sets together, without pooling their data."
_NETWORK_SUMMARY = "Create, check and monitor a network of sites."


@dataclass(frozen=True)
class _CommandSpec:
    """A command: a function of a module of ``elmesh.cli``, by default of the same name; examples are lines."""

    name: str
    summary: str
    examples: str
    module: str | None = None


class _LazyCommand(TyperCommand):
    """A command that shows its summary without its module, and imports the module to run or to show its help."""

    def __init__(self, spec: _CommandSpec) -> None:
        super().__init__(name=spec.name, help=spec.summary)
        self._spec = spec

    @cached_property
    def loaded(self) -> Any:
        spec = self._spec
        function = getattr(_import(f"elmesh.cli.{spec.module or spec.name}"), spec.name)
        # typer keeps the line ends within a paragraph of help, and takes an empty line for one line end of an epilog.
        text = re.sub(r"(?<!\n)\n(?!\n)", " ", inspect.getdoc(function) or "")
        single = typer.Typer(add_completion=False, rich_markup_mode="rich", pretty_exceptions_enable=False)
        examples = [line.strip() for line in spec.examples.strip().splitlines()]
        single.command(spec.name, help=text, epilog="\n\n".join(["Examples:", *examples]))(handle_errors(function))
        return get_command(single)

    def make_context(self, *args: Any, **kwargs: Any) -> Any:
        return self.loaded.make_context(*args, **kwargs)


def _lazy_group(commands: Sequence[_CommandSpec]) -> type[TyperGroup]:
    """Return the class of a group of lazy commands, beside those that are added to it."""

    class LazyGroup(TyperGroup):
        def __init__(self, **settings: Any) -> None:
            super().__init__(**settings)
            self.commands = {spec.name: _LazyCommand(spec) for spec in commands} | dict(self.commands)

        def list_commands(self, ctx: Any) -> list[str]:
            return list(self.commands)

    return LazyGroup


def _import(module: str) -> Any:
    """Import a module; a missing optional dependency ends the command with a sentence."""
    try:
        return importlib.import_module(module)
    except ElmeshError as error:
        fail(str(error))
    except ModuleNotFoundError as error:
        package = str(error.name).partition(".")[0]
        if package not in _EXTRAS:
            raise
        fail(f'This command needs the package {package}; install it with: pip install "elmesh[{_EXTRAS[package]}]"')


_COMMANDS = [
    _CommandSpec(
        "demo",
        "Compare learning alone and together on bundled digits, and write an HTML report.",
        """
        elmesh demo
        elmesh demo --json
        """,
    ),
    _CommandSpec(
        "fit",
        "Fit the tasks of a table together and save the model.",
        """
        elmesh fit patients.csv --task site --target outcome --out model/
        elmesh fit sites/ --target dose --kind regression --rank 4 --graph star --out model/
        elmesh fit patients.parquet --task site --target outcome --drop patient_id --out model/ --force
        elmesh fit sites/ --target dose --out models/ --runtime mpi --ranks 4 --checkpoint state/ --restarts 3
        """,
    ),
    _CommandSpec(
        "predict",
        "Predict new rows with a saved model.",
        """
        elmesh predict model/ new.csv --out predictions.csv
        elmesh predict model/ new.csv --proba --quiet > predictions.csv
        """,
    ),
    _CommandSpec(
        "evaluate",
        "Score a saved model on rows with known targets.",
        """
        elmesh evaluate model/ test.csv
        elmesh evaluate model/ test.csv --json --quiet
        """,
    ),
    _CommandSpec(
        "reproduce",
        "Run the paper's experiments, and compare the results with its claims.",
        """
        elmesh reproduce table1 --runs 100 --out paper/
        elmesh reproduce all --out paper/
        elmesh reproduce fig3 --runs 20 --json --quiet
        """,
    ),
    _CommandSpec(
        "agent",
        "Run one site of a network, and save this site's model.",
        """
        elmesh agent net/north/agent.toml --data north.csv --target y --out north-model/
        elmesh agent north/agent.toml --data rows.parquet --target dose --out model/ --on-loss continue --patience 3600
        """,
    ),
]

_NETWORK_COMMANDS = [
    _CommandSpec(
        "create",
        "Create a network: its file, and for a trial an authority and one folder per agent.",
        """
        elmesh network create net/ --agents north,south --listen 127.0.0.1:7451 --like synthetic.csv --target y
        elmesh network create net/ --agents a,b --listen a.example.org:7451,b.example.org:7451 --csr
        """,
        "network_create",
    ),
    _CommandSpec(
        "csr",
        "At a site: make the agent's key, and a request for its certificate.",
        "elmesh network csr network.toml --agent north --out north/",
        "network_create",
    ),
    _CommandSpec(
        "sign",
        "Sign an agent's certificate request.",
        "elmesh network sign net/ca north.csr --network net/network.toml",
        "network_create",
    ),
    _CommandSpec(
        "check",
        "Check an agent's files, and its connections to its neighbours.",
        """
        elmesh network check net/north/agent.toml
        elmesh network check net/north/agent.toml --wait 600 --json
        """,
        "network_check",
    ),
    _CommandSpec(
        "status",
        "Show the state of an agent on this machine.",
        """
        elmesh network status net/north/agent.toml
        elmesh network status net/north/agent.toml --watch
        """,
        "network_status",
    ),
    _CommandSpec(
        "router", "Run the router of a network.", "elmesh network router net/router/agent.toml", "network_router"
    ),
]

app = typer.Typer(
    name="elmesh",
    cls=_lazy_group(_COMMANDS),
    help=_SUMMARY,
    epilog="Start with: elmesh demo",
    rich_markup_mode="rich",
    add_completion=False,
    pretty_exceptions_enable=False,
)
_network = typer.Typer(
    name="network",
    cls=_lazy_group(_NETWORK_COMMANDS),
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
