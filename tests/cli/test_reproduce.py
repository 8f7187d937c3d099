"""``elmesh reproduce``: a folder that can be continued, a self-contained report, and errors in one sentence."""

from __future__ import annotations

import html
import json
import os
import re
import signal
import subprocess
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from matplotlib.figure import Figure as Drawing

from elmesh.cli import main
from elmesh.errors import ElmeshError
from elmesh.paper import protocol, reproduction
from elmesh.paper.analysis.estimates import Analysis, Estimate
from elmesh.paper.analysis.verdicts import judge_count
from elmesh.paper.convergence import measure_fig3
from elmesh.paper.reproduction import EXPERIMENTS, Experiment, reproduce
from elmesh.paper.trials import run_trials
from elmesh.report import Claim, Figure, Section
from helpers import paper_measures as measures
from helpers.commands import Command
from helpers.marks import one_of
from helpers.paper_cases import (
    DIGITS,
    figures_left_empty,
    invent_fig5,
    invent_fig6,
    remove_datasets,
    simulate_release,
)
from helpers.paper_measures import alive, children, until
from helpers.quick_pages import drawn

ROOT = Path(__file__).parents[2]
SMALL = [sys.executable, str(ROOT / "tests" / "helpers" / "small_elmesh.py"), "reproduce"]
RUN_INLINE = partial(run_trials, workers=measures.inline_workers)
needs_proc = pytest.mark.skipif(not Path("/proc").is_dir(), reason="processes are looked for in /proc")
REPRODUCE = Command("reproduce")
run, worked = REPRODUCE.run, REPRODUCE.worked


def refused(*args: object) -> str:
    """Return the one sentence or two on standard error."""
    result = run(*args)
    assert result.exit_code == 2, result.output
    assert result.stdout == ""
    assert result.stderr.startswith("elmesh: ")
    assert result.stderr.count("\n") == 1
    return result.stderr


def results(folder: Path) -> dict:
    def no_constant(name):
        raise AssertionError(f"{name} is not JSON")

    return json.loads((folder / "results.json").read_text(), parse_constant=no_constant)


@pytest.fixture
def inline(monkeypatch):
    monkeypatch.setattr(reproduction, "run_trials", RUN_INLINE)


@pytest.fixture
def ran(inline, monkeypatch) -> list[tuple[str, int]]:
    """Replace each experiment by a trivial one; return the list of measured experiments and runs."""
    noted: list[tuple[str, int]] = []

    def trivial(name: str, datasets: tuple[str, ...]) -> Experiment:
        def measure(trial):
            noted.append((name, trial.run))
            return {"value": trial.seed % 1000 / 7}

        def analyze(results, runs):
            values = [numbers["value"] for numbers in results["x"]]
            drawing = Drawing((1.0, 1.0))
            return Analysis(
                Section(
                    f"What {name} shows",
                    claims=[Claim(f"{name} is so.", f"It is in {runs}.", judge_count(runs, runs))],
                    figures=[Figure(f"fig-{name}", name, "caption", "words", drawing)],
                ),
                {"value": Estimate.of(values).to_json()},
            )

        return Experiment(measure, analyze, lambda: ["x"], datasets)

    for name, experiment in EXPERIMENTS.items():
        monkeypatch.setitem(EXPERIMENTS, name, trivial(name, experiment.datasets))
    monkeypatch.setattr("elmesh.paper.reproduction.missing_data", lambda *names: {})
    return noted


# The folder


