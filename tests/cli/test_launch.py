"""A fit on many ranks looks like a local one to its user, and leaves no process behind, however it ends."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import typer

from elmesh.cli import session_reaper
from elmesh.cli.console import Output
from elmesh.cli.errors import LOST
from elmesh.cli.events import EventReader, JobFailure
from elmesh.cli.job import Job, find_mpiexec
from elmesh.cli.launch import LaunchResult, LaunchTiming, launch
from elmesh.cli.placement import Placement
from elmesh.errors import ElmeshError
from helpers.paper_measures import alive, until

BOUND = 120  # seconds that no test may reach

needs_mpi = pytest.mark.skipif(
    importlib.util.find_spec("mpi4py") is None
    or not (shutil.which("mpiexec", path=str(Path(sys.executable).parent)) or shutil.which("mpiexec"))
    or not Path("/proc/self").exists(),
    reason='needs Linux, mpiexec and mpi4py: pip install "elmesh[mpi]"',
)

# Functions of every rank. A rank does not run elmesh, and MPI only if it imports it.
RANK = """
import array, fcntl, json, os, signal, sys, termios, time
from pathlib import Path

rank = int(os.environ["OMPI_COMM_WORLD_RANK"])
folder = Path(__file__).parent
(folder / f"{os.getpid()}.pid").touch()
(folder / "scratch").write_text(os.environ["OMPI_MCA_btl_sm_backing_directory"])

def emit(event, **more):
    print(json.dumps({"event": event, **more}), flush=True)

def wait_for_reader(stream):  # mpiexec drops what it has not read of a rank that fails
    stream.flush()
    left = array.array("i", [1])
    while left[0]:
        fcntl.ioctl(stream.fileno(), termios.FIONREAD, left)
        time.sleep(0.02)

def linger():  # like a rank that waits for another
    time.sleep(300)
    os._exit(9)

def ignore_signals():
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1):
        signal.signal(number, signal.SIG_IGN)

def wait_for(path):
    while not path.exists():
        time.sleep(0.02)

def all_here(size):  # in place of MPI's barrier
    (folder / f"{rank}.here").touch()
    while len(list(folder.glob("*.here"))) < size:
        time.sleep(0.02)
"""

# The command, as far as signals and streams are concerned.
COMMAND = """
import dataclasses, json, sys, typer
from elmesh.cli.console import Output
from elmesh.cli.errors import handle_errors
from elmesh.cli.launch import launch

def command():
    ended = launch(["fit"], 2, Output(), program=json.loads(sys.argv[1]))
    print(json.dumps(dataclasses.asdict(ended)))

try:
    handle_errors(command)()
except typer.Exit as end:
    sys.exit(end.exit_code)
