"""How ranks share a machine, as options and variables of mpiexec.

Ranks with a core each are bound to it. More ranks than cores share them unbound, and a waiting rank yields. Each rank
has one BLAS thread. Under a scheduler, mapping and binding are left to it.
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
    """How many ranks run on what."""

    ranks: int
    cores: int  # that this process may use; threads of one core count once, as for Open MPI
    confined: bool = False  # there are other cores, to which Open MPI would bind ranks nevertheless
    scheduled: bool = False  # by a scheduler
    threads_given: bool = False  # the environment sets the number of BLAS threads

    @classmethod
    def here(cls, ranks: int, environ: Mapping[str, str] = os.environ) -> Placement:
        """Return the placement of so many ranks on this machine."""
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
    def description(self) -> str:
        """The placement in a sentence."""
        if self.scheduled:
            where = " placed by the scheduler"
        else:
            bound = "each bound to a core of its own" if self._bound else "bound to none"
            shared = ", which they share" if self.oversubscribed else ""
            where = f" on {count(self.cores, 'core')}{shared}: {bound}"
        threads = "BLAS threads as the environment sets them" if self.threads_given else "one BLAS thread each"
        return f"{count(self.ranks, 'rank')}{where}, {threads}."

    @property
    def folders(self) -> tuple[str, ...]:
        """The variables that name a folder for files of Open MPI, which would stay if it were killed."""
        # Under a scheduler there may be other machines, which do not have that folder.
        return () if self.scheduled else ("PRTE_MCA_prte_tmpdir_base", "OMPI_MCA_btl_sm_backing_directory")

    def variables(self, environ: Mapping[str, str]) -> dict[str, str]:
        """Return the environment of mpiexec and the ranks, from that of this process."""
        added = {"PYTHONUNBUFFERED": "1"}
        if not self.threads_given:
            added |= dict.fromkeys(_THREADS, "1")
        if os.geteuid() == 0:
            added |= {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
        if self.oversubscribed:
            added |= {"PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe", "OMPI_MCA_mpi_yield_when_idle": "1"}
        return {**environ, **added}

    def options(self, variables: Mapping[str, str]) -> list[str]:
        """Return the options of mpiexec, for the environment that it runs in."""
        options = ["-n", str(self.ranks)]
        # mpiexec passes only its own variables on to other machines.
        for name in (*_THREADS, "PYTHONUNBUFFERED", "PYTHONPATH"):
            if name in variables:
                options += ["-x", name]
        return options if self.scheduled else [*options, "--bind-to", "core" if self._bound else "none"]

    @property
    def _bound(self) -> bool:
        return not self.oversubscribed and not self.confined


def _core(cpu: int) -> str:
    """Return the core of a logical processor."""
    try:
        return Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list").read_text()
    except OSError:  # not Linux, or a Linux without this file
        return str(cpu)
