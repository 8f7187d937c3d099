"""Errors and warnings.

Every error that a user can cause is an :class:`ElmeshError`: a sentence on what was wrong, what was expected, and what
to do. The command line prints it on one line and exits with 2. It is a ``ValueError``, as users of scikit-learn expect.
"""

from __future__ import annotations

__all__ = ["ElmeshError", "RankWarning", "UnknownSiteWarning"]


class ElmeshError(ValueError):
    """Invalid input, an invalid file or an invalid parameter."""


class RankWarning(UserWarning):
    """The given rank is more than the data can use."""


class UnknownSiteWarning(UserWarning):
    """No row to predict is of a task that the model was fitted on."""
