r"""Limited-memory BFGS: a step from gradients alone, and what it remembers of them.

The memory holds the last pairs of a step s and the change y of the gradient along it. The two-loop recursion applies
the inverse Hessian they imply to a gradient, starting from a guess of it, here :math:`X \mapsto X W^{-1}` with a small
matrix W. No product of the size of U squared is ever formed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping

import numpy as np

from elmesh.typing import FloatArray

__all__ = ["Memory"]


_PAIRS = 30
# A pair whose curvature is no larger than this share of what its lengths allow is rounding, or of the wrong sign.
_CURVED = 1e-8


class Memory:
    """Steps and changes of the gradient, newest last.

    Examples
    --------
    >>> memory = Memory()
    >>> memory.learn(np.array([[1.0], [0.0]]), np.array([[4.0], [0.0]]))  # second derivative 4 along the first axis
    >>> memory.step(np.array([[8.0], [4.0]]), np.eye(1)).ravel()
    array([-2., -1.])
    """

    def __init__(self) -> None:
        self._pairs: deque[tuple[FloatArray, FloatArray, float]] = deque(maxlen=_PAIRS)

    def __len__(self) -> int:
        return len(self._pairs)

    @classmethod
    def of(cls, kept: Mapping[str, FloatArray]) -> Memory:
        """Return the memory with these :attr:`pairs`, among whatever else there is."""
        memory = cls()
        while (s := kept.get(f"s{len(memory)}")) is not None:
            y = kept[f"y{len(memory)}"]
            memory._pairs.append((s, y, float(np.vdot(s, y))))
        return memory

    @property
    def pairs(self) -> dict[str, FloatArray]:
        """All that is remembered, by name: steps ``s0``, ``s1``... and changes ``y0``, ``y1``..., oldest first."""
        named = [((f"s{i}", s), (f"y{i}", y)) for i, (s, y, _) in enumerate(self._pairs)]
        return dict(entry for pair in named for entry in pair)

    def learn(self, s: FloatArray, y: FloatArray) -> None:
        """Remember that the step s changed the gradient by y, unless the function is not convex along it."""
        curvature = float(np.vdot(s, y))
        if curvature > _CURVED * float(np.linalg.norm(s)) * float(np.linalg.norm(y)):
            self._pairs.append((s, y, curvature))

    def forget(self) -> None:
        """Start afresh."""
        self._pairs.clear()

    def turn(self, matrix: FloatArray) -> None:
        """Multiply all from the right: U has been given other columns, and the function does not mind."""
        turned = [(s @ matrix, y @ matrix) for s, y, _ in self._pairs]
        self.forget()
        for s, y in turned:
            self.learn(s, y)

    def step(self, gradient: FloatArray, guess: FloatArray) -> FloatArray:
        """Return the step that the remembered Hessian suggests; ``guess`` is W, the Hessian as far as it is known."""
        q = gradient.copy()
        shares = []
        for s, y, curvature in reversed(self._pairs):
            share = float(np.vdot(s, q)) / curvature
            shares.append(share)
            q -= share * y
        scale = 1.0
        if self._pairs:
            _, y, curvature = self._pairs[-1]
            scale = curvature / float(np.vdot(y, np.linalg.solve(guess, y.T).T))
        q = np.asarray(scale * np.linalg.solve(guess, q.T).T, dtype=np.float64)
        for (s, y, curvature), share in zip(self._pairs, reversed(shares), strict=True):
            q += (share - float(np.vdot(y, q)) / curvature) * s
        return np.ascontiguousarray(-q)
