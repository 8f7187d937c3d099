"""Keys for masked sums between the ranks of an MPI job."""

from __future__ import annotations

import hashlib

import numpy as np

from elmesh.comm.masking import MaskedSums, MaskSecret, PairwiseMasks, commitment_of, number_digest
from elmesh.comm.mpi.communicator import MPICommunicator
from elmesh.comm.requests import IntegerSum
from elmesh.errors import ElmeshError
from elmesh.typing import IntArray

__all__ = ["MaskedRanks"]


class MaskedRanks:
    """Sums over all ranks of which none learns more than the total.

    The ranks exchange fresh keys, then run numbers that were committed to. MPI does not authenticate ranks: this
    protects against whoever reads messages or the memory of another rank, not against a launcher or a switch that
    replaces keys.
    """

    def __init__(self, world: MPICommunicator) -> None:
        secret = MaskSecret.generate()
        keys = world.allgather([secret.public.hex(), commitment_of(secret.number).hex()])
        numbers = [bytes.fromhex(text) for text in world.allgather(secret.number.hex())]
        for rank, ((_, commitment), number) in enumerate(zip(keys, numbers, strict=True)):
            if commitment_of(number).hex() != commitment:
                raise ElmeshError(f"The run number of rank {rank} is not the one it has committed to.")
        public = [bytes.fromhex(key) for key, _ in keys]
        if len(set(public)) < len(public):
            raise ElmeshError("Two ranks have the same key, so that their masks would not be secret.")
        masks = PairwiseMasks.agree(world.rank, secret, public, numbers, b"mpi")
        self._world = world
        self._sums = MaskedSums(masks, hashlib.sha256(b"".join(public) + number_digest(numbers)).digest())

    def sum(self, request: IntegerSum) -> IntArray:
        """Return a sum over all ranks."""
        masked = self._sums.mask(request)
        # In 64 bits, because Open MPI adds 16-bit integers with saturation where the processor can; sums wrap after it.
        total = self._world.allreduce_sum(masked.astype(np.uint64)).astype(masked.dtype)
        return self._sums.unmask(total, request)
