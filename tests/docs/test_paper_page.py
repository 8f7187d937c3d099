"""The page about the paper contains exactly the results of the committed run."""

from __future__ import annotations

import json
import re

import pytest

import paper
from elmesh.paper.reproduction import EXPERIMENTS

RESULTS = json.loads(paper.RESULTS.read_text(encoding="utf-8"))
TEXT = paper.PAGE.read_text(encoding="utf-8")


def test_it_is_written_from_the_committed_results():
    assert paper.page(RESULTS) == TEXT


def test_the_run_had_the_papers_data_and_no_missing_data_set():
    assert RESULTS["missing"] == {}
    assert RESULTS["protocol"]["name"] == "Kang et al. 2011"
    assert list(RESULTS["experiments"]) == list(EXPERIMENTS)


def test_the_number_of_draws_of_every_experiment_is_on_it():
    for entry in RESULTS["experiments"].values():
        assert f"(#{paper.anchor(entry['title'])}) | {entry['runs']} |" in TEXT


def test_intervals_that_are_judged_together_are_corrected_and_tolerances_are_stated():
    assert "Bonferroni" in TEXT
    for claim in RESULTS["experiments"]["table1"]["claims"]:
        if "has a test error of" in claim["statement"]:
            assert "32 intervals at once; tolerance 0.8" in claim["found"]


def test_every_figure_on_it_exists():
    shown = re.findall(r"\]\((images/[^)]+)\)", TEXT)
    assert shown
    assert all((paper.DOCS / image).is_file() for image in shown)


def test_every_link_within_it_leads_to_a_heading():
    headings = {paper.anchor(title) for title in re.findall(r"^## (.+)$", TEXT, re.MULTILINE)}
    assert set(re.findall(r"\]\(#([^)]+)\)", TEXT)) <= headings


@pytest.mark.parametrize("data", ["USPS", "MNIST"])
def test_a_third_of_the_test_rows_leak_and_learning_together_gains_more_on_them(data):
    leak = RESULTS["experiments"]["leak"]["numbers"][data]
    assert 30 < leak["share_of_seen_test_rows"]["share"] < 37
    gain = leak["minus_local"]["DMTL-ELM"]
    assert gain["seen"]["mean"] < gain["unseen"]["mean"] - 1


def test_claims_that_were_not_confirmed_are_listed():
    for entry in RESULTS["experiments"].values():
        for claim in entry["claims"]:
            listed = re.search(
                rf"^\| {re.escape(claim['statement'])} \| \[.* \| {claim['verdict']} \|$", TEXT, re.MULTILINE
            )
            assert bool(listed) == (claim["verdict"] != "agrees"), claim["statement"]


def test_methods_whose_parameters_were_chosen_have_those_with_the_least_error():
    (table,) = RESULTS["experiments"]["tuning"]["tables"]
    for title, best, _, used, _ in table["rows"]:
        assert used == best, title
