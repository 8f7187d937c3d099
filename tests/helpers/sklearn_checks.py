"""Which of scikit-learn's checks do not hold, and why."""

from __future__ import annotations

from typing import Any

_UNITS = "columns of a table are standardised, because each has its own unit; numbers of an array are not"


def not_held(estimator: Any) -> dict[str, str]:
    """Return the reason for each check that an estimator is known not to pass."""
    kind = "classifier" if estimator._kind == "classification" else "regressor"
    return {f"check_{kind}_data_not_an_array": _UNITS}
