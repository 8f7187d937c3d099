"""The same agents in many processes, on one machine or on a cluster, by MPI."""

from elmesh.runtime.mpi.heartbeat import Loss
from elmesh.runtime.mpi.run import run_mpi
from elmesh.runtime.mpi.world import World, in_mpi_job, open_world

__all__ = ["Loss", "World", "in_mpi_job", "open_world", "run_mpi"]
