"""Private fits: what is released, what it costs, what a site finds at home, and what is refused."""

from __future__ import annotations

import warnings

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone

import elmesh
from elmesh import LocalELM, MeshELM, MultiTaskELMClassifier, MultiTaskELMRegressor, Privacy, RunConfig
from elmesh.comm.local import LocalTransport
from elmesh.comm.requests import AllReduce, IntegerSum, NeighborSum, Topic
from elmesh.errors import ElmeshError, UnknownSiteWarning
from elmesh.estimators.private_fit import PrivateFit, Scales, ScaleSearch, start_private_fit
from elmesh.privacy.accounting import epsilon_of, rho_for
from elmesh.privacy.discrete_gaussian import NoiseSource
from elmesh.run.local_backend import LocalBackend

RANGES = {"input_range": (-1.8, 1.8), "target_range": (-3.0, 3.0)}
SITES = [f"site {k}" for k in range(9)]


def table(seed: int = 0, rows: int = 100, sites: int = 9):
    rng = np.random.default_rng(seed)
    site = np.repeat(SITES[:sites], rows)
    X = rng.normal(size=(len(site), 3))
    shift = dict(zip(SITES, rng.normal(size=9) * 0.5, strict=True))
    y = X @ [1.0, -0.5, 0.3] + np.array([shift[s] for s in site]) + 0.5 * rng.normal(size=len(site))
    return X, y, site


def private(make=MultiTaskELMRegressor, solver: dict | None = None, classes: object = None, **privacy: object):
    declared = {} if classes is None else {"shared_classes": classes}
    # More hidden units than are released.
    return make(20, solver=MeshELM(privacy=Privacy(**privacy), **(solver or {})), random_state=0, **declared)


class ReleasedError(Exception):
    """The total has been released."""


@pytest.fixture
def fixed_noise(monkeypatch):
    """Noise that is the same in every fit, for comparisons."""
    monkeypatch.setattr(NoiseSource, "fresh", classmethod(lambda cls: cls(b"1" * 32)))


# What is released.


def test_a_fit_with_declared_ranges_releases_one_total_and_nothing_else(monkeypatch):
    X, y, site = table(rows=20)
    seen = []
    integer_sum = LocalTransport.integer_sum

    def record(self, request: IntegerSum):
        seen.append(request)
        return integer_sum(self, request)

    def refuse(self, request):
        raise AssertionError(request)

    monkeypatch.setattr(LocalTransport, "integer_sum", record)
    monkeypatch.setattr(LocalTransport, "allreduce", refuse)
    monkeypatch.setattr(LocalTransport, "neighbor_sum", refuse)
    model = private(**RANGES).set_params(n_hidden="auto").fit(X, y, site)
    (request,) = seen
    assert request.topic is Topic.PRIVATE
    assert request.rho == pytest.approx(rho_for(1.0, 1e-5), rel=1e-3)
    report = model.privacy_
    assert [one.numbers for one in report.releases] == [len(request.value)]
    # The constant, three inputs and eight hidden units: products with each other and with the target.
    assert len(request.value) == 12 * 13 // 2 + 12
    assert report.epsilon == pytest.approx(1.0, abs=1e-3)
    assert report.epsilon <= 1.0
    assert (report.sites, report.colluders, report.scales) == (9, 3, "declared")


def test_sites_release_the_same_whatever_else_is_in_their_tables(fixed_noise):
    """Of two tables that differ in one row of one site, all other sites' weights differ by the release alone."""
    X, y, site = table(rows=45, sites=4)
    changed = X.copy()
    changed[0] = [50.0, -50.0, 50.0]
    one, other = (private(**RANGES).fit(Z, y, site) for Z in (X, changed))
    difference = np.linalg.norm(one.W_ - other.W_)
    assert 0 < difference < 0.1 * np.linalg.norm(one.W_)


