"""The commands on the pages, and the Python that needs MPI or several agents, work as they are shown."""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pandas as pd

from elmesh import load
from elmesh.netconfig.layout import NetworkLayout
from helpers.code_blocks import code_blocks, run, run_commands
from helpers.mpi import MPIEXEC, needs_mpi
from helpers.network import free_ports, make_config, rows_of

ROOT = Path(__file__).parents[2]
PAGES = {name: (ROOT / name).read_text(encoding="utf-8") for name in ("README.md", "docs/export.md", "docs/network.md")}
#: Python that needs MPI or other agents has the language `py`; all other Python has `python`.
DISTRIBUTED = [(path.relative_to(ROOT).as_posix(), code) for path in [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")]
               for code in code_blocks(path.read_text(encoding="utf-8"), "py")]  # fmt: skip


def test_the_first_commands_of_the_readme_work(tmp_path):
    (commands,) = (block for block in code_blocks(PAGES["README.md"], "sh") if "elmesh sample" in block)
    run_commands(commands, tmp_path)
    new = pd.read_csv(tmp_path / "clinics" / "new-visits.csv")
    predictions = pd.read_csv(tmp_path / "predictions.csv")
    assert len(predictions) == len(new)
    inside = (predictions["lower"] <= new["days"]) & (new["days"] <= predictions["upper"])
    assert 0.8 < inside.mean() < 0.97
    assert (tmp_path / "model" / "report.html").is_file()
    assert "Truro" in load(tmp_path / "model").tasks_


def test_the_commands_of_the_page_on_export_work(tmp_path):
    (commands,) = code_blocks(PAGES["docs/export.md"], "sh")
    run_commands(commands, tmp_path)
    assert (tmp_path / "leeds.onnx").is_file()


@needs_mpi
def test_the_commands_for_mpi_work(tmp_path):
    (commands,) = (block for block in code_blocks(PAGES["README.md"], "sh") if "--ranks" in block)
    (tmp_path / "sites").mkdir()
    for k in range(4):
        rows_of(f"site-{k}").to_csv(tmp_path / "sites" / f"site-{k}.csv", index=False)
    first, second = commands.strip().splitlines()
    run(["bash", "-ec", first.replace("--ranks 8", "--ranks 2")], tmp_path)
    run(["bash", "-ec", second.replace("-n 64", "-n 1").replace("models/", "other/")], tmp_path)
    files = ("model.json", "weights.safetensors")
    same = [(tmp_path / f"{out}/site-0" / files[1]).read_bytes() for out in ("models", "other")]
    assert same[0] == same[1]


def test_the_trial_of_a_network_works(tmp_path):
    (commands,) = (block for block in code_blocks(PAGES["docs/network.md"], "sh") if "network create" in block)
    sites = ("north", "south", "east", "west")
    for site in sites:
        rows_of(site).to_csv(tmp_path / f"{site}.csv", index=False)
    addresses = ",".join(f"127.0.0.1:{port}" for port in free_ports(len(sites)))
    commands = commands.replace("127.0.0.1:7451", addresses)
    # A neighbour that has not started yet is a problem to the check, not to the run.
    commands = commands.replace("network check net/north/agent.toml", "network check net/north/agent.toml || true")
    run(["bash", "-ec", commands], tmp_path)
    first, *others = [load(tmp_path / f"{site}-model").W_ for site in sites]
    assert np.linalg.norm(first) > 0
    assert all(np.array_equal(first, other) for other in others)


@needs_mpi
def test_the_python_for_mpi_runs_under_mpiexec(tmp_path):
    (code,) = (code for name, code in DISTRIBUTED if 'backend="mpi"' in code)
    script = tmp_path / "script.py"
    script.write_text(
        "import numpy as np\n"
        "from elmesh import MultiTaskELMClassifier\n"
        "rng = np.random.default_rng(0)\n"
        "X, site = rng.normal(size=(120, 4)), np.repeat(['north', 'south', 'west'], 40)\n"
        "y = X[:, 0] + X[:, 1] > 0\n"
        f"{code}\n"
        "if everything is not None:\n"
        "    print(everything.tasks_.tolist())\n",
        encoding="utf-8",
    )
    out = run([str(MPIEXEC), "-n", "2", "--bind-to", "none", sys.executable, str(script)], tmp_path)
    assert out == "['north', 'south', 'west']\n"
    assert (tmp_path / "checkpoints" / "checkpoint.json").is_file()


def test_the_python_for_agents_runs_at_every_site(tmp_path):
    codes = {page: code for page, code in DISTRIBUTED if "NetworkAgent" in code}
    assert len(codes) == 2
    # One site runs the code of one page, and its neighbour that of the other.
    config = make_config(("north", "south"), "path", rounds=10)
    NetworkLayout(tmp_path / "net", config).write("", days=30, keys=True, force=False)
    for site, code in zip(config.agent_names, codes.values(), strict=True):
        rows_of(site).to_csv(tmp_path / f"{site}.csv", index=False)
        (tmp_path / f"{site}.py").write_text(code.replace("north", site), encoding="utf-8")
    with ThreadPoolExecutor() as pool:
        jobs = [pool.submit(run, [sys.executable, f"{site}.py"], tmp_path) for site in config.agent_names]
    printed = [job.result() for job in jobs]
    assert all("'rounds': 10" in out for out in printed)
    for site in config.agent_names:
        assert load(tmp_path / f"{site}-model").tasks_.tolist() == [site]


def test_every_block_of_distributed_python_is_tested_above():
    assert sorted(name for name, code in DISTRIBUTED if "NetworkAgent" in code) == ["README.md", "docs/network.md"]
    assert sum('backend="mpi"' in code or "NetworkAgent" in code for _, code in DISTRIBUTED) == len(DISTRIBUTED)
