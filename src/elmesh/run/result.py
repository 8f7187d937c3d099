"""What a run gives: why it ended, a row per round, and the solution."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

import numpy as np
import pandas as pd

from elmesh.comm.traffic import TrafficLog
from elmesh.solvers.base import Solution

__all__ = ["Progress", "RunHistory", "RunResult", "StopReason"]


class StopReason(Enum):
    """Why a fit ended; the value states what to do about it."""

    CONVERGED = "Converged."
    MAX_ITER = "Not converged within max_iter rounds; raise max_iter, or raise tol if this is good enough."
    DIVERGED = "Diverged; the last sound state is kept. Leave rho, tau and zeta at their defaults, or raise tau."
    INTERRUPTED = "Interrupted; the state after the last complete round is kept."
    SETTLED = "No step lowers the objective any further; this is as close as rounding allows."
    BUDGET = "Another round might have sent more than max_bytes; raise it, or lower message_bits or rank."
    ALONE = (
        "max_bytes is not enough for what all tasks must send before their first common model: every task has the "
        "model of its own rows alone. Raise max_bytes, or lower message_bits or rank."
    )
    DIRECT = "The method has no rounds; its solution is exact."
    COMPLETED = "All rounds are done, or there is no direction left to add; the method has no tolerance."

    def __str__(self) -> str:
        return f"{self.name}: {self.value}"


@dataclass(frozen=True)
class Progress:
    """Where a fit is after a round; ``solution`` holds the variables of this process's agents."""

    round: int
    max_iter: int
    objective: float
    consensus_gap: float
    dual_residual: float
    exchanges: int
    bytes: int
    solution: Solution | None = field(default=None, repr=False, compare=False)


@dataclass(frozen=True)
class RunHistory:
    """The rounds so far, and what relative metrics and divergence are measured by."""

    rows: tuple[Progress, ...] = ()
    #: Least scales of residuals in U and in A, and of the norm of U: a share of those of the first round. Without them
    #: a problem whose solution is zero would never converge: residuals and their scales vanish together.
    floors: tuple[float, float, float] | None = None
    #: The objective above which a run has diverged.
    ceiling: float = 0.0

    def table(self) -> pd.DataFrame:
        """Return a row per round."""
        kinds = {
            "round": np.int64,
            "objective": np.float64,
            "consensus_gap": np.float64,
            "dual_residual": np.float64,
            "exchanges": np.int64,
            "bytes": np.int64,
        }
        return pd.DataFrame(
            {name: np.array([getattr(row, name) for row in self.rows], dtype=kind) for name, kind in kinds.items()}
        )


@dataclass(frozen=True, eq=False)
class RunResult:
    """What a run produced.

    Parameters
    ----------
    solution : Solution
        The last sound variables.
    history : DataFrame
        A row per round: ``round``, ``objective``, ``consensus_gap``, ``dual_residual``, and so far ``exchanges``
        (rounds of messages, those of the start included) and ``bytes`` (over all agents). The last row includes the
        messages that follow the last round.
    stop : StopReason
        Why it ended.
    n_iter : int
        Rounds of the method.
    n_exchanges : int
        Rounds of messages, those of the start included; to a hub and back is two.
    traffic : TrafficLog
        Messages and bytes along every edge.
    """

    solution: Solution
    history: pd.DataFrame
    stop: StopReason
    n_iter: int
    n_exchanges: int
    traffic: TrafficLog
