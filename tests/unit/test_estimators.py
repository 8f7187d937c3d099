"""The two estimators: scikit-learn's interface, and models that agree with the formulas."""

from __future__ import annotations

import networkx as nx
import numpy as np
import pandas as pd
import polars as pl
import pytest
import sklearn
from hypothesis import given
from hypothesis import strategies as st
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import Ridge
from sklearn.metrics import accuracy_score, r2_score
from sklearn.model_selection import GridSearchCV, KFold, StratifiedKFold, cross_val_score
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils import get_tags
from sklearn.utils.estimator_checks import parametrize_with_checks

import elmesh
from elmesh import (
    DGSP,
    DMTLELM,
    DNSP,
    FODMTLELM,
    GOMTL,
    MTFL,
    MTLELM,
    FedRep,
    LocalELM,
    MeshELM,
    MultiTaskELMClassifier,
    MultiTaskELMRegressor,
    Privacy,
    RunConfig,
)
from elmesh.data.features import HiddenLayer
from elmesh.math.objective import Margins
from elmesh.run import StopReason
from helpers.examples import examples
from helpers.marks import one_of
from helpers.problems import followed
from helpers.sklearn_checks import run_check

NAMES = {
    "mesh-elm": MeshELM,
    "local-elm": LocalELM,
    "mtl-elm": MTLELM,
    "dmtl-elm": DMTLELM,
    "fo-dmtl-elm": FODMTLELM,
    "mtfl": MTFL,
    "go-mtl": GOMTL,
    "dgsp": DGSP,
    "dnsp": DNSP,
}
#: The paper's problem, and its ridge regression: penalties that are the same for all features, centred in each task.
PAPER = {"mesh-elm": MeshELM(common=False, private=False), "local-elm": LocalELM(mu=1.0)}
#: A shared part beside the common and the private one.
BESIDE = MeshELM(rank=2, mu1=0.1, mu2=0.1)
CENTRED = {name: PAPER.get(name, solver()) for name, solver in NAMES.items()}
#: Solvers without a basis, with one of all tasks, and with one per task; the contract tests save and load all solvers.
BASES = ("local-elm", "mesh-elm", "dmtl-elm")
for_each_solver = pytest.mark.parametrize(
    "solver", [pytest.param(name, marks=() if name in BASES else pytest.mark.slow) for name in NAMES]
)
TASKS = ("harrogate", "knaresborough", "pontefract", "wetherby")
SIZES = (18, 25, 12, 30)
CLASSES = ("ash", "beech", "cedar", "dogwood")
# Tasks differ in their classes and in how many they have.
TASK_CLASSES = {TASKS[0]: (0, 1), TASKS[1]: (1, 2, 3), TASKS[2]: (0, 3), TASKS[3]: (0, 1, 2)}
COLUMNS = ["height", "width", "depth", "age"]


@pytest.fixture
def routing():
    with sklearn.config_context(enable_metadata_routing=True):
        yield


def rows(seed=0):
    rng = np.random.default_rng(seed)
    tasks = rng.permutation(np.repeat(TASKS, SIZES))
    return rng, rng.normal(size=(len(tasks), 4)), tasks


def classification(seed=0):
    """Inputs, classes by the largest of a few linear scores among the task's own classes, tasks; rows mixed."""
    rng, X, tasks = rows(seed)
    scores = X @ rng.normal(size=(4, 4)) + 0.2 * rng.normal(size=(len(X), 4))
    y = [CLASSES[max(TASK_CLASSES[t], key=lambda c, i=i: scores[i, c])] for i, t in enumerate(tasks)]
    return X, np.array(y), tasks


def regression(seed=0, n_outputs=None):
    rng, X, tasks = rows(seed)
    basis, slopes = rng.normal(size=(4, 2)), {t: rng.normal(size=(2, n_outputs or 1)) for t in TASKS}
    y = np.array([np.tanh(x @ basis) @ slopes[t] for x, t in zip(X, tasks, strict=True)])
    y += 0.1 * rng.normal(size=y.shape)
    return X, y if n_outputs else y[:, 0], tasks


KINDS = {"classification": (MultiTaskELMClassifier, classification), "regression": (MultiTaskELMRegressor, regression)}


def small(kind, **parameters):
    """An unfitted estimator of a few hidden units, and its data."""
    estimator, data = KINDS[kind]
    return estimator(**({"n_hidden": 25, "random_state": 0} | parameters)), *data()


def everything(model, X, tasks):
    """All outputs of a fitted model."""
    if isinstance(model, MultiTaskELMRegressor):
        return [model.predict(X, tasks)]
    return [model.predict(X, tasks), model.decision_function(X, tasks), model.predict_proba(X, tasks)]


def assert_same(one, other, within=0.0):
    """Two models' outputs are equal: numbers to a tolerance or, without one, to the bit; classes always."""
    for a, b in zip(one, other, strict=True):
        if within and a.dtype.kind == "f":
            np.testing.assert_allclose(a, b, rtol=0, atol=within)
        else:
            np.testing.assert_array_equal(a, b)


def by_hand(model, X):
    """The hidden layer as equation (35) writes it."""
    W, b = model.model_.layer.weights
    return 1 / (1 + np.exp(-(X @ W + b)))


def predicted_classes(task, *, common):
    """The classes that a task predicts: of its rows and, with a common part, those that 1 % of such tasks lack."""
    _, y, tasks = classification()
    own, found = y[tasks == task], list(TASK_CLASSES[task])
    by_chance = [c for c in range(4) if common and (1 - np.mean(y == CLASSES[c])) ** len(own) > 0.01]
    return sorted({*found, *by_chance})


def indicator(y, classes):
    return (np.asarray(y)[:, None] == np.asarray(classes)[None, :]).astype(float)


# --------------------------------------------------------------------------------------------------------- scikit-learn


@pytest.mark.thorough
@parametrize_with_checks([MultiTaskELMClassifier(n_hidden=5), MultiTaskELMRegressor(n_hidden=5)])
def test_the_checks_of_scikit_learn_pass(estimator, check):
    run_check(estimator, check)


@pytest.mark.slow
@parametrize_with_checks(
    [
        MultiTaskELMClassifier(),
        MultiTaskELMRegressor(),
        MultiTaskELMClassifier(n_hidden=None, solver=MeshELM(graph=None), random_state=0),
        MultiTaskELMClassifier(n_hidden=20, solver=MeshELM(message_bits="auto"), random_state=0),
        MultiTaskELMRegressor(n_hidden=20, activation="tanh", fit_intercept=False, solver="local-elm", random_state=0),
    ]
)
def test_the_checks_of_scikit_learn_pass_with_other_parameters(estimator, check):
    run_check(estimator, check)


def takes(model, X, y, tasks) -> bool:
    """Return whether an estimator learns from rows and predicts them."""
    try:
        clone(model).fit(X, y, tasks).predict(X, tasks)
    except ValueError:
        return False
    return True


