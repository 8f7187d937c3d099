"""Rows that come later and rows that must go, from statistics alone."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

import elmesh
from elmesh import DMTLELM, ElmeshError, LocalELM, MeshELM, MultiTaskELMClassifier, MultiTaskELMRegressor, Privacy
from elmesh.data import site_statistics
from helpers.marks import one_of


def two_parts(seed=0, sites=3, rows=16, classes=0):
    """Two tables with the same means, deviations and quantiles of every column, so that both scale alike."""
    rng = np.random.default_rng(seed)
    parts = [[], []]
    for t in range(sites):
        half = rng.normal(size=(rows // 2, 3))
        X = np.concatenate([half, -half])
        y = X @ [1.0, -0.5, 0.3 * t] + 0.5 * rng.normal(size=rows)
        if classes:
            y = np.argsort(np.argsort(y)) * classes // rows
        shuffled = np.column_stack([np.concatenate([c, -c]) for c in (rng.permutation(c) for c in half.T)])
        parts[0].append((X, y, np.full(rows, f"s{t}")))
        parts[1].append((shuffled, rng.permutation(y), np.full(rows, f"s{t}")))
    return [tuple(np.concatenate(column) for column in zip(*part, strict=True)) for part in parts]


def joined(*parts):
    return tuple(np.concatenate(column) for column in zip(*parts, strict=True))


def fit(part, kind=MultiTaskELMRegressor, **options):
    X, y, site = part
    return kind(**{"n_hidden": 12, "random_state": 0, **options}).fit(X, y, tasks=site)


CASES = {
    "three parts": (MultiTaskELMRegressor, {}),
    "no shared part": (MultiTaskELMRegressor, {"solver": MeshELM(rank=0)}),
    "alone": (MultiTaskELMRegressor, {"solver": LocalELM()}),
    "the paper's": (MultiTaskELMRegressor, {"solver": DMTLELM(rank=2, mu1=0.3, mu2=0.3, max_iter=20, tol=0.0)}),
    "classes": (MultiTaskELMClassifier, {}),
    "classes of each site": (MultiTaskELMClassifier, {"shared_classes": False}),
}


@pytest.mark.parametrize(("kind", "options"), CASES.values(), ids=CASES)
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning", "ignore::elmesh.errors.RankWarning")
def test_rows_added_later_are_as_good_as_rows_of_the_fit(kind, options):
    first, second = two_parts(classes=3 if kind is MultiTaskELMClassifier else 0)
    expected = fit(joined(first, second), kind, **options)
    model = fit(first, kind, **options)
    method = "predict" if kind is MultiTaskELMRegressor else "predict_proba"
    before = getattr(model, method)(first[0], tasks=first[2])
    model.partial_fit(*second[:2], tasks=second[2])
    for X, _, site in (first, second):
        found = getattr(model, method)(X, tasks=site)
        np.testing.assert_allclose(found, getattr(expected, method)(X, tasks=site), atol=1e-6)
    assert np.abs(getattr(model, method)(first[0], tasks=first[2]) - before).max() > 1e-3
    model.forget(*second[:2], tasks=second[2])
    np.testing.assert_array_equal(getattr(model, method)(first[0], tasks=first[2]), before)


def test_forgetting_gives_the_fit_of_the_other_rows():
    first, second = two_parts(1)
    model, expected = fit(joined(first, second)).forget(*second[:2], tasks=second[2]), fit(first)
    np.testing.assert_allclose(
        model.predict(first[0], tasks=first[2]), expected.predict(first[0], tasks=first[2]), atol=1e-8
    )
    np.testing.assert_allclose(model.variances_, expected.variances_, rtol=1e-5)


def test_of_many_rows_sums_are_enough(monkeypatch):
    """Sites with more rows than are kept: the same results to rounding, added, taken away, saved and read."""
    first, second = two_parts(2, rows=40)
    expected, both = fit(first), fit(joined(first, second))
    monkeypatch.setattr(site_statistics, "KEPT", 25)
    model = fit(first)
    assert not any(site.is_complete for site in model.statistics_.sites.values())
    X, _, site = first
    np.testing.assert_allclose(model.predict(X, tasks=site), expected.predict(X, tasks=site), atol=0.02)
    small = fit(first, solver=MeshELM(rank=0)), fit(joined(first, second), solver=MeshELM(rank=0))
    monkeypatch.undo()
    exact = fit(first, solver=MeshELM(rank=0)), fit(joined(first, second), solver=MeshELM(rank=0))
    for one, other in zip(small, exact, strict=True):
        np.testing.assert_allclose(one.predict(X, tasks=site), other.predict(X, tasks=site), atol=1e-6)
    grown = small[0].partial_fit(*second[:2], tasks=second[2])
    np.testing.assert_allclose(grown.predict(X, tasks=site), exact[1].predict(X, tasks=site), atol=1e-6)
    shrunk = small[1].forget(*second[:2], tasks=second[2])
    np.testing.assert_allclose(shrunk.predict(X, tasks=site), exact[0].predict(X, tasks=site), atol=1e-6)
    gains, of_all = grown.site_gains(), exact[1].site_gains()
    assert gains.overall.rows == of_all.overall.rows == both.statistics_.sites["s0"].n_rows * 3
    assert gains.overall.together == pytest.approx(of_all.overall.together, rel=0.1)


def test_a_site_that_comes_with_later_rows_is_learned_with_the_others():
    first, _ = two_parts(3, sites=4)
    old = first[2] != "s3"
    model = fit(tuple(column[old] for column in first))
    new = tuple(column[first[2] == "s3"] for column in first)
    before = model.W_.copy()
    model.partial_fit(*new[:2], tasks=new[2])
    assert model.tasks_.tolist() == ["s0", "s1", "s2", "s3"]
    assert np.abs(model.W_ - before).max() > 1e-6
    assert model.score(*new[:2], tasks=new[2]) > 0.3


def test_a_site_without_rows_left_is_no_longer_in_the_model():
    first, _ = two_parts(4)
    own = first[2] == "s1"
    model = fit(first).forget(first[0][own], first[1][own], tasks=first[2][own])
    assert model.tasks_.tolist() == ["s0", "s2"]
    expected = fit(tuple(column[~own] for column in first))
    rest = first[0][~own], first[2][~own]
    # Scales are those of the first fit, in which the site had a part.
    np.testing.assert_allclose(
        model.predict(rest[0], tasks=rest[1]), expected.predict(rest[0], tasks=rest[1]), atol=0.3
    )
    with pytest.raises(ElmeshError, match="No rows would be left"):
        model.forget(*rest[:1], first[1][~own], tasks=rest[1])


def test_what_is_not_in_the_model_cannot_be_forgotten_and_nothing_changes():
    first, second = two_parts(5)
    model = fit(first)
    before = model.predict(first[0], tasks=first[2])
    wrong = np.concatenate([first[0][:2], second[0][:1]]), np.concatenate([first[1][:2], second[1][:1]])
    with pytest.raises(ElmeshError, match=r"1 row of task 's0' is not among those .* row 2 .* nothing was changed"):
        model.forget(*wrong, tasks=np.full(3, "s0"))
    with pytest.raises(ElmeshError, match="no task 'elsewhere'"):
        model.forget(first[0][:1], first[1][:1], tasks=["elsewhere"])
    np.testing.assert_array_equal(model.predict(first[0], tasks=first[2]), before)
    assert model.statistics_.sites["s0"].n_rows == 16


def test_classes_that_the_first_fit_did_not_have_are_refused():
    first, _ = two_parts(6, classes=2)
    model = fit(first, MultiTaskELMClassifier)
    with pytest.raises(ElmeshError, match="does not know the class 9"):
        model.partial_fit(first[0][:1], [9], tasks=["s0"])


def test_partial_fit_of_an_unfitted_classifier_takes_all_classes():
    first, _ = two_parts(7, classes=3)
    model = MultiTaskELMClassifier(n_hidden=8, random_state=0)
    few = first[1] < 2
    model.partial_fit(first[0][few], first[1][few], tasks=first[2][few], classes=[0, 1, 2])
    assert model.classes_.tolist() == [0, 1, 2]
    assert model.shared_classes == "auto"
    assert set(model.predict(first[0], tasks=first[2])) <= {0, 1}
    model.partial_fit(first[0][~few], first[1][~few], tasks=first[2][~few])
    assert set(model.predict(first[0], tasks=first[2])) == {0, 1, 2}


# Where what is common cannot be learned again ------------------------------------------------------------------------


def own_parts_alone(model):
    """The model as a site of a network has it: others had a part in what is common."""
    model.statistics_ = replace(model.statistics_, joint=False)
    return model


def test_beside_others_only_own_parts_change():
    first, second = two_parts(8)
    model = own_parts_alone(fit(first))
    common, other = model.model_.common, model.model_.heads["s1"]
    own = second[2] == "s0"
    before = model.predict(second[0][own], tasks=second[2][own])
    model.partial_fit(second[0][own], second[1][own], tasks=second[2][own])
    assert model.model_.common is common
    assert model.model_.heads["s1"] is other
    after = model.predict(second[0][own], tasks=second[2][own])
    assert np.mean((after - second[1][own]) ** 2) < np.mean((before - second[1][own]) ** 2)
    # The site's part is that of a site with these rows that comes later.
    late = own_parts_alone(fit(first))
    late.model_ = replace(late.model_, heads={t: h for t, h in late.model_.heads.items() if t != "s0"})
    late.statistics_ = replace(late.statistics_, sites={t: s for t, s in late.statistics_.sites.items() if t != "s0"})
    rows = joined(tuple(column[first[2] == "s0"] for column in first), tuple(column[own] for column in second))
    late.add_site("s0", *rows[:2])
    np.testing.assert_allclose(late.predict(second[0][own], tasks=second[2][own]), after, atol=1e-9)
    model.forget(second[0][own], second[1][own], tasks=second[2][own])
    assert model.model_.common is common
    with pytest.raises(ElmeshError, match="add_site"):
        model.partial_fit(first[0][:2], first[1][:2], tasks=["new", "new"])


def test_after_a_private_fit_only_own_parts_change():
    rng = np.random.default_rng(0)
    X, site = rng.uniform(-1, 1, size=(900, 2)), np.repeat(["a", "b", "c"], 300)
    y = X[:, 0] + 0.1 * rng.normal(size=900)
    privacy = Privacy(epsilon=20.0, input_range=(-1, 1), target_range=(-1, 1))
    model = MultiTaskELMRegressor(10, solver=MeshELM(privacy=privacy), random_state=0).fit(X, y, tasks=site)
    W, S = model.W_.copy(), model.model_.common.S
    model.partial_fit(X[:50] + 0.01, y[:50] + 1.0, tasks=np.full(50, "a"))
    np.testing.assert_array_equal(model.W_, W)
    assert model.model_.common.S is S


def test_a_model_without_a_common_part_has_no_own_parts_to_learn():
    first, second = two_parts(9)
    model = own_parts_alone(fit(first, solver=LocalELM()))
    with pytest.raises(ElmeshError, match="common part"):
        model.partial_fit(*second[:2], tasks=second[2])


# Files ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("kept", "kind"), one_of(2, [2048, 10], [MultiTaskELMRegressor, MultiTaskELMClassifier]))
def test_a_model_from_a_file_learns_on_as_the_one_that_was_saved(tmp_path, monkeypatch, kind, kept):
    monkeypatch.setattr(site_statistics, "KEPT", kept)
    first, second = two_parts(10, classes=2 if kind is MultiTaskELMClassifier else 0)
    model = fit(first, kind, class_weight="balanced") if kind is MultiTaskELMClassifier else fit(first)
    model.save(tmp_path / "model")
    loaded = elmesh.load(tmp_path / "model")
    for one in (model, loaded):
        one.partial_fit(*second[:2], tasks=second[2])
    np.testing.assert_array_equal(loaded.predict(second[0], tasks=second[2]), model.predict(second[0], tasks=second[2]))
    model.save(tmp_path / "one")
    loaded.save(tmp_path / "other")
    for name in ("model.json", "weights.safetensors", "statistics/statistics.json", "statistics/rows.safetensors"):
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "other" / name).read_bytes()


def test_statistics_are_for_the_owner_of_the_folder_alone(tmp_path):
    fit(two_parts()[0]).save(tmp_path / "model")
    folder = tmp_path / "model" / "statistics"
    assert folder.stat().st_mode & 0o777 == 0o700
    assert {path.name: path.stat().st_mode & 0o777 for path in folder.iterdir()} == {
        "rows.safetensors": 0o600,
        "statistics.json": 0o600,
    }
    assert "statistics/" in (tmp_path / "model" / "README.md").read_text()


def test_a_model_is_complete_without_its_statistics(tmp_path):
    first, _ = two_parts()
    model = fit(first)
    model.save(tmp_path / "model", statistics=False)
    assert not (tmp_path / "model" / "statistics").exists()
    assert "statistics/" not in (tmp_path / "model" / "README.md").read_text()
    loaded = elmesh.load(tmp_path / "model")
    np.testing.assert_array_equal(loaded.predict(first[0], tasks=first[2]), model.predict(first[0], tasks=first[2]))
    for call in (loaded.partial_fit, loaded.forget):
        with pytest.raises(ElmeshError, match="no statistics"):
            call(*first[:2], tasks=first[2])
    with pytest.raises(ElmeshError, match="no statistics"):
        loaded.site_gains()
    # A site can be added all the same.
    assert "late" in loaded.add_site("late", *first[:2]).tasks_


def test_the_model_of_one_task_has_no_statistics(tmp_path):
    model = fit(two_parts()[0])
    one = model.for_task("s1")
    one.save(tmp_path / "one")
    assert not (tmp_path / "one" / "statistics").exists()


def test_altered_statistics_are_refused(tmp_path):
    first, second = two_parts()
    for name in ("a", "b"):
        fit(first if name == "a" else second).save(tmp_path / name)
    rows, document = (tmp_path / "a" / "statistics" / name for name in ("rows.safetensors", "statistics.json"))
    data, text = rows.read_bytes(), document.read_text()

    def refusal():
        with pytest.raises(ElmeshError) as caught:
            elmesh.load(tmp_path / "a").forget(first[0][:1], first[1][:1], tasks=first[2][:1])
        return str(caught.value)

    rows.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    assert "altered" in refusal()
    rows.write_bytes(data[:-8])
    assert "cut short" in refusal()
    rows.unlink()
    assert "no file rows.safetensors" in refusal()
    rows.write_bytes(data)
    document.write_text(json.dumps({**json.loads(text), "seed": 7}))
    assert "altered" in refusal()
    for name in ("rows.safetensors", "statistics.json"):
        (tmp_path / "a" / "statistics" / name).write_bytes((tmp_path / "b" / "statistics" / name).read_bytes())
    assert "another model" in refusal()


def test_a_model_of_a_table_learns_on_with_its_columns():
    first, second = two_parts(11)
    tables = [
        pd.DataFrame(X, columns=["a", "b", "c"]).assign(site=site, word=np.where(X[:, 0] > 0, "up", "down"))
        for X, _, site in (first, second)
    ]
    model = MultiTaskELMRegressor(10, task="site", random_state=0).fit(tables[0], first[1])
    before = model.predict(tables[0])
    model.partial_fit(tables[1], second[1])
    # In another order of columns, and with the tasks given.
    model.forget(tables[1][["word", "c", "a", "b", "site"]][tables[1].columns], second[1])
    np.testing.assert_array_equal(model.predict(tables[0]), before)


def test_updates_run_in_one_process():
    first, second = two_parts()
    with pytest.raises(ElmeshError, match="one process"):
        fit(first).partial_fit(*second[:2], tasks=second[2], run=elmesh.RunConfig(backend="mpi"))


def test_a_model_that_was_replaced_since_it_was_loaded_does_not_lend_its_statistics(tmp_path):
    first, second = two_parts()
    fit(first).save(tmp_path / "model")
    loaded, again = elmesh.load(tmp_path / "model"), elmesh.load(tmp_path / "model")
    again.partial_fit(*second[:2], tasks=second[2]).save(tmp_path / "model", overwrite=True)
    with pytest.raises(ElmeshError, match="load it again"):
        loaded.partial_fit(*second[:2], tasks=second[2])
    # What it has read before is its own.
    assert again.known_rows(*second[:2], tasks=second[2]).all()


def test_known_rows_are_as_many_as_the_model_has_copies():
    first, second = two_parts()
    model = fit(first)
    X, y, site = joined(second, first, first)
    expected = [False] * len(second[0]) + [True] * len(first[0]) + [False] * len(first[0])
    assert model.known_rows(X, y, tasks=site).tolist() == expected
    assert model.count_known_rows(X, y, tasks=site) == len(first[0])
