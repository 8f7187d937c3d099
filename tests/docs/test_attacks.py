"""Attacks succeed and fail where theory predicts it, and the pages report what was found."""

from __future__ import annotations

import importlib.util
import re

import numpy as np
import pytest
from benchmarks import attacks
from benchmarks.basis import copied_model, exactness
from benchmarks.defended import halved, noisy
from benchmarks.eavesdrop import VICTIM, Run, admm, digits, gaussian
from benchmarks.rebuilt import rebuild
from benchmarks.scores import known, membership
from benchmarks.separation import gradient_total, rounded, steer_basis, whitened
from benchmarks.totals import digits as sites
from benchmarks.totals import gram_errors, masked, similar_sites, total_of_victim
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import roc_auc_score

import readme
from elmesh.solvers.initialization import random_block
from helpers.marks import one_of

# `attacks` is also a module of the benchmarks, so the tool is loaded from its file.
_SPEC = importlib.util.spec_from_file_location("attacks_page", readme.ROOT / "tools" / "attacks.py")
page = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(page)

TEXT = page.PAGE.read_text(encoding="utf-8")
RESULT = readme.load(readme.RESULTS / "basis.json")
FIGURES = RESULT["figures"]

FEW, MANY = (20, 60), (300, 15)  # rows a site and hidden units


def fitted(size: tuple[int, int], rounds: int, *, classes: int = 2, rank: int = 3, **more: object) -> Run:
    return admm(digits(*size, classes), rank, rounds, **more)


@pytest.fixture(scope="module")
def few() -> Run:
    return fitted(FEW, 40)


@pytest.fixture(scope="module")
def many() -> Run:
    return fitted(MANY, 40)


# What is known of a site's gradients


@pytest.mark.parametrize("graph", ["ring", "star"])
@pytest.mark.parametrize("size", [FEW, MANY])
def test_an_attacker_who_sees_all_messages_of_a_site_knows_its_gradients(graph, size):
    run = fitted(size, 15, graph=graph)
    assert exactness(run, known(run, run.received_all)[0]).max() < 1e-11


def test_one_neighbour_knows_the_first_gradient_and_no_other(few):
    errors = exactness(few, known(few, few.received_one)[0])
    assert errors[0] < 1e-11
    assert errors[1:].min() > 0.1


def test_all_agents_start_from_the_same_block_and_send_their_u(few):
    start = random_block(FEW[1], few.solver.rank, 0)
    assert all(np.array_equal(U, start) for U in few.sent[0])
    np.testing.assert_array_equal(few.sent[-1], few.solutions[-1].U)


# Rows


def test_gradients_span_one_direction_a_round_and_target_all_of_them_within_the_sites_rows(few):
    G, noise = known(few, few.received_all)
    V = attacks.directions(few.case.centred.T)[0][:, : FEW[0] - 1]
    for k in (1, 2, 5):
        Q = attacks.span_of(G[:k], noise)
        assert Q.shape[1] == k
        assert np.linalg.norm(Q - V @ (V.T @ Q), 2) < 1e-6
    assert attacks.span_of(G, noise).shape[1] == V.shape[1]


def test_rows_of_a_site_are_distinguished_from_fresh_ones_only_with_fewer_rows_than_units(few, many):
    found = [membership(run.case, attacks.span_of(*known(run, run.received_all))) for run in (few, many)]
    assert found[0] > 0.99
    assert abs(found[1] - 0.5) < 0.1


def test_rows_are_found_to_a_millionth_without_knowing_their_mean():
    case = gaussian(3, 12, 60)
    run = admm(case, 4, 60)
    G, noise = known(run, run.received_all)
    starts = np.random.default_rng(1).standard_normal((25, 3))
    _, row = rebuild(case, attacks.span_of(G, noise), starts)
    assert row["rank"] == 11
    assert row["near"]["1e-06"] >= 4
    assert row["near"]["1e-06"] == row["near"]["0.01"]


def test_no_row_is_found_where_the_span_is_everything(many):
    starts = many.case.X[0][:5]
    found, row = rebuild(many.case, attacks.span_of(*known(many, many.received_all)), starts)
    assert row["rank"] == MANY[1]
    np.testing.assert_array_equal(found, starts)


# Labels and models


def first_message(run: Run) -> np.ndarray:
    """Read labels as a single neighbour who knows the site's inputs."""
    case, U = run.case, run.sent[:2, VICTIM]
    G, noise = known(run, run.received_one)
    mu2, most = float(run.solver.mu2), case.T[VICTIM].shape[1] - 1
    HTM = attacks.first_targets(case.centred, U[0], U[1], G[0], mu2, noise, most)
    return attacks.read_labels(attacks.spread_targets(case.centred, HTM, 1e-10), case.y[VICTIM])


