"""The README: its figures are those of the committed results, and its Python prints what it states."""

from __future__ import annotations

from pathlib import Path

import sklearn

import readme
from helpers.code_blocks import code_blocks

ROOT = Path(__file__).parents[2]

TEXT = (ROOT / "README.md").read_text(encoding="utf-8")


def test_its_figures_are_those_of_the_committed_results():
    assert readme.filled(TEXT) == TEXT


def test_the_benchmarks_it_shows_met_their_goals():
    for name in ("rounds", "growth", "fit", "startup"):
        goals = readme.load(readme.RESULTS / f"{name}.json")["goals"]
        assert goals
        assert all(goals.values()), (name, goals)


def test_it_opens_with_the_two_commands():
    first = TEXT.split("```")[1]
    assert "make demo" in first
    assert "make test" in first


def test_its_python_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    before = sklearn.get_config()["enable_metadata_routing"]
    try:
        code = "\n".join(code_blocks(TEXT, "python"))
        names: dict[str, object] = {}
        exec(compile(code, "README.md", "exec"), names)  # noqa: S102  (our own README)
    finally:
        sklearn.set_config(enable_metadata_routing=before)
    score, stop = capsys.readouterr().out.split()
    assert f"# R2 {float(score):.2f} on new rows" in TEXT
    assert float(score) > 0.7
    assert stop == "CONVERGED"
    assert f"model.certificate_  # {names['model'].certificate_!r}" in TEXT
    assert (tmp_path / "oak-model" / "model.json").exists()


def test_it_states_how_many_sites_of_the_demo_do_not_gain():
    sites = readme.load(readme.DEMO_RESULTS)["sites"]
    number = f"without a clear gain in the demo below: {sites['undecided'] + sites['worse']} of {sum(sites.values())}"
    assert number in " ".join(TEXT.split())


def test_it_names_every_site_of_the_demo_whose_error_is_higher_together():
    worse = [site["name"] for site in readme.load(readme.DEMO_RESULTS)["by_site"] if site["together"] > site["alone"]]
    assert f"the mean error is higher together at {', '.join(worse) or 'no clinic'}." in TEXT
