"""``elmesh fit`` on real ranks: the same models on any number of them, nothing lost when they die, bad input in a
sentence.

Python takes its time to start on many ranks. So one job a number of ranks fits and fails in every way there is (see
:mod:`rank_worker`), and tests look at what it left; only what ends ranks has jobs of its own.
"""

from __future__ import annotations

import functools
import importlib
import io
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner, Result

import elmesh
from elmesh.cli import app, keeper
from elmesh.cli.job import Job, find_mpiexec
from elmesh.cli.launch import LOST
from elmesh.cli.placement import Placement
from elmesh.comm.mpi import world_communicator
from helpers import rank_worker
from helpers.mpi import needs_mpi, once
from helpers.paper_measures import alive, until

WORKER = Path(rank_worker.__file__)
BOUND = 240  # seconds that no job may reach
SOON = 10  # seconds from the loss of a rank to the end of the command

SITES = ["05", "Zürich 100%", "b", "north", "south"]
SMALL = ["--hidden", "12", "--target", "y"]
# Rounds that never end by themselves, but for their number.
ROUNDS = ["--solver", "fo-dmtl-elm", "--tol", "0", "--max-iter"]


# Data


def patients(seed: int = 0) -> pd.DataFrame:
    """Return sites of unequal rows whose values follow from the same two directions; some cells are missing."""
    rng = np.random.default_rng(seed)
    basis, frames = rng.normal(size=(4, 2)), []
    for site, rows in zip(SITES, (20, 41, 30, 33, 24), strict=True):
        X = rng.normal(size=(rows, 4))
        y = np.tanh(X @ basis) @ rng.normal(size=2) + 0.1 * rng.normal(size=rows)
        frame = pd.DataFrame(X, columns=list("efgh")).assign(ward=rng.choice(["east", "west"], rows), y=y)
        frames.append(frame.mask(pd.DataFrame(rng.random((rows, 6)) < [0.1, 0, 0, 0, 0.1, 0], columns=frame.columns)))
        frames[-1].insert(0, "site", site)
    # South has never seen a case of "bad".
    whole = pd.concat(frames, ignore_index=True)
    bounds = [-0.5, 0.5]
    outcome = np.array(["bad", "fair", "good"])[np.digitize(whole["y"], bounds)]
    return whole.assign(outcome=np.where((whole["site"] == "south") & (outcome == "bad"), "fair", outcome))


def write_sites(frame: pd.DataFrame, folder: Path) -> Path:
    """Write a file for each site."""
    folder.mkdir(parents=True)
    for site, rows in frame.groupby("site"):
        rows.drop(columns="site").to_csv(folder / f"{site}.csv", index=False)
    return folder


def spoil(folder: Path, file: str, line: int, cell: str) -> None:
    """Put something into the second cell of a line."""
    lines = (folder / file).read_text().splitlines()
    cells = lines[line - 1].split(",")
    lines[line - 1] = ",".join([cells[0], cell, *cells[2:]])
    (folder / file).write_text("\n".join(lines) + "\n")


def make_data(folder: Path) -> None:
    frame = patients()
    numbers, classes = frame.drop(columns="outcome"), frame.drop(columns="y")
    write_sites(numbers, folder / "sites")
    write_sites(classes.rename(columns={"outcome": "y"}), folder / "classes")
    # Another machine lacks a file, and has models in the way.
    elsewhere = write_sites(numbers[numbers["site"] != "b"], folder / "elsewhere" / "sites")
    (elsewhere.parent / "models" / "b").mkdir(parents=True)
    (elsewhere.parent / "models" / "b" / "model.json").touch()
    numbers.to_parquet(folder / "whole.parquet", row_group_size=7)
    numbers.to_parquet(folder / "hive", partition_cols=["site"])
    names = {"05": "..", "Zürich 100%": "a/b", "b": "."}
    odd = numbers[numbers["site"].isin(names)]
    odd.assign(site=odd["site"].map(names)).to_parquet(folder / "odd.parquet")
    write_bulky(numbers, folder)
    for name, file, line, cell in (("cell", "south.csv", 9, "inf"), ("text", "b.csv", 4, "1.2.3")):
        spoil(write_sites(numbers, folder / name), file, line, cell)
    wide = write_sites(numbers, folder / "wide")
    spoil(wide, "north.csv", 12, "1,2")
    (write_sites(numbers, folder / "torn") / "south.csv").write_bytes(b"e,f,g,h,ward,y\n" + b"\xff" * 10_000)
    twice = write_sites(numbers, folder / "twice")
    (twice / "b.csv").rename(twice / "05.tsv")
    again = folder / "again"
    again.mkdir()
    for file in ("1.csv", "2.csv"):
        numbers[numbers["site"] == "b"].to_csv(again / file, index=False)
    numbers.to_csv(folder / "whole.csv", index=False)
    (folder / "file").touch()


