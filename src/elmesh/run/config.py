"""Where and how a fit runs: the one argument ``run`` of ``fit``."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from elmesh.checks import check_count
from elmesh.run.result import Progress

if TYPE_CHECKING:
    from elmesh.run.backend import Backend
    from elmesh.solvers.traffic_estimate import TrafficEstimate

__all__ = ["CheckpointConfig", "RunConfig"]


@dataclass(frozen=True)
class CheckpointConfig:
    """Checkpoints of a fit, from which the same fit resumes.

    Parameters
    ----------
    folder : path
        Created if needed. With several processes, all of them must see it.
    every : int, default=10
        Rounds between checkpoints.
    callback : callable, optional
        Called with the round of each complete checkpoint, and of the one that a fit resumes from.
    """

    folder: str | os.PathLike[str]
    every: int = 10
    callback: Callable[[int], None] | None = None

    def __post_init__(self) -> None:
        check_count("every", self.every)

    @property
    def path(self) -> Path:
        """The folder."""
        return Path(self.folder)


@dataclass(frozen=True)
class RunConfig:
    """Where a fit runs, what it reports to, and its checkpoints.

    Parameters
    ----------
    backend : {"local", "mpi"} or Backend, default="local"
        "local": all agents in this process. "mpi": spread over the processes of an MPI job
        (``mpiexec -n 8 python script.py``); results do not depend on their number.
    callback : callable, optional
        Called with a :class:`Progress` after every round; if it returns True, the fit ends there.
    checkpoint : CheckpointConfig, optional
        Where to save checkpoints; a fit resumes from the one that is there.
    on_estimate : callable, optional
        Called with a :class:`~elmesh.solvers.traffic_estimate.TrafficEstimate` before anything is sent, if the method
        sends anything.

    Examples
    --------
    >>> import numpy as np
    >>> from elmesh import MultiTaskELMRegressor, RunConfig
    >>> X, y = np.arange(20.0).reshape(10, 2), np.arange(10.0)
    >>> rounds = []
    >>> run = RunConfig(callback=lambda progress: rounds.append(progress.round))
    >>> model = MultiTaskELMRegressor(n_hidden=None, random_state=0).fit(X, y, tasks=list("aabbaabbab"), run=run)
    >>> rounds == model.history_["round"].tolist()
    True
    """

    backend: str | Backend = "local"
    callback: Callable[[Progress], bool | None] | None = field(default=None, repr=False)
    checkpoint: CheckpointConfig | None = None
    on_estimate: Callable[[TrafficEstimate], None] | None = field(default=None, repr=False)
