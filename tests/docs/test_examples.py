"""The gallery: each example asks a question, runs, and shows a picture; the answers that can be checked are right."""

from __future__ import annotations

import ast
import re
import runpy
from pathlib import Path

import matplotlib as mpl
import matplotlib.pyplot as plt
import pytest

from helpers.code_blocks import run

ROOT = Path(__file__).parents[2]
GALLERY = ROOT / "examples" / "gallery"
EXAMPLES = sorted(GALLERY.glob("plot_*.py"))


@pytest.fixture(autouse=True)
def _no_windows():
    with mpl.rc_context({"backend": "agg"}):
        yield
        plt.close("all")


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_asks_a_question_and_shows_a_picture(path):
    text = path.read_text(encoding="utf-8")
    title, rule, *_ = ast.get_docstring(ast.parse(text)).splitlines()
    assert title.endswith("?")
    assert rule == "=" * len(title)
    assert "plt.show()" in text
    assert not re.search(r"^(?!#).*ELMESH_DATA", text.split('"""')[2], re.MULTILINE)


def test_there_is_an_example_for_every_question_of_the_first_page():
    assert len(EXAMPLES) >= 8


def test_plants_learn_better_together(capsys):
    runpy.run_path(str(GALLERY / "plot_plants.py"))
    alone, together = (float(line.rsplit(" ", 1)[1]) for line in capsys.readouterr().out.splitlines())
    assert together > alone + 0.1


def test_the_parts_of_the_picture_that_explains_the_model_are_as_the_page_describes_them(capsys):
    runpy.run_path(str(GALLERY / "plot_parts.py"))
    rows = [line.split() for line in capsys.readouterr().out.splitlines()[1:]]
    common = {name: float(share) for name, share, *_ in rows}
    assert common["Left"] > 0.95
    assert common["Middle"] < 0.5
    assert common["Right"] > 0.8
    assert (ROOT / "docs" / "images" / "parts.png").is_file()


@pytest.mark.slow
@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_runs_in_a_process_of_its_own(path, tmp_path):
    run(["env", "MPLBACKEND=agg", "python", str(path)], tmp_path)
