"""The README: its figures are those of the committed results, and its Python prints what it states."""

from __future__ import annotations

from pathlib import Path

import pytest

import readme
from elmesh import MultiTaskELMRegressor, load
from elmesh.datasets import simulate_visits
from helpers.code_blocks import code_blocks, run_python

ROOT = Path(__file__).parents[2]

TEXT = (ROOT / "README.md").read_text(encoding="utf-8")
DEMO = (ROOT / "docs" / "measured" / "demo.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("page", readme.PAGES, ids=lambda page: page.name)
def test_the_figures_of_the_readme_and_of_pages_that_sum_up_are_those_of_the_committed_results(page):
    assert readme.filled(page) == page.read_text(encoding="utf-8")


def test_it_is_short():
    assert len(TEXT.splitlines()) <= 120


def test_the_benchmarks_it_shows_met_their_goals():
    for name in ("rounds", "growth", "fit", "startup"):
        goals = readme.load(readme.RESULTS / f"{name}.json")["goals"]
        assert goals
        assert all(goals.values()), (name, goals)


def test_it_opens_with_the_two_commands():
    first = TEXT.split("```")[1]
    assert "make demo" in first
    assert "make test" in first


def test_its_python_prints_what_it_states(tmp_path):
    (code,) = code_blocks(TEXT, "python")
    score, *table = run_python(code, tmp_path).splitlines()
    assert f"# R2 {float(score):.2f} on new patients" in TEXT
    assert float(score) > 0.7
    assert any(line.startswith("Ely ") for line in table)
    assert load(tmp_path / "ely-model").tasks_.tolist() == ["Ely"]


def test_it_states_who_gains_in_the_sample():
    visits, _, _ = simulate_visits(seed=0)
    X, days = visits.drop(columns=["days", "complication"]), visits["days"]
    gains = MultiTaskELMRegressor(task="clinic", random_state=0).fit(X, days).site_gains(X, days).table
    verdicts = gains["verdict"].tolist()
    assert f"In the sample above {verdicts.count('gains')} of {len(gains)} clinics clearly gain" in " ".join(
        TEXT.split()
    )
    assert not any("better alone" in verdict for verdict in verdicts)
    assert (gains["pooled"] > gains["alone"]).sum() > len(gains) / 2


def test_it_states_on_how_many_tables_private_models_are_not_below_those_of_sites_alone():
    found = readme.load(readme.RESULTS / "private_arena.json")["not_below_alone"]
    words = (
        f"level, on {found['usual']} of 12 real tables if the ranges of columns are declared, and on {found['found']}"
    )
    assert f"{words} if they are found privately" in " ".join(TEXT.split())


def test_it_states_how_many_sites_of_the_demo_do_not_gain():
    sites = readme.load(readme.DEMO_RESULTS)["sites"]
    number = f"without a clear gain in the demo: {sites['undecided'] + sites['worse']} of {sum(sites.values())}"
    assert number in " ".join(TEXT.split())


def test_the_page_of_the_demo_names_every_site_whose_error_is_higher_together():
    worse = [site["name"] for site in readme.load(readme.DEMO_RESULTS)["by_site"] if site["together"] > site["alone"]]
    assert f"the mean error is higher together at {', '.join(worse) or 'no clinic'}." in DEMO
