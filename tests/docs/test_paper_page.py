"""The page about the paper contains exactly the results of the committed run."""

from __future__ import annotations

import json
import re

import pytest

import paper

RESULTS = json.loads(paper.RESULTS.read_text(encoding="utf-8"))
TEXT = paper.PAGE.read_text(encoding="utf-8")


def test_it_is_written_from_the_committed_results():
    assert paper.page(RESULTS) == TEXT


def test_the_run_had_a_hundred_draws_and_no_missing_data_set():
    assert RESULTS["missing"] == {}
    assert {RESULTS["experiments"][name]["runs"] for name in ("fig3", "fig4", "fig5", "fig6", "table1")} == {100}


def test_every_figure_on_it_exists():
    shown = re.findall(r"\]\((images/[^)]+)\)", TEXT)
    assert shown
    assert all((paper.DOCS / image).is_file() for image in shown)


def test_every_link_within_it_leads_to_a_heading():
    headings = {paper.anchor(title) for title in re.findall(r"^## (.+)$", TEXT, re.MULTILINE)}
    assert set(re.findall(r"\]\(#([^)]+)\)", TEXT)) <= headings


@pytest.mark.parametrize("data", ["USPS", "MNIST"])
@pytest.mark.parametrize("method", ["Local ELM", "MTL-ELM", "DMTL-ELM"])
def test_the_errors_of_the_papers_methods_are_within_eight_tenths_of_a_point(data, method):
    numbers = RESULTS["experiments"]["table1"]["numbers"][data][method]
    assert abs(numbers["error"]["mean"] - numbers["paper"]["error"]) <= 0.8


def test_claims_that_were_not_confirmed_are_listed():
    for entry in RESULTS["experiments"].values():
        for claim in entry["claims"]:
            listed = f"- **{claim['statement']}**" in TEXT
            assert listed == (claim["verdict"] != "agrees"), claim["statement"]
