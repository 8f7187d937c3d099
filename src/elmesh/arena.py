"""The arena: twelve real tables with sites in them (schools, states, counties, teams, items of a questionnaire).

A table is read from ``arena/<name>.csv`` in the folder of the environment variable ``ELMESH_DATA``, or in the cache
folder: the inputs as they come, then ``site`` and ``y``. ``arena/tables.json`` beside it has the kind of each table and
the share of each site's rows to train on; further tables in these two files are read too. What is in neither folder is
downloaded once from Rdatasets, a collection of the data sets of R packages, and derived from there. School is that of
:func:`elmesh.datasets.load_school`.

Sites with fewer than six rows are left out. Of three large tables 6,000 rows are drawn, with seed 0.
"""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from http.client import HTTPException
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit
from urllib.request import urlopen

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from elmesh.datasets import cache_folder, find_file, load_school
from elmesh.errors import ElmeshError
from elmesh.files import atomic_write

__all__ = ["ARENA", "ArenaTable", "load_arena"]

#: Address of the folder with one CSV file per data set; a test replaces it.
RDATASETS = "https://vincentarelbundock.github.io/Rdatasets/csv"
_TIMEOUT = 60.0
_LEAST_ROWS, _DRAWN_ROWS = 6, 6000

Kind = Literal["regression", "classification"]
_KINDS: Mapping[str, Kind] = {"reg": "regression", "clf": "classification"}


@dataclass(frozen=True, eq=False)
class ArenaTable:
    """Rows of many sites.

    Parameters
    ----------
    X : DataFrame
        Inputs as they come: numbers, words, gaps.
    y : ndarray
        Numbers to predict, or the words of two classes.
    sites : ndarray of str
        The site of each row.
    kind : str
        "regression" or "classification".
    share : float
        The share of each site's rows to train on.
    """

    X: pd.DataFrame
    y: NDArray[Any]
    sites: NDArray[np.str_]
    kind: Kind
    share: float


@dataclass(frozen=True)
class _Recipe:
    """How a table is derived from a data set of Rdatasets.

    ``inputs`` has the columns to keep, ``names`` those of them that get another name, ``site`` the columns whose values
    together name a site, ``logs`` the columns of which the logarithm is taken, and ``above`` the values that rows must
    exceed. ``classes`` maps values of the target to the names of classes. Of a table that is ``drawn``, 6,000 rows are
    taken.
    """

    source: str
    share: float
    site: tuple[str, ...]
    target: str
    inputs: tuple[str, ...]
    logs: tuple[str, ...] = ()
    names: Mapping[str, str] = field(default_factory=dict)
    above: Mapping[str, float] = field(default_factory=dict)
    classes: Mapping[str, str] | None = None
    drawn: bool = False

    @property
    def kind(self) -> Kind:
        return "regression" if self.classes is None else "classification"


_CRIME = (
    "year prbarr prbconv prbpris avgsen polpc density taxpc pctmin wcon wtuc wtrd wfir wser wmfg wfed wsta wloc mix "
    "pctymle"
)
_HEDONIC = "crim zn indus chas nox rm age dis rad tax ptratio blacks lstat"
_RECIPES = {
    "nlschools": _Recipe("MASS/nlschools", 0.5, ("class",), "lang", ("IQ", "GS", "SES", "COMB")),
    "star": _Recipe("Ecdat/Star", 0.5, ("schidkn",), "tmathssk", ("classk", "totexpk", "sex", "freelunk", "race")),
    "produc": _Recipe(
        "plm/Produc", 0.5, ("state",), "gsp", ("pcap", "hwy", "water", "util", "pc", "emp", "unemp", "year"),
        logs=("pcap", "hwy", "water", "util", "pc", "emp", "gsp"),
    ),
    "cigar": _Recipe(
        "plm/Cigar", 0.4, ("state",), "sales", ("year", "price", "pop", "pop16", "cpi", "ndi", "pimin")
    ),
    "crime": _Recipe("plm/Crime", 0.6, ("county",), "crmrte", tuple(_CRIME.split()), logs=("crmrte",)),
    "diamonds": _Recipe(
        "ggplot2/diamonds", 0.5, ("color", "clarity"), "price", ("carat", "cut", "depth", "table", "x", "y", "z"),
        logs=("price",), names={"x": "len", "y": "wid", "z": "dep"}, drawn=True,
    ),
    "insteval": _Recipe("lme4/InstEval", 0.3, ("dept",), "y", ("studage", "lectage", "service"), drawn=True),
    "males": _Recipe(
        "plm/Males", 0.3, ("industry",), "wage",
        ("year", "school", "exper", "union", "ethn", "married", "health", "residence"),
    ),
    "baseball": _Recipe(
        "plyr/baseball", 0.4, ("team",), "r", ("year", "g", "ab", "h", "X2b", "X3b", "hr", "bb", "so"),
        above={"ab": 100}, drawn=True,
    ),
    "verbagg": _Recipe(
        "lme4/VerbAgg", 0.3, ("item",), "r2", ("Anger", "Gender"), classes={"N": "no", "Y": "yes"}
    ),
    "hedonic": _Recipe("plm/Hedonic", 0.5, ("townid",), "mv", tuple(_HEDONIC.split())),
}  # fmt: skip
_SCHOOL_SHARE = 0.75

