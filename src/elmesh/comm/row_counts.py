"""How many rows certainly belong to sites that do not collude.

Totals of nearly as many features as there are rows determine single rows and labels, so that the number of features
follows from the number of rows (:func:`elmesh.solvers.variance_components.released_features`). Colluding sites know
their own rows, which then do not hide the others', and they may claim any number of rows. So every site states its own
number, rounded down to one digit, and the smallest ones count, without as many of the largest as there may be
colluders: whoever colludes, the other sites have at least so many rows.
"""

from __future__ import annotations

from collections.abc import Sequence

from elmesh.errors import ElmeshError

__all__ = ["FEWEST_HONEST", "check_colluders", "colluding_sites", "fewest_terms", "round_down", "sure_rows"]

#: Fewest sites that do not collude in a total, or in the difference of two: three totals separate two of them.
FEWEST_HONEST = 3

# One of so many sites may collude.
_SHARE = 3


def colluding_sites(m: int) -> int:
    """Return how many of m sites may collude, where nothing else is stated: a third.

    Examples
    --------
    >>> [colluding_sites(m) for m in (2, 3, 5, 20)]
    [0, 1, 1, 6]
    """
    return m // _SHARE


def check_colluders(k: int, m: int) -> None:
    """Raise unless k of m sites may collude."""
    if k > max(m - 2, 0):
        raise ElmeshError(
            f"max_colluders is {k}, and there are {m} sites; at least two sites must not collude, or there is nothing "
            "to hide in a sum."
        )


def fewest_terms(m: int, colluders: int | None = None) -> int:
    """Return of how many of m sites a sum must have terms, so that it is not the sum of a few honest ones.

    A sum over all sites is one, however few they are. So many sites may collude; a third of them if it is not given.

    Examples
    --------
    >>> [fewest_terms(m) for m in (2, 3, 5, 20)]
    [2, 3, 4, 9]
    """
    return min(FEWEST_HONEST + (colluding_sites(m) if colluders is None else colluders), m)


def round_down(n: int) -> int:
    """Return a number of rows, rounded down to one digit.

    Examples
    --------
    >>> [round_down(n) for n in (0, 7, 42, 199, 3000)]
    [0, 7, 40, 100, 3000]
    """
    digits = str(n)
    return int(digits[0] + "0" * (len(digits) - 1))


def sure_rows(stated: Sequence[int], colluders: int | None = None) -> int:
    """Return how many rows the sites that do not collude have at least, from the number that each site states.

    So many sites may collude; a third of them if it is not given.

    Examples
    --------
    >>> sure_rows([50, 60, 40, 10**9]), sure_rows([30, 20])
    (150, 50)
    >>> sure_rows([50, 60, 40, 30], colluders=2)
    70
    """
    k = colluding_sites(len(stated)) if colluders is None else colluders
    return sum(sorted(stated)[: max(len(stated) - k, 0)])