"""


@pytest.fixture(autouse=True)
def bounded() -> Iterator[None]:
    """Fail a test that hangs, and let it clean up."""

    def late(*_: object) -> None:
        raise TimeoutError(f"this took {BOUND} seconds")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(BOUND)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@pytest.fixture(autouse=True)
def no_scheduler(monkeypatch) -> None:
    """Place ranks as without a scheduler, also where one runs the tests."""
    for name in ("SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def ranks(tmp_path) -> Iterator[Callable[..., list[str]]]:
    """Return a program for ranks from its body; none of them may outlive the test."""

    def program(body: str) -> list[str]:
        (tmp_path / "rank.py").write_text(f"{RANK}\n{body}")
        return [sys.executable, *([] if "mpi4py" in body else ["-S"]), str(tmp_path / "rank.py")]

    yield program
    left = living(tmp_path)
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    assert left == []


def pids(folder: Path) -> list[int]:
    return [int(path.stem) for path in folder.glob("*.pid")]


def living(folder: Path) -> list[int]:
    return [pid for pid in pids(folder) if alive(pid)]


def scratch(folder: Path) -> Path:
    """Return the temporary folder of Open MPI."""
    return Path((folder / "scratch").read_text())


def failed(*args: object, **kwargs: object) -> int:
    """Launch a job that must fail, and return the exit code."""
    with pytest.raises(typer.Exit) as end:
        launch(*args, **kwargs)
    return end.value.exit_code


# Placement


def test_ranks_with_a_core_each_are_bound_and_more_ranks_than_cores_are_not():
    apart, shared = Placement(2, cores=2), Placement(3, cores=2)
    assert apart.options({})[-2:] == ["--bind-to", "core"]
    assert shared.options({})[-2:] == ["--bind-to", "none"]
    policy = "PRTE_MCA_rmaps_default_mapping_policy"
    assert policy not in apart.variables({})
    assert shared.variables({})[policy] == ":oversubscribe"
    assert shared.variables({})["OMPI_MCA_mpi_yield_when_idle"] == "1"
    assert apart.description == "2 ranks on 2 cores: each bound to a core of its own, one BLAS thread each."
    assert shared.description == "3 ranks on 2 cores, which they share: bound to none, one BLAS thread each."


def test_ranks_are_unbound_where_the_command_may_not_use_all_cores(monkeypatch):
    monkeypatch.setattr(os, "cpu_count", lambda: 64)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1001, 1002}, raising=False)
    place = Placement.here(2, {})
    assert place == Placement(2, cores=3, confined=True)
    assert place.options({})[-2:] == ["--bind-to", "none"]
    assert place.description == "2 ranks on 3 cores: bound to none, one BLAS thread each."


@pytest.mark.parametrize("name", ["SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID"])
def test_under_a_scheduler_mapping_and_binding_are_left_to_it(name):
    place = Placement.here(1000, {name: "7"})
    variables = place.variables({name: "7"})
    assert "--bind-to" not in place.options(variables)
    assert not any("rmaps" in key or "yield" in key for key in variables)
    assert place.folders == ()
    assert place.description == "1000 ranks placed by the scheduler, one BLAS thread each."


def test_a_rank_has_one_blas_thread_unless_the_environment_sets_another_number():
    place = Placement.here(2, {})
    assert place.variables({}).items() >= {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}.items()
    given = {"OMP_NUM_THREADS": "3"}
    place = Placement.here(2, given)
    variables = place.variables(given)
    assert variables["OMP_NUM_THREADS"] == "3"
    assert "OPENBLAS_NUM_THREADS" not in variables
    assert place.description.endswith("BLAS threads as the environment sets them.")
    assert given == {"OMP_NUM_THREADS": "3"}


@pytest.mark.parametrize("user", [0, 1000])
def test_open_mpi_may_run_as_root_only_where_it_does(monkeypatch, user):
    monkeypatch.setattr(os, "geteuid", lambda: user)
    assert ("OMPI_ALLOW_RUN_AS_ROOT" in Placement(1, 1).variables({})) == (user == 0)


# Without MPI


def test_without_mpiexec_or_mpi4py_the_error_names_what_to_install(monkeypatch, tmp_path):
    advice = r'^MPI is not installed; run pip install "elmesh\[mpi\]"\.$'
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())
    monkeypatch.setattr(sys, "executable", str(tmp_path / "bin" / "python"))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ElmeshError, match=advice):
        launch([], 2, Output())
    on_path = executable(tmp_path / "mpiexec")
    assert find_mpiexec() == on_path
    beside = executable(tmp_path / "bin" / "mpiexec")
    assert find_mpiexec() == beside
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ElmeshError, match=advice):
        find_mpiexec()


def executable(path: Path) -> str:
    path.parent.mkdir(exist_ok=True)
    path.touch(mode=0o755)
    return str(path)


def test_under_mpiexec_no_second_one_is_started(monkeypatch):
    monkeypatch.setenv("OMPI_COMM_WORLD_RANK", "0")
    with pytest.raises(ElmeshError, match=r"under mpiexec already.*leave out --ranks"):
        launch([], 2, Output())


# Events


@pytest.fixture
def reader() -> EventReader:
    return EventReader(Output(), lambda done, total, text: None, checkpoint=None)


@pytest.mark.parametrize(
    "line",
    [
        "",
        "Traceback (most recent call last):",
        "[1, 2]",
        '"event"',
        "{",
        "[" * 100_000,
        '{"event": "tea"}',
        '{"event": ["round"]}',
        '{"event": "round", "round": "7", "max_iter": 9}',
        '{"event": "result", "summary": 3}',
        '{"event": "lost", "rank": 1}',
    ],
    ids=lambda line: line[:20],
)
def test_a_line_that_is_not_an_event_goes_to_standard_error(reader, line, capsys):
    reader.read([line])
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("", line + "\n")
    assert not reader.started
    assert not reader.ended


def test_the_first_failure_counts_and_has_the_last_checkpoint(reader):
    reader.read(
        [
            '{"event": "checkpoint", "round": 20}',
            '{"event": "checkpoint", "round": 40}',
            '{"event": "lost", "rank": 3, "round": 57, "how": "died", "checkpoint": null}',
            '{"event": "lost", "rank": 2, "round": 58, "how": "hangs", "checkpoint": 20}',
        ]
    )
    assert reader.failure == JobFailure(3, 57, "died", 40)


def test_the_first_error_counts(reader):
    reader.read(['{"event": "error", "text": "One."}', '{"event": "error", "text": "Two.", "code": 7}'])
    assert reader.error == ("One.", 2)


def test_a_failure_is_a_sentence():
    assert str(JobFailure(3, 57, "died")) == "Rank 3 died in round 57"
    assert str(JobFailure(0, 1, "hangs")) == "Rank 0 stopped responding in round 1"
    assert str(JobFailure(1, None, "died")) == "Rank 1 died before the first round"
    assert str(JobFailure(None, 2, "ended with code 5")) == "mpiexec ended with code 5 in round 2"


# A job that ends well


GOOD = """
if rank == 0:
    emit("line", text="Four tasks a rank.")
    emit("note", text="A column is constant.")
    emit("round", round=1, max_iter=9)
    print("from a library")
    emit("result", summary={"args": sys.argv[1:], "big": "x" * 1_000_000})