@pytest.mark.parametrize(
    ("parameters", "kind"),
    one_of(
        2,
        [
            {},
            {"task": "site"},
            {"column_types": {"height": "number"}},
            {"solver": MeshELM(privacy=Privacy(input_range=(-3, 3), target_range=(-3, 3)))},
            {"task": "site", "solver": MeshELM(privacy=Privacy(input_range=(-3, 3), target_range=(-3, 3)))},
        ],
        KINDS,
    ),
)
def test_the_tags_state_which_inputs_are_taken(kind, parameters):
    as_table = bool(parameters)
    if kind == "classification" and "solver" in parameters:
        parameters = parameters | {"shared_classes": CLASSES}
    model, X, y, tasks = small(kind, n_hidden=5, **({"solver": "local-elm"} | parameters))
    frame = pd.DataFrame(X, columns=COLUMNS)
    gaps = frame.mask(np.arange(len(X))[:, None] + np.arange(4) == 5)
    words = frame.assign(age=np.where(X[:, 3] > 0, "old", "young"))
    tags = get_tags(model)
    assert takes(model, frame if as_table else X, y, tasks)
    assert tags.input_tags.allow_nan == takes(model, gaps if as_table else gaps.to_numpy(), y, tasks)
    assert tags.input_tags.string == takes(model, words if as_table else words.to_numpy(), y, tasks)
    assert tags.input_tags.categorical == takes(
        model, words.astype({"age": "category"}) if as_table else words.to_numpy(), y, tasks
    )
    assert not tags.input_tags.sparse
    assert tags.non_deterministic == ("solver" in parameters)


def test_predictions_of_a_table_have_the_shape_of_its_targets():
    model, X, y, tasks = small("regression")
    frame = pd.DataFrame(X, columns=COLUMNS)
    flat = model.fit(frame, y, tasks).predict(frame, tasks)
    column, std = model.fit(frame, y[:, None], tasks).predict(frame, tasks, return_std=True)
    assert flat.shape == (len(X),)
    assert column.shape == std.shape == (len(X), 1)
    np.testing.assert_allclose(column[:, 0], flat)


@pytest.mark.parametrize("kind", one_of(2, KINDS))
def test_after_a_fit_of_a_table_the_tags_are_those_of_tables(kind):
    model, X, y, tasks = small(kind, solver="local-elm")
    frame = pd.DataFrame(X, columns=COLUMNS).mask(X > 2)
    assert get_tags(model.fit(frame, y, tasks)).input_tags.allow_nan
    with pytest.warns(UserWarning, match="X does not have valid feature names"):
        by_position = model.predict(frame.to_numpy(), tasks)
    assert_same([model.predict(frame, tasks)], [by_position])
    assert not get_tags(model.fit(X, y, tasks)).input_tags.allow_nan


@pytest.mark.parametrize("kind", one_of(2, KINDS))
def test_a_clone_has_its_own_equal_parameters_and_is_not_fitted(kind):
    model, X, y, tasks = small(kind, solver=MeshELM(rank=2, graph=nx.path_graph(list(TASKS))))
    copy = clone(model.fit(X, y, tasks))
    assert not hasattr(copy, "model_")
    assert copy.solver is not model.solver
    assert copy.solver.rank == 2
    copy.set_params(solver__rank=1, solver__graph="star", n_hidden=10)
    assert (model.solver.rank, model.n_hidden) == (2, 25)
    assert nx.utils.graphs_equal(model.solver.graph, nx.path_graph(list(TASKS)))


@pytest.mark.parametrize("kind", one_of(2, KINDS))
def test_fitting_again_forgets_the_first_data(kind):
    model, X, y, tasks = small(kind, solver="local-elm")
    keep = (tasks == TASKS[0]) | (tasks == TASKS[1])
    fresh = clone(model).fit(X[keep][:, :2], y[keep], tasks[keep])
    model.fit(pd.DataFrame(X, columns=COLUMNS), y, tasks).fit(X[keep][:, :2], y[keep], tasks[keep])
    assert model.tasks_.tolist() == list(TASKS[:2])
    assert not hasattr(model, "feature_names_in_")
    assert_same(*(everything(m, X[keep][:, :2], tasks[keep]) for m in (model, fresh)))


# ----------------------------------------------------------------------------------------------------- metadata routing


@pytest.mark.usefixtures("routing")
@pytest.mark.parametrize("kind", KINDS)
def test_tasks_go_through_a_pipeline(kind):
    model, X, y, tasks = small(kind, solver="local-elm")
    pipeline = Pipeline([("scale", StandardScaler()), ("model", model)]).fit(X, y, tasks=tasks)
    scaled = (X - X.mean(axis=0)) / X.std(axis=0)
    alone = clone(model).fit(scaled, y, tasks)
    assert_same([pipeline.predict(X, tasks=tasks)], [alone.predict(scaled, tasks)], within=1e-6)
    assert pipeline.score(X, y, tasks=tasks) == pytest.approx(alone.score(scaled, y, tasks), abs=1e-9)
    if kind == "classification":
        for method in ("predict_proba", "decision_function"):
            through = getattr(pipeline, method)(X, tasks=tasks)
            np.testing.assert_allclose(through, getattr(alone, method)(scaled, tasks), atol=1e-6)


def test_tasks_go_through_a_pipeline_without_routing_when_the_step_is_named():
    model, X, y, tasks = small("classification")
    pipeline = Pipeline([("scale", StandardScaler()), ("model", model)]).fit(X, y, model__tasks=tasks)
    assert accuracy_score(y, pipeline.predict(X, tasks=tasks)) > 0.7


@pytest.mark.thorough
@pytest.mark.usefixtures("routing")
@pytest.mark.parametrize(("kind", "in_pipeline"), one_of(4, KINDS, [True, False]))
def test_a_grid_search_over_the_solvers_rank_has_the_scores_of_a_plain_loop(kind, in_pipeline):
    model, X, y, tasks = small(kind, solver=MeshELM(common=False, private=False, graph="star"))
    searched, name = model, "solver__rank"
    if in_pipeline:
        searched, name = Pipeline([("scale", StandardScaler()), ("clf", model)]), "clf__solver__rank"
    splits = list(KFold(2, shuffle=True, random_state=1).split(X))
    search = GridSearchCV(searched, {name: [1, 2]}, cv=splits, error_score="raise").fit(X, y, tasks=tasks)

    expected = []
    for rank in (1, 2):
        scores = []
        for train, test in splits:
            scaler = StandardScaler().fit(X[train]) if in_pipeline else None
            X_train, X_test = (scaler.transform(X[k]) if scaler else X[k] for k in (train, test))
            fold = clone(model).set_params(solver__rank=rank).fit(X_train, y[train], tasks[train])
            assert fold.U_.shape[-1] == rank
            scores.append(fold.score(X_test, y[test], tasks[test]))
        expected.append(np.mean(scores))
    np.testing.assert_allclose(search.cv_results_["mean_test_score"], expected)
    assert search.best_params_ == {name: [1, 2][int(np.argmax(expected))]}
    assert search.score(X, y, tasks=tasks) == search.best_estimator_.score(X, y, tasks=tasks)
    assert len(search.best_estimator_.predict(X, tasks=tasks)) == len(X)


@pytest.mark.usefixtures("routing")
@pytest.mark.parametrize("kind", one_of(2, KINDS))
def test_cross_validation_passes_its_tasks_to_every_fold(kind):
    model, X, y, tasks = small(kind, solver="local-elm")
    splits = list(StratifiedKFold(3).split(X, tasks))
    scores = cross_val_score(model, X, y, cv=splits, params={"tasks": tasks})
    expected = [clone(model).fit(X[a], y[a], tasks[a]).score(X[b], y[b], tasks[b]) for a, b in splits]
    np.testing.assert_allclose(scores, expected)


