"""A command of elmesh in this process, as a test runs it: that it worked, or the sentence with which it was refused."""

from __future__ import annotations

from typer.testing import CliRunner, Result

from elmesh.cli import app

__all__ = ["Command"]


class Command:
    """A command, or a group of commands, without colours and with wide lines."""

    def __init__(self, *words: str) -> None:
        self._words = words

    def run(self, *args: object) -> Result:
        env = {"FORCE_COLOR": None, "NO_COLOR": "1", "COLUMNS": "200"}
        return CliRunner(env=env).invoke(app, [*self._words, *map(str, args)])

    def worked(self, *args: object) -> Result:
        result = self.run(*args)
        assert result.exit_code == 0, result.output
        return result

    def refused(self, *args: object) -> str:
        """Return the error message of a command that has printed no result."""
        result = self.run(*args)
        assert result.exit_code == 2, result.output
        assert result.stdout == ""
        sentence = result.stderr.splitlines()[-1]
        assert sentence.startswith("elmesh: ")
        return sentence