print("noise on standard error\\n" * 4_000, file=sys.stderr)  # more than a pipe holds
"""


@needs_mpi
def test_the_result_is_returned_and_notes_and_other_lines_go_to_standard_error(ranks, capsys, tmp_path):
    before = dict(os.environ)
    output = Output()
    ended = launch(["fit", "data/", "--rank", "3"], 3, output, program=ranks(GOOD))
    assert ended == LaunchResult({"args": ["fit", "data/", "--rank", "3"], "big": "x" * 1_000_000}, False, ())
    captured = capsys.readouterr()
    first, second = captured.out.splitlines()
    assert first.startswith("3 ranks on ")
    assert second == "Four tasks a rank."
    assert captured.err.splitlines() == ["note: A column is constant.", "from a library"]
    assert output.notes == ["A column is constant."]
    assert dict(os.environ) == before
    assert not scratch(tmp_path).exists()


@needs_mpi
def test_with_json_the_launcher_prints_nothing_on_standard_output(ranks, capsys):
    launch([], 2, Output(json=True), program=ranks(GOOD))
    assert capsys.readouterr().out == ""


@needs_mpi
def test_a_rank_that_hangs_after_the_result_is_ended_and_the_result_returned(ranks, capsys):
    body = 'rank == 0 and emit("result", summary={"rounds": 3})\nrank == 1 and os.kill(os.getpid(), signal.SIGSTOP)'
    result = launch([], 2, Output(), program=ranks(body), timing=LaunchTiming(finish=0.5))
    assert result.summary == {"rounds": 3}
    assert "note: mpiexec reported an error, but only after the result" in capsys.readouterr().err


# A job that ends badly


@needs_mpi
def test_an_error_is_one_sentence_and_its_code_whatever_other_ranks_do(ranks, capsys):
    body = """
if rank == 0:
    emit("lost", rank=1, round=1, how="died")
    all_here(3)
    emit("error", text="Task east has no rows.", code=2)
    emit("error", text="Something else.", code=5)
    sys.exit(2)
