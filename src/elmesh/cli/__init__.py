"""The command ``elmesh``: one file per command, imported when it runs, so that ``elmesh --help`` starts fast."""

from __future__ import annotations

import importlib
import inspect
import re
import sys
from collections.abc import Sequence
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


class _LazyCommand(TyperCommand):
    """A command that shows its summary at once, and imports its function to run or to show its help.

    The function is in a module of ``elmesh.cli``, by default of the same name.
    """

    def __init__(self, name: str, summary: str, *examples: str, module: str = "") -> None:
        super().__init__(name=name, help=summary)
        self._function, self._module, self._examples = name, module or name, examples

    @cached_property
    def loaded(self) -> Any:
        """The command with its options."""
        function = getattr(_import(f"elmesh.cli.{self._module}"), self._function.replace("-", "_"))
        # typer keeps the line ends within a paragraph of help, and takes an empty line for one line end of an epilog.
        text = re.sub(r"(?<!\n)\n(?!\n)", " ", inspect.getdoc(function) or "")
        single = typer.Typer(add_completion=False, rich_markup_mode="rich", pretty_exceptions_enable=False)
        epilog = "\n\n".join(["Examples:", *self._examples])
        single.command(self._function, help=text, epilog=epilog)(handle_errors(function))
        return get_command(single)

    def make_context(self, *args: Any, **kwargs: Any) -> Any:
        return self.loaded.make_context(*args, **kwargs)


def _lazy_group(commands: Sequence[_LazyCommand]) -> type[TyperGroup]:
    """Return the class of a group of lazy commands, beside those that are added to it."""

    class LazyGroup(TyperGroup):
        def __init__(self, **settings: Any) -> None:
            super().__init__(**settings)
            self.commands = {str(command.name): command for command in commands} | dict(self.commands)

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
    _LazyCommand(
        "demo",
        "Compare learning alone, pooled and together on simulated clinics, and write an HTML report.",
        "elmesh demo",
        "elmesh demo --json",
    ),
    _LazyCommand(
        "sample",
        "Write small tables to try the other commands with.",
        "elmesh sample clinics/",
    ),
    _LazyCommand(
        "fit",
        "Fit the sites of a table together and save the model.",
        "elmesh fit patients.csv --task site --target outcome --out model/",
        "elmesh fit sites/ --target dose --kind regression --rank 4 --graph star --out model/",
        "elmesh fit sites/ --target dose --parts shared --message-bits 4 --out model/",
        "elmesh fit patients.parquet --task site --target outcome --drop patient_id --out model/ --force",
        'elmesh fit "duckdb://warehouse.db?table=visits" --task site --target days --weight n --out model/',
        "elmesh fit sites/ --target dose --out models/ --runtime mpi --ranks 4 --checkpoint state/ --restarts 3",
    ),
    _LazyCommand(
        "tune",
        "Choose settings on rows left out, fit the table with them and save the model.",
        "elmesh tune patients.csv --task site --target outcome --out model/",
        "elmesh tune patients.csv --task site --target dose --hidden 50,200,500 --weight-scale 1,4 --weight-scale 0.3 "
        "--out model/",
        "elmesh tune sites/ --target dose --parts shared --rank 2,4,8 --mu 0.3,1,3,10 --out model/",
    ),
    _LazyCommand(
        "predict",
        "Predict new rows with a saved model.",
        "elmesh predict model/ new.csv --out predictions.csv",
        "elmesh predict model/ new.csv --id patient --out predictions.csv",
        "elmesh predict model/ new.csv --proba --quiet > predictions.csv",
    ),
    _LazyCommand(
        "evaluate",
        "Score a saved model on rows with known targets.",
        "elmesh evaluate model/ test.csv --out scores/",
        "elmesh evaluate model/ test.csv --json --quiet",
    ),
    _LazyCommand(
        "compare",
        "Compare elmesh with each site alone, and with other methods, on a table.",
        "elmesh compare patients.csv --task site --target outcome --out comparison/",
        "elmesh compare patients.csv --task site --target dose --methods elmesh-alone,boosting-pooled --repeats 1",
    ),
    _LazyCommand(
        "add-site",
        "Add a site to a saved model, from its own rows alone.",
        "elmesh add-site model/ leeds.csv --site leeds",
        "elmesh add-site model/ leeds.csv --site leeds --out model-with-leeds/",
        module="add_site",
    ),
    _LazyCommand(
        "update",
        "Learn from further rows as well, without the earlier ones.",
        "elmesh update model/ november.csv",
        "elmesh update model/ leeds-november.csv --site leeds",
        "elmesh update model/ november.csv --out model-november/",
    ),
    _LazyCommand(
        "forget",
        "Learn again as if some rows had never been there.",
        "elmesh forget model/ withdrawn.csv",
        "elmesh forget model/ withdrawn.csv --out model-without/ --json",
        module="update",
    ),
    _LazyCommand(
        "versions",
        "List the versions of a model that is learned by a schedule.",
        "elmesh versions north-model/",
        "elmesh versions north-model/ --json",
    ),
    _LazyCommand(
        "rollback",
        "Return to an earlier version of a model.",
        "elmesh rollback north-model/",
        "elmesh rollback north-model/ --to 3",
        module="versions",
    ),
    _LazyCommand(
        "export",
        "Export one site's model as an ONNX file, for other programs.",
        "elmesh export model/ --site leeds --onnx leeds.onnx",
        "elmesh export model/ --common --onnx new-site.onnx --json",
    ),
    _LazyCommand(
        "reproduce",
        "Run the paper's experiments, and compare the results with its claims.",
        "elmesh reproduce table1 --runs 100 --out paper/",
        "elmesh reproduce all --out paper/",
        "elmesh reproduce fig3 --runs 20 --json --quiet",
    ),
    _LazyCommand(
        "agent",
        "Run one site of a network, and save this site's model.",
        "elmesh agent net/north/agent.toml --data north.csv --target y --out north-model/",
        "elmesh agent north/agent.toml --data rows.parquet --target dose --out model/ --on-loss continue "
        "--patience 3600",
        "elmesh agent north/agent.toml --data rows.parquet --target dose --out model/ --at 02:00Z",
    ),
]