def write_bulky(frame: pd.DataFrame, folder: Path) -> None:
    """Write sites that are large but for their first rows, as files and as row groups."""
    rng = np.random.default_rng(1)
    bulk = [rng.bytes(20_000).hex() for _ in range(len(frame))]
    first = ~frame["site"].duplicated()
    bulky = frame.assign(bulk=np.where(first, "", bulk))
    write_sites(bulky, folder / "bulky")
    parts = [pa.Table.from_pandas(rows, preserve_index=False) for _, rows in bulky.groupby("site")]
    with pq.ParquetWriter(folder / "bulky.parquet", parts[0].schema) as writer:
        for part in parts:
            writer.write_table(part)


# Jobs of many commands

#: Fits by name: they are done on 2 and on 3 ranks.
FITS: dict[str, list[str]] = {
    "csv": ["sites", *SMALL, "--json"],
    "gathered": ["sites", *SMALL, "--gather"],
    "classes": ["classes", *SMALL, "--quiet"],
    "rounds": ["sites", *SMALL, *ROUNDS, "30"],
}
#: And these on 3 alone.
MORE: dict[str, list[str]] = {
    "hive": ["hive", "--task", "site", *SMALL],
    "parquet": ["whole.parquet", "--task", "site", *SMALL],
    "odd": ["odd.parquet", "--task", "site", *SMALL, "--max-iter", "2", "--json"],
    "kept": ["sites", *SMALL, "--checkpoint", "kept", "--every", "4"],
    "kept-again": ["sites", *SMALL, "--checkpoint", "kept", "--every", "4", "--json"],
    "stopped": ["sites", *SMALL, *ROUNDS, "100000", "--json"],
    "stopped-late": ["sites", *SMALL, "--json"],
    "bulky": ["bulky", *SMALL, "--drop", "bulk"],
    "bulky-parquet": ["bulky.parquet", "--task", "site", *SMALL, "--drop", "bulk"],
}


@dataclass(frozen=True)
class Bad:
    """What goes wrong, on which rank if not on all, and what is said of it."""

    words: list[str]
    message: str
    ranks: Mapping[str, Mapping[str, Any]] | None = None
    out: str = "never"


BAD: dict[str, Bad] = {
    "a cell that is no number": Bad(["text"], r'"1\.2\.3" at line 4 of b\.csv'),
    "a cell that is not finite": Bad(["cell"], r"line 9 of south\.csv"),
    "a line that is too long": Bad(["wide"], r'Task "north": north\.csv, line 12: 7 values where the header has 6'),
    "a file that is no text": Bad(["torn"], r'Task "south": south\.csv, line 2: not UTF-8'),
    "two files for a task": Bad(["twice"], r"05\.csv and 05\.tsv in the folder twice differ only in their ending"),
    "two files with one task": Bad(["again", "--task", "site"], r'Task "b" has two files, 1\.csv and 2\.csv;'),
    "one CSV file": Bad(["whole.csv", "--task", "site"], r"whole\.csv is one CSV file, which cannot be read in parts"),
    "one file and no task": Bad(["whole.parquet"], r"whole\.parquet is one file, so --task must name the column"),
    "partitions and no task": Bad(["hive"], r"partitioned by site, .* as in --task site"),
    "no such data": Bad(["nowhere"], r"There is no file or folder nowhere"),
    "no such column to drop": Bad(["sites", "--drop", "huh"], r'There is no column "huh"'),
    "no such target": Bad(["sites", "--target", "huh"], r'There is no column "huh"'),
    "no such kind": Bad(["sites", "--kind", "huh"], r"--kind must be classification or regression"),
    "no such graph": Bad(["sites", "--graph", "huh"], r"The graph 'huh' is unknown"),
    "a solver without agents": Bad(["sites", "--solver", "mtl-elm"], r"--runtime has no meaning for mtl-elm"),
    "a checkpoint of another fit": Bad(["sites", "--checkpoint", "kept", "--seed", "7"], r"another fit: .* is 0, and"),
    "a file for a checkpoint": Bad(["sites", "--checkpoint", "file"], r"cannot be written: \S+file is a file"),
    "an output below a file": Bad(["sites"], r"file.x cannot be written: \S+file is a file", out="file/x"),
    "an output that is there": Bad(["sites"], r"out-csv exists; .*--force", out="out-csv"),
    "models where one model goes": Bad(["sites", "--gather", "--force"], r"is not an elmesh model", out="out-csv"),
    "a model where models go": Bad(["sites", "--force"], r"is not a folder of models", out="out-gathered"),
    "a rank that lacks a file": Bad(
        ["sites"], r"Rank 1 does not find 'b' in sites, which rank 0 does; all ranks need", {"1": {"cwd": "elsewhere"}}
    ),
    "a rank with another seed": Bad(
        ["sites"], r"Rank 2 differs from rank 0 in --seed: 8 there, 0 here", {"2": {"words": ["--seed", "8"]}}
    ),
    "a rank with models in the way": Bad(
        ["sites"], r"models exists; .*--force", {"2": {"cwd": "elsewhere"}}, out="models"
    ),
    "a rank whose disk is full": Bad(["sites"], r"File too large", {"1": {"disk": 1000}}, out="full"),
}


