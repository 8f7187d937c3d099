"""A site's own policy on what may leave it: ``gate.toml``, which the site's officer writes.

The network file states what agents exchange. The gate of a site allows that, or less: whatever it does not allow does
not leave. Without the file nothing is asked, and what the network file has is allowed.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

from msgspec import Meta

from elmesh.errors import ElmeshError
from elmesh.netconfig.files import read_text
from elmesh.netconfig.toml import CheckedStruct, decode_toml
from elmesh.text import count

__all__ = ["Gate", "GateError", "Kind"]

_MAX_BYTES = 64 * 2**10
#: Kinds of release: the topics of sums (:class:`elmesh.comm.requests.Topic`), totals with noise, and U_t.
Kind = Literal["statistics", "numbers", "block", "matrix", "private", "basis"]


class GateError(ElmeshError):
    """A release that the gate of the site does not allow."""


class Gate(CheckedStruct, frozen=True, kw_only=True):
    """The content of a gate file; a limit that is None does not apply.

    Parameters
    ----------
    kinds : tuple of str or None
        Kinds of release that are allowed: "statistics" (counts, sums and squares of columns), "numbers" (a few numbers
        of all sites together), "block" (blocks of the size of U), "matrix" (products of all features), "private"
        (totals with noise for differential privacy), "basis" (U_t, which is not masked).
    most_matrix_totals : int or None
        Most totals of kind "matrix" of the same rows, over all runs; three for a run without a shared part. Without
        this limit there are at most 9, unless the agent is run with ``--release-again``.
    most_numbers : int or None
        Most numbers in one release; a matrix total of p features and d targets has p (p + 1) / 2 + p d + d.
    most_rounds : int or None
        Most releases in one run, of any kind.
    fewest_rows, fewest_sites : int or None
        Least number of rows of this site, and of sites whose terms are in a sum.
    largest_epsilon : float or None
        Largest epsilon of all releases of this site's rows together; with a limit nothing without noise may leave.
    delta : float or None
        The delta that ``largest_epsilon`` is meant for; that of the network file, if this is not given or larger.
    confirm : bool
        Whether a person has to confirm before the first release of a run.
    content : bool
        Whether the log holds what left, and not only its digest.
    """

    kinds: tuple[Kind, ...] | None = None
    most_matrix_totals: Annotated[int, Meta(ge=0, le=10**6)] | None = None
    most_numbers: Annotated[int, Meta(ge=0, le=10**12)] | None = None
    most_rounds: Annotated[int, Meta(ge=0, le=10**9)] | None = None
    fewest_rows: Annotated[int, Meta(ge=0, le=10**12)] | None = None
    fewest_sites: Annotated[int, Meta(ge=1, le=10**6)] | None = None
    largest_epsilon: Annotated[float, Meta(gt=0, le=1e6)] | None = None
    delta: Annotated[float, Meta(gt=0, le=0.01)] | None = None
    confirm: bool = False
    content: bool = False

    @classmethod
    def read(cls, path: Path) -> Gate:
        """Read a gate file."""
        return decode_toml(read_text(path, "gate file", _MAX_BYTES), cls, str(path))

    def check_site(self, rows: int, sites: int) -> None:
        """Raise if this site, or the network, is too small."""
        if self.fewest_rows is not None and rows < self.fewest_rows:
            raise GateError(
                f"The gate of this site allows releases of at least {count(self.fewest_rows, 'row')}, and the table "
                f"has {rows}."
            )
        if self.fewest_sites is not None and sites < self.fewest_sites:
            raise GateError(
                f"The gate of this site allows sums over at least {count(self.fewest_sites, 'site')}, and there are "
                f"{sites}."
            )

    def check_kinds(self, kinds: Sequence[str]) -> None:
        """Raise unless all kinds of release that a run certainly needs are allowed, before anything leaves."""
        for what in kinds:
            if self.kinds is not None and what not in self.kinds:
                allowed = ", ".join(self.kinds) or "none"
                raise GateError(
                    f'The gate of this site does not allow releases of kind "{what}", only {allowed}; this network '
                    f"needs {', '.join(kinds)}. Nothing has left."
                )

    def check_release(
        self, what: str, numbers: int, releases: int, matrices: int, epsilon: float, most_matrices: int | None = None
    ) -> None:
        """Raise if a release is not allowed.

        Parameters
        ----------
        what, numbers : str, int
            Its kind, and how many numbers it has.
        releases, matrices : int
            Releases of this run so far, and of kind "matrix" of the same rows in any run.
        epsilon : float
            What all releases of this site's rows cost with this one; infinite if one of them has no noise.
        most_matrices : int or None
            Most of kind "matrix" where the file states none.
        """
        if self.kinds is not None and what not in self.kinds:
            allowed = ", ".join(self.kinds) or "none"
            raise GateError(f'The gate of this site does not allow releases of kind "{what}", only {allowed}.')
        if self.most_rounds is not None and releases >= self.most_rounds:
            raise GateError(f"The gate of this site allows {count(self.most_rounds, 'release')} in a run.")
        most = most_matrices if self.most_matrix_totals is None else self.most_matrix_totals
        if what == "matrix" and most is not None and matrices >= most:
            raise GateError(
                f"This site allows {count(most, 'matrix total')} of the same rows, over all runs; set "
                "most_matrix_totals in gate.toml to allow more."
            )
        if self.most_numbers is not None and numbers > self.most_numbers:
            raise GateError(
                f"The gate of this site allows {count(self.most_numbers, 'number')} in a release, and this one of kind "
                f'"{what}" has {numbers}.'
            )
        if self.largest_epsilon is not None and epsilon > self.largest_epsilon * (1 + 1e-9):
            spent = "without noise has no epsilon" if epsilon == float("inf") else f"would make it {epsilon:.3g}"
            raise GateError(
                f"The gate of this site allows an epsilon of {self.largest_epsilon:g} for its rows in all, and this "
                f"release {spent}."
            )
