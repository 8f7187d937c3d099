"""BLAS threads: one for small products, where handing work to a second thread costs more than the work."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager

from threadpoolctl import threadpool_limits

__all__ = ["limit_blas_threads"]

# Multiplications per product below which a second thread does not pay.
_SMALL = 20_000_000


@contextmanager
def limit_blas_threads(*shape: int, always: bool = False) -> Iterator[None]:
    """Limit BLAS to one thread inside, if products of this shape are small, or always."""
    if math.prod(shape) >= _SMALL and not always:
        yield
        return
    with threadpool_limits(1, user_api="blas"):
        yield
