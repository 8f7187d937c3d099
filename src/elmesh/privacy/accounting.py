r"""What releases with Gaussian noise cost, and what they add up to.

The cost of a release is :math:`\rho = \max \sum_i \Delta_i^2 / 2\sigma_i^2`: the largest change of the released numbers
by one row, in units of the noise. Costs of Gaussian releases add up exactly, also if a release depends on earlier ones,
and a total of :math:`\rho` has the privacy of one Gaussian release with a noise of :math:`1/\sqrt{2\rho}` times its
sensitivity (Dong, Roth and Su 2022), whose epsilon is that of the package ``dp-accounting`` (Balle and Wang 2018).

Noise is of integers (:mod:`elmesh.privacy.discrete_gaussian`). A discrete Gaussian of variance :math:`\sigma^2` about a
whole number is, up to a factor of :math:`1 \pm 10^{-70}`, a random rounding of a continuous Gaussian of variance
:math:`\sigma^2 - 9` about it, so that it is as private; with the noise of thousands that integers have here
the difference is in the eighth digit. A thousandth is added to every cost, which covers it. A sum of discrete Gaussians
is one up to factors of that size (Kairouz, Liu and Steinke 2021).
"""

from __future__ import annotations

import math
from typing import Any

from elmesh.errors import ElmeshError

__all__ = ["LEAST_SIGMA", "epsilon_of", "rho_for", "with_margin"]

#: Least standard deviation of integer noise for which the margin covers that it is discrete.
LEAST_SIGMA = 1000
_MARGIN = 1.001
# Costs between these have an epsilon that is neither zero nor infinite.
_LEAST_RHO, _LARGEST_RHO = 1e-18, 1e9


def epsilon_of(rho: float, delta: float) -> float:
    """Return the epsilon of releases of this cost in all.

    Examples
    --------
    >>> round(epsilon_of(0.0359257, 1e-5), 4), epsilon_of(0.0, 1e-5)
    (1.0, 0.0)
    """
    if rho < _LEAST_RHO:
        return 0.0
    return math.inf if rho > _LARGEST_RHO else float(_gaussian().get_epsilon_gaussian(1.0 / math.sqrt(2 * rho), delta))


def rho_for(epsilon: float, delta: float) -> float:
    """Return the cost that releases may have in all.

    Examples
    --------
    >>> round(rho_for(1.0, 1e-5), 6)
    0.035926
    """
    return 0.5 / float(_gaussian().get_sigma_gaussian(epsilon, delta)) ** 2


def with_margin(rho: float) -> float:
    """Return a cost with the margin for noise that is discrete, and drawn with finite precision."""
    return _MARGIN * rho


def _gaussian() -> Any:
    try:
        import dp_accounting  # noqa: PLC0415  (slow to import, and part of an extra)
    except ImportError as error:
        raise ElmeshError(
            "Differential privacy needs the package dp-accounting, which is not installed; run pip install "
            '"elmesh[network]".'
        ) from error
    return dp_accounting
