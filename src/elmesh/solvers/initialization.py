r"""Where U starts and how large the penalties are: what agents agree on before the first round.

The start is the leading singular vectors of all tasks' own weights, by orthogonal iteration: with
:math:`M = \sum_t \beta_t\beta_t'` a pass is :math:`Q \leftarrow \mathrm{orth}(MQ)`, and in the end
:math:`U = Q(Q'MQ)^{1/4}`, a function of matrices without arbitrary signs or orders. A pass is one sum over all agents
of L x r blocks; no row and no weights are told, but the first block that a neighbour hears may be one agent's own,
before others are added: it tells of the span of its weights.

The automatic penalty (:mod:`elmesh.math.noise`) needs the largest singular value of another such matrix: a few vectors
that go through the same passes, in the same messages.
"""

from __future__ import annotations

import math
from collections.abc import Generator
from dataclasses import dataclass
from typing import Any

import numpy as np

from elmesh.comm.requests import Place, Sum, Total
from elmesh.data.features import uniform
from elmesh.data.statistics import Task
from elmesh.math.kernels import square
from elmesh.math.noise import noise_image, noise_variance, noise_within
from elmesh.typing import FloatArray

__all__ = ["Opening", "even_shares", "opening", "plain_A", "random_block"]


# Orthogonal iterations, and vectors that find the norm of the noise. Their purpose is a good start, not exactness.
_PASSES, _PROBES = 2, 4
# Penalty of the weights that the start is made of, as a share of the largest eigenvalue of a task's H'H.
_START_RIDGE = 0.1
# Keeps every direction of the block alive, so that U has full rank even where the tasks' weights do not.
_FLOOR = 1e-6
# Share of all directions of the targets up to which shared ones say something about noise that is not their own, and
# how much less it has to be to count.
_SHARED, _DECISIVE = 0.25, 0.8
# The penalty as a share of the norm of noise, chosen on USPS, MNIST, School and digits (draws other than those of the
# benchmarks); and as the least share of the norm of H'T, for targets without noise.
_SHARE, _LEAST = 0.35, 1e-4


@dataclass(frozen=True, eq=False)
class Opening:
    """What all agents start from: U of shape (L, r) and the penalties."""

    U: FloatArray
    mu1: float
    mu2: float


def random_block(L: int, r: int, seed: int) -> FloatArray:
    """Return an orthonormal L x r block that every agent can derive from the shared seed."""
    # The hidden layer is drawn from the plain seed: a second stream of the same seed must not repeat it.
    return _orthonormal(uniform((seed, 1), L * r).reshape(L, r))


def even_shares(task: Task, place: Place) -> FloatArray:
    """Return each task's even share of what belongs to all: what everybody says so often adds up to it."""
    lead = task.s.shape[:-1]
    return np.full(lead, 1.0 / max(place.n_agents, math.prod(lead)))


def plain_A(task: Task, rank: int) -> FloatArray:
    """Return the paper's start of A: ones, but for columns that pad a task with fewer outputs, or they would pull at U.

    Examples
    --------
    >>> one, two = (Task(np.eye(3), np.ones(3), np.ones((3, d)), np.zeros(()), np.ones(())) for d in (1, 2))
    >>> plain_A(Task.stack([one, two]), 1)
    array([[[1., 0.]],
           [[1., 1.]]])
    """
    ones = np.ones((*task.s.shape[:-1], rank, 1))
    return ones * task.Y.any(axis=-2, keepdims=True)


def opening(
    task: Task, place: Place, rank: int, mu1: float | str, mu2: float | str, init: str
) -> Generator[Total, Sum, Opening]:
    """Agree on a start, "spectral", "random", "seed" or "ones", and on penalties, where they are "auto".

    But for "spectral" and for automatic penalties there is nothing to agree on, and nothing is said.
    """
    L = task.V.shape[-2]
    block = random_block(L, rank, place.seed)
    basis = _Basis(task, block) if init == "spectral" else None
    noise = _Noise(task, place.seed) if "auto" in (mu1, mu2) else None
    for _ in range(_PASSES if basis or noise else 0):
        parts = [part.image() for part in (basis, noise) if part]
        numbers = noise.numbers() if noise else np.zeros((*task.s.shape[:-1], 0))
        fine = noise.probe.shape[1] if noise else 0
        answer = yield Total(np.concatenate(parts, axis=-1), numbers, "start", fine=fine)
        if basis:
            basis.take(answer.value[:, :rank])
        if noise:
            noise.take(answer.value[:, -fine:], answer.numbers)
    if noise:
        lam = yield from noise.penalty(basis.leading() if basis else block[:, :0])
        mu1, mu2 = _penalties(mu1, mu2, lam)
    mu1, mu2 = float(mu1), float(mu2)
    if basis:
        # A factorisation of B = U A is balanced when mu1 |U|^2 = mu2 |A|^2.
        return Opening((mu2 / mu1) ** 0.25 * basis.scaled(), mu1, mu2)
    return Opening(np.ones((L, rank)) if init == "ones" else block, mu1, mu2)