def test_a_folder_contains_numbers_a_report_and_each_figure_twice(ran, tmp_path):
    out = worked("fig3", "--runs", 2, "--out", tmp_path / "o").stdout
    assert "1 agrees" in out
    assert str(tmp_path / "o" / "report.html") in out
    assert {file.name for file in (tmp_path / "o").iterdir()} == {
        "results.json", "report.html", "trials.jsonl", "fig-fig3.png", "fig-fig3.svg",
    }  # fmt: skip
    found = results(tmp_path / "o")
    assert found["seed"] == 0
    assert found["missing"] == {}
    assert set(found["versions"]) >= {"python", "numpy", "scipy", "scikit-learn"}
    assert list(found["experiments"]) == ["fig3"]
    entry = found["experiments"]["fig3"]
    assert entry["runs"] == 2
    assert entry["claims"][0]["verdict"] == "agrees"
    assert entry["figures"] == ["fig-fig3"]
    assert entry["numbers"]["value"]["runs"] == 2


def test_more_runs_are_added_to_the_existing_ones(ran, tmp_path):
    worked("fig3", "--runs", 2, "--out", tmp_path)
    worked("fig3", "--runs", 5, "--out", tmp_path)
    assert ran == [("fig3", number) for number in range(5)]
    assert results(tmp_path)["experiments"]["fig3"]["runs"] == 5
    more = results(tmp_path)
    worked("fig3", "--runs", 5, "--out", tmp_path / "at-once")
    assert results(tmp_path / "at-once") == more


def test_fewer_runs_use_the_first_of_the_existing_ones(ran, tmp_path):
    worked("fig3", "--runs", 3, "--out", tmp_path)
    worked("fig3", "--runs", 2, "--out", tmp_path)
    assert len(ran) == 3
    assert results(tmp_path)["experiments"]["fig3"]["numbers"]["value"]["runs"] == 2


def test_another_experiment_joins_the_report_and_the_first_is_not_run_again(ran, tmp_path):
    worked("fig4", "--runs", 2, "--out", tmp_path)
    before = results(tmp_path)["experiments"]["fig4"]
    worked("fig3", "--runs", 3, "--out", tmp_path)
    assert ran == [("fig4", 0), ("fig4", 1), ("fig3", 0), ("fig3", 1), ("fig3", 2)]
    found = results(tmp_path)["experiments"]
    assert list(found) == ["fig3", "fig4"]  # in the order of the report
    assert found["fig4"] == before
    page = (tmp_path / "report.html").read_text()
    assert page.index("What fig3 shows") < page.index("What fig4 shows")


def test_all_is_every_experiment(ran, tmp_path):
    worked("all", "--runs", 1, "--out", tmp_path)
    assert [name for name, _ in ran] == list(EXPERIMENTS) == list(results(tmp_path)["experiments"])


def test_force_starts_again(ran, tmp_path):
    worked("fig4", "--runs", 1, "--out", tmp_path)
    worked("fig3", "--runs", 1, "--seed", 1, "--out", tmp_path, "--force")
    assert list(results(tmp_path)["experiments"]) == ["fig3"]
    assert results(tmp_path)["seed"] == 1
    worked("fig3", "--runs", 1, "--seed", 1, "--out", tmp_path, "--force")
    assert ran == [("fig4", 0), ("fig3", 0), ("fig3", 0)]


def test_another_seed_is_refused_and_no_file_changes(ran, tmp_path):
    worked("fig3", "--runs", 1, "--out", tmp_path)
    before = {file.name: file.read_bytes() for file in tmp_path.iterdir()}
    assert "seed" in refused("fig3", "--runs", 1, "--seed", 1, "--out", tmp_path)
    assert {file.name: file.read_bytes() for file in tmp_path.iterdir()} == before


def test_a_folder_with_other_files_is_refused_and_no_file_changes(ran, tmp_path):
    (tmp_path / "thesis.txt").write_text("years of work")
    assert "other files" in refused("fig3", "--runs", 1, "--out", tmp_path)
    assert [file.name for file in tmp_path.iterdir()] == ["thesis.txt"]
    assert ran == []


def test_an_empty_folder_is_used(ran, tmp_path):
    (tmp_path / "o").mkdir()
    worked("fig3", "--runs", 1, "--out", tmp_path / "o")
    assert (tmp_path / "o" / "report.html").exists()