def test_noise_is_other_noise_in_every_fit():
    X, y, site = table(rows=45, sites=4)
    first, second = (private(**RANGES).fit(X, y, site).W_ for _ in range(2))
    assert np.linalg.norm(first - second) > 1e-6


def test_the_noise_of_a_fit_is_as_large_as_stated(monkeypatch):
    """Differences of two releases of the same table, in units of the stated noise."""
    X, y, site = table(rows=20)
    totals = []
    integer_sum = LocalTransport.integer_sum

    def record(self, request: IntegerSum):
        totals.append(integer_sum(self, request))
        raise ReleasedError  # what follows, sites do at home

    monkeypatch.setattr(LocalTransport, "integer_sum", record)
    sigma = []
    draw = NoiseSource.draw
    monkeypatch.setattr(NoiseSource, "draw", lambda self, label, s: sigma.append(s) or draw(self, label, s))
    for _ in range(12):
        with pytest.raises(ReleasedError):
            private(**RANGES).fit(X, y, site)
    assert len(sigma) == 12 * 9
    noise = (np.array(totals) - np.mean(totals, axis=0)) / sigma[0]
    # Nine sites, of which six are honest: the noise of all is larger than the stated one by nine sixths.
    assert np.var(noise) * 12 / 11 == pytest.approx(9.0, rel=5 * np.sqrt(2 / noise.size))


def test_without_colluders_the_same_epsilon_takes_less_noise_of_each_site():
    X, y, site = table(rows=20)
    reports = [private(max_colluders=k, **RANGES).fit(X, y, site).privacy_ for k in (0, 3, 7)]
    assert [round(report.epsilon, 3) for report in reports] == [1.0, 1.0, 1.0]
    rho = rho_for(1.0, 1e-5)
    expected = [epsilon_of(rho * (9 - k) / 9, 1e-5) for k in (0, 3, 7)]
    assert [report.epsilon_without_colluders for report in reports] == pytest.approx(expected, rel=2e-3)


# Scales.


def test_scales_that_are_not_declared_are_found_and_paid_for():
    X, y, site = table(rows=400)
    model = private().fit(1e3 * X + 5e3, 1e-3 * y + 7.0, site)
    report = model.privacy_
    assert report.scales == "found"
    assert len(report.releases) == 3
    assert report.epsilon == pytest.approx(1.0, abs=2e-3)
    assert report.epsilon <= 1.0
    assert np.all((model.model_.layer.scale > 300) & (model.model_.layer.scale < 3000))
    assert model.score(1e3 * X + 5e3, 1e-3 * y + 7.0, site) > 0.6


@pytest.mark.parametrize(
    ("declared", "lacking"),
    [({}, "inputs and targets"), ({"input_range": (-2, 2)}, "targets"), ({"target_range": (-3, 3)}, "inputs")],
)
def test_with_too_few_rows_for_scales_nothing_is_released_and_ranges_are_asked_for(declared, lacking, monkeypatch):
    monkeypatch.setattr(NoiseSource, "draw", lambda *_: pytest.fail("released"))
    X, y, site = table(rows=5)
    with pytest.raises(ElmeshError, match=f"centre and spread of the {lacking}. Declare") as error:
        private(**declared).fit(X, y, site)
    assert all(f"{name}=..." not in str(error.value) for name in declared)


def test_the_scale_of_targets_is_looked_for_where_that_of_inputs_is_declared():
    X, y, site = table(rows=100)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        report = private(input_range=(-2, 2)).fit(X, y, site).privacy_
    assert report.scales == "found"
    assert [one.what for one in report.releases][:2] == ["powers of two", "equal bins"]


# What a site finds at home.