@pytest.fixture(scope="module")
def linux() -> None:
    if not Path("/proc/self/io").exists():
        pytest.skip("needs Linux, which tells of processes and what they read")


@pytest.fixture(scope="module")
def jobs(linux, tmp_path_factory) -> Path:
    """Where jobs of 2 and of 3 ranks have left what they did, each in a folder of its own, on the same data."""
    base = tmp_path_factory.getbasetemp()
    # Workers of pytest-xdist have a folder each, side by side.
    return once((base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "rank-jobs", run_jobs)


def run_jobs(folder: Path) -> None:
    for n in (2, 3):
        here = folder / str(n)
        here.mkdir()
        make_data(here)
        fits = FITS if n == 2 else FITS | MORE
        commands: dict[str, dict[str, Any]] = {
            name: {"words": ["fit", *words, "--runtime", "mpi", "--out", f"out-{name}"]} for name, words in fits.items()
        }
        for name, bad in BAD.items() if n == 3 else ():
            words = ["fit", *bad.words, *([] if "--target" in bad.words else ["--target", "y"]), "--hidden", "12"]
            commands[name] = {"words": [*words, "--runtime", "mpi", "--out", bad.out], "ranks": bad.ranks or {}}
        if n == 3:
            commands["stopped"]["ranks"] = {"1": {"stop": "rounds"}}
            commands["stopped-late"]["ranks"] = {"1": {"stop": "saving"}}
        (here / "commands.json").write_text(json.dumps(commands))
        code, err = run_job(n, [sys.executable, str(WORKER), str(here)])
        if code:
            raise RuntimeError(f"{n} ranks ended with code {code}; they said:\n{err}")


def run_job(n_ranks: int, program: Sequence[str]) -> tuple[int | None, str]:
    """Run something under mpiexec, without the launcher, and see that it ends."""
    place = Placement.here(n_ranks)
    environ = place.variables({name: x for name, x in os.environ.items() if not name.startswith(("OMPI_", "PMIX_"))})
    command = [find_mpiexec(), *place.options(environ), *program]
    end = time.monotonic() + BOUND
    with Job(command, environ, place.folders) as job:
        while job.code is None and time.monotonic() < end:
            job.read(0.1)
        if job.code is None:
            raise TimeoutError(f"{n_ranks} ranks took {BOUND} seconds; they said:\n" + "\n".join(job.errors))
    return job.code, "\n".join(job.errors)


def said(jobs: Path, n_ranks: int, name: str) -> list[dict[str, Any]]:
    """Give what each rank said in a command."""
    return [json.loads((jobs / str(n_ranks) / f"{name}-{rank}.json").read_text()) for rank in range(n_ranks)]


def weights(out: Path) -> dict[str, bytes]:
    """Give the weights of all models in a folder by their names in it."""
    found = {str(file.parent.relative_to(out)): file.read_bytes() for file in out.glob("**/weights.safetensors")}
    assert found
    return found


# The launcher, in this process


def run(*args: object) -> Result:
    return CliRunner(env={"FORCE_COLOR": None, "NO_COLOR": "1"}).invoke(app, [str(arg) for arg in args])


@pytest.fixture(autouse=True)
def no_scheduler(monkeypatch) -> None:
    """Have the ranks placed here also where a scheduler runs the tests."""
    for name in ("SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID", "OMPI_COMM_WORLD_RANK"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def fate(linux, tmp_path) -> Iterator[Path]:
    """Give a folder for what befalls ranks; none of them, nor anything of their job, may live on after the test."""
    folder = tmp_path / "fate"
    folder.mkdir()
    yield folder
    sessions = {int(path.read_text()) for path in folder.glob("*.pid")}
    left = [pid for session in sessions for pid in keeper.members(session)]
    left += [pid for path in folder.glob("*.pid") if alive(pid := int(path.stem)) and pid not in left]
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    assert left == []


@pytest.fixture
def launched(fate, monkeypatch) -> Callable[..., Result]:
    """Fit on ranks that blows befall."""
    module = importlib.import_module("elmesh.cli.fit")  # elmesh.cli has a function of that name
    program = (sys.executable, str(WORKER), str(fate))
    monkeypatch.setattr(module, "launch", functools.partial(module.launch, program=program))

    def fit(*args: object, blows: Sequence[Mapping[str, object]] = (), pace: float = 0.0) -> Result:
        for mark in fate.glob("*.struck"):
            mark.unlink()
        (fate / "plan.json").write_text(json.dumps({"blows": blows, "pace": pace}))
        return run("fit", *args, "--runtime", "mpi")

    return fit


def struck(fate: Path) -> int:
    """Count the blows that fell."""
    return len(list(fate.glob("*.struck")))


def seconds_since_blow(fate: Path) -> float:
    return time.monotonic() - float((fate / "0.struck").read_text())


def check_loss(text: str, blow: Mapping[str, Any]) -> None:
    """Hold what is said of a loss against what befell."""
    how = "died" if blow["how"] == "SIGKILL" else "stopped answering"
    if blow["when"] == "reading":
        assert text.startswith(f"Rank {blow['rank']} {how} before the first round;")
        return
    told = re.match(rf"Rank {blow['rank']} {how} in round (\d+); ", text)
    assert told is not None, text
    # Another rank has noticed, and tells the round that it was in itself.
    assert blow["when"] == "saving" or abs(int(told[1]) - blow["when"]) <= 1


# Fits


@needs_mpi
@pytest.mark.parametrize("name", FITS)
def test_models_are_the_same_to_the_bit_on_2_and_on_3_ranks(jobs, name):
    assert [note["code"] for n in (2, 3) for note in said(jobs, n, name)] == [0] * 5
    assert weights(jobs / "2" / f"out-{name}") == weights(jobs / "3" / f"out-{name}")


@needs_mpi
def test_models_are_the_same_to_the_bit_on_1_rank_and_the_summary_too(jobs, launched, tmp_path):
    sites = jobs / "3" / "sites"
    result = launched(sites, *SMALL, "--json", "--ranks", 1, "--out", tmp_path / "m")
    assert (result.exit_code, result.stderr) == (0, "")
    assert weights(tmp_path / "m") == weights(jobs / "3" / "out-csv")
    ours, theirs = json.loads(result.stdout), json.loads(said(jobs, 3, "csv")[0]["out"])
    assert (ours.pop("ranks"), theirs.pop("ranks")) == (1, 3)
    assert (ours.pop("model"), theirs.pop("model")) == (str(tmp_path / "m"), "out-csv")
    assert ours == theirs


@needs_mpi
def test_json_is_one_object_with_what_a_fit_in_one_process_says_and_the_number_of_ranks(jobs, tmp_path):
    here = json.loads(run("fit", jobs / "3" / "sites", *SMALL, "--json", "--out", tmp_path / "m").stdout)
    ranks = json.loads(said(jobs, 3, "csv")[0]["out"])
    assert set(ranks) == {*here, "ranks"}
    for name in ("tasks", "rows", "columns", "rank", "rounds", "kind", "kind_reason", "stop", "classes"):
        assert ranks[name] == here[name], name
    assert ranks["objective"] == pytest.approx(here["objective"], rel=1e-9)


@needs_mpi
@pytest.mark.parametrize("name", ["hive", "parquet"])
def test_partitions_and_row_groups_give_the_same_models_as_files(jobs, name):
    assert weights(jobs / "3" / f"out-{name}") == weights(jobs / "3" / "out-csv")


@needs_mpi
@pytest.mark.parametrize("site", SITES)
def test_each_sites_own_model_predicts_as_the_gathered_one_and_as_one_fitted_in_one_process(jobs, tmp_path, site):
    models = {elmesh.load(path).tasks_[0]: path for path in (jobs / "3" / "out-csv").iterdir()}
    assert sorted(models) == SITES
    new = patients(seed=1)
    write_sites(new[new["site"] == site].drop(columns=["y", "outcome"]), tmp_path / "new")
    assert run("fit", jobs / "3" / "sites", *SMALL, "--out", tmp_path / "here").exit_code == 0

    def predictions(model: Path) -> list[float]:
        result = run("predict", model, tmp_path / "new" / f"{site}.csv")
        assert result.exit_code == 0, result.output
        return pd.read_csv(io.StringIO(result.stdout))["prediction"].tolist()

    own = predictions(models[site])
    assert own == pytest.approx(predictions(jobs / "3" / "out-gathered"), rel=1e-12)
    assert own == pytest.approx(predictions(tmp_path / "here"), rel=1e-8)


@needs_mpi
def test_a_site_that_lacks_a_class_does_not_learn_it_and_the_others_do(jobs):
    models = [elmesh.load(path) for path in (jobs / "3" / "out-classes").iterdir()]
    classes = {model.tasks_[0]: model.classes_.tolist() for model in models}
    assert classes == {site: ["fair", "good"] if site == "south" else ["bad", "fair", "good"] for site in SITES}
    assert all(note["out"] == note["err"] == "" for note in said(jobs, 3, "classes"))


@needs_mpi
def test_a_task_of_any_name_has_its_model_inside_the_folder(jobs):
    assert sorted(path.name for path in (jobs / "3" / "out-odd").iterdir()) == ["%2E", "%2E%2E", "a%2Fb"]
    assert sorted(elmesh.load(path).tasks_[0] for path in (jobs / "3" / "out-odd").iterdir()) == [".", "..", "a/b"]


@needs_mpi
def test_a_rank_that_is_asked_to_stop_stops_all_after_the_round_and_models_are_saved(jobs):
    notes = said(jobs, 3, "stopped")
    assert [note["code"] for note in notes] == [130, 130, 130]
    summary = json.loads(notes[0]["out"])
    assert summary["stop"] == "INTERRUPTED"
    assert summary["rounds"] < 10
    assert summary["notes"] == [f"Stopped after round {summary['rounds']}; the models so far are in out-stopped."]
    assert len(weights(jobs / "3" / "out-stopped")) == len(SITES)


@needs_mpi
def test_a_rank_that_is_asked_to_stop_when_all_is_done_does_not_die_of_it(jobs):
    assert [note["code"] for note in said(jobs, 3, "stopped-late")] == [130, 130, 130]
    assert weights(jobs / "3" / "out-stopped-late") == weights(jobs / "3" / "out-csv")


@needs_mpi
@pytest.mark.parametrize("name", ["csv", "hive", "odd", "kept-again", "stopped"])
def test_one_rank_speaks_for_all(jobs, name):
    first, *others = said(jobs, 3, name)
    assert first["out"] != ""
    assert all(note["out"] == note["err"] == "" for note in others)


@needs_mpi
def test_what_was_noted_is_part_of_the_json(jobs):
    assert "max_iter" in json.loads(said(jobs, 3, "odd")[0]["out"])["notes"][0]
    (note,) = json.loads(said(jobs, 3, "kept-again")[0]["out"])["notes"]
    assert re.fullmatch(r"Going on from the checkpoint of round \d+ in kept\.", note)


@needs_mpi
def test_a_fit_that_goes_on_from_its_last_checkpoint_ends_the_same(jobs):
    assert weights(jobs / "3" / "out-kept") == weights(jobs / "3" / "out-csv")
    assert weights(jobs / "3" / "out-kept-again") == weights(jobs / "3" / "out-csv")


@needs_mpi
@pytest.mark.parametrize(("name", "small"), [("bulky", "rounds"), ("bulky-parquet", "parquet")])
def test_a_rank_reads_its_own_sites_and_of_the_others_hardly_anything(jobs, name, small):
    files = [jobs / "3" / "bulky" / f"{site}.csv" for site in SITES]
    own = [sum(file.stat().st_size for file in part) for part in (files[:2], files[2:4], files[4:])]
    # What is read besides the data is the same where there are next to none.
    for note, besides, size in zip(said(jobs, 3, name), said(jobs, 3, small), own, strict=True):
        assert note["code"] == 0
        assert 0.9 * size < note["read"] - besides["read"] < size + 250_000
    assert min(file.stat().st_size for file in files) > 500_000


# Bad input, on ranks that somebody else started


@needs_mpi
@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_one_sentence_of_one_rank_and_code_2_on_all(jobs, name):
    first, *others = said(jobs, 3, name)
    assert [note["code"] for note in (first, *others)] == [2, 2, 2]
    assert re.fullmatch(rf"elmesh: [^\n]*{BAD[name].message}[^\n]*\.\n", first["err"]), first["err"]
    assert all(note["out"] == note["err"] == "" for note in others)
    assert not (jobs / "3" / "never").exists()
    assert list((jobs / "3").glob("**/.*")) == []  # nothing half done either


# Bad input, before any rank is started


@pytest.fixture
def no_job(monkeypatch) -> None:
    """Fail what would start ranks."""
    module = importlib.import_module("elmesh.cli.fit")
    monkeypatch.setattr(module, "launch", lambda *_, **__: pytest.fail("ranks were started"))


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("data") / "all"
    folder.mkdir()
    make_data(folder)
    return folder


def check_refused(result: Result, message: str) -> None:
    assert result.exit_code == 2
    assert result.stdout == ""
    assert re.fullmatch(rf"elmesh: [^\n]*{message}[^\n]*\.\n", result.stderr), result.stderr


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["sites", "--ranks", "6"], r"There are 6 ranks for 5 tasks; .*at most 5"),
        (["sites", "--ranks", "0"], r"one rank at least; got 0"),
        (["whole.parquet", "--task", "site", "--ranks", "6"], r"6 ranks for 5 tasks"),
        (["whole.parquet", "--ranks", "1"], r"is one file, so --task must name"),
        (["whole.csv", "--task", "site", "--ranks", "2"], r"one CSV file, which cannot be read in parts"),
        (["twice", "--ranks", "2"], r"differ only in their ending"),
        (["again", "--task", "site", "--ranks", "2"], r'Task "b" has two files'),
        (["nowhere", "--ranks", "2"], r"There is no file or folder"),
        (["sites", "--task", "huh", "--ranks", "2"], r'There is no column "huh"'),
        (["sites", "--solver", "mtl-elm", "--ranks", "2"], r"--runtime has no meaning for mtl-elm"),
        (["sites", "--rank", "0", "--ranks", "2"], r"rank must be a whole number of at least 1"),
        (["sites", "--checkpoint", "file", "--ranks", "2"], r"cannot be written: \S+file is a file"),
        (["sites", "--restarts", "2"], r"--restarts is for ranks that this command starts; give --ranks"),
    ],
    ids=lambda words: " ".join(words) if isinstance(words, list) else "",
)
def test_what_no_rank_could_do_is_refused_before_one_is_started(no_job, data, monkeypatch, words, message):
    monkeypatch.chdir(data)
    check_refused(run("fit", *words, *SMALL, "--runtime", "mpi", "--out", "never"), message)


