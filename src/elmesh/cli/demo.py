"""``elmesh demo``: twelve simulated clinics learn alone, pooled and together; writes an HTML report."""

from __future__ import annotations

import json
import platform
import time
import warnings
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from sklearn.exceptions import ConvergenceWarning

import elmesh
from elmesh import LocalELM, MeshELM, MultiTaskELMRegressor, RunConfig
from elmesh.cli.console import ForceOption, JsonOption, Output, QuietOption, check_writable
from elmesh.comm.graph import make_topology
from elmesh.datasets import CLINICS, TaskSplit, simulate_clinics
from elmesh.errors import ElmeshError
from elmesh.report import SiteResult, SiteStudy, Training, draw_overview, render, study_page, study_table
from elmesh.run import StopReason
from elmesh.solvers import Solver
from elmesh.typing import FloatArray

__all__ = ["compare", "demo"]

TEST_ROWS = 100
# Half the width of a 90 % interval in standard deviations.
_NINETY = 1.645

INTRODUCTION = (
    "The data are simulated: twelve clinics predict how many days a patient stays after a hip operation, from six "
    f"readings before it. The clinics have {min(CLINICS.values())} to {max(CLINICS.values())} training rows. Most are "
    "alike; Larch and Oak were made to differ, Maple to have three times the noise, and Rowan has six rows. No method "
    "gets this information. Only the communication graph is given; everything else is a default or found "
    "automatically. All clinics run on this machine, and traffic is the size of the messages between them."
)


