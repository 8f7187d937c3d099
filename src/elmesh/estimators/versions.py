"""Versions of a model: numbered folders beside it, of which one is in its place.

The versions of ``model/`` are the folders ``model.versions/1``, ``2`` and so on: complete models, each with a file of
facts beside it (``1.json``). ``model/`` itself is a copy of one of them, so that every command takes it as any other
model. A switch to another version copies that beside ``model/`` and exchanges the two in one step: whoever reads the
model finds the former version or the new one, never a mixture, and no link is needed.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from elmesh.errors import ElmeshError
from elmesh.files import atomic_write, replace_folder

__all__ = ["ModelVersions"]

_DOCUMENT, _STAGING = "model.json", "new"


class ModelVersions:
    """The versions of the model in a folder.

    Parameters
    ----------
    model : Path
        The folder of the model; it need not exist yet.

    Examples
    --------
    >>> ModelVersions(Path("models/north")).folder.as_posix()
    'models/north.versions'
    """

    def __init__(self, model: Path) -> None:
        self.model = model
        #: The folder of all versions.
        self.folder = model.with_name(f"{model.name}.versions")
        #: Where a version is before it has a number.
        self.staging = self.folder / _STAGING

    def numbers(self) -> list[int]:
        """Return the numbers of all versions, the oldest first."""
        return sorted(int(path.parent.name) for path in self.folder.glob(f"[0-9]*/{_DOCUMENT}"))

    def current(self) -> int | None:
        """Return the number of the version that is in the model's place; None if it is none of them."""
        model = self.model / _DOCUMENT
        if not model.is_file():
            return None
        # A model's document has the checksum of its weights.
        content = model.read_bytes()
        same = [n for n in self.numbers() if (self.folder / str(n) / _DOCUMENT).read_bytes() == content]
        return same[-1] if same else None

    def facts(self, number: int) -> dict[str, Any]:
        """Return what is known of a version; nothing if its file is missing or no JSON."""
        try:
            found = json.loads((self.folder / f"{number}.json").read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError):
            return {}
        return found if isinstance(found, dict) else {}

    def prepare(self) -> None:
        """Make the folder of versions; a model that is there already, and is none of them, becomes one."""
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        if (self.model / _DOCUMENT).is_file() and self.current() is None:
            copy = _copied(self.model, self.folder)
            copy.rename(self.folder / str(self._next()))

    def add(self, facts: Mapping[str, Any]) -> int:
        """Give the model in the staging folder the next number, and put it in the model's place; return the number."""
        number = self._next()
        atomic_write(self.folder / f"{number}.json", json.dumps(dict(facts)).encode(), mode=0o600)
        self.staging.rename(self.folder / str(number))
        self.switch(number)
        return number

    def switch(self, number: int) -> None:
        """Put a version in the model's place, in one step."""
        if number not in self.numbers():
            known = ", ".join(map(str, self.numbers())) or "none"
            raise ElmeshError(f"There is no version {number} of {self.model}; there are {known}.")
        target = Path(os.path.realpath(self.model))  # the folder that is exchanged must not be a link
        copy = _copied(self.folder / str(number), target.parent)
        try:
            replace_folder(copy, target)
        finally:
            shutil.rmtree(copy, ignore_errors=True)  # an incomplete copy, or the former model

    def prune(self, keep: int) -> None:
        """Remove the oldest versions, but for so many and the current one."""
        current = self.current()
        for number in self.numbers()[:-keep]:
            if number != current:
                shutil.rmtree(self.folder / str(number))
                (self.folder / f"{number}.json").unlink(missing_ok=True)

    def _next(self) -> int:
        # A version that was removed does not give its number to another.
        files = (path.name.removesuffix(".json") for path in self.folder.iterdir())
        return max((int(name) for name in files if name.isdecimal()), default=0) + 1


def _copied(folder: Path, to: Path) -> Path:
    """Copy a folder beside its later place, with its permissions, and return the copy, which is on disk."""
    copy = to / f".{folder.name}.{secrets.token_hex(8)}.tmp"
    try:
        shutil.copytree(folder, copy)
        for path in (path for path in copy.rglob("*") if path.is_file()):
            with open(path, "rb") as file:
                os.fsync(file.fileno())
    except BaseException:
        shutil.rmtree(copy, ignore_errors=True)
        raise
    return copy