all_here(3)
ignore_signals()
rank == 1 and os.kill(os.getpid(), signal.SIGSTOP)
linger()
"""
    assert failed([], 3, Output(), restarts=2, program=ranks(body)) == 2
    assert capsys.readouterr().err == "elmesh: Task east has no rows.\n"


@needs_mpi
@pytest.mark.parametrize(
    ("end", "how"), [("sys.exit(5)", "ended with code 5"), ("sys.exit(0)", "ended without a result")]
)
def test_an_unexplained_end_is_reported_with_the_last_lines_of_standard_error(ranks, capsys, end, how):
    body = f"""
if rank == 0:
    emit("round", round=6, max_iter=9)
    for i in range(10_000):  # more than a pipe holds
        print("line", i, file=sys.stderr)
    wait_for_reader(sys.stderr)
{end}
"""
    assert failed([], 1, Output(), program=ranks(body)) == LOST
    first, *rest = capsys.readouterr().err.splitlines()
    assert first == f"elmesh: mpiexec {how} in round 6; nothing is saved, because there was no checkpoint yet."
    assert len(rest) == 20
    assert "line 9999" in rest


@needs_mpi
def test_a_job_that_cannot_start_is_not_restarted(ranks, capsys):
    assert failed([], 2, Output(), restarts=3, program=ranks("import no_such_module")) == LOST
    first, *rest = capsys.readouterr().err.splitlines()
    assert first == "elmesh: mpiexec ended with code 1 before the first round."
    assert any("no_such_module" in line for line in rest)


@needs_mpi
def test_a_rank_that_hangs_is_ended_after_another_has_reported_it(ranks, capsys, tmp_path):
    body = """
ignore_signals()
all_here(3)
if rank == 0:
    emit("checkpoint", round=40)
    emit("lost", rank=1, round=57, how="hangs", checkpoint=None)
rank == 1 and os.kill(os.getpid(), signal.SIGSTOP)
linger()
"""
    timing = LaunchTiming(grace=0.2, finish=float("inf"))
    assert failed([], 3, Output(), program=ranks(body), timing=timing) == LOST
    assert capsys.readouterr().err == (
        "elmesh: Rank 1 stopped responding in round 57; the same command resumes from the checkpoint of round 40.\n"
    )
    assert len(pids(tmp_path)) == 3
    assert living(tmp_path) == []


# Real ranks of MPI, one of which dies the first time
DYING = """
from mpi4py import MPI

signal.signal(signal.SIGUSR1, lambda *_: None)
checkpoint, start, buffer = folder / "checkpoint", 0, array.array("d", [0.0])
if checkpoint.exists():
    start = int(checkpoint.read_text())
for k in range(start + 1, 101):
    if rank == 1 and k == 57 and start == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    MPI.COMM_WORLD.Allreduce(MPI.IN_PLACE, buffer)
    if rank == 0:
        emit("round", round=k, max_iter=100)
        if k % 20 == 0:
            checkpoint.write_text(str(k))
            emit("checkpoint", round=k)
rank == 0 and emit("result", summary={"start": start})
"""


@needs_mpi
def test_a_rank_that_dies_is_named_although_no_other_reports_it(ranks, capsys, tmp_path):
    assert failed([], 3, Output(), program=ranks(DYING)) == LOST
    # The others may be ended before they report the last round.
    assert re.fullmatch(
        r"elmesh: Rank 1 died in round 5[567]; the same command resumes from the checkpoint of round 40\.\n",
        capsys.readouterr().err,
    )
    assert living(tmp_path) == []


@needs_mpi
def test_with_a_restart_left_the_job_resumes_from_the_checkpoint(ranks, capsys):
    output = Output()
    ended = launch([], 3, output, restarts=1, program=ranks(DYING))
    assert (ended.summary, ended.interrupted) == ({"start": 40}, False)
    (failure,) = ended.failures
    assert (failure.rank, failure.how, failure.checkpoint) == (1, "died", 40)
    assert output.notes == [f"{failure}; resuming from the checkpoint of round 40 (restart 1 of 1)."]
    assert capsys.readouterr().err == f"note: {output.notes[0]}\n"


@needs_mpi
def test_when_all_restarts_are_used_the_error_counts_them(ranks, capsys):
    body = """