class _Basis:
    """Orthogonal iteration towards the leading singular vectors of all tasks' own weights."""

    def __init__(self, task: Task, block: FloatArray) -> None:
        largest = np.maximum(task.s2.max(axis=-2, keepdims=True), 1e-300)
        self._beta = task.V @ (task.sY / (task.s2 + _START_RIDGE * largest))
        self._Q = self._next = block
        self._values, self._vectors = np.ones(block.shape[1]), np.eye(block.shape[1])

    def image(self) -> FloatArray:
        """Return a task's part of M Q."""
        self._Q = self._next
        return np.asarray(self._beta @ (self._beta.mT @ self._Q))

    def take(self, MQ: FloatArray) -> None:
        """Take in the sum over all tasks."""
        small = self._Q.T @ MQ
        self._values, self._vectors = np.linalg.eigh(_symmetric(small))
        size = float(np.trace(small))
        self._next = _orthonormal(MQ + _FLOOR * (size if size > 0 else 1.0) * self._Q)

    def leading(self) -> FloatArray:
        """Return orthonormal directions, the one with the largest weights first."""
        return np.asarray(self._Q @ self._vectors[:, ::-1])

    def scaled(self) -> FloatArray:
        """Return U = Q (Q'MQ)^(1/4)."""
        largest = self._values[-1]
        values = np.maximum(self._values, _FLOOR * largest) if largest > 0 else np.ones_like(self._values)
        return np.asarray(self._Q @ (self._vectors * values**0.25) @ self._vectors.T)


class _Noise:
    """Power iteration towards the norm of what noise makes of all tasks' features, and the penalty it asks for."""

    def __init__(self, task: Task, seed: int) -> None:
        L = task.V.shape[-2]
        self._task = task
        self.probe = random_block(L, min(L, _PROBES), seed)
        self._strength = self._energy = self._spanned = 0.0

    def image(self) -> FloatArray:
        """Return a task's part of the probe's image."""
        return noise_image(self._task, self.probe)

    def numbers(self) -> FloatArray:
        """Return the square of a task's H'T, and how many directions its targets have."""
        own = [square(self._task.sY), np.linalg.matrix_rank(self._task.Y)]
        return np.stack(own, axis=-1).astype(np.float64)

    def take(self, seen: FloatArray, numbers: FloatArray) -> None:
        """Take in the sums over all tasks."""
        largest = float(np.linalg.eigvalsh(_symmetric(self.probe.T @ seen))[-1])
        self._strength = float(np.sqrt(max(largest, 0.0)))
        if largest > 0:
            self.probe = _orthonormal(seen + _FLOOR * largest * self.probe)
        self._energy, self._spanned = numbers.tolist()

    def penalty(self, directions: FloatArray) -> Generator[Total, Sum, float]:
        """Agree on lambda; ``directions`` are the shared ones, if any, within which noise is guessed once more."""
        alone = noise_variance(self._task)[..., None]
        few = directions[:, : max(1, round(self._spanned * _SHARED))]
        within = noise_within(self._task, few) if few.size else alone
        nothing = np.zeros((*alone.shape[:-1], 1, 0))
        # Agreed on to the bit, like all that everything else hangs on.
        ours = np.array([self._strength])
        answer = yield Total(nothing, np.concatenate([alone, within], axis=-1), "noise", settle=ours)
        total, *guesses = answer.numbers.tolist()
        less = np.sqrt(min(guesses) / total) if total > 0 else 1.0
        strength = float((ours if answer.settle is None else answer.settle)[0]) * (less if less < _DECISIVE else 1.0)
        lam = max(_SHARE * strength, _LEAST * float(np.sqrt(self._energy)))
        # Two digits are enough, and mostly the same however coarsely the start was told.
        return float(f"{lam or 1.0:.1e}")


def _penalties(mu1: Any, mu2: Any, lam: float) -> tuple[float, float]:
    """Return mu1 and mu2 with the square root of their product at lambda where one of them is free."""
    if mu1 == "auto":
        return (lam, lam) if mu2 == "auto" else (lam**2 / float(mu2), float(mu2))
    return float(mu1), lam**2 / float(mu1) if mu2 == "auto" else float(mu2)


def _symmetric(X: FloatArray) -> FloatArray:
    return np.asarray((X + X.T) / 2)


def _orthonormal(X: FloatArray) -> FloatArray:
    Q, R = np.linalg.qr(X)
    return np.asarray(Q * np.where(np.diag(R) < 0, -1.0, 1.0))
