"""Where a fit takes place whose other tasks are elsewhere: a site that hosts the fits within its context."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Protocol

from elmesh.comm.graph import Topology
from elmesh.data.statistics import Task
from elmesh.run.base import Result
from elmesh.solvers.base import Solver

__all__ = ["Host", "current_host", "hosting"]


class Host(Protocol):
    """A site, which has one task and knows how to reach the others."""

    @property
    def name(self) -> str:
        """Its task."""

    @property
    def names(self) -> list[str]:
        """All tasks that take part, sorted; after a run, those that did to the end."""

    @property
    def topology(self) -> Topology:
        """Who talks to whom."""

    def run(self, solver: Solver, task: Task, seed: int) -> Result:
        """Run its part of a solver, together with the others."""


_current: ContextVar[Host | None] = ContextVar("host", default=None)


def current_host() -> Host | None:
    """Return the site that hosts the fits here, if any does."""
    return _current.get()


@contextmanager
def hosting(host: Host) -> Iterator[None]:
    """Have the fits inside take place at a site."""
    token = _current.set(host)
    try:
        yield
    finally:
        _current.reset(token)
