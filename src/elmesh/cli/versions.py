"""``elmesh versions`` and ``elmesh rollback``: the models of earlier runs, and the way back to one of them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from elmesh.cli.console import JsonOption, Output, QuietOption
from elmesh.cli.status_text import moment
from elmesh.errors import ElmeshError
from elmesh.estimators.versions import ModelVersions

__all__ = ["rollback", "versions"]

_ModelArgument = Annotated[
    Path, typer.Argument(metavar="MODEL", help="Folder of the model of elmesh agent --every or --at.")
]
_HOW = {"network": "with the network", "alone": "alone"}


def versions(model: _ModelArgument, as_json: JsonOption = False, quiet: QuietOption = False) -> None:
    """List the versions of a model that elmesh agent --every or --at has learned, the newest first.

    The column "change" is by how much the version was better (+) or worse (-) than the one before it, on the rows that
    came in between: in mean squared error or, of classes, in Brier score, with its standard error.
    """
    output = Output(as_json, quiet)
    known = _read(model)
    current, found = known.current(), [{"version": n, **known.facts(n)} for n in reversed(known.numbers())]
    if current is None:
        output.note(f"The model in {model} is none of these versions: it was changed since.")
    rows = [
        [
            f"{one['version']}{' (current)' if one['version'] == current else ''}",
            moment(one["time"]) if "time" in one else "-",
            _HOW.get(one.get("how", ""), "-"),
            f"{one['rows']:,}" if "rows" in one else "-",
            _change(one.get("change")),
        ]
        for one in found
    ]
    output.table(["version", "learned", "how", "rows", "change"], rows, left=3)
    output.result({"command": "versions", "model": str(model), "current": current, "versions": found})


def rollback(
    model: _ModelArgument,
    to: Annotated[
        int | None, typer.Option(metavar="N", help="The version to return to.", show_default="the one before")
    ] = None,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Return to an earlier version of a model, or to a later one.

    The model is replaced in one step, and no version is lost: elmesh rollback --to N returns from there as well. The
    next scheduled run learns from all rows again, and compares its model with this one.
    """
    output = Output(as_json, quiet)
    known = _read(model)
    current = known.current()
    if to is None:
        before = [n for n in known.numbers() if current is None or n < current]
        if not before:
            raise ElmeshError(f"There is no version of {model} before this one.")
        to = before[-1]
    known.switch(to)
    output.print(f"{model} is version {to} now" + (f"; it was version {current}." if current is not None else "."))
    output.result({"command": "rollback", "model": str(model), "from": current, "to": to})


def _read(model: Path) -> ModelVersions:
    known = ModelVersions(model)
    if not known.numbers():
        raise ElmeshError(
            f"There are no versions of {model} ({known.folder} has none); elmesh agent --every or --at makes them."
        )
    return known


def _change(change: dict[str, Any] | None) -> str:
    if change is None:
        return "-"
    clear = "" if change["clearly"] else " (may be chance)"
    return f"{change['better']:+.3g} ± {change['error']:.2g}{clear}"