@pytest.mark.parametrize("below", ["", "deeper"])
@pytest.mark.parametrize("force", [[], ["--force"]])
def test_a_file_where_the_folder_should_be_is_refused(ran, tmp_path, below, force):
    (tmp_path / "file").write_text("text")
    refused("fig3", "--runs", 1, "--out", tmp_path / "file" / below, *force)
    assert (tmp_path / "file").read_text() == "text"
    assert ran == []


@pytest.mark.parametrize(
    "damage", one_of(4, ["", "{", "[]", '{"experiments": 3}', '{"experiments": {"fig9": {"runs": 1}}}'])
)
def test_damaged_results_are_written_again_from_the_trials(ran, tmp_path, damage):
    worked("fig3", "--runs", 2, "--out", tmp_path)
    before = results(tmp_path)
    (tmp_path / "results.json").write_text(damage)
    worked("fig3", "--runs", 2, "--out", tmp_path)
    assert results(tmp_path) == before
    assert len(ran) == 2


def test_the_error_of_an_experiment_is_printed(ran, tmp_path, monkeypatch):
    def measure(trial):
        raise ElmeshError("The disk of USPS is full.")

    monkeypatch.setitem(EXPERIMENTS, "fig3", replace(EXPERIMENTS["fig3"], measure=measure))
    assert "The disk of USPS is full." in refused("fig3", "--runs", 1, "--out", tmp_path)


def test_progress_starts_with_the_trials_that_are_finished(ran, tmp_path):
    reproduce({"fig3": 2}, 0, tmp_path)
    seen: list[tuple[str, int, int]] = []
    reproduce({"fig3": 4}, 0, tmp_path, on_progress=lambda *progress: seen.append(progress))
    assert seen == [("fig3", 2, 4), ("fig3", 3, 4), ("fig3", 4, 4)]


def test_an_analysis_gets_the_numbers_by_case_in_the_order_of_runs(ran, tmp_path, monkeypatch):
    seen: list[dict] = []

    def analyze(results, runs):
        seen.append(dict(results))
        return Analysis(Section("Two cases"), {})

    experiment = Experiment(lambda trial: {"n": f"{trial.case}{trial.run}"}, analyze, lambda: ["a", "b"])
    monkeypatch.setitem(EXPERIMENTS, "fig3", experiment)
    reproduce({"fig3": 3}, 0, tmp_path)
    assert seen == [{case: [{"n": f"{case}{run}"} for run in range(3)] for case in "ab"}]


def test_json_is_one_object_and_nothing_else(ran, tmp_path):
    result = worked("fig3", "--runs", 2, "--out", tmp_path, "--json")
    assert result.stdout.count("\n") == 1
    seen = json.loads(result.stdout)
    assert result.stderr == ""
    assert {key: seen[key] for key in results(tmp_path)} == results(tmp_path)
    assert seen["command"] == "reproduce"
    assert seen["folder"] == str(tmp_path)
    assert seen["notes"] == []


def test_quiet_prints_no_output(ran, tmp_path):
    assert worked("fig3", "--runs", 1, "--out", tmp_path, "--quiet").output == ""


def test_the_number_of_runs_is_that_of_the_runs_that_were_made(ran, tmp_path, monkeypatch):
    monkeypatch.setitem(EXPERIMENTS, "tuning", replace(EXPERIMENTS["tuning"], max_runs=2))
    worked("tuning", "--runs", 9, "--out", tmp_path)
    assert results(tmp_path)["experiments"]["tuning"]["runs"] == 2


@pytest.mark.parametrize(
    ("args", "word"),
    [
        ([], "what"),
        (["fig9"], "fig9"),
        (["fig3", "--runs", "0"], "runs"),
        (["fig3", "--runs", "many"], "runs"),
        (["fig3", "--seed", "-1"], "seed"),
        (["fig3", "--speed"], "--speed"),
        (["fig3", "fig4"], "fig4"),
    ],
)
def test_wrong_usage_gives_one_sentence_and_exit_code_two(args, word, monkeypatch, capsys, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["elmesh", "reproduce", *args])
    with pytest.raises(SystemExit) as end:
        main()
    assert end.value.code == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("elmesh: ")
    assert err.count("\n") == 1
    assert word in err.lower()
    assert list(tmp_path.iterdir()) == []


