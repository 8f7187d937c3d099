"""The same agents in many processes, on one machine or on a cluster, by MPI."""

from elmesh.comm.mpi.communicator import World, in_mpi_job, open_world
from elmesh.comm.mpi.failure_detector import Loss

__all__ = ["Loss", "World", "in_mpi_job", "open_world"]
