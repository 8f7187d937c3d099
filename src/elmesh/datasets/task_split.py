"""Rows of tasks, for training and for tests."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from elmesh.typing import FloatArray

__all__ = ["TaskSplit"]


@dataclass(frozen=True)
class TaskSplit:
    """Training and test rows, each with its label and its task."""

    X_train: FloatArray
    y_train: NDArray[Any]
    tasks_train: NDArray[np.str_]
    X_test: FloatArray
    y_test: NDArray[Any]
    tasks_test: NDArray[np.str_]
