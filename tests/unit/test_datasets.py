"""Digits split into tasks, and the data sets that are read from files or downloaded."""

from __future__ import annotations

from functools import partial
from urllib.error import URLError

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.datasets import load_digits

from elmesh.datasets import (
    CLINICS,
    load_digits_tasks,
    load_kang_digits,
    load_school,
    load_usps,
    make_digit_tasks,
    simulate_clinics,
)
from elmesh.datasets import public as datasets
from elmesh.errors import ElmeshError
from helpers.examples import examples
from helpers.marks import needs_data
from helpers.paper_cases import simulate_release


def row_numbers(n_rows_per_class, n_classes):
    """Return rows that contain their own number, so that a drawn row can be identified."""
    y = np.repeat(np.arange(n_classes), n_rows_per_class)
    return np.arange(len(y), dtype=float)[:, None], y


@pytest.fixture
def no_data(monkeypatch, tmp_path):
    """A machine without data: no folder in ELMESH_DATA, an empty cache, no network."""

    def unreachable(**_):
        raise URLError("no route to host")

    monkeypatch.delenv("ELMESH_DATA", raising=False)
    monkeypatch.setattr(datasets, "get_data_home", lambda: str(tmp_path / "home"))
    monkeypatch.setattr(datasets, "fetch_openml", unreachable)
    return tmp_path


@given(
    n_tasks=st.integers(1, 12),
    classes=st.integers(2, 5),
    extra_train=st.integers(0, 9),
    extra_test=st.integers(0, 9),
    seed=st.integers(0, 2**32 - 1),
)
@examples(60)
def test_no_row_is_used_twice_and_every_task_has_its_classes_and_rows(n_tasks, classes, extra_train, extra_test, seed):
    n_train, n_test = classes + extra_train, classes + extra_test
    X, y = row_numbers(n_tasks * 16, 7)
    split = make_digit_tasks(
        X, y, n_tasks=n_tasks, classes=classes, n_train=n_train, n_test=n_test, pca=None, seed=seed
    )
    drawn = np.concatenate([split.X_train, split.X_test])[:, 0].astype(int)
    assert len(np.unique(drawn)) == len(drawn)
    np.testing.assert_array_equal(y[drawn], np.concatenate([split.y_train, split.y_test]))
    for task in np.unique(split.tasks_train):
        train, test = split.y_train[split.tasks_train == task], split.y_test[split.tasks_test == task]
        assert (len(train), len(test)) == (n_train, n_test)
        assert len(np.unique(train)) == classes
        assert set(train) == set(test)
        for half in (train, test):
            counts = np.unique(half, return_counts=True)[1]
            assert counts.max() - counts.min() <= 1
    assert len(np.unique(split.tasks_train)) == n_tasks


@given(
    room=st.lists(st.integers(0, 6), min_size=1, max_size=8),
    n_tasks=st.integers(1, 6),
    classes=st.integers(2, 5),
    seed=st.integers(0, 1000),
)
@examples(200)
def test_the_draw_succeeds_exactly_when_a_greedy_one_does(room, n_tasks, classes, seed):
    left, greedy = list(room), True
    for _ in range(n_tasks):
        fullest = sorted(range(len(left)), key=lambda c: -left[c])[:classes]
        greedy &= len(fullest) == classes and all(left[c] > 0 for c in fullest)
        for c in fullest:
            left[c] -= 1

    # One training and one test row per class and task, so a class with 2 n rows can be in n tasks.
    y = np.repeat(np.arange(len(room)), 2 * np.array(room))
    draw = partial(make_digit_tasks, np.zeros((len(y), 1)), y, n_tasks=n_tasks, classes=classes, pca=None, seed=seed)
    if not greedy:
        with pytest.raises(ElmeshError, match="do not suffice"):
            draw(n_train=classes, n_test=classes)
        return
    split = draw(n_train=classes, n_test=classes)
    tasks = [split.y_train[split.tasks_train == task] for task in np.unique(split.tasks_train)]
    assert len(tasks) == n_tasks
    assert all(len(set(own.tolist())) == classes == len(own) for own in tasks)


def test_rows_that_just_suffice_are_all_used():
    X, y = row_numbers(135, 10)
    for seed in range(20):
        split = make_digit_tasks(X, y, pca=None, seed=seed)
        drawn = np.concatenate([split.X_train, split.X_test])[:, 0]
        np.testing.assert_array_equal(np.sort(drawn), X[:, 0])


def test_tasks_do_not_all_have_the_same_classes():
    split = load_digits_tasks(pca=None)
    seen = {tuple(np.unique(split.y_train[split.tasks_train == t])) for t in np.unique(split.tasks_train)}
    assert len(seen) > 5


