"""``elmesh demo``: the report and its numbers."""

from __future__ import annotations

import json

import numpy as np
import pytest
from matplotlib.figure import Figure
from matplotlib.image import imread
from typer.testing import CliRunner

from elmesh import LocalELM, MeshELM, MultiTaskELMClassifier, MultiTaskELMRegressor
from elmesh.cli import app
from elmesh.datasets import CLINICS, load_digits_tasks, simulate_clinics

FILES = ["overview.png", "report.html", "results.json"]


def run(*arguments):
    return CliRunner().invoke(app, ["demo", "--hidden", "40", "--draws", "2", *map(str, arguments)])


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """One run of the demo with JSON: its folder and what it printed."""
    out = tmp_path_factory.mktemp("demo") / "out"
    done = run("--out", out, "--json")
    assert done.exit_code == 0, done.output
    return out, json.loads(done.stdout)


def test_it_writes_a_report_a_figure_and_the_numbers(made):
    out, printed = made
    assert sorted(path.name for path in out.iterdir()) == FILES
    assert sorted(printed["files"]) == [str(out / name) for name in FILES]
    page = (out / "report.html").read_text(encoding="utf-8")
    for name in ("fig-errors", "fig-shares"):
        assert f'id="{name}"' in page
    height, width, _ = imread(out / "overview.png").shape
    assert width == 1600
    assert 600 < height < 1000


def test_the_printed_json_is_the_written_one(made):
    out, printed = made
    written = json.loads((out / "results.json").read_text(encoding="utf-8"))
    assert {key: printed[key] for key in written} == written
    assert printed["draws"] == 2


def test_the_errors_are_those_of_the_three_estimators(made):
    _, printed = made
    methods = {"alone": LocalELM(), "pooled": MeshELM(private=False, graph=None), "together": MeshELM(graph="ring")}
    expected = {name: dict.fromkeys(CLINICS, 0.0) for name in methods}
    for seed in range(2):
        split = simulate_clinics(seed=seed, n_test=100)
        for name, solver in methods.items():
            model = MultiTaskELMRegressor(40, solver=solver, random_state=seed)
            model.fit(split.X_train, split.y_train, tasks=split.tasks_train)
            wrong = model.predict(split.X_test, tasks=split.tasks_test) - split.y_test
            for site in CLINICS:
                expected[name][site] += np.sqrt(np.mean(wrong[split.tasks_test == site] ** 2)) / 2
    found = {name: {entry["name"]: entry[name] for entry in printed["by_site"]} for name in methods}
    for name in methods:
        assert found[name] == pytest.approx(expected[name])


def test_the_headline_and_the_counts_follow_from_the_errors_per_site(made):
    _, printed = made
    assert [entry["name"] for entry in printed["by_site"]] == list(CLINICS)
    verdicts = [entry["clear"] for entry in printed["by_site"]]
    counts = {"better": verdicts.count(-1), "undecided": verdicts.count(0), "worse": verdicts.count(1)}
    assert printed["sites"] == counts
    for entry in printed["by_site"]:
        low, high = entry["change_interval"]
        assert low <= entry["change"] <= high
        assert entry["clear"] == (-1 if high < 0 else int(low > 0))
        assert entry["change"] == pytest.approx(entry["together"] - entry["alone"])
    assert printed["headline"].startswith(f"{counts['better']} of 12 sites clearly predict better together than alone")
    assert f"from {printed['errors']['alone']:.2f} to {printed['errors']['together']:.2f} days" in printed["headline"]


def test_the_clinics_that_differ_have_the_smallest_common_parts_and_all_shares_add_up(made):
    _, printed = made
    shares = {entry["name"]: entry["shares"] for entry in printed["by_site"]}
    for parts in shares.values():
        assert sum(parts.values()) == pytest.approx(1.0)
    order = sorted(shares, key=lambda name: shares[name]["common"])
    assert set(order[:2]) == {"Larch", "Oak"}


def test_the_smallest_clinic_gains_and_pooling_fails_those_that_differ(made):
    _, printed = made
    by_site = {entry["name"]: entry for entry in printed["by_site"]}
    assert by_site["Rowan"]["together"] < 0.8 * by_site["Rowan"]["alone"]
    for name in ("Larch", "Oak"):
        assert by_site[name]["pooled"] > 1.5 * by_site[name]["together"]
    assert printed["errors"]["together"] < min(printed["errors"]["alone"], printed["errors"]["pooled"])


def test_about_nine_of_ten_new_rows_are_within_their_interval(made):
    _, printed = made
    assert 0.85 < np.mean([entry["covered_90"] for entry in printed["by_site"]]) < 0.95


