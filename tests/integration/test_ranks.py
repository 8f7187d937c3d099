"""``elmesh fit`` on real ranks: the same models on any number of them, also when ranks are killed, and plain errors.

Python starts slowly on many ranks. So one job per number of ranks runs many commands (see :mod:`helpers.rank_worker`),
and tests examine what it left; only tests that end ranks have processes of their own.
"""

from __future__ import annotations

import contextlib
import functools
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
from elmesh.cli import app, session_reaper
from elmesh.cli import fit as fit_module
from elmesh.cli.errors import LOST
from elmesh.comm.mpi import world_communicator
from helpers import rank_worker
from helpers.mpi import IDLE_RANKS_SLEEP, forked_program, job_folder, needs_mpi, run_ranks
from helpers.paper_measures import alive, until
from helpers.quick_pages import not_drawn

WORKER = Path(rank_worker.__file__)
LIMIT = 600  # seconds that no job may take
SOON = 60  # seconds from the loss of a rank to the end of the command, also on a busy machine

SITES = ["05", "Zürich 100%", "b", "north", "south"]
SMALL = ["--hidden", "12", "--target", "y"]
# The paper's problem, which takes rounds.
SHARED = ["--parts", "shared"]
# Rounds that end by their number alone.
ROUNDS = ["--solver", "fo-dmtl-elm", "--tol", "0", "--max-iter"]


# Data


def patients(seed: int = 0) -> pd.DataFrame:
    """Return sites of unequal rows whose values depend on the same two directions; some cells are missing."""
    rng = np.random.default_rng(seed)
    basis, frames = rng.normal(size=(4, 2)), []
    for site, rows in zip(SITES, (20, 41, 30, 33, 24), strict=True):
        X = rng.normal(size=(rows, 4))
        y = np.tanh(X @ basis) @ rng.normal(size=2) + 0.1 * rng.normal(size=rows)
        frame = pd.DataFrame(X, columns=list("efgh")).assign(ward=rng.choice(["east", "west"], rows), y=y)
        frames.append(frame.mask(pd.DataFrame(rng.random((rows, 6)) < [0.1, 0, 0, 0, 0.1, 0], columns=frame.columns)))
        frames[-1].insert(0, "site", site)
    # South has no case of "bad".
    whole = pd.concat(frames, ignore_index=True)
    bounds = [-0.5, 0.5]
    outcome = np.array(["bad", "fair", "good"])[np.digitize(whole["y"], bounds)]
    return whole.assign(outcome=np.where((whole["site"] == "south") & (outcome == "bad"), "fair", outcome))


def write_sites(frame: pd.DataFrame, folder: Path) -> Path:
    """Write one file per site."""
    folder.mkdir(parents=True)
    for site, rows in frame.groupby("site"):
        rows.drop(columns="site").to_csv(folder / f"{site}.csv", index=False)
    return folder


def set_cell(folder: Path, file: str, line: int, cell: str) -> None:
    """Replace the second cell of a line."""
    lines = (folder / file).read_text().splitlines()
    cells = lines[line - 1].split(",")
    lines[line - 1] = ",".join([cells[0], cell, *cells[2:]])
    (folder / file).write_text("\n".join(lines) + "\n")


def make_data(folder: Path) -> None:
    frame = patients()
    numbers, classes = frame.drop(columns="outcome"), frame.drop(columns="y")
    write_sites(numbers, folder / "sites")
    write_sites(classes.rename(columns={"outcome": "y"}), folder / "classes")
    # Another machine has no file of one task, and models of its own.
    elsewhere = write_sites(numbers[numbers["site"] != "b"], folder / "elsewhere" / "sites")
    (elsewhere.parent / "models" / "b").mkdir(parents=True)
    (elsewhere.parent / "models" / "b" / "model.json").touch()
    numbers.to_parquet(folder / "whole.parquet", row_group_size=7)
    numbers.to_parquet(folder / "hive", partition_cols=["site"])
    names = {"05": "..", "Zürich 100%": "a/b", "b": "."}
    odd = numbers[numbers["site"].isin(names)]
    odd.assign(site=odd["site"].map(names)).to_parquet(folder / "odd.parquet")
    for name, file, line, cell in (("cell", "south.csv", 9, "inf"), ("text", "b.csv", 4, "1.2.3")):
        set_cell(write_sites(numbers, folder / name), file, line, cell)
    wide = write_sites(numbers, folder / "wide")
    set_cell(wide, "north.csv", 12, "1,2")
    (write_sites(numbers, folder / "torn") / "south.csv").write_bytes(b"e,f,g,h,ward,y\n" + b"\xff\x00" * 5_000)
    twice = write_sites(numbers, folder / "twice")
    (twice / "b.csv").rename(twice / "05.tsv")
    again = folder / "again"
    again.mkdir()
    for file in ("1.csv", "2.csv"):
        numbers[numbers["site"] == "b"].to_csv(again / file, index=False)
    numbers.to_csv(folder / "whole.csv", index=False)
    (folder / "file").touch()