def test_together_is_better_than_alone_and_close_to_without_noise():
    X, y, site = table(rows=12, sites=9)
    new = table(seed=1, rows=100)
    new = new[0], new[0] @ [1.0, -0.5, 0.3], new[2]
    shift = {s: np.mean(y[site == s] - X[site == s] @ [1.0, -0.5, 0.3]) for s in SITES}
    target = new[1] + np.array([shift[s] for s in new[2]])

    def error(model):
        return float(np.mean((model.fit(X, y, site).predict(new[0], new[2]) - target) ** 2))

    alone = error(MultiTaskELMRegressor(solver=LocalELM(), random_state=0))
    together = np.mean([error(private(epsilon=10.0, **RANGES)) for _ in range(4)])
    assert together < 0.7 * alone


def test_with_hardly_any_budget_a_site_is_as_good_as_alone():
    X, y, site = table(rows=60)
    rng = np.random.default_rng(3)
    Z = rng.normal(size=(900, 3))
    T = Z @ [1.0, -0.5, 0.3] + np.repeat([np.mean((y - X @ [1.0, -0.5, 0.3])[site == s]) for s in SITES], 100)
    names = np.repeat(SITES, 100)
    alone = MultiTaskELMRegressor(solver=LocalELM(), random_state=0).fit(X, y, site).predict(Z, names)
    noisy = private(epsilon=0.05, **RANGES).fit(X, y, site).predict(Z, names)
    assert np.mean((noisy - T) ** 2) < 1.5 * np.mean((alone - T) ** 2)


def test_intervals_cover_new_rows():
    X, y, site = table(rows=40)
    model = private(**RANGES).fit(X, y, site)
    rng = np.random.default_rng(5)
    Z, names = rng.normal(size=(9000, 3)), np.repeat(SITES, 1000)
    shift = {s: np.mean((y - X @ [1.0, -0.5, 0.3])[site == s]) for s in SITES}
    T = Z @ [1.0, -0.5, 0.3] + np.array([shift[s] for s in names]) + 0.5 * rng.normal(size=9000)
    predicted, std = model.predict(Z, names, return_std=True)
    assert 0.85 < np.mean(np.abs(T - predicted) < 1.645 * std) < 0.95


def test_classes_are_learnt_privately():
    X, y, site = table(rows=200)
    label = np.where(y > 0, "high", "low")
    model = private(MultiTaskELMClassifier, classes=["low", "high"], input_range=(-2, 2)).fit(X, label, site)
    assert model.privacy_.scales == "declared"
    assert model.score(X, label, site) > 0.75
    assert np.all(model.predict_proba(X, site).sum(axis=1) == pytest.approx(1.0))
    with pytest.warns(UnknownSiteWarning):
        unknown = model.predict(X[:5], np.repeat("another", 5))
    assert set(unknown) <= {"high", "low"}


def test_three_classes_of_which_sites_lack_some():
    X, y, site = table(rows=100)
    label = np.digitize(y, [-0.7, 0.7])
    label[(site == SITES[0]) & (label == 2)] = 1
    model = private(MultiTaskELMClassifier, classes=[0, 1, 2], epsilon=5.0, input_range=(-2, 2)).fit(X, label, site)
    assert set(model.task_classes_[SITES[0]]) == {0, 1}
    assert set(model.predict(X[:100], site[:100])) <= {0, 1}
    assert model.score(X, label, site) > 0.6


def test_a_site_may_be_added_later_from_its_own_rows_alone():
    X, y, site = table(rows=225, sites=4)
    model = private(**RANGES).fit(X, y, site)
    before = model.predict(X, site)
    model.add_site("late", X[:30], y[:30] + 3.0)
    np.testing.assert_array_equal(model.predict(X, site), before)
    assert np.corrcoef(model.predict(X[30:100], np.repeat("late", 70)), y[30:100])[0, 1] > 0.8
    assert np.mean(model.predict(X[:30], np.repeat("late", 30)) - y[:30]) == pytest.approx(3.0, abs=0.3)


