r"""Who masks with whom: all pairs of up to 64 parties, a random graph of more.

In the random graph every party draws n others, by a generator that is seeded with a hash of all parties' run numbers;
whoever draws or is drawn is a partner. The masks hide everything but the total of the honest parties if these are
connected by partnerships among themselves. A set of s of h honest parties, beside c = m - h colluding ones, has no
partner among the other honest ones with a probability of at most

.. math:: \left(\frac{c + s - 1}{m - 1}\right)^{ns}\left(1 - \frac{s}{m - 1}\right)^{n(h - s)} ,

and n is the least number for which these, over all sets of at most h/2, add up to at most :math:`2^{-40}` when a third
of all parties collude. That is for colluders who are chosen before the run numbers are known: run numbers are committed
to before any is revealed.
"""

from __future__ import annotations

import hashlib
from math import exp, lgamma, log

import numpy as np

__all__ = ["ALL_PAIRS", "colluders_withstood", "draw_partners", "draws_per_party", "isolation_bound"]

#: Up to this many parties, each has a mask with every other.
ALL_PAIRS = 64
_FAILURE = 2.0**-40
_SHARE = 3  # one of so many parties colludes


def colluders_withstood(m: int) -> int:
    """Return how many colluding parties of m learn nothing but the total of the others.

    Examples
    --------
    >>> colluders_withstood(5), colluders_withstood(300)
    (3, 100)
    """
    # With a single honest party its term is the total less the colluders' own.
    return max(m - 2, 0) if m <= ALL_PAIRS else m // _SHARE


def isolation_bound(m: int, colluders: int, n: int) -> float:
    """Return an upper bound on the probability that partnerships do not connect the honest parties."""
    h = m - colluders
    total = 0.0
    for s in range(1, h // 2 + 1):
        sets = lgamma(h + 1) - lgamma(s + 1) - lgamma(h - s + 1)
        inside = colluders + s - 1
        if inside < n:
            continue  # so few others cannot be all that one draws
        logarithm = sets + n * s * log(inside / (m - 1)) + n * (h - s) * log(1 - s / (m - 1))
        total += exp(min(logarithm, 0.0))
    return min(total, 1.0)


def draws_per_party(m: int) -> int:
    """Return how many partners each of m parties draws.

    Examples
    --------
    >>> draws_per_party(65), draws_per_party(1000), draws_per_party(4096)
    (18, 20, 21)
    """
    n = 1
    while isolation_bound(m, m // _SHARE, n) > _FAILURE:
        n += 1
    return n


def draw_partners(m: int, seed: bytes) -> list[list[int]]:
    """Return the partners of each of m parties, in increasing order; ``seed`` is a hash of all run numbers.

    Examples
    --------
    >>> draw_partners(3, b"")
    [[1, 2], [0, 2], [0, 1]]
    """
    if m <= ALL_PAIRS:
        return [[j for j in range(m) if j != i] for i in range(m)]
    n, partners = draws_per_party(m), [set[int]() for _ in range(m)]
    for i in range(m):
        for j in _draw(m, i, n, seed):
            partners[i].add(j)
            partners[j].add(i)
    return [sorted(own) for own in partners]


def _draw(m: int, i: int, n: int, seed: bytes) -> list[int]:
    """Return n different parties other than i, by an extendable hash."""
    drawn: list[int] = []
    # Far more words than are ever needed: one in m is a repetition, and none is rejected but with probability 2**-40.
    words = np.frombuffer(hashlib.shake_256(seed + i.to_bytes(4, "little")).digest(8 * (8 * n + 64)), "<u8")
    limit = 2**64 - 2**64 % (m - 1)
    for word in words.tolist():
        if word < limit:
            j = word % (m - 1)
            j += j >= i
            if j not in drawn:
                drawn.append(j)
            if len(drawn) == n:
                break
    return drawn