def write_bulky(folder: Path) -> None:
    """Write sites that are large except for their first rows, as files and as row groups."""
    rng, frame = np.random.default_rng(1), patients().drop(columns="outcome")
    bulk = [rng.bytes(20_000).hex() for _ in range(len(frame))]
    first = ~frame["site"].duplicated()
    bulky = frame.assign(bulk=np.where(first, "", bulk))
    write_sites(bulky, folder / "bulky")
    parts = [pa.Table.from_pandas(rows, preserve_index=False) for _, rows in bulky.groupby("site")]
    with pq.ParquetWriter(folder / "bulky.parquet", parts[0].schema) as writer:
        for part in parts:
            writer.write_table(part)


# Jobs of many commands

#: Fits by name, on 3 ranks; `make test-all` runs them on 1 and on 2 as well.
FITS: dict[str, list[str]] = {
    "csv": ["sites", *SMALL, "--json"],
    "gathered": ["sites", *SMALL, "--gather"],
    "classes": ["classes", *SMALL, "--quiet"],
    "shared": ["sites", *SMALL, *SHARED],
    "rounds": ["sites", *SMALL, *ROUNDS, "20", "--json"],
}
#: Further fits, on 3 ranks alone.
MORE: dict[str, list[str]] = {
    "hive": ["hive", "--task", "site", *SMALL, *SHARED],
    "parquet": ["whole.parquet", "--task", "site", *SMALL, *SHARED],
    "odd": ["odd.parquet", "--task", "site", *SMALL, *SHARED, "--max-iter", "2", "--json"],
    "saved": ["sites", *SMALL, *SHARED, "--checkpoint", "saved", "--every", "4"],
    "resumed": ["sites", *SMALL, *SHARED, "--checkpoint", "saved", "--every", "4", "--json"],
    "stopped-early": ["sites", *SMALL, "--json"],
    "stopped": ["sites", *SMALL, *ROUNDS, "100000", "--json"],
    "stopped-late": ["sites", *SMALL, *SHARED, "--json"],
    "bulky": ["bulky", *SMALL, *SHARED, "--drop", "bulk"],
    "bulky-parquet": ["bulky.parquet", "--task", "site", *SMALL, *SHARED, "--drop", "bulk"],
}


@dataclass(frozen=True)
class BadInput:
    """Arguments that are refused, on which rank if not on all, and the message."""

    arguments: list[str]
    message: str
    ranks: Mapping[str, Mapping[str, Any]] | None = None
    out: str = "never"