# Missing data


@pytest.fixture
def bare(monkeypatch, tmp_path):
    yield from remove_datasets(monkeypatch, tmp_path, mnist=True)


def test_without_usps_the_fallback_runs_and_a_note_explains_it(bare, inline, monkeypatch, tmp_path):
    (invented,) = invent_fig6(DIGITS).values()
    monkeypatch.setitem(EXPERIMENTS, "fig6", replace(EXPERIMENTS["fig6"], measure=lambda trial: invented[0]))
    with figures_left_empty():
        result = worked("fig6", "--runs", 1, "--out", tmp_path / "o", "--json")
    found = results(tmp_path / "o")
    assert list(found["missing"]) == ["Kang et al. 2011", "USPS"]
    assert all("ELMESH_DATA" in reason for reason in found["missing"].values())
    assert found["protocol"]["name"] == "images"
    assert found["experiments"]["fig6"]["claims"] == []
    assert found["experiments"]["fig6"]["numbers"]["data"] == "digits"
    assert result.stderr.startswith("note: ")
    assert "Kang et al. 2011 is missing" in result.stderr
    assert "USPS is missing" in result.stderr
    assert result.stderr.count("\n") == 2
    assert len(json.loads(result.stdout)["notes"]) == 2
    page = (tmp_path / "o" / "report.html").read_text()
    assert "Kang et al. 2011 is missing" in page
    assert "kang_digits.npz" in page
    assert "no row is used twice" in page


def test_with_the_release_its_protocol_is_named_and_both_ways_of_drawing_are_on_the_page(inline, monkeypatch, tmp_path):
    simulate_release(tmp_path)
    by_case = {case: runs[0] for case, runs in invent_fig6().items()}
    monkeypatch.setitem(EXPERIMENTS, "fig6", replace(EXPERIMENTS["fig6"], measure=lambda trial: by_case[trial.case]))
    for _ in remove_datasets(monkeypatch, tmp_path, mnist=True, release=tmp_path):
        with figures_left_empty():
            result = worked("fig6", "--runs", 1, "--out", tmp_path / "o")
    found = results(tmp_path / "o")
    assert found["missing"] == {}
    assert found["protocol"]["name"] == "Kang et al. 2011"
    assert found["protocol"]["drawings"] == ["independent draws", "no row used twice"]
    assert "missing" not in result.output
    page = (tmp_path / "o" / "report.html").read_text()
    for words in ("Kang et al. 2011", "Independent draws (", "No row used twice (", "Bonferroni"):
        assert words in page


def test_an_experiment_without_data_sets_misses_none(bare, ran, tmp_path, monkeypatch):
    monkeypatch.setattr("elmesh.paper.reproduction.missing_data", protocol.missing_data)
    assert worked("misprints", "--runs", 1, "--out", tmp_path / "a").stderr == ""
    assert results(tmp_path / "a")["missing"] == {}
    worked("table1", "--runs", 1, "--out", tmp_path / "b")
    assert list(results(tmp_path / "b")["missing"]) == ["Kang et al. 2011", "USPS", "MNIST"]


# A short version of a real experiment


