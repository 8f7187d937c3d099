"""What a comparison found: the errors of each method, how sure the differences from elmesh are, and the conclusion.

The error of a method is the mean over outer folds of the root mean square error, or of the share of wrong classes. A
difference from elmesh is clear if its 95 % interval over the folds, with the corrected standard error of
:mod:`elmesh.math.intervals`, does not contain zero. At one site it is the interval over the rows of the site.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd

from elmesh.errors import ElmeshError
from elmesh.estimators.gains import format_error
from elmesh.evaluation.rivals import METHODS, OWN
from elmesh.math.intervals import corrected_standard_error, half_width, paired_change
from elmesh.text import count

__all__ = ["Comparison"]

# Fewest rows of a site at which a difference can be clear.
_FEWEST = 5


@dataclass(frozen=True, eq=False)
class Comparison:
    """Errors of methods on rows that were not used to fit or to choose anything.

    Parameters
    ----------
    kind : str
        "regression" or "classification".
    unit : str
        The unit of errors.
    scores : mapping of DataFrame
        "error", and for classes "log_loss" and "auc" (of two): a row per outer fold, a column per method.
    losses : DataFrame
        Squared error, or whether the class was wrong, of each row, as a mean over repeats; the index is its site.
    seconds : mapping of float
        CPU time of each method per fold, choice of parameters included.
    folds, repeats : int
        Outer folds, and how often rows were divided into them.
    ratio : float
        Test rows of a fold per training row.
    notes : tuple of str
        Methods and rows that were left out, and why.
    """

    kind: str
    unit: str
    scores: Mapping[str, pd.DataFrame]
    losses: pd.DataFrame
    seconds: Mapping[str, float]
    folds: int
    repeats: int
    ratio: float
    notes: tuple[str, ...] = ()

    @property
    def methods(self) -> list[str]:
        """The methods, elmesh first."""
        return [str(name) for name in self.losses.columns]

    @cached_property
    def table(self) -> pd.DataFrame:
        """A row per method: errors and times, and the difference from elmesh with its interval."""
        table = pd.DataFrame({"title": {name: METHODS[name].title for name in self.methods}})
        table["needs_all_rows"] = [METHODS[name].pooled for name in self.methods]
        for measure, found in self.scores.items():
            change = found.sub(found[OWN], axis=0)
            deviation = change.apply(lambda column: corrected_standard_error(column.to_numpy(), self.ratio))
            half = deviation * half_width(1.0, self.folds * self.repeats)
            table[measure], table[f"{measure}_difference"] = found.mean(), change.mean()
            table[f"{measure}_standard_error"] = deviation
            table[f"{measure}_low"], table[f"{measure}_high"] = change.mean() - half, change.mean() + half
        best = self.by_site["best"][self.by_site["clearly_best"]]
        table["sites_best"] = [int((best == name).sum()) for name in self.methods]
        # Clearly better, or worse, than elmesh.
        signs = [[_clear(own, name, OWN, self.kind) for own in self._sites.values()] for name in self.methods]
        table["sites_better"] = [found.count(-1) for found in signs]
        table["sites_worse"] = [found.count(1) for found in signs]
        table["seconds"] = pd.Series(self.seconds)
        return table

    @cached_property
    def by_site(self) -> pd.DataFrame:
        """A row per site: its rows, the error of each method, the best, and whether it is clearly so."""
        rows = []
        for own in self._sites.values():
            errors = own.mean() if self.kind == "classification" else np.sqrt(own.mean())
            best = str(errors.idxmin())
            clearly = all(_clear(own, best, other, self.kind) < 0 for other in self.methods if other != best)
            rows.append({"rows": len(own), **errors, "best": best, "clearly_best": clearly})
        return pd.DataFrame(rows, index=pd.Index(list(self._sites), name="site"))

    @cached_property
    def _sites(self) -> dict[Any, pd.DataFrame]:
        """The losses of each site."""
        return dict(iter(self.losses.groupby(level=0)))

    def clear(self, name: str, measure: str = "error") -> int:
        """Return -1 if a method is clearly better than elmesh, 1 if it is clearly worse, 0 if neither is clear."""
        return -1 if self._number(name, f"{measure}_high") < 0 else int(self._number(name, f"{measure}_low") > 0)

    def best_other(self, *, pooled: bool, measure: str = "error") -> str | None:
        """Return the best method besides elmesh, of those that need all rows in one place or of those that do not.

        Of methods that are clearly better than elmesh, this is the one of least error.
        """
        names = [name for name in self.methods if name != OWN and METHODS[name].pooled == pooled]
        clear = [name for name in names if self.clear(name, measure) < 0]
        return min(clear or names, key=lambda name: self._number(name, measure), default=None)

    def sentence(self, measure: str = "error") -> str:
        """Return the conclusion by the error, or by the "log_loss" of classes, in one sentence."""
        if measure == "auc" or measure not in self.scores:
            raise ElmeshError(f'measure must be "error", or "log_loss" for classes; got {measure!r}.')
        near, far = (self.best_other(pooled=pooled, measure=measure) for pooled in (False, True))
        signs = {name: self.clear(name, measure) for name in self.methods if name != OWN}
        own, word = self.format(OWN, measure), measure.replace("_", " ")

        def found(name: str) -> str:
            return f"{METHODS[name].title}, {self.format(name, measure)}"

        def against(name: str, subject: str = "elmesh") -> str:
            method, other = METHODS[name], self.format(name, measure)
            if signs[name] < 0:
                return (
                    f"{method.title} is clearly better than elmesh ({word} {other} instead of {own}): {method.advice}"
                )
            if signs[name] > 0:
                return f"{subject} is clearly better than {method.title} ({word} {own} instead of {other})"
            better, worse = (int(self._number(name, f"sites_{x}")) for x in ("worse", "better"))
            at = f"; clearly better at {better} and worse at {worse} of {count(len(self._sites), 'site')}"
            own_and = f"{word} {own} and {other}{at if measure == 'error' else ''}"
            return f"elmesh is not clearly better than {method.title} ({own_and})"

        if all(sign > 0 for sign in signs.values()):
            best = min(signs, key=lambda name: self._number(name, measure))
            return f"Use elmesh: it is clearly better than every other method ({word} {own}; next: {found(best)})."
        if far is not None and signs[far] < 0:
            return _sentence(against(far), "; if they must stay at their sites, ", near and against(near))
        if near is not None and signs[near] < 0:
            return _sentence(against(near))
        rest = far and f"no method that needs all rows in one place is clearly better than elmesh (best: {found(far)})"
        if far is not None and all(signs[name] > 0 for name in signs if METHODS[name].pooled):
            rest = f"every method that needs all rows in one place is clearly worse (best: {found(far)})"
        if near is None:
            return _sentence(rest or "")
        start = f"use elmesh: {against(near, 'it')}" if signs[near] > 0 else against(near)
        return _sentence(start, ", and ", rest)

    def format(self, name: str, measure: str = "error") -> str:
        """Return a number of a method as text."""
        value = self._number(name, measure)
        return format_error(value, self.unit) if measure == "error" else f"{value:.3f}"

    def _number(self, name: str, column: str) -> float:
        return float(np.asarray(self.table.loc[name, column], dtype=np.float64))

    def to_json(self) -> dict[str, Any]:
        """Return all numbers and the sentence; what is not known is null."""

        def records(frame: pd.DataFrame) -> list[dict[Any, Any]]:
            plain = frame.reset_index().astype(object)
            return plain.where(plain.notna(), None).to_dict("records")

        return {
            "sentence": self.sentence(),
            "kind": self.kind,
            "unit": self.unit,
            "rows": len(self.losses),
            "folds": self.folds,
            "repeats": self.repeats,
            "methods": records(self.table.rename_axis("method")),
            "by_site": records(self.by_site),
            "notes": list(self.notes),
        }


def _sentence(first: str, joint: str = "", second: str | None = None) -> str:
    text = f"{first}{joint}{second}" if second else first
    return f"{text[0].upper()}{text[1:]}."


def _clear(losses: pd.DataFrame, one: str, other: str, kind: str) -> int:
    """Return -1 if a method is clearly better than another at a site, 1 if it is clearly worse, otherwise 0."""
    change, half = paired_change(losses[other].to_numpy(), losses[one].to_numpy(), squared=kind == "regression")
    return int(np.sign(change)) if abs(change) > half and len(losses) >= _FEWEST else 0