BAD: dict[str, BadInput] = {
    "a cell that is not a number": BadInput(["text"], r'"1\.2\.3" at line 4 of b\.csv'),
    "a cell that is not finite": BadInput(["cell"], r"line 9 of south\.csv"),
    "a line that is too long": BadInput(
        ["wide"], r'Task "north": north\.csv, line 12: 7 values where the header has 6'
    ),
    "a file that is not text": BadInput(["torn"], r'Task "south": south\.csv is not a text file; expected CSV'),
    "two files for a task": BadInput(["twice"], r"05\.csv and 05\.tsv in the folder twice differ only in their ending"),
    "two files with one task": BadInput(["again", "--task", "site"], r'Task "b" has two files, 1\.csv and 2\.csv;'),
    "one CSV file": BadInput(
        ["whole.csv", "--task", "site"], r"whole\.csv is one CSV file, which cannot be read in parts"
    ),
    "one file and no task": BadInput(["whole.parquet"], r"whole\.parquet is one file, so --task must name the column"),
    "partitions and no task": BadInput(["hive"], r"partitioned by site, .* as in --task site"),
    "data that do not exist": BadInput(["nowhere"], r"There is no file or folder nowhere"),
    "an unknown column to drop": BadInput(["sites", "--drop", "huh"], r'There is no column "huh"'),
    "an unknown target": BadInput(["sites", "--target", "huh"], r'There is no column "huh"'),
    "an unknown kind": BadInput(["sites", "--kind", "huh"], r"--kind must be classification or regression"),
    "an unknown graph": BadInput(["sites", "--graph", "huh"], r"The graph 'huh' is unknown"),
    "a solver that needs all data": BadInput(
        ["sites", "--solver", "mtl-elm"], r"mtl-elm needs all data in one place, which an MPI job does not offer"
    ),
    "a checkpoint of another fit": BadInput(
        ["sites", *SHARED, "--checkpoint", "saved", "--seed", "7"], r"another fit: .* is 0, but"
    ),
    "a file for a checkpoint": BadInput(["sites", "--checkpoint", "file"], r"cannot be written: \S+file is a file"),
    "an output below a file": BadInput(["sites"], r"file.x cannot be written: \S+file is a file", out="file/x"),
    "an existing output": BadInput(["sites"], r"out-csv exists; .*--force", out="out-csv"),
    "models in place of one model": BadInput(
        ["sites", "--gather", "--force"], r"is not an elmesh model", out="out-csv"
    ),
    "one model in place of models": BadInput(["sites", "--force"], r"is not a folder of models", out="out-gathered"),
    "a rank without a file": BadInput(
        ["sites"], r"Rank 1 does not find 'b' in sites, which rank 0 does; all ranks need", {"1": {"cwd": "elsewhere"}}
    ),
    "a rank with another seed": BadInput(
        ["sites"], r"Rank 2 differs from rank 0 in --seed: 8 and 0", {"2": {"arguments": ["--seed", "8"]}}
    ),
    "a rank with existing models": BadInput(
        ["sites"], r"models exists; .*--force", {"2": {"cwd": "elsewhere"}}, out="models"
    ),
    "a rank whose disk is full": BadInput(["sites", *SHARED], r"File too large", {"1": {"disk": 1000}}, out="full"),
}


@pytest.fixture(scope="module")
def linux() -> None:
    if not Path("/proc/self/io").exists():
        pytest.skip("needs Linux, which counts the bytes that processes read")


@pytest.fixture(scope="module")
def jobs(linux, tmp_path_factory) -> Path:
    """A folder with what the job of 3 ranks left, in a folder of its own."""
    return job_folder(tmp_path_factory, "rank-jobs", functools.partial(run_jobs, ranks=(3,)))


@pytest.fixture(scope="module")
def fewer(linux, tmp_path_factory) -> Path:
    """The same for jobs of 1 and of 2 ranks, on the same data."""
    return job_folder(tmp_path_factory, "jobs-of-fewer-ranks", functools.partial(run_jobs, ranks=(1, 2)))


def run_jobs(folder: Path, ranks: Sequence[int]) -> None:
    for n in ranks:
        here = folder / str(n)
        here.mkdir()
        make_data(here)
        fits = FITS | MORE if n == 3 else FITS
        commands: dict[str, dict[str, Any]] = {
            name: {"arguments": ["fit", *arguments, "--runtime", "mpi", "--out", f"out-{name}"]}
            for name, arguments in fits.items()
        }
        for name, bad in BAD.items() if n == 3 else ():
            target = [] if "--target" in bad.arguments else ["--target", "y"]
            arguments = ["fit", *bad.arguments, *target, "--hidden", "12", "--runtime", "mpi", "--out", bad.out]
            commands[name] = {"arguments": arguments, "ranks": bad.ranks or {}}
        if n == 3:
            write_bulky(here)
            commands["stopped"]["ranks"] = {"1": {"stop": "rounds"}}
            commands["stopped-early"]["ranks"] = {"1": {"stop": "reading"}}
            commands["stopped-late"]["ranks"] = {"1": {"stop": "saving"}}
        (here / "commands.json").write_text(json.dumps(commands))
        job = run_ranks(n, here, program=WORKER, forked=n == 3)
        if job.code:
            raise RuntimeError(f"{n} ranks ended with code {job.code}; their output:\n{job.out}{job.err}")


def outputs(jobs: Path, n_ranks: int, name: str) -> list[dict[str, Any]]:
    """Return the output of each rank in a command."""
    return [json.loads((jobs / str(n_ranks) / f"{name}-{rank}.json").read_text()) for rank in range(n_ranks)]


def weights(out: Path) -> dict[str, bytes]:
    """Return the weights of all models in a folder by their names in it."""
    found = {str(file.parent.relative_to(out)): file.read_bytes() for file in out.glob("**/weights.safetensors")}
    assert found
    return found


# The launcher, in this process


def run(*args: object) -> Result:
    return CliRunner(env={"FORCE_COLOR": None, "NO_COLOR": "1"}).invoke(app, [str(arg) for arg in args])


