"""``elmesh reproduce``: the paper's evaluation, run again and set beside what it says."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from elmesh.cli.console import (
    INTERRUPTED,
    ForceOption,
    JsonOption,
    Output,
    QuietOption,
    check_writable,
    fail,
    stop_on_interrupt,
)

__all__ = ["reproduce"]


class What(StrEnum):
    """What can be reproduced."""

    FIG3 = "fig3"
    FIG4 = "fig4"
    FIG5 = "fig5"
    FIG6 = "fig6"
    TABLE1 = "table1"
    MISPRINTS = "misprints"
    READINGS = "readings"
    CHOICE = "choice"
    ALL = "all"


def reproduce(
    what: Annotated[What, typer.Argument(help="A figure, the table, or all of it.")],
    out: Annotated[Path, typer.Option(help="Folder to write to; one that was begun is gone on with.")] = Path(
        "elmesh-paper"
    ),
    runs: Annotated[int, typer.Option(min=1, help="Random draws to average over; the paper has 100.")] = 10,
    seed: Annotated[int, typer.Option(min=0, help="What all randomness comes from.")] = 0,
    force: ForceOption = False,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Run the paper's experiments again, and set what comes of them beside what it says.

    Writes report.html (each figure and table with the paper's statements and a verdict), every figure as PNG and SVG,
    and results.json. Trials run in parallel, one process a core. Interrupted, the same command goes on where it was;
    with more --runs it adds to what is there; another experiment into the same folder joins the same report.

    Besides the figures and the table: "misprints" puts back three errors of the printed algorithms, "readings" shows
    what the paper's unstated choices change, "choice" picks the rival methods' parameters on training rows.
    """
    from elmesh.paper import reproduction  # noqa: PLC0415  (it draws, which takes seconds to import)
    from elmesh.paper.experiments import EXPERIMENTS  # noqa: PLC0415  (as above)

    output = Output(as_json, quiet)
    check_writable(out, force=True)
    names = list(EXPERIMENTS) if what is What.ALL else [what.value]
    when = "when the trials under way are done"
    with stop_on_interrupt(output, when) as request, output.bar("Reproducing") as show:

        def advance(name: str, done: int, total: int) -> None:
            show(done, total, f"{name}, trial {done} of {total}")

        try:
            result = reproduction.reproduce(
                dict.fromkeys(names, runs), seed, out, fresh=force, advance=advance, stopping=lambda: request.asked
            )
        except KeyboardInterrupt:
            fail(f"Stopped. What was finished is kept in {out}; the same command goes on from there.", INTERRUPTED)
    for name, reason in result.missing.items():
        output.note(f"{name.upper()} is missing. {reason}")
    if not quiet:
        output.table(
            ("experiment", "runs", "the paper's statements"),
            [[name, str(result.runs[name]), result.summary(name)] for name in result.findings],
            left=3,
        )
    output.say(f"Open {out / reproduction.PAGE} in a browser.")
    output.result({"command": "reproduce", **result.to_json(), "folder": str(out)})