emit("round", round=3, max_iter=9)
emit("lost", rank=0, round=3, how="hangs")
"""
    assert failed([], 1, Output(), restarts=2, program=ranks(body)) == LOST
    first, second, last = capsys.readouterr().err.splitlines()
    assert first == "note: Rank 0 stopped responding in round 3; starting again (restart 1 of 2)."
    assert second == "note: Rank 0 stopped responding in round 3; starting again (restart 2 of 2)."
    assert last.startswith("elmesh: Rank 0 stopped responding in round 3, after 2 restarts; nothing is saved")


# The processes of a job


@needs_mpi
def test_when_mpiexec_is_killed_its_ranks_are_ended_and_their_files_removed(ranks, capsys, tmp_path):
    program = ranks(ORPHANS.replace("TARGET", "os.getppid()"))
    assert failed([], 3, Output(), program=program) == LOST
    assert capsys.readouterr().err.startswith("elmesh: mpiexec ended with code 137 in round 2;")
    assert not scratch(tmp_path).exists()


@needs_mpi
def test_when_the_session_reaper_is_killed_mpiexec_and_its_ranks_are_ended(ranks, capsys, tmp_path):
    program = ranks(ORPHANS.replace("TARGET", "os.getsid(0)"))
    assert failed([], 3, Output(), program=program) == LOST
    assert capsys.readouterr().err.startswith("elmesh: mpiexec was ended by signal 9 in round 2;")
    shutil.rmtree(scratch(tmp_path))  # no process was left to remove it


ORPHANS = """
ignore_signals()
all_here(3)
if rank == 0:
    emit("round", round=2, max_iter=9)
    time.sleep(0.5)  # for mpiexec to pass it on
    os.kill(TARGET, signal.SIGKILL)
rank == 1 and os.kill(os.getpid(), signal.SIGSTOP)
linger()
"""


@needs_mpi
def test_leaving_a_job_ends_all_processes_of_its_session(ranks, tmp_path):
    place = Placement(3, cores=2)
    environ = place.variables(os.environ)
    program = ranks("ignore_signals()\nall_here(3)\nemit('line', text='Here.')\nlinger()")
    with Job([find_mpiexec(), *place.options(environ), *program], environ, place.folders) as job:
        lines: list[str] = []
        until(lambda: lines.extend(job.read(0.05)) or len(lines) == 3, "start of the ranks")
        members = session_reaper.members(os.getsid(pids(tmp_path)[0]))
        assert set(members) > set(pids(tmp_path))
        assert os.getpid() not in members
        if shutil.which("ps"):  # where there is no /proc
            assert sorted(session_reaper.members(os.getsid(members[0]), tmp_path)) == sorted(members)
        assert job.code is None
    assert not any(map(alive, members))
    assert job.code is not None


# Signals


def test_the_launcher_starts_without_numerical_libraries():
    code = "import sys, elmesh.cli.launch; print({'numpy', 'scipy', 'sklearn', 'pandas'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=BOUND)
    assert done.stdout == "set()\n"


@pytest.fixture
def start(tmp_path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Start the command in a process of its own."""
    (tmp_path / "command.py").write_text(COMMAND)
    started = []

    def run(program: list[str], **options: object) -> subprocess.Popen[str]:
        command = [sys.executable, str(tmp_path / "command.py"), json.dumps(program)]
        streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE} | options
        process = subprocess.Popen(command, text=True, env={**os.environ, "NO_COLOR": "1"}, **streams)
        started.append(process)
        return process

    yield run
    for process in started:
        process.kill()
        process.communicate()


