"""The hidden layer that all tasks share: random, from one seed, or trained.

Every task maps its inputs through the same hidden units, drawn once and never trained, equation (35) of the paper::

    h(x) = g(x W + b),     W and b uniform in [-s, s)

A :class:`FeatureMap` puts several groups of features beside each other: a constant, the inputs themselves, and hidden
units at several scales of weights. A :class:`TrainedLayer` has hidden units that a solver has trained.

Weights of random units are never sent: sites with the same seed and sizes have the same weights, to the bit, on any
machine. NumPy guarantees that for the raw 64-bit stream of a bit generator, but not for ``Generator.uniform``, so the
step from bits to numbers is written out here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from itertools import groupby
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import expit

from elmesh.checks import check_choice, check_count, check_number
from elmesh.errors import ElmeshError
from elmesh.typing import FloatArray, IndexArray

__all__ = [
    "ACTIVATIONS",
    "FeatureMap",
    "Features",
    "HiddenLayer",
    "TrainedLayer",
    "features_from_json",
    "uniform",
    "weight_scale",
]


_LARGEST_SEED = 2**64 - 1
# Rows whose features are computed at a time.
_BLOCK = 512


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


@dataclass(frozen=True, eq=False)
class FeatureMap:
    """Features in groups: a constant, the inputs (direct links), and one group of hidden units per weight scale.

    Inputs are taken about common means, and limited to a largest deviation from them, so that an outlier cannot run
    away. They are not scaled unless a scale is given, because where columns have a common unit, as components of images
    have, their sizes mean something. Each group is divided by the root of its width, so that a variance of its weights
    is the variance of its part of a prediction, whatever its width. Hidden units are centred: a sigmoid at 0 counts as
    0.

    Parameters
    ----------
    mean : ndarray of shape (n_inputs,)
        Means of the inputs over all tasks.
    limit : ndarray of shape (n_inputs,) or None
        Largest deviations from the means; None for no limits.
    layers : tuple of HiddenLayer
        Hidden units, one group each; their seeds differ.
    constant, direct_links : bool
        Whether the constant and the inputs are features.
    scale : ndarray of shape (n_inputs,) or None
        What inputs are divided by; None for nothing.

    Examples
    --------
    >>> features = FeatureMap(np.zeros(2), np.array([3.0, 3.0]), (HiddenLayer(2, 3),))
    >>> features.groups.tolist()
    [0, 1, 1, 2, 2, 2]
    >>> features(np.array([[0.5, 99.0]]))[0, :3].round(3).tolist()
    [1.0, 0.354, 2.121]
    """

    mean: FloatArray
    limit: FloatArray | None = None
    layers: tuple[HiddenLayer, ...] = ()
    constant: bool = True
    direct_links: bool = True
    scale: FloatArray | None = None

    def __post_init__(self) -> None:
        for name in ("mean", "limit", "scale"):
            if getattr(self, name) is None:
                continue
            value = np.ascontiguousarray(getattr(self, name), dtype=np.float64)
            if value.shape != (len(self.mean),) or not np.isfinite(value).all():
                raise ElmeshError(f"{name} of a feature map must hold one finite number per input.")
            object.__setattr__(self, name, value)
        if self.scale is not None and not np.all(self.scale > 0):
            raise ElmeshError("scale of a feature map must hold numbers above zero.")
        if any(layer.n_inputs != self.n_inputs for layer in self.layers):
            raise ElmeshError("The parts of a feature map have different numbers of inputs.")
        if not self.width:
            raise ElmeshError("A feature map without hidden units needs direct links.")

    @property
    def n_inputs(self) -> int:
        """Number of input columns."""
        return len(self.mean)

    @property
    def seed(self) -> int:
        """The seed of the hidden units; 0 if there are none."""
        return self.layers[0].seed if self.layers else 0

    @cached_property
    def groups(self) -> IndexArray:
        """The group of each feature: 0 is the constant, 1 the inputs, then hidden units."""
        sizes = [int(self.constant), self.n_inputs if self.direct_links else 0, *(layer.width for layer in self.layers)]
        return np.repeat(np.arange(len(sizes)), sizes)

    @property
    def width(self) -> int:
        """Number of features that come out."""
        return len(self.groups)

    @property
    def group_names(self) -> list[str]:
        """A name for each group, for tables of variances."""
        return ["constant", "inputs", *(f"hidden, weight scale {layer.weight_scale:g}" for layer in self.layers)]

    def __call__(self, X: ArrayLike) -> FloatArray:
        """Map inputs of shape (n_rows, n_inputs) to features of shape (n_rows, width)."""
        rows = np.asarray(X, dtype=np.float64)
        if rows.ndim != 2 or rows.shape[1] != self.n_inputs:
            shape = rows.shape
            raise ElmeshError(f"The features take a table of {self.n_inputs} columns, not an array of shape {shape}.")
        Phi = np.empty((len(rows), self.width))
        self.fill(rows, Phi)
        return Phi

    def fill(self, X: FloatArray, Phi: FloatArray) -> None:
        """Write the features of rows into an array of shape (n_rows, width)."""
        for start in range(0, len(X), _BLOCK):
            self._fill_block(X[start : start + _BLOCK], Phi[start : start + _BLOCK])

    def _fill_block(self, X: FloatArray, Phi: FloatArray) -> None:
        """Write the features of so few rows that they fit the cache."""
        n, k = X.shape
        # The last column is for the biases of hidden units.
        Z = np.ones((n, k + 1))
        np.subtract(X, self.mean, out=Z[:, :k])
        if self.limit is not None:
            np.clip(Z[:, :k], -self.limit, self.limit, out=Z[:, :k])
        if self.scale is not None:
            Z[:, :k] /= self.scale
        column = int(self.constant)
        Phi[:, :column] = 1.0
        if self.direct_links:
            np.divide(Z[:, :k], math.sqrt(k), out=Phi[:, column : column + k])
            column += k
        for activation, W, units in self._hidden:
            hidden = _FUNCTIONS[activation](Z @ W)
            np.multiply(hidden, units, out=Phi[:, column : column + len(units)])
            column += len(units)

    @cached_property
    def _hidden(self) -> list[tuple[str, FloatArray, FloatArray]]:
        """For each activation in turn: its name, weights with biases in the last row, and what units are multiplied by.

        A centred sigmoid is half a hyperbolic tangent of half its argument, which is several times as fast.
        """
        found = []
        for activation, same in groupby(self.layers, key=lambda layer: layer.activation):
            layers = list(same)
            W = np.hstack([np.vstack([*layer.weights]) for layer in layers])
            units = np.concatenate([np.full(layer.width, 1.0 / math.sqrt(layer.width)) for layer in layers])
            if activation == "sigmoid":
                found.append(("tanh", W / 2, units / 2))
            else:
                found.append((activation, W, units))
        return found

    def to_json(self) -> dict[str, Any]:
        """Return all parameters as plain JSON."""
        return {
            "mean": self.mean.tolist(),
            "limit": None if self.limit is None else self.limit.tolist(),
            "layers": [layer.to_json() for layer in self.layers],
            "constant": self.constant,
            "direct_links": self.direct_links,
            **({} if self.scale is None else {"scale": self.scale.tolist()}),
        }

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> FeatureMap:
        """Return the features of :meth:`to_json`; anything missing, unknown or out of range is an error."""
        expected = list(cls.__dataclass_fields__)
        # Files of earlier versions have no scale.
        if set(fields) | {"scale"} != set(expected) or not isinstance(fields["layers"], list):
            raise ElmeshError(f"A feature map is described by exactly the fields {', '.join(expected)}.")
        layers = tuple(HiddenLayer.from_json(layer) for layer in fields["layers"])
        for name in ("constant", "direct_links"):
            if not isinstance(fields[name], bool):
                raise ElmeshError(f"{name} of a feature map must be True or False.")
        mean, limit = np.asarray(fields["mean"], dtype=np.float64), fields["limit"]
        limits = None if limit is None else np.asarray(limit, dtype=np.float64)
        scale = None if fields.get("scale") is None else np.asarray(fields["scale"], dtype=np.float64)
        return cls(mean, limits, layers, fields["constant"], fields["direct_links"], scale)


@dataclass(frozen=True, eq=False)
class TrainedLayer:
    """Hidden units with trained weights, on top of other features: ``tanh(base(x) B)``, after a constant.

    Parameters
    ----------
    base : FeatureMap
        From inputs to the features that the hidden units take.
    B : ndarray of shape (base.width, n_units)
        Their weights.

    Examples
    --------
    >>> layer = TrainedLayer(FeatureMap(np.zeros(1)), np.array([[0.0], [2.0]]))
    >>> layer(np.array([[0.5]])).round(3).tolist()
    [[1.0, 0.762]]
    """

    base: FeatureMap
    B: FloatArray

    def __post_init__(self) -> None:
        B = np.ascontiguousarray(self.B, dtype=np.float64)
        if B.ndim != 2 or len(B) != self.base.width or not np.isfinite(B).all():
            raise ElmeshError("The weights of trained hidden units must be finite, with one row per feature.")
        object.__setattr__(self, "B", B)

    @property
    def n_inputs(self) -> int:
        """Number of input columns."""
        return self.base.n_inputs

    @property
    def seed(self) -> int:
        """The seed of the features below."""
        return self.base.seed

    @property
    def width(self) -> int:
        """Number of features that come out."""
        return int(self.base.constant) + int(self.B.shape[1])

    def __call__(self, X: ArrayLike) -> FloatArray:
        """Map inputs of shape (n_rows, n_inputs) to features of shape (n_rows, width)."""
        Z = np.tanh(self.base(X) @ self.B)
        return np.hstack([np.ones((len(Z), int(self.base.constant))), Z])

    def to_json(self) -> dict[str, Any]:
        """Return the features below and the weights as plain JSON."""
        return {"base": self.base.to_json(), "B": self.B.tolist()}

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> TrainedLayer:
        """Return the layer of :meth:`to_json`; anything missing, unknown or out of range is an error."""
        if set(fields) != {"base", "B"} or not isinstance(fields["base"], Mapping):
            raise ElmeshError("A trained layer is described by exactly the fields base, B.")
        return cls(FeatureMap.from_json(fields["base"]), np.asarray(fields["B"], dtype=np.float64))


Features = HiddenLayer | FeatureMap | TrainedLayer


def features_from_json(fields: object) -> Features:
    """Return the features that JSON describes."""
    if isinstance(fields, Mapping) and "base" in fields:
        return TrainedLayer.from_json(fields)
    if isinstance(fields, Mapping) and "layers" in fields:
        return FeatureMap.from_json(fields)
    return HiddenLayer.from_json(fields)