def test_the_joint_fit_sends_messages_and_is_certified(made):
    _, printed = made
    training = printed["training"]
    assert training["stop"] == "CONVERGED"
    # Three sums of a symmetric 47 x 47 matrix, which every site of a ring of twelve passes on at least once.
    assert training["bytes"] >= 3 * 12 * 8 * 47 * 48 / 2
    assert 0 <= training["certificate"]["gap"] < 0.01


@pytest.fixture
def no_picture(monkeypatch):
    """Leave the picture empty, as pages are."""
    monkeypatch.setattr("elmesh.cli.demo.draw_overview", lambda study: Figure((1.0, 1.0)))


@pytest.mark.usefixtures("no_picture")
def test_the_same_seed_gives_the_same_numbers_except_times_and_with_force_only_its_own_files_are_replaced(tmp_path):
    args = ("--hidden", 5, "--draws", 1, "--out", tmp_path, "--force", "--quiet", "--json")
    (tmp_path / "report.html").write_text("old")
    (tmp_path / "mine.txt").write_text("keep")

    def timeless():
        done = run(*args)
        assert done.exit_code == 0, done.output
        printed = json.loads(done.stdout)
        return {**printed, "training": {key: x for key, x in printed["training"].items() if key != "seconds"}}

    assert timeless() == timeless()
    assert "<h1>" in (tmp_path / "report.html").read_text(encoding="utf-8")
    assert (tmp_path / "mine.txt").read_text() == "keep"


@pytest.mark.usefixtures("no_picture")
def test_a_table_the_sentences_and_the_path_of_the_report_are_printed(tmp_path):
    out = tmp_path / "new" / "demo"
    done = run("--out", out, "--graph", "star", "--seed", "3", "--hidden", "5")
    assert done.exit_code == 0, done.output
    first_words = [line.split()[0] for line in done.stdout.splitlines() if line.strip()]
    assert set(CLINICS) <= set(first_words)
    assert "sites clearly predict better together than alone; the mean error" in done.stdout
    assert str(out / "report.html") in done.stdout.replace("\n", "")
    results = json.loads((out / "results.json").read_text(encoding="utf-8"))
    assert results["settings"]["Graph"] == "star"
    assert results["settings"]["Draws"] == "2, from seed 3 on"


@pytest.fixture
def no_fit(monkeypatch):
    """Fail if the work starts: bad input must be refused before."""

    def compare(*_):
        raise AssertionError("the work was started")

    monkeypatch.setattr("elmesh.cli.demo.compare", compare)


@pytest.mark.usefixtures("no_fit")
def test_a_folder_of_an_earlier_demo_is_refused_and_not_changed(made):
    out, _ = made
    before = {path.name: path.read_bytes() for path in out.iterdir()}
    done = run("--out", out)
    assert done.exit_code == 2
    assert "exists" in done.stderr
    assert "--force" in done.stderr
    assert {path.name: path.read_bytes() for path in out.iterdir()} == before


@pytest.mark.usefixtures("no_fit")
@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--graph", "circle"], "ring"),
        (["--seed", "-1"], "seed"),
        (["--hidden", "0"], "hidden"),
    ],
)
def test_a_wrong_option_is_refused_before_the_work_and_no_file_is_written(tmp_path, arguments, words):
    done = run("--out", tmp_path / "demo", *arguments)
    assert done.exit_code == 2
    assert words in done.stderr
    assert not (tmp_path / "demo").exists()


@pytest.mark.usefixtures("no_fit")
def test_a_file_is_not_replaced_by_a_folder_even_with_force(tmp_path):
    (tmp_path / "demo").write_text("precious")
    done = run("--out", tmp_path / "demo", "--force")
    assert done.exit_code == 2
    assert "is a file" in done.stderr
    assert (tmp_path / "demo").read_text() == "precious"


@pytest.mark.parametrize("draws", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_sites_make_fewer_mistakes_together_than_alone_over_several_draws(draws):
    mistakes = {"alone": 0, "together": 0}
    for seed in range(draws):
        split = load_digits_tasks(n_train=60, n_test=111, pca=None, seed=seed)
        for name, solver in (("alone", LocalELM()), ("together", MeshELM())):
            model = MultiTaskELMClassifier(40, solver=solver, random_state=seed)
            model.fit(split.X_train, split.y_train, tasks=split.tasks_train)
            mistakes[name] += int((model.predict(split.X_test, tasks=split.tasks_test) != split.y_test).sum())
    assert mistakes["together"] < 0.9 * mistakes["alone"]
