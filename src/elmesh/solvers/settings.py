"""Settings of solvers in words: which parts weights have, one penalty for all, and the rank."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sklearn.base import clone

from elmesh.errors import ElmeshError
from elmesh.solvers.base import Solver

__all__ = ["PARTS", "part_parameters", "with_settings"]

#: What weights may consist of.
PARTS = ("common", "private", "shared")


def part_parameters(parts: str) -> dict[str, Any]:
    """Return the parameters of mesh-elm that leave these parts, in words that are separated by commas.

    Examples
    --------
    >>> part_parameters("common,private")
    {'common': True, 'private': True, 'rank': 0}
    >>> part_parameters("shared")
    {'common': False, 'private': False}
    """
    chosen = {name.strip() for name in parts.split(",")}
    if not chosen <= set(PARTS):
        raise ElmeshError(f'Parts must be some of {", ".join(PARTS)}, separated by commas, not "{parts}".')
    if chosen == {"common", "shared"}:
        raise ElmeshError("The shared part is fitted alone or beside a private one; add private to the parts.")
    given: dict[str, Any] = {name: name in chosen for name in ("common", "private")}
    return given if "shared" in chosen else {**given, "rank": 0}


def with_settings(solver: Solver, settings: Mapping[str, Any]) -> Solver:
    """Return a copy of a solver with the settings ``parts``, ``rank`` and ``mu``, as far as they are given.

    ``mu`` is for all penalties of the solver. Other settings are not the solver's and are left alone.
    """
    known, given = solver.get_params(deep=False), dict[str, Any]()
    if settings.get("parts") is not None:
        given |= part_parameters(settings["parts"])
    if settings.get("rank") is not None:
        given["rank"] = settings["rank"]
    if settings.get("mu") is not None:
        given |= {name: settings["mu"] for name in ("mu", "mu1", "mu2") if name in known} or {"mu": settings["mu"]}
    for name in given:
        if name not in known:
            word = "parts" if name in ("common", "private") else name
            raise ElmeshError(f"{word} has no meaning for {solver.name}; leave it out.")
    copy: Solver = clone(solver).set_params(**given)
    copy.check()
    return copy
