"""What holds for every plan: how much of each thing there may be, and that things fit together."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from elmesh.errors import ElmeshError
from elmesh.netconfig.inputs import check_range
from elmesh.tables.schema import Kind
from elmesh.text import listed

__all__ = [
    "LARGEST_SEED",
    "MOST",
    "check_choice",
    "check_count",
    "check_flag",
    "check_unlike",
    "check_whole",
    "checked_target",
    "sorted_edges",
]

#: The most of each thing that a network file may ask for.
MOST = {
    "agents": 4096,
    "edges": 65_536,
    "columns": 4096,
    "routers": 64,
    "rounds": 10_000_000,
    "n_hidden": 100_000,
    "most_rows": 10**12,
    "weight_scale": 10**6,
}
# TOML's whole numbers have 64 bits, one of them the sign.
LARGEST_SEED = 2**63 - 1


def check_count(things: Sequence[object], what: str, least: int = 0) -> None:
    """Refuse more things of a kind than there may be, or too few."""
    if not least <= len(things) <= MOST[what]:
        raise ElmeshError(f"There are {len(things)} {what}; expected {least} to {MOST[what]}.")


def check_unlike(names: Sequence[str], what: str, remedy: str) -> None:
    """Refuse things of one name."""
    for name, after in pairwise(sorted(names)):
        if name == after:
            raise ElmeshError(f'The {what} "{name}" is there twice; {remedy}.')


def check_choice(value: object, what: str, choices: Sequence[str]) -> None:
    """Refuse what is none of the choices."""
    if value not in choices:
        raise ElmeshError(f"{what} is {value!r}; expected one of {', '.join(choices)}.")


def check_flag(value: object, what: str) -> None:
    """Refuse what is neither true nor false."""
    if not isinstance(value, bool):
        raise ElmeshError(f"{what} is {value!r}; expected true or false.")


def check_whole(value: object, what: str, least: int, most: int) -> None:
    """Refuse what is not a whole number between two."""
    if type(value) is not int or not least <= value <= most:
        raise ElmeshError(f"{what} is {value!r}; expected a whole number from {least} to {most}.")


def sorted_edges(edges: Sequence[tuple[str, str]], names: Sequence[str]) -> tuple[tuple[str, str], ...]:
    """Give the edges in order, each with the smaller name first.

    Parameters
    ----------
    edges
        Pairs of names.
    names
        Those there are.

    Examples
    --------
    >>> sorted_edges([("b", "c"), ("b", "a")], ["a", "b", "c"])
    (('a', 'b'), ('b', 'c'))
    """
    check_count(edges, "edges")
    known = set(names)
    for edge in edges:
        stranger = next((name for name in edge if name not in known), None)
        if stranger is not None:
            raise ElmeshError(
                f"The edge {list(edge)} names {stranger!r}, which is no agent; there are {listed(names)}."
            )
        if edge[0] == edge[1]:
            raise ElmeshError(f"The edge {list(edge)} joins an agent to itself; remove it.")
    ordered = sorted((min(edge), max(edge)) for edge in edges)
    for pair, after in pairwise(ordered):
        if pair == after:
            raise ElmeshError(f"The edge {list(pair)} is there twice; name each once, in either order.")
    return tuple(ordered)


def checked_target(kind: Kind, ends: tuple[Any, Any] | None) -> tuple[float, float] | None:
    """Give the declared range of what is predicted, which a regression has and a classification has not.

    Parameters
    ----------
    kind
        Which of the two it is.
    ends
        The least and the most, if declared.
    """
    if kind == "classification":
        if ends is not None:
            raise ElmeshError("range in [target] is for a regression; leave it out of a classification.")
        return None
    if ends is None:
        raise ElmeshError(
            "A regression needs the range of its target, so that all agents scale it alike; add a section [target] "
            "with range = [least, most]."
        )
    return check_range(ends, "range in [target]")
