"""What came of an experiment: a section of the report, and its numbers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from elmesh.report import Section

__all__ = ["Finding"]


@dataclass(frozen=True, eq=False)
class Finding:
    """What came of an experiment.

    Parameters
    ----------
    section : Section
        For people: the paper's statements with verdicts, figures and tables.
    numbers : dict
        For programs: every number as JSON holds it.
    """

    section: Section
    numbers: dict[str, Any]
