"""What elmesh says when something is wrong.

Every error a user can cause is an :class:`ElmeshError`: a sentence on what was wrong, what was expected, and
what to do. The command line prints it on one line and exits with 2. It is a ``ValueError``, as scikit-learn's
callers expect.
"""

from __future__ import annotations

__all__ = ["ElmeshError", "RankWarning"]


class ElmeshError(ValueError):
    """Bad input, a bad file or a bad parameter, told in the user's words."""


class RankWarning(UserWarning):
    """The rank asked for is more than the data can use."""
