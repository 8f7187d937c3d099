"""Commands that are imported when they run, so that ``elmesh --help`` starts fast."""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command

from elmesh.cli.errors import fail, handle_errors
from elmesh.errors import ElmeshError

__all__ = ["CommandSpec", "LazyCommand", "lazy_group"]

# Packages of optional dependencies, and the extra that installs them.
_EXTRAS = {"cryptography": "network", "msgspec": "network"}


@dataclass(frozen=True)
class CommandSpec:
    """A command: a function of a module of ``elmesh.cli``, by default of the same name; examples are lines."""

    name: str
    summary: str
    examples: str
    module: str | None = None


class LazyCommand(TyperCommand):
    """A command that shows its summary without its module, and imports the module to run or to show its help."""

    def __init__(self, spec: CommandSpec) -> None:
        super().__init__(name=spec.name, help=spec.summary)
        self._spec = spec

    @cached_property
    def loaded(self) -> Any:
        """The command itself, with its options."""
        spec = self._spec
        function = getattr(_import(f"elmesh.cli.{spec.module or spec.name}"), spec.name)
        # typer keeps the line ends within a paragraph of help, and takes an empty line for one line end of an epilog.
        text = re.sub(r"(?<!\n)\n(?!\n)", " ", inspect.getdoc(function) or "")
        single = typer.Typer(add_completion=False, rich_markup_mode="rich", pretty_exceptions_enable=False)
        examples = [line.strip() for line in spec.examples.strip().splitlines()]
        single.command(spec.name, help=text, epilog="\n\n".join(["Examples:", *examples]))(handle_errors(function))
        return get_command(single)

    def make_context(self, *args: Any, **kwargs: Any) -> Any:
        """Import the command, and parse its arguments."""
        return self.loaded.make_context(*args, **kwargs)


def lazy_group(commands: Sequence[CommandSpec]) -> type[TyperGroup]:
    """Return the class of a group of lazy commands, beside those that are added to it."""

    class LazyGroup(TyperGroup):
        def __init__(self, **settings: Any) -> None:
            super().__init__(**settings)
            self.commands = {spec.name: LazyCommand(spec) for spec in commands} | dict(self.commands)

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
