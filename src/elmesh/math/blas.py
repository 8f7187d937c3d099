"""BLAS threads: one for small products, where handing work to a second thread costs more than the work."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

import scipy.linalg  # noqa: F401 - loads the BLAS of SciPy, so that the controller finds it beside NumPy's
from threadpoolctl import ThreadpoolController

__all__ = ["limit_blas_threads"]

# Multiplications per product below which a second thread does not pay.
_SMALL = 20_000_000


@contextmanager
def limit_blas_threads(*shape: int, always: bool = False) -> Iterator[None]:
    """Limit BLAS to one thread inside, if products of this shape are small, or always."""
    if math.prod(shape) >= _SMALL and not always:
        yield
        return
    with _libraries().limit(limits=1):
        yield


@cache
def _libraries() -> ThreadpoolController:
    """Return the BLAS libraries; looking for them takes milliseconds, which small fits would notice."""
    return ThreadpoolController().select(user_api="blas")