@pytest.mark.usefixtures("routing")
@pytest.mark.parametrize("kind", one_of(2, KINDS))
def test_a_pipeline_that_outputs_pandas_passes_its_column_names_to_the_model(kind):
    model, X, y, tasks = small(kind, solver="local-elm")
    pipeline = Pipeline([("scale", StandardScaler()), ("model", model)]).set_output(transform="pandas")
    frame = pd.DataFrame(X, columns=COLUMNS)
    pipeline.fit(frame, y, tasks=tasks)
    assert pipeline["model"].feature_names_in_.tolist() == COLUMNS
    plain = Pipeline([("scale", StandardScaler()), ("model", clone(model))]).fit(X, y, tasks=tasks)
    np.testing.assert_allclose(pipeline.score(frame, y, tasks=tasks), plain.score(X, y, tasks=tasks))


def test_score_is_accuracy_and_r_squared_with_weights():
    weight = np.random.default_rng(0).uniform(size=sum(SIZES))
    for kind, metric in (("classification", accuracy_score), ("regression", r2_score)):
        model, X, y, tasks = small(kind)
        model.fit(X, y, tasks)
        assert model.score(X, y, tasks) == pytest.approx(metric(y, model.predict(X, tasks)))
        expected = metric(y, model.predict(X, tasks), sample_weight=weight)
        assert model.score(X, y, tasks, sample_weight=weight) == pytest.approx(expected)


# ------------------------------------------------------------------------------------------------ what goes in, and out

FRAMES = {
    "pandas": lambda X, columns: pd.DataFrame(X, columns=columns),
    "polars": lambda X, columns: pl.DataFrame(X, schema=columns),
}
TASK_COLUMNS = {
    "list": list,
    "array": np.asarray,
    "object array": lambda t: np.asarray(t, dtype=object),
    "pandas": lambda t: pd.Series(t, index=np.arange(len(t))[::-1]),  # its index is ignored
    "pandas categories": lambda t: pd.Series(t, dtype="category"),
    "polars": lambda t: pl.Series(list(t)),
}


@pytest.mark.parametrize(("frame", "kind"), one_of(2, FRAMES, KINDS))
def test_frames_give_what_arrays_give_and_their_columns_are_checked(frame, kind):
    model, X, y, tasks = small(kind, solver="local-elm")
    # Columns of a table are standardised.
    X = (X - X.mean(axis=0)) / X.std(axis=0)
    plain = clone(model).fit(X, y, tasks)
    given_frame = FRAMES[frame](X, COLUMNS)
    column = pd.Series(y) if frame == "pandas" else pl.Series(y)
    model.fit(given_frame, column, tasks)
    assert model.feature_names_in_.tolist() == COLUMNS
    assert_same(everything(model, given_frame, tasks), everything(plain, X, tasks), within=1e-9)
    with pytest.raises(ValueError, match="Feature names must be in the same order"):
        model.predict(given_frame[COLUMNS[::-1]], tasks)
    with pytest.raises(ValueError, match=r"(?s)Feature names unseen at fit time:.*girth"):
        model.predict(FRAMES[frame](X, ["girth", *COLUMNS[1:]]), tasks)


@pytest.mark.thorough
@pytest.mark.parametrize(("form", "labels"), one_of(2, TASK_COLUMNS, ["text", "whole numbers"]))
def test_tasks_may_come_in_any_kind_of_column(form, labels):
    model, X, y, tasks = small("classification", solver="local-elm")
    if labels == "whole numbers":
        tasks = np.array([TASKS.index(t) * 10 for t in tasks])
    reference = clone(model).fit(X, y, tasks)
    model.fit(X, y, TASK_COLUMNS[form](tasks))
    assert model.tasks_.tolist() == sorted(set(tasks.tolist()))
    assert {type(t) for t in model.A_} == {str if labels == "text" else int}
    assert_same(everything(model, X, TASK_COLUMNS[form](tasks)), everything(reference, X, tasks))


@pytest.mark.thorough
@for_each_solver
def test_predictions_have_the_shape_that_the_targets_had(solver):
    model = MultiTaskELMRegressor(n_hidden=15, solver=solver, random_state=0)
    X, one, tasks = regression()
    _, several, _ = regression(n_outputs=3)
    assert model.fit(X, one, tasks).predict(X, tasks).shape == one.shape
    assert model.fit(X, one[:, None], tasks).predict(X, tasks).shape == (len(X), 1)
    assert model.fit(X, several, tasks).predict(X[:5], tasks[:5]).shape == (5, 3)
    assert model.score(X, several, tasks) > 0.3


def test_outputs_of_a_task_learned_alone_do_not_depend_on_each_other():
    X, Y, tasks = regression(n_outputs=3)
    model = MultiTaskELMRegressor(n_hidden=15, solver=LocalELM(mu=1.0), random_state=0)
    together = model.fit(X, Y, tasks).predict(X, tasks)
    apart = np.stack([clone(model).fit(X, y, tasks).predict(X, tasks) for y in Y.T], axis=1)
    np.testing.assert_allclose(together, apart, atol=1e-10)


@pytest.mark.thorough
@pytest.mark.parametrize(("kind", "name"), one_of(4, KINDS, NAMES))
def test_a_solver_by_name_is_the_solver_with_its_defaults(name, kind):
    model, X, y, tasks = small(kind, solver=name)
    other = clone(model).set_params(solver=NAMES[name]()).fit(X, y, tasks)
    assert_same(everything(model.fit(X, y, tasks), X, tasks), everything(other, X, tasks))
    assert model.score(X, y, tasks) > (0.7 if kind == "classification" else 0.3)


@pytest.mark.parametrize("kind", KINDS)
def test_without_tasks_all_rows_are_one(kind):
    model, X, y, _ = small(kind)
    alone = model.fit(X, y)
    named = clone(model).fit(X, y, ["all"] * len(X))
    assert alone.tasks_.tolist() == ["all"]
    assert_same(everything(alone, X, None), everything(named, X, ["all"] * len(X)))


# ------------------------------------------------------------------------------------------------------------- classes


@pytest.mark.parametrize("solver", ["mesh-elm", "local-elm"])
def test_classes_are_those_of_each_task_and_of_all_together(solver):
    model, X, y, tasks = small("classification", solver=solver)
    model.fit(X, y, tasks)
    assert model.classes_.tolist() == list(CLASSES)
    assert {t: c.tolist() for t, c in model.task_classes_.items()} == {
        t: [CLASSES[c] for c in predicted_classes(t, common=solver == "mesh-elm")] for t in TASKS
    }


def test_a_task_predicts_a_common_class_that_its_few_rows_lack_and_not_one_that_many_rows_lack():
    rng = np.random.default_rng(0)
    sizes = {"large": 60, "small": 5, "whole": 60}
    tasks = np.repeat(list(sizes), list(sizes.values()))
    y = rng.integers(0, 3, size=len(tasks))
    y[tasks != "whole"] %= 2
    X = rng.normal(size=(len(y), 3)) + 3 * np.eye(3)[y]
    model = MultiTaskELMClassifier(n_hidden=10, random_state=0).fit(X, y, tasks=tasks)
    assert {t: c.tolist() for t, c in model.task_classes_.items()} == {
        "large": [0, 1], "small": [0, 1, 2], "whole": [0, 1, 2],
    }  # fmt: skip
    new = 3 * np.eye(3)[[2]]
    assert model.predict(new, tasks=["small"]) == [2]
    assert model.predict_proba(new, tasks=["large"])[0, 2] == 0.0
    # Rows that come later change what a task lacks.
    more = rng.integers(0, 2, size=60)
    model.partial_fit(rng.normal(size=(60, 3)) + 3 * np.eye(3)[more], more, tasks=["small"] * 60)
    assert model.task_classes_["small"].tolist() == [0, 1]


