"""A network of real agents ends where MPI ends, to the bit, through kills, and nothing but what it says leaves it."""

import os
import subprocess
import sys

import numpy as np
import pytest

from network import BASIS, ROOT, Trial, make_plan, same, undisturbed

REFERENCE = """
import json, sys, warnings
import numpy as np, pandas as pd
from elmesh.cli.agent import _estimator
from elmesh.network.plan import Plan
from elmesh.tables import FILE_TASK
warnings.simplefilter("ignore")
plan = Plan.read(sys.argv[1])
frames = [pd.read_csv(f"{sys.argv[2]}/{name}.csv").assign(**{FILE_TASK: name}) for name in plan.names]
schema = plan.schema(FILE_TASK, ["y"], False)
X, tasks = zip(*(schema.encode(frame) for frame in frames))
model = _estimator(plan, X[0].shape[1])
model.solver.set_params(runtime="mpi")
model.fit(np.concatenate(X), np.concatenate([schema.targets(f) for f in frames]), tasks=np.concatenate(tasks))
U = model.U_ if model.U_.ndim == 3 else [model.U_] * len(plan.names)
found = {f"U.{n}": U[k] for k, n in enumerate(plan.names)} | {f"A.{n}": A for n, A in model.A_.items()}
np.savez(sys.argv[3], **found)
"""


def by_mpi(trial: Trial) -> dict:
    """What the MPI runtime makes of the same plan and rows, all in one rank."""
    pytest.importorskip("mpi4py", reason="mpi4py is not installed")
    out = trial.folder / "mpi.npz"
    command = [sys.executable, "-c", REFERENCE, str(trial.folder / "net" / "network.toml")]
    root = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1", "PYTHONPATH": str(ROOT / "src")}
    subprocess.run([*command, str(trial.folder / "net"), str(out)], check=True, cwd=ROOT, env=os.environ | root)
    return dict(np.load(out))


@pytest.mark.parametrize(
    ("graph", "changes"),
    [
        ("ring", {}),
        ("star", {"solver": "fo-dmtl-elm"}),
        ("path", {"parameters": BASIS | {"gamma": "paper"}}),
        ("ring", {"exchange": "sums", "rank": "auto", "parameters": {}, "rounds": 200}),
        ("star", {"exchange": "sums", "rank": "auto", "parameters": {"message_bits": 4}, "rounds": 200}),
    ],
)
def test_agents_end_where_mpi_ends_to_the_bit(tmp_path, graph, changes):
    with Trial(tmp_path, make_plan(graph=graph, **changes)) as trial:
        trial.start_all()
        assert set(trial.wait().values()) == {0}
        reference = by_mpi(trial)
        for name, weights in trial.weights().items():
            assert np.array_equal(weights["U.0"], reference[f"U.{name}"]), name
            assert np.array_equal(weights["A.0"], reference[f"A.{name}"]), name


def test_an_agent_killed_in_the_middle_rejoins_and_the_end_is_the_same_to_the_bit(tmp_path):
    plan = make_plan(rounds=1500)
    with Trial(tmp_path, plan) as trial:
        trial.start_all()
        for name in ("north", "west"):
            trial.until_round(name, 200)
            trial.kill(name)
            trial.start(name)
        assert set(trial.wait().values()) == {0}
        assert trial.agents["north"].events("resumed") or trial.agents["west"].events("resumed")
        assert same(trial.weights(), undisturbed(tmp_path / "again", plan))
