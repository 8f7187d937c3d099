r"""What a site releases of its rows, in whole numbers, and how much one row can change it.

Rows have features :math:`\varphi_i`, made as long as each other, and targets multiplied by the same factor and then
limited: a row of whole numbers :math:`z_i` with :math:`|z_i| \le R`, and targets :math:`y_i` with :math:`|y_i| \le B`.
A linear model of the rows is a linear model of these. What is released are the totals
:math:`G = \sum_i z_iz_i'` and :math:`b = \sum_i z_iy_i'`, with noise.

**Sensitivity.** Another row in the place of one changes G and b by the difference of :math:`(zz', zy')` and
:math:`(ww', wx')`. With :math:`q = z\cdot w` and :math:`s = y\cdot x`,

.. math::
    |zz' - ww'|^2 + |zy' - wx'|^2 = |z|^4 + |w|^4 + |z|^2|y|^2 + |w|^2|x|^2 - 2(q^2 + qs)
    \le 2R^4 + 2R^2B^2 - 2\min_{|q| \le R^2, |s| \le B^2}(q^2 + qs) .

The minimum is :math:`-B^4/4` at :math:`q = -s/2` if :math:`B^2 \le 2R^2`, else :math:`R^4 - R^2B^2`. So the squared
sensitivity is

.. math:: 2R^4 + 2R^2B^2 + \tfrac12 B^4 \quad\text{if } B^2 \le 2R^2, \qquad\text{else}\quad 4R^2B^2 .

Products of whole numbers are exact in doubles below :math:`2^{53}`, so that the totals are what this is about. Numbers
off the diagonal of G occur twice in :math:`|zz'|^2` and are released once, with noise smaller by the root of two.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from elmesh.comm.fixed_point import TOTAL_BITS
from elmesh.errors import ElmeshError
from elmesh.privacy.accounting import LEAST_SIGMA, with_margin
from elmesh.typing import FloatArray, IntArray

__all__ = ["CLASS_LIMIT", "TARGET_LIMIT", "Mechanism", "make_mechanism", "squared_sensitivity"]

#: Targets beyond so many spreads, times the factor of their row, count as that far; and indicators of classes, all of
#: which are of the same size.
TARGET_LIMIT, CLASS_LIMIT = 2.0, 1.25
# The longest row and target in whole numbers: finer would not be worth while beside the noise.
_MOST_LENGTH = 4096
_LEAST_LENGTH = 64
# Weight of the targets in the sensitivity, relative to that at which correlations begin to dominate it.
_TARGET_WEIGHT = 0.8
# Standard deviations of noise that a total has room for.
_NOISE_ROOM = 16.0


def squared_sensitivity(R: float, B: float) -> float:
    """Return the largest squared change of the totals G and b by one row, for rows and targets of these lengths.

    Examples
    --------
    >>> squared_sensitivity(1.0, 0.0), squared_sensitivity(1.0, 2.0)
    (2.0, 16.0)
    """
    if B * B <= 2 * R * R:
        return 2 * R**4 + 2 * R**2 * B**2 + B**4 / 2
    return 4 * R**2 * B**2


@dataclass(frozen=True)
class Mechanism:
    """How totals of rows with p features and d targets are released.

    Parameters
    ----------
    p, d : int
        Numbers of features and of targets.
    length : int
        R and B: the length of rows and targets in whole numbers.
    per_site : tuple of int
        Standard deviation of the noise that each site adds to the diagonal of G, beside it, and to b.
    honest : int
        Number of sites whose noise no one else knows.
    limit : float
        The norm of targets, in units of their spread and of the root of their number, from which on they are limited.
    spread : float
        The spread of the targets.
    """

    p: int
    d: int
    length: int
    per_site: tuple[int, int, int]
    honest: int
    limit: float = TARGET_LIMIT
    spread: float = 1.0

    def cost(self, honest: int | None = None) -> float:
        """Return the cost of a release with the noise of so many sites, by default that of all honest ones."""
        root = math.sqrt(self.honest if honest is None else honest)
        diagonal, beside, targets = (root * sigma for sigma in self.per_site)
        unit = min(diagonal, math.sqrt(2.0) * beside)
        return with_margin(squared_sensitivity(self.length, self.length * unit / targets) / (2 * unit**2))

    def rows(self, Phi: FloatArray, T: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return rows and targets in whole numbers, none of them longer than :attr:`length`."""
        norms = np.sqrt(np.sum(Phi**2, axis=1, keepdims=True))
        factor = np.divide(1.0, norms, out=np.zeros_like(norms), where=norms > 0)
        Z = np.rint(Phi * factor * _room(self.length, self.p))
        Y = T * factor / (self.limit * self.spread * math.sqrt(self.d))
        sizes = np.sqrt(np.sum(Y**2, axis=1, keepdims=True))
        Y = np.rint(Y / np.maximum(sizes, 1.0) * _room(self.length, self.d))
        for part in (Z, Y):
            if not np.all(np.sum(part**2, axis=1) <= self.length**2):
                raise ElmeshError("A row of the table is longer than its bound; check it for infinite values.")
        return Z, Y

    def totals(self, Phi: FloatArray, T: FloatArray) -> IntArray:
        """Return what one site releases of its rows, without noise: the upper triangle of G, then b."""
        Z, Y = self.rows(Phi, T)
        upper = np.triu_indices(self.p)
        return np.concatenate([(Z.T @ Z)[upper], (Z.T @ Y).ravel()]).astype(np.int64)

    @property
    def sigma(self) -> IntArray:
        """The standard deviation of the noise that each site adds to every number."""
        rows, columns = np.triu_indices(self.p)
        diagonal, beside, targets = self.per_site
        return np.concatenate([np.where(rows == columns, diagonal, beside), np.full(self.p * self.d, targets)])

    def split(self, released: IntArray) -> tuple[FloatArray, FloatArray]:
        """Return the matrices G and b of released totals, in units of rows of length 1 and of the targets' spreads."""
        p, unit = self.p, float(_room(self.length, self.p))
        G, upper = np.zeros((p, p)), np.triu_indices(p)
        k = len(upper[0])
        G[upper] = released[:k]
        G = G + np.triu(G, 1).T
        by_target = self.limit * math.sqrt(self.d) / _room(self.length, self.d)
        return G / unit**2, released[k:].reshape(p, self.d).astype(np.float64) * (by_target / unit)

    def noise(self, sites: int) -> tuple[float, float]:
        """Return the standard deviation of the noise of so many sites in the diagonal of G and in b.

        It is in the units of :meth:`split`.
        """
        unit, root = float(_room(self.length, self.p)), math.sqrt(sites)
        by_target = self.limit * math.sqrt(self.d) / _room(self.length, self.d)
        diagonal, _, targets = self.per_site
        return root * diagonal / unit**2, root * targets * by_target / unit


