"""From scores to probabilities of classes: against a general minimiser, and against the true probabilities."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import minimize
from scipy.special import log_softmax, softmax
from test_class_scale import class_problem, effects_of, keeps_rows

from elmesh import MultiTaskELMClassifier, RunConfig, load
from elmesh.comm.fixed_point import LIMBS, from_wide, to_wide
from elmesh.comm.requests import Topic
from elmesh.comm.row_counts import fewest_terms
from elmesh.errors import ElmeshError, UnknownSiteWarning
from elmesh.math.class_link import (
    INVERSE_TEMPERATURES,
    LinkRows,
    LinkSearch,
    class_shares,
    class_slopes,
    linked,
    predicted_classes,
)
from elmesh.math.random_effects import precision
from elmesh.run import LocalBackend
from elmesh.solvers.class_scale import choose_class_scale, find_link, left_out_scores
from helpers.mixed import only_context, run_steps

seeds = st.integers(0, 10**6)


def sites_of(seed, sizes, n_classes, spread=1.0):
    """Rows of sites with scores near the truth, some of which predict a part of the classes only."""
    rng, sites = np.random.default_rng(seed), []
    for n in sizes:
        columns = np.sort(rng.choice(n_classes, size=int(rng.integers(2, n_classes + 1)), replace=False))
        truth = rng.integers(0, len(columns), size=n)
        scores = spread * rng.normal(size=(n, len(columns))) + np.eye(len(columns))[truth]
        sites.append(LinkRows(scores, truth, rng.integers(1, 4, size=n).astype(float), columns))
    return sites


def penalized_loss(sites, slope, x):
    """The loss of all rows, one after the other, and the prior of the offsets."""
    total = float(x[1:] @ x[1:]) / 2
    for site in sites:
        for scores, truth, weight in zip(site.scores, site.truth, site.weights, strict=True):
            total -= weight * log_softmax(x[0] * slope[site.columns] * scores + x[1:][site.columns])[truth]
    return total


def found_by(sites, n_classes, of_others=()):
    """The link that sites find; other sites have no part but for their numbers of rows of each class."""
    counts = np.sum([*(site.counts(n_classes) for site in sites), *of_others], axis=0)
    steps = find_link(list(enumerate(sites)), only_context(), len(sites), counts / counts.sum(), 0.5)
    temperature, link = run_steps(steps)
    return temperature, link


@given(seeds, st.lists(st.integers(1, 12), min_size=1, max_size=4), st.integers(2, 4))
def test_it_is_where_a_general_minimiser_ends(seed, sizes, n_classes):
    sites = sites_of(seed, sizes, n_classes)
    temperature, (slope, offset) = found_by(sites, n_classes)
    counts = sum(site.counts(n_classes) for site in sites)
    np.testing.assert_allclose(slope, class_slopes(counts))
    own = np.concatenate([[1 / temperature], offset / temperature])
    limits = [INVERSE_TEMPERATURES, *([(None, None)] * n_classes)]
    best = minimize(lambda x: penalized_loss(sites, slope, x), np.r_[2.0, np.zeros(n_classes)], bounds=limits)
    absent = np.append(False, counts == 0)
    np.testing.assert_allclose(own[absent], np.log(1e-10))
    # A class without rows is the less probable the better, but for the prior.
    assert penalized_loss(sites, slope, own) - own[absent] @ own[absent] / 2 <= best.fun + 1e-4
    assert INVERSE_TEMPERATURES[0] <= own[0] <= INVERSE_TEMPERATURES[1]


@given(seeds)
def test_terms_are_the_loss_and_its_derivatives(seed):
    rng = np.random.default_rng(seed)
    (site,), slope = sites_of(seed, [6], 3), rng.uniform(0.5, 2, size=3)
    x = np.r_[rng.uniform(0.5, 3), rng.normal(size=3)]
    size, n = LinkSearch.size(3), 4

    def parts(x):
        found = site.terms(slope, x)
        assert len(found) == size
        hessian = np.zeros((n, n))
        hessian[np.triu_indices(n)] = found[1 + n :]
        return found[0], found[1 : 1 + n], hessian + np.triu(hessian, 1).T

    value, gradient, hessian = parts(x)
    assert value == pytest.approx(penalized_loss([site], slope, x) - x[1:] @ x[1:] / 2)
    for k, step in enumerate(1e-5 * np.eye(n)):
        above, below = parts(x + step), parts(x - step)
        assert gradient[k] == pytest.approx((above[0] - below[0]) / 2e-5, rel=1e-5, abs=1e-6)
        np.testing.assert_allclose(hessian[k], (above[1] - below[1]) / 2e-5, rtol=1e-4, atol=1e-5)


def test_scores_without_information_or_without_errors_have_temperatures_within_limits():
    rng = np.random.default_rng(0)
    columns, truth = np.arange(3), np.repeat(np.arange(3), 20)
    against = LinkRows(-np.eye(3)[truth], truth, np.ones(60), columns)
    clear = LinkRows(np.eye(3)[truth], truth, np.ones(60), columns)
    same = LinkRows(np.ones((60, 3)), truth, np.ones(60), columns)
    low, high = INVERSE_TEMPERATURES
    assert found_by([against], 3)[0] == pytest.approx(1 / low)
    assert 1 / high <= found_by([clear], 3)[0] < 0.2
    assert np.isfinite(found_by([same], 3)[0])
    shuffled = LinkRows(rng.normal(size=(60, 3)), truth, np.ones(60), columns)
    assert found_by([shuffled], 3)[0] > 1


def test_classes_are_as_frequent_as_their_mean_probabilities():
    """At the minimum, but for the prior of the offsets."""
    sites = sites_of(3, [400, 300], 3, spread=0.5)
    temperature, link = found_by(sites, 3)
    expected, found = np.zeros(3), np.zeros(3)
    for site in sites:
        chances = softmax(linked(site.scores, link[:, site.columns]) / temperature, axis=1)
        found[site.columns] += site.weights @ chances
        expected += site.counts(3)
    np.testing.assert_allclose(found, expected, atol=np.abs(link[1] / temperature).max() + 1e-3)


def test_a_class_is_predicted_if_it_is_missing_by_chance_or_if_there_is_one_alone():
    shares, some = np.array([0.6, 0.39, 0.01, 0.0]), np.array([True, True, False, False])
    assert predicted_classes(some, shares, 50).tolist() == [True, True, True, False]
    assert predicted_classes(some, shares, 1000).tolist() == [True, True, False, False]
    assert predicted_classes(np.array([True, False, False, False]), shares, 1000).all()


@pytest.mark.parametrize("seed", [0, 1])
def test_the_link_of_a_fit_is_that_of_its_rows_scored_without_themselves(seed):
    """One class is rare, so that some sites lack it by chance, and one site has one class alone."""
    problem, labels = class_problem(seed, (12, 9, 14, 20, 13, 70), d=3, one_class=(1,))
    log_c, log_v, log_w = np.array([9.0, -3.0, -3.0]), np.full(3, -3.0), np.zeros(6)
    effects = effects_of(problem, log_c, log_v, log_w)
    shares = np.bincount(np.concatenate(labels), minlength=3) / len(np.concatenate(labels))
    effects = replace(effects, shares=shares)
    chosen = run_steps(
        choose_class_scale(problem.batches(), only_context(), effects, problem.totals(log_v, log_w), shares)
    )
    sites = []
    for batch in problem.batches():
        scores = left_out_scores(batch, precision(batch, np.exp(log_v)), chosen)
        for j, t in enumerate(batch.index.tolist()):
            if keeps_rows(problem, t):
                present = np.isin(np.arange(3), labels[t])
                columns = np.flatnonzero(predicted_classes(present, shares, len(labels[t])))
                own = (scores[j, : len(labels[t])] + shares)[:, columns]
                truth = np.searchsorted(columns, labels[t])
                sites.append(LinkRows(own, truth, np.ones(len(truth)), columns))
    assert len(sites) == 5
    of_others = [np.bincount(own, minlength=3) for t, own in enumerate(labels) if not keeps_rows(problem, t)]
    temperature, link = found_by(sites, 3, of_others)
    # The searches begin at different temperatures.
    assert chosen.temperature == pytest.approx(temperature, rel=2e-3)
    np.testing.assert_allclose(chosen.link, link, rtol=1e-2, atol=1e-3)


def test_the_sums_over_sites_with_single_rows_are_never_those_of_a_few_sites():
    """Four of nine sites keep their rows; three of nine may collude, so that one of the four could be on its own."""
    problem, _ = class_problem(1, (12, 9, 14, 20, 70, 70, 70, 70, 70), d=3)
    log_c, log_v, log_w = np.array([9.0, -3.0, -3.0]), np.full(3, -3.0), np.zeros(9)
    totals = problem.totals(log_v, log_w)
    effects = replace(effects_of(problem, log_c, log_v, log_w), shares=np.array([0.4, 0.3, 0.3]))
    for colluders, chosen in ((None, False), (2, False), (1, True)):
        requests, context = [], replace(only_context(), fewest_terms=fewest_terms(9, colluders))
        steps = choose_class_scale(problem.batches(), context, effects, totals, np.full(3, 1 / 3))
        found = run_steps(steps, requests)
        assert (found.temperature > 0) == chosen
        assert (found.link is not None) == chosen
        if not chosen:
            assert found is effects
            (only,) = (from_wide(request.value.reshape(-1, LIMBS)) for request in requests)
            assert only[0] == 4, "nothing but numbers of sites is summed"


@pytest.mark.parametrize("masked", [False, True])
def test_sites_with_many_rows_have_probabilities_of_their_own(masked):
    """Six large sites, and one that has few rows, whose sums would be its own: with masks nothing is summed."""
    rng = np.random.default_rng(0)
    sizes = [400] * 6 + [20]
    names = np.repeat(np.arange(7), sizes)
    X = rng.normal(size=(len(names), 2))
    y = np.where(X[:, 0] + rng.normal(size=len(names)) > 0, "yes", "no")
    run = RunConfig(backend=LocalBackend(mask=masked))
    model = MultiTaskELMClassifier(20, random_state=0).fit(X, y, tasks=names, run=run)
    heads, common = model.model_.heads, model.model_.common
    temperatures = [heads[t].temperature for t in range(7)]
    assert len(set(temperatures)) == 7
    if masked:
        assert np.log(common.temperature) == pytest.approx(np.log(temperatures).mean())
    else:
        assert common.temperature == temperatures[6]
        np.testing.assert_array_equal(common.link, heads[6].link)


@pytest.mark.parametrize("rows", [40, 120])
def test_shares_of_classes_follow_from_squares_where_equal_ones_are_subtracted(rows):
    """As in a network; a site that lacks a rare class by chance predicts it all the same."""
    backend = LocalBackend(mask=True)
    backend.scales_targets = True
    X, y, names, _ = rare(4, rows)
    lacking = [t for t in range(6) if "died" not in y[names == t]]
    assert lacking
    fits = [
        MultiTaskELMClassifier(20, random_state=0, shared_classes=["died", "no", "yes"]).fit(X, y, names, run=run)
        for run in (RunConfig(), RunConfig(backend=backend))
    ]
    one, network = (model.predict_proba(X, tasks=names) for model in fits)
    assert (network[np.isin(names, lacking), 0] > 0).all()
    np.testing.assert_allclose(network, one, atol=0.05)
    for model in fits:
        shares = [np.mean(y == name) for name in ("died", "no", "yes")]
        np.testing.assert_allclose(model.model_.common.shares, shares, atol=1e-9)


@given(seeds, st.integers(2, 5), st.booleans())
def test_shares_follow_from_mean_squares(seed, n_classes, equal):
    rng = np.random.default_rng(seed)
    shares = rng.dirichlet(np.ones(n_classes))
    subtracted = np.full(n_classes, 1 / n_classes) if equal else shares
    squares = shares * (1 - subtracted) ** 2 + (1 - shares) * subtracted**2
    expected = subtracted if n_classes == 2 and equal else shares
    np.testing.assert_allclose(class_shares(squares, subtracted), expected, atol=1e-9)


@pytest.mark.parametrize("run", [None, "network"])
def test_without_an_intercept_no_class_is_lost(run):
    rng = np.random.default_rng(0)
    names = np.repeat(np.arange(8), 40)
    X = rng.normal([3.0, 0.0, 0.0], size=(320, 3))
    y = np.array(["a", "b", "c"])[rng.choice(3, size=320, p=[0.15, 0.4, 0.45])]
    backend = LocalBackend()
    backend.scales_targets = run == "network"
    model = MultiTaskELMClassifier(20, random_state=0, fit_intercept=False, shared_classes=["a", "b", "c"])
    model.fit(X, y, tasks=names, run=RunConfig(backend=backend))
    np.testing.assert_allclose(model.predict_proba(X, tasks=names).mean(axis=0), [0.15, 0.4, 0.45], atol=0.06)


@pytest.mark.parametrize("rows", [40, 300])
def test_a_class_that_a_site_lacks_by_chance_stays_when_the_site_is_added_or_forgets_a_row(rows):
    X, y, names, _ = rare(4, 40)
    site = next(t for t in range(6) if "died" not in y[names == t])
    rest = names != site
    model = MultiTaskELMClassifier(20, random_state=0).fit(X[rest], y[rest], tasks=names[rest])
    model.add_site(site, X[~rest], y[~rest])
    assert model.task_classes_[site].tolist() == ["died", "no", "yes"]
    whole = MultiTaskELMClassifier(20, random_state=0).fit(X, y, tasks=names)
    first = np.flatnonzero(~rest)[:1]
    whole.forget(X[first], y[first], tasks=names[first])
    assert whole.task_classes_[site].tolist() == ["died", "no", "yes"]


def test_a_site_with_many_rows_keeps_its_own_probabilities_at_an_update():
    X, y, names, _ = rare(1, 400)
    model = MultiTaskELMClassifier(20, random_state=0).fit(X, y, tasks=names)
    before = model.model_.heads[2]
    new = rare(2, 3)
    model.partial_fit(new[0][:3], new[1][:3], tasks=np.full(3, 2))
    after = model.model_.heads[2]
    assert after.temperature != before.temperature
    assert after.temperature == pytest.approx(before.temperature, rel=0.02)
    np.testing.assert_allclose(after.link, before.link, atol=0.05)


def test_a_declared_class_without_rows_is_improbable_everywhere():
    X, y, names, _ = rare(1, 40)
    many = np.repeat(np.arange(6), 500)
    for rows in ((X, y, names), (*rare(2, 500)[:2], many)):
        model = MultiTaskELMClassifier(20, random_state=0, shared_classes=["died", "lost", "no", "yes"])
        model.fit(rows[0], rows[1], tasks=rows[2])
        with pytest.warns(UnknownSiteWarning):
            found = model.predict_proba(X, tasks=np.full(len(X), 99))
        assert found[:, 1].max() < 1e-6
        assert model.predict_proba(X, tasks=names)[:, 1].max() < 1e-6


# Fits ----------------------------------------------------------------------------------------------------------------


def rare(seed, rows, sites=6):
    """Rows of sites with three classes, of which the first is rare: inputs, classes, sites, true probabilities."""
    rng = np.random.default_rng(seed)
    X, names = rng.normal(size=(sites * rows, 2)), np.repeat(np.arange(sites), rows)
    logits = np.column_stack([-3.4 + 0.5 * X[:, 1], np.zeros(len(X)), -0.3 + 0.9 * X[:, 0]])
    chances = softmax(logits, axis=1)
    y = np.array(["died", "no", "yes"])[(chances.cumsum(axis=1) < rng.random((len(X), 1))).sum(axis=1)]
    return X, y, names, chances


@pytest.mark.parametrize("rows", [40, pytest.param(300, marks=pytest.mark.thorough)])
def test_a_rare_class_is_as_probable_as_it_is_frequent(rows):
    """Both where sites have fewer rows than features and where they have more."""
    means, shares = [], []
    for seed in range(3):
        X, y, names, _ = rare(seed, rows)
        new, _, sites, chances = rare(seed + 100, 500)
        model = MultiTaskELMClassifier(random_state=0).fit(X, y, tasks=names)
        found = model.predict_proba(new, tasks=sites)
        means.append(found[:, 0].mean())
        shares.append(np.mean(y == "died"))
        loss, least = (-np.mean(np.sum(chances * np.log(p), axis=1)) for p in (found, chances))
        assert loss < least + 0.07
    assert np.mean(shares) < 0.03
    assert abs(np.mean(means) - np.mean(shares)) < 0.01


@pytest.mark.thorough
def test_the_most_probable_class_is_predicted_also_by_saved_models_and_by_one_site_s(tmp_path):
    X, y, names, _ = rare(5, 40)
    model = MultiTaskELMClassifier(random_state=0).fit(X, y, tasks=names)
    assert model.model_.common.link is not None
    model.save(tmp_path / "m")
    one = model.for_task(2)
    one.save(tmp_path / "one")
    rows = names == 2
    for again, chosen in ((load(tmp_path / "m"), slice(None)), (one, rows), (load(tmp_path / "one"), rows)):
        found = again.predict_proba(X[chosen], tasks=names[chosen])
        np.testing.assert_array_equal(found, model.predict_proba(X[chosen], tasks=names[chosen]))
        np.testing.assert_array_equal(again.classes_[np.argmax(found, axis=1)], again.predict(X[chosen], names[chosen]))
    with pytest.warns(UnknownSiteWarning):
        assert np.allclose(model.predict_proba(X[:5], tasks=[99] * 5).sum(axis=1), 1.0)


@given(seeds)
def test_processes_take_the_same_steps_however_sites_are_spread(seed):
    sites = sites_of(seed, [5, 9, 3], 3)
    expected = found_by(sites, 3)
    for order in ([2, 0, 1], [1, 2, 0]):
        found = found_by([sites[k] for k in order], 3)
        assert found[0] == expected[0]
        np.testing.assert_array_equal(found[1], expected[1])


def agents_of(sites, shares):
    """The search of agents, each with one site, and the number of the sum that the agents wait for."""
    return [
        find_link([(0, site)], replace(only_context(), agent=np.array([k], dtype=np.intp)), 1, shares, 0.5)
        for k, site in enumerate(sites)
    ]


def summed(programs, tamper=None):
    """Results of agents whose sums are formed; ``tamper`` may change what the first one sends."""
    answers, results = [None] * len(programs), [None] * len(programs)
    for n in range(1000):
        requests = []
        for k, program in enumerate(programs):
            try:
                requests.append(program.send(answers[k]))
            except StopIteration as end:
                results[k] = end.value
        if not requests:
            return results, n
        assert len(requests) == len(programs), "all end together"
        assert {request.topic for request in requests} == {Topic.NUMBERS}
        values = [request.value for request in requests]
        if tamper is not None:
            values[0] = tamper(n, values[0])
        answers = [sum(values)] * len(programs)
    raise AssertionError("the search does not end")


@given(seeds)
def test_agents_find_the_same_link_and_that_of_one_process(seed):
    sites = sites_of(seed, [5, 9, 3], 3)
    counts = sum(site.counts(3) for site in sites)
    expected = found_by(sites, 3)
    results, sums = summed(agents_of(sites, counts / counts.sum()))
    assert sums <= 3 * 30
    for temperature, link in results:
        assert temperature == expected[0]
        np.testing.assert_array_equal(link, expected[1])


def test_the_first_agent_does_not_choose_where_the_others_answer():
    """The third sum is that of the first agent's next step, which follows from the totals."""
    sites = sites_of(0, [5, 9, 3], 3)
    counts = sum(site.counts(3) for site in sites)

    def far(n, value):
        return to_wide(from_wide(value.reshape(-1, LIMBS)) + 1000.0).reshape(value.shape) if n == 2 else value

    with pytest.raises(ElmeshError, match="other numbers than those that follow from the totals"):
        summed(agents_of(sites, counts / counts.sum()), far)
