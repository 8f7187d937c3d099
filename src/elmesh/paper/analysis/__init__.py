"""Analyses of the experiments, one module each: claims with verdicts, figures and tables."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from elmesh.report import Section

__all__ = ["Analysis"]


@dataclass(frozen=True, eq=False)
class Analysis:
    """The result of an experiment: a section of the report, and all numbers as JSON."""

    section: Section
    numbers: dict[str, Any]
