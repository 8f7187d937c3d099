r"""The start of U and the automatic penalties: what agents agree on before the first round.

The start is the leading singular vectors of all tasks' own weights, by orthogonal iteration: with
:math:`M = \sum_t \beta_t\beta_t'` a pass is :math:`Q \leftarrow \mathrm{orth}(MQ)`, and in the end
:math:`U = Q(Q'MQ)^{1/4}`, a function of matrices without arbitrary signs or orders. A pass is one sum over all agents
of L x r blocks. No row and no weights are sent; but the first block that a neighbour receives may be a single agent's,
and reveals the span of its weights.

The automatic penalty (:mod:`elmesh.math.noise`) needs the largest singular value of another such matrix: a few probe
vectors that go through the same passes, in the same messages.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from elmesh.comm.requests import AllReduce, AllReduceResult
from elmesh.data.features import uniform
from elmesh.data.statistics import Task
from elmesh.math.kernels import orthonormal, square
from elmesh.math.noise import noise_image, noise_variance, noise_within
from elmesh.solvers.base import AgentContext, Problem, Steps
from elmesh.typing import FloatArray

__all__ = ["INITS", "PASSES", "Start", "even_shares", "initialize", "ones_A", "own_weights", "random_block"]

#: Ways to start U.
INITS = ("spectral", "random", "seed", "ones")
#: Orthogonal iterations of the spectral start. A good start is enough.
PASSES = 2
# Probe vectors for the norm of the noise.
_PROBES = 4
# Penalty of the weights that the start is made of, as a share of the largest eigenvalue of a task's H'H.
_START_RIDGE = 0.1
# Keeps every direction of the block alive, so that U has full rank even where the tasks' weights do not.
_FLOOR = 1e-6
# Noise is estimated within at most this share of all directions of the targets, and that estimate is used if it is at
# most this share of the one without them.
_SHARED_DIRECTIONS, _DECISIVE = 0.25, 0.8
# The penalty as a share of the norm of noise, chosen on USPS, MNIST, School and digits (draws other than those of the
# benchmarks); and as the least share of the norm of H'T, for targets without noise.
_NOISE_SHARE, _LEAST_SHARE = 0.35, 1e-4


@dataclass(frozen=True, eq=False)
class Start:
    """What all agents start from: U of shape (L, r) and the penalties."""

    U: FloatArray
    mu1: float
    mu2: float


def random_block(L: int, r: int, seed: int) -> FloatArray:
    """Return an orthonormal L x r block that every agent derives from the shared seed."""
    # The hidden layer is drawn from the plain seed: a second stream of the same seed must not repeat it.
    return orthonormal(uniform((seed, 1), L * r).reshape(L, r))


def even_shares(lead: tuple[int, ...], context: AgentContext) -> FloatArray:
    """Return each task's even share of what belongs to all; the shares sum to one over all tasks.

    ``lead`` are the leading axes of stacked tasks.
    """
    return np.full(lead, 1.0 / max(context.n_agents, math.prod(lead)))


def ones_A(task: Task, rank: int) -> FloatArray:
    """Return the paper's start of A: ones, and zeros in columns that pad a task with fewer outputs.

    Examples
    --------
    >>> one, two = (Task(np.eye(3), np.ones(3), np.ones((3, d)), np.zeros(()), np.ones(())) for d in (1, 2))
    >>> ones_A(Task.stack([one, two]), 1)
    array([[[1., 0.]],
           [[1., 1.]]])
    """
    ones = np.ones((*task.s.shape[:-1], rank, 1))
    return ones * task.Y.any(axis=-2, keepdims=True)


def initialize(problem: Problem, mu1: float | str, mu2: float | str, init: str) -> Steps[Start]:
    """Agree on a start, "spectral", "random", "seed" or "ones", and on penalties that are "auto".

    Only "spectral" and automatic penalties need communication.
    """
    task, rank, seed = problem.task, problem.rank, problem.context.seed
    L = task.V.shape[-2]
    block = random_block(L, rank, seed)
    basis = _OrthogonalIteration(task, block) if init == "spectral" else None
    noise = _NoiseNorm(task, seed) if "auto" in (mu1, mu2) else None
    for _ in range(PASSES if basis or noise else 0):
        parts = [part.image() for part in (basis, noise) if part]
        exact = noise.exact() if noise else np.zeros((*task.s.shape[:-1], 0))
        probes = noise.probe.shape[1] if noise else 0
        total = yield AllReduce(np.concatenate(parts, axis=-1), exact, "start", fine_columns=probes)
        if basis:
            basis.update(total.value[:, :rank])
        if noise:
            noise.update(total.value[:, -probes:], total.exact)
    if noise:
        lam = yield from noise.penalty(basis.leading() if basis else block[:, :0])
        mu1, mu2 = _penalties(mu1, mu2, lam)
    mu1, mu2 = float(mu1), float(mu2)
    if basis:
        # A factorisation of B = U A is balanced when mu1 |U|^2 = mu2 |A|^2.
        return Start((mu2 / mu1) ** 0.25 * basis.scaled(), mu1, mu2)
    return Start(np.ones((L, rank)) if init == "ones" else block, mu1, mu2)


def own_weights(task: Task) -> FloatArray:
    """Return each task's own weights, by a ridge regression."""
    largest = np.maximum(task.s2.max(axis=-2, keepdims=True), 1e-300)
    return np.asarray(task.V @ (task.sY / (task.s2 + _START_RIDGE * largest)))


