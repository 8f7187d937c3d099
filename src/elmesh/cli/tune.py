"""``elmesh tune``: settings by rows left out, and the model that ``elmesh fit`` makes with them."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Annotated, Any

import numpy as np
import typer

from elmesh.cli.console import ForceOption, JsonOption, Output, QuietOption, check_model_folder
from elmesh.cli.errors import INTERRUPTED
from elmesh.cli.fit import fit_here, read_table
from elmesh.cli.fit_options import (
    ClassWeightOption,
    FitOptions,
    OutOption,
    TableOptions,
    WeightOption,
    hidden_units,
    weight_scales,
    with_options,
)
from elmesh.cli.signals import StopRequest, stop_on_interrupt
from elmesh.errors import ElmeshError
from elmesh.estimators.search import Search, search_settings
from elmesh.solvers import solver_classes
from elmesh.text import count

__all__ = ["TuneOptions", "tune"]


@dataclass(frozen=True, kw_only=True)
class TuneOptions(TableOptions):
    """The options of ``elmesh tune``: those of the table, and candidates of settings; None for the default ones."""

    out: OutOption
    weight: WeightOption = None
    class_weight: ClassWeightOption = None
    hidden: Annotated[
        str | None,
        typer.Option(metavar="LIST", help="Numbers of hidden units, separated by commas.", show_default="200,400"),
    ] = None
    weight_scale: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NUMBERS",
            help="Scale of the hidden weights, or several for several groups of units; repeatable.",
            show_default="1,4; 0.3; 0.3,1,3",
        ),
    ] = None
    activation: Annotated[
        str | None,
        typer.Option(metavar="LIST", help="Activations of the hidden units.", show_default="sigmoid"),
    ] = None
    parts: Annotated[
        list[str] | None,
        typer.Option(
            metavar="LIST",
            help="Parts of the weights of mesh-elm, repeatable; shared alone is the paper's problem.",
            show_default="common,private,shared",
        ),
    ] = None
    rank: Annotated[
        str | None, typer.Option(metavar="LIST", help="Ranks of the paper's problem.", show_default="the solver's")
    ] = None
    mu: Annotated[
        str | None,
        typer.Option(
            metavar="LIST",
            help="Penalties of the paper's problem or of local-elm.",
            show_default="from a tenth to ten times the automatic one",
        ),
    ] = None
    solver: Annotated[str, typer.Option(metavar="NAME", help=f"One of {', '.join(solver_classes())}.")] = "mesh-elm"
    graph: Annotated[
        str | None, typer.Option(metavar="NAME", help="Communication graph of the fit.", show_default="ring")
    ] = None
    folds: Annotated[int, typer.Option(help="Folds of each task's rows, for the paper's problem.", min=2)] = 5
    seed: Annotated[int, typer.Option(help="Seed of the hidden weights.")] = 0
    force: ForceOption = False
    as_json: JsonOption = False
    quiet: QuietOption = False

    def grid(self) -> dict[str, list[Any]]:
        """Return the candidates that are given."""
        given: dict[str, list[Any] | None] = {
            "n_hidden": _listed(self.hidden, hidden_units),
            "weight_scale": None if self.weight_scale is None else [weight_scales(text) for text in self.weight_scale],
            "activation": _listed(self.activation, str),
            "parts": self._given_parts,
            "rank": _listed(self.rank, lambda text: _number("--rank", text, int)),
            "mu": _listed(self.mu, lambda text: _number("--mu", text, float)),
        }
        return {name: values for name, values in given.items() if values is not None}

    @property
    def _given_parts(self) -> list[str] | None:
        # One value is a setting of all candidates, and shared alone makes it another problem.
        return self.parts if self.parts is not None and len(self.parts) > 1 else None

    def fit_options(self, setting: dict[str, Any]) -> FitOptions:
        """Return the options of a fit with a setting."""
        names = [*(field.name for field in fields(TableOptions)), *_OF_THE_FIT]
        chosen: dict[str, Any] = {name: getattr(self, name) for name in names}
        if self.parts is not None and len(self.parts) == 1:
            chosen["parts"] = self.parts[0]
        return FitOptions(**chosen, **{_FIT_NAMES.get(name, name): text for name, text in _texts(setting).items()})


# Options that are those of `elmesh fit`, beside the table's.
_OF_THE_FIT = ("out", "weight", "class_weight", "solver", "graph", "seed", "force", "as_json", "quiet")
# Options of `elmesh fit` whose names are not those of the estimator's parameters.
_FIT_NAMES = {"n_hidden": "hidden"}


def _texts(setting: dict[str, Any]) -> dict[str, Any]:
    """Return a setting as values of the options of ``elmesh fit``; automatic ones are left out."""
    chosen = {name: value for name, value in setting.items() if not (isinstance(value, str) and value == "auto")}
    for name in chosen.keys() & {"n_hidden"}:
        chosen[name] = str(chosen[name])
    for name in chosen.keys() & {"weight_scale"}:
        chosen[name] = ",".join(f"{scale:g}" for scale in np.atleast_1d(chosen[name]))
    return chosen


def _listed(text: str | None, read: Callable[[str], Any]) -> list[Any] | None:
    return None if text is None else [read(part.strip()) for part in text.split(",")]


def _number(option: str, text: str, kind: type[int] | type[float]) -> Any:
    if text == "auto":
        return text
    try:
        return kind(text)
    except ValueError:
        what = "whole numbers" if kind is int else "numbers"
        raise ElmeshError(f'{option} must be {what} or "auto", separated by commas; got {text!r}.') from None


@with_options(TuneOptions)
def tune(options: TuneOptions) -> None:
    """Choose settings on rows left out, fit the table with them and save the model.

    All combinations of the candidates are tried. With mesh-elm each row is predicted by all others in closed form; for
    the paper's problem (--parts shared, or another solver) rows are left out in folds within tasks. A table shows the
    error of every setting with its standard error.

    The default setting, if it is among the candidates, is kept unless another one is better by more than a standard
    error and one percent of the loss: the best of many settings is partly the luckiest.

    The model is then fitted and saved exactly as elmesh fit does it; the command that makes the same model is printed.

    Ctrl-C stops the search after the current setting and fits the best one so far; a second Ctrl-C aborts and saves
    nothing.
    """
    output = Output(options.as_json, options.quiet)
    check_model_folder(options.out, options.force)
    options.check_task()
    with output.warnings_as_notes():
        table = read_table(options.fit_options({}), output)
        estimator = options.fit_options({}).make_estimator(table.kind)
        with stop_on_interrupt(output, "after this setting") as request, output.bar("Tuning") as show:
            callback = _Progress(show, request)
            rows: dict[str, Any] = {"X": table.X, "y": table.y, "sample_weight": table.sample_weight}
            search = search_settings(estimator, options.grid(), **rows, n_folds=options.folds, callback=callback)
    best, default = search.best, search.default
    if request.asked:
        done, every = sum(candidate.losses is not None for candidate in search.candidates), len(search.candidates)
        output.note(f"Stopped by Ctrl-C after {done} of {count(every, 'setting')}; the best of them is fitted.")
    chosen = options.fit_options({} if best == default else search.candidates[best].setting)
    tried = _rows(search, squared=table.kind == "regression")
    _print(output, tried, squared=table.kind == "regression")
    verdict = _verdict(search, tried)
    output.print(verdict)
    summary, stopped = fit_here(chosen, output)
    output.print(f"The same model: {chosen.command()}")
    tuning = {
        "settings": tried, "best": best, "default": default, "verdict": verdict, "fit_command": chosen.command(),
    }  # fmt: skip
    output.result({**summary, "command": "tune", "tuning": tuning})
    if stopped or request.asked:
        raise typer.Exit(INTERRUPTED)


class _Progress:
    """Shows how many settings were tried, and how long the others will take."""

    def __init__(self, show: Callable[[int, int, str], None], request: StopRequest) -> None:
        self._show, self._request, self._begin = show, request, time.monotonic()

    def __call__(self, search: Search) -> bool:
        """Show what was tried, and return whether the search is to end."""
        # The work grows with the square of the number of features.
        units = [candidate.setting.get("n_hidden") for candidate in search.candidates]
        work = [float(n) ** 2 if isinstance(n, int) else 1.0 for n in units]
        done = [candidate.losses is not None for candidate in search.candidates]
        share = float(np.dot(work, done)) / sum(work)
        left = (time.monotonic() - self._begin) * (1.0 - share) / share
        text = f"{left:.0f} s" if left < 120 else f"{left / 60:.0f} minutes"
        self._show(round(100 * share), 100, f"{sum(done)} of {len(done)} settings, about {text} left")
        return self._request.asked


def _rows(search: Search, *, squared: bool) -> list[dict[str, Any]]:
    """Return what is known of each setting: its error, root mean square or log loss, and that against the default."""

    def error(place: int) -> float:
        return float(np.sqrt(search.loss(place)[0])) if squared else search.loss(place)[0]

    rows = []
    for place, candidate in enumerate(search.candidates):
        found, deviation = error(place), search.loss(place)[1]
        row = {"setting": candidate.setting, "options": _words(candidate.setting), "error": found,
               "standard_error": deviation / (2 * found) if squared and found else deviation}  # fmt: skip
        if search.default is not None:
            other = error(search.default)
            change, deviation = found - other, search.difference(place, search.default)[1]
            row |= {"change": change, "change_standard_error": deviation / (found + other) if squared else deviation}
        rows.append({**row, "chosen": place == search.best, "default": place == search.default})
    return rows


def _words(setting: dict[str, Any]) -> str:
    """Return a setting as options of ``elmesh fit``."""
    found = [f"--{_FIT_NAMES.get(name, name).replace('_', '-')} {text}" for name, text in _texts(setting).items()]
    return " ".join(found) or "automatic"


def _print(output: Output, rows: Sequence[dict[str, Any]], *, squared: bool) -> None:
    """Print the table of settings."""
    if output.quiet:
        return
    compared = "change" in rows[0]
    head = ["setting", "error" if squared else "log loss", "standard error"]
    head += ["against the default", "standard error"] if compared else []
    names = ("error", "standard_error", *(("change", "change_standard_error") if compared else ()))
    lines = []
    for row in rows:
        marks = [word for word in ("default", "chosen") if row[word]]
        text = row["options"] + (f" ({', '.join(marks)})" if marks else "")
        lines.append([text, *("–" if np.isnan(row[name]) else f"{row[name]:{_FORMATS[name]}}" for name in names)])
    output.table([*head], lines)


_FORMATS = {"error": ".5g", "standard_error": ".2g", "change": "+.2g", "change_standard_error": ".2g"}


def _verdict(search: Search, rows: Sequence[dict[str, Any]]) -> str:
    """Return in one sentence whether another setting is clearly better than the default."""
    best, least = rows[search.best], rows[search.least]
    if search.default is None:
        return f"The best of {count(len(rows), 'setting')} on rows left out: {best['options']}."
    if best is not rows[search.default]:
        return (
            f"{best['options']} is clearly better than the default: the error on rows left out changes by "
            f"{best['change']:+.2g}, with a standard error of {best['change_standard_error']:.2g}."
        )
    if least is best:
        return f"The default is the best of {count(len(rows), 'setting')}: kept."
    return (
        f"The default is as good: kept. The least error, of {least['options']}, is lower by {-least['change']:.2g}, "
        f"with a standard error of {least['change_standard_error']:.2g}: this is not clear, or below one percent of "
        "the loss."
    )
