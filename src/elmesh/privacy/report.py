"""What a private fit has released, and what is promised."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from elmesh.privacy.accounting import epsilon_of

__all__ = ["NOT_PRIVATE", "PrivacyReport", "ReleasedTotal"]

#: What a data protection officer has to know about the model itself.
NOT_PRIVATE = (
    "The model of a site is not private: it was learnt from that site's rows without noise, and someone who has it can "
    "learn about them. Keep it at the site, as confidential as the rows. Differential privacy protects what the site "
    "has sent to others."
)


@dataclass(frozen=True)
class ReleasedTotal:
    """One total with noise: what it is of, how many numbers it has, and what it costs."""

    what: str
    numbers: int
    rho: float


@dataclass(frozen=True)
class PrivacyReport:
    """What a private fit has released, and the epsilon of it.

    Parameters
    ----------
    delta : float
        The delta of all of the following.
    sites, colluders : int
        Number of sites, and how many of them may collude.
    epsilon : float
        What holds against that many colluders.
    epsilon_without_colluders, epsilon_all_but_two : float
        What holds if no site colludes, and if all but two do.
    scales : str
        Where centre and spread of the columns come from: "declared" or "found".
    releases : tuple of ReleasedTotal
        The totals, in their order.
    """

    delta: float
    sites: int
    colluders: int
    epsilon: float
    epsilon_without_colluders: float
    epsilon_all_but_two: float
    scales: str
    releases: tuple[ReleasedTotal, ...]

    @classmethod
    def of(
        cls, releases: tuple[ReleasedTotal, ...], delta: float, sites: int, colluders: int, scales: str
    ) -> PrivacyReport:
        """Return the report of releases whose cost is that against so many colluders."""
        rho = sum(release.rho for release in releases)

        def epsilon(honest: int) -> float:
            # Each site adds the same noise, so that the cost falls with the number of sites whose noise is secret.
            return epsilon_of(rho * (sites - colluders) / honest, delta)

        stated = epsilon(sites - colluders), epsilon(sites), epsilon(min(2, sites))
        return cls(delta, sites, colluders, *stated, scales, releases)

    def to_json(self) -> dict[str, Any]:
        """Return all of it as plain JSON, with the promise, and a sentence on the model itself."""
        return {**asdict(self), "promise": self.sentence(), "model": NOT_PRIVATE}

    def sentence(self) -> str:
        """Return what is promised in one sentence.

        Examples
        --------
        >>> release = ReleasedTotal("totals", 100, 0.0359257)
        >>> print(PrivacyReport.of((release,), 1e-5, 9, 3, "declared").sentence())
        Differential privacy of single rows: epsilon 1, delta 1e-05 against 3 colluding sites of 9; epsilon 0.801
        against none, 1.83 against all but two; 1 total released.
        """
        totals = f"{len(self.releases)} total{'s' if len(self.releases) != 1 else ''} released"
        return (
            f"Differential privacy of single rows: epsilon {self.epsilon:.3g}, delta {self.delta:g} against "
            f"{self.colluders} colluding sites of {self.sites}; epsilon {self.epsilon_without_colluders:.3g} against "
            f"none, {self.epsilon_all_but_two:.3g} against all but two; {totals}."
        )
