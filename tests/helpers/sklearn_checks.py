"""Which of scikit-learn's checks do not hold, and why."""

from __future__ import annotations

from typing import Any

from elmesh.solvers import make_solver

_TOLERANCE = (
    "a method that stops at a loose tolerance is equal to that tolerance only; tests/unit/test_weights.py compares "
    "weights with repeated rows at a tight one"
)
_EXACT = (
    "a few rows that are repeated exactly have no noise to the evidence, at whose limit rounding decides; "
    "tests/unit/test_weights.py compares weights with repeated rows where it does not"
)
_FOLDS = (
    "cv is a number of folds within tasks, and the check sets it to folds of all rows; tests/unit/test_tuning.py "
    "compares weights with repeated rows"
)
_UNITS = "columns of a table are standardised, because each has its own unit; numbers of an array are not"


def not_held(estimator: Any) -> dict[str, str]:
    """Return the reason for each check that an estimator is known not to pass."""
    kind = "classifier" if estimator._kind == "classification" else "regressor"
    reasons = {f"check_{kind}_data_not_an_array": _UNITS}
    solver = make_solver(estimator.solver)
    if "cv" in estimator.get_params(deep=False):
        reasons["check_sample_weight_equivalence_on_dense_data"] = _FOLDS
    elif solver.grouped_features and kind == "regressor" and solver.has_common_part:
        reasons["check_sample_weight_equivalence_on_dense_data"] = _EXACT
    elif solver.tol is not None and not solver.grouped_features:
        reasons["check_sample_weight_equivalence_on_dense_data"] = _TOLERANCE
    return reasons
