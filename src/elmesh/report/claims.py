"""A statement of the paper, what was found here, and whether the two agree."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

__all__ = ["Claim", "Verdict"]


class Verdict(Enum):
    """Whether what was found is what was stated; its value is the word for it."""

    AGREES = "agrees"
    DIFFERS = "differs"
    UNDETERMINED = "could not be determined"


@dataclass(frozen=True)
class Claim:
    """What the paper states, what was found, and the verdict."""

    statement: str
    found: str
    verdict: Verdict
