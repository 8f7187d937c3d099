"""Solvers that a user's script defines: they fit, save, load and run under MPI like those of the package."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest

import elmesh
from elmesh.data.features import HiddenLayer
from elmesh.estimators.model import Head, MultiTaskModel
from elmesh.estimators.parameters import UnknownSolver
from elmesh.solvers import solver_classes
from helpers.forked import ForkedProcess
from helpers.forked_ranks import run_program
from helpers.mpi import needs_mpi, run_ranks

LIMIT = 600  # seconds that no script may take
SCRIPT = Path(__file__).parent.parent / "helpers" / "user_script.py"
SOLVERS = ("gradient-descent", "mine", "louder")
PARAMETERS = {
    "gradient-descent": {"rank": 2, "mu": 1.0, "eta": 0.02, "graph": "ring", "max_iter": 30, "tol": 1e-6},
    "mine": {"mu": 0.3},
}


def run_script(folder: Path, script: Path, *arguments: object) -> str:
    """Run a script in a new process, and return its output."""
    out = folder / "output"
    process = ForkedProcess([str(script), *map(str, arguments)], str(folder), str(out), target=run_program)
    assert process.wait(LIMIT) == 0, out.read_text()
    return out.read_text()


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """The folder that the script leaves with each of its solvers."""
    folder = tmp_path_factory.mktemp("script")
    run_script(folder, SCRIPT, folder, "local", *SOLVERS)
    return {solver: folder / solver for solver in SOLVERS}


def rows():
    rng = np.random.default_rng(0)
    X, tasks = rng.normal(size=(80, 4)), np.repeat(["aix", "bonn", "cork", "dijon"], 20)
    return X, tasks


@pytest.mark.parametrize("solver", SOLVERS)
def test_a_model_predicts_to_the_bit_in_a_program_that_does_not_define_its_solver(folders, solver):
    X, tasks = rows()
    loaded = elmesh.load(folders[solver] / "model")
    expected = np.load(folders[solver] / "predictions.npy")
    np.testing.assert_array_equal(loaded.predict(X, tasks), expected)
    assert np.ptp(expected) > 0.5
    alone = loaded.for_task("cork")
    np.testing.assert_array_equal(alone.predict(X[tasks == "cork"]), expected[tasks == "cork"])


@pytest.mark.parametrize("solver", ["gradient-descent", "mine"])
def test_without_its_solver_a_model_cannot_be_fitted_again_and_is_saved_again_completely(folders, solver, tmp_path):
    X, tasks = rows()
    loaded = elmesh.load(folders[solver] / "model")
    assert solver not in solver_classes()
    assert isinstance(loaded.solver, UnknownSolver)
    assert (loaded.solver.solver_name, loaded.solver.parameters) == (solver, PARAMETERS[solver])
    with pytest.raises(elmesh.ElmeshError, match=f"solver '{solver}' is not defined in this program; import the mod"):
        loaded.fit(X, X[:, 0], tasks)
    for model, folder in ((loaded, tmp_path / "all"), (loaded.for_task("aix"), tmp_path / "one")):
        model.save(folder)
        document = json.loads((folder / "model.json").read_text())
        assert document["estimator"]["solver"] == {"solver": solver, "parameters": PARAMETERS[solver]}


@pytest.mark.parametrize("text", ["side_effect", "side_effect:Evil", "side_effect.Evil", "elmesh.solvers.mtfl"])
def test_loading_never_imports_what_a_file_names(text, tmp_path, monkeypatch):
    (tmp_path / "side_effect.py").write_text("raise SystemExit('imported')")
    monkeypatch.syspath_prepend(tmp_path)
    head = Head(None, np.array([[2.0], [1.0]]), h_mean=np.zeros(2), t_mean=np.array([10.0]))
    model = MultiTaskModel("regression", HiddenLayer(2, None), {"aix": head})
    for k, parameters in enumerate(({}, {"rank": 2, "module": "side_effect", "__class__": text})):
        estimator = {"n_hidden": None, "solver": {"solver": text, "parameters": parameters}}
        model.save(tmp_path / f"model{k}", estimator=estimator)
        loaded = elmesh.load(tmp_path / f"model{k}")
        assert "side_effect" not in sys.modules
        assert type(loaded.solver) is UnknownSolver
        assert loaded.predict([[1.0, 1.0]]).tolist() == [13.0]


def test_a_known_solver_with_unknown_parameters_still_predicts(tmp_path):
    head = Head(None, np.array([[2.0], [1.0]]), h_mean=np.zeros(2), t_mean=np.array([10.0]))
    model = MultiTaskModel("regression", HiddenLayer(2, None), {"aix": head})
    estimator = {"n_hidden": None, "solver": {"solver": "local-elm", "parameters": {"mu": 1.0, "later": 3}}}
    model.save(tmp_path / "model", estimator=estimator)
    loaded = elmesh.load(tmp_path / "model")
    assert loaded.predict([[1.0, 1.0]]).tolist() == [13.0]
    assert isinstance(loaded.solver, UnknownSolver)


@pytest.fixture(scope="module")
def job_folders(tmp_path_factory):
    """The folder that jobs of the script leave, for each number of ranks."""
    folders = {}
    for n_ranks in (1, 2):
        folders[n_ranks] = tmp_path_factory.mktemp(f"job-of-{n_ranks}")
        job = run_ranks(n_ranks, folders[n_ranks], "mpi", *SOLVERS, program=SCRIPT, forked=True)
        assert job.code == 0, job.out + job.err
    return folders


@needs_mpi
@pytest.mark.parametrize("solver", SOLVERS)
def test_under_mpi_any_number_of_ranks_gives_the_same_model(solver, folders, job_folders):
    one, two = (np.load(folder / solver / "predictions.npy") for folder in job_folders.values())
    np.testing.assert_array_equal(one, two)
    # In one process agents are stacked, which may round differently; between ranks nothing differs.
    np.testing.assert_allclose(two, np.load(folders[solver] / "predictions.npy"), rtol=1e-9)


REGISTRATION = """
import sys
sys.path.insert(0, sys.argv[1])
import user_script
import elmesh
from elmesh.solvers import make_solver, solver_classes

