"""The same agents in many processes, on one machine or on a cluster, by MPI."""

from elmesh.comm.mpi.communicator import MPICommunicator, in_mpi_job, world_communicator
from elmesh.comm.mpi.failure_detector import Loss

__all__ = ["Loss", "MPICommunicator", "in_mpi_job", "world_communicator"]