@pytest.fixture(autouse=True)
def no_scheduler(monkeypatch) -> None:
    """Place the ranks here even if a scheduler runs the tests, and leave cores to others while they wait."""
    for name in ("SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID", "OMPI_COMM_WORLD_RANK"):
        monkeypatch.delenv(name, raising=False)
    for name, value in IDLE_RANKS_SLEEP.items():
        monkeypatch.setenv(name, value)


@pytest.fixture
def faults(linux, tmp_path) -> Iterator[Path]:
    """A folder for faults of ranks; no process of their job may be left after the test."""
    folder = tmp_path / "faults"
    folder.mkdir()
    yield folder
    sessions = {int(path.read_text()) for path in folder.glob("*.pid")}
    left = [pid for session in sessions for pid in session_reaper.members(session)]
    left += [pid for path in folder.glob("*.pid") if alive(pid := int(path.stem)) and pid not in left]
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    assert left == []


@pytest.fixture
def launched(faults, monkeypatch) -> Callable[..., Result]:
    """Fit on ranks with injected faults."""
    launch = fit_module.launch

    def fit(
        *args: object,
        ranks: int,
        inject: Sequence[Mapping[str, object]] = (),
        round_seconds: float = 0.0,
        forked: bool = False,
    ) -> Result:
        for file in faults.glob("*.fault"):
            file.unlink()
        (faults / "faults.json").write_text(json.dumps({"faults": inject, "round_seconds": round_seconds}))
        with forked_program(ranks, WORKER) if forked else contextlib.nullcontext([str(WORKER)]) as start:
            program = (sys.executable, *start, str(faults))
            monkeypatch.setattr(fit_module, "launch", functools.partial(launch, program=program))
            return run("fit", *args, "--runtime", "mpi", "--ranks", ranks)

    return fit


def n_injected(faults: Path) -> int:
    """Return the number of faults that were injected."""
    return len(list(faults.glob("*.fault")))


def seconds_since_fault(faults: Path) -> float:
    return time.monotonic() - float((faults / "0.fault").read_text())


def check_loss(text: str, fault: Mapping[str, Any]) -> None:
    """Compare the report of a lost rank with the fault."""
    how = "died" if fault["how"] == "SIGKILL" else "stopped responding"
    if fault["when"] == "reading":
        assert text.startswith(f"Rank {fault['rank']} {how} before the first round;")
        return
    report = re.match(rf"Rank {fault['rank']} {how} in round (\d+); ", text)
    assert report is not None, text
    # Another rank has detected it, and reports its own round.
    assert fault["when"] == "saving" or abs(int(report[1]) - fault["when"]) <= 1


# Fits


@pytest.mark.slow
@needs_mpi
@pytest.mark.parametrize("name", FITS)
@pytest.mark.parametrize("n", [1, 2])
def test_models_are_equal_to_the_bit_on_3_ranks_and_on_fewer(fewer, jobs, name, n):
    assert [output["code"] for output in (*outputs(fewer, n, name), *outputs(jobs, 3, name))] == [0] * (n + 3)
    assert weights(fewer / str(n) / f"out-{name}") == weights(jobs / "3" / f"out-{name}")


@needs_mpi
def test_models_and_summary_are_equal_to_the_bit_on_1_rank(jobs, launched, tmp_path):
    assert [output["code"] for output in outputs(jobs, 3, "csv")] == [0, 0, 0]
    result = launched(jobs / "3" / "sites", *SMALL, "--json", "--out", tmp_path / "m", ranks=1, forked=True)
    assert (result.exit_code, result.stderr) == (0, "")
    assert weights(tmp_path / "m") == weights(jobs / "3" / "out-csv")
    ours, theirs = json.loads(result.stdout), json.loads(outputs(jobs, 3, "csv")[0]["out"])
    assert (ours.pop("ranks"), theirs.pop("ranks")) == (1, 3)
    assert (ours.pop("model"), theirs.pop("model")) == (str(tmp_path / "m"), "out-csv")
    assert ours == theirs


@pytest.fixture(scope="module")
def local(jobs, tmp_path_factory) -> tuple[Path, dict[str, Any]]:
    """The model of all sites that a fit in one process saves, and its summary."""
    out = tmp_path_factory.mktemp("local") / "model"
    with not_drawn():
        result = run("fit", jobs / "3" / "sites", *SMALL, "--json", "--out", out)
    assert result.exit_code == 0, result.output
    return out, json.loads(result.stdout)