@pytest.mark.parametrize(
    ("out", "words", "message"),
    [
        ("file/x", [], r"file is a file, not a folder"),
        ("sites", [], r"sites exists; .*--force"),
        ("sites", ["--force"], r"is not a folder of models"),
        ("file", ["--force", "--gather"], r"is not an elmesh model"),
    ],
)
def test_an_output_that_is_in_the_way_is_refused_before_a_rank_is_started(
    no_job, data, monkeypatch, out, words, message
):
    monkeypatch.chdir(data)
    before = weights_and_tables(data)
    check_refused(run("fit", "sites", *SMALL, *words, "--runtime", "mpi", "--ranks", "2", "--out", out), message)
    assert weights_and_tables(data) == before


def weights_and_tables(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.glob("**/*") if path.is_file()}


@pytest.mark.parametrize("words", [["--ranks", "2"], ["--ranks", "0"], ["--restarts", "1"], ["--gather"]])
def test_options_for_ranks_are_refused_without_them(data, tmp_path, words):
    result = run("fit", data / "sites", *SMALL, *words, "--out", tmp_path / "m")
    check_refused(result, rf"{words[0]} is for --runtime mpi")


@pytest.mark.parametrize("words", [["--ranks", "2"], []])
def test_without_mpi_it_says_what_to_install(data, tmp_path, monkeypatch, words):
    monkeypatch.setitem(sys.modules, "mpi4py", None)
    monkeypatch.setitem(sys.modules, "mpi4py.MPI", None)
    world_communicator.cache_clear()  # another test may have found it
    result = run("fit", data / "sites", *SMALL, *words, "--runtime", "mpi", "--out", tmp_path / "m")
    assert result.exit_code == 2
    assert re.fullmatch(r'elmesh: [^\n]*pip install "elmesh\[mpi\]"\.?\n', result.stderr)


