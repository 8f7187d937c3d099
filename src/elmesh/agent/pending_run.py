"""A scheduled run that has begun: a copy of its table, and how far it has come, for an agent that is killed.

Rows that come in while a run is under way belong to the next one, and a run that is resumed must have the rows that it
began with: so the table is copied into the agent's folder, and removed when the run is over.
"""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

from elmesh.files import atomic_write

__all__ = ["PendingRun"]

_FILE = "scheduled-run.json"


class PendingRun:
    """The files of a run that has begun.

    Parameters
    ----------
    state : Path
        The agent's folder.
    data : Path
        The table, to which rows are added meanwhile.
    """

    def __init__(self, state: Path, data: Path) -> None:
        self._data, self._file = data, state / _FILE
        #: The table of the run.
        self.table = state / f"scheduled-table-{data.name}"

    def exists(self) -> bool:
        """Return whether a run has begun and is not over."""
        return self._file.exists()

    def freeze_table(self) -> None:
        """Copy the table, complete or not at all; only this user can read it."""
        partial = self.table.with_name(f".{self.table.name}.partial")
        descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with open(self._data, "rb") as source, os.fdopen(descriptor, "wb") as copy:
            shutil.copyfileobj(source, copy)
        partial.replace(self.table)

    def read(self) -> dict[str, Any] | None:
        """Return how far the run has come; None if none has begun."""
        try:
            found = json.loads(self._file.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None
        return found if isinstance(found, dict) and self.table.exists() else None

    def write(self, content: dict[str, Any]) -> None:
        """Record how far the run has come."""
        atomic_write(self._file, json.dumps(content).encode(), mode=0o600)

    def end(self) -> None:
        """Record that the run is over."""
        self._file.unlink(missing_ok=True)

    def drop_table(self) -> None:
        """Remove the copy of the table, unless a run that has begun is to be resumed with it."""
        if not self.exists():
            self.table.unlink(missing_ok=True)
