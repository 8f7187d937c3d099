"""Running a solver: the monitor, backends, checkpoints."""

from elmesh.run.backend import Backend, LocalBackend, MPIBackend, resolve_backend, run_local
from elmesh.run.checkpoints import CheckpointWarning
from elmesh.run.config import CheckpointConfig, RunConfig
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