@pytest.mark.slow
@needs_mpi
def test_what_only_ranks_can_find_wrong_is_one_sentence_too(launched, data, tmp_path, monkeypatch):
    (data / "cell" / "notes.txt").touch()
    result = launched(data / "cell", *SMALL, "--ranks", 2, "--restarts", 1, "--json", "--out", tmp_path / "m")
    assert (result.exit_code, result.stdout) == (2, "")
    note, error = result.stderr.splitlines()
    assert note == f"note: Left out of the folder {data / 'cell'} because they are not tables: notes.txt."
    assert re.fullmatch(r"elmesh: .*line 9 of south\.csv.*\.", error)
    assert not (tmp_path / "m").exists()


@pytest.mark.slow
@needs_mpi
def test_a_rank_that_fails_alone_does_not_leave_the_others_waiting(launched, data, tmp_path):
    blow = {"rank": 1, "when": "reading", "how": "no memory"}
    result = launched(data / "sites", *SMALL, "--ranks", 2, "--restarts", 3, "--out", tmp_path / "m", blows=[blow])
    assert result.exit_code == 2
    assert re.fullmatch(r"elmesh: There is not enough memory on rank 1; [^\n]*\.\n", result.stderr)


# Ranks that are lost


@needs_mpi
@pytest.mark.slow
def test_a_fit_that_loses_a_rank_time_and_again_ends_as_if_nothing_had_happened(launched, fate, jobs, tmp_path):
    rng = np.random.default_rng(5)
    blows = [
        {"rank": int(rng.integers(3)), "when": "reading", "how": "SIGKILL"},
        {"rank": 0, "when": int(rng.integers(4, 20)), "how": "SIGKILL"},
        {"rank": int(rng.integers(1, 3)), "when": "saving", "how": "SIGKILL"},
    ]
    words = [jobs / "3" / "sites", *SMALL, *ROUNDS, 30, "--ranks", 3, "--json", "--out", tmp_path / "m"]
    result = launched(*words, "--checkpoint", tmp_path / "c", "--every", 3, "--restarts", 5, blows=blows)
    assert result.exit_code == 0, result.output
    assert struck(fate) == 3
    assert weights(tmp_path / "m") == weights(jobs / "3" / "out-rounds")
    notes = [note for note in json.loads(result.stdout)["notes"] if note.startswith("Rank ")]
    for k, (note, blow) in enumerate(zip(notes, blows, strict=True), 1):
        check_loss(note, blow)
        assert note.endswith(f"(restart {k} of 5).")
    assert "; starting over (" in notes[0]
    assert "; going on from the checkpoint of round " in notes[1]


