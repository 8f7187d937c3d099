"""How many random examples a property is tried on."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

#: A number below which properties have as many examples in every profile.
FEW = 2


def examples(n: int, *, suppress: tuple[HealthCheck, ...] = ()) -> settings:
    """Return settings with ``n`` examples in ``make test-all``, and with the profile's share of them in other runs."""
    profile, full = settings.default, settings.get_profile("exhaustive").max_examples
    wanted = max(min(n, FEW), n * profile.max_examples // full)
    return settings(max_examples=wanted, suppress_health_check=[*profile.suppress_health_check, *suppress])
