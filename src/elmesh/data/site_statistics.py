"""What a fit keeps of a site's rows, so that rows can be added, and taken away, without the others at hand.

Up to :data:`KEPT` rows are kept as they are. Of more rows, the sums of products of features and targets are kept, which
determine the fit; and those rows with the smallest keys (:mod:`elmesh.data.row_keys`), a random sample, for what needs
single rows. So memory does not grow with the number of rows, except for their keys, by which a row is found that is to
be taken away. All of this is as confidential as the rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from elmesh.data.features import FeatureMap, Features
from elmesh.data.row_keys import KeyArray
from elmesh.data.statistics import Moments, Reduced, SiteRows
from elmesh.typing import FloatArray, IndexArray

__all__ = ["KEPT", "KeyedRows", "SiteStatistics"]

#: Most rows of a site that are kept as they are.
KEPT = 2048


@dataclass(frozen=True, eq=False)
class KeyedRows:
    """Rows of one site.

    Parameters
    ----------
    X, T : ndarray of shape (n, k), (n, d)
        Inputs and targets, as the fit takes them.
    weights : ndarray of shape (n,)
        How often each row counts.
    keys : ndarray of shape (n,)
        Their keys.
    """

    X: FloatArray
    T: FloatArray
    weights: FloatArray
    keys: KeyArray

    def __len__(self) -> int:
        return len(self.keys)

    def __getitem__(self, rows: Any) -> KeyedRows:
        return KeyedRows(self.X[rows], self.T[rows], self.weights[rows], self.keys[rows])

    def __add__(self, other: KeyedRows) -> KeyedRows:
        """Return the rows of both, in the order of their keys."""
        parts = zip(vars(self).values(), vars(other).values(), strict=True)
        both = KeyedRows(*(np.concatenate(pair) for pair in parts))
        return both[np.lexsort((both.weights, both.keys))]

    def added_to(self, moments: Moments, layer: Features, sign: float = 1.0) -> Moments:
        """Return moments of features and targets with these rows or, with sign -1, without them."""
        p, d = layer.width, self.T.shape[1]
        block = np.empty((len(self), p + d))
        block[:, p:] = self.T
        if isinstance(layer, FeatureMap):
            layer.fill(self.X, block[:, :p])
        else:
            block[:, :p] = layer(self.X)
        return moments.with_rows(block, _unless_one(self.weights), sign)

    def find(self, rows: KeyedRows) -> IndexArray:
        """Return the place of each row of others here, each place once; -1 for one that is not here."""
        places, used = np.full(len(rows), -1, dtype=np.intp), np.zeros(len(self), dtype=bool)
        firsts = np.searchsorted(self.keys, rows.keys, side="left")
        for i, first in enumerate(firsts.tolist()):
            place = first
            while place < len(self) and self.keys[place] == rows.keys[i]:
                if not used[place] and self.weights[place] == rows.weights[i]:
                    places[i], used[place] = place, True
                    break
                place += 1
        return places


class SiteStatistics:
    """The statistics of one site.

    Parameters
    ----------
    n_inputs, n_targets : int
        Numbers of inputs and of columns of the targets.

    Attributes
    ----------
    rows : KeyedRows
        All rows, or a sample of them, in the order of their keys.
    halves : pair of Moments, or None
        Once there are more rows than are kept, the moments of rows with even and with odd keys.
    keys : ndarray
        The keys of all rows, sorted.
    """

    def __init__(self, n_inputs: int, n_targets: int) -> None:
        empty = np.zeros(0)
        self.rows = KeyedRows(np.zeros((0, n_inputs)), np.zeros((0, n_targets)), empty, empty.astype(np.uint64))
        self.halves: tuple[Moments, Moments] | None = None
        # If not all rows are kept: the keys of all, sorted, those that are to be sorted in, and the largest key that a
        # row of the sample may have.
        self._keys: KeyArray = self.rows.keys
        self._pending: list[KeyArray] = []
        self._bound = np.uint64(2**64 - 1)

    @classmethod
    def restore(
        cls, rows: KeyedRows, halves: tuple[Moments, Moments] | None, keys: KeyArray | None, bound: int | None
    ) -> SiteStatistics:
        """Return statistics from their attributes, as they were saved."""
        site = cls(rows.X.shape[1], rows.T.shape[1])
        site.rows, site.halves = rows, halves
        if halves is not None and keys is not None and bound is not None:
            site._keys, site._bound = keys, np.uint64(bound)
        return site

    def copy(self) -> SiteStatistics:
        """Return statistics to which rows can be added while these stay as they are."""
        return SiteStatistics.restore(self.rows, self.halves, None if self.is_complete else self.keys, self.bound)

    @property
    def bound(self) -> int:
        """The largest key that a row of the sample may have."""
        return int(self._bound)

    @property
    def is_complete(self) -> bool:
        """Whether all rows are kept."""
        return self.halves is None

    @property
    def keys(self) -> KeyArray:
        """The keys of all rows, sorted."""
        if self.halves is None:
            return self.rows.keys
        if self._pending:
            self._keys, self._pending = np.sort(np.concatenate([self._keys, *self._pending])), []
        return self._keys

    @property
    def n_rows(self) -> int:
        """The number of rows, whatever their weights."""
        return len(self.keys)

    @property
    def weight(self) -> float:
        """The sum of the weights of all rows."""
        return float(self.rows.weights.sum()) if self.halves is None else sum(half.rows for half in self.halves)

    @property
    def row_weights(self) -> FloatArray:
        """How many rows each kept row stands for: its weight, or more if it is one of a sample."""
        weights = self.rows.weights
        return weights if self.halves is None else weights * (self.weight / weights.sum())

    @property
    def target_sums(self) -> FloatArray:
        """Weighted sums of the targets."""
        if self.halves is None:
            return np.asarray(self.rows.weights @ self.rows.T)
        d = self.rows.T.shape[1]
        return np.asarray(sum(half.sums[-d:] for half in self.halves))

    def add(self, layer: Features, new: KeyedRows) -> None:
        """Add rows; ``layer`` maps their inputs to features."""
        if self.halves is None:
            if len(self.rows) + len(new) <= KEPT:
                self.rows = self.rows + new
                return
            size = layer.width + self.rows.T.shape[1]
            self.halves = Moments.zero(size), Moments.zero(size)
            rows, self.rows = self.rows, self.rows[:0]
            if len(rows):
                self.add(layer, rows)
        self._change_halves(self.halves, layer, new, 1.0)
        self._pending.append(new.keys)
        self.rows = self.rows + new[new.keys <= self._bound]
        if len(self.rows) > KEPT:
            self.rows = self.rows[:KEPT]
            self._bound = self.rows.keys[-1]

    def missing(self, rows: KeyedRows) -> IndexArray:
        """Return which of some rows are not among those of the site, each counted once."""
        if self.halves is None:
            return np.flatnonzero(self.rows.find(rows) < 0)
        # The k-th of several rows with the same key is there if so many rows of the site have it.
        order = np.argsort(rows.keys, kind="stable")
        wanted = rows.keys[order]
        rank = np.arange(len(wanted)) - np.searchsorted(wanted, wanted, side="left")
        first, end = (np.searchsorted(self.keys, wanted, side=side) for side in ("left", "right"))
        return np.sort(order[first + rank >= end])

    def remove(self, layer: Features, old: KeyedRows) -> None:
        """Take rows away, all of which are there (:meth:`missing`)."""
        places = self.rows.find(old)
        left = np.ones(len(self.rows), dtype=bool)
        left[places[places >= 0]] = False
        self.rows = self.rows[left]
        if self.halves is None:
            return
        self._change_halves(self.halves, layer, old, -1.0)
        gone, order = np.sort(old.keys), np.arange(len(old))
        rank = order - np.searchsorted(gone, gone, side="left")
        self._keys = np.delete(self.keys, np.searchsorted(self.keys, gone, side="left") + rank)

    def _change_halves(self, halves: tuple[Moments, Moments], layer: Features, rows: KeyedRows, sign: float) -> None:
        """Add rows to the half of their keys, or take them away."""
        even, odd = (rows[rows.keys % np.uint64(2) == np.uint64(k)] for k in (0, 1))
        self.halves = even.added_to(halves[0], layer, sign), odd.added_to(halves[1], layer, sign)

    def reduced(self, layer: Features, *, centre: bool) -> Reduced:
        """Return the rows reduced as a fit needs them."""
        if self.halves is not None:
            return Reduced.from_moments(self.halves[0] + self.halves[1], layer.width, centre=centre)
        rows = self.rows
        return Reduced.from_rows(layer(rows.X), rows.T, centre=centre, weights=_unless_one(rows.weights))

    def unreduced(self, layer: Features) -> SiteRows:
        """Return the rows that are kept, with weights that add up to those of all rows."""
        w = self.row_weights
        root = np.sqrt(w)[:, None]
        T = root * self.rows.T
        return SiteRows(root * layer(self.rows.X), T, np.zeros(T.shape[1]), self.weight, w)

    def divided(self, layer: Features) -> tuple[SiteRows, SiteRows]:
        """Return the two halves of the rows; the second one of a single row is empty.

        Kept rows are divided in the order of their keys, so that both halves count the same, up to one; a row in the
        middle may be part of both.
        """
        if self.halves is not None:
            first, second = (Reduced.from_moments(half, layer.width, centre=False) for half in self.halves)
            return SiteRows.from_reduced(first), SiteRows.from_reduced(second)
        Phi, T, w = layer(self.rows.X), self.rows.T, self.rows.weights
        middle, before = np.ceil(w.sum() / 2), np.cumsum(w) - w
        parts = np.clip(middle - before, 0.0, w)
        pair = [(share > 0, share) for share in (parts, w - parts)]
        one, other = (SiteRows.from_rows(Phi[some], T[some], _unless_one(share[some])) for some, share in pair)
        return one, other


def _unless_one(weights: FloatArray) -> FloatArray | None:
    return None if np.all(weights == 1.0) else weights
