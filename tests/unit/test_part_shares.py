"""The parts of a model's predictions: what is common, shared and private."""

from __future__ import annotations

import numpy as np
import pytest

from elmesh import ElmeshError, LocalELM, MeshELM, MultiTaskELMClassifier, MultiTaskELMRegressor, load
from elmesh.datasets import CLINICS, simulate_clinics
from elmesh.errors import UnknownSiteWarning

PARTS = ["common", "shared", "private"]


@pytest.fixture(scope="module", params=["none", "shared"])
def fitted(request):
    """A model of twelve clinics, without and with a shared part, and its rows."""
    split = simulate_clinics(seed=0)
    solver = MeshELM(rank=0) if request.param == "none" else MeshELM(rank=2, mu1=0.3, mu2=0.3)
    model = MultiTaskELMRegressor(40, solver=solver, random_state=0)
    return model.fit(split.X_train, split.y_train, tasks=split.tasks_train), split


def direct_shares(model, X, site):
    """The shares from the weights that the fit found."""
    Phi, U = model.model_.layer(X), model.U_
    parts = [Phi @ model.W_, Phi @ (U @ model.A_[site]), Phi @ model.V_[site]]
    squares = np.array([np.sum(part**2) for part in parts])
    return squares / squares.sum()


def test_shares_are_those_of_the_weights_that_the_fit_found(fitted):
    model, split = fitted
    shares = model.part_shares(split.X_test, tasks=split.tasks_test)
    assert list(shares.columns) == PARTS
    assert list(shares.index) == list(CLINICS)
    for site in CLINICS:
        expected = direct_shares(model, split.X_test[split.tasks_test == site], site)
        assert shares.loc[site].to_numpy() == pytest.approx(expected, abs=1e-9)
    assert (shares["shared"].max() > 0.001) == (model.U_.shape[1] > 0)


def test_a_loaded_model_and_that_of_one_site_have_the_same_shares(fitted, tmp_path):
    model, split = fitted
    shares = model.part_shares(split.X_test, tasks=split.tasks_test)
    model.save(tmp_path / "model")
    assert load(tmp_path / "model").part_shares(split.X_test, tasks=split.tasks_test).equals(shares)
    rows = split.tasks_test == "Oak"
    alone = model.for_task("Oak").part_shares(split.X_test[rows])
    assert alone.loc["Oak"].to_numpy() == pytest.approx(shares.loc["Oak"].to_numpy())


def test_a_site_that_is_added_has_its_own_parts_and_an_unknown_one_the_common_part_only():
    split = simulate_clinics(seed=0)
    known = split.tasks_train != "Larch"
    model = MultiTaskELMRegressor(40, random_state=0)
    model.fit(split.X_train[known], split.y_train[known], tasks=split.tasks_train[known])
    rows = split.tasks_test == "Larch"
    tasks = np.full(rows.sum(), "Larch")
    with pytest.warns(UnknownSiteWarning):
        assert model.part_shares(split.X_test[rows], tasks=tasks).loc["Larch"].tolist() == [1.0, 0.0, 0.0]
    model.add_site("Larch", split.X_train[~known], split.y_train[~known])
    shares = model.part_shares(split.X_test[rows], tasks=tasks).loc["Larch"]
    assert shares["private"] > 0.2
    assert shares.sum() == pytest.approx(1.0)


def test_sites_with_some_of_the_classes_have_shares():
    rng = np.random.default_rng(0)
    X, site = rng.normal(size=(120, 3)), np.repeat(["a", "b", "c"], 40)
    y = np.where(X[:, 0] > 0, "high", "low")
    y[(site == "c") & (X[:, 1] > 0.5)] = "other"
    shares = MultiTaskELMClassifier(40, random_state=0).fit(X, y, tasks=site).part_shares(X, tasks=site)
    assert shares.sum(axis=1).to_numpy() == pytest.approx(np.ones(3))
    assert (shares["common"] > 0.1).all()


def test_a_model_without_a_common_part_has_no_parts():
    split = simulate_clinics(seed=0)
    model = MultiTaskELMRegressor(40, solver=LocalELM(), random_state=0)
    model.fit(split.X_train, split.y_train, tasks=split.tasks_train)
    with pytest.raises(ElmeshError, match="mesh-elm's defaults"):
        model.part_shares(split.X_test, tasks=split.tasks_test)
