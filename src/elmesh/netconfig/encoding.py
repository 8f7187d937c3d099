"""Write a struct as TOML, with a comment on each field: the ``description`` in its type."""

from __future__ import annotations

import json
from collections.abc import Mapping

import msgspec
from msgspec import inspect

__all__ = ["encode_toml"]

# A comment that would make a line longer is written before it.
_WIDTH = 114


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
    line = f"{name} = {_value(value)}"
    if not comment:
        return [line]
    if "\n" in line or len(line) + len(comment) > _WIDTH:
        return [f"# {comment}", line]
    return [f"{line}  # {comment}"]


def _value(value: object) -> str:
    if isinstance(value, str):
        # The escapes of JSON are valid in TOML, except those of characters beyond 16 bits.
        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, tuple) and value and isinstance(value[0], tuple):
        return "\n".join(["[", *(f"  {_value(item)}," for item in value), "]"])
    if isinstance(value, tuple):
        return f"[{', '.join(map(_value, value))}]"
    return repr(value)
