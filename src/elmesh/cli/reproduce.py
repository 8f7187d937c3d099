"""``elmesh reproduce``: run the paper's evaluation and compare the results with its claims."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from elmesh.cli.console import ForceOption, JsonOption, Output, QuietOption, check_writable
from elmesh.cli.errors import INTERRUPTED, fail
from elmesh.cli.signals import stop_on_interrupt
from elmesh.paper import reproduction
from elmesh.paper.reproduction import EXPERIMENTS

__all__ = ["reproduce"]


class ExperimentName(StrEnum):
    """An experiment, or all of them."""

    FIG3 = "fig3"
    FIG4 = "fig4"
    FIG5 = "fig5"
    FIG6 = "fig6"
    TABLE1 = "table1"
    LEAK = "leak"
    MISPRINTS = "misprints"
    VARIANTS = "variants"
    TUNING = "tuning"
    ALL = "all"


def reproduce(
    what: Annotated[ExperimentName, typer.Argument(help="A figure, the table, or all of it.")],
    out: Annotated[Path, typer.Option(help="Folder to write to; an unfinished one is continued.")] = Path(
        "elmesh-paper"
    ),
    runs: Annotated[int, typer.Option(min=1, help="Random draws to average over; the paper has 100.")] = 10,
    seed: Annotated[int, typer.Option(min=0, help="Seed of all random numbers.")] = 0,
    force: ForceOption = False,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Run the paper's experiments, and compare the results with its claims.

    Writes report.html (each figure and table with the paper's claims and a verdict), every figure as PNG and SVG, and
    results.json. Trials run in parallel, one process per core. After an interruption the same command continues where
    it stopped. More --runs add to the finished ones, and another experiment in the same folder joins its report.

    Figs. 5 and 6 and Table 1 use the digits that the paper cites (Kang et al. 2011), from kang_digits.npz in the folder
    of ELMESH_DATA, with two ways of drawing rows. Without that file they use images of other releases.

    Besides the figures and the table: "leak" shows the effect of test rows that other tasks train on, "misprints" three
    errors of the printed algorithms, "variants" the effect of choices that the paper does not state, and "tuning"
    chooses the parameters of the methods on training rows.
    """
    output = Output(as_json, quiet)
    check_writable(out, force=True)
    names = list(EXPERIMENTS) if what is ExperimentName.ALL else [what.value]
    when = "when the running trials are finished"
    with stop_on_interrupt(output, when) as request, output.bar("Reproducing") as show:

        def advance(name: str, done: int, total: int) -> None:
            show(done, total, f"{name}, trial {done} of {total}")

        try:
            result = reproduction.reproduce(
                dict.fromkeys(names, runs),
                seed,
                out,
                fresh=force,
                on_progress=advance,
                should_stop=lambda: request.asked,
            )
        except KeyboardInterrupt:
            fail(f"Stopped. Finished trials are saved in {out}; run the same command again to continue.", INTERRUPTED)
    for name, reason in result.missing.items():
        output.note(f"{name} is missing. {reason}")
    if not quiet:
        output.table(
            ("experiment", "runs", "claims of the paper"),
            [[name, str(result.runs[name]), result.verdicts(name)] for name in result.analyses],
            left=3,
        )
    output.print(f"Open {out / reproduction.PAGE} in a browser.")
    output.result({"command": "reproduce", **result.to_json(), "folder": str(out)})