@pytest.mark.parametrize("make", [MultiTaskELMRegressor, MultiTaskELMClassifier])
def test_a_model_is_saved_with_what_it_promises(make, tmp_path):
    X, y, site = table(rows=50)
    targets = y if make is MultiTaskELMRegressor else (y > 0).astype(int)
    classes = None if make is MultiTaskELMRegressor else [0, 1]
    model = private(make, classes=classes, **RANGES).fit(X, targets, site)
    model.save(tmp_path / "model")
    loaded = elmesh.load(tmp_path / "model")
    np.testing.assert_array_equal(loaded.predict(X, site), model.predict(X, site))
    assert loaded.solver.privacy == model.solver.privacy
    if make is MultiTaskELMRegressor:
        for one, other in zip(
            loaded.predict(X, site, return_std=True), model.predict(X, site, return_std=True), strict=True
        ):
            np.testing.assert_array_equal(one, other)
    np.testing.assert_allclose(loaded.variances_, model.variances_)
    summary = model.summary()
    assert "is not private" in summary["privacy"]["model"]
    assert "epsilon 1, delta 1e-05 against 3 colluding sites of 9" in summary["privacy"]["promise"]
    assert summary["certificate"] is None
    alone = model.for_task(SITES[0])
    np.testing.assert_array_equal(alone.predict(X[:50]), model.predict(X[:50], site[:50]))


def test_parameters_can_be_cloned_and_searched():
    model = private(epsilon=2.0)
    assert clone(model).solver.privacy == Privacy(epsilon=2.0)
    assert model.get_params()["solver__privacy"] == Privacy(epsilon=2.0)


def test_masked_traffic_is_that_of_one_sum_and_of_keys():
    X, y, site = table(rows=110, sites=4)
    plain, masked = (
        private(**RANGES).fit(X, y, site, run=RunConfig(backend=LocalBackend(mask=mask))).traffic_["bytes"].sum()
        for mask in (False, True)
    )
    assert plain < masked


# What is refused.


@pytest.mark.parametrize(
    ("privacy", "why"),
    [
        (Privacy(epsilon=0.0), "epsilon"),
        (Privacy(epsilon=-1.0), "epsilon"),
        (Privacy(epsilon=float("nan")), "epsilon"),
        (Privacy(epsilon=1000.0), "above 100 nothing is protected"),
        (Privacy(delta=0.0), "delta"),
        (Privacy(delta=0.5), "delta is 0.5; it must be at most 0.01"),
        (Privacy(max_colluders=-1), "max_colluders"),
        (Privacy(max_colluders=8), "at least two sites must not collude"),
        (Privacy(input_range=(1, 0)), "input_range must be a range such as"),
        (Privacy(input_range="wide"), "input_range must be a range such as"),
        (Privacy(target_range=[(0, 1), (1, 1)]), "target_range must be a range such as"),
        (Privacy(input_range=[(0, 1)] * 2), "input_range has 2 ranges for 3 columns"),
        (Privacy(target_range=[(0, 1)] * 2, input_range=(0, 1)), "target_range has 2 ranges for 1 columns"),
        (0.5, "privacy must be a Privacy"),
    ],
)
def test_what_cannot_be_promised_is_refused(privacy, why):
    X, y, site = table(rows=10)
    with pytest.raises(ElmeshError, match=why):
        MultiTaskELMRegressor(solver=MeshELM(privacy=privacy)).fit(X, y, site)


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"rank": 2}, "no shared part"),
        ({"mu1": 1.0}, "no shared part"),
        ({"common": False}, "a common and a private part"),
        ({"private": False}, "a common and a private part"),
        ({"graph": None}, "give a graph"),
    ],
)
def test_what_does_not_go_with_it_is_refused(options, why):
    X, y, site = table(rows=10)
    with pytest.raises(ElmeshError, match=why):
        private(solver=options).fit(X, y, site)


