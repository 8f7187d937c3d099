"""Ways to drive the agents: all of them in one process, or spread over many. The algorithms know nothing of it."""

from elmesh.runtime.base import Progress, Result, Stop
from elmesh.runtime.checkpoints import CheckpointWarning, checkpointing
from elmesh.runtime.driver import watch
from elmesh.runtime.stacked import run_stacked
from elmesh.runtime.venue import Venue, assemble, check_alike, processes_of

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