#: Names of the tables.
ARENA = (*_RECIPES, "school")


def load_arena(name: str) -> ArenaTable:
    """Load a table of the arena from ``ELMESH_DATA``, from the cache, or from Rdatasets into the cache.

    Parameters
    ----------
    name : str
        One of ``ARENA``, or a table of the file ``arena/tables.json``.

    Returns
    -------
    ArenaTable
        Its rows.

    Raises
    ------
    ElmeshError
        If there is no such table, no file and no connection, or a file that is not such a table.
    """
    path = find_file(f"arena/{name}.csv")
    if path is None and name == "school":
        school = load_school()
        X = pd.DataFrame(school.X, columns=[f"x{k}" for k in range(school.X.shape[1])])
        return ArenaTable(X, school.y, school.tasks.astype(str), "regression", _SCHOOL_SHARE)
    if path is None and name not in _RECIPES:
        raise ElmeshError(f"The arena has no table {name!r}; it has {', '.join(ARENA)}.")
    if path is None:
        table = _derive(_RECIPES[name], _download(_RECIPES[name].source))
        path = cache_folder() / "arena" / f"{name}.csv"
        path.parent.mkdir(parents=True, exist_ok=True)
        atomic_write(path, table.to_csv(index=False).encode())
    kind, share = _facts(name, path.parent / "tables.json")
    try:
        table = pd.read_csv(path, dtype={"site": str})
        y = table["y"].to_numpy(np.float64 if kind == "regression" else np.str_)
        sites = table["site"].to_numpy(np.str_)
    except (OSError, ValueError, KeyError) as error:
        raise ElmeshError(
            f"{path} is not a readable table with the columns site and y ({error}); replace it by a complete copy."
        ) from error
    return ArenaTable(table.drop(columns=["site", "y"]), y, sites, kind, share)


def _facts(name: str, path: Path) -> tuple[Kind, float]:
    """Return the kind of a table and the share of rows to train on, from tables.json if it is there."""
    if not path.is_file() and name in _RECIPES:
        return _RECIPES[name].kind, _RECIPES[name].share
    try:
        facts = json.loads(path.read_text(encoding="utf-8"))[name]
        return _KINDS[facts["kind"]], float(facts["share"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ElmeshError(
            f'{path} has no entry {name!r} with "kind" ("reg" or "clf") and "share" ({error!r}); add it.'
        ) from error


def _download(source: str) -> pd.DataFrame:
    """Return a data set of Rdatasets."""
    address = f"{RDATASETS}/{source}.csv"
    try:
        if urlsplit(address).scheme not in ("http", "https"):
            raise ValueError("its address must start with https:// or http://")
        with urlopen(address, timeout=_TIMEOUT) as answer:  # noqa: S310 (the scheme is checked above)
            return pd.read_csv(io.BytesIO(answer.read()))
    except (OSError, HTTPException, ValueError) as error:
        raise ElmeshError(
            f"The download of {address} failed ({error}): put the table into the folder arena of {cache_folder()}, or "
            "of the folder in the environment variable ELMESH_DATA."
        ) from error


def _derive(recipe: _Recipe, data: pd.DataFrame) -> pd.DataFrame:
    """Return a table from a data set: inputs, then ``site`` and ``y``."""
    missing = sorted({*recipe.inputs, *recipe.site, recipe.target, *recipe.above} - set(data.columns))
    if missing:
        raise ElmeshError(
            f"The data set {recipe.source} of Rdatasets has no column {missing[0]!r}; its layout has changed. Put the "
            "table into the folder arena of the folder in the environment variable ELMESH_DATA."
        )
    for column, least in recipe.above.items():
        data = data[data[column] > least]
    if recipe.drawn:
        data = data.iloc[np.sort(np.random.default_rng(0).permutation(len(data))[:_DRAWN_ROWS])]
    data = data.assign(**{column: np.log(data[column]) for column in recipe.logs})
    table = data[list(recipe.inputs)].rename(columns=dict(recipe.names))
    site, y = data[list(recipe.site)].astype(str).agg("".join, axis=1), data[recipe.target]
    table = table.assign(site=site, y=y if recipe.classes is None else y.map(dict(recipe.classes)))
    return table[site.map(site.value_counts()) >= _LEAST_ROWS]
