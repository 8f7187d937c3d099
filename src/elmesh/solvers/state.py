"""Solver states: everything that a round hands to the next, as a frozen dataclass that becomes arrays and back.

A state's fields are numbers, arrays, tuples of arrays, and dataclasses of those. Arrays are shared by all agents unless
their annotation is :data:`PerAgent` (a leading agent axis) or :data:`PerEdge` (one row per neighbour).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from functools import cache
from itertools import pairwise
from types import NoneType
from typing import Annotated, Any, Self, get_args, get_origin, get_type_hints

import numpy as np

from elmesh.typing import FloatArray, IndexArray

__all__ = ["MixedEffects", "PerAgent", "PerEdge", "SolverState", "StateDict"]

#: An array with a leading agent axis wherever the problem has one.
PerAgent = Annotated[FloatArray, "agent"]
#: An array with one row per neighbour; for stacked agents, receiver after receiver.
PerEdge = Annotated[FloatArray, "edge"]


@dataclass(frozen=True, eq=False)
class StateDict:
    """The arrays of a state by name, all of them float64: what checkpoints hold.

    Examples
    --------
    >>> state = StateDict({"U": np.zeros((2, 3, 1))}, {"round": np.array(4.0)})
    >>> [alone.agent["U"].shape for alone in state.split([1, 1])]
    [(3, 1), (3, 1)]
    """

    agent: dict[str, FloatArray] = field(default_factory=dict)
    shared: dict[str, FloatArray] = field(default_factory=dict)
    edge: dict[str, FloatArray] = field(default_factory=dict)

    def split(self, degrees: Iterable[int]) -> list[StateDict]:
        """Return the arrays of each agent of a stack; ``degrees`` are their numbers of neighbours."""
        ends = np.cumsum([0, *degrees]).tolist()
        return [
            StateDict(
                {name: x[t, ...] for name, x in self.agent.items()},
                self.shared,
                {name: x[start:stop] for name, x in self.edge.items()},
            )
            for t, (start, stop) in enumerate(pairwise(ends))
        ]

    @classmethod
    def stack(cls, agents: Sequence[StateDict]) -> StateDict:
        """Return the arrays of a stack of agents of equal shapes."""
        first = agents[0]
        return cls(
            {name: np.stack([one.agent[name] for one in agents]) for name in first.agent},
            first.shared,
            {name: np.concatenate([one.edge[name] for one in agents]) for name in first.edge},
        )


@dataclass(frozen=True, eq=False)
class MixedEffects:
    """Common and private weights by their variances, in units of the noise (:mod:`elmesh.solvers.mixed_effects`).

    Parameters
    ----------
    log_c, log_v : ndarray of shape (G,)
        Log-variances of common and private weights, by group of features.
    tau2 : float
        Variance of log-precisions among sites.
    W : ndarray of shape (p, d)
        Common weights.
    S : ndarray of shape (p, p)
        Their posterior covariance.
    s2 : ndarray of shape (d,)
        Variance of the noise of each column.
    log_w : ndarray of shape (m,)
        Log-precision of each site's noise relative to that.
    size : int
        Number of rows to which the statistics of every site are padded, wherever it is: a power of two that none
        exceeds, or the most that any can have. Sums of products have the same bits for the same shapes only.
    temperature : float
        What scores of classes are divided by before the softmax; 0 where it is not known.
    link : ndarray of shape (2, d) or None
        What scores of classes are multiplied by before that, and what is added then; None for nothing.
    shares : ndarray of shape (d,) or None
        The share of each class among the rows of all sites; None where it is not known.
    released : ndarray of shape (p,) or None
        One for features that common and shared weights may have, zero for those that private weights alone have; None
        if all may.
    site_log_v : ndarray of shape (m, G) or None
        Log-variances of each site's own private weights, in units of its noise, where a fit is private; S is then the
        covariance of W before the site's own rows are taken into account.
    """

    log_c: FloatArray
    log_v: FloatArray
    tau2: float
    W: FloatArray
    S: FloatArray
    s2: FloatArray
    log_w: PerAgent
    size: int = 0
    temperature: float = 0.0
    link: FloatArray | None = None
    shares: FloatArray | None = None
    released: FloatArray | None = None
    site_log_v: PerAgent | None = None

    @property
    def features(self) -> IndexArray | None:
        """The features that common and shared weights may have; None for all."""
        return None if self.released is None else np.flatnonzero(self.released)

    def __post_init__(self) -> None:
        for name in ("W", "S"):
            # One memory layout before a checkpoint and after it, as BLAS rounds differently by layout.
            object.__setattr__(self, name, np.ascontiguousarray(getattr(self, name)))


@dataclass(frozen=True, eq=False)
class SolverState:
    """Base of all states.

    Parameters
    ----------
    round : int
        Rounds done; 0 is the start.
    """

    round: int

    def state_dict(self) -> StateDict:
        """Return all arrays, without copies; a field that is None has none."""
        found = StateDict()
        for kind, name, array in _leaves(self, ""):
            getattr(found, kind)[name] = array
        return found

    @classmethod
    def load_state_dict(cls, arrays: StateDict) -> Self:
        """Return the state that :meth:`state_dict` was taken of."""
        state = _restore(cls, {**arrays.shared, **arrays.agent, **arrays.edge}, "")
        if not isinstance(state, cls):
            raise TypeError(f"The arrays are not those of a {cls.__name__}.")
        return state


@cache
def _hints(cls: type[Any]) -> dict[str, Any]:
    return get_type_hints(cls, include_extras=True)


def _without_none(hint: Any) -> tuple[Any, ...]:
    """Return the alternatives of an annotation but None."""
    return tuple(h for h in get_args(hint) if h is not NoneType) if NoneType in get_args(hint) else (hint,)


def _leaves(record: Any, prefix: str) -> Iterator[tuple[str, str, FloatArray]]:
    """Yield kind, name and array of everything in a dataclass."""
    for entry in fields(record):
        value, name = getattr(record, entry.name), f"{prefix}{entry.name}"
        if value is None:
            continue
        if is_dataclass(value):
            yield from _leaves(value, f"{name}.")
        elif isinstance(value, tuple):
            yield from (("shared", f"{name}.{i}", item) for i, item in enumerate(value))
        else:
            hint = _without_none(_hints(record.__class__)[entry.name])[0]
            kind = hint.__metadata__[0] if get_origin(hint) is Annotated else "shared"
            yield kind, name, value if isinstance(value, np.ndarray) else np.asarray(value, dtype=np.float64)


def _restore(cls: type, arrays: Mapping[str, FloatArray], prefix: str) -> Any:
    """Make a dataclass from its arrays; a field that may be None is None if it has none of them."""
    values: dict[str, Any] = {}
    for name, hint in _hints(cls).items():
        full, kind = f"{prefix}{name}", _without_none(hint)[0]
        if is_dataclass(kind) and isinstance(kind, type):
            present = kind is hint or any(key.startswith(f"{full}.") for key in arrays)
            values[name] = _restore(kind, arrays, f"{full}.") if present else None
        elif get_origin(kind) is tuple:
            values[name] = tuple(_numbered(arrays, full))
        elif full in arrays:
            convert: Callable[[Any], Any] = {int: int, float: float}.get(kind, lambda x: x)
            values[name] = convert(arrays[full])
        else:
            values[name] = None
    return cls(**values)


def _numbered(arrays: Mapping[str, FloatArray], name: str) -> Iterator[FloatArray]:
    i = 0
    while f"{name}.{i}" in arrays:
        yield arrays[f"{name}.{i}"]
        i += 1
