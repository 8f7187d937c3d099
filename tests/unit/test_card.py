"""The card of a saved model says what it predicts, for whom, and how confidential it is."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

import elmesh
from elmesh import LocalELM, MeshELM, MultiTaskELMClassifier, MultiTaskELMRegressor, Privacy

RNG = np.random.default_rng(0)
TABLE = pd.DataFrame(
    {"age": RNG.normal(size=60), "ward": np.resize(["a", "b"], 60), "site": np.resize(["x", "y", "z"], 60)}
)
DAYS = pd.Series(TABLE["age"] + 0.1 * RNG.normal(size=60), name="days")


def card_of(model, folder):
    model.save(folder)
    return (folder / "README.md").read_text(encoding="utf-8")


def test_a_card_names_targets_tasks_and_columns(tmp_path):
    model = MultiTaskELMRegressor(task="site", random_state=0).fit(TABLE, DAYS)
    card = card_of(model, tmp_path / "m")
    for words in ("`days` (regression)", "3 sites: `x`, `y`, `z`", "2 columns: `age`, `ward`", "mesh-elm"):
        assert words in card
    assert "without differential privacy" in card
    assert "**Errors**" not in card
    gains = model.site_gains(TABLE, DAYS)
    assert gains.sentence() in model.model_card(gains)
    assert "60 rows left out" in model.model_card(gains)


def test_one_site_s_card_has_nothing_of_the_others(tmp_path):
    model = MultiTaskELMRegressor(task="site", random_state=0).fit(TABLE, DAYS)
    card = card_of(model.for_task("y"), tmp_path / "m")
    assert "1 site: `y`" in card
    assert "`x`" not in card


def test_the_card_of_an_array_and_of_classes(tmp_path):
    X, tasks = RNG.normal(size=(40, 3)), np.repeat([1, 2], 20)
    model = MultiTaskELMClassifier(random_state=0, solver=LocalELM()).fit(X, X[:, 0] > 0, tasks=tasks)
    card = card_of(model, tmp_path / "m")
    assert "3 columns of an array" in card
    assert "of the classes `False`, `True`" in card
    assert "in common" not in card


def test_the_card_of_a_private_fit_says_what_holds_and_what_does_not(tmp_path):
    X, tasks = RNG.normal(size=(300, 2)), np.repeat([1, 2, 3], 100)
    privacy = Privacy(epsilon=2.0, input_range=(-2, 2), target_range=(-2, 2))
    model = MultiTaskELMRegressor(random_state=0, solver=MeshELM(privacy=privacy)).fit(X, X[:, 0], tasks=tasks)
    card = card_of(model, tmp_path / "m")
    assert "epsilon 2, delta 1e-05" in card
    assert "The model of a site is not private" in card
    again = elmesh.load(tmp_path / "m").model_card()
    assert "learned with differential privacy" in again
    assert "The model of a site is not private" in again


def test_names_cannot_break_the_card():
    names = np.resize(["a`b\nc", "z"], 60)
    model = MultiTaskELMRegressor(random_state=0).fit(TABLE[["age"]].to_numpy(), DAYS.to_numpy(), tasks=names)
    assert "`a'b c`" in model.model_card()


@pytest.mark.parametrize("n", [40, 50])
def test_many_names_are_cut_short(n):
    X = RNG.normal(size=(2 * n, 1))
    model = MultiTaskELMRegressor(random_state=0).fit(X, X[:, 0], tasks=np.repeat(np.arange(n), 2))
    assert ("and 10 more" in model.model_card()) == (n == 50)


def test_saving_again_replaces_the_card(tmp_path):
    model = MultiTaskELMRegressor(task="site", random_state=0).fit(TABLE, DAYS)
    card = card_of(model, tmp_path / "m")
    (tmp_path / "m" / "README.md").write_text("old")
    model.save(tmp_path / "m", overwrite=True)
    assert (tmp_path / "m" / "README.md").read_text(encoding="utf-8") == card