_NETWORK_COMMANDS = [
    _LazyCommand(
        "create",
        "Create a network: its file, an authority, and a folder or an invitation per agent.",
        "elmesh network create net/ --agents north,south,west --listen 127.0.0.1:7451 --like synthetic.csv --target y",
        "elmesh network create net/ --agents a,b,c --listen a.org:7451,b.org:7451,c.org:7451 --csr",
        module="network_create",
    ),
    _LazyCommand(
        "invite",
        "Write the invitations of a network again, after a change of its file or its authority.",
        "elmesh network invite net/ --force",
        module="network_join",
    ),
    _LazyCommand(
        "join",
        "At a site: join a network with an invitation, step by step.",
        "elmesh network join north.toml",
        "elmesh network join north.toml --certificate north.pem",
        "elmesh network join north.toml --certificate north.pem --data north.csv --target y",
        module="network_join",
    ),
    _LazyCommand(
        "csr",
        "At a site: make the agent's key, and a request for its certificate.",
        "elmesh network csr network.toml --agent north --out north/",
        module="network_create",
    ),
    _LazyCommand(
        "sign",
        "Sign an agent's certificate request.",
        "elmesh network sign net/ca north.csr --network net/network.toml",
        module="network_create",
    ),
    _LazyCommand(
        "check",
        "Check an agent's files, and its connections to its neighbours.",
        "elmesh network check net/north/agent.toml",
        "elmesh network check net/north/agent.toml --wait 600 --json",
        module="network_check",
    ),
    _LazyCommand(
        "status",
        "Show the state of an agent on this machine.",
        "elmesh network status net/north/agent.toml",
        "elmesh network status net/north/agent.toml --watch",
        module="network_status",
    ),
    _LazyCommand(
        "page",
        "Show a live page of an agent, for browsers of this machine.",
        "elmesh network page net/north/agent.toml",
        "elmesh network page net/north/agent.toml --listen 127.0.0.1:9000",
        module="network_page",
    ),
    _LazyCommand(
        "audit",
        "Show and verify the log of all that has left a site.",
        "elmesh network audit net/north/agent.toml",
        "elmesh network audit net/north/agent.toml --all --json",
        module="network_audit",
    ),
    _LazyCommand(
        "confirm",
        "Confirm, or refuse, what an agent on this machine wants to release.",
        "elmesh network confirm net/north/agent.toml",
        "elmesh network confirm net/north/agent.toml --refuse",
        module="network_confirm",
    ),
    _LazyCommand(
        "renew",
        "At a site: renew the certificate of an agent, which may run meanwhile.",
        "elmesh network renew north/agent.toml",
        "elmesh network renew north/agent.toml --certificate north.pem",
        module="network_renew",
    ),
    _LazyCommand(
        "trust",
        "At a site: trust other authorities, when the network's is replaced.",
        'elmesh network trust north/agent.toml ca.pem --fingerprint "d96d ab0e b97d 3bcf 5f86 e655 ddaf 9df5"',
        "elmesh network trust north/agent.toml ca.pem",
        module="network_renew",
    ),
    _LazyCommand(
        "revoke",
        "Revoke the certificates of an agent.",
        "elmesh network revoke net/ north",
        "elmesh network revoke net/",
        module="network_keep",
    ),
    _LazyCommand(
        "rotate",
        "Replace the authority of a network.",
        "elmesh network rotate net/",
        "elmesh network rotate net/ --finish",
        module="network_keep",
    ),
    _LazyCommand(
        "unit",
        "Print a systemd unit that runs an agent with few rights.",
        "elmesh network unit north/agent.toml --data /srv/north.csv --target y --model /srv/models/north",
        "elmesh network unit north/agent.toml --data /srv/north.csv --target y --model /srv/models/north "
        "--at 02:00Z --write /etc/systemd/system",
        module="network_unit",
    ),
    _LazyCommand(
        "router",
        "Run the router of a network.",
        "elmesh network router net/router/agent.toml",
        module="network_router",
    ),
]

app = typer.Typer(
    name="elmesh",
    cls=_lazy_group(_COMMANDS),
    help="Learn many small related data sets together, without pooling their data.",
    epilog="Start with: elmesh demo",
    rich_markup_mode="rich",
    add_completion=False,
    pretty_exceptions_enable=False,
)
_network = typer.Typer(
    name="network",
    cls=_lazy_group(_NETWORK_COMMANDS),
    help="Create, check and monitor a network of sites.",
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
