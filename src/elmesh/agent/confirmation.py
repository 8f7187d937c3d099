"""A person's confirmation of what is about to leave a site, by files in the agent's folder.

The agent writes what it wants to release, and waits. ``elmesh network confirm`` shows it and writes the answer, which
names the question by a random token, so that an answer to an earlier question does not count.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from elmesh.errors import ElmeshError
from elmesh.files import atomic_write

__all__ = ["answer_confirmation", "asked_confirmation", "pending_confirmation"]

_QUESTION, _ANSWER = "confirmation.json", "confirmation-answer.json"


@contextmanager
def pending_confirmation(folder: Path, text: str) -> Iterator[Callable[[], bool | None]]:
    """Ask a question in an agent's folder; yield a function that returns the answer, None as long as there is none."""
    token = secrets.token_hex(16)
    question, file = folder / _QUESTION, folder / _ANSWER
    atomic_write(question, json.dumps({"token": token, "text": text}).encode(), mode=0o600)

    def answer() -> bool | None:
        found = _read(file)
        return bool(found["confirmed"]) if found is not None and found.get("token") == token else None

    try:
        yield answer
    finally:
        question.unlink(missing_ok=True)
        file.unlink(missing_ok=True)


def asked_confirmation(folder: Path) -> dict[str, str] | None:
    """Return the question of the agent of a folder, with its token and its text; None if there is none."""
    return _read(folder / _QUESTION)


def answer_confirmation(folder: Path, token: str, confirmed: bool) -> None:
    """Answer a question."""
    atomic_write(folder / _ANSWER, json.dumps({"token": token, "confirmed": confirmed}).encode(), mode=0o600)


def _read(path: Path) -> dict[str, str] | None:
    if not path.exists():
        return None
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(content, dict) or not isinstance(content.get("token"), str):
            raise TypeError
    except (ValueError, TypeError, RecursionError):
        raise ElmeshError(f"{path} is not a question or an answer of this version of elmesh; remove it.") from None
    except OSError:
        return None
    return content
