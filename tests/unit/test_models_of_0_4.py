"""Model folders that version 0.4 saved: they load, predict to the bit, and can be fitted again."""

from __future__ import annotations

import json
from pathlib import Path

import networkx as nx
import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from typer.testing import CliRunner

import elmesh
from elmesh import (
    DGSP,
    DMTLELM,
    DNSP,
    FODMTLELM,
    GOMTL,
    MTFL,
    MTLELM,
    DifAltGDmin,
    FedRep,
    MeshELM,
    TraceNorm,
)
from elmesh.cli import app

FOLDER = Path(__file__).parent.parent / "data" / "model-0.4"
EXPECTED = json.loads((FOLDER / "expected.json").read_text())
STAR = nx.Graph([("aix", "bonn"), ("aix", "cork")])
#: The solver of each model in this version; the estimators' default was "dmtl-elm" by its name.
SOLVERS = {
    "default-classifier": MeshELM(),
    "default-regressor": MeshELM(),
    "dmtl-elm-varpro": MeshELM(rank=2, mu1=0.5, mu2=0.5, graph=STAR, message_bits=4, max_bytes=1e7, tol=1e-3),
    "dmtl-elm-admm": DMTLELM(rank=2, rho=1.0, tau=[20.0, 21.0, 22.0], zeta=2.0, max_iter=50, graph="path"),
    "fo-dmtl-elm": FODMTLELM(rank=2, max_iter=20, certify=False),
    "mtl-elm-varpro": MeshELM(mu1=0.3, graph=None),
    "mtl-elm-alternating": MTLELM(rank=2, init="random"),
    "local-elm": "local-elm",
    "mtfl": MTFL(mu=0.1),
    "go-mtl": GOMTL(rank=2, mu2=0.1),
    "dgsp": DGSP(rank=2),
    "dnsp": DNSP(rank=2),
    "dif-altgdmin": DifAltGDmin(rank=2, step_scale=0.5, max_iter=20),
    "fedrep": FedRep(rank=2, local_steps=2, init="random", max_iter=30),
    "trace-norm": TraceNorm(mu1=0.1),
}


def test_there_is_a_model_of_every_solver_of_0_4():
    assert set(SOLVERS) == set(EXPECTED["models"])


@pytest.mark.parametrize("name", SOLVERS)
def test_a_model_of_0_4_predicts_the_same(name):
    """But for the last bits: processors differ in the exponential function."""
    loaded, expected = elmesh.load(FOLDER / name), EXPECTED["models"][name]
    X, tasks = np.array(EXPECTED["X"]), EXPECTED["tasks"]
    predicted = np.array(expected["predict"])
    if "predict_proba" in expected:
        np.testing.assert_array_equal(loaded.predict(X, tasks), predicted)
        np.testing.assert_allclose(loaded.predict_proba(X, tasks), np.array(expected["predict_proba"]), rtol=1e-14)
    else:
        np.testing.assert_allclose(loaded.predict(X, tasks), predicted, rtol=1e-14)
    assert loaded.extra_ == ({"note": name} if name == "dgsp" else {})


@pytest.mark.parametrize("name", SOLVERS)
def test_the_solver_of_a_model_of_0_4_is_the_same_method_and_is_saved_as_such(name, tmp_path):
    loaded, expected = elmesh.load(FOLDER / name), SOLVERS[name]
    loaded.save(tmp_path / "again")
    for found in (loaded.solver, elmesh.load(tmp_path / "again").solver):
        if isinstance(expected, str):
            assert found == expected
            continue
        assert type(found) is type(expected)
        parameters, wanted = found.get_params(), expected.get_params()
        if isinstance(wanted.get("graph"), nx.Graph):
            assert nx.utils.graphs_equal(nx.Graph(parameters.pop("graph").edges), wanted.pop("graph"))
        assert parameters == wanted


def test_a_model_of_0_4_can_be_fitted_again():
    loaded = elmesh.load(FOLDER / "default-regressor")
    rng = np.random.default_rng(0)
    X, tasks = rng.normal(size=(30, 3)), np.repeat(["aix", "bonn", "cork"], 10)
    again = clone(loaded).fit(X, X[:, 0], tasks)
    assert again.summary()["solver"] == "mesh-elm"


@pytest.mark.parametrize("name", ["dmtl-elm", "mtl-elm", "mesh-elm"])
def test_a_name_saved_by_this_version_keeps_its_meaning(name, tmp_path):
    rng = np.random.default_rng(0)
    X, tasks = rng.normal(size=(30, 3)), np.repeat(["aix", "bonn", "cork"], 10)
    model = elmesh.MultiTaskELMRegressor(5, solver=name, random_state=0).fit(X, X[:, 0], tasks)
    model.save(tmp_path / "model")
    assert elmesh.load(tmp_path / "model").solver == name


@pytest.mark.parametrize("kind", ["regression", "classification"])
def test_the_command_predicts_with_a_model_of_0_4_and_its_medians(kind, tmp_path):
    """Rows without some of the numbers: a model of 0.4 fills them with the medians that it was saved with."""
    options = ["--proba"] if kind == "classification" else []
    words = ["predict", FOLDER / "command" / kind, FOLDER / "command" / "new.csv", "--out", tmp_path / "out.csv"]
    done = CliRunner().invoke(app, [*map(str, words), "--quiet", *options])
    assert done.exit_code == 0, done.output
    found, expected = (pd.read_csv(path) for path in (tmp_path / "out.csv", FOLDER / "command" / f"{kind}.csv"))
    pd.testing.assert_frame_equal(found, expected, rtol=1e-14, atol=0.0)
