"""Checks of single parameters. Each raises :class:`~elmesh.errors.ElmeshError` with the parameter's name and value."""

from __future__ import annotations

import math
from collections.abc import Sequence
from numbers import Integral, Real
from typing import Any

import numpy as np

from elmesh.errors import ElmeshError

__all__ = ["check_choice", "check_count", "check_flag", "check_number"]


def check_number(name: str, value: Any, *, zero: bool = False) -> None:
    """Raise unless ``value`` is a finite number above zero (or zero, where allowed)."""
    wanted = "zero or more" if zero else "more than zero"
    try:
        number = float(value) if type(value) is not bool and isinstance(value, Real) else math.nan
    except OverflowError:
        number = math.inf
    if not 0 <= number < math.inf or (number == 0 and not zero):
        raise ElmeshError(f"{name} must be a finite number, {wanted}; got {value!r}.")


def check_count(name: str, value: Any, least: int = 1, otherwise: str = "") -> None:
    """Raise unless ``value`` is a whole number of at least ``least``; ``otherwise`` names what else is valid."""
    if type(value) is bool or not isinstance(value, Integral) or int(value) < least:
        raise ElmeshError(f"{name} must be a whole number of at least {least}{otherwise}; got {value!r}.")


def check_flag(name: str, value: Any) -> None:
    """Raise unless ``value`` is True or False."""
    if not isinstance(value, (bool, np.bool_)):
        raise ElmeshError(f"{name} must be True or False; got {value!r}.")


def check_choice(name: str, value: Any, choices: Sequence[Any]) -> None:
    """Raise unless ``value`` is one of the choices, of the same type."""
    if not any(type(value) is type(choice) and value == choice for choice in choices):
        raise ElmeshError(f"{name} must be one of {', '.join(map(str, choices))}; got {value!r}.")
