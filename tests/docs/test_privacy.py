"""What U_t reveals: attacks succeed and fail where theory predicts it, and the page reports what was found."""

from __future__ import annotations

import re

import numpy as np
import pytest
from benchmarks import attacks
from benchmarks.defended import halved, noisy
from benchmarks.eavesdrop import VICTIM, Run, admm, digits, gaussian, record
from benchmarks.privacy import copied_model, exactness
from benchmarks.rebuilt import rebuild
from benchmarks.scores import known, membership
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import roc_auc_score

import readme
import security
from elmesh import MeshELM
from elmesh.solvers.initialization import random_block

TEXT = security.PAGE.read_text(encoding="utf-8")
RESULT = readme.load(readme.RESULTS / "privacy.json")
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


def test_a_leafs_part_of_a_sum_reveals_its_weights_up_to_a_rotation():
    case = digits(*FEW, 10)
    transport, solutions = record(case, MeshELM(rank=8, mu1=1.0, mu2=1.0, graph="star", max_iter=5, certify=False))
    solution, A = solutions[-1], solutions[-1].A[VICTIM]
    seen = attacks.weights_square(solution.U, transport.parts[-1][1], 1.0)
    np.testing.assert_allclose(seen, A @ A.T, atol=1e-9 * np.abs(A @ A.T).max())


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


def test_the_section_is_what_the_committed_run_gives():
    assert security.filled(TEXT) == TEXT


def test_the_picture_it_shows_is_there():
    shown = re.findall(r"!\[[^\]]+\]\(([^)]+)\)", security.section())
    assert [(security.PAGE.parent / picture).is_file() for picture in shown] == [True]


def of(classes: str, rows: int, units: int) -> dict:
    return security.find(FIGURES[classes], rows=rows, units=units)


def test_statements_about_gradients_holds():
    for row in security.views(RESULT):
        assert row["gradient_error"]["all"] < 1e-12
        assert row["gradient_error"]["one, first"] < 1e-12
        assert row["gradient_error"]["one, later"] > 0.3


def test_statements_about_few_rows_holds():
    for row in security.views(RESULT):
        if row["rows"] < row["units"]:
            assert row["auc"][-1] > 0.98
            assert row["labels_first"] == {"all": 1.0, "wrong": 1.0}


def test_statements_about_many_rows_holds():
    for classes in ("two classes", "ten classes"):
        row = of(classes, 300, 30)
        assert max(row["auc"]) < 0.6
        assert row["labels_first"]["all"] - row["labels_by"][security.OWN]["all"] < 0.05
        thrice = of(classes, 300, 100)
        assert max(thrice["auc"]) > 0.7
        assert thrice["labels_first"]["wrong"] > 0.3 + thrice["labels_by"][security.OWN]["wrong"]


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


def test_statements_about_sums_holds():
    for row in FIGURES["sums"]:
        same = security.find(FIGURES["sums"], rows=row["rows"], units=row["units"], bits=64)
        assert row["labels"]["all"] == pytest.approx(same["labels"]["all"], abs=0.01)
        assert row["auc"] < same["auc"] + 0.02
