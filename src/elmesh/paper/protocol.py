"""The classification protocol of the paper, and the choices that it leaves open.

Ten tasks of three digits each, with 90 training and 45 test rows, on principal components of the pixels. The paper does
not state which part of USPS it uses nor how the components are scaled. A :class:`ProtocolVariant` is one such choice;
:mod:`elmesh.paper.classification` measures what the choices change.
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
    "DATASETS", "DEFAULT_VARIANT", "SCALINGS", "Dataset", "ProtocolVariant", "available_datasets", "draw_tasks",
    "hidden_features", "load_images", "missing_reason", "stack_tasks",
]  # fmt: skip


@dataclass(frozen=True)
class Dataset:
    """Title, number of principal components, and penalty of a data set.

    The penalty is that of the methods the paper compares with; the methods it proposes use its square root.
    """

    title: str
    components: int
    penalty: float


DATASETS = {
    "usps": Dataset("USPS", 64, 10.0),
    "mnist": Dataset("MNIST", 87, 20.0),
    # Not in the paper, but always available with scikit-learn. The components keep 95 % of the variance.
    "digits": Dataset("digits", 29, 10.0),
}


@dataclass(frozen=True)
class ProtocolVariant:
    """One set of choices for what the paper leaves open."""

    pool: str = "train"  # the part of USPS that rows are drawn from: "train" or "all"
    scaling: str = "none"  # of the principal components before the hidden layer: a key of SCALINGS
    pca_rows: str = "train"  # whether PCA is fitted to the training rows or to "all" rows
    rank: int = 6  # number of columns of U, and of latent tasks of the rivals
    rivals_intercept: bool = True  # whether the methods on the inputs have an intercept


#: The variant that all experiments use.
DEFAULT_VARIANT = ProtocolVariant()


def _column_range(train: FloatArray) -> tuple[FloatArray, FloatArray]:
    low, high = train.min(axis=0), train.max(axis=0)
    return (low + high) / 2, (high - low) / 2


#: Functions from the components of the training rows to a shift and a divisor.
SCALINGS: dict[str, Callable[[FloatArray], tuple[FloatArray | float, FloatArray | float]]] = {
    "none": lambda train: (0.0, 1.0),
    "pixels in [-1, 1]": lambda train: (0.0, 0.5),
    "largest component 1": lambda train: (0.0, float(np.abs(train).max())),
    "each component in [-1, 1]": _column_range,
    "each component of variance 1": lambda train: (0.0, train.std(axis=0)),
}


@cache
def load_images(name: str, pool: str = DEFAULT_VARIANT.pool) -> Digits:
    """Load the images of a data set, with pixels in [0, 1]."""
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
def missing_reason(name: str) -> str:
    """Return why a data set is not available and how to get it; an empty text if it is available."""
    try:
        load_images(name)
    except ElmeshError as error:
        return str(error)
    return ""


def available_datasets(*names: str) -> list[str]:
    """Return the data sets that are available; the bundled digits if there are none."""
    return [name for name in names if not missing_reason(name)] or ["digits"]


def draw_tasks(name: str, seed: int, variant: ProtocolVariant = DEFAULT_VARIANT) -> TaskSplit:
    """Draw the tasks of the paper at random."""
    digits = load_images(name, variant.pool)
    split = make_digit_tasks(digits.X, digits.y, pca=None, seed=seed)
    rows = split.X_train if variant.pca_rows == "train" else np.concatenate([split.X_train, split.X_test])
    pca = PCA(DATASETS[name].components, svd_solver="covariance_eigh").fit(rows)
    train, test = pca.transform(split.X_train), pca.transform(split.X_test)
    shift, size = SCALINGS[variant.scaling](train)
    return TaskSplit(
        (train - shift) / size, split.y_train, split.tasks_train, (test - shift) / size, split.y_test, split.tasks_test
    )


def hidden_features(split: TaskSplit, n_hidden: int, seed: int) -> tuple[list[FloatArray], list[FloatArray]]:
    """Return H and T of every task for the training rows."""
    H = HiddenLayer(split.X_train.shape[1], n_hidden, seed=seed)(split.X_train)
    groups = group_rows(split.tasks_train, len(H))
    targets, _ = one_hot(split.y_train, groups)
    return [H[groups[t]] for t in groups], [targets[t] for t in groups]


def stack_tasks(H: list[FloatArray], T: list[FloatArray]) -> Task:
    """Return tasks in the form of the solvers; without an intercept, as in the paper."""
    return Task.stack([Task.from_reduced(Reduced.from_rows(h, t, centre=False)) for h, t in zip(H, T, strict=True)])