def run_fig3(folder: Path, runs: int) -> Path:
    """Run Fig. 3 of few rounds in this process, and return its folder."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reproduction, "run_trials", RUN_INLINE)
        patch.setitem(EXPERIMENTS, "fig3", replace(EXPERIMENTS["fig3"], measure=partial(measure_fig3, rounds=40)))
        worked("fig3", "--runs", runs, "--seed", 3, "--out", folder)
    return folder


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory) -> Path:
    with drawn():
        return run_fig3(tmp_path_factory.mktemp("undisturbed"), 8)


def test_the_report_is_self_contained(inline, monkeypatch, tmp_path):
    by_case = {case: runs[0] for case, runs in invent_fig5(DIGITS).items()}
    fig5 = replace(EXPERIMENTS["fig5"], measure=lambda trial: by_case[trial.case])
    monkeypatch.setitem(EXPERIMENTS, "fig5", fig5)
    for _ in remove_datasets(monkeypatch, tmp_path, mnist=True):
        with drawn():
            worked("fig5", "--runs", 1, "--out", tmp_path / "o")
    page = (tmp_path / "o" / "report.html").read_text()
    assert page.count("<svg") >= 1
    # Names of XML namespaces look like addresses but are not.
    rest = re.sub(r'xmlns(:\w+)?="[^"]*"', "", page)
    assert not re.search(r"https?:|//[a-z]|@import|url\((?!#)", rest, re.IGNORECASE)
    assert not re.search(r"<(script|link|iframe|img|object|embed)\b[^>]*(src|href)=[\"'](?!#|data:)", rest)
    assert (tmp_path / "o" / "fig-5.png").read_bytes().startswith(b"\x89PNG")
    assert "<svg" in (tmp_path / "o" / "fig-5.svg").read_text()


def test_the_report_has_the_claims_of_the_results(tmp_path):
    with figures_left_empty():
        run_fig3(tmp_path, 2)
    page = html.unescape((tmp_path / "report.html").read_text()).replace("\u00a0", " ")
    claims = results(tmp_path)["experiments"]["fig3"]["claims"]
    assert len(claims) > 4
    for claim in claims:
        assert claim["statement"] in page
        assert claim["found"] in page
        assert claim["verdict"] in ("agrees", "differs", "could not be determined")


def start(*command: str, env: dict[str, str] | None = None) -> subprocess.Popen:
    """Start a process that Ctrl-C can be sent to with all that it starts."""
    return subprocess.Popen(
        command, start_new_session=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env=env or os.environ | {"NO_COLOR": "1"},
    )  # fmt: skip


def finished_trials(folder: Path) -> int:
    path = folder / "trials.jsonl"
    return max(0, path.read_text().count("\n") - 1) if path.exists() else 0


def end(process: subprocess.Popen) -> tuple[str, str]:
    try:
        return process.communicate(timeout=measures.PATIENCE)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()


@needs_proc
@pytest.mark.slow
def test_after_an_interrupt_the_same_command_continues_to_the_same_numbers(tmp_path, undisturbed):
    command = [*SMALL, "fig3", "--runs", "8", "--seed", "3", "--json", "--out", str(tmp_path)]
    process = start(*command)
    until(lambda: finished_trials(tmp_path) >= 2, "end of two trials")
    workers = children(process.pid, "spawn_main")
    os.killpg(process.pid, signal.SIGINT)
    out, err = end(process)
    assert process.returncode == 130, err
    assert out == ""
    assert "Traceback" not in err
    assert err.splitlines()[-1].startswith("elmesh: Stopped.")
    assert str(tmp_path) in err.splitlines()[-1]
    assert workers
    until(lambda: not any(map(alive, workers)), "end of the workers")
    kept = (tmp_path / "trials.jsonl").read_text().splitlines()
    assert 3 <= len(kept) < 41
    assert not (tmp_path / "results.json").exists()

    process = start(*command)
    out, err = end(process)
    assert process.returncode == 0, err
    assert err == ""
    assert results(tmp_path) == results(undisturbed)
    assert json.loads(out)["experiments"] == results(undisturbed)["experiments"]
    # Finished trials were not run again, and the report is identical.
    assert (tmp_path / "trials.jsonl").read_text().splitlines()[: len(kept)] == kept
    assert (tmp_path / "report.html").read_text() == (undisturbed / "report.html").read_text()
    assert (tmp_path / "fig-3.png").read_bytes() == (undisturbed / "fig-3.png").read_bytes()


def test_ctrl_c_keeps_finished_trials_and_the_same_command_continues(ran, monkeypatch, tmp_path):
    worked("fig3", "--runs", 5, "--out", tmp_path / "undisturbed")
    trivial = EXPERIMENTS["fig3"]

    def interrupted(trial):
        if trial.run == 2:
            signal.raise_signal(signal.SIGINT)
        return trivial.measure(trial)

    with monkeypatch.context() as patch:
        patch.setitem(EXPERIMENTS, "fig3", replace(trivial, measure=interrupted))
        patch.setattr(reproduction, "run_trials", partial(RUN_INLINE, processes=1))
        result = run("fig3", "--runs", 5, "--out", tmp_path / "o", "--json")
    assert (result.exit_code, result.stdout) == (130, "")
    assert result.stderr.splitlines()[-1].startswith("elmesh: Stopped.")
    assert str(tmp_path / "o") in result.stderr.splitlines()[-1]
    assert [path.name for path in (tmp_path / "o").iterdir()] == ["trials.jsonl"]
    kept = (tmp_path / "o" / "trials.jsonl").read_text()
    assert finished_trials(tmp_path / "o") == 3
    ran.clear()
    worked("fig3", "--runs", 5, "--out", tmp_path / "o")
    assert ran == [("fig3", 3), ("fig3", 4)]
    assert (tmp_path / "o" / "trials.jsonl").read_text().startswith(kept)
    assert results(tmp_path / "o") == results(tmp_path / "undisturbed")


@needs_proc
@pytest.mark.slow
def test_an_interrupt_while_workers_start_ends_in_the_same_way(tmp_path):
    process = start(*SMALL, "fig3", "--runs", "8", "--out", str(tmp_path))
    until(lambda: children(process.pid, "spawn_main"), "start of a worker")
    os.killpg(process.pid, signal.SIGINT)
    _, err = end(process)
    assert "Traceback" not in err
    assert process.returncode == 130


@needs_proc
@pytest.mark.slow
def test_an_abort_does_not_wait_for_running_trials(tmp_path):
    process = start(sys.executable, measures.__file__, str(tmp_path))
    try:
        until(lambda: len(list(tmp_path.glob("*.pid"))) == 2, "start of two workers")
        # Without the handler of the command, Ctrl-C raises KeyboardInterrupt, like a second Ctrl-C with it.
        os.killpg(process.pid, signal.SIGINT)
        process.wait(8)
    finally:
        (tmp_path / "release").touch()
        end(process)


@pytest.mark.slow
def test_a_machine_without_data_and_network_runs_the_fallback_and_prints_only_notes(tmp_path):
    (tmp_path / "shadow" / "mlxtend").mkdir(parents=True)
    (tmp_path / "shadow" / "mlxtend" / "__init__.py").touch()
    nowhere = "http://127.0.0.1:9"
    own = {
        "SCIKIT_LEARN_DATA": str(tmp_path / "home"), "https_proxy": nowhere, "http_proxy": nowhere, "NO_COLOR": "1",
        "PYTHONPATH": os.pathsep.join([str(tmp_path / "shadow"), os.environ.get("PYTHONPATH", "")]),
    }  # fmt: skip
    env = {name: value for name, value in os.environ.items() if name not in ("ELMESH_DATA", "no_proxy", "NO_PROXY")}
    command = [sys.executable, "-m", "elmesh", "reproduce", "fig6", "--runs", "1", "--out", str(tmp_path / "o")]
    process = start(*command, "--json", env=env | own)
    out, err = end(process)
    assert process.returncode == 0, err
    assert list(json.loads(out)["missing"]) == ["Kang et al. 2011", "USPS"]
    assert "USPS is missing" in err
    assert [line for line in err.splitlines() if not line.startswith("note: ")] == []
    assert results(tmp_path / "o")["experiments"]["fig6"]["numbers"]["data"] == "digits"
