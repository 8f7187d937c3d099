"""The transport of MPI jobs: many processes, on one machine or on a cluster."""

from elmesh.comm.mpi.communicator import MPICommunicator, world_communicator
from elmesh.comm.mpi.failure_detector import RankFailure
from elmesh.comm.mpi.transport import MPITransport

__all__ = ["MPICommunicator", "MPITransport", "RankFailure", "world_communicator"]