def test_an_epsilon_that_is_too_small_for_any_result_is_refused_before_anything_is_released(monkeypatch):
    X, y, site = table(rows=10)
    monkeypatch.setattr(NoiseSource, "draw", lambda *_: pytest.fail("something was released"))
    with pytest.raises(ElmeshError, match=r"too small for any usable result.*Use an epsilon of at least"):
        private(epsilon=0.01, **RANGES).fit(X, y, site)


@pytest.mark.parametrize("shared_classes", ["auto", True, False])
@pytest.mark.parametrize("sites", [1, 9])
def test_classes_that_are_not_declared_are_refused_also_in_one_process(shared_classes, sites, monkeypatch):
    monkeypatch.setattr(NoiseSource, "draw", lambda *_: pytest.fail("something was released"))
    X, y, site = table(rows=30, sites=sites)
    model = private(MultiTaskELMClassifier, classes=shared_classes, **RANGES)
    with pytest.raises(ElmeshError, match=r"needs the names of all classes.*Declare them.*shared_classes=\["):
        model.fit(X, np.where(y > 0, "high", "low"), site)


def test_a_class_outside_of_those_that_are_declared_is_refused():
    X, y, site = table(rows=30)
    with pytest.raises(ElmeshError, match="has the class 'low', which is not among the declared classes"):
        private(MultiTaskELMClassifier, classes=["high", "other"], **RANGES).fit(
            X, np.where(y > 0, "high", "low"), site
        )


def test_what_is_released_does_not_depend_on_which_classes_occur(monkeypatch):
    """Also if all rows have the same class: as many numbers, at the same cost, and weights for all classes."""
    X, y, site = table(rows=70, sites=4)
    seen = []
    integer_sum = LocalTransport.integer_sum
    monkeypatch.setattr(
        LocalTransport, "integer_sum", lambda self, request: seen.append(request) or integer_sum(self, request)
    )
    for label in (np.digitize(y, [-0.7, 0.7]), (y > 0).astype(int), np.zeros(len(y), dtype=int)):
        model = private(MultiTaskELMClassifier, classes=[0, 1, 2], **RANGES).fit(X, label, site)
        assert model.classes_.tolist() == [0, 1, 2]
        assert model.W_.shape[1] == 3
    assert len({(len(request.value), request.rho) for request in seen}) == 1
    assert len(seen) == 3


# Networks: nothing is spent on a run that is refused.


class StatedBackend(LocalBackend):
    """One site of a network, whose sites have stated so many rows, and which releases nothing."""

    most_rows = 10**6

    def __init__(self, stated: int) -> None:
        super().__init__()
        self._stated = stated

    def sure_rows(self, rows):
        return self._stated

    def noisy_sum_over_tasks(self, values, sigma, rho):
        pytest.fail("something was released")


def search(stated: int, sites: int = 9, **privacy: object) -> ScaleSearch:
    return ScaleSearch(Privacy(**privacy), StatedBackend(stated), sites)


def test_scales_of_a_network_are_not_looked_for_where_noise_would_hide_them():
    search(3000).check_network(["age", "dose"], 3000, 10, 0)
    with pytest.raises(
        ElmeshError, match=r"the 300 rows .* hide the centre and spread of 'age', 'dose'. Declare a range"
    ):
        search(300).check_network(["age", "dose"], 300, 10, 0)


@pytest.mark.parametrize(("columns", "classes"), [(4000, 0), (200, 50)])
def test_scales_of_a_network_are_not_looked_for_where_noise_would_hide_the_totals_after_them(columns, classes):
    search(500).check_network(["age"], 500, 10, 3)
    with pytest.raises(ElmeshError, match="too small for any usable result"):
        search(500).check_network(["age"], 500, columns, classes)


def test_scales_of_a_network_are_not_looked_for_where_totals_could_overflow():
    large = search(10**6, sites=4000)
    large.check_network(["age"], 10**6, 10, 0)
    large.backend.most_rows = 10**12
    with pytest.raises(ElmeshError, match="too large for 64-bit integers; lower most_rows"):
        large.check_network(["age"], 10**6, 10, 0)