@pytest.mark.thorough
@for_each_solver
@examples(15)
@given(seed=st.integers(0, 2**32 - 1), scale=st.sampled_from([0.1, 1.0, 100.0]))
def test_scores_classes_and_probabilities_agree(fitted, solver, seed, scale):
    model = fitted("classification", solver)
    rng = np.random.default_rng(seed)
    X, tasks = scale * rng.normal(size=(12, 4)), rng.choice(TASKS, size=12)
    scores, shares = model.decision_function(X, tasks), model.predict_proba(X, tasks)
    classes = {t: predicted_classes(t, common=solver == "mesh-elm") for t in TASKS}
    own = np.array([[c in classes[t] for c in range(4)] for t in tasks])
    assert scores.shape == shares.shape == (12, 4)
    # Classes that a task does not have are impossible ...
    assert (scores[~own] == -np.inf).all()
    assert (shares[~own] == 0.0).all()
    assert np.isfinite(scores[own]).all()
    # ... and among its own, the best score is the prediction and the likeliest.
    predicted = model.predict(X, tasks)
    np.testing.assert_array_equal(predicted, np.array(CLASSES)[np.argmax(scores, axis=1)])
    assert all(CLASSES.index(y) in classes[t] for y, t in zip(predicted, tasks, strict=True))
    np.testing.assert_allclose(shares.sum(axis=1), 1.0, rtol=1e-12)
    assert (shares[own] >= 0).all()
    for row_scores, row_shares in zip(scores, shares, strict=True):
        assert (np.diff(row_shares[np.argsort(row_scores, kind="stable")]) >= -1e-15).all()


@pytest.fixture(scope="module")
def fitted():
    """Fit each kind and solver once for tests that do not change it."""
    models = {}

    def get(kind, solver):
        if (kind, solver) not in models:
            model, X, y, tasks = small(kind, solver=PAPER["mesh-elm"] if solver == "the paper's mesh-elm" else solver)
            models[kind, solver] = model.fit(X, y, tasks)
        return models[kind, solver]

    return get


@pytest.mark.parametrize("labels", one_of(3, [("no", "yes"), (0, 1), (-1.0, 1.0), (False, True)]))
def test_with_two_classes_in_all_the_decision_is_one_column(labels):
    X, _, tasks = classification()
    y = np.array(labels)[(X[:, 0] + X[:, 1] > 0).astype(int)]
    model = MultiTaskELMClassifier(n_hidden=25, random_state=0).fit(X, y, tasks)
    decision, shares = model.decision_function(X, tasks), model.predict_proba(X, tasks)
    assert decision.shape == (len(X),)
    assert shares.shape == (len(X), 2)
    np.testing.assert_array_equal(model.predict(X, tasks), np.array(labels)[(decision > 0).astype(int)])
    assert model.predict(X, tasks).dtype == y.dtype
    np.testing.assert_array_equal(shares[:, 1] > 0.5, decision > 0)
    assert model.score(X, y, tasks) > 0.9


def test_a_task_with_two_classes_among_more_still_has_a_column_per_class():
    X, y, tasks = classification()
    keep = (tasks == TASKS[0]) | (tasks == TASKS[1])
    model = MultiTaskELMClassifier(n_hidden=25, solver="local-elm", random_state=0)
    model.fit(X[keep], y[keep], tasks[keep])
    assert model.decision_function(X[keep], tasks[keep]).shape == (keep.sum(), 4)
    assert model.for_task(TASKS[0]).decision_function(X[:3]).shape == (3,)


# ------------------------------------------------------------------------------------------------------------ formulas


@pytest.mark.parametrize("fit_intercept", [True, False])
@pytest.mark.parametrize("kind", KINDS)
def test_local_elm_is_the_ridge_of_scikit_learn_on_each_tasks_hidden_features(kind, fit_intercept):
    model, X, y, tasks = small(kind, solver=LocalELM(mu=0.5), fit_intercept=fit_intercept)
    model.fit(X, y, tasks)
    H = by_hand(model, X)
    for t in TASKS:
        mine = tasks == t
        classes = [CLASSES[c] for c in TASK_CLASSES[t]]
        targets = indicator(y[mine], classes) if kind == "classification" else y[mine]
        expected = Ridge(alpha=0.5, fit_intercept=fit_intercept).fit(H[mine], targets).predict(H)
        if kind == "regression":
            np.testing.assert_allclose(model.predict(X, [t] * len(X)), expected, atol=1e-8)
        else:
            scores = model.decision_function(X, [t] * len(X))[:, list(TASK_CLASSES[t])]
            np.testing.assert_allclose(scores, expected, atol=1e-8)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("shared", "fit_intercept"),
    one_of(
        4,
        [
            (MeshELM, {"common": False, "private": False, "graph": None}, 1e-7),
            (MTLELM, {}, 1e-7),
            (FODMTLELM, {}, 1e-4),
            (MeshELM, {"common": False, "private": False, "message_bits": 8}, 1e-5),
            (MeshELM, {"common": False, "private": False}, 1e-7),
            (DMTLELM, {}, 1e-7),
        ],
        [True, False],
    ),
)
def test_shared_models_are_stationary_points_of_the_papers_objective(shared, fit_intercept):
    """Equation (6) by hand: raw without an intercept; with one, centred per task and on a common scale."""
    solver, own, tol = shared
    X, Y, tasks = regression(n_outputs=2)
    chosen = solver(rank=3, mu1=0.7, mu2=0.4, tol=tol, max_iter=100_000, **own)
    model = MultiTaskELMRegressor(n_hidden=8, solver=chosen, fit_intercept=fit_intercept, random_state=0)
    model.fit(X, Y, tasks)
    U = model.U_ if model.U_.ndim == 2 else model.U_.mean(axis=0)
    within = sum(np.sum((Y[tasks == t] - Y[tasks == t].mean(axis=0)) ** 2, axis=0) for t in TASKS)
    scale = np.sqrt(within / len(Y)) if fit_intercept else np.ones(2)
    np.testing.assert_allclose(model.target_scale_, scale)
    H, slope_in_U, pull = by_hand(model, X), 0.7 * U, 0.0
    for t in TASKS:
        H_t, T_t = H[tasks == t], Y[tasks == t] / scale
        h_mean, t_mean = (H_t.mean(axis=0), T_t.mean(axis=0)) if fit_intercept else (0.0, 0.0)
        A = model.A_[t] / scale
        residual = (H_t - h_mean) @ U @ A - (T_t - t_mean)
        slope_in_U = slope_in_U + (H_t - h_mean).T @ residual @ A.T
        pull += np.linalg.norm((H_t - h_mean).T @ T_t @ A.T)
        slope_in_A = U.T @ (H_t - h_mean).T @ residual + 0.4 * A
        assert np.linalg.norm(slope_in_A) < 10 * tol * np.linalg.norm(U.T @ (H_t - h_mean).T @ T_t)
        expected = ((H - h_mean) @ U @ A + t_mean) * scale
        np.testing.assert_allclose(model.predict(X, [t] * len(X)), expected, atol=100 * tol * np.abs(expected).max())
    assert np.linalg.norm(slope_in_U) < 10 * tol * pull