def demo(
    out: Annotated[Path, typer.Option(help="Folder to write the report into.")] = Path("elmesh-demo"),
    seed: Annotated[int, typer.Option(min=0, help="Seed of the sites' rows and of the hidden weights.")] = 0,
    hidden: Annotated[int, typer.Option(min=1, help="Hidden units.")] = 200,
    graph: Annotated[
        str, typer.Option(metavar="NAME", help="Communication graph: ring, path, star, complete, random or grid.")
    ] = "ring",
    draws: Annotated[int, typer.Option(min=1, help="Random draws of the sites' rows to average over.")] = 8,
    force: ForceOption = False,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Compare learning alone, pooled and together on twelve simulated clinics, and write an HTML report.

    Most clinics are alike, two differ, one is noisy and one has six rows. Fits each clinic alone (Local ELM), one model
    of all rows (MeshELM without a private part), and all clinics together (MeshELM: rows stay at their sites), and
    tests on new rows of each clinic. Shows who gains and how clearly, and how much of each clinic's predictions is
    common, shared and private. Prints a table and writes report.html, overview.png and results.json.
    """
    output = Output(as_json, quiet)
    check_writable(out, force)
    if out.exists() and not out.is_dir():
        raise ElmeshError(f"{out} is a file; choose another name for the folder.")
    make_topology(graph, sorted(CLINICS), seed)  # refuses a wrong name before the work

    splits = [simulate_clinics(seed=seed + k, n_test=TEST_ROWS) for k in range(draws)]
    with output.warnings_as_notes():
        study = compare(splits, output, seed, hidden, graph)
    files = {name: out / name for name in ("report.html", "overview.png", "results.json")}
    out.mkdir(parents=True, exist_ok=True)
    files["report.html"].write_text(render(study_page(study)), encoding="utf-8")
    draw_overview(study).savefig(files["overview.png"])
    results = study.to_json()
    files["results.json"].write_text(json.dumps(results, indent=1, allow_nan=False) + "\n", encoding="utf-8")

    table = study_table(study)
    output.table(table.columns, table.rows)
    output.print("")
    for text in (study.headline(), study.site_summary(), study.pooled_summary(), study.parts_summary()):
        output.print(text)
    output.print(f"Open {files['report.html']} in a browser.")
    output.result({"command": "demo", **results, "files": list(map(str, files.values()))})


def compare(splits: Sequence[TaskSplit], output: Output, seed: int, hidden: int, graph: str) -> SiteStudy:
    """Fit alone, pooled and together on every draw."""
    methods: dict[str, Solver] = {
        "alone": LocalELM(), "pooled": MeshELM(private=False, graph=None), "together": MeshELM(graph=graph)
    }  # fmt: skip
    scale: Any = "auto" if hidden > 1 else 1.0  # a single unit has a single scale of weights
    errors: dict[str, list[dict[str, float]]] = {name: [] for name in methods}
    shares: list[FloatArray] = []
    covered: list[FloatArray] = []
    fits: list[Training] = []
    for name, solver in methods.items():
        for k, split in enumerate(splits):
            model: Any = MultiTaskELMRegressor(hidden, weight_scale=scale, solver=solver, random_state=seed + k)
            title = f"{name:<8} draw {k + 1} of {len(splits)}"
            with output.progress(title) as show, warnings.catch_warnings():
                warnings.simplefilter("ignore", ConvergenceWarning)  # it does not name the method; the note does
                began = time.perf_counter()
                model.fit(split.X_train, split.y_train, tasks=split.tasks_train, run=RunConfig(callback=show))
                seconds = time.perf_counter() - began
            if model.stop_ not in (StopReason.CONVERGED, StopReason.DIRECT):
                output.note(f"{title}, after {model.n_iter_} rounds: {model.stop_.value}")
            errors[name].append(_errors(model, split))
            if name == "together":
                shares.append(model.part_shares(split.X_test, split.tasks_test).loc[list(CLINICS)].to_numpy())
                covered.append(_covered(model, split))
                fits.append(_training(model, seconds))
    parts = np.mean(shares, axis=0)
    sites = [
        SiteResult(
            site,
            CLINICS[site],
            alone=[draw[site] for draw in errors["alone"]],
            pooled=[draw[site] for draw in errors["pooled"]],
            together=[draw[site] for draw in errors["together"]],
            shares=(parts[i, 0], parts[i, 1], parts[i, 2]),
            covered=float(np.mean(covered, axis=0)[i]),
        )
        for i, site in enumerate(CLINICS)
    ]
    return SiteStudy(
        introduction=INTRODUCTION,
        unit="days",
        sites=sites,
        training=fits[0],
        shared_draws=sum(fit.rank > 0 for fit in fits),
        settings={
            "Data": "simulated clinics; no row is a real patient",
            "Rows": f"{sum(CLINICS.values())} training rows in all, {TEST_ROWS} test rows per clinic and draw",
            "Draws": f"{len(splits)}, from seed {seed} on",
            "Graph": graph,
            "Features": f"{hidden} hidden units (sigmoid), the inputs themselves, and a constant",
            "Variances and noise": "found by evidence",
            "Everything else": "the defaults",
        },
        versions={
            "elmesh": elmesh.__version__,
            "Python": platform.python_version(),
            **{name: version(name) for name in ("numpy", "scipy", "scikit-learn", "networkx", "matplotlib")},
            "System": f"{platform.system()} {platform.machine()}",
        },
    )


def _errors(model: Any, split: TaskSplit) -> dict[str, float]:
    """Return each site's root mean square error on its test rows."""
    squares = (model.predict(split.X_test, tasks=split.tasks_test) - split.y_test) ** 2
    return {site: float(np.sqrt(np.mean(squares[split.tasks_test == site]))) for site in CLINICS}


def _covered(model: Any, split: TaskSplit) -> FloatArray:
    """Return the share of each site's test rows within the 90 % interval of their prediction."""
    prediction, deviation = model.predict(split.X_test, tasks=split.tasks_test, return_std=True)
    inside = np.abs(prediction - split.y_test) <= _NINETY * deviation
    return np.array([np.mean(inside[split.tasks_test == site]) for site in CLINICS])


def _training(model: Any, seconds: float) -> Training:
    facts = model.summary()
    return Training(
        seconds=seconds,
        certificate=model.certificate_,
        **{key: facts[key] for key in ("rounds", "exchanges", "bytes", "stop", "advice", "rank")},
    )
