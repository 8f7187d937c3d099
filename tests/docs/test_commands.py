"""The commands on the pages, and the Python that needs processes of its own, work as they are shown."""

from __future__ import annotations

import re
import shlex
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from typer.main import get_command

from elmesh import load
from elmesh.cli import app
from elmesh.cli.errors import UNSOUND
from elmesh.netconfig.layout import NetworkLayout
from helpers.code_blocks import code_blocks, markdown_pages, run, run_apart, run_commands, run_page
from helpers.forked import ForkedProcess
from helpers.mpi import MPIEXEC, needs_mpi
from helpers.network import LIMIT, free_ports, make_config, rows_of

ROOT = Path(__file__).parents[2]
PAGES = {path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8") for path in markdown_pages(ROOT)}
#: Python that needs MPI or other agents has the language `py`; all other Python has `python`.
DISTRIBUTED = [(name, code) for name, text in PAGES.items() for code in code_blocks(text, "py")]
#: Options that make a comparison of seconds from one of minutes.
FAST = "--methods linear-pooled --folds 2 --repeats 1"


def fast(commands: str) -> str:
    return commands.replace("--out comparison/", f"{FAST} --out comparison/")


def test_the_commands_of_every_page_are_tested():
    # Those of other pages are tested with the page: tests/docs/test_*_page.py.
    here = {"README.md", "docs/export.md", "docs/network.md", "docs/start/index.md", "docs/how-to/report.md"}
    here |= {"docs/how-to/cluster.md", "docs/understand/paper.md", "docs/privacy.md"}
    others = {"docs/compare.md", "docs/operations.md", "docs/running.md", "docs/tuning.md", "docs/updates.md"}
    assert {name for name, text in PAGES.items() if code_blocks(text, "sh")} == here | others


def test_the_commands_of_the_readme_work(tmp_path):
    (commands,) = (block for block in code_blocks(PAGES["README.md"], "sh") if "elmesh sample" in block)
    shown = run_page(fast(commands), tmp_path)
    gain, *_ = re.findall(r"(\d of \d) sites clearly gain by .*none is clearly better alone", shown, re.MULTILINE)
    assert f"In the sample above {gain} clinics clearly gain;\nnone is clearly better alone" in PAGES["README.md"]
    assert (tmp_path / "comparison" / "report.html").is_file()
    new = pd.read_csv(tmp_path / "clinics" / "new-visits.csv")
    predictions = pd.read_csv(tmp_path / "predictions.csv")
    assert len(predictions) == len(new)
    inside = (predictions["lower"] <= new["days"]) & (new["days"] <= predictions["upper"])
    assert 0.8 < inside.mean() < 0.97
    assert (tmp_path / "model" / "report.html").is_file()
    assert "Truro" in load(tmp_path / "model").tasks_


def test_the_commands_of_the_first_page_and_of_the_page_on_the_report_work(tmp_path):
    first, fit, checks = code_blocks(PAGES["docs/start/index.md"], "sh")
    shown = run_page(first + fit + fast(checks), tmp_path)
    visits = pd.read_csv(tmp_path / "clinics" / "visits.csv")
    assert f"`clinics/visits.csv` has {len(visits)} simulated patients" in PAGES["docs/start/index.md"]
    assert "Ely" in shown
    for page in ("model/report.html", "evaluation/report.html", "comparison/report.html", "predictions.csv"):
        assert (tmp_path / page).is_file()
    (commands,) = code_blocks(PAGES["docs/how-to/report.md"], "sh")
    assert set(commands.splitlines()) <= set((first + fit + checks).splitlines())


@pytest.mark.parametrize("page", ["docs/understand/paper.md", "docs/privacy.md", "docs/how-to/cluster.md"])
def test_commands_that_take_too_long_have_options_that_exist(page):
    for line in (line for block in code_blocks(PAGES[page], "sh") for line in block.strip().splitlines()):
        program, *words = re.sub(r"^mpiexec -n \d+ ", "", line).split("#")[0].split()
        command = get_command(app)
        while words[0] in getattr(command, "commands", {}):
            command = command.commands[words.pop(0)]
        known = {option for parameter in command.loaded.params for option in parameter.opts}
        assert program == "elmesh"
        assert {word for word in words if word.startswith("--")} <= known


def test_the_commands_of_the_page_on_export_work(tmp_path):
    (commands,) = code_blocks(PAGES["docs/export.md"], "sh")
    run_page(commands, tmp_path)
    assert (tmp_path / "leeds.onnx").is_file()


@needs_mpi
@pytest.mark.slow
def test_the_commands_for_mpi_work(tmp_path):
    (commands,) = code_blocks(PAGES["docs/how-to/cluster.md"], "sh")
    (tmp_path / "sites").mkdir()
    for k in range(4):
        rows_of(f"site-{k}").to_csv(tmp_path / "sites" / f"site-{k}.csv", index=False)
    first, second = commands.strip().splitlines()
    run(["bash", "-ec", first.replace("--ranks 8", "--ranks 2")], tmp_path)
    run(["bash", "-ec", second.replace("-n 64", "-n 1").replace("models/", "other/")], tmp_path)
    files = ("model.json", "weights.safetensors")
    same = [(tmp_path / f"{out}/site-0" / files[1]).read_bytes() for out in ("models", "other")]
    assert same[0] == same[1]


def without_loops(block: str) -> list[str]:
    """Return the lines of a block of commands, those of loops once for each value."""

    def repeated(loop: re.Match[str]) -> str:
        name, values, body = loop.groups()
        return "".join(body.replace(f"${name}", value) for value in values.split())

    return re.sub(r"for (\w+) in ([^;]+); do\n(.*?)done\n", repeated, block, flags=re.DOTALL).strip().splitlines()


def test_the_trial_of_a_network_works(tmp_path):
    (commands,) = (block for block in code_blocks(PAGES["docs/network.md"], "sh") if "network create" in block)
    sites = ("north", "south", "east", "west")
    for site in sites:
        rows_of(site).to_csv(tmp_path / f"{site}.csv", index=False)
    addresses = ",".join(f"127.0.0.1:{port}" for port in free_ports(len(sites)))
    agents: list[ForkedProcess] = []
    try:
        for line in without_loops(commands.replace("127.0.0.1:7451", addresses)):
            program, *words = shlex.split(line)
            if (program, *words[:1]) == ("elmesh", "agent"):
                files = [str(tmp_path / f"{len(agents)}.{kind}") for kind in ("out", "err")]
                agents.append(ForkedProcess([word for word in words if word != "&"], *files, str(tmp_path)))
            elif words[:2] == ["network", "check"]:
                # A neighbour that has not started yet is a problem to the check, not to the run.
                run_commands(line, tmp_path, codes=(0, UNSOUND))
            elif program != "wait":
                run_commands(line, tmp_path)
            if program == "wait":
                assert len(agents) == len(sites)
                assert [agent.wait(LIMIT) for agent in agents] == [0] * len(agents)
    finally:
        for agent in agents:
            agent.kill()
            agent.wait()
    first, *others = [load(tmp_path / f"{site}-model").W_ for site in sites]
    assert np.linalg.norm(first) > 0
    assert all(np.array_equal(first, other) for other in others)


def test_the_solver_on_the_page_runs_and_its_model_loads_where_it_is_not_defined(tmp_path):
    code = "\n".join(code_blocks(PAGES["docs/solvers.md"], "python"))
    score, stop, _ = run_apart({"script": code}, tmp_path)["script"].split()
    assert float(score) > 0.95
    assert stop == "CONVERGED"
    assert load(tmp_path / "descent-model").tasks_[0] == "site-01"


def mpi_script() -> str:
    (code,) = (code for name, code in DISTRIBUTED if 'backend="mpi"' in code)
    return (
        "import numpy as np\n"
        "rng = np.random.default_rng(0)\n"
        "X, site = rng.normal(size=(120, 4)), np.repeat(['north', 'south', 'west'], 40)\n"
        "y = X[:, 0] + X[:, 1] > 0\n"
        f"{code}\n"
        "if everything is not None:\n"
        "    print(everything.tasks_.tolist())\n"
    )


@needs_mpi
def test_the_python_for_mpi_runs_on_one_rank(tmp_path):
    assert run_apart({"script": mpi_script()}, tmp_path) == {"script": "['north', 'south', 'west']\n"}
    assert (tmp_path / "checkpoints" / "checkpoint.json").is_file()


@needs_mpi
@pytest.mark.slow
def test_the_python_for_mpi_runs_under_mpiexec(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(mpi_script(), encoding="utf-8")
    out = run([str(MPIEXEC), "-n", "2", "--bind-to", "none", sys.executable, str(script)], tmp_path)
    assert out == "['north', 'south', 'west']\n"
    assert (tmp_path / "checkpoints" / "checkpoint.json").is_file()


def test_the_python_for_agents_runs_at_every_site(tmp_path):
    (code,) = (code for _, code in DISTRIBUTED if "NetworkAgent" in code)
    config = make_config(("north", "south"), "path", rounds=10)
    NetworkLayout(tmp_path / "net", config).write("", days=30, keys=True, force=False)
    for site in config.agent_names:
        rows_of(site).to_csv(tmp_path / f"{site}.csv", index=False)
    printed = run_apart({site: code.replace("north", site) for site in config.agent_names}, tmp_path)
    assert all("'rounds': 10" in out for out in printed.values())
    for site in config.agent_names:
        assert load(tmp_path / f"{site}-model").tasks_.tolist() == [site]


def test_every_block_of_distributed_python_is_tested_above():
    assert sorted(name for name, _ in DISTRIBUTED) == ["docs/how-to/cluster.md", "docs/network.md"]
    assert sum('backend="mpi"' in code or "NetworkAgent" in code for _, code in DISTRIBUTED) == len(DISTRIBUTED)
