"""Agents of another version, and on a disk that takes only small files."""

from __future__ import annotations

import resource

import elmesh.comm.network.wire
import elmesh.version
from helpers.forked import run_command


def run_other_version(*args: object) -> None:
    """Run ``elmesh`` as a version with another number, and the same messages."""
    elmesh.version.__version__ = "99.0.0"
    run_command(*args)


def run_other_format(*args: object) -> None:
    """Run ``elmesh`` as a version whose messages have another format."""
    elmesh.comm.network.wire._MAGIC = b"ELM9"
    run_command(*args)


def run_on_small_disk(*args: object) -> None:
    """Run ``elmesh`` where no file may have more than so many bytes; writing more is an error, as on a full disk."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (16_384, resource.RLIM_INFINITY))
    run_command(*args)
