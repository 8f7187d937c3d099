"""The paper's classification protocol, and the choices that it leaves open.

Ten tasks of three digits each, 90 rows to learn from and 45 to be tested on, principal components of the pixels. The
paper does not say which part of USPS the rows come from nor how the components are scaled; :class:`Reading` names a
choice. :data:`AS_READ` is the one all experiments use; what the others change is an experiment of its own
(:mod:`elmesh.paper.readings`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import numpy as np
from sklearn.datasets import load_digits
from sklearn.decomposition import PCA

from elmesh.data.features import HiddenLayer
from elmesh.data.statistics import Reduced, Task
from elmesh.data.tasks import group_rows, one_hot
from elmesh.datasets import Digits, TaskSplit, load_mnist5k, load_usps, make_digit_tasks
from elmesh.errors import ElmeshError
from elmesh.typing import FloatArray

__all__ = [
    "AS_READ",
    "DATA_SETS",
    "DataSet",
    "Reading",
    "at_hand",
    "draw",
    "pictures",
    "reduced",
    "stand_in",
    "why_missing",
]


@dataclass(frozen=True)
class DataSet:
    """A data set of the evaluation.

    Parameters
    ----------
    title : str
        Its name for people.
    components : int
        Principal components kept.
    penalty : float
        The paper's regularisation for the methods that it did not propose; those that it did take its square root.
    """

    title: str
    components: int
    penalty: float


DATA_SETS = {
    "usps": DataSet("USPS", 64, 10.0),
    "mnist": DataSet("MNIST", 87, 20.0),
    # Not in the paper: it comes with scikit-learn, so that something can always be run. 95 % of the variance is kept.
    "digits": DataSet("digits", 29, 10.0),
}


@dataclass(frozen=True)
class Reading:
    """How the paper's protocol is read where it can be read in several ways.

    Parameters
    ----------
    pool : {"all", "train"}
        Which part of USPS rows are drawn from.
    scaling : str
        What is done to the principal components before the hidden layer: a key of :data:`SCALINGS`.
    pca_rows : {"train", "all"}
        Whether components come from the training rows or from training and test rows together.
    rank : int
        Number of columns of U, and of latent tasks of the rivals.
    rivals_intercept : bool
        Whether the methods on the inputs themselves have an intercept.
    """

    pool: str = "train"
    scaling: str = "none"
    pca_rows: str = "train"
    rank: int = 6
    rivals_intercept: bool = True


AS_READ = Reading()


def _by_column(train: FloatArray) -> tuple[FloatArray, FloatArray]:
    low, high = train.min(axis=0), train.max(axis=0)
    return (low + high) / 2, (high - low) / 2


#: From the training rows' components to what is taken off them and what they are divided by.
SCALINGS: dict[str, Callable[[FloatArray], tuple[FloatArray | float, FloatArray | float]]] = {
    "none": lambda train: (0.0, 1.0),
    "pixels in [-1, 1]": lambda train: (0.0, 0.5),
    "largest component 1": lambda train: (0.0, float(np.abs(train).max())),
    "each component in [-1, 1]": _by_column,
    "each component of variance 1": lambda train: (0.0, train.std(axis=0)),
}


@cache
def pictures(name: str, pool: str = AS_READ.pool) -> Digits:
    """Load a data set's pictures, pixels in [0, 1]."""
    if name == "mnist":
        return load_mnist5k()
    if name == "digits":
        X, y = load_digits(return_X_y=True)
        return Digits(X / 16.0, y)
    usps = load_usps()
    X, y = usps.X_train, usps.y_train
    if pool == "all":
        X, y = np.concatenate([X, usps.X_test]), np.concatenate([y, usps.y_test])
    return Digits((X + 1.0) / 2.0, y)


@cache
def why_missing(name: str) -> str:
    """Return why a data set cannot be had and how to get it; an empty text if it is at hand."""
    try:
        pictures(name)
    except ElmeshError as error:
        return str(error)
    return ""


def at_hand(*names: str) -> list[str]:
    """Return those data sets that can be had; the digits that always can if there are none."""
    return [name for name in names if not why_missing(name)] or ["digits"]


def stand_in(name: str) -> str:
    """Return the data set itself if it is at hand, and else the digits that always are."""
    return at_hand(name)[0]


def draw(name: str, seed: int, reading: Reading = AS_READ) -> TaskSplit:
    """Draw tasks at random in the paper's way."""
    digits = pictures(name, reading.pool)
    split = make_digit_tasks(digits.X, digits.y, pca=None, seed=seed)
    rows = split.X_train if reading.pca_rows == "train" else np.concatenate([split.X_train, split.X_test])
    pca = PCA(DATA_SETS[name].components, svd_solver="covariance_eigh").fit(rows)
    train, test = pca.transform(split.X_train), pca.transform(split.X_test)
    shift, size = SCALINGS[reading.scaling](train)
    return TaskSplit(
        (train - shift) / size, split.y_train, split.tasks_train, (test - shift) / size, split.y_test, split.tasks_test
    )


def reduced(split: TaskSplit, n_hidden: int, seed: int) -> Task:
    """Return the tasks as the solvers see them: without intercept, as in the paper."""
    H = HiddenLayer(split.X_train.shape[1], n_hidden, seed=seed)(split.X_train)
    groups = group_rows(split.tasks_train, len(H))
    targets, _ = one_hot(split.y_train, groups)
    rows = [Reduced.from_rows(H[groups[t]], targets[t], centre=False) for t in groups]
    return Task.stack([Task.from_reduced(task) for task in rows])
