"""A model on disk: a folder that is complete or absent, and read only if every byte is as it was written.

``weights.safetensors`` holds the arrays and ``model.json`` all else, with the SHA-256 of the weights and one
over its own content. Neither format can contain code. A folder is written beside its final place and moved there
in one step, so that a crash leaves the old model or the new one. Nothing but a model is ever replaced.
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import json
import math
import os
import secrets
import sys
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import safetensors
import safetensors.numpy
from numpy.typing import NDArray

from elmesh.errors import ElmeshError
from elmesh.text import listed

__all__ = ["FORMAT", "FORMAT_VERSION", "read_folder", "write_folder"]

FORMAT = "elmesh-model"
FORMAT_VERSION = 1

_DOCUMENT = "model.json"
_WEIGHTS = "weights.safetensors"
_OURS = ("format", "format_version", "elmesh_version", "weights", "sha256")

Tensors = dict[str, NDArray[np.float64]]


def write_folder(
    path: str | os.PathLike[str], content: Mapping[str, Any], tensors: Tensors, *, overwrite: bool = False
) -> None:
    """Write a model folder, whole or not at all.

    Parameters
    ----------
    path : str or path
        The folder to make. Folders above it are made where needed.
    content : dict
        What ``model.json`` is to hold: text keys, and values of dicts, lists, text, finite numbers, True,
        False and None.
    tensors : dict
        Name to C-contiguous float64 array, for ``weights.safetensors``.
    overwrite : bool, default=False
        Whether a model that is there already may be replaced. Anything else that is there never is.
    """
    weights = safetensors.numpy.save(dict(tensors))
    document: dict[str, Any] = {
        "format": FORMAT,  # first, so that a folder can be known as ours even where the rest is damaged
        "format_version": FORMAT_VERSION,
        "elmesh_version": _version(),
        **content,
        "weights": {"bytes": len(weights), "sha256": hashlib.sha256(weights).hexdigest()},
    }
    try:
        _check_plain(document, "The model")
        document["sha256"] = _digest(document)
        text = json.dumps(document, indent=1, allow_nan=False)
        # What is swapped and deleted below must be the folder itself and not a link to it.
        target = Path(os.path.realpath(path))
        _check_target(target, path, overwrite)
        target.parent.mkdir(parents=True, exist_ok=True)
        beside = target.parent / f".{target.name}.{secrets.token_hex(8)}.tmp"
        beside.mkdir()
        try:
            _write_synced(beside / _WEIGHTS, weights)
            _write_synced(beside / _DOCUMENT, text.encode("ascii"))
            _sync_folder(beside)
            _move(beside, target)
            _sync_folder(target.parent)
        finally:
            _remove(beside)  # the half-written new model, or the old one once the new is in its place
    except (OSError, ValueError, RecursionError) as error:
        _explain(error, f"The model could not be written to {os.fspath(path)}")


def read_folder(path: str | os.PathLike[str]) -> tuple[dict[str, Any], Tensors]:
    """Read a model folder back, with every check that its files are those that were written.

    Parameters
    ----------
    path : str or path
        The folder.

    Returns
    -------
    content : dict
        As it was given to `write_folder`.
    tensors : dict
        As they were given to `write_folder`.
    """
    folder = Path(path)
    try:
        if not folder.is_dir():
            raise ElmeshError(
                f"{folder} is a file; a model is a folder with {_DOCUMENT} and {_WEIGHTS}: give that."
                if folder.exists()
                else f"There is no model at {folder}."
            )
        inside = sorted(entry.parent.name for entry in folder.glob(f"*/{_DOCUMENT}"))
        if inside and not (folder / _DOCUMENT).exists():
            raise ElmeshError(
                f"{folder} holds a model for each task ({listed(inside)}); give one of these folders, or fit with "
                "--gather for one model of all."
            )
        for name in (_DOCUMENT, _WEIGHTS):
            if not (folder / name).is_file():
                raise ElmeshError(f"{folder} has no file {name}; it is not an elmesh model, or not all of it.")
        document = _read_document(folder / _DOCUMENT)
        tensors = _read_weights(folder / _WEIGHTS, document["weights"])
    except (OSError, ValueError, RecursionError) as error:
        _explain(error, f"The model at {folder} could not be read")
    return {key: value for key, value in document.items() if key not in _OURS}, tensors


def _read_document(file: Path) -> dict[str, Any]:
    try:
        document = json.loads(file.read_bytes().decode("utf-8"), parse_constant=_refuse_constant)
    except (ValueError, RecursionError):
        raise ElmeshError(f"{file} is not valid JSON: it was cut short or altered.") from None
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise ElmeshError(f"{file} does not describe an elmesh model.")
    version = document.get("format_version")
    if isinstance(version, bool) or not isinstance(version, int) or version < 1:
        raise ElmeshError(f"{file} has been altered: its format version is {version!r}.")
    if version > FORMAT_VERSION:
        raise ElmeshError(
            f"{file} was written in format version {version} by elmesh {document.get('elmesh_version')}, and "
            f"this elmesh reads up to version {FORMAT_VERSION}: upgrade elmesh to read it."
        )
    if document.pop("sha256", None) != _digest(document):
        raise ElmeshError(f"{file} has been altered: its checksum does not match. Use the file as it was saved.")
    weights = document.get("weights")
    if not isinstance(weights, dict) or set(weights) != {"bytes", "sha256"}:
        raise ElmeshError(f"{file} does not say which weights belong to it.")
    return document


def _read_weights(file: Path, expected: Mapping[str, Any]) -> Tensors:
    size = file.stat().st_size
    if size != expected["bytes"]:  # before anything is read, as the file may be of any size
        raise ElmeshError(f"{file} has {size} bytes where {expected['bytes']} were saved: it was cut short or altered.")
    data = file.read_bytes()
    if hashlib.sha256(data).hexdigest() != expected["sha256"]:
        raise ElmeshError(f"{file} has been altered: its checksum does not match. Use the file as it was saved.")
    try:
        # safetensors holds every declared size against the length of the data before it allocates anything
        loaded = safetensors.numpy.load(data)
    except (safetensors.SafetensorError, KeyError, TypeError, ValueError, AttributeError):
        raise ElmeshError(f"{file} is not a valid safetensors file.") from None
    for name, tensor in loaded.items():
        if tensor.dtype != np.float64:
            raise ElmeshError(f"{file} holds {name!r} as {tensor.dtype}; float64 was expected.")
        if not np.isfinite(tensor).all():
            raise ElmeshError(f"{file} holds NaN or infinite values in {name!r}.")
    # copied, since what was loaded are views of one read-only buffer
    return {name: np.array(tensor, dtype=np.float64, order="C") for name, tensor in loaded.items()}


def _version() -> str:
    try:
        return metadata.version("elmesh")
    except metadata.PackageNotFoundError:  # run from a source tree that was never installed
        return "unknown"


def _digest(document: Mapping[str, Any]) -> str:
    """SHA-256 of the content itself: neither spacing nor the order of keys matters."""
    text = json.dumps(document, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode("ascii")).hexdigest()


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(name)


def _check_plain(value: object, where: str) -> None:
    """Refuse what JSON would refuse, or would silently turn into something else."""
    if isinstance(value, Mapping):
        for key, item in value.items():
            if not isinstance(key, str):
                raise ElmeshError(f"{where} cannot be saved: the key {key!r} is not text.")
            _check_plain(item, f"{where}, {key!r}")
    elif isinstance(value, (list, tuple)):
        for item in value:
            _check_plain(item, where)
    elif isinstance(value, float) and not math.isfinite(value):
        raise ElmeshError(f"{where} cannot be saved: it holds {value!r}, which JSON has no word for; use None.")
    elif value is not None and not isinstance(value, (str, int, float)):
        raise ElmeshError(
            f"{where} cannot be saved: it holds a value of type {type(value).__name__}; use dicts, lists, "
            "text, numbers, True, False and None."
        )


def _check_target(target: Path, path: str | os.PathLike[str], overwrite: bool) -> None:
    """Refuse to touch what is there already, unless it is a model and may be replaced."""
    if not os.path.lexists(target):
        return
    if not overwrite:
        raise ElmeshError(f"{os.fspath(path)} exists already; choose another path, or say that it may be overwritten.")
    inside = sorted(os.listdir(target)) if target.is_dir() else None
    if inside == []:
        return
    is_model = inside is not None and _DOCUMENT in inside and (target / _DOCUMENT).is_file()
    if is_model:
        with (target / _DOCUMENT).open("rb") as file:
            is_model = f'"{FORMAT}"'.encode() in file.read(100)
    if not is_model:
        raise ElmeshError(f"{os.fspath(path)} is not an elmesh model, so it is not overwritten; choose another path.")
    others = [name for name in inside or [] if name not in (_DOCUMENT, _WEIGHTS)]
    if others:
        raise ElmeshError(
            f"{os.fspath(path)} holds more than a model ({', '.join(others[:3])}), so it is not overwritten; "
            "move that away or choose another path."
        )


def _write_synced(file: Path, data: bytes) -> None:
    with file.open("xb") as stream:
        stream.write(data)
        stream.flush()
        os.fsync(stream.fileno())


def _sync_folder(folder: Path) -> None:
    with contextlib.suppress(OSError):  # not every system lets a folder be opened
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _move(new: Path, target: Path) -> None:
    """Put `new` in the place of `target`, and what was there in the place of `new`.

    Where the system cannot swap folders in one step, the old one lies whole beside its place for a moment.
    """
    if not target.exists():
        new.rename(target)
    elif not _exchange(new, target):
        old = new.with_suffix(".old")
        target.rename(old)
        try:
            new.rename(target)
        except BaseException:
            old.rename(target)
            raise
        old.rename(new)


def _exchange(a: Path, b: Path) -> bool:
    """Swap two folders in one step, where the system can; say whether it did."""
    if sys.platform != "linux":
        return False
    try:
        renameat2 = ctypes.CDLL(None, use_errno=True).renameat2
    except (OSError, AttributeError):
        return False
    here, swap = -100, 2  # AT_FDCWD, RENAME_EXCHANGE
    return bool(renameat2(here, os.fsencode(a), here, os.fsencode(b), swap) == 0)


def _remove(folder: Path) -> None:
    """Remove a model folder, and no file that is not of a model."""
    with contextlib.suppress(OSError):
        for name in (_WEIGHTS, _DOCUMENT):
            (folder / name).unlink(missing_ok=True)
        folder.rmdir()


def _explain(error: Exception, what: str) -> NoReturn:
    if isinstance(error, ElmeshError):
        raise error
    raise ElmeshError(f"{what}: {getattr(error, 'strerror', None) or error}.") from error