classes = solver_classes()
assert classes["gradient-descent"] is user_script.GradientDescent
assert classes["mine"] is user_script.Mine and classes["local-elm"] is elmesh.LocalELM
assert make_solver("mine").mu == "auto"
assert user_script.Mine(mu=3).get_params() == {"mu": 3}

# The same class again, as in a notebook's cell, replaces the old one.
import importlib
again = importlib.reload(user_script)
assert solver_classes()["mine"] is again.Mine

# Another class of the same name is refused.
try:
    class LocalELM(elmesh.LocalELM):
        name = "local-elm"
except elmesh.ElmeshError as error:
    assert "There is a solver 'local-elm' already" in str(error), error
else:
    raise SystemExit("two classes have the same name")

# A subclass checks its own parameters.
X, y, tasks = user_script.rows()
try:
    elmesh.MultiTaskELMRegressor(solver=again.Louder(mu1=13.0)).fit(X, y, tasks)
except elmesh.ElmeshError as error:
    assert str(error) == "mu1 must not be 13.", error

# An iterative solver needs a report.
class Silent(elmesh.Solver):
    def init_state(self, problem):
        yield from ()
        return elmesh.solvers.state.SolverState(0)
    def solution(self, problem, state):
        raise NotImplementedError
try:
    elmesh.MultiTaskELMRegressor(solver="silent").fit(X, y, tasks)
except TypeError as error:
    assert "Silent takes rounds but does not report on them" in str(error), error
print("registered")
"""


def test_defining_a_class_registers_it(tmp_path):
    (tmp_path / "registration.py").write_text(REGISTRATION)
    assert run_script(tmp_path, tmp_path / "registration.py", SCRIPT.parent).strip() == "registered"
