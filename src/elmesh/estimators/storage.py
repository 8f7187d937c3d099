"""A model on disk: a folder that is complete or absent, and is read only if every byte is as it was written.

``weights.safetensors`` holds the arrays and ``model.json`` all else, with the SHA-256 of the weights and one
over its own content. Neither format can contain code. A folder is written beside its final place and moved there
in one step, so that a crash leaves the old model or the new one. Only a model is ever replaced.

What is kept of the rows is in ``statistics/``, in the same two formats, which only the owner of the folder can read.
The model is complete without it.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import secrets
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import safetensors
import safetensors.numpy
from numpy.typing import NDArray

from elmesh.errors import ElmeshError
from elmesh.files import atomic_write, replace_folder
from elmesh.text import listed

__all__ = [
    "CARD",
    "FORMAT",
    "FORMAT_VERSION",
    "REPORT",
    "STATISTICS",
    "Arrays",
    "Parts",
    "Tensors",
    "document_digest",
    "read_folder",
    "read_statistics",
    "remove_parts",
    "statistics_folder",
    "write_folder",
    "write_parts",
]

FORMAT = "elmesh-model"
FORMAT_VERSION = 2

_DOCUMENT = "model.json"
_WEIGHTS = "weights.safetensors"
#: The card of a model, and a page about the fit, which may be in the folder of a model.
CARD, REPORT = "README.md", "report.html"
#: The folder of what is kept of the rows, its files, and their format.
STATISTICS = "statistics"
_DESCRIPTION, _ARRAYS, _STATISTICS_FORMAT = "statistics.json", "rows.safetensors", "elmesh-statistics"
_OURS = ("format", "format_version", "elmesh_version", "weights", "sha256", "model", "arrays")
# The types of arrays of statistics.
_TYPES = (np.float64, np.uint64)

Tensors = dict[str, NDArray[np.float64]]
Arrays = dict[str, NDArray[Any]]
#: Plain JSON and arrays.
Parts = tuple[dict[str, Any], Arrays]


def write_folder(
    path: str | os.PathLike[str],
    content: Mapping[str, Any],
    tensors: Tensors,
    *,
    overwrite: bool = False,
    card: str | None = None,
    statistics: Parts | None = None,
) -> None:
    """Write a model folder completely or not at all.

    Parameters
    ----------
    path : str or path
        The folder to create, with its parents.
    content : dict
        The content of ``model.json``: text keys; values of dicts, lists, text, finite numbers, True, False and None.
    tensors : dict
        Name to C-contiguous float64 array, for ``weights.safetensors``.
    overwrite : bool, default=False
        Whether an existing model may be replaced. Anything else never is.
    card : str, optional
        Markdown about the model, for ``README.md``.
    statistics : pair of dict, optional
        What is kept of the rows: plain JSON, and arrays of float64 and uint64.
    """
    weights = safetensors.numpy.save(dict(tensors))
    document: dict[str, Any] = {
        "format": FORMAT,  # first, so that a folder is recognised even if the rest is damaged
        "format_version": FORMAT_VERSION,
        "elmesh_version": _version(),
        **content,
        "weights": {"bytes": len(weights), "sha256": hashlib.sha256(weights).hexdigest()},
    }
    try:
        _check_plain(document, "The model")
        document["sha256"] = _digest(document)
        text = json.dumps(document, indent=1, allow_nan=False)
        # The folder that is exchanged and deleted below must not be a link.
        target = Path(os.path.realpath(path))
        _check_target(target, path, overwrite)
        target.parent.mkdir(parents=True, exist_ok=True)
        beside = target.parent / f".{target.name}.{secrets.token_hex(8)}.tmp"
        beside.mkdir()
        try:
            atomic_write(beside / _WEIGHTS, weights)
            atomic_write(beside / _DOCUMENT, text.encode("ascii"))
            if card is not None:
                atomic_write(beside / CARD, card.encode())
            if statistics is not None:
                _write_statistics(beside / STATISTICS, *statistics, document["weights"]["sha256"])
            replace_folder(beside, target)
        finally:
            _remove(beside)  # an incomplete new model, or the old one after the new one has its place
    except (OSError, ValueError, RecursionError) as error:
        _explain(error, f"The model could not be written to {os.fspath(path)}")


def _write_statistics(folder: Path, content: Mapping[str, Any], arrays: Arrays, model: str) -> None:
    """Write what is kept of the rows; ``model`` is the checksum of the weights of its model."""
    data = safetensors.numpy.save(arrays)
    document: dict[str, Any] = {
        "format": _STATISTICS_FORMAT,
        "format_version": FORMAT_VERSION,
        "elmesh_version": _version(),
        "model": model,
        **content,
        "arrays": {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()},
    }
    _check_plain(document, "The statistics")
    document["sha256"] = _digest(document)
    folder.mkdir(mode=0o700)
    atomic_write(folder / _ARRAYS, data, mode=0o600)
    atomic_write(folder / _DESCRIPTION, json.dumps(document, allow_nan=False).encode("ascii"), mode=0o600)


def write_parts(folder: Path, content: Mapping[str, Any], arrays: Arrays) -> None:
    """Write JSON and arrays that are as confidential as rows to a folder, completely or not at all."""
    beside = folder.parent / f".{folder.name}.{secrets.token_hex(8)}.tmp"
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        try:
            _write_statistics(beside, content, arrays, "")
            replace_folder(beside, folder)
        finally:
            remove_parts(beside)
    except (OSError, ValueError, RecursionError) as error:
        _explain(error, f"{folder} could not be written")


def remove_parts(folder: Path) -> None:
    """Remove a folder of :func:`write_parts`, and only its files."""
    with contextlib.suppress(OSError):
        for name in (_ARRAYS, _DESCRIPTION):
            (folder / name).unlink(missing_ok=True)
        folder.rmdir()


def statistics_folder(path: Path) -> Path | None:
    """Return the folder of the statistics of a model; None if it has none."""
    folder = path / STATISTICS
    return folder if folder.is_dir() else None


def document_digest(path: Path) -> str:
    """Return a digest of the document of a model, by which a model that was put in its place is noticed."""
    return hashlib.sha256((path / _DOCUMENT).read_bytes()).hexdigest()


def read_statistics(folder: Path, *, of_model: bool = True) -> Parts:
    """Return what is kept of rows from its folder; raise if it was altered, or is of another model than it is in."""
    try:
        for name in (_DESCRIPTION, _ARRAYS):
            if not (folder / name).is_file():
                raise ElmeshError(f"{folder} has no file {name}: it was altered. Fit the model again from its rows.")
        document = _read_document(folder / _DESCRIPTION, _STATISTICS_FORMAT, "arrays", "statistics of a model")
        model = _read_document(folder.parent / _DOCUMENT) if of_model else {"weights": {"sha256": ""}}
        if document.get("model") != model["weights"]["sha256"]:
            raise ElmeshError(
                f"{folder} belongs to another model than {folder.parent}; use the folder as it was saved."
            )
        arrays = _read_arrays(folder / _ARRAYS, document["arrays"])
        for name, array in arrays.items():
            if array.dtype not in _TYPES or (array.dtype == np.float64 and not np.isfinite(array).all()):
                raise ElmeshError(
                    f"{folder / _ARRAYS} holds {name!r} as {array.dtype}, or numbers that are not finite."
                )
    except (OSError, ValueError, RecursionError) as error:
        _explain(error, f"The statistics at {folder} could not be read")
    return {key: value for key, value in document.items() if key not in _OURS}, arrays


def read_folder(path: str | os.PathLike[str]) -> tuple[dict[str, Any], Tensors]:
    """Return the content and the tensors that :func:`write_folder` was given; raise if a file was altered."""
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
                raise ElmeshError(
                    f"{folder} has no file {name}; it is not an elmesh model, or not all of it: give a whole one."
                )
        document = _read_document(folder / _DOCUMENT)
        tensors = _read_weights(folder / _WEIGHTS, document["weights"])
    except (OSError, ValueError, RecursionError) as error:
        _explain(error, f"The model at {folder} could not be read")
    return {key: value for key, value in document.items() if key not in _OURS}, tensors


def _read_document(
    file: Path, expected: str = FORMAT, data: str = "weights", what: str = "an elmesh model"
) -> dict[str, Any]:
    """Return the content of a document in a format, which has the size and checksum of its ``data``."""
    try:
        document = json.loads(file.read_bytes().decode("utf-8"), parse_constant=_refuse_constant)
    except (ValueError, RecursionError):
        raise ElmeshError(f"{file} is not valid JSON: it was cut short or altered.") from None
    if not isinstance(document, dict) or document.get("format") != expected:
        raise ElmeshError(f"{file} does not describe {what}.")
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
    described = document.get(data)
    if not isinstance(described, dict) or set(described) != {"bytes", "sha256"}:
        raise ElmeshError(f"{file} does not name its {data}: it was altered.")
    return document


def _read_arrays(file: Path, expected: Mapping[str, Any]) -> Arrays:
    """Return the arrays of a file, of the size and the checksum that are expected."""
    size = file.stat().st_size
    if size != expected["bytes"]:  # before reading, since the file may be of any size
        raise ElmeshError(f"{file} has {size} bytes where {expected['bytes']} were saved: it was cut short or altered.")
    data = file.read_bytes()
    if hashlib.sha256(data).hexdigest() != expected["sha256"]:
        raise ElmeshError(f"{file} has been altered: its checksum does not match. Use the file as it was saved.")
    try:
        # safetensors compares every declared size with the length of the data before it allocates memory.
        loaded = safetensors.numpy.load(data)
    except (safetensors.SafetensorError, KeyError, TypeError, ValueError, AttributeError):
        raise ElmeshError(f"{file} is not a valid safetensors file.") from None
    # Copied, because the loaded arrays are views of one read-only buffer.
    return {name: np.array(array, order="C") for name, array in loaded.items()}


def _read_weights(file: Path, expected: Mapping[str, Any]) -> Tensors:
    loaded = _read_arrays(file, expected)
    for name, tensor in loaded.items():
        if tensor.dtype != np.float64:
            raise ElmeshError(f"{file} holds {name!r} as {tensor.dtype}; float64 was expected.")
        if not np.isfinite(tensor).all():
            raise ElmeshError(f"{file} holds NaN or infinite values in {name!r}.")
    return loaded


def _version() -> str:
    try:
        return metadata.version("elmesh")
    except metadata.PackageNotFoundError:  # run from a source tree that was never installed
        return "unknown"


def _digest(document: Mapping[str, Any]) -> str:
    """Return the SHA-256 of the content, whatever its spacing and the order of its keys."""
    text = json.dumps(document, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode("ascii")).hexdigest()


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(name)


def _check_plain(value: object, where: str) -> None:
    """Raise for what JSON refuses or silently changes."""
    if isinstance(value, Mapping):
        for key, item in value.items():
            if not isinstance(key, str):
                raise ElmeshError(f"{where} cannot be saved: the key {key!r} is not text.")
            _check_plain(item, f"{where}, {key!r}")
    elif isinstance(value, (list, tuple)):
        for item in value:
            _check_plain(item, where)
    elif isinstance(value, float) and not math.isfinite(value):
        raise ElmeshError(f"{where} cannot be saved: it holds {value!r}, which JSON cannot represent; use None.")
    elif value is not None and not isinstance(value, (str, int, float)):
        raise ElmeshError(
            f"{where} cannot be saved: it holds a value of type {type(value).__name__}; use dicts, lists, "
            "text, numbers, True, False and None."
        )


def _check_target(target: Path, path: str | os.PathLike[str], overwrite: bool) -> None:
    """Raise if the target exists, unless it is a model and may be replaced."""
    if not os.path.lexists(target):
        return
    if not overwrite:
        raise ElmeshError(f"{os.fspath(path)} exists already; choose another path, or set overwrite=True.")
    inside = sorted(os.listdir(target)) if target.is_dir() else None
    if inside == []:
        return
    is_model = inside is not None and _DOCUMENT in inside and (target / _DOCUMENT).is_file()
    if is_model:
        with (target / _DOCUMENT).open("rb") as file:
            is_model = f'"{FORMAT}"'.encode() in file.read(100)
    if not is_model:
        raise ElmeshError(f"{os.fspath(path)} is not an elmesh model, so it is not overwritten; choose another path.")
    others = [name for name in inside or [] if name not in (_DOCUMENT, _WEIGHTS, CARD, REPORT, STATISTICS)]
    if others:
        raise ElmeshError(
            f"{os.fspath(path)} holds more than a model ({', '.join(others[:3])}), so it is not overwritten; "
            "move that away or choose another path."
        )


def _remove(folder: Path) -> None:
    """Remove a model folder, and only files of a model."""
    with contextlib.suppress(OSError):
        if (folder / STATISTICS).is_dir():
            remove_parts(folder / STATISTICS)
        for name in (_WEIGHTS, _DOCUMENT, CARD, REPORT):
            (folder / name).unlink(missing_ok=True)
        folder.rmdir()


def _explain(error: Exception, what: str) -> NoReturn:
    if isinstance(error, ElmeshError):
        raise error
    raise ElmeshError(f"{what}: {getattr(error, 'strerror', None) or error}.") from error
