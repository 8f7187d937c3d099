"""Exit codes, and commands that end with one sentence on standard error where they would end with a traceback."""

from __future__ import annotations

import functools
import os
import re
import sys
from collections.abc import Callable
from typing import Any, NoReturn

import typer

from elmesh.errors import ElmeshError

__all__ = [
    "BAD_INPUT",
    "INTERRUPTED",
    "LOST",
    "REFUSED",
    "UNSOUND",
    "check_option",
    "describe_os_error",
    "fail",
    "handle_errors",
    "one_line",
    "print_error",
]

#: Exit codes: a check found a problem; bad input; a rank or a neighbour was lost; a neighbour sent an invalid message;
#: Ctrl-C.
UNSOUND, BAD_INPUT, LOST, REFUSED, INTERRUPTED = 1, 2, 3, 4, 130


def handle_errors(function: Callable[..., None]) -> Callable[..., None]:
    """Wrap a command so that an expected error ends it with a sentence and an exit code."""

    @functools.wraps(function)
    def run(*args: Any, **kwargs: Any) -> None:
        try:
            function(*args, **kwargs)
        except ElmeshError as error:
            fail(str(error))
        except BrokenPipeError:
            # The reader of standard output has closed it. Python flushes once more at exit, which must not fail.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise typer.Exit(1) from None
        except OSError as error:
            fail(describe_os_error(error))
        except MemoryError:
            fail("There is not enough memory for this; use fewer hidden units or fewer rows.")
        except KeyboardInterrupt:
            fail("Aborted.", INTERRUPTED)

    return run


def fail(message: str, code: int = BAD_INPUT) -> NoReturn:
    """End the command with a sentence on standard error and an exit code."""
    print_error(message)
    raise typer.Exit(code)


def print_error(message: str) -> None:
    """Print an error on standard error."""
    sys.stderr.write(f"elmesh: {one_line(message)}\n")


def describe_os_error(error: OSError) -> str:
    """Return an error of the system as a sentence."""
    name = f" {error.filename}" if error.filename is not None else ""
    return f"Cannot read or write{name}: {(error.strerror or str(error)).lower()}."


def check_option(name: str, value: str, *choices: str) -> None:
    """Raise unless the value of an option is one of the choices."""
    if value not in choices:
        raise ElmeshError(f'{name} must be {" or ".join(choices)}, not "{value}".')


def one_line(text: str) -> str:
    """Return text from a user's file without control characters, so that a terminal can show it."""
    return re.sub(r"[\x00-\x1f\x7f-\x9f]+", " ", text)