def _room(length: int, n: int) -> float:
    """Return the length of a vector of n numbers that is at most ``length`` when each is rounded."""
    return length - math.sqrt(n) / 2 - 1e-6 * length


def make_mechanism(p: int, d: int, rho: float, most_rows: float, honest: int, *, classes: bool = False) -> Mechanism:
    """Return the mechanism of a cost for totals over at most so many rows.

    ``honest`` is the number of sites whose noise no one else knows. With ``classes`` targets are indicators of d
    classes less one in d; otherwise their spread is one.
    """
    rho = rho / with_margin(1.0)
    # What rows and their noise can add up to must stay below the bound on totals.
    spread = _NOISE_ROOM * math.sqrt(squared_sensitivity(1.0, 1.0) / (2 * rho)) + most_rows
    length = min(_MOST_LENGTH, math.isqrt(int(2.0 ** (TOTAL_BITS - 1) / spread)))
    if length < max(_LEAST_LENGTH, 2 * math.sqrt(max(p, d))):
        raise ElmeshError(
            f"A total of up to {most_rows:,.0f} rows of {p} features with this noise is too large for 64-bit integers; "
            "lower most_rows, use fewer columns, or a larger epsilon."
        )
    # In units of the diagonal's noise, targets have a length of this many rows.
    weight = _TARGET_WEIGHT * math.sqrt(2.0)
    sigma = length**2 * math.sqrt(squared_sensitivity(1.0, weight) / (2 * rho))
    kinds = sigma, sigma / math.sqrt(2), sigma / weight
    diagonal, beside, targets = (max(math.ceil(kind / math.sqrt(honest)), LEAST_SIGMA) for kind in kinds)
    scale = (CLASS_LIMIT, math.sqrt(d - 1) / d) if classes else (TARGET_LIMIT, 1.0)
    return Mechanism(p, d, length, (diagonal, beside, targets), honest, *scale)