OBEDIENT = """
stop = []
wait_for(folder / "go")
time.sleep(0.5)  # a signal that was sent too early would arrive here
signal.signal(signal.SIGUSR1, lambda *_: stop.append(1))
all_here(2)
rank == 0 and emit("round", round=1, max_iter=9)
while not stop:
    time.sleep(0.02)
(folder / f"{rank}.asked").touch()
rank == 0 and emit("result", summary={"stop": "INTERRUPTED"})
"""

UNRESPONSIVE = """
ignore_signals()
all_here(2)
rank == 0 and emit("round", round=1, max_iter=9)
rank == 1 and os.kill(os.getpid(), signal.SIGSTOP)
linger()
"""


@needs_mpi
def test_ctrl_c_stops_every_rank_after_its_round_however_early_it_comes(ranks, start, tmp_path):
    process = start(ranks(OBEDIENT))
    until(lambda: len(pids(tmp_path)) == 2, "start of the ranks")
    process.send_signal(signal.SIGINT)
    (tmp_path / "go").touch()
    out, err = process.communicate(timeout=BOUND)
    assert process.returncode == 0, err
    assert json.loads(out.splitlines()[-1]) == {"summary": {"stop": "INTERRUPTED"}, "interrupted": True, "failures": []}
    assert err == "\nStopping after this round; press Ctrl-C again to abort.\n"
    assert len(list(tmp_path.glob("*.asked"))) == 2


@needs_mpi
def test_a_second_ctrl_c_aborts_ranks_that_ignore_the_first(ranks, start, tmp_path):
    process = start(ranks(UNRESPONSIVE))
    until(lambda: len(list(tmp_path.glob("*.here"))) == 2, "start of the ranks")
    process.send_signal(signal.SIGINT)
    assert process.stderr.readline() == "\n"
    assert process.stderr.readline().startswith("Stopping after this round")
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=BOUND)
    assert (process.returncode, err) == (130, "elmesh: Aborted.\n")
    assert len(pids(tmp_path)) == 2
    assert living(tmp_path) == []


@needs_mpi
@pytest.mark.parametrize(
    ("number", "code", "message"),
    [(signal.SIGTERM, 143, "elmesh: Terminated.\n"), pytest.param(signal.SIGHUP, 129, "", marks=pytest.mark.slow)],
)
def test_a_command_that_is_terminated_ends_its_ranks(ranks, start, tmp_path, number, code, message):
    process = start(ranks(UNRESPONSIVE))
    until(lambda: len(list(tmp_path.glob("*.here"))) == 2, "start of the ranks")
    process.send_signal(number)
    _, err = process.communicate(timeout=BOUND)
    assert (process.returncode, err) == (code, message)
    assert living(tmp_path) == []


@needs_mpi
def test_when_the_command_is_killed_its_ranks_are_ended_and_their_files_removed(ranks, start, tmp_path):
    process = start(ranks(UNRESPONSIVE))
    until(lambda: len(list(tmp_path.glob("*.here"))) == 2, "start of the ranks")
    process.kill()
    assert len(pids(tmp_path)) == 2
    until(lambda: living(tmp_path) == [], "end of the ranks")
    until(lambda: not scratch(tmp_path).exists(), "end of their files")


@needs_mpi
def test_on_a_terminal_there_is_a_bar_and_the_summary_still_goes_to_a_file(ranks, start, tmp_path):
    body = """
if rank == 0:
    emit("round", round=4, max_iter=9)
    emit("line", text="Half way.")
    wait_for(folder / "go")
    emit("result", summary={})
"""
    leader, follower = os.openpty()
    process = start(ranks(body), stderr=follower)
    os.close(follower)
    shown = b""
    try:
        while chunk := os.read(leader, 4096):
            shown += chunk
            if b"round 4 of at most 9" in shown:
                (tmp_path / "go").touch()
    except OSError:  # Linux: the other end is closed
        pass
    finally:
        out, _ = process.communicate(timeout=BOUND)
        os.close(leader)
    assert process.returncode == 0, shown
    assert b"Fitting" in shown
    assert "Half way." in out.splitlines()
    assert b"Half way." not in shown