def test_the_same_seed_gives_the_same_tasks_and_another_seed_does_not():
    first, again, other = (load_digits_tasks(seed=seed) for seed in (3, 3, 4))
    for name in ("X_train", "y_train", "tasks_train", "X_test", "y_test", "tasks_test"):
        np.testing.assert_array_equal(getattr(first, name), getattr(again, name))
    assert not np.array_equal(first.y_train, other.y_train)


def test_bundled_digits_are_scaled_and_are_those_of_scikit_learn():
    split = load_digits_tasks(pca=None)
    X, y = load_digits(return_X_y=True)
    known = {(row.tobytes(), label) for row, label in zip(X / 16.0, y, strict=True)}
    assert all((row.tobytes(), label) in known for row, label in zip(split.X_test, split.y_test, strict=True))
    assert (split.X_train.min(), split.X_train.max()) == (0.0, 1.0)
    assert split.X_train.shape == (900, 64)
    assert split.X_test.shape == (450, 64)


def test_principal_components_are_fitted_on_training_rows_only():
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(400, 8)), np.repeat(np.arange(4), 100)
    plain = make_digit_tasks(X, y, n_tasks=3, n_train=30, n_test=15, pca=None)
    split = make_digit_tasks(X, y, n_tasks=3, n_train=30, n_test=15, pca=5)
    mean = plain.X_train.mean(axis=0)
    axes = np.linalg.svd(plain.X_train - mean)[2][:5]
    for rows, projected in ((plain.X_train, split.X_train), (plain.X_test, split.X_test)):
        np.testing.assert_allclose(np.abs(projected), np.abs((rows - mean) @ axes.T), atol=1e-12)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"n_tasks": 14}, "do not suffice"),
        ({"n_train": 900}, "do not suffice"),
        ({"classes": 11}, "do not suffice"),
        ({"n_tasks": 0}, "n_tasks must be at least 1"),
        ({"classes": 1}, "at least 2 classes"),
        ({"n_test": 2}, "n_test must be at least one row for each of the 3 classes"),
        ({"pca": 65}, "between 1 and 64"),
        ({"pca": 0}, "between 1 and 64"),
    ],
)
def test_impossible_tasks_are_refused_with_the_reason(change, words):
    with pytest.raises(ElmeshError, match=words):
        load_digits_tasks(**change)


def test_labels_that_do_not_match_the_rows_are_refused():
    with pytest.raises(ElmeshError, match="one label per row"):
        make_digit_tasks(np.zeros((5, 2)), np.zeros(4))


@needs_data
def test_usps_has_its_usual_split_and_range():
    usps = load_usps()
    assert usps.X_train.shape == (7291, 256)
    assert usps.X_test.shape == (2007, 256)
    assert tuple(np.bincount(usps.y_train)) == datasets.USPS_TRAIN_COUNTS
    assert np.abs(usps.X_train).max() <= 1.0
    split = make_digit_tasks(usps.X_train, usps.y_train)
    assert split.X_train.shape == (900, 64)


@needs_data
def test_school_has_its_schools_and_constant_column():
    school = load_school()
    assert school.X.shape == (15362, 28)
    assert len(np.unique(school.tasks)) == 139
    assert (school.X[:, -1] == 1.0).all()


@needs_data
@pytest.mark.parametrize(("name", "components"), [("usps", 64), ("mnist", 87)])
def test_the_digits_of_kang_et_al_have_ten_classes_of_about_two_hundred_rows(name, components):
    digits = load_kang_digits(name)
    assert digits.X.shape == (2000, components)
    classes, counts = np.unique(digits.y, return_counts=True)
    assert classes.tolist() == list(range(1, 11))
    assert counts.min() > 160
    assert len(np.unique(digits.X, axis=0)) == 2000


def test_the_digits_of_kang_et_al_are_read_from_the_folder_in_elmesh_data(no_data, monkeypatch):
    arrays = simulate_release(no_data)
    monkeypatch.setenv("ELMESH_DATA", str(no_data))
    for name in ("usps", "mnist"):
        digits = load_kang_digits(name)
        np.testing.assert_array_equal(digits.X, arrays[f"{name}_X"])
        np.testing.assert_array_equal(digits.y, arrays[f"{name}_y"])
        assert (digits.X.dtype, digits.y.dtype) == (np.float64, np.int64)
    with pytest.raises(ElmeshError, match="name must be one of usps, mnist"):
        load_kang_digits("digits")


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("usps_X", np.zeros((2000, 87)), r"usps_X should be numbers of shape \(2000, 64\)"),
        ("usps_X", np.full((2000, 64), np.nan), "usps_X contains values that are not finite"),
        ("usps_y", np.arange(2000) % 10, "usps_y should have the classes 1 to 10"),
        ("usps_y", np.arange(2000) % 9 + 1, "usps_y should have the classes 1 to 10"),
        ("usps_y", np.arange(2000) % 10 + 1.5, "usps_y should have the classes 1 to 10"),
        ("usps_y", np.array([None] * 2000, dtype=object), "not a readable data file"),
    ],
)
def test_another_release_of_the_digits_is_refused_with_the_reason(no_data, monkeypatch, name, value, words):
    arrays = simulate_release(no_data) | {name: value}
    np.savez(no_data / "kang_digits.npz", **arrays)
    monkeypatch.setenv("ELMESH_DATA", str(no_data))
    with pytest.raises(ElmeshError, match=words):
        load_kang_digits("usps")


