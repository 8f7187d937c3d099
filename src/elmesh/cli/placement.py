"""How ranks share a machine: what mpiexec must be told so that they run, well and for everyone.

Ranks that have a core each are bound to it. More ranks than cores share them unbound, and one that waits gives way.
A rank has one BLAS thread, for the others are the threads. Under a scheduler, mapping and binding are its business.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from elmesh.text import count

__all__ = ["Placement"]

_SCHEDULERS = ("SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID")
_THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


@dataclass(frozen=True)
class Placement:
    """How many ranks on what, and what follows for mpiexec.

    Attributes
    ----------
    ranks
        How many are started.
    cores
        How many cores this process may use; the threads of one core count once, as they do for Open MPI.
    confined
        Whether there are other cores that it may not use. Open MPI would bind ranks to those all the same.
    scheduled
        Whether a scheduler runs the job.
    threads_given
        Whether the user has said how many BLAS threads there are to be.

    Examples
    --------
    >>> print(Placement(2, cores=8).words)
    2 ranks on 8 cores: each bound to a core of its own, one BLAS thread each.
    >>> print(Placement(8, cores=2).words)
    8 ranks on 2 cores, which they share: bound to none, one BLAS thread each.
    """

    ranks: int
    cores: int
    confined: bool = False
    scheduled: bool = False
    threads_given: bool = False

    @classmethod
    def here(cls, ranks: int, environ: Mapping[str, str] = os.environ) -> Placement:
        """Look around on this machine.

        Parameters
        ----------
        ranks
            How many are to be started.
        environ
            Tells of a scheduler, and of what the user has set.
        """
        every = os.cpu_count() or 1
        usable = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set(range(every))
        return cls(
            ranks,
            cores=len({_core(cpu) for cpu in usable}),
            confined=len(usable) < every,
            scheduled=any(name in environ for name in _SCHEDULERS),
            threads_given=any(name in environ for name in _THREADS),
        )

    @property
    def oversubscribed(self) -> bool:
        """Whether ranks must share cores."""
        return not self.scheduled and self.ranks > self.cores

    @property
    def words(self) -> str:
        """What was decided, in a sentence."""
        if self.scheduled:
            where = " where the scheduler puts them"
        else:
            bound = "each bound to a core of its own" if self._bound else "bound to none"
            shared = ", which they share" if self.oversubscribed else ""
            where = f" on {count(self.cores, 'core')}{shared}: {bound}"
        threads = "BLAS threads as the environment says" if self.threads_given else "one BLAS thread each"
        return f"{count(self.ranks, 'rank')}{where}, {threads}."

    @property
    def folders(self) -> tuple[str, ...]:
        """The variables that name a folder for files of Open MPI, which would stay were it killed."""
        # Under a scheduler there may be other machines, which do not have that folder.
        return () if self.scheduled else ("PRTE_MCA_prte_tmpdir_base", "OMPI_MCA_btl_sm_backing_directory")

    def variables(self, environ: Mapping[str, str]) -> dict[str, str]:
        """Give the environment that mpiexec and the ranks need.

        Parameters
        ----------
        environ
            That of this process, which is left as it is.
        """
        wanted = {"PYTHONUNBUFFERED": "1"}
        if not self.threads_given:
            wanted |= dict.fromkeys(_THREADS, "1")
        if os.geteuid() == 0:
            wanted |= {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
        if self.oversubscribed:
            wanted |= {"PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe", "OMPI_MCA_mpi_yield_when_idle": "1"}
        return {**environ, **wanted}

    def options(self, variables: Mapping[str, str]) -> list[str]:
        """Give what mpiexec is told before the command.

        Parameters
        ----------
        variables
            The environment that it will run in.

        Examples
        --------
        >>> " ".join(Placement(8, cores=2).options({"OMP_NUM_THREADS": "1"}))
        '-n 8 -x OMP_NUM_THREADS --bind-to none'
        """
        options = ["-n", str(self.ranks)]
        # To other machines mpiexec passes on its own variables only.
        for name in (*_THREADS, "PYTHONUNBUFFERED", "PYTHONPATH"):
            if name in variables:
                options += ["-x", name]
        return options if self.scheduled else [*options, "--bind-to", "core" if self._bound else "none"]

    @property
    def _bound(self) -> bool:
        return not self.oversubscribed and not self.confined


def _core(cpu: int) -> str:
    """Name the core that a logical processor is a thread of."""
    try:
        return Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list").read_text()
    except OSError:  # not Linux, or one that does not tell
        return str(cpu)
