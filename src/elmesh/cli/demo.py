"""``elmesh demo``: fit and compare four methods on ten sites of digits, and write an HTML report."""

from __future__ import annotations

import json
import platform
import time
import warnings
from collections.abc import Iterator, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any

import typer
from sklearn.exceptions import ConvergenceWarning

import elmesh
from elmesh import LocalELM, MeshELM, MultiTaskELMClassifier, RunConfig
from elmesh.cli.console import ForceOption, JsonOption, Output, QuietOption, check_writable
from elmesh.comm.graph import make_topology
from elmesh.datasets import TaskSplit, load_digits_tasks
from elmesh.errors import ElmeshError
from elmesh.report import Comparison, MethodResult, comparison_page, draw_overview, render
from elmesh.run import StopReason
from elmesh.solvers import Solver

__all__ = ["compare", "demo"]

SITES = 10
CLASSES = 3
# Learning together helps most with few training rows. The test rows are as many as the data set then allows.
TRAIN_ROWS = 60
TEST_ROWS = 111
ALONE, POOLED, TOGETHER, COARSE = "Local ELM", "MeshELM in one place", "MeshELM", "MeshELM, 2 bits"

INTRODUCTION = (
    f"Each of {SITES} sites has {TRAIN_ROWS} images of {CLASSES} of the ten handwritten digits and learns to classify "
    f"them. No image is at two sites, and each site is tested on {TEST_ROWS} further images. The images are drawn at "
    "random several times, and errors are means over these draws. Only the communication graph is given; all other "
    "parameters are defaults or found automatically. All sites run on this machine, and the traffic is the size of the "
    "messages between them."
)


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
    split = _draw(seed)
    make_topology(graph, sorted(set(split.tasks_train)), seed)  # refuses a wrong name before the work

    with output.warnings_as_notes():
        comparison = compare([split, *map(_draw, range(seed + 1, seed + draws))], output, seed, hidden, graph)
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


def _draw(seed: int) -> TaskSplit:
    return load_digits_tasks(n_tasks=SITES, classes=CLASSES, n_train=TRAIN_ROWS, n_test=TEST_ROWS, pca=None, seed=seed)


def _methods(graph: str) -> Iterator[tuple[Solver, dict[str, Any]]]:
    """Yield the solver of each method, and how the report presents it."""
    alone = (
        "Every site learns alone from its own rows and receives no messages. It is the baseline for the other three."
    )
    yield LocalELM(), {"name": ALONE, "description": alone}
    pooled = (
        "All data are in one place, which fits one shared layer U and separate weights A for every site. The sites "
        "want to avoid this, and the next two methods should reach the same objective."
    )
    yield MeshELM(graph=None), {"name": POOLED, "description": pooled, "color": "green", "dash": ":"}
    together = (
        "Every site keeps its rows and its A. In each step the sites add up their gradients for U over the graph and "
        "then take the same step, so that all of them always have the same U. A neighbour may receive the gradient of "
        "a single site, but never its rows."
    )
    yield MeshELM(graph=graph), {"name": TOGETHER, "description": together, "color": "blue"}
    coarse = (
        "The same method, but a message contains only the change since the last message, with 2 bits per number, and "
        "messages use a spanning tree of the graph. It needs more rounds and far fewer bytes for the same optimum."
    )
    yield (
        MeshELM(graph=graph, message_bits=2),
        {
            "name": COARSE,
            "description": coarse,
            "color": "orange",
            "dash": "--",
        },
    )


def compare(splits: Sequence[TaskSplit], output: Output, seed: int, hidden: int, graph: str) -> Comparison:
    """Fit every method on every draw; errors are means over the draws, everything else is from the first draw."""
    methods: list[MethodResult] = []
    means: dict[str, list[float]] = {}
    for solver, about in _methods(graph):
        name, errors = about["name"], []
        for k, split in enumerate(splits):
            title = f"{name:<{len(POOLED)}}" + (f" draw {k + 1} of {len(splits)}" if len(splits) > 1 else "")
            model: Any = MultiTaskELMClassifier(hidden, solver=solver, random_state=seed + k)
            with output.progress(title) as show, warnings.catch_warnings():
                warnings.simplefilter("ignore", ConvergenceWarning)  # it does not name the method; the note does
                began = time.perf_counter()
                model.fit(split.X_train, split.y_train, tasks=split.tasks_train, run=RunConfig(callback=show))
                seconds = time.perf_counter() - began
            errors.append(_errors(model, split))
            if k == 0:
                first, took = model, seconds
        if first.stop_ not in (StopReason.CONVERGED, StopReason.DIRECT):
            output.note(f"{name}, after {first.n_iter_} rounds: {first.stop_.value}")
        means[name] = [sum(draw.values()) / len(draw) for draw in errors]
        facts = first.summary()
        methods.append(
            MethodResult(
                **about,
                errors={site: sum(draw[site] for draw in errors) / len(errors) for site in errors[0]},
                seconds=took,
                history=first.history_[["round", "objective", "consensus_gap", "exchanges", "bytes"]],
                certificate=first.certificate_,
                penalties=first.penalties_ or (),
                **{key: facts[key] for key in ("rounds", "exchanges", "bytes", "stop", "advice", "pooled", "rank")},
            )
        )
        if name == TOGETHER:
            network, shape = first.graph_, first.U_.shape[-2:]
    return Comparison(
        introduction=INTRODUCTION,
        methods=methods,
        alone=ALONE,
        together=TOGETHER,
        pooled=POOLED,
        graph=network,
        shape=shape,
        test_rows=TEST_ROWS * len(splits),
        draws=list(zip(means[ALONE], means[TOGETHER], strict=True)),
        settings={
            "Data": "digits of scikit-learn, 8 × 8 pixels in [0, 1], no PCA",
            "Sites": f"{SITES}, with {CLASSES} classes, {TRAIN_ROWS} training and {TEST_ROWS} test rows each",
            "Draws": f"{len(splits)}, from seed {seed} on",
            "Graph": graph,
            "Hidden units": f"{hidden}, sigmoid",
            "Rank of U": "found: " + _each({m.name: str(m.rank) for m in methods if m.rank is not None}),
            "Penalties": f"mu = {LocalELM().mu:g} ({ALONE}, the default); found: "
            + _each({m.name: _penalties(m) for m in methods if m.rank is not None}),
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
    """Return each site's test error in per cent."""
    wrong = model.predict(split.X_test, tasks=split.tasks_test) != split.y_test
    return {str(task): 100.0 * float(wrong[split.tasks_test == task].mean()) for task in model.tasks_}


def _each(found: dict[str, str]) -> str:
    """List the value of each method, once if all are the same.

    >>> _each({"a": "12", "b": "12"}), _each({"a": "12", "b": "13"})
    ('12', '12 (a), 13 (b)')
    """
    values = list(found.values())
    return values[0] if len(set(values)) == 1 else ", ".join(f"{value} ({name})" for name, value in found.items())


def _penalties(method: MethodResult) -> str:
    mu1, mu2 = method.penalties
    return f"mu1 = mu2 = {mu1:g}" if mu1 == mu2 else f"mu1 = {mu1:g}, mu2 = {mu2:g}"
