"""Whether a new model is better: on rows that neither model has seen, with a paired standard error."""

import math

import numpy as np
import pandas as pd
import pytest

from elmesh import MultiTaskELMClassifier, MultiTaskELMRegressor
from elmesh.evaluation.model_change import ModelChange, compare_models


class Constant:
    """A model that predicts one number, and another for rows that it has not forgotten."""

    def __init__(self, number, known=0.0):
        self.number, self.known, self.forgotten = number, known, frozenset()

    def forget(self, rows, y, tasks):
        assert len(rows) == len(y) == len(tasks)
        self.forgotten = frozenset(rows.index)
        return self

    def predict(self, rows, tasks):
        return np.where(rows.index.isin(self.forgotten), self.number, self.known)


@pytest.mark.parametrize("n", [2, 3, 11, 40])
def test_losses_are_of_rows_that_were_forgotten_and_the_error_is_paired(n):
    y = np.random.default_rng(n).normal(size=n)
    rows = pd.DataFrame({"x": y})
    # Predictions of the former model do not depend on what it has forgotten.
    found = compare_models(Constant(9.0, known=1.0), Constant(0.5, known=99.0), rows, y, np.full(n, "a"))
    d = (1.0 - y) ** 2 - (0.5 - y) ** 2
    assert found.rows == n
    assert found.former == pytest.approx(np.mean((1.0 - y) ** 2))
    assert found.new == pytest.approx(np.mean((0.5 - y) ** 2))
    assert found.better == pytest.approx(d.mean())
    assert found.error == pytest.approx(math.sqrt(((d - d.mean()) ** 2).sum() / (n * (n - 1))))


def test_without_new_rows_there_is_nothing_to_compare():
    assert compare_models(Constant(0.0), Constant(0.0), pd.DataFrame({"x": []}), np.array([]), np.array([])) is None


@pytest.mark.parametrize(
    ("rows", "better", "error", "clearly", "worse"),
    [(50, 1.0, 0.4, True, False), (50, -1.0, 0.4, True, True), (50, -1.0, 0.6, False, False), (5, -1, 0, False, False)],
)
def test_a_change_is_clear_from_two_standard_errors_and_ten_rows_on(rows, better, error, clearly, worse):
    change = ModelChange("mean squared error", rows, 2.0, 2.0 - better, better, error)
    assert (change.clearly, change.is_worse) == (clearly, worse)
    assert ("better by 1" if better > 0 else "worse by 1") in change.sentence()
    assert ("may be chance" in change.sentence()) != clearly


def rows_of(rng, n, slope):
    X = pd.DataFrame({"x": rng.normal(size=n), "z": rng.normal(size=n), "site": np.repeat(["a", "b"], n // 2)})
    return X, slope * X["x"] + 0.1 * rng.normal(size=n)


@pytest.mark.thorough
@pytest.mark.parametrize("kind", ["regression", "classification"])
def test_learning_from_rows_of_another_relation_helps_and_from_wrong_targets_harms(kind):
    rng = np.random.default_rng(1)
    (X, y), (later, moved) = rows_of(rng, 120, 1.0), rows_of(rng, 120, -1.0)
    make = MultiTaskELMRegressor
    if kind == "classification":
        make = MultiTaskELMClassifier
        y, moved = np.where(y > 0, "high", "low"), np.where(moved > 0, "high", "low")
    y, moved = np.asarray(y), np.asarray(moved)

    def fitted():
        return make(task="site", n_hidden=5, random_state=0).fit(X, y)

    helped = compare_models(fitted(), fitted().partial_fit(later, moved), later, moved, later["site"])
    assert helped.clearly
    assert helped.better > 0
    # Rows of the old relation, after the model was led away from it by many others.
    led = fitted().partial_fit(pd.concat([later] * 3), np.concatenate([moved] * 3))
    (more, good) = rows_of(rng, 60, 1.0)
    good = np.asarray(np.where(good > 0, "high", "low") if kind == "classification" else good)
    harmed = compare_models(fitted(), led.partial_fit(more, good), more, good, more["site"])
    assert harmed.is_worse
    assert "worse by" in harmed.sentence()