@pytest.mark.parametrize(("classes", "rank"), [(2, 3), (10, 12)])
def test_one_neighbour_reads_every_label_of_known_rows_from_the_first_message(classes, rank):
    run = fitted((40, 60), 1, classes=classes, rank=rank)
    np.testing.assert_array_equal(first_message(run), run.case.y[VICTIM])


def test_with_many_rows_labels_are_read_about_as_well_as_a_model_guesses_them(many):
    case, wrong = many.case, many.case.wrong[VICTIM]
    read = first_message(many) == case.y[VICTIM]
    assert read.mean() < 0.8
    assert read[wrong].mean() < 0.5


def test_the_last_gradient_reveals_every_label_of_known_rows_too(few):
    G, _ = known(few, few.received_all)
    HTA = attacks.late_targets(few.case.centred, few.sent[-1, VICTIM], G[-1], float(few.solver.mu2))
    read = attacks.read_labels(attacks.spread_targets(few.case.centred, HTA, 1e-10), few.case.y[VICTIM])
    np.testing.assert_array_equal(read, few.case.y[VICTIM])


@pytest.mark.parametrize("k", [1, 5, 40])
def test_the_sites_model_is_known_in_every_round_but_for_its_sign(few, k):
    assert copied_model(few, known(few, few.received_all)[0], k) > 0.999


# Defences


def test_a_perturbation_that_does_nothing_changes_nothing(few):
    again = fitted(FEW, 40, perturb=lambda U: U)
    np.testing.assert_array_equal(again.sent, few.sent)


def test_half_precision_hides_most_of_the_span_and_no_label():
    run = fitted(FEW, 40, perturb=halved)
    G, noise = known(run, run.received_all)
    assert attacks.span_of(G, noise * 2.0**42 / 10).shape[1] < 12
    np.testing.assert_array_equal(first_message(run), run.case.y[VICTIM])


def test_noise_as_large_as_the_messages_hides_labels_in_the_first_message():
    run = fitted((100, 110), 1, perturb=noisy(1.0, 0))
    assert (first_message(run) == run.case.y[VICTIM]).mean() < 0.75


@given(st.lists(st.integers(0, 5), min_size=1), st.lists(st.integers(0, 5), min_size=1))
def test_the_auc_is_that_of_the_textbook(members, others):
    labels = np.repeat([0, 1], [len(members), len(others)])
    expected = roc_auc_score(labels, members + others)
    assert attacks.auc(np.array(members), np.array(others)) == pytest.approx(expected)


# The page


def test_the_pages_are_what_the_committed_runs_give():
    assert page.filled(TEXT) == TEXT
    security = page.SECURITY.read_text(encoding="utf-8")
    assert page.filled_security(security) == security


def test_the_picture_it_shows_is_there():
    shown = re.findall(r"!\[[^\]]+\]\(([^)]+)\)", page.section())
    assert [(page.PAGE.parent / picture).is_file() for picture in shown] == [True]


def of(classes: str, rows: int, units: int) -> dict:
    return page.find(FIGURES[classes], rows=rows, units=units)


def test_statements_about_gradients_holds():
    for row in page.views(RESULT):
        assert row["gradient_error"]["all"] < 1e-12
        assert row["gradient_error"]["one, first"] < 1e-12
        assert row["gradient_error"]["one, later"] > 0.3


def test_statements_about_few_rows_holds():
    for row in page.views(RESULT):
        if row["rows"] < row["units"]:
            assert row["auc"][-1] > 0.98
            assert row["labels_first"] == {"all": 1.0, "wrong": 1.0}


def test_statements_about_many_rows_holds():
    for classes in ("two classes", "ten classes"):
        row = of(classes, 300, 30)
        assert max(row["auc"]) < 0.6
        assert row["labels_first"]["all"] - row["labels_by"][page.OWN]["all"] < 0.05
        thrice = of(classes, 300, 100)
        assert max(thrice["auc"]) > 0.7
        assert thrice["labels_first"]["wrong"] > 0.3 + thrice["labels_by"][page.OWN]["wrong"]


def test_statements_about_defences_holds():
    for one in FIGURES["alone"]:
        ways = {row["way"]: row for row in FIGURES["defences"] if row["rows"] == one["rows"]}
        whole, ten = ways["300 rounds"], ways["10 rounds"]
        best = {way: max(row["labels_first"]["all"], row["labels_late"]["all"]) for way, row in ways.items()}
        assert ten["auc"] < whole["auc"] - 0.15  # harder to recognise rows
        assert ten["error"] < whole["error"] + 0.5  # at no cost
        assert best["10 rounds"] > best["300 rounds"] - 0.01  # and labels are in the first message
        for way in ("100 rounds, single precision", "100 rounds, half precision", "100 rounds, noise of 0.3"):
            assert best[way] > best["100 rounds"] - 0.03
            assert ways[way]["error"] < ways["100 rounds"]["error"] + 0.5
        hidden = [row for way, row in ways.items() if best[way] < 0.7]
        assert hidden
        assert all(row["error"] > one["error"] for row in hidden)  # what hides labels is worse than staying alone