@needs_mpi
@pytest.mark.parametrize(
    ("blow", "ranks", "then"),
    [
        ({"rank": 2, "when": 11, "how": "SIGKILL"}, 3, 2),
        pytest.param({"rank": 0, "when": 13, "how": "SIGSTOP"}, 2, 1, marks=pytest.mark.slow),
    ],
    ids=["killed", "stopped"],
)
def test_without_restarts_the_loss_is_told_soon_and_the_same_command_goes_on_with_other_ranks(
    launched, fate, jobs, tmp_path, blow, ranks, then
):
    words = [jobs / "3" / "sites", *SMALL, *ROUNDS, 30, "--out", tmp_path / "m"]
    words += ["--checkpoint", tmp_path / "c", "--every", 3]
    result = launched(*words, "--ranks", ranks, "--quiet", blows=[blow])
    assert seconds_since_blow(fate) < SOON
    assert (result.exit_code, result.stdout) == (LOST, "")
    (line,) = result.stderr.splitlines()
    check_loss(line.removeprefix("elmesh: "), blow)
    kept = json.loads((tmp_path / "c" / "checkpoint.json").read_text())["round"]
    assert line.endswith(f"; the checkpoint of round {kept} is good, and the same command goes on from it.")
    assert not (tmp_path / "m").exists()
    result = launched(*words, "--ranks", then, "--json")
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["notes"][0].startswith(f"Going on from the checkpoint of round {kept} ")
    assert weights(tmp_path / "m") == weights(jobs / "3" / "out-rounds")


