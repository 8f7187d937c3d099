"""Typed structs in TOML files. A field that is named ``model.rank`` in the file belongs to the section ``[model]``.

A file may come from another organisation, or contain misspelt names. msgspec checks types, ranges and unknown names.
This module turns its errors into sentences that name the field, the value found and the value expected. In a file that
it writes each field has a comment: the ``description`` in its type.
"""

from __future__ import annotations

import json
import re
import reprlib
import tomllib
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from functools import cache
from typing import Any, TypeVar

import msgspec
from msgspec import inspect, structs

from elmesh.errors import ElmeshError

__all__ = ["CheckedStruct", "decode_toml", "encode_toml", "show_value", "suggest", "toml_value"]

S = TypeVar("S", bound=msgspec.Struct)

_UNKNOWN, _MISSING = "Object contains unknown field ", "Object missing required field "
_PATH = re.compile(r" - at `\$\.?([^`]*)`$")
_INDEX = re.compile(r"\[(\d+)\]\.?")
# What a string of several lines may not contain as it is.
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]")
# Values may be nested more deeply than repr can follow.
_REPR = reprlib.Repr()
_REPR.maxstring = _REPR.maxother = 60
# A comment that would make a written line longer is written before it.
_WIDTH = 114


class CheckedStruct(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A struct whose field types and ranges are checked on every construction, and not only when it is decoded."""

    def __post_init__(self) -> None:
        for name, encode_name, kind in _fields(type(self)):
            structs.force_setattr(self, name, _convert(getattr(self, name), kind, encode_name))


@cache
def _fields(struct: type[msgspec.Struct]) -> list[tuple[str, str, Any]]:
    return [(field.name, field.encode_name, field.type) for field in structs.fields(struct)]


def decode_toml(text: str, struct: type[S], source: str) -> S:
    """Decode TOML into a struct, or raise an ElmeshError that names the source and the field.

    Examples
    --------
    >>> class Run(CheckedStruct, frozen=True):
    ...     rounds: int
    >>> decode_toml("rounds = 3", Run, "run.toml")
    Run(rounds=3)
    >>> decode_toml("round = 3", Run, "run.toml")
    Traceback (most recent call last):
    elmesh.errors.ElmeshError: run.toml: The field "round" is unknown; did you mean "rounds"? The known ones are rounds.
    """
    try:
        document = tomllib.loads(text)
    except RecursionError:
        raise ElmeshError(f"{source}: This file is nested too deeply.") from None
    except ValueError as error:  # not only TOMLDecodeError: a number with thousands of digits raises another one
        reason = str(error).split("\n", maxsplit=1)[0][:200]
        raise ElmeshError(f"{source}: This is not TOML: {reason}.") from None
    try:
        decoded: S = _convert(_flatten(document, struct), struct)
    except ElmeshError as error:
        raise ElmeshError(f"{source}: {error}") from None
    return decoded


def suggest(name: str, known: Sequence[str]) -> str:
    """Return the end of a sentence on an unknown name: the most similar known name, if any, and all known names."""
    close = get_close_matches(name[:60], known, n=1)
    meant = f'did you mean "{close[0]}"? The' if close else "the"
    return f"{meant} known ones are {', '.join(known)}."


def show_value(value: object) -> str:
    """Show a value in a sentence, shortened."""
    if isinstance(value, dict):
        return f"a table with the fields {_REPR.repr(list(value))}"
    if isinstance(value, list | tuple) and len(value) > _REPR.maxlist:
        return f"an array of {len(value)} values"
    return str(value).lower() if isinstance(value, bool) else _REPR.repr(value)


def _flatten(document: dict[str, Any], struct: type[msgspec.Struct]) -> dict[str, Any]:
    """Replace each section by its fields, named ``section.field``."""
    sections = {name.partition(".")[0] for _, name, _ in _fields(struct) if "." in name}
    flat: dict[str, Any] = {}
    for name, value in document.items():
        if "." in name:
            raise ElmeshError(f"The field {_quote(name)} is unknown; no field has a dot in its name.")
        if name in sections and not isinstance(value, dict):
            raise ElmeshError(f'The field "{name}" is {show_value(value)}; expected a table, the section [{name}].')
        flat |= {f"{name}.{key}": item for key, item in value.items()} if name in sections else {name: value}
    return flat


def _convert(value: Any, kind: Any, name: str = "") -> Any:
    """Convert a value, the field of this name, to a type."""
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        if error.__cause__ is not None and not isinstance(error.__cause__, ElmeshError):
            raise error.__cause__ from None  # not about the input: msgspec also wraps errors in __post_init__
        raise ElmeshError(_explain(error, value, inspect.type_info(kind), name)) from None


def _explain(error: msgspec.ValidationError, value: Any, kind: inspect.Type, name: str) -> str:
    """Return a sentence on an error of msgspec: the field, the value found and the value expected."""
    message = str(error)
    found = _PATH.search(message)
    path, problem = (found[1], message[: found.start()]) if found else ("", message)
    kind, value = _follow(kind, value, path)
    if isinstance(error.__cause__, ElmeshError):
        return f"{path}: {error.__cause__}" if path else str(error.__cause__)
    if isinstance(kind, inspect.StructType) and problem.startswith(_UNKNOWN):
        unknown = problem.removeprefix(_UNKNOWN).strip("`")
        section, _, key = unknown.rpartition(".")
        names = [field.encode_name for field in kind.fields]
        inside = [name.removeprefix(f"{section}.") for name in names if name.startswith(f"{section}.")]
        known = inside or list(dict.fromkeys(name.partition(".")[0] for name in names))
        return f"The field {_quote(path, unknown)} is unknown; {suggest(key, known)}"
    if isinstance(kind, inspect.StructType) and problem.startswith(_MISSING):
        missing = problem.removeprefix(_MISSING).strip("`")
        wanted = next(field.type for field in kind.fields if field.encode_name == missing)
        return f"The field {_quote(path, missing)} is missing; expected {_expected(wanted)}."
    return f"The field {_quote(name, path)} is {show_value(value)}; expected {_expected(kind)}."


def _follow(kind: inspect.Type, value: Any, path: str) -> tuple[inspect.Type, Any]:
    """Return the type and the value at a path such as ``agents[0].name``, or where it first leaves the value."""
    if isinstance(kind, inspect.Metadata):
        return _follow(kind.type, value, path)
    if isinstance(kind, inspect.UnionType) and path:
        return _follow(kind.types[0], value, path)
    if isinstance(kind, inspect.StructType) and isinstance(value, dict):
        for field in kind.fields:
            rest = path.removeprefix(field.encode_name)
            if field.encode_name in value and rest != path and rest[:1] in ".[":
                return _follow(field.type, value[field.encode_name], rest.removeprefix("."))
    index = _INDEX.match(path)
    if index and isinstance(kind, inspect.VarTupleType | inspect.TupleType) and int(index[1]) < len(value):
        item = kind.item_type if isinstance(kind, inspect.VarTupleType) else kind.item_types[int(index[1])]
        return _follow(item, value[int(index[1])], path[index.end() :])
    return kind, value


def _expected(kind: inspect.Type) -> str:
    """Describe the values of a type."""
    text = "a table"
    match kind:
        case inspect.Metadata():
            text = _expected(kind.type)
        case inspect.UnionType():
            text = " or ".join(_expected(part) for part in kind.types if not isinstance(part, inspect.NoneType))
        case inspect.LiteralType():
            text = f"one of {', '.join(map(str, kind.values))}" if len(kind.values) > 1 else f'"{kind.values[0]}"'
        case inspect.IntType():
            text = "an integer" if kind.le is None else f"an integer from {kind.ge} to {kind.le}"
        case inspect.FloatType():
            text = "a number" if kind.le is None else f"a number above {kind.gt} and at most {kind.le:.15g}"
        case inspect.TupleType():
            text = f"an array of {len(kind.item_types)} values, each {_expected(kind.item_types[0])}"
        case inspect.VarTupleType():
            size = "" if kind.max_length is None else f"{kind.min_length or 0} to {kind.max_length} "
            text = f"an array of {size}values, each {_expected(kind.item_type)}"
        case inspect.BoolType():
            text = "true or false"
        case inspect.StrType():
            text = "a string in quotes"
    return text


def _quote(*parts: str) -> str:
    """Join the parts of a field's path, in quotes and on one line."""
    return json.dumps(".".join(filter(None, parts)).replace(".[", "[")[:80], ensure_ascii=False)


def encode_toml(struct: msgspec.Struct, key_comments: Mapping[str, str]) -> str:
    """Return a struct as TOML, without fields that are None.

    The order of the fields is that of the file: plain fields first, then those of sections, named ``section.field``.
    ``key_comments`` has comments on the keys of fields that are dicts.
    """
    lines: list[str] = []
    section = ""
    for field in msgspec.structs.fields(struct):
        value = getattr(struct, field.name)
        if value is None:
            continue
        kind, comment = _described(field.type)
        table, _, key = field.encode_name.rpartition(".")
        if isinstance(value, dict):
            lines += ["", f"[{field.encode_name}]  # {comment}"]
            lines += [line for name, item in value.items() for line in _pair(name, item, key_comments.get(name, ""))]
        elif isinstance(kind, inspect.VarTupleType) and isinstance(kind.item_type, inspect.StructType):
            lines += ["", *(f"# {line}" for line in comment.splitlines())]
            for item in value:
                lines += [f"[[{key}]]", *encode_toml(item, {}).splitlines()]
        else:
            if table != section:
                lines += ["", f"[{table}]"]
                section = table
            lines += _pair(key, value, comment)
    return "\n".join(lines) + "\n"


def _described(annotation: object) -> tuple[inspect.Type, str]:
    """Return a type and its description, empty if it has none."""
    kind = inspect.type_info(annotation)
    if not isinstance(kind, inspect.Metadata):
        return kind, ""
    return kind.type, (kind.extra_json_schema or {}).get("description", "")


def _pair(name: str, value: object, comment: str) -> list[str]:
    """Return the lines of a field with its comment."""
    line = f"{name} = {toml_value(value)}"
    if not comment:
        return [line]
    if "\n" in line or len(line) + len(comment) > _WIDTH:
        return [f"# {comment}", line]
    return [f"{line}  # {comment}"]


def toml_value(value: object) -> str:
    """Return a value in TOML."""
    if isinstance(value, str) and "\n" in value:
        text = re.sub(r'"(?="")|"$', r"\"", value.replace("\\", "\\\\"))
        text = _CONTROL.sub(lambda found: f"\\u{ord(found[0]):04x}", text)
        return f'"""\n{text}"""'
    if isinstance(value, str):
        # The escapes of JSON are valid in TOML, except those of characters beyond 16 bits.
        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, tuple) and value and isinstance(value[0], tuple):
        return "\n".join(["[", *(f"  {toml_value(item)}," for item in value), "]"])
    if isinstance(value, tuple):
        return f"[{', '.join(map(toml_value, value))}]"
    return repr(value)
