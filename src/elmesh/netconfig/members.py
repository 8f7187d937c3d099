"""An agent as the others know it: a name and an address."""

from __future__ import annotations

from dataclasses import dataclass

from elmesh.errors import ElmeshError
from elmesh.netconfig.names import ROUTER, Address, check_name, parse_address

__all__ = ["Member"]


@dataclass(frozen=True)
class Member:
    """An agent as the others know it.

    Attributes
    ----------
    name
        Its name.
    address
        Where its neighbours reach it, ``host:port``.
    """

    name: str
    address: str

    def __post_init__(self) -> None:
        check_name(self.name, "The name of an agent")
        if self.name == ROUTER:
            raise ElmeshError(f"No agent can be called {ROUTER}, for that is what a router is called; rename it.")
        place = parse_address(self.address, f"The address of agent {self.name}")
        if place.is_everywhere:
            raise ElmeshError(
                f"The address of agent {self.name} is {self.address}, where nobody can reach it; give the one its "
                "neighbours use, and where it listens in its agent.toml."
            )
        object.__setattr__(self, "address", str(place))

    @property
    def place(self) -> Address:
        """The address as host and port."""
        return parse_address(self.address, "The address")
