"""BLAS threads: one for small matrices, where handing work to a second thread costs more than the work."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from threadpoolctl import threadpool_limits

__all__ = ["calm_blas"]

# Multiplications of one product below which a second thread does not pay.
_SMALL = 20_000_000


@contextmanager
def calm_blas(*shape: int, always: bool = False) -> Iterator[None]:
    """Keep BLAS to one thread inside, if products of this shape are small, or always."""
    size = 1
    for length in shape:
        size *= length
    if size >= _SMALL and not always:
        yield
        return
    with threadpool_limits(1, user_api="blas"):
        yield
