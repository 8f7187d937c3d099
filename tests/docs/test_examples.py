"""The examples run, and their results are those in the README."""

from __future__ import annotations

import runpy
from pathlib import Path

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"


def test_plants_learn_better_together(capsys):
    runpy.run_path(str(EXAMPLES / "per_site_tables.py"))
    alone, together = (float(line.rsplit(" ", 1)[1]) for line in capsys.readouterr().out.splitlines())
    assert together > alone + 0.1
    text = " ".join((ROOT / "README.md").read_text(encoding="utf-8").split())
    assert f"R2 {together:.2f} together, {alone:.2f} alone" in text