@needs_mpi
def test_json_has_the_fields_of_a_fit_in_one_process_and_the_number_of_ranks(jobs, local):
    _, here = local
    ranks = json.loads(outputs(jobs, 3, "csv")[0]["out"])
    assert set(ranks) == {*here, "ranks"}
    for name in ("tasks", "rows", "columns", "rank", "rounds", "kind", "kind_reason", "stop", "classes"):
        assert ranks[name] == here[name], name
    assert ranks["objective"] == pytest.approx(here["objective"], rel=1e-9)


@needs_mpi
@pytest.mark.parametrize("name", ["hive", "parquet"])
def test_partitions_and_row_groups_give_the_same_models_as_files(jobs, name):
    assert weights(jobs / "3" / f"out-{name}") == weights(jobs / "3" / "out-shared")


@needs_mpi
@pytest.mark.parametrize("site", [pytest.param(x, marks=() if x == SITES[1] else pytest.mark.slow) for x in SITES])
def test_each_site_s_model_predicts_as_the_gathered_one_and_as_a_local_fit(jobs, local, tmp_path, site):
    models = {elmesh.load(path).tasks_[0]: path for path in (jobs / "3" / "out-csv").iterdir()}
    assert sorted(models) == SITES
    new = patients(seed=1)
    write_sites(new[new["site"] == site].drop(columns=["y", "outcome"]), tmp_path / "new")

    def predictions(model: Path) -> list[float]:
        result = run("predict", model, tmp_path / "new" / f"{site}.csv")
        assert result.exit_code == 0, result.output
        return pd.read_csv(io.StringIO(result.stdout))["prediction"].tolist()

    own = predictions(models[site])
    assert own == pytest.approx(predictions(jobs / "3" / "out-gathered"), rel=1e-12)
    assert own == pytest.approx(predictions(local[0]), rel=1e-8)


@needs_mpi
def test_a_site_without_a_class_does_not_learn_it_and_the_others_do(jobs):
    models = [elmesh.load(path) for path in (jobs / "3" / "out-classes").iterdir()]
    classes = {model.tasks_[0]: model.classes_.tolist() for model in models}
    assert classes == {site: ["fair", "good"] if site == "south" else ["bad", "fair", "good"] for site in SITES}
    assert all(output["out"] == output["err"] == "" for output in outputs(jobs, 3, "classes"))


@needs_mpi
def test_a_task_with_any_name_has_its_model_inside_the_folder(jobs):
    assert sorted(path.name for path in (jobs / "3" / "out-odd").iterdir()) == ["%2E", "%2E%2E", "a%2Fb"]
    assert sorted(elmesh.load(path).tasks_[0] for path in (jobs / "3" / "out-odd").iterdir()) == [".", "..", "a/b"]


@needs_mpi
def test_a_rank_that_is_asked_to_stop_stops_all_after_the_round_and_models_are_saved(jobs):
    notes = outputs(jobs, 3, "stopped")
    assert [output["code"] for output in notes] == [130, 130, 130]
    summary = json.loads(notes[0]["out"])
    assert summary["stop"] == "INTERRUPTED"
    assert summary["rounds"] < 10
    assert summary["notes"] == [f"Stopped after round {summary['rounds']}; the models so far are in out-stopped."]
    assert len(weights(jobs / "3" / "out-stopped")) == len(SITES)


@needs_mpi
def test_a_rank_that_is_asked_to_stop_before_the_first_round_stops_all_and_models_are_saved(jobs):
    notes = outputs(jobs, 3, "stopped-early")
    assert [output["code"] for output in notes] == [130, 130, 130]
    summary = json.loads(notes[0]["out"])
    assert summary["notes"] == ["Stopped after round 0; the models so far are in out-stopped-early."]
    # Without a shared part there are no rounds, so that the models are complete.
    assert (summary["rounds"], summary["shared_part"]) == (0, "not called for")
    assert weights(jobs / "3" / "out-stopped-early") == weights(jobs / "3" / "out-csv")


@needs_mpi
def test_a_rank_that_is_asked_to_stop_while_models_are_saved_finishes(jobs):
    assert [output["code"] for output in outputs(jobs, 3, "stopped-late")] == [130, 130, 130]
    assert weights(jobs / "3" / "out-stopped-late") == weights(jobs / "3" / "out-shared")


@needs_mpi
@pytest.mark.parametrize("name", ["csv", "hive", "odd", "resumed", "stopped"])
def test_only_rank_0_prints(jobs, name):
    first, *others = outputs(jobs, 3, name)
    assert first["out"] != ""
    assert all(output["out"] == output["err"] == "" for output in others)