# Totals of masked sums


TOTALS = readme.load(readme.RESULTS / "totals.json")["figures"]


def test_with_more_features_than_honest_rows_every_label_of_known_rows_is_in_the_total():
    found = masked(sites(5, 1, 30, 0), limit=0.0)
    assert found["rank"] == 120
    assert found["labels"]["wrong"] == [1.0] * 3
    assert max(found["auc"]) > 0.99


def test_with_few_features_labels_are_not_in_the_total():
    found = masked(sites(5, 1, 100, 0), limit=20.0)
    assert found["features"] == 20
    assert max(found["labels"]["wrong"]) < 0.6
    assert max(found["auc_site"]) < 0.6


def test_two_sites_are_taken_apart_by_three_totals():
    assert any(gram_errors(2, 3, 50, "as in a fit", 3, seed)[0] < 1e-6 for seed in range(3))


@pytest.mark.parametrize("seed", one_of(3, range(3)))
def test_four_sites_are_not_taken_apart_by_three_totals(seed):
    assert gram_errors(4, 3, 50, "as in a fit", 3, seed)[0] > 0.02


@pytest.mark.slow
def test_thirty_totals_take_four_sites_apart():
    assert min(gram_errors(4, 4, 50, "chosen", 30, seed)[0] for seed in range(3)) < 1e-6


@pytest.mark.parametrize(("p", "h"), [(6, 2), (8, 4)])
def test_an_attacker_who_chooses_u_finds_the_correlations_of_every_site(p, h):
    data = similar_sites(h, p, 50, np.random.default_rng(0))
    own = [(Phi.T @ Phi, Phi.T @ T) for Phi, T in data]
    length = 0.12 / np.sqrt(max(np.linalg.eigvalsh(G)[-1] for G, _ in own))
    found = steer_basis(lambda u: rounded(gradient_total(own, u, 1.0)), p, h, 1.0, length).correlations
    for _, c in own:
        cosines = np.abs(c @ found) / (np.linalg.norm(c) * np.linalg.norm(found, axis=0))
        assert cosines.max() > 0.9999


def test_the_gradient_of_the_attack_is_that_of_the_objective_with_the_best_coefficient():
    Phi, T = similar_sites(1, 6, 40, np.random.default_rng(1))[0]
    G, c, u = Phi.T @ Phi, Phi.T @ T, np.random.default_rng(2).standard_normal(6)

    def value(u: np.ndarray) -> float:
        a = (u @ c) / (u @ G @ u + 2.0)
        return float(0.5 * np.sum((Phi @ u * a - T) ** 2) + 0.5 * 2.0 * a**2)

    step = 1e-6 * np.eye(6)
    numeric = [(value(u + e) - value(u - e)) / 2e-6 for e in step]
    np.testing.assert_allclose(gradient_total([(G, c)], u, 2.0), numeric, rtol=1e-5)


def test_whitened_gram_matrices_are_those_of_whitened_rows():
    Phi, _ = similar_sites(1, 5, 30, np.random.default_rng(0))[0]
    v = np.array([0.3, 0.1, 0.2, 0.5, 1.0])
    K = np.eye(30) + (Phi * v) @ Phi.T
    np.testing.assert_allclose(whitened(Phi.T @ Phi, v), Phi.T @ np.linalg.solve(K, Phi), rtol=1e-9)


def test_the_page_states_what_equal_weights_of_sites_cost():
    lost = readme.load(readme.RESULTS / "site_weights.json")["figures"]["most_lost"]
    assert 0 < lost < 0.01
    text = " ".join((readme.ROOT / "docs" / "security.md").read_text(encoding="utf-8").split())
    assert f"that changes R2 by at most {lost:.3f})" in text


def test_statements_about_totals_hold():
    for row in TOTALS["masked, all features"]:
        if row["rank"] < 265 and (row["sites"] - row["colluders"]) * row["rows"] <= 265:
            assert row["labels"]["wrong"] == 1.0
    apart = {(row["honest"], row["totals"], row["v"]): row for row in TOTALS["Gram matrices"]}
    assert apart[2, 3, "as in a fit"]["found"] > 0
    assert all(apart[h, 3, "as in a fit"]["found"] == 0 for h in (3, 4, 9))
    assert apart[9, 30, "chosen"]["found"] > 0
    assert all(row["worst_cosine"] > 0.999 for row in TOTALS["steered"])
    weighed, alike = TOTALS["weights"]
    assert weighed["error"] < 0.05
    assert alike["error"] > 1.0


@pytest.mark.parametrize(("weigh", "isolated"), [(True, True), (False, False)])
def test_an_attacker_who_steers_w_isolates_a_site_only_where_sites_have_weights(weigh, isolated):
    assert (total_of_victim(4, 6, 50, weigh, seed=0) < 0.05) == isolated
