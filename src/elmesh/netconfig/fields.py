"""Values out of a TOML file that nobody vouches for.

The file may come from another organisation, or from somebody who mistyped a name. So each value is taken by name and
type, and whatever is not expected is an error that says which field it is and what may be there.
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from elmesh.errors import ElmeshError
from elmesh.text import more

__all__ = ["Fields", "parse_toml", "read_text", "suggest"]


def read_text(path: Path, what: str, most_bytes: int) -> str:
    """Read a text file that is not larger than it can be.

    Parameters
    ----------
    path
        The file.
    what
        What it is called in errors, such as ``network file``.
    most_bytes
        How many bytes it may have.
    """
    if not path.is_file():
        raise ElmeshError(f"There is no {what} {path}.")
    with path.open("rb") as file:
        data = file.read(most_bytes + 1)
    if len(data) > most_bytes:
        raise ElmeshError(f"{path} has more than {most_bytes} bytes, too many for a {what}.")
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        raise ElmeshError(f"{path} is not a {what}: it is not UTF-8 text.") from None


def parse_toml(text: str) -> Fields:
    """Read TOML.

    Examples
    --------
    >>> parse_toml("rounds = 3").whole("rounds", 1, 10)
    3
    >>> parse_toml("round = 3").only("rounds", "name")
    Traceback (most recent call last):
    elmesh.errors.ElmeshError: The field "round" is unknown; did you mean "rounds"? The known ones are rounds, name.
    """
    try:
        return Fields(tomllib.loads(text), "")
    except RecursionError:
        raise ElmeshError("This is not a file of ours: it is nested too deeply.") from None
    except ValueError as error:  # of a number with thousands of digits, too
        reason = str(error).split("\n", maxsplit=1)[0][:200]
        raise ElmeshError(f"This is not TOML: {reason}.") from None


def suggest(name: str, known: Sequence[str]) -> str:
    """Say what somebody may have meant, and all that there is.

    Examples
    --------
    >>> suggest("colour", ["size", "shape"])
    'the known ones are size, shape.'
    """
    close = get_close_matches(name, known, n=1)
    meant = f'did you mean "{close[0]}"? The' if close else "the"
    return f"{meant} known ones are {', '.join(known)}."


@dataclass(frozen=True)
class Fields:
    """One table of a TOML file, read field by field.

    Attributes
    ----------
    data
        Its fields.
    path
        What the table is called in errors; empty for the file itself.
    """

    data: dict[str, Any]
    path: str

    def only(self, *known: str) -> None:
        """Refuse any other fields than these."""
        for name in self.data:
            if name not in known:
                raise ElmeshError(f'The field "{self.place(name[:60])}" is unknown; {suggest(name, known)}')

    def has(self, name: str) -> bool:
        """Tell whether a field is there."""
        return name in self.data

    def text(self, name: str, otherwise: str | None = None) -> str:
        """Take a text."""
        found: str = self._take(name, otherwise, lambda value: isinstance(value, str), "a text in quotes")
        return found

    def flag(self, name: str, otherwise: bool | None = None) -> bool:
        """Take true or false."""
        found: bool = self._take(name, otherwise, lambda value: isinstance(value, bool), "true or false")
        return found

    def whole(self, name: str, least: int, most: int, otherwise: int | None = None) -> int:
        """Take a whole number between two."""

        def good(value: object) -> bool:
            return isinstance(value, int) and not isinstance(value, bool) and least <= value <= most

        found: int = self._take(name, otherwise, good, f"a whole number from {least} to {most}")
        return found

    def positive(self, name: str, otherwise: float | None = None) -> float:
        """Take a finite number above 0."""

        def good(value: object) -> bool:
            return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value <= 1e300

        return float(self._take(name, otherwise, good, "a finite number above 0"))

    def items(self, name: str, of: type, what: str, otherwise: list[Any] | None = None) -> list[Any]:
        """Take a list of values of one type."""

        def good(value: object) -> bool:
            return isinstance(value, list) and all(isinstance(item, of) for item in value)

        found: list[Any] = self._take(name, otherwise, good, what)
        return found

    def table(self, name: str) -> Fields:
        """Take a table, an empty one where there is none."""
        found = self._take(name, {}, lambda value: isinstance(value, dict), f"a table, that is a section [{name}]")
        return Fields(found, self.place(name))

    def tables(self, name: str, most: int) -> list[Fields]:
        """Take a list of tables."""
        found = self.items(name, dict, f"a list of tables, that is sections [[{name}]]", [])
        if len(found) > most:
            raise ElmeshError(f"There are {len(found)} {name}; {most} are the most.")
        return [Fields(item, f"{self.place(name)}[{i}]") for i, item in enumerate(found)]

    def place(self, name: str) -> str:
        """Say where a field is."""
        return f"{self.path}.{name}" if self.path else name

    def _take(self, name: str, otherwise: Any, good: Callable[[object], bool], expected: str) -> Any:
        if name not in self.data:
            if otherwise is None:
                raise ElmeshError(f'The field "{self.place(name)}" is not there; expected {expected}.')
            return otherwise
        value = self.data[name]
        if not good(value):
            raise ElmeshError(f'The field "{self.place(name)}" is {_shown(value)}; expected {expected}.')
        return value


def _shown(value: object) -> str:
    """Show a value in a sentence, not more of it than fits."""
    if isinstance(value, float) and not math.isfinite(value):
        return f"{value}"
    if isinstance(value, dict):
        return f"a table of {', '.join(list(value)[:5])}{more(len(value), 5)}" if value else "an empty table"
    if isinstance(value, int) and not -(10**40) < value < 10**40:
        return "a number of more than 40 digits"
    text = str(value).lower() if isinstance(value, bool) else repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