@needs_mpi
def test_notes_are_part_of_the_json(jobs):
    assert "max_iter" in json.loads(outputs(jobs, 3, "odd")[0]["out"])["notes"][0]
    (note,) = json.loads(outputs(jobs, 3, "resumed")[0]["out"])["notes"]
    assert re.fullmatch(r"Resuming from the checkpoint of round [1-9]\d* in saved\.", note)


@needs_mpi
def test_a_resumed_fit_ends_as_if_never_interrupted(jobs):
    assert weights(jobs / "3" / "out-saved") == weights(jobs / "3" / "out-shared")
    assert weights(jobs / "3" / "out-resumed") == weights(jobs / "3" / "out-shared")


@needs_mpi
@pytest.mark.parametrize(("name", "small"), [("bulky", "shared"), ("bulky-parquet", "parquet")])
def test_a_rank_reads_its_own_sites_and_only_the_head_of_the_others(jobs, name, small):
    files = [jobs / "3" / "bulky" / f"{site}.csv" for site in SITES]
    own = [sum(file.stat().st_size for file in part) for part in (files[:2], files[2:4], files[4:])]
    # All that is read besides the data is also read by a fit of small files.
    for output, besides, size in zip(outputs(jobs, 3, name), outputs(jobs, 3, small), own, strict=True):
        assert output["code"] == 0
        assert 0.9 * size < output["read"] - besides["read"] < size + 250_000
    assert min(file.stat().st_size for file in files) > 500_000


# Bad input, on ranks that mpiexec started


@needs_mpi
@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_one_sentence_of_rank_0_and_exit_code_2_on_all(jobs, name):
    first, *others = outputs(jobs, 3, name)
    assert [output["code"] for output in (first, *others)] == [2, 2, 2]
    assert re.fullmatch(rf"elmesh: [^\n]*{BAD[name].message}[^\n]*\.\n", first["err"]), first["err"]
    assert all(output["out"] == output["err"] == "" for output in others)
    assert not (jobs / "3" / "never").exists()
    assert list((jobs / "3").glob("**/.*")) == []  # nor are there partial files


# Bad input, before any rank is started


@pytest.fixture
def no_job(monkeypatch) -> None:
    """Fail if ranks are started."""
    monkeypatch.setattr(fit_module, "launch", lambda *_, **__: pytest.fail("ranks were started"))


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
    ("arguments", "message"),
    [
        (["sites", "--ranks", "6"], r"There are 6 ranks for 5 tasks; .*at most 5"),
        (["sites", "--ranks", "0"], r"at least one rank; got 0"),
        (["whole.parquet", "--task", "site", "--ranks", "6"], r"6 ranks for 5 tasks"),
        (["whole.parquet", "--ranks", "1"], r"is one file, so --task must name"),
        (["whole.csv", "--task", "site", "--ranks", "2"], r"one CSV file, which cannot be read in parts"),
        (["twice", "--ranks", "2"], r"differ only in their ending"),
        (["again", "--task", "site", "--ranks", "2"], r'Task "b" has two files'),
        (["nowhere", "--ranks", "2"], r"There is no file or folder"),
        (["sites", "--task", "huh", "--ranks", "2"], r'There is no column "huh"'),
        (
            ["sites", "--solver", "mtl-elm", "--ranks", "2"],
            r"mtl-elm needs all data in one place, which an MPI job does not offer",
        ),
        (["sites", "--rank", "-1", "--ranks", "2"], r"rank must be a whole number of at least 0"),
        (["sites", *SHARED, "--rank", "0", "--ranks", "2"], r"--rank 0 means no shared part"),
        (["sites", "--parts", "huh", "--ranks", "2"], r'Parts must be some of common, private, shared, .*"huh"'),
        (["sites", "--checkpoint", "file", "--ranks", "2"], r"cannot be written: \S+file is a file"),
        (["sites", "--restarts", "2"], r"--restarts is for ranks that this command starts; give --ranks"),
    ],
    ids=lambda arguments: " ".join(arguments) if isinstance(arguments, list) else "",
)
def test_bad_input_is_refused_before_ranks_are_started(no_job, data, monkeypatch, arguments, message):
    monkeypatch.chdir(data)
    check_refused(run("fit", *arguments, *SMALL, "--runtime", "mpi", "--out", "never"), message)