def test_what_is_checked_before_the_scales_is_what_is_checked_after_them():
    """Whether a fit of as many features is refused once the scales are found."""
    refused = set()
    for columns in range(3000, 4000, 50):
        try:
            search(500).check_network(["age"], 500, columns, 0)
        except ElmeshError:
            refused.add(columns)
        _, costs = ScaleSearch(Privacy(), LocalBackend(), 9).run({"a": np.ones((500, 1))}, (1,))
        unit = np.zeros(1), np.ones(1)
        fit = PrivateFit(Privacy(), 9, 500.0, 9e6, Scales(unit, unit, "found"), costs)
        if columns in refused:
            with pytest.raises(ElmeshError, match="too small for any usable result"):
                fit.mechanism(columns + 9, 1)
        else:
            fit.mechanism(columns + 9, 1)
    assert 0 < len(refused) < 20


@pytest.mark.parametrize("own", [1, 5000])
@pytest.mark.parametrize(("stated", "possible"), [(10, False), (2000, True)])
def test_whether_a_network_fits_at_all_depends_on_what_all_sites_state_and_not_on_a_sites_own_rows(
    own, stated, possible
):
    rows, T = {"here": np.zeros((own, 3))}, {"here": np.zeros((own, 1))}
    fit = start_private_fit(Privacy(epsilon=0.5), StatedBackend(stated), 9, rows, T)
    assert fit.rows == stated
    if possible:
        fit.mechanism(12, 1)
    else:
        with pytest.raises(ElmeshError, match="too small for any usable result"):
            fit.mechanism(12, 1)


def agent_without_range(folder, **changes: object):
    """Return an agent that is not open, of a private network whose file lacks the range of a column."""
    from elmesh.agent import NetworkAgent
    from elmesh.netconfig.columns import InputColumn
    from elmesh.netconfig.layout import NetworkLayout
    from helpers.network import PRIVATE_REGRESSION, make_config

    fields = PRIVATE_REGRESSION | {
        "columns": (InputColumn("x0"), InputColumn("x1", range=(0.0, 1.0))),
        "statistics": True,
    }
    NetworkLayout(folder, make_config(**(fields | changes))).write(days=2)
    return NetworkAgent(folder / "north" / "agent.toml")


@pytest.mark.parametrize(("stated", "why"), [(300, "Declare a range"), (30_000, None)])
def test_an_agent_asks_how_many_rows_there_are_before_it_releases_anything_for_scales(
    stated, why, tmp_path, monkeypatch
):
    from elmesh.agent.backend import NetworkBackend
    from elmesh.agent.column_scales import exchange_scales

    steps = []

    def release(self, values, sigma, rho):
        steps.append("released")
        return next(iter(values.values())) * stated

    monkeypatch.setattr(NetworkBackend, "sure_rows", lambda *_: steps.append("stated") or stated)
    monkeypatch.setattr(NetworkBackend, "noisy_sum_over_tasks", release)
    frame = pd.DataFrame({"x0": [1.5, 1.7], "x1": [0.1, 0.2], "y": [1.0, 2.0]})
    with agent_without_range(tmp_path / "net") as agent:
        monkeypatch.setattr(agent.checkpoint, "note", lambda *_: None)
        if why is None:
            found = exchange_scales(agent, frame, ["x0"])
            assert 1.0 < found["x0"][0] < 2.0
            assert steps == ["stated", "released", "released"]
        else:
            with pytest.raises(ElmeshError, match=why):
                exchange_scales(agent, frame, ["x0"])
            assert steps == ["stated"]


def test_a_private_solver_asks_for_one_kind_of_sum():
    solver = MeshELM(privacy=Privacy())
    assert not {AllReduce, IntegerSum, NeighborSum} & set(solver.requires)