@pytest.mark.parametrize(
    ("load", "name"),
    [
        (load_usps, "usps.npz"),
        (load_school, "school.npz"),
        (partial(load_kang_digits, "usps"), "kang_digits.npz"),
    ],
)
def test_without_data_the_error_names_the_file_to_provide(no_data, load, name):
    with pytest.raises(ElmeshError, match=rf"put {name} .* into .*ELMESH_DATA"):
        load()


def test_usps_is_downloaded_once_split_and_cached(no_data, monkeypatch):
    labels = np.repeat(np.arange(10), datasets.USPS_TRAIN_COUNTS)
    y = np.concatenate([labels, np.arange(2007) % 10])
    X = np.random.default_rng(0).uniform(-1, 1, size=(9298, 256)).astype(np.float32)
    calls = []

    def openml(**options):
        calls.append(options["data_id"])
        return X, (y + 1).astype(str).astype(object)

    monkeypatch.setattr(datasets, "fetch_openml", openml)
    first, second = load_usps(), load_usps()
    assert calls == [41082]
    np.testing.assert_array_equal(first.X_train, X[:7291])
    np.testing.assert_array_equal(first.y_test, y[7291:])
    np.testing.assert_array_equal(first.X_test, second.X_test)
    assert [file.name for file in (no_data / "home" / "elmesh").iterdir()] == ["usps.npz"]


def test_another_table_from_openml_is_refused(no_data, monkeypatch):
    monkeypatch.setattr(datasets, "fetch_openml", lambda **_: (np.zeros((9298, 256)), np.ones(9298)))
    with pytest.raises(ElmeshError, match="not the USPS"):
        load_usps()
    assert not (no_data / "home").exists()


@pytest.mark.parametrize("damage", ["cut", "text", "missing", "pickled", "shape", "array"])
def test_a_damaged_file_is_named_and_never_unpickled(no_data, monkeypatch, damage):
    path = no_data / "school.npz"
    arrays = {"X": np.zeros((15362, 28)), "y": np.zeros(15362), "task": np.zeros(15362, dtype=int)}
    if damage == "missing":
        del arrays["task"]
    if damage == "pickled":
        arrays["y"] = np.array([None] * 15362, dtype=object)
    if damage == "shape":
        arrays["y"] = np.zeros(3)
    if damage == "array":
        with path.open("wb") as file:
            np.save(file, arrays["X"])
    elif damage == "text":
        path.write_text("not a data file")
    else:
        np.savez_compressed(path, **arrays)
    if damage == "cut":
        path.write_bytes(path.read_bytes()[:200])
    monkeypatch.setenv("ELMESH_DATA", str(no_data))
    with pytest.raises(ElmeshError, match=r"school\.npz"):
        load_school()


def test_simulated_clinics_have_the_rows_that_are_stated_and_new_patients_for_every_seed():
    first, again, other = (simulate_clinics(seed=seed, n_test=7) for seed in (0, 0, 1))
    names, counts = np.unique(first.tasks_train, return_counts=True)
    assert dict(zip(names.tolist(), counts.tolist(), strict=True)) == CLINICS
    assert np.unique(first.tasks_test, return_counts=True)[1].tolist() == [7] * len(CLINICS)
    assert np.array_equal(first.y_train, again.y_train)
    assert not np.isin(first.X_train[:, 0], other.X_train[:, 0]).any()
    assert not np.isin(first.X_train[:, 0], first.X_test[:, 0]).any()


def test_two_simulated_clinics_differ_and_one_is_noisy():
    split = simulate_clinics(seed=0, n_test=5000)
    fits = {}
    for name in CLINICS:
        rows = split.tasks_test == name
        X = np.column_stack([np.ones(rows.sum()), split.X_test[rows]])
        weights, (left,), *_ = np.linalg.lstsq(X, split.y_test[rows], rcond=None)
        fits[name] = weights[1:], np.sqrt(left / rows.sum())
    middle = np.median([slopes for slopes, _ in fits.values()], axis=0)
    away = {name: float(np.linalg.norm(slopes - middle)) for name, (slopes, _) in fits.items()}
    assert set(sorted(away, key=away.get)[-2:]) == {"Larch", "Oak"}
    assert max(fits, key=lambda name: fits[name][1]) == "Maple"
