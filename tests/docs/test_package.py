"""What is published: the wheel, the source distribution, the citation, and the draft of an article."""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path

import pytest
import yaml

from helpers.code_blocks import run

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def test_the_citation_is_of_this_version_and_licence():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert citation["cff-version"] == "1.2.0"
    assert (citation["title"], citation["version"]) == (PROJECT["name"], PROJECT["version"])
    assert citation["license"] == PROJECT["license"]
    assert {"message", "authors", "preferred-citation"} <= citation.keys()


def test_every_work_that_the_article_cites_is_in_its_bibliography_and_the_reverse():
    folder = ROOT / "docs" / "paper-joss"
    cited = set(re.findall(r"@(\w+\d{4})", (folder / "paper.md").read_text(encoding="utf-8")))
    assert cited == set(re.findall(r"^@\w+\{(\w+),", (folder / "paper.bib").read_text(encoding="utf-8"), re.MULTILINE))


def test_every_tool_of_the_docs_has_a_tested_version():
    text = (ROOT / "constraints.txt").read_text(encoding="utf-8").lower().replace("_", "-")
    pinned = set(re.findall(r"^([a-z0-9.\-]+)==", text, re.MULTILINE))
    for extra in ("docs", "package"):
        wanted = {re.match(r"[\w\-]+", need).group().lower() for need in PROJECT["optional-dependencies"][extra]}
        assert wanted <= pinned


@pytest.mark.slow
def test_the_wheel_and_the_source_distribution_pass_the_checks_of_the_index(tmp_path):
    for module in ("build", "twine", "check_wheel_contents"):
        pytest.importorskip(module, reason='needs pip install "elmesh[package]"')
    run([sys.executable, "-m", "build", "--no-isolation", "--outdir", str(tmp_path), str(ROOT)], tmp_path)
    wheel, source = next(tmp_path.glob("*.whl")), next(tmp_path.glob("*.tar.gz"))
    assert "FAILED" not in run(["twine", "check", "--strict", str(wheel), str(source)], tmp_path)
    run(["check-wheel-contents", str(wheel)], tmp_path)
