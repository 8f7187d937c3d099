"""The command ``elmesh``: one file a command, and this one to put them together."""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable
from typing import Annotated

import typer

import elmesh
from elmesh.cli.console import BAD_INPUT, complain, guard
from elmesh.cli.demo import demo
from elmesh.cli.evaluate import evaluate
from elmesh.cli.fit import fit
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


def _add(command: Callable[..., None], *examples: str) -> None:
    # typer keeps the line ends within a paragraph of help, and takes an empty line for one line end of an epilog.
    words = re.sub(r"(?<!\n)\n(?!\n)", " ", inspect.getdoc(command) or "")
    app.command(help=words, epilog="\n\n".join(["Examples:", *examples]))(guard(command))


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