@needs_mpi
@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("name", ["rounds", "csv"])
def test_five_blows_at_random_change_nothing(launched, fate, jobs, tmp_path, seed, name):
    rng = np.random.default_rng(seed)
    blows = [
        {
            "rank": int(rng.integers(3)),
            "when": "reading" if rng.random() < 0.1 else int(rng.integers(30 if name == "rounds" else 12)),
            "how": "SIGSTOP" if rng.random() < 0.2 else "SIGKILL",
            # Wherever it happens to be by then.
            "delay": float(rng.uniform(0, 0.05)),
        }
        for _ in range(5)
    ]
    words = [jobs / "3" / "sites", *(word for word in FITS[name][1:] if word != "--json"), "--json", "--ranks", 3]
    words += ["--checkpoint", tmp_path / "c", "--every", rng.integers(1, 5), "--restarts", 5, "--out", tmp_path / "m"]
    result = launched(*words, blows=blows, pace=0.02)
    assert result.exit_code == 0, result.output
    assert weights(tmp_path / "m") == weights(jobs / "3" / f"out-{name}")
    told = [note for note in json.loads(result.stdout)["notes"] if note.startswith("Rank ")]
    assert 3 <= len(told) <= struck(fate)


# Signals


@pytest.fixture
def start(fate) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Start the command in a process of its own."""
    started = []

    def go(*args: object, blows: Sequence[Mapping[str, object]] = (), pace: float = 0.0) -> subprocess.Popen[str]:
        (fate / "plan.json").write_text(json.dumps({"blows": blows, "pace": pace}))
        command = [sys.executable, str(WORKER), "launch", str(fate), "fit", *map(str, args), "--runtime", "mpi"]
        environ = {**os.environ, "NO_COLOR": "1"}
        process = subprocess.Popen(command, text=True, env=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        started.append(process)
        return process

    yield go
    for process in started:
        process.kill()
        process.communicate()


@pytest.mark.slow
@needs_mpi
def test_ctrl_c_stops_after_the_round_and_saves_the_models_so_far(start, fate, data, tmp_path):
    endless = [data / "sites", *SMALL, *ROUNDS, 100_000, "--ranks", 2, "--json", "--out", tmp_path / "m"]
    process = start(*endless, pace=0.02)
    until((fate / "1.begun").exists, "start of the rounds")
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=BOUND)
    assert process.returncode == 130, err
    summary = json.loads(out)
    assert summary["stop"] == "INTERRUPTED"
    note = f"Stopped after round {summary['rounds']}; the models so far are in {tmp_path / 'm'}."
    assert summary["notes"] == [note]
    assert err == f"\nStopping after this round; press Ctrl-C again to abort.\nnote: {note}\n"
    assert sorted(elmesh.load(path).tasks_[0] for path in (tmp_path / "m").iterdir()) == SITES


@needs_mpi
@pytest.mark.parametrize(
    ("signals", "code", "last"),
    [
        pytest.param([signal.SIGINT, signal.SIGINT], 130, "elmesh: Aborted.", marks=pytest.mark.slow),
        pytest.param([signal.SIGTERM], 143, "elmesh: Terminated.", marks=pytest.mark.slow),
    ],
    ids=["Ctrl-C twice", "SIGTERM"],
)
def test_ranks_that_do_not_come_to_the_end_of_a_round_are_ended(start, fate, data, tmp_path, signals, code, last):
    words = [data / "sites", *SMALL, *ROUNDS, 100, "--ranks", 2, "--out", tmp_path / "m"]
    process = start(*words, blows=[{"rank": 1, "when": 5, "how": "wait"}])
    until((fate / "0.struck").exists, "wait of a rank")
    first, *second = signals
    process.send_signal(first)
    if second:  # two that come together would be taken for one
        until(lambda: process.stderr.readline().startswith("Stopping"), "word of it")
        process.send_signal(*second)
    _, err = process.communicate(timeout=BOUND)
    assert (process.returncode, err.splitlines()[-1]) == (code, last)
    assert not (tmp_path / "m").exists()
