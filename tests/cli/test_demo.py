"""``elmesh demo``: the report and its numbers."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest
from matplotlib.image import imread
from typer.testing import CliRunner

from elmesh import LocalELM, MeshELM, MultiTaskELMClassifier
from elmesh.cli import app
from elmesh.datasets import load_digits_tasks

METHODS = ["Local ELM", "MeshELM in one place", "MeshELM", "MeshELM, 2 bits"]
SENDERS = METHODS[2:]
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


@pytest.fixture(scope="module")
def made_again(tmp_path_factory):
    """The same run into a folder with an older report and another file."""
    out = tmp_path_factory.mktemp("again")
    (out / "report.html").write_text("old")
    (out / "mine.txt").write_text("keep")
    done = run("--out", out, "--force", "--quiet", "--json")
    assert done.exit_code == 0, done.output
    return out, json.loads(done.stdout)


def test_it_writes_a_report_a_figure_and_the_numbers(made):
    out, printed = made
    assert sorted(path.name for path in out.iterdir()) == FILES
    assert sorted(printed["files"]) == [str(out / name) for name in FILES]
    page = (out / "report.html").read_text(encoding="utf-8")
    for name in ("fig-graph", "fig-error", "fig-objective", "fig-bytes"):
        assert f'id="{name}"' in page
    height, width, _ = imread(out / "overview.png").shape
    assert width == 1600
    assert 600 < height < 1000


def test_the_printed_json_is_the_written_one_without_histories(made):
    out, printed = made
    written = json.loads((out / "results.json").read_text(encoding="utf-8"))
    histories = written.pop("histories")
    assert {key: printed[key] for key in written} == written
    assert list(histories) == METHODS
    for method in printed["methods"]:
        history = histories[method["name"]]
        assert history["round"] == list(range(method["rounds"] + 1)) or method["stop"] == "DIRECT"
        assert method["bytes"] == (history["bytes"] or [0])[-1]
        assert method["exchanges"] == (history["exchanges"] or [0])[-1]
        assert method["objective"] == (history["objective"] or [None])[-1]


def test_the_headline_follows_from_the_errors_per_site(made):
    _, printed = made
    errors = {m["name"]: m["test_error_percent_by_task"] for m in printed["methods"]}
    assert list(errors) == METHODS
    alone, together = errors["Local ELM"], errors["MeshELM"]
    assert list(alone) == [f"site-{t:02d}" for t in range(1, 11)]
    better = sum(together[site] < alone[site] - 1e-9 for site in alone)
    assert printed["headline"].startswith(f"{better} of 10 sites did better together than alone")
    assert f"from {np.mean(list(alone.values())):.1f} %" in printed["headline"]


def test_only_methods_on_the_graph_send_messages(made):
    _, printed = made
    sent = {m["name"]: m["bytes"] for m in printed["methods"]}
    assert sent["Local ELM"] == sent["MeshELM in one place"] == 0
    # For an exact sum of gradients every site of a ring of ten sends both neighbours 40 x r numbers of 8 bytes at least
    # once; the start and the certificate come on top.
    (exact,) = (m for m in printed["methods"] if m["name"] == "MeshELM")
    assert exact["bytes"] >= exact["rounds"] * 10 * 2 * 40 * exact["rank"] * 8
    # Along a tree of nine edges with two bits per number, a block goes up and comes down.
    (coarse,) = (m for m in printed["methods"] if m["name"] == "MeshELM, 2 bits")
    assert coarse["bytes"] >= coarse["rounds"] * 2 * 9 * 40 * coarse["rank"] * 2 / 8
    assert coarse["bytes"] < exact["bytes"] / 10


def test_the_decentralised_methods_reach_the_objective_of_all_data_in_one_place(made):
    _, printed = made
    objective = {m["name"]: m["objective"] for m in printed["methods"]}
    penalties = {m["name"]: m["penalties"] for m in printed["methods"]}
    for name in SENDERS:
        assert penalties[name] == penalties["MeshELM in one place"]
        assert objective[name] == pytest.approx(objective["MeshELM in one place"], rel=1e-3)


def test_all_methods_but_local_elm_are_certified_and_have_a_sufficient_rank(made):
    _, printed = made
    alone, *others = printed["methods"]
    assert alone["certificate"] is alone["rank"] is None
    for method in others:
        assert method["stop"] == "CONVERGED"
        assert set(method["certificate"]) == {"gap", "rank_sufficient", "suggested_rank"}
        assert 0 <= method["certificate"]["gap"] < 0.01
        assert method["certificate"]["rank_sufficient"]
        assert method["certificate"]["suggested_rank"] == method["rank"]


def test_the_settings_contain_the_rank_and_penalty_that_were_found(made):
    _, printed = made
    together = printed["methods"][2]
    mu1, mu2 = together["penalties"]
    assert mu1 == mu2
    assert str(together["rank"]) in re.findall(r"\d+", printed["settings"]["Rank of U"])
    assert f"mu1 = mu2 = {mu1:g}" in printed["settings"]["Penalties"]


def test_the_same_seed_gives_the_same_numbers_except_times(made, made_again):
    def timeless(printed):
        return [{k: v for k, v in m.items() if k != "seconds"} for m in printed["methods"]]

    assert timeless(made_again[1]) == timeless(made[1])


def test_a_table_a_sentence_and_the_path_of_the_report_are_printed(tmp_path):
    out = tmp_path / "new" / "demo"
    done = run("--out", out, "--graph", "star", "--seed", "3")
    assert done.exit_code == 0, done.output
    first_cells = [line.split("  ")[0] for line in done.stdout.splitlines()]
    assert [word for word in first_cells if word in METHODS] == METHODS
    assert "sites did better together than alone; the mean test error" in done.stdout
    assert str(out / "report.html") in done.stdout.replace("\n", "")
    results = json.loads((out / "results.json").read_text(encoding="utf-8"))
    ends = [end for edge in results["graph"] for end in edge]
    assert len(results["graph"]) == 9
    assert max(map(ends.count, ends)) == 9
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


def test_with_force_its_own_files_are_replaced_and_others_kept(made_again):
    out, _ = made_again
    assert "<h1>" in (out / "report.html").read_text(encoding="utf-8")
    assert (out / "mine.txt").read_text() == "keep"


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


def test_sites_make_fewer_mistakes_together_than_alone_over_several_draws():
    mistakes = {"alone": 0, "together": 0}
    for seed in range(4):
        split = load_digits_tasks(n_train=60, n_test=111, pca=None, seed=seed)
        for name, solver in (("alone", LocalELM()), ("together", MeshELM())):
            model = MultiTaskELMClassifier(solver=solver, random_state=seed)
            model.fit(split.X_train, split.y_train, tasks=split.tasks_train)
            mistakes[name] += int((model.predict(split.X_test, tasks=split.tasks_test) != split.y_test).sum())
    assert mistakes["together"] < 0.9 * mistakes["alone"]
