"""Backends by their names."""

from __future__ import annotations

from elmesh.errors import ElmeshError
from elmesh.run.backend import Backend
from elmesh.run.local_backend import LocalBackend
from elmesh.run.mpi_backend import MPIBackend

__all__ = ["resolve_backend"]


def resolve_backend(backend: str | Backend) -> Backend:
    """Return a backend from itself or from its name."""
    if isinstance(backend, Backend):
        return backend
    if backend == "local":
        return LocalBackend()
    if backend == "mpi":
        return MPIBackend()
    raise ElmeshError(f'backend must be "local", "mpi" or a Backend; got {backend!r}.')
