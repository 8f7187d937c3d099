"""Probabilities of classes that sites share: one temperature for all of them, and close to the true ones."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.special import expit, softmax

import elmesh
from elmesh import MeshELM, MultiTaskELMClassifier

SLOPES = np.array([1.0, -1.0, 0.5])


def simulated(seed, sites=30, rows=30, new=100):
    """Two classes whose rates differ by site; rows to learn from and new ones, each with sites and true chances."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(sites, rows + new, 3))
    chances = expit(1.5 * rng.normal(size=(sites, 1)) + X @ SLOPES)
    y = np.where(rng.random(chances.shape) < chances, "yes", "no")

    def part(chosen):
        names = np.repeat([f"site {t:02d}" for t in range(sites)], X[:, chosen].shape[1])
        return X[:, chosen].reshape(-1, 3), y[:, chosen].ravel(), names, chances[:, chosen].ravel()

    return part(slice(rows)), part(slice(rows, None))


def log_loss(y, chances):
    return -float(np.mean(np.log(np.where(y == "yes", chances, 1 - chances))))


@pytest.fixture(scope="module")
def fitted():
    (X, y, names, _), _ = simulated(0, sites=12, rows=16)
    return MultiTaskELMClassifier(n_hidden=30, random_state=0).fit(X, y, names)


def temperatures(model):
    return {t: head.temperature for t, head in model.model_.heads.items()}


@pytest.mark.parametrize("solver", [MeshELM(), MeshELM(rank=0), MeshELM(private=False)], ids=["all", "no U", "common"])
def test_sites_with_few_rows_have_the_same_temperature(solver):
    """Also one with a single class; a site with more rows than features has its own."""
    (X, y, names, _), _ = simulated(1, sites=12, rows=70)
    kept = np.ones(len(X), dtype=bool)
    for name in np.unique(names)[1:]:
        kept[np.flatnonzero(names == name)[15:]] = False
    y[names == "site 03"] = "yes"
    model = MultiTaskELMClassifier(n_hidden=20, solver=solver, random_state=0).fit(X[kept], y[kept], names[kept])
    layer = model.model_.layer
    assert np.sum(names[kept] == "site 00") > layer.width + 2
    found = temperatures(model)
    common = model.model_.common.temperature
    assert found.pop("site 00") != common
    assert set(found.values()) == {common}
    assert 2.0**-6 <= common <= 4.0


def test_a_site_that_is_added_has_the_temperature_of_the_others(fitted, tmp_path):
    (X, y, names, _), _ = simulated(5, sites=3, rows=20)
    fitted.save(tmp_path / "model")
    model = elmesh.load(tmp_path / "model")
    y[names == "site 02"] = "no"
    for t, name in enumerate(np.unique(names)):
        own = names == name
        model.add_site(f"new {t}", X[own], y[own])
    assert len(model.model_.heads) == 15
    assert set(temperatures(model).values()) == set(temperatures(fitted).values())
    assert len(set(temperatures(model).values())) == 1


def test_probabilities_are_scores_divided_by_the_temperature_also_of_unknown_sites(fitted):
    (X, _, names, _), _ = simulated(0, sites=12, rows=16)
    sites = np.where(np.arange(len(X)) % 3 == 0, "elsewhere", names)
    difference = fitted.decision_function(X, sites)
    temperature = fitted.model_.common.temperature
    expected = softmax(np.column_stack([np.zeros(len(X)), difference]) / temperature, axis=1)
    np.testing.assert_allclose(fitted.predict_proba(X, sites), expected, rtol=1e-9, atol=1e-12)


def test_where_all_sites_have_many_rows_each_has_a_temperature_of_its_own():
    """Unknown sites have their geometric mean, and the means of their offsets."""
    (X, y, names, _), _ = simulated(2, sites=5, rows=80)
    model = MultiTaskELMClassifier(n_hidden=10, random_state=0).fit(X, y, names)
    found = list(temperatures(model).values())
    assert len(set(found)) == 5
    assert model.model_.common.temperature == pytest.approx(np.exp(np.mean(np.log(found))))
    links = np.array([head.link for head in model.model_.heads.values()])
    np.testing.assert_allclose(model.model_.common.link, links.mean(axis=0), atol=1e-12)


@pytest.mark.thorough
@pytest.mark.parametrize(("rows", "most", "mean"), [(15, 0.08, 0.06), (30, 0.05, 0.035)])
def test_the_log_loss_of_new_rows_is_little_above_that_of_the_true_probabilities(rows, most, mean):
    above, rates = [], []
    for seed in range(4):
        (X, y, names, _), (X_new, y_new, names_new, chances) = simulated(seed, rows=rows)
        model = MultiTaskELMClassifier(random_state=0).fit(X, y, names)
        least = log_loss(y_new, chances)
        above.append(log_loss(y_new, model.predict_proba(X_new, names_new)[:, 1]) - least)
        # What a site's own share of classes gives, which is far above.
        share = {name: (np.sum(y[names == name] == "yes") + 0.5) / (rows + 1) for name in np.unique(names)}
        rates.append(log_loss(y_new, np.array([share[name] for name in names_new])) - least)
    assert max(above) <= most
    assert np.mean(above) <= mean
    assert np.mean(above) <= np.mean(rates) / 2
