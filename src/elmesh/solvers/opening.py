r"""Where U starts and how large the penalties are: what agents agree on before the first round.

The start is the leading singular vectors of all tasks' own weights, by orthogonal iteration: with
:math:`M = \sum_t \beta_t\beta_t'` a pass is :math:`Q \leftarrow \mathrm{orth}(MQ)`, and in the end
:math:`U = Q(Q'MQ)^{1/4}`, a function of matrices without arbitrary signs or orders. A pass is one sum over all agents
of L x r blocks; no row and no weights are told, but the first block that a neighbour hears may be one agent's own,
before others are added: it tells of the span of its weights.

The automatic penalty (:mod:`elmesh.noise`) needs the largest singular value of another such matrix: a few vectors
that go through the same passes, in the same messages.
"""

from __future__ import annotations

import math
from collections.abc import Generator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from elmesh.features import uniform
from elmesh.kernels import square
from elmesh.noise import noise_image, noise_variance, noise_within
from elmesh.solvers.requests import Place, Sum, Total
from elmesh.statistics import Task

__all__ = ["Opening", "even_shares", "opening", "random_block"]

FloatArray = NDArray[np.float64]

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


def opening(
    task: Task, place: Place, rank: int, mu1: float | str, mu2: float | str, init: str
) -> Generator[Total, Sum, Opening]:
    """Agree on a start, "spectral", "random" or "ones", and on penalties, where they are "auto"."""
    L = task.V.shape[-2]
    block = random_block(L, rank, place.seed)
    beta = task.V @ (task.sY / (task.s2 + _START_RIDGE * np.maximum(task.s2.max(axis=-2, keepdims=True), 1e-300)))
    automatic, spectral = "auto" in (mu1, mu2), init == "spectral"
    probe = random_block(L, min(L, _PROBES), place.seed)
    Q, small, strength, energy, spanned = block, np.zeros((rank, rank)), 0.0, 0.0, 0.0
    for _ in range(_PASSES if spectral or automatic else 0):
        parts = [beta @ (beta.mT @ Q)] if spectral else []
        parts += [noise_image(task, probe)] if automatic else []
        own = np.stack([square(task.sY), np.linalg.matrix_rank(task.Y)], axis=-1)[..., : 2 * automatic]
        answer = yield Total(np.concatenate(parts, axis=-1), own, "start", fine=probe.shape[1] * automatic)
        if spectral:
            MQ, kept = answer.value[:, :rank], Q
            small = kept.T @ MQ
            size = float(np.trace(small))
            Q = _orthonormal(MQ + _FLOOR * (size if size > 0 else 1.0) * Q)
        if automatic:
            seen = answer.value[:, -probe.shape[1] :]
            strength = float(np.sqrt(max(np.linalg.eigvalsh(_symmetric(probe.T @ seen))[-1], 0.0)))
            probe = _orthonormal(seen + _FLOOR * strength**2 * probe) if strength > 0 else probe
            energy, spanned = answer.numbers.tolist()
    if spectral:
        values, vectors = np.linalg.eigh(_symmetric(small))
    if automatic:
        few = min(rank, max(1, round(spanned * _SHARED)))
        guesses = (
            noise_within(task, (kept @ vectors[:, ::-1])[:, :few]) if spectral else noise_variance(task)[..., None]
        )
        told = np.concatenate([noise_variance(task)[..., None], guesses], axis=-1)
        # Agreed on to the bit, like all that everything else hangs on.
        nothing, ours = np.zeros((*told.shape[:-1], 1, 0)), np.array([strength])
        answer = yield Total(nothing, told, "noise", settle=ours)
        alone, *within = answer.numbers.tolist()
        strength = float((ours if answer.settle is None else answer.settle)[0])
        less = np.sqrt(min(within) / alone) if alone > 0 else 1.0
        lam = max(_SHARE * strength * (less if less < _DECISIVE else 1.0), _LEAST * float(np.sqrt(energy)))
        # Two digits are enough, and mostly the same however coarsely the start was told.
        mu1, mu2 = _penalties(mu1, mu2, float(f"{lam or 1.0:.1e}"))
    mu1, mu2 = float(mu1), float(mu2)
    if init == "ones":
        return Opening(np.ones((L, rank)), mu1, mu2)
    if not spectral:
        return Opening(block, mu1, mu2)
    values = np.maximum(values, _FLOOR * values[-1]) if values[-1] > 0 else np.ones(rank)
    # A factorisation of B = U A is balanced when mu1 |U|^2 = mu2 |A|^2.
    U = (mu2 / mu1) ** 0.25 * kept @ (vectors * values**0.25) @ vectors.T
    return Opening(np.asarray(U), mu1, mu2)


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
