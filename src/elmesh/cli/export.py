"""``elmesh export``: one site's model as a file that other programs run without elmesh."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

import elmesh
from elmesh.cli.console import ForceOption, JsonOption, Output, QuietOption, check_writable
from elmesh.errors import ElmeshError
from elmesh.text import count, data_size, listed
from elmesh.typing import Label

if TYPE_CHECKING:
    from onnx import ValueInfoProto

__all__ = ["export"]


def export(
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="Folder that elmesh fit, or Python, saved.")],
    file: Annotated[Path, typer.Option("--onnx", metavar="FILE", help="ONNX file to write.")],
    site: Annotated[
        str | None,
        typer.Option(help="Site of the model to export; not needed if there is one.", show_default="the only one"),
    ] = None,
    common: Annotated[
        bool,
        typer.Option("--common", help="Export what all sites have in common, for a site that was not in the fit."),
    ] = False,
    std: Annotated[
        bool,
        typer.Option("--std", help="With a regression: add the standard deviation of each prediction."),
    ] = False,
    force: ForceOption = False,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Export one site's model as an ONNX file, which other programs and languages run without elmesh.

    The file takes the columns as they are in the table, one input per column: numbers, text, and days since 1970 for
    dates. It fills gaps, scales and encodes as elmesh predict does, and gives the same predictions. Of other sites it
    has only what all share: the scales and categories of columns, and weights that all have in common.

    Whoever has the file can learn about the site's rows: it is as confidential as they are. With --std it reveals more.
    """
    output = Output(as_json, quiet)
    if file.is_dir():
        raise ElmeshError(f"{file} is a folder; give the name of a file, such as {file / 'model.onnx'}.")
    check_writable(file, force)
    if file.resolve().is_relative_to(model.resolve()):
        raise ElmeshError(f"{file} is in the folder of the model; write it to another place.")
    if common and site is not None:
        raise ElmeshError("--site and --common exclude each other; give one of them.")
    with output.warnings_as_notes():
        estimator = elmesh.load(model)
        chosen = None if common else _choose(site, estimator.tasks_.tolist())
        proto = estimator.to_onnx(chosen, file, common=common, return_std=std, overwrite=force)
    about = {prop.key: prop.value for prop in proto.metadata_props}
    inputs, outputs = ([_describe(value) for value in values] for values in (proto.graph.input, proto.graph.output))
    script = _script(file, json.loads(about["columns"]))
    whose = "What all sites have in common" if common else f"The model of {chosen}"
    size = file.stat().st_size
    output.print(f"{whose} is in {file} ({data_size(size)}), a {about['kind']}.")
    if not quiet:
        for title, values in (("input", inputs), ("output", outputs)):
            output.print("")
            output.table([title, "type", "shape", "what it is"], [[*value.values()] for value in values], left=4)
    output.note(about["confidentiality"])
    output.print("")
    output.print("To run it, with pip install onnxruntime pandas:")
    output.print("")
    for line in script:
        output.print(line)
    output.result(
        {
            "command": "export",
            "format": "onnx",
            "file": str(file),
            "bytes": size,
            "site": chosen,
            "kind": about["kind"],
            "inputs": inputs,
            "outputs": outputs,
            "python": script,
        }
    )


def _choose(site: str | None, known: list[Label]) -> Label:
    """Return the label of a site by its name."""
    by_name = {str(label): label for label in known}
    if site is None and len(known) == 1:
        return known[0]
    if site is None:
        raise ElmeshError(
            f"The model holds {count(len(known), 'site')} ({listed(known)}); name one with --site, or give --common "
            "for a site that was not in the fit."
        )
    if site not in by_name:
        raise ElmeshError(
            f"The model has no site {site!r}; it has {listed(known)}. For a site that was not in the fit give --common."
        )
    return by_name[site]


def _describe(value: ValueInfoProto) -> dict[str, str]:
    from onnx import TensorProto  # noqa: PLC0415  (part of an extra)

    tensor = value.type.tensor_type
    shape = ", ".join(str(size.dim_value) if size.dim_value else "rows" for size in tensor.shape.dim)
    return {
        "name": value.name,
        "type": TensorProto.DataType.Name(tensor.elem_type).lower(),
        "shape": f"({shape})",
        "about": value.doc_string,
    }


def _script(file: Path, columns: list[dict[str, Any]]) -> list[str]:
    """Return the lines of a Python script that predicts the rows of a CSV file."""
    lines = ["import onnxruntime", "import pandas as pd", "", f"session = onnxruntime.InferenceSession({str(file)!r})"]
    if "name" not in columns[0]:  # the columns of an array have no types of their own
        return [
            *lines,
            "rows = pd.read_csv('new.csv')",
            "print(session.run(None, {'X': rows.to_numpy(float)}))",
        ]
    lines.append("rows = pd.read_csv('new.csv', dtype=str)  # sep, encoding: as the file has them; decimal points")
    for column in columns:
        name = column["name"]
        if column["type"] == "date":
            dates = f"pd.to_datetime(rows[{name!r}], format='ISO8601')"
            lines.append(f"rows[{name!r}] = ({dates} - pd.Timestamp(0)) / pd.Timedelta(days=1)")
        if column["input"] != name:
            lines.append(f"rows = rows.rename(columns={{{name!r}: {column['input']!r}}})")
    return [
        *lines,
        "inputs = {}",
        "for x in session.get_inputs():",
        "    column = rows[[x.name]]",
        "    is_text = x.type == 'tensor(string)'",
        "    numbers = column.replace({'True': 1, 'true': 1, 'False': 0, 'false': 0})",
        "    inputs[x.name] = column.fillna('').to_numpy(str) if is_text else numbers.to_numpy(float)",
        "print(session.run(None, inputs))",
    ]
