"""Ways to drive the agents. So far all of them in one process; the algorithms know nothing of it."""

from elmesh.runtime.base import Progress, Result, Stop, watch
from elmesh.runtime.stacked import run_stacked

__all__ = ["Progress", "Result", "Stop", "run_stacked", "watch"]
