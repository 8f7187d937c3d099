"""The shared random hidden layer, from one seed.

Every task maps its inputs through the same hidden units, drawn once and never trained, equation (35) of the paper::

    h(x) = g(x W + b),     W and b uniform in [-s, s)

``W`` is never sent: sites with the same seed and sizes have the same weights, to the bit, on any machine. NumPy
guarantees that for the raw 64-bit stream of a bit generator, but not for ``Generator.uniform``, so the step from bits
to numbers is written out here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import expit

from elmesh.checks import check_choice, check_count, check_number
from elmesh.errors import ElmeshError
from elmesh.typing import FloatArray

__all__ = ["ACTIVATIONS", "HiddenLayer", "uniform", "weight_scale"]


_LARGEST_SEED = 2**64 - 1


# Each overwrites its argument, which has no other reference.
_FUNCTIONS: dict[str, Callable[[FloatArray], Any]] = {
    "sigmoid": lambda Z: expit(Z, out=Z),  # 1 / (1 + exp(-z)) without its overflow
    "tanh": lambda Z: np.tanh(Z, out=Z),
    "relu": lambda Z: np.maximum(Z, 0.0, out=Z),
    "sine": lambda Z: np.sin(Z, out=Z),
    "none": lambda Z: Z,
}

#: The names that ``activation`` may take.
ACTIVATIONS: tuple[str, ...] = tuple(_FUNCTIONS)


def uniform(seed: int | tuple[int, ...], count: int) -> FloatArray:
    """Return numbers uniform in [-1, 1), the same to the bit wherever the seed is the same."""
    stream = np.random.PCG64(np.random.SeedSequence(seed)).random_raw(count)
    # The top 53 bits k give 2 k / 2**53 - 1, exact in doubles.
    return (stream >> np.uint64(11)).astype(np.float64) * 2.0**-52 - 1.0


def weight_scale(n_columns: int) -> float:
    """Return the scale of hidden weights that avoids saturation of the sigmoid.

    Weights uniform in [-1, 1) have variance 1/3, so the input of a hidden unit has variance n/3 for n standardised
    columns. Beyond about 1 the sigmoid saturates; this factor brings the variance back to 1.

    Examples
    --------
    >>> weight_scale(2), weight_scale(12)
    (1.0, 0.5)
    """
    return 1.0 / math.sqrt(max(1.0, n_columns / 3.0))


@dataclass(frozen=True)
class HiddenLayer:
    """A layer of random hidden units, the same wherever its five parameters are the same.

    Parameters
    ----------
    n_inputs : int
        Number of input columns.
    n_hidden : int or None
        Number of hidden units. None means no hidden layer: the inputs themselves are the features, and the
        other parameters do nothing.
    activation : {"sigmoid", "tanh", "relu", "sine", "none"}, default="sigmoid"
        What is applied to ``X @ W + b``; "none" leaves a random linear projection.
    weight_scale : float, default=1.0
        Weights and biases are uniform in ``[-weight_scale, weight_scale)``.
    seed : int, default=0
        Any whole number from 0 to 2**64 - 1.

    Notes
    -----
    The weights are the first ``(n_inputs + 1) * n_hidden`` numbers of the PCG64 stream of ``seed``: W row by row, then
    b. So a layer of another size is not a part of a larger one. Weights are the same to the bit on every machine; the
    product with ``X`` is the machine's BLAS's, and agrees to rounding.

    Examples
    --------
    >>> import numpy as np
    >>> layer = HiddenLayer(n_inputs=2, n_hidden=3, seed=7)
    >>> layer(np.zeros((5, 2))).shape
    (5, 3)
    >>> HiddenLayer(n_inputs=2, n_hidden=None)([[1, 2]])
    array([[1., 2.]])
    """

    n_inputs: int
    n_hidden: int | None
    activation: str = "sigmoid"
    weight_scale: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        check_count("n_inputs", self.n_inputs)
        if self.n_hidden is not None:
            check_count("n_hidden", self.n_hidden, otherwise=", or None for no hidden layer")
        check_choice("activation", self.activation, ACTIVATIONS)
        check_number("weight_scale", self.weight_scale)
        check_count("seed", self.seed, least=0)
        if self.seed > _LARGEST_SEED:
            raise ElmeshError(f"seed must be a whole number from 0 to 2**64 - 1; got {self.seed}.")
        # Plain numbers instead of NumPy scalars, for JSON.
        assign = object.__setattr__
        assign(self, "n_inputs", int(self.n_inputs))
        assign(self, "n_hidden", None if self.n_hidden is None else int(self.n_hidden))
        assign(self, "weight_scale", float(self.weight_scale))
        assign(self, "seed", int(self.seed))

    @property
    def width(self) -> int:
        """Number of features that come out."""
        return self.n_inputs if self.n_hidden is None else self.n_hidden

    @cached_property
    def weights(self) -> tuple[FloatArray, FloatArray]:
        """The pair ``W`` (n_inputs x n_hidden) and ``b`` (n_hidden), read-only."""
        if self.n_hidden is None:
            raise ElmeshError("This layer passes the inputs through (n_hidden=None), so it has no weights.")
        n, L = self.n_inputs, self.n_hidden
        values = uniform(self.seed, (n + 1) * L) * self.weight_scale
        values.flags.writeable = False
        return values[: n * L].reshape(n, L), values[n * L :]

    def __call__(self, X: ArrayLike) -> FloatArray:
        """Map inputs of shape (n_rows, n_inputs) to features of shape (n_rows, width)."""
        X = np.asarray(X, dtype=np.float64)
        if X.ndim != 2 or X.shape[1] != self.n_inputs:
            raise ElmeshError(
                f"The hidden layer takes a table of {self.n_inputs} columns, but was given an array of shape {X.shape}."
            )
        if self.n_hidden is None:
            return X
        W, b = self.weights
        Z = X @ W
        Z += b
        return np.asarray(_FUNCTIONS[self.activation](Z))

    def to_json(self) -> dict[str, Any]:
        """Return the five parameters as plain JSON.

        Examples
        --------
        >>> HiddenLayer(4, 10).to_json()
        {'n_inputs': 4, 'n_hidden': 10, 'activation': 'sigmoid', 'weight_scale': 1.0, 'seed': 0}
        """
        return asdict(self)

    @classmethod
    def from_json(cls, fields: object) -> HiddenLayer:
        """Return the layer of :meth:`to_json`; anything missing, unknown or out of range is an error."""
        expected = list(cls.__dataclass_fields__)
        if not isinstance(fields, Mapping) or set(fields) != set(expected):
            raise ElmeshError(f"A hidden layer is described by exactly the fields {', '.join(expected)}.")
        return cls(**fields)