class _OrthogonalIteration:
    """Orthogonal iteration for the leading singular vectors of all tasks' own weights."""

    def __init__(self, task: Task, block: FloatArray) -> None:
        self._beta = own_weights(task)
        self._Q = self._next = block
        self._values, self._vectors = np.ones(block.shape[1]), np.eye(block.shape[1])

    def image(self) -> FloatArray:
        """Return a task's term of M Q."""
        self._Q = self._next
        return np.asarray(self._beta @ (self._beta.mT @ self._Q))

    def update(self, MQ: FloatArray) -> None:
        """Orthonormalise the sum over all tasks."""
        small = self._Q.T @ MQ
        self._values, self._vectors = np.linalg.eigh(_symmetric(small))
        size = float(np.trace(small))
        self._next = orthonormal(MQ + _FLOOR * (size if size > 0 else 1.0) * self._Q)

    def leading(self) -> FloatArray:
        """Return orthonormal directions, the one with the largest weights first."""
        return np.asarray(self._Q @ self._vectors[:, ::-1])

    def scaled(self) -> FloatArray:
        """Return U = Q (Q'MQ)^(1/4)."""
        largest = self._values[-1]
        values = np.maximum(self._values, _FLOOR * largest) if largest > 0 else np.ones_like(self._values)
        return np.asarray(self._Q @ (self._vectors * values**0.25) @ self._vectors.T)


class _NoiseNorm:
    """Power iteration for the norm of the features' correlation with noise, and the penalty that follows from it."""

    def __init__(self, task: Task, seed: int) -> None:
        L = task.V.shape[-2]
        self._task = task
        self.probe = random_block(L, min(L, _PROBES), seed)
        self._norm = self._energy = self._spanned = 0.0

    def image(self) -> FloatArray:
        """Return a task's term of the probe's image."""
        return noise_image(self._task, self.probe)

    def exact(self) -> FloatArray:
        """Return the square of a task's H'T, and the rank of its targets."""
        own = [square(self._task.sY), np.linalg.matrix_rank(self._task.Y)]
        return np.stack(own, axis=-1).astype(np.float64)

    def update(self, image: FloatArray, exact: FloatArray) -> None:
        """Use the sums over all tasks."""
        largest = float(np.linalg.eigvalsh(_symmetric(self.probe.T @ image))[-1])
        self._norm = float(np.sqrt(max(largest, 0.0)))
        if largest > 0:
            self.probe = orthonormal(image + _FLOOR * largest * self.probe)
        self._energy, self._spanned = exact.tolist()

    def penalty(self, directions: FloatArray) -> Steps[float]:
        """Agree on lambda; ``directions`` are shared ones, if any, within which noise is estimated again."""
        alone = noise_variance(self._task)[..., None]
        few = directions[:, : max(1, round(self._spanned * _SHARED_DIRECTIONS))]
        within = noise_within(self._task, few) if few.size else alone
        empty = np.zeros((*alone.shape[:-1], 1, 0))
        # All that follows depends on the norm, so it is made equal to the bit.
        norm = np.array([self._norm])
        request = AllReduce(empty, np.concatenate([alone, within], axis=-1), "noise", broadcast=norm)
        result: AllReduceResult = yield request
        total, *estimates = result.exact.tolist()
        ratio = np.sqrt(min(estimates) / total) if total > 0 else 1.0
        agreed = float((norm if result.broadcast is None else result.broadcast)[0])
        lam = max(_NOISE_SHARE * agreed * (ratio if ratio < _DECISIVE else 1.0), _LEAST_SHARE * math.sqrt(self._energy))
        # Two digits are enough, and are mostly the same with any number of message bits.
        return float(f"{lam or 1.0:.1e}")


def _penalties(mu1: Any, mu2: Any, lam: float) -> tuple[float, float]:
    """Return mu1 and mu2, with the square root of their product at lambda where one of them is free."""
    if mu1 == "auto":
        return (lam, lam) if mu2 == "auto" else (lam**2 / float(mu2), float(mu2))
    return float(mu1), lam**2 / float(mu1) if mu2 == "auto" else float(mu2)


def _symmetric(X: FloatArray) -> FloatArray:
    return np.asarray((X + X.T) / 2)
