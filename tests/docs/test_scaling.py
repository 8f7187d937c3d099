"""The cost model of many ranks, and the page about it: both agree with the committed results."""

from __future__ import annotations

import math
import re

import numpy as np
import pytest
from benchmarks.cost import COUNTS, Layout, Model, Problem, Wire, counts, fit, work_counts
from hypothesis import given
from hypothesis import strategies as st

import pages
import scaling
from helpers.examples import examples

TEXT = scaling.PAGE.read_text(encoding="utf-8")
RESULT = pages.load(pages.RESULTS / "mpi.json")
SMALL = Problem(300, 6, 100, 3)
SIZES = (8, 512, 65_535, 65_536, 2_097_152)
KINDS = ("neighbours", "sum", "figures")


def test_the_page_is_what_the_committed_results_give():
    assert scaling.page() == TEXT


def test_the_page_lists_exactly_the_missed_goals():
    listed = set(re.findall(r"^- (.+)$", TEXT.split("not reached")[-1], re.MULTILINE))
    assert listed == {goal for goal, met in RESULT["goals"].items() if not met}


def test_the_figure_of_the_page_exists():
    assert [(scaling.PAGE.parent / shown).is_file() for shown in re.findall(r"!\[[^\]]+\]\(([^)]+)\)", TEXT)] == [True]


def test_every_size_and_number_of_agents_was_measured_with_both_methods():
    found = {(row["hidden"], row["rank"], row["agents"], row["way"]) for row in RESULT["figures"]["rounds"]}
    assert found == {(L, r, m, way) for L, r in ((300, 6), (2000, 20)) for m in (2, 4, 8, 16) for way in scaling.WAYS}


def test_the_share_of_the_allowed_rate_follows_from_the_seconds():
    for row in RESULT["figures"]["rounds"]:
        took = row["seconds"]
        assert row["of_what_is_allowed"] == pytest.approx((took["exchange"] + took["computation"]) / took["full"])


def test_the_committed_predictions_are_those_of_the_committed_constants():
    model = Model({kind: np.array(list(c.values())) for kind, c in RESULT["model"]["seconds for one"].items()})
    wires = {
        name: Wire(wire["latency"], math.inf if wire["bandwidth"] is None else wire["bandwidth"])
        for name, wire in RESULT["assumed"].items()
    }
    # Where a process has several agents, the placement may depend on METIS.
    rows = [row for row in RESULT["predictions"] if row["processes"] == row["agents"]]
    assert rows
    for row in rows:
        where = Layout.of(row["graph"], row["agents"], row["processes"], row["agents"] // row["nodes"], row["nodes"])
        problem = Problem(*(row[name] for name in ("hidden", "rank", "rows", "outputs")))
        for name, predicted in row["seconds"].items():
            assert model.round(row["way"], problem, where, wires[name])["full"] == pytest.approx(predicted["full"])


@given(st.integers(0, 2**32 - 1))
@examples(25)
def test_constants_are_recovered_from_the_seconds_that_they_predict(seed):
    rng = np.random.default_rng(seed)
    layouts = [Layout.of(g, a * p, p, 2) for g in ("ring", "star") for p in (2, 4, 8, 16) for a in (1, 8)]
    true, rows = {}, {}
    for kind in KINDS:
        true[kind] = 10.0 ** rng.uniform([-6, -6, -10, -6, -10], [-4, -5, -9, -5, -9])
        made = [counts(kind, layout, size) for layout in layouts for size in SIZES]
        rows[kind] = [(row, float(true[kind] @ row)) for row in made]
    model = Model.fitted(rows)
    for kind in KINDS:
        assert np.abs(model.errors[kind]).max() < 1e-6
    for kind in ("neighbours", "sum"):
        np.testing.assert_allclose(model.constants[kind], true[kind], rtol=1e-5)


def test_constants_of_work_are_recovered_from_both_methods_and_all_layouts():
    true = np.array([2e-4, 5e-5, 2e-10, 1e-9])
    problems = SMALL, Problem(2000, 20, 200, 10)
    spread = [Layout.of("ring", m, p, 2) for m in (2, 4, 8, 16) for p in (1, m)]
    rows = [work_counts(way, one, where, 1.0, 20.0) for way in scaling.WAYS for one in problems for where in spread]
    found, errors = fit(rows, [float(true @ row) for row in rows])
    np.testing.assert_allclose(found, true, rtol=1e-6)
    assert np.abs(errors).max() < 1e-9


def test_noise_changes_a_constant_by_no_more_than_its_size():
    rng = np.random.default_rng(0)
    rows = [np.array([1.0, n]) for n in np.geomspace(1, 1e6, 200)]
    noisy = [float(np.array([1e-3, 1e-6]) @ row) * (1 + 0.05 * rng.standard_normal()) for row in rows]
    found, _ = fit(rows, noisy)
    np.testing.assert_allclose(found, [1e-3, 1e-6], rtol=0.05)


def test_a_ring_has_two_messages_per_process_and_the_hub_of_a_star_has_all():
    ring, star = (Layout.of(graph, 16, 16, 16) for graph in ("ring", "star"))
    assert ring.traffic[:2] == (2, 2)
    assert star.traffic[:2] == (15, 15)


def test_neighbours_in_one_process_need_no_message():
    assert Layout.of("ring", 16, 1, 2).traffic == (0, 0, 0)
    assert Layout.of("ring", 16, 2, 2).traffic[:2] == (1, 2)  # both ends of each half, in one message


def test_a_sum_on_a_ring_passes_half_of_its_processes():
    assert Layout.of("ring", 16, 16, 16).climb(1.0, 0.0) == pytest.approx(8, abs=1)
    assert Layout.of("star", 16, 16, 16).climb(1.0, 0.0) == 15  # the hub receives one message after another


@pytest.mark.parametrize("kind", KINDS)
def test_processes_that_share_cores_are_never_faster(kind):
    own, shared = (counts(kind, Layout.of("ring", 16, 16, cores), 512) for cores in (16, 2))
    assert (shared >= own).all()


@pytest.mark.parametrize("way", list(scaling.WAYS))
@pytest.mark.parametrize("graph", ["ring", "star", "grid"])
def test_a_slower_wire_makes_a_slower_round_and_an_ideal_wire_adds_nothing(graph, way):
    constants = {"work": np.array([2e-4, 5e-5, 2e-10, 1e-9]), **dict.fromkeys(KINDS, np.full(5, 1e-7))}
    assert {kind: len(c) for kind, c in constants.items()} == {kind: len(names) for kind, names in COUNTS.items()}
    model, far = Model(constants), Layout.of(graph, 100, 100, 10, 10)
    near = Layout.of(graph, 100, 100, 100)
    times = [model.round(way, SMALL, far, wire)["full"] for wire in (Wire(), Wire(2e-6, 25e9), Wire(30e-6, 1.25e9))]
    assert times == sorted(times)
    assert times[0] < times[1] < times[2]
    assert times[0] == pytest.approx(model.round(way, SMALL, near)["full"])
