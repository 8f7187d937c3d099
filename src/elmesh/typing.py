"""The type aliases of the package."""

from __future__ import annotations

import os

import numpy as np
from numpy.typing import NDArray

__all__ = ["FloatArray", "IndexArray", "IntArray", "Label", "StrPath"]

FloatArray = NDArray[np.float64]
IndexArray = NDArray[np.intp]
IntArray = NDArray[np.int64]
#: The name of a task. To the type checker bool is an int; the two are never mixed.
Label = str | int
StrPath = str | os.PathLike[str]