def shifted_by_fifty_in_one_task(model):
    """Predictions before and after one task's targets are moved, and by how much they were."""
    X, y, tasks = regression()
    by = np.where(tasks == TASKS[1], 50.0, 0.0)
    before, after = (clone(model).fit(X, target, tasks).predict(X, tasks) for target in (y, y + by))
    return before, after, by


@pytest.mark.thorough
@for_each_solver
def test_with_an_intercept_shifted_targets_of_a_task_shift_its_predictions_and_no_others(solver):
    model = MultiTaskELMRegressor(n_hidden=25, solver=CENTRED[solver], random_state=0)
    before, after, by = shifted_by_fifty_in_one_task(model)
    np.testing.assert_allclose(after, before + by, atol=1e-8)


@pytest.mark.parametrize("solver", PAPER)
def test_a_random_intercept_follows_a_shift_of_a_tasks_targets(solver):
    """By default an intercept has a prior; fifty standard deviations overcome it to within a third of one."""
    before, after, by = shifted_by_fifty_in_one_task(MultiTaskELMRegressor(25, solver=solver, random_state=0))
    np.testing.assert_allclose(after, before + by, atol=0.3)


@pytest.mark.thorough
@pytest.mark.parametrize(("value", "solver"), one_of(3, [3.0, 0.1, 0.0], NAMES))
def test_targets_that_never_change_are_predicted_without_a_warning(solver, value):
    X, y, tasks = regression()
    model = MultiTaskELMRegressor(n_hidden=25, solver=solver, random_state=0).fit(X, np.full_like(y, value), tasks)
    np.testing.assert_allclose(model.predict(X, tasks), value, atol=1e-12)


def test_without_an_intercept_the_penalty_reduces_a_shift():
    model = MultiTaskELMRegressor(n_hidden=25, solver="local-elm", fit_intercept=False, random_state=0)
    before, after, by = shifted_by_fifty_in_one_task(model)
    assert np.abs(after - before - by).max() > 0.5


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("kind", "solver_and_tolerance"),
    one_of(
        4,
        KINDS,
        [
            (MeshELM(), 1e-6),
            (LocalELM(mu=1.0), 1e-10),
            (MeshELM(rank=2, mu1=0.1, mu2=0.1, tol=1e-7), 1e-4),
            (LocalELM(), 1e-8),
            # Automatic penalties depend on a random probe and so on the order of tasks.
            (MeshELM(common=False, private=False, rank=2, mu1=1.0, mu2=1.0, graph=None, tol=1e-9), 1e-7),
            (MTLELM(rank=2, mu1=1.0, mu2=1.0, tol=1e-9, max_iter=20_000), 1e-7),
            (MeshELM(common=False, private=False, rank=2, mu1=1.0, mu2=1.0, graph="complete", tol=1e-7), 1e-4),
            (DMTLELM(2, 1.0, 1.0, graph="complete", tol=1e-7, max_iter=50_000), 1e-4),
            (MTFL(), 1e-8),
            (GOMTL(rank=2, mu2=0.1, tol=1e-6, max_iter=20_000), 1e-4),
            (DGSP(rank=2), 1e-8),
            (DNSP(rank=2), 1e-8),
        ],
    ),
)
def test_tasks_under_other_names_and_rows_in_another_order_give_the_same_predictions(kind, solver_and_tolerance):
    solver, within = solver_and_tolerance
    model, X, y, tasks = small(kind, solver=solver)
    order = np.random.default_rng(1).permutation(len(X))
    # The other names sort the other way round, so that agents have other numbers.
    renamed = np.array([f"{9 - TASKS.index(t)} {t}" for t in tasks])
    again = clone(model).fit(X[order], y[order], renamed[order])
    assert_same(everything(model.fit(X, y, tasks), X, tasks), everything(again, X, renamed), within)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("hidden", "together"),
    [
        (None, MeshELM()),
        pytest.param(None, PAPER["mesh-elm"], marks=pytest.mark.slow),
        pytest.param(60, PAPER["mesh-elm"], marks=pytest.mark.slow),
    ],
)
def test_learned_together_small_tasks_predict_new_rows_better_than_alone(hidden, together):
    """Over draws of a planted basis, against Local ELM with whichever penalty does best on each draw's new rows."""
    gains = []
    m, n, n_new, width = 10, 12, 150, 30 if hidden is None else 6
    for seed in range(10):
        rng = np.random.default_rng(seed)
        layer = HiddenLayer(width, hidden, seed=seed)
        basis = rng.normal(size=(layer.width, 2))
        X = rng.normal(size=(m, n + n_new, width))
        signal = np.stack([layer(x) @ basis @ rng.normal(size=2) for x in X])
        signal = (signal - signal.mean(axis=1, keepdims=True)) / signal.std(axis=1, keepdims=True)
        y = signal + 0.3 * rng.normal(size=signal.shape)

        def error(solver, X=X, y=y, seed=seed):
            model = MultiTaskELMRegressor(n_hidden=hidden, solver=solver, random_state=seed)
            model.fit(X[:, :n].reshape(-1, width), y[:, :n].ravel(), np.repeat(np.arange(m), n))
            predicted = model.predict(X[:, n:].reshape(-1, width), np.repeat(np.arange(m), n_new))
            return np.mean((predicted - y[:, n:].ravel()) ** 2)

        alone = min(error(LocalELM(mu=mu)) for mu in (0.01, 0.1, 1.0, 10.0))
        gains.append(1 - error(together) / alone)
    assert np.mean(gains) - 4 * np.std(gains) / np.sqrt(len(gains)) > 0.1


# --------------------------------------------------------------------------------------------------------------- seeds


@pytest.mark.parametrize(("kind", "solver"), one_of(2, KINDS, BASES))
def test_the_same_whole_number_gives_identical_fits(kind, solver):
    model, X, y, tasks = small(kind, solver=solver, random_state=7)
    one, other = clone(model).fit(X, y, tasks), clone(model).set_params(random_state=np.int64(7)).fit(X, y, tasks)
    assert one.seed_ == other.seed_ == 7
    assert_same(everything(one, X, tasks), everything(other, X, tasks))
    pd.testing.assert_frame_equal(one.history_, other.history_)


def test_a_random_state_draws_a_seed_and_none_draws_another_each_time():
    model, X, y, tasks = small("regression", random_state=np.random.RandomState(3), solver="local-elm")
    again = clone(model).set_params(random_state=np.random.RandomState(3))
    assert model.fit(X, y, tasks).seed_ == again.fit(X, y, tasks).seed_ != model.fit(X, y, tasks).seed_
    model.set_params(random_state=None)
    assert len({model.fit(X, y, tasks).seed_ for _ in range(5)}) > 1


# ------------------------------------------------------------------------------------------------------ save and load


@pytest.mark.thorough
@pytest.mark.parametrize(("framed", "kind", "solver"), one_of(3, [False, True], KINDS, BASES))
def test_a_loaded_model_predicts_identically_to_the_bit(kind, solver, framed, tmp_path):
    model, X, y, tasks = small(kind, solver=solver)
    X = pd.DataFrame(X, columns=COLUMNS) if framed else X
    model.fit(X, y, tasks).save(tmp_path / "model")
    loaded = elmesh.load(tmp_path / "model")
    assert type(loaded) is type(model)
    assert loaded.get_params(deep=False) == model.get_params(deep=False)
    assert loaded.tasks_.tolist() == model.tasks_.tolist()
    assert hasattr(loaded, "feature_names_in_") == framed
    assert_same(everything(model, X, tasks), everything(loaded, X, tasks))
    assert loaded.predict(X, tasks).dtype == model.predict(X, tasks).dtype
    for t in TASKS:
        np.testing.assert_array_equal(loaded.A_[t], model.A_[t])
    np.testing.assert_array_equal(loaded.U_, model.U_)
    assert loaded.score(X, y, tasks) == model.score(X, y, tasks)


