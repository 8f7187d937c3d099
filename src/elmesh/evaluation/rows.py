"""Rows of sites as methods take them, and their division into folds.

Words are the codes of categories, and gaps are NaN: what a method makes of them, it finds from its training rows.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Self

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray
from sklearn.compose import make_column_transformer
from sklearn.impute import SimpleImputer
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

from elmesh.data.tasks import group_rows
from elmesh.errors import ElmeshError
from elmesh.estimators.inputs import as_frame, drop_column, labels_of_column, target_frame
from elmesh.tables import (
    FILE_TASK,
    ProblemKind,
    TableSchema,
    agree_targets,
    find_column,
    finite_numbers,
    fit_inputs,
    read_targets,
    to_labels,
)
from elmesh.tables.access import date_numbers
from elmesh.tables.dates import cycle_angles
from elmesh.text import count
from elmesh.typing import FloatArray, IndexArray

__all__ = ["Inputs", "Rows", "encoded", "fold_numbers", "read_rows"]


@dataclass(frozen=True, eq=False, kw_only=True)
class Inputs:
    """Rows without targets: numbers, of which some columns are codes of categories, and the site of each row.

    ``table`` is the same as elmesh takes it, where that differs, and ``types`` has the types of its columns.
    """

    X: FloatArray
    sites: NDArray[Any]
    categorical: tuple[int, ...] = ()
    table: pd.DataFrame | None = None
    types: Mapping[str, str] | None = None

    def __len__(self) -> int:
        return len(self.X)

    def take(self, rows: NDArray[np.bool_]) -> Self:
        """Return some of the rows."""
        table = None if self.table is None else self.table[rows]
        return replace(self, X=self.X[rows], sites=self.sites[rows], table=table)

    def at(self, site: object) -> Self:
        """Return the rows of one site."""
        return self.take(self.sites == site)


@dataclass(frozen=True, eq=False, kw_only=True)
class Rows(Inputs):
    """Rows with targets: numbers, or whole numbers from 0 for classes."""

    y: NDArray[Any]
    n_classes: int = 2

    def take(self, rows: NDArray[np.bool_]) -> Self:
        """Return some of the rows."""
        return replace(super().take(rows), y=self.y[rows])

    def inputs(self) -> Inputs:
        """Return the rows without their targets."""
        return Inputs(**{field.name: getattr(self, field.name) for field in fields(Inputs)})

    def digest(self) -> str:
        """Return a text that differs if anything differs."""
        parts = (self.X, self.y.astype(np.float64), np.array(list(map(str, self.sites))))
        digest = hashlib.sha256(b"".join(np.ascontiguousarray(part).tobytes() for part in parts))
        digest.update(repr((self.categorical, self.classification, self.n_classes, self.types)).encode())
        return digest.hexdigest()[:16]

    @property
    def classification(self) -> bool:
        """Whether targets are classes."""
        return self.y.dtype.kind == "i"


def read_rows(
    X: ArrayLike,
    y: ArrayLike,
    tasks: object,
    task: str | None,
    kind: ProblemKind | None,
    types: Mapping[str, str] | None,
) -> Rows:
    """Return a table as all methods take it.

    Types and categories of columns are those of the whole table: they do not depend on targets.
    """
    frame = as_frame(X)
    table = pd.DataFrame(np.asarray(X)).rename(columns=str) if frame is None else frame
    if frame is None:
        types = dict.fromkeys(map(str, table), "number")
    if tasks is None and task is not None:
        tasks = labels_of_column(table, task)
    inputs = drop_column(table, task).rename(columns=str)
    sites = np.empty(len(table), dtype=object)
    for label, own in group_rows(tasks, len(table)).items():
        sites[own] = label
    targets = target_frame(y, [str(name) for name in inputs])
    if targets.shape[1] != 1 or len(targets) != len(table):
        raise ElmeshError(
            f"A comparison takes one target for each of {count(len(table), 'row')}; got {targets.shape[1]} of "
            f"{count(len(targets), 'row')}."
        )
    name = str(targets.columns[0])
    found, _, whole = agree_targets({"": targets}, [name], kind)
    targets = read_targets(targets, [name], found, whole)
    values = targets[name].to_numpy()
    schema = fit_inputs(inputs, sites.tolist(), targets, found, task=task or FILE_TASK, types=types)
    numbers, categorical = _typed_columns(schema, inputs)
    columns = {column.name: "number" for column in schema.numeric}
    columns |= {column.name: "category" for column in schema.categorical}
    columns |= {column.name: "date" for column in schema.dates}
    n_classes = 0
    if found == "classification":
        classes, values = np.unique(values, return_inverse=True)
        n_classes = len(classes)
    read = None if frame is None else inputs[list(columns)].reset_index(drop=True)
    return Rows(
        X=numbers, y=values, sites=np.array(sites.tolist()), categorical=categorical, table=read,
        types=None if read is None else columns, n_classes=n_classes,
    )  # fmt: skip


def fold_numbers(rows: Rows, n_folds: int, seed: int | tuple[int, ...]) -> IndexArray:
    """Return the fold of each row, at random, and spread evenly within each class of a site, each site, and each class.

    Row after row, in order of site and class, goes to the fold that has the fewest of its class at its site so far, of
    its site, of its class, and of all rows; the first count that differs decides. So the numbers of a site's rows in
    two folds differ by at most one, and a site of two rows or more is in the training rows of every fold.

    Examples
    --------
    >>> rows = Rows(X=np.zeros((5, 1)), sites=np.array(["a", "a", "b", "b", "b"]), y=np.zeros(5))
    >>> folds = fold_numbers(rows, 2, seed=0)
    >>> sorted(folds[:2].tolist()), sorted(np.bincount(folds).tolist())
    ([0, 1], [2, 3])
    """
    rng = np.random.default_rng(seed)
    _, site = np.unique(rows.sites, return_inverse=True)
    group = rows.y if rows.classification else np.zeros(len(rows), dtype=np.intp)
    folds, counts = np.empty(len(rows), dtype=np.intp), Counter[tuple[Any, ...]]()
    ties = rng.random((len(rows), n_folds))
    for i in np.lexsort((rng.permutation(len(rows)), group, rng.permutation(site.max() + 1)[site])):
        keys = [("cell", site[i], group[i]), ("site", site[i]), ("class", group[i]), ("all",)]
        folds[i] = min(range(n_folds), key=lambda k: (*(counts[*key, k] for key in keys), ties[i, k]))
        counts.update((*key, folds[i]) for key in keys)
    return folds


def _typed_columns(schema: TableSchema, frame: pd.DataFrame) -> tuple[FloatArray, tuple[int, ...]]:
    """Return the columns to learn from as numbers, gaps as NaN, and which of them are codes of categories."""
    columns = [finite_numbers(frame, column.name) for column in schema.numeric]
    for date in schema.dates:
        days = date_numbers(frame, date.name)
        columns += [days, *(wave(cycle_angles(days, c)) for c in date.cycles for wave in (np.sin, np.cos))]
    for column in schema.categorical:
        codes = pd.Categorical(to_labels(find_column(frame, column.name)), categories=column.categories).codes
        columns.append(np.where(codes < 0, np.nan, codes))
    return np.column_stack(columns), tuple(range(len(columns) - len(schema.categorical), len(columns)))


def encoded(train: Rows, new: Inputs) -> tuple[Rows, Inputs]:
    """Return the same rows for linear models: numbers standardised, gaps filled and marked, categories one-hot.

    Means, standard deviations and categories are those of the training rows.
    """
    numbers = [j for j in range(train.X.shape[1]) if j not in train.categorical]
    encoder = make_column_transformer(
        (make_pipeline(SimpleImputer(add_indicator=True, keep_empty_features=True), StandardScaler()), numbers),
        (OneHotEncoder(handle_unknown="ignore", sparse_output=False), list(train.categorical)),
    )
    X = encoder.fit_transform(train.X)
    return replace(train, X=X, categorical=()), replace(new, X=encoder.transform(new.X), categorical=())
