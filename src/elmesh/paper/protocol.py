"""The classification protocol of the paper: its data, two ways of drawing tasks from them, and what it leaves open.

Ten tasks of three classes each, with 90 training and 45 test rows. The paper cites Kang, Grauman and Sha (ICML 2011)
for its digits. Their release has 2,000 rows of USPS and of MNIST, already reduced to the 64 and 87 principal components
of the paper's text. The paper does not state how tasks draw their rows. If every task draws its own, a test row of a
task can be a training row of another: the leak that :mod:`elmesh.paper.classification` measures. A
:class:`ProtocolVariant` is one set of such choices. Without the release, rows are drawn from images of other releases.
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
from elmesh.datasets import Digits, TaskSplit, load_kang_digits, load_mnist5k, load_usps, make_digit_tasks
from elmesh.errors import ElmeshError
from elmesh.typing import FloatArray, IndexArray

__all__ = [
    "DATASETS", "DEFAULT_VARIANT", "DISJOINT", "IMAGES", "INDEPENDENT", "KANG", "NO_LEAK", "PROTOCOLS", "SCALINGS",
    "Dataset", "ProtocolVariant", "draw_rows", "draw_tasks", "hidden_features", "list_cases", "load_rows",
    "missing_data", "missing_reason", "parse_case", "stack_tasks",
]  # fmt: skip

#: Where rows come from: the release, or images of other releases, with PCA on the training rows of each draw.
KANG, IMAGES = "Kang et al. 2011", "images"
#: How tasks draw rows: each its own; the same without rows that are test rows of any task; no row in two tasks.
INDEPENDENT, NO_LEAK, DISJOINT = "independent draws", "no leak", "no row used twice"
TASKS, CLASSES, TRAIN_EACH, TEST_EACH = 10, 3, 30, 15


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

    source: str = KANG
    drawing: str = INDEPENDENT
    scaling: str = "none"  # of the components before the hidden layer: a key of SCALINGS
    rank: int = 6  # number of columns of U and of latent tasks of the rivals: two for each class of a task
    init: str = "random"  # start of DMTL-ELM and FO-DMTL-ELM
    rivals_intercept: bool = False  # whether the methods on the inputs have an intercept


#: The protocols of Figs. 5 and 6 and of Table 1: two ways of drawing from the release, and the one without it.
PROTOCOLS = {
    INDEPENDENT: ProtocolVariant(),
    DISJOINT: ProtocolVariant(drawing=DISJOINT),
    IMAGES: ProtocolVariant(source=IMAGES, drawing=DISJOINT, rivals_intercept=True),
}

#: The protocol that claims are judged by.
DEFAULT_VARIANT = PROTOCOLS[INDEPENDENT]


def _column_range(train: FloatArray) -> tuple[FloatArray, FloatArray]:
    low, high = train.min(axis=0), train.max(axis=0)
    return (low + high) / 2, (high - low) / 2


#: Functions from the components of the training rows to a shift and a divisor.
SCALINGS: dict[str, Callable[[FloatArray], tuple[FloatArray | float, FloatArray | float]]] = {
    "none": lambda train: (0.0, 1.0),
    "each component of mean 0": lambda train: (train.mean(axis=0), 1.0),
    "largest component 1": lambda train: (0.0, float(np.abs(train).max())),
    "each component in [-1, 1]": _column_range,
    "each component of variance 1": lambda train: (0.0, train.std(axis=0)),
}


@cache
def load_rows(name: str, source: str) -> Digits:
    """Load the components of a data set from the release, or its images with pixels in [0, 1]."""
    if source == KANG:
        return load_kang_digits(name)
    if name == "mnist":
        return load_mnist5k()
    if name == "digits":
        X, y = load_digits(return_X_y=True)
        return Digits(X / 16.0, y)
    usps = load_usps()
    return Digits((usps.X_train + 1.0) / 2.0, usps.y_train)


@cache
def missing_reason(name: str, source: str) -> str:
    """Return why data are not available and how to get them; an empty text if they are available."""
    try:
        load_rows(name, source)
    except ElmeshError as error:
        return str(error)
    return ""


def missing_data(*names: str) -> dict[str, str]:
    """Return what is missing, by title, and how to get it: the release, and without it the images of data sets."""
    if not names or not (reason := missing_reason(names[0], KANG)):
        return {}
    images = {DATASETS[name].title: missing_reason(name, IMAGES) for name in names}
    return {KANG: reason} | {title: own for title, own in images.items() if own}


def list_cases(*names: str, drawings: tuple[str, ...] = (INDEPENDENT, DISJOINT)) -> list[str]:
    """Return the cases of an experiment: data sets with ways of drawing, or without the release those of images."""
    if not missing_reason(names[0], KANG):
        return [f"{name}, {drawing}" for name in names for drawing in drawings]
    return [f"{name}, {IMAGES}" for name in names if not missing_reason(name, IMAGES)] or [f"digits, {IMAGES}"]


def parse_case(case: str) -> tuple[str, str]:
    """Return the data set and the protocol of a case.

    >>> parse_case("usps, independent draws")
    ('usps', 'independent draws')
    """
    name, protocol = case.split(", ")
    return name, protocol


def draw_rows(y: IndexArray, seed: int, drawing: str) -> tuple[IndexArray, IndexArray]:
    """Draw the row numbers of all tasks, of shapes (10, 90) and (10, 45).

    With the same seed, independent draws and those without a leak have the same classes and test rows, and most
    training rows in common.
    """
    if drawing == DISJOINT:
        split = make_digit_tasks(np.arange(len(y))[:, None], y, pca=None, seed=seed)
        train, test = (rows.astype(np.intp).reshape(TASKS, -1) for rows in (split.X_train, split.X_test))
        return train, test
    rng = np.random.default_rng(seed)
    labels = np.unique(y)
    classes = [rng.choice(labels, CLASSES, replace=False) for _ in range(TASKS)]
    shuffled = [[rng.permutation(np.flatnonzero(y == label)) for label in own] for own in classes]
    test = np.array([np.concatenate([rows[:TEST_EACH] for rows in own]) for own in shuffled])
    taken = test if drawing == NO_LEAK else np.empty(0, dtype=np.intp)
    rest = [[rows[TEST_EACH:][~np.isin(rows[TEST_EACH:], taken)] for rows in own] for own in shuffled]
    return np.array([np.concatenate([rows[:TRAIN_EACH] for rows in own]) for own in rest]), test


def draw_tasks(name: str, seed: int, variant: ProtocolVariant) -> TaskSplit:
    """Draw the tasks of the paper at random."""
    digits = load_rows(name, variant.source)
    in_train, in_test = draw_rows(digits.y, seed, variant.drawing)
    tasks = np.array([f"site-{t:02d}" for t in range(1, TASKS + 1)])
    train, test = digits.X[in_train.ravel()], digits.X[in_test.ravel()]
    if variant.source == IMAGES:
        pca = PCA(DATASETS[name].components, svd_solver="covariance_eigh").fit(train)
        train, test = pca.transform(train), pca.transform(test)
    shift, size = SCALINGS[variant.scaling](train)
    return TaskSplit(
        (train - shift) / size, digits.y[in_train.ravel()], np.repeat(tasks, in_train.shape[1]),
        (test - shift) / size, digits.y[in_test.ravel()], np.repeat(tasks, in_test.shape[1]),
    )  # fmt: skip


def hidden_features(split: TaskSplit, n_hidden: int, seed: int) -> tuple[list[FloatArray], list[FloatArray]]:
    """Return H and T of every task for the training rows."""
    H = HiddenLayer(split.X_train.shape[1], n_hidden, seed=seed)(split.X_train)
    groups = group_rows(split.tasks_train, len(H))
    targets, _ = one_hot(split.y_train, groups)
    return [H[groups[t]] for t in groups], [targets[t] for t in groups]


def stack_tasks(H: list[FloatArray], T: list[FloatArray]) -> Task:
    """Return tasks in the form of the solvers; without an intercept, as in the paper."""
    return Task.stack([Task.from_reduced(Reduced.from_rows(h, t, centre=False)) for h, t in zip(H, T, strict=True)])