def test_several_outputs_and_whole_number_classes_and_tasks_survive_saving(tmp_path):
    X, Y, tasks = regression(n_outputs=3)
    numbers = np.array([TASKS.index(t) for t in tasks])
    model = MultiTaskELMRegressor(n_hidden=15, random_state=0).fit(X, Y, numbers)
    model.save(tmp_path / "regressor")
    np.testing.assert_array_equal(elmesh.load(tmp_path / "regressor").predict(X, numbers), model.predict(X, numbers))
    classes = (X[:, 0] > 0).astype(np.int16) + (X[:, 1] > 0)
    model = MultiTaskELMClassifier(n_hidden=None, random_state=0).fit(X, classes, numbers)
    model.save(tmp_path / "classifier")
    loaded = elmesh.load(tmp_path / "classifier")
    assert loaded.predict(X, numbers).dtype == classes.dtype
    np.testing.assert_array_equal(loaded.predict_proba(X, numbers), model.predict_proba(X, numbers))


def test_extra_content_is_saved_with_a_model_and_saved_again(tmp_path):
    model, X, y, tasks = small("regression", solver="local-elm")
    extra = {"columns": {"site": "task"}, "levels": ["a", "b"], "n": 3}
    model.fit(X, y, tasks).save(tmp_path / "one", extra=extra)
    loaded = elmesh.load(tmp_path / "one")
    assert loaded.extra_ == extra
    loaded.save(tmp_path / "two")
    assert elmesh.load(tmp_path / "two").extra_ == extra
    loaded.save(tmp_path / "two", overwrite=True, extra={})
    assert elmesh.load(tmp_path / "two").extra_ == {}


@pytest.mark.parametrize(
    "graph", one_of(2, [nx.star_graph(3), nx.cycle_graph(list(TASKS)), nx.MultiGraph(nx.path_graph(list(TASKS)))])
)
def test_a_graph_of_the_users_own_is_used_and_saved_with_the_model(graph, tmp_path):
    numbered = set(graph) == {0, 1, 2, 3}
    expected = nx.Graph(nx.relabel_nodes(graph, dict(enumerate(TASKS))) if numbered else graph)
    model, X, y, tasks = small("regression", solver=MeshELM(graph=graph))
    model.fit(X, y, tasks).save(tmp_path / "model")
    assert nx.utils.graphs_equal(nx.Graph(model.graph_.edges), nx.Graph(expected.edges))
    loaded = elmesh.load(tmp_path / "model")
    assert set(loaded.solver.graph) == set(graph)
    assert nx.utils.graphs_equal(nx.Graph(loaded.solver.graph.edges), nx.Graph(graph.edges()))
    # Fitted again from what was saved, it is the same model.
    np.testing.assert_array_equal(clone(loaded).fit(X, y, tasks).predict(X, tasks), model.predict(X, tasks))


def test_parameters_per_agent_are_saved_with_the_model(tmp_path):
    solver = FODMTLELM(
        rank=2, graph="path", rho=0.5, tau=np.array([60.0, 61.0, 62.0, 63.0]), zeta=(1, 2, 3, 4), tol=0.1
    )
    model, X, y, tasks = small("regression", solver=solver, random_state=np.int32(5), n_hidden=np.int64(9))
    model.fit(X, y, tasks).save(tmp_path / "model")
    loaded = elmesh.load(tmp_path / "model")
    assert type(loaded.solver) is FODMTLELM
    assert (list(loaded.solver.tau), list(loaded.solver.zeta)) == ([60.0, 61.0, 62.0, 63.0], [1, 2, 3, 4])
    assert (loaded.solver.rho, loaded.random_state, loaded.n_hidden) == (0.5, 5, 9)
    np.testing.assert_array_equal(clone(loaded).fit(X, y, tasks).predict(X, tasks), model.predict(X, tasks))


def test_a_random_state_that_is_no_number_is_saved_as_the_seed_drawn_from_it(tmp_path):
    model, X, y, tasks = small("regression", solver="local-elm", random_state=np.random.RandomState(0))
    model.fit(X, y, tasks).save(tmp_path / "model")
    loaded = elmesh.load(tmp_path / "model")
    assert (loaded.random_state, loaded.seed_) == (None, model.seed_)
    np.testing.assert_array_equal(loaded.predict(X, tasks), model.predict(X, tasks))


# ------------------------------------------------------------------------------------------------------ one task alone


@for_each_solver
@pytest.mark.parametrize("kind", KINDS)
def test_a_task_alone_predicts_exactly_as_in_the_whole_model(fitted, kind, solver):
    model = fitted(kind, solver)
    X = np.random.default_rng(5).normal(size=(20, 4))
    for t in TASKS:
        alone = model.for_task(t)
        assert alone.tasks_.tolist() == [t]
        whole = [t] * len(X)
        np.testing.assert_array_equal(alone.predict(X), model.predict(X, whole))
        np.testing.assert_array_equal(alone.predict(X, whole), model.predict(X, whole))
        if kind == "classification":
            own = np.flatnonzero(np.isin(model.classes_, alone.classes_))
            assert alone.classes_.tolist() == [CLASSES[c] for c in predicted_classes(t, common=solver == "mesh-elm")]
            np.testing.assert_array_equal(alone.predict_proba(X), model.predict_proba(X, whole)[:, own])


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("kind", "solver"),
    one_of(
        3,
        KINDS,
        [
            LocalELM(),
            *PAPER.values(),
            MeshELM(rank=2, graph=None),
            MTLELM(rank=2),
            MeshELM(rank=2, mu1=0.1, mu2=0.1),
            MeshELM(rank=2, graph=nx.cycle_graph(list(TASKS))),
            FODMTLELM(rank=2),
            DMTLELM(rank=2, graph=nx.cycle_graph(list(TASKS)), zeta=[0.0625, 0.125, 0.25, 0.5]),
            MTFL(),
            GOMTL(rank=2, mu2=0.1),
            DGSP(rank=2),
            DNSP(rank=2),
        ],
    ),
)
def test_the_folder_of_a_task_alone_holds_nothing_of_the_others(kind, solver, tmp_path):
    model, X, y, tasks = small(kind, solver=solver)
    model.fit(X, y, tasks).save(tmp_path / "all", extra={"sites": list(TASKS)})
    whole = elmesh.load(tmp_path / "all")
    for t in TASKS:
        whole.for_task(t).save(tmp_path / t)
        files = [file.read_bytes() for file in (tmp_path / t).iterdir()]
        assert len(files) == 3
        found = b"".join(files)
        assert t.encode() in found
        others = [other for other in TASKS if other != t]
        secrets = [other.encode() for other in others] + [b"0.0625"]
        heads = [whole.model_.heads[other] for other in others]
        own = [(head.A, head.X, head.shared) for head in heads]
        if not solver.grouped_features:
            # Features in groups are about means that are common to all.
            own += [(head.h_mean, head.t_mean) for head in heads]
        secrets += [array.tobytes() for arrays in own for array in arrays if array is not None]
        if solver.per_agent_basis:
            secrets += [head.U.tobytes() for head in heads]
        if kind == "classification":
            names = predicted_classes(t, common=solver.grouped_features and solver.has_common_part)
            secrets += [c.encode() for i, c in enumerate(CLASSES) if i not in names]
        assert not [secret for secret in secrets if secret in found]
        # The search is valid: in the folder of all tasks it does find the arrays.
        everywhere = b"".join(file.read_bytes() for file in (tmp_path / "all").iterdir() if file.is_file())
        assert all(secret in everywhere for secret in secrets if secret != b"0.0625")
        assert elmesh.load(tmp_path / t).extra_ == {}
        np.testing.assert_array_equal(elmesh.load(tmp_path / t).predict(X), model.predict(X, [t] * len(X)))