@pytest.mark.parametrize(
    ("out", "arguments", "message"),
    [
        ("file/x", [], r"file is a file, not a folder"),
        ("sites", [], r"sites exists; .*--force"),
        ("sites", ["--force"], r"is not a folder of models"),
        ("file", ["--force", "--gather"], r"is not an elmesh model"),
    ],
)
def test_an_existing_output_is_refused_before_ranks_are_started(no_job, data, monkeypatch, out, arguments, message):
    monkeypatch.chdir(data)
    before = contents(data)
    check_refused(run("fit", "sites", *SMALL, *arguments, "--runtime", "mpi", "--ranks", "2", "--out", out), message)
    assert contents(data) == before


def contents(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.glob("**/*") if path.is_file()}


@pytest.mark.parametrize("arguments", [["--ranks", "2"], ["--ranks", "0"], ["--restarts", "1"], ["--gather"]])
def test_options_for_ranks_are_refused_without_mpi(data, tmp_path, arguments):
    result = run("fit", data / "sites", *SMALL, *arguments, "--out", tmp_path / "m")
    check_refused(result, rf"{arguments[0]} is for --runtime mpi")


@pytest.mark.parametrize("arguments", [["--ranks", "2"], []])
def test_without_mpi_the_error_names_what_to_install(data, tmp_path, monkeypatch, arguments):
    monkeypatch.setitem(sys.modules, "mpi4py", None)
    monkeypatch.setitem(sys.modules, "mpi4py.MPI", None)
    world_communicator.cache_clear()  # another test may have set it
    result = run("fit", data / "sites", *SMALL, *arguments, "--runtime", "mpi", "--out", tmp_path / "m")
    assert result.exit_code == 2
    assert re.fullmatch(r'elmesh: [^\n]*pip install "elmesh\[mpi\]"\.?\n', result.stderr)


@pytest.mark.slow
@needs_mpi
def test_an_error_that_only_ranks_can_find_is_one_sentence(launched, data, tmp_path):
    (data / "cell" / "notes.txt").touch()
    result = launched(data / "cell", *SMALL, "--restarts", 1, "--json", "--out", tmp_path / "m", ranks=2)
    assert (result.exit_code, result.stdout) == (2, "")
    note, error = result.stderr.splitlines()
    assert note == f"note: Left out of the folder {data / 'cell'} because they are not tables: notes.txt."
    assert re.fullmatch(r"elmesh: .*line 9 of south\.csv.*\.", error)
    assert not (tmp_path / "m").exists()


@pytest.mark.slow
@needs_mpi
def test_a_rank_that_fails_ends_all_ranks(launched, data, tmp_path):
    fault = {"rank": 1, "when": "reading", "how": "no memory"}
    result = launched(data / "sites", *SMALL, "--restarts", 3, "--out", tmp_path / "m", ranks=2, inject=[fault])
    assert result.exit_code == 2
    assert re.fullmatch(r"elmesh: There is not enough memory on rank 1; [^\n]*\.\n", result.stderr)


# Ranks that are lost


@needs_mpi
@pytest.mark.slow
def test_a_fit_that_loses_ranks_repeatedly_ends_as_if_never_interrupted(launched, faults, jobs, tmp_path):
    rng = np.random.default_rng(5)
    planned = [
        {"rank": int(rng.integers(3)), "when": "reading", "how": "SIGKILL"},
        {"rank": 0, "when": int(rng.integers(4, 15)), "how": "SIGKILL"},
        {"rank": int(rng.integers(1, 3)), "when": "saving", "how": "SIGKILL"},
    ]
    arguments = [jobs / "3" / "sites", *FITS["rounds"][1:], "--out", tmp_path / "m"]
    arguments += ["--checkpoint", tmp_path / "c", "--every", 3]
    result = launched(*arguments, "--restarts", 5, ranks=3, inject=planned)
    assert result.exit_code == 0, result.output
    assert n_injected(faults) == 3
    assert weights(tmp_path / "m") == weights(jobs / "3" / "out-rounds")
    notes = [note for note in json.loads(result.stdout)["notes"] if note.startswith("Rank ")]
    for k, (note, fault) in enumerate(zip(notes, planned, strict=True), 1):
        check_loss(note, fault)
        assert note.endswith(f"(restart {k} of 5).")
    assert "; starting again (" in notes[0]
    assert "; resuming from the checkpoint of round " in notes[1]


