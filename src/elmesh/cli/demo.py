"""``elmesh demo``: fit and compare the methods on bundled data, and write an HTML report."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from elmesh.cli import digits
from elmesh.cli.console import ForceOption, JsonOption, Output, QuietOption, check_writable
from elmesh.comm.graph import make_topology
from elmesh.errors import ElmeshError
from elmesh.report import comparison_page, draw_overview, render

__all__ = ["demo"]


def demo(
    out: Annotated[Path, typer.Option(help="Folder to write the report into.")] = Path("elmesh-demo"),
    seed: Annotated[int, typer.Option(min=0, help="Seed of the sites' data and of the hidden weights.")] = 0,
    hidden: Annotated[int, typer.Option(min=1, help="Hidden units.")] = 300,
    graph: Annotated[
        str, typer.Option(metavar="NAME", help="Communication graph: ring, path, star, complete, random or grid.")
    ] = "ring",
    draws: Annotated[int, typer.Option(min=1, help="Random draws of the sites' digits to average over.")] = 5,
    force: ForceOption = False,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Compare learning alone and together on bundled digits, and write an HTML report.

    Fits Local ELM (each of ten sites alone), MeshELM with all data in one place, and MeshELM over a graph (data stay at
    their sites, neighbours exchange messages about the shared layer; with exact messages, and with 2 bits per number)
    on the digits of scikit-learn. Only the graph is given. Prints a table and writes report.html, overview.png and
    results.json.
    """
    output = Output(as_json, quiet)
    check_writable(out, force)
    if out.exists() and not out.is_dir():
        raise ElmeshError(f"{out} is a file; choose another name for the folder.")
    split = digits.draw(seed)
    make_topology(graph, sorted(set(split.tasks_train)), seed)  # refuses a wrong name before the work

    with output.warnings_as_notes():
        comparison = digits.compare(
            [split, *map(digits.draw, range(seed + 1, seed + draws))], output, seed, hidden, graph
        )
    files = {name: out / name for name in ("report.html", "overview.png", "results.json")}
    out.mkdir(parents=True, exist_ok=True)
    files["report.html"].write_text(render(comparison_page(comparison)), encoding="utf-8")
    draw_overview(comparison).savefig(files["overview.png"])
    results = comparison.to_json()
    histories = {m.name: m.history.to_dict(orient="list") for m in comparison.methods}
    whole = json.dumps({**results, "histories": histories}, indent=1, allow_nan=False)
    files["results.json"].write_text(whole + "\n", encoding="utf-8")

    table = comparison.table()
    output.table(table.columns, table.rows)
    output.print("")
    output.print(f"{comparison.headline()} {comparison.site_summary()}")
    output.print(comparison.draw_summary())
    output.print(comparison.traffic_summary())
    output.print(f"Open {files['report.html']} in a browser.")
    output.result({"command": "demo", **results, "files": list(map(str, files.values()))})
