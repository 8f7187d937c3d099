"""Running a solver: the monitor, backends, checkpoints."""

from elmesh.run.backend import Backend
from elmesh.run.checkpoints import CheckpointWarning
from elmesh.run.config import CheckpointConfig, RunConfig
from elmesh.run.local_backend import LocalBackend, run_local
from elmesh.run.mpi_backend import MPIBackend
from elmesh.run.resolve_backend import resolve_backend
from elmesh.run.result import Progress, RunResult, StopReason

__all__ = [
    "Backend",
    "CheckpointConfig",
    "CheckpointWarning",
    "LocalBackend",
    "MPIBackend",
    "Progress",
    "RunConfig",
    "RunResult",
    "StopReason",
    "resolve_backend",
    "run_local",
]