@needs_mpi
@pytest.mark.parametrize(
    ("fault", "ranks", "then", "forked"),
    [
        ({"rank": 2, "when": 11, "how": "SIGKILL"}, 3, 1, True),
        pytest.param({"rank": 1, "when": 11, "how": "SIGKILL"}, 3, 2, False, marks=pytest.mark.slow),
        pytest.param({"rank": 0, "when": 13, "how": "SIGSTOP"}, 2, 1, False, marks=pytest.mark.slow),
    ],
    ids=["killed", "killed, as a process of mpiexec", "stopped"],
)
def test_without_restarts_a_loss_is_reported_soon_and_the_same_command_resumes_with_other_ranks(
    launched, faults, jobs, tmp_path, fault, ranks, then, forked
):
    arguments = [jobs / "3" / "sites", *SMALL, *ROUNDS, 20, "--out", tmp_path / "m"]
    arguments += ["--checkpoint", tmp_path / "c", "--every", 3]
    result = launched(*arguments, "--quiet", ranks=ranks, inject=[fault], forked=forked)
    assert seconds_since_fault(faults) < SOON
    assert (result.exit_code, result.stdout) == (LOST, "")
    (line,) = result.stderr.splitlines()
    check_loss(line.removeprefix("elmesh: "), fault)
    saved = json.loads((tmp_path / "c" / "checkpoint.json").read_text())["round"]
    assert line.endswith(f"; the same command resumes from the checkpoint of round {saved}.")
    assert not (tmp_path / "m").exists()
    result = launched(*arguments, "--json", ranks=then, forked=forked)
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["notes"][0].startswith(f"Resuming from the checkpoint of round {saved} ")
    assert weights(tmp_path / "m") == weights(jobs / "3" / "out-rounds")


@needs_mpi
@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("name", ["rounds", "shared"])
def test_five_random_faults_do_not_change_the_result(launched, faults, jobs, tmp_path, seed, name):
    rng = np.random.default_rng(seed)
    planned = [
        {
            "rank": int(rng.integers(3)),
            "when": "reading" if rng.random() < 0.1 else int(rng.integers(20 if name == "rounds" else 12)),
            "how": "SIGSTOP" if rng.random() < 0.2 else "SIGKILL",
            "delay": float(rng.uniform(0, 0.05)),
        }
        for _ in range(5)
    ]
    arguments = [
        jobs / "3" / "sites",
        *(argument for argument in FITS[name][1:] if argument != "--json"),
        "--json",
    ]
    arguments += [
        "--checkpoint",
        tmp_path / "c",
        "--every",
        rng.integers(1, 5),
        "--restarts",
        5,
        "--out",
        tmp_path / "m",
    ]
    result = launched(*arguments, ranks=3, inject=planned, round_seconds=0.02)
    assert result.exit_code == 0, result.output
    assert weights(tmp_path / "m") == weights(jobs / "3" / f"out-{name}")
    losses = [note for note in json.loads(result.stdout)["notes"] if note.startswith("Rank ")]
    assert 3 <= len(losses) <= n_injected(faults)


# Signals


@pytest.fixture
def start(faults) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Start the command in its own process."""
    started = []

    def start_process(
        *args: object, inject: Sequence[Mapping[str, object]] = (), round_seconds: float = 0.0
    ) -> subprocess.Popen[str]:
        (faults / "faults.json").write_text(json.dumps({"faults": inject, "round_seconds": round_seconds}))
        command = [sys.executable, str(WORKER), "launch", str(faults), "fit", *map(str, args), "--runtime", "mpi"]
        environ = {**os.environ, "NO_COLOR": "1"}
        process = subprocess.Popen(command, text=True, env=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        started.append(process)
        return process

    yield start_process
    for process in started:
        process.kill()
        process.communicate()


@pytest.mark.slow
@needs_mpi
def test_ctrl_c_stops_after_the_round_and_saves_the_models_so_far(start, faults, data, tmp_path):
    endless = [data / "sites", *SMALL, *ROUNDS, 100_000, "--ranks", 2, "--json", "--out", tmp_path / "m"]
    process = start(*endless, round_seconds=0.02)
    until((faults / "1.in-rounds").exists, "start of the rounds", LIMIT)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=LIMIT)
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
def test_ranks_that_do_not_complete_their_round_are_ended(start, faults, data, tmp_path, signals, code, last):
    arguments = [data / "sites", *SMALL, *ROUNDS, 100, "--ranks", 2, "--out", tmp_path / "m"]
    process = start(*arguments, inject=[{"rank": 1, "when": 5, "how": "wait"}])
    until((faults / "0.fault").exists, "wait of a rank", LIMIT)
    first, *second = signals
    process.send_signal(first)
    if second:  # two signals at once would count as one
        until(lambda: process.stderr.readline().startswith("Stopping"), "confirmation of the signal")
        process.send_signal(*second)
    _, err = process.communicate(timeout=LIMIT)
    assert (process.returncode, err.splitlines()[-1]) == (code, last)
    assert not (tmp_path / "m").exists()
