"""Ways to drive the agents: all of them in one process, or spread over many. The algorithms know nothing of it."""

from elmesh.run.backend import Venue, assemble, check_alike, processes_of
from elmesh.run.base import Progress, Result, Stop
from elmesh.run.checkpoints import CheckpointWarning, checkpointing
from elmesh.run.driver import watch
from elmesh.run.local import run_stacked

__all__ = [
    "CheckpointWarning",
    "Progress",
    "Result",
    "Stop",
    "Venue",
    "assemble",
    "check_alike",
    "checkpointing",
    "processes_of",
    "run_stacked",
    "watch",
]