def test_a_task_alone_keeps_the_solver_without_its_neighbours():
    graph = nx.cycle_graph(list(TASKS))
    solver = DMTLELM(2, 0.5, 0.25, graph=graph, rho=1.0, tau=[3.0, 4.0, 5.0, 6.0], zeta=(1, 2, 3, 4))
    model, X, y, tasks = small("regression", solver=solver)
    alone = model.fit(X, y, tasks).for_task(TASKS[0]).solver
    assert (alone.rank, alone.mu1, alone.mu2, alone.rho) == (2, 0.5, 0.25, 1.0)
    assert (alone.graph, alone.tau, alone.zeta) == ("ring", "auto", "auto")
    assert (model.solver.graph, model.solver.tau) == (graph, [3.0, 4.0, 5.0, 6.0])


@pytest.mark.parametrize(
    "solver",
    [
        MeshELM(rank=2, mu1=0.5, mu2=0.7, message_bits=4, max_bytes=1e9, max_iter=70, tol=0.02, certify=False),
        FedRep(rank=2, mu=0.5, step_scale=0.25, local_steps=2, init="random", max_iter=123, tol=0.3),
        GOMTL(rank=2, mu1=0.3, mu2=0.2, init="random", max_iter=300, tol=0.02),
    ],
)
def test_a_task_alone_keeps_every_parameter_that_names_no_other_task(solver):
    model, X, y, tasks = small("regression", solver=solver)
    alone = model.fit(X, y, tasks).for_task(TASKS[0])
    assert alone.solver.get_params() == solver.get_params()
    # A task's own model is for that task alone, so that rows of another one are an error.
    expected = model.get_params(deep=False) | {"solver": None, "unknown_site": "error"}
    assert alone.get_params(deep=False) | {"solver": None} == expected


# -------------------------------------------------------------------------------------------------- attributes of a fit


@pytest.mark.parametrize("kind", KINDS)
def test_bases_and_coefficients_have_their_documented_shapes(fitted, kind):
    outputs = {t: len(TASK_CLASSES[t]) if kind == "classification" else 1 for t in TASKS}
    for solver, solver_class in NAMES.items():
        model = fitted(kind, solver)
        assert list(model.A_) == list(TASKS) == model.tasks_.tolist()
        if solver == "local-elm":
            assert model.U_ is None
            # The constant, four inputs and the hidden units.
            assert {t: A.shape for t, A in model.A_.items()} == {t: (30, d) for t, d in outputs.items()}
            continue
        rank = model.U_.shape[-1]
        if solver == "mesh-elm":
            assert model.certificate_.rank_sufficient
            assert rank == model.certificate_.suggested_rank
            d = len(CLASSES) if kind == "classification" else 1
            assert (model.U_.shape, model.W_.shape) == ((30, rank), (30, d))
            assert {t: A.shape for t, A in model.A_.items()} == dict.fromkeys(TASKS, (rank, d))
            assert {t: V.shape for t, V in model.V_.items()} == dict.fromkeys(TASKS, (30, d))
            assert {t: noise.shape for t, noise in model.noise_.items()} == dict.fromkeys(TASKS, (d,))
            hidden = ["hidden, weight scale 1", "hidden, weight scale 4"]
            assert model.variances_.index.tolist() == ["constant", "inputs", *hidden]
            assert (model.variances_.to_numpy() > 0).all()
            continue
        assert rank == (25 if solver == "mtfl" else min(2 * max(outputs.values()), 25))
        assert model.U_.shape == ((4, 25, rank) if solver_class.per_agent_basis else (25, rank))
        assert {t: A.shape for t, A in model.A_.items()} == {t: (rank, d) for t, d in outputs.items()}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("solver", ["the paper's mesh-elm", "mtl-elm", "dmtl-elm", "fo-dmtl-elm"])
def test_the_last_row_of_the_history_is_the_objective_and_the_disagreement_of_the_model(fitted, kind, solver):
    model = fitted(kind, solver)
    history = model.history_
    columns = ["round", "objective", "consensus_gap", "dual_residual", "exchanges", "bytes"]
    assert list(history.columns) == columns
    assert history["round"].tolist() == list(range(model.n_iter_ + 1))
    assert model.stop_ is StopReason.CONVERGED
    assert history[["consensus_gap", "dual_residual"]].iloc[-1].max() <= 1e-2

    # Equation (12) by hand, each agent with its own U and a share of the penalty on it.
    _, X, y, tasks = small(kind)
    H, total, (mu1, mu2) = by_hand(model, X), 0.0, model.penalties_
    U = model.U_ if model.U_.ndim == 3 else np.stack([model.U_] * 4)
    for k, t in enumerate(TASKS):
        mine = tasks == t
        targets = indicator(y[mine], model.task_classes_[t]) if kind == "classification" else y[mine][:, None]
        scale = model.target_scale_ if kind == "regression" else 1.0
        H_t, T_t, A_t = H[mine] - H[mine].mean(axis=0), (targets - targets.mean(axis=0)) / scale, model.A_[t] / scale
        total += 0.5 * np.sum((H_t @ U[k] @ A_t - T_t) ** 2)
        total += mu1 / 2 / 4 * np.sum(U[k] ** 2) + mu2 / 2 * np.sum(A_t**2)
    assert history["objective"].iloc[-1] == pytest.approx(total, rel=1e-9)
    # For agents with a U of their own, the mean of all U is certified.
    assert model.certificate_.objective == pytest.approx(total, rel=0.02 if model.U_.ndim == 3 else 1e-9)
    assert model.certificate_.lower_bound <= model.certificate_.objective
    mean = U.mean(axis=0)
    gap = np.sqrt(np.mean(np.sum((U - mean) ** 2, axis=(1, 2)))) / np.linalg.norm(mean)
    assert history["consensus_gap"].iloc[-1] == pytest.approx(gap, rel=1e-6, abs=1e-14)


@pytest.mark.parametrize("solver", [DMTLELM(2, certify=False), FODMTLELM(2, certify=False)])
def test_a_round_of_admm_sends_one_U_to_each_neighbour(solver):
    model, X, y, tasks = small("regression", solver=solver)
    sent = model.fit(X, y, tasks).history_["bytes"].to_numpy()
    assert sent[0] > 0  # the start takes messages too
    # A round is one block U to each neighbour: on a ring of four, eight messages of L x r doubles.
    np.testing.assert_array_equal(np.diff(sent), 8 * 8 * model.U_[0].size + followed(4, model.U_[0].size, numbers=5))
    np.testing.assert_array_equal(np.diff(model.history_["exchanges"]), 1)
    assert model.n_exchanges_ > model.n_iter_


