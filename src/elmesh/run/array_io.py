"""Arrays on disk: files that are whole or not there, readable by their owner alone, each array with its checksum."""

from __future__ import annotations

import hashlib
import os
from array import array
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import safetensors
import safetensors.numpy
from numpy.typing import NDArray

from elmesh.data.statistics import Task
from elmesh.run.base import Past, Progress
from elmesh.typing import FloatArray

__all__ = [
    "DamagedError",
    "Rows",
    "below",
    "digest_of",
    "open_arrays",
    "past_of",
    "sync_folder",
    "tensor",
    "write_arrays",
    "write_text",
]

Arrays = dict[str, FloatArray]

# What is kept of each round.
_COLUMNS = ("round", "max_iter", "objective", "consensus_gap", "dual_residual", "exchanges", "bytes")


class DamagedError(Exception):
    """A file is not there, or not as it was written."""


def write_arrays(path: Path, arrays: Mapping[str, NDArray[Any]], labels: Mapping[str, str]) -> None:
    """Write arrays of doubles, or of bytes, and labels."""
    # ascontiguousarray would give a number an axis.
    plain = {
        name: np.asarray(x, dtype=np.uint8 if x.dtype == np.uint8 else np.float64, order="C")
        for name, x in arrays.items()
    }
    sums = {f"sha256 {name}": hashlib.sha256(x.data).hexdigest() for name, x in plain.items()}
    _replace(path, safetensors.numpy.save(plain, metadata={**labels, **sums}))


def write_text(path: Path, text: str) -> None:
    """Write a text."""
    _replace(path, text.encode())


def _replace(path: Path, data: bytes) -> None:
    partial = path.with_name(f".{path.name}.partial")
    descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as stream:
            stream.write(data)
            stream.flush()
            os.fsync(stream.fileno())
    except OSError:
        partial.unlink(missing_ok=True)  # what is there of it takes the last room of a full disk
        raise
    partial.replace(path)
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Have the disk know what is in a folder."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def open_arrays(path: Path) -> Iterator[Any]:
    """Open a file of arrays; whatever is wrong with it inside is :class:`DamagedError`."""
    try:
        with safetensors.safe_open(path, framework="numpy") as file:
            yield file
    except (safetensors.SafetensorError, OSError, KeyError, TypeError):
        raise DamagedError(path) from None


def tensor(file: Any, name: str, labels: Mapping[str, str]) -> FloatArray:
    """Read an array that is as it was written."""
    x: FloatArray = file.get_tensor(name)
    if hashlib.sha256(np.ascontiguousarray(x).data).hexdigest() != labels.get(f"sha256 {name}"):
        raise KeyError(name)
    return x


def digest_of(task: Task) -> str:
    """Return what a task's data are told from others by."""
    digest = hashlib.sha256()
    for x in (task.V, task.s, task.Y, np.asarray(task.rest), np.asarray(task.rows)):
        digest.update(str(x.shape).encode())
        digest.update(np.ascontiguousarray(x).data)
    return digest.hexdigest()


def below(head: str, arrays: Mapping[str, FloatArray]) -> Arrays:
    """Return the arrays whose names begin with a head and a stroke, by the rest of their names."""
    return {name.partition("/")[2]: x for name, x in arrays.items() if name.partition("/")[0] == head}


class Rows:
    """A run's rounds as arrays; what was written down before is not looked at again."""

    def __init__(self) -> None:
        self._numbers = array("d")

    def of(self, past: Past) -> Arrays:
        """Return the rounds so far, of a run that only ever gets longer."""
        for step in past.rows[len(self._numbers) // len(_COLUMNS) :]:
            self._numbers.extend(float(getattr(step, name)) for name in _COLUMNS)
        return {
            "rows": np.array(self._numbers).reshape(-1, len(_COLUMNS)),
            "floors": np.array(past.floors or ()),
            "ceiling": np.array(past.ceiling),
        }


def past_of(arrays: Mapping[str, FloatArray]) -> Past:
    """Return the rounds that were kept as arrays."""
    floors = arrays["floors"].tolist()
    return Past(
        tuple(_progress(row) for row in arrays["rows"].tolist()),
        (floors[0], floors[1], floors[2]) if floors else None,
        float(arrays["ceiling"]),
    )


def _progress(row: Sequence[float]) -> Progress:
    k, max_iter, objective, gap, dual, exchanges, sent = row
    return Progress(int(k), int(max_iter), objective, gap, dual, int(exchanges), int(sent))