def test_a_step_of_mesh_elm_sends_one_sum_and_the_certificate_comes_last():
    model, X, y, tasks = small("regression", solver=MeshELM(common=False, private=False, rank=2, certify=False))
    history = model.fit(X, y, tasks).history_
    # On a ring of four a sum takes two rounds of gossip: eight messages of L x r doubles in each, and two numbers of
    # every agent that go to the three others. A step is one sum, or more if the first trial was too long; every fourth
    # evaluation, from the one before the first step on, averages U too.
    sums = np.diff(history["exchanges"]) // 2
    block, numbers = 2 * 8 * 25 * 2 * 8, 4 * 3 * 2 * 8
    costs = [block + numbers + block * (k % 4 == 0) for k in range(1, 1 + sums.sum())]
    ends = np.cumsum(sums)
    np.testing.assert_array_equal(np.diff(history["bytes"]), np.diff(np.cumsum(costs)[ends - 1], prepend=0))
    assert np.median(sums) == 1
    with_certificate = clone(model).set_params(solver__certify=True).fit(X, y, tasks).history_
    pd.testing.assert_frame_equal(with_certificate.iloc[:-1], history.iloc[:-1])
    for column in ("exchanges", "bytes"):
        assert with_certificate[column].iloc[-1] > history[column].iloc[-1]


def test_the_traffic_of_all_edges_is_that_of_the_history_and_is_empty_without_a_graph(fitted):
    for solver in ("mesh-elm", "dmtl-elm", "fo-dmtl-elm", "dgsp"):
        model = fitted("regression", solver)
        traffic, history = model.traffic_, model.history_
        assert (np.diff(history["bytes"]) > 0).all()
        assert traffic["bytes"].sum() == history["bytes"].iloc[-1]
        assert history["exchanges"].iloc[-1] == model.n_exchanges_
        edges = set(zip(traffic["sender"], traffic["receiver"], strict=True))
        assert edges == {pair for a, b in model.graph_.edges for pair in ((a, b), (b, a))}
    for solver in ("local-elm", "mtl-elm", "mtfl", "go-mtl"):
        model = fitted("regression", solver)
        assert model.history_["bytes"].sum() == model.n_exchanges_ == 0
        assert model.traffic_ is None


def test_a_method_without_rounds_has_an_empty_history(fitted):
    model = fitted("classification", "local-elm")
    assert model.stop_ is StopReason.DIRECT
    assert model.n_iter_ == len(model.history_) == 0
    assert list(model.history_.columns) == list(fitted("classification", "mtl-elm").history_.columns)


def test_fits_by_admm_have_the_margins_of_the_theorems_agent_by_agent(fitted):
    for model in (fitted("classification", "dmtl-elm"), fitted("classification", "fo-dmtl-elm")):
        conditions = model.conditions_
        assert isinstance(conditions, Margins)
        assert conditions.margin.shape == (4,)
        assert conditions.hold is False  # automatic parameters do not meet the theorems' conditions
    for solver in ("local-elm", "mtl-elm", "mtfl", "go-mtl"):
        assert fitted("classification", solver).conditions_ is None
        assert fitted("classification", solver).graph_ is None
    assert fitted("classification", "mesh-elm").conditions_ is None  # the theorems are about ADMM
    # rho m (delta + 1/2) d with rho = 0.1, m = 4, delta = 1 and d = 2 is 1.2, and gamma is the theorems' own.
    bound = DMTLELM(mu1=1.0, mu2=1.0, rho=0.1, tau=5.0, gamma="paper", delta=1.0, max_iter=5)
    model, X, y, tasks = small("regression", solver=bound)
    with pytest.warns(ConvergenceWarning):
        held = model.fit(X, y, tasks).conditions_
    assert held.hold is True
    np.testing.assert_allclose(held.margin, 5.0 - (1.2 - 1 / 8))


def test_the_graph_is_over_the_task_labels(fitted):
    graph = fitted("regression", "mesh-elm").graph_
    assert nx.utils.graphs_equal(nx.Graph(graph.edges), nx.Graph(nx.cycle_graph(list(TASKS)).edges))


@pytest.mark.parametrize(
    ("kind", "solver"),
    one_of(2, KINDS, [PAPER["mesh-elm"], BESIDE, MTLELM(), DMTLELM(), FODMTLELM(), MTFL(), GOMTL()]),
    ids=repr,
)
def test_a_fit_that_runs_out_of_rounds_warns_and_can_be_used(kind, solver):
    model, X, y, tasks = small(kind, solver=clone(solver).set_params(max_iter=2, tol=0.0))
    with pytest.warns(ConvergenceWarning, match=r"After 2 rounds: .* raise max_iter, or raise tol"):
        model.fit(X, y, tasks)
    assert model.stop_ is StopReason.MAX_ITER
    assert model.n_iter_ == 2
    assert np.isfinite(model.score(X, y, tasks))


@pytest.mark.parametrize("kind", KINDS)
def test_a_fit_that_diverges_warns_and_keeps_the_last_finite_state(kind, tmp_path):
    model, X, y, tasks = small(kind, n_hidden=None, solver=FODMTLELM(rank=2, rho=1.0, tau=0.5, zeta=0.0, init="random"))
    with pytest.warns(ConvergenceWarning, match=r"Diverged; the last sound state is kept\. Leave rho, tau and zeta"):
        model.fit(30.0 * X, y, tasks)
    assert model.stop_ is StopReason.DIVERGED
    assert model.n_iter_ < 1000
    assert np.isfinite(model.history_.drop(columns="dual_residual").to_numpy()).all()
    assert np.isfinite(model.U_).all()
    model.save(tmp_path / "model")
    outputs = everything(model, X, tasks)
    assert not any(np.isnan(output).any() for output in outputs if output.dtype.kind == "f")
    assert_same(outputs, everything(elmesh.load(tmp_path / "model"), X, tasks))


@pytest.mark.parametrize(("kind", "solver"), one_of(2, KINDS, [PAPER["mesh-elm"], BESIDE]), ids=repr)
def test_a_fit_that_a_callback_stops_is_one_of_fewer_rounds(kind, solver):
    model, X, y, tasks = small(kind, solver=clone(solver).set_params(tol=0.0, max_iter=500))
    model.fit(X, y, tasks, run=RunConfig(callback=lambda progress: progress.round == 5))
    assert model.stop_ is StopReason.INTERRUPTED
    assert model.n_iter_ == 5
    limited = clone(model).set_params(solver__max_iter=5)
    with pytest.warns(ConvergenceWarning):
        limited.fit(X, y, tasks)
    assert_same(everything(model, X, tasks), everything(limited, X, tasks))


@pytest.mark.thorough
@for_each_solver
def test_predictions_scale_with_the_targets_output_by_output(solver):
    X, Y, tasks = regression(n_outputs=3)
    model = MultiTaskELMRegressor(n_hidden=20, solver=solver, random_state=0)
    units = np.array([1e-3, 1.0, 1e5])
    before, after = (clone(model).fit(X, targets, tasks).predict(X, tasks) for targets in (Y, Y * units))
    np.testing.assert_allclose(after / units, before, rtol=1e-6, atol=1e-9)


def test_a_solver_given_by_name_takes_parameters_in_a_search():
    model = MultiTaskELMRegressor(solver="mesh-elm").set_params(solver__rank=3, solver__mu1=0.5)
    assert (model.solver.rank, model.solver.mu1) == (3, 0.5)
    assert MultiTaskELMRegressor().set_params(solver="local-elm").solver == "local-elm"
