"""The demo's work: ten sites of digits, the four methods, and what came of them."""

from __future__ import annotations

import platform
import time
import warnings
from collections.abc import Iterator, Sequence
from importlib.metadata import version
from typing import Any, NamedTuple

from sklearn.exceptions import ConvergenceWarning

import elmesh
from elmesh import DMTLELM, MTLELM, LocalELM, MultiTaskELMClassifier
from elmesh.cli.console import Output
from elmesh.datasets import TaskSplit, load_digits_tasks
from elmesh.report import Comparison, Method
from elmesh.run import Stop, watch
from elmesh.solvers import Solver

__all__ = ["compare", "draw"]

SITES = 10
CLASSES = 3
# Few rows to learn from, for that is when it pays to learn together, and as many to test with as the digits then leave.
TRAIN_ROWS = 60
TEST_ROWS = 111
ALONE, POOLED, TOGETHER, COARSE = "Local ELM", "MTL-ELM", "DMTL-ELM", "DMTL-ELM, 2 bits"

STORY = (
    f"{SITES} sites each hold {TRAIN_ROWS} pictures of handwritten digits, of {CLASSES} kinds out of ten, and learn to "
    f"tell their kinds apart. No picture is at two sites, and {TEST_ROWS} more a site are kept for the test. What a "
    "site gets is drawn at random several times over; errors are means over these draws. "
    "Nothing is set by hand but who talks to whom. The sites run side by side on this machine; the bytes are those of "
    "the messages they exchange."
)


class _Entry(NamedTuple):
    name: str
    solver: Solver
    meaning: str
    colour: str = "muted"
    dash: str = "-"


def draw(seed: int) -> TaskSplit:
    """Draw at random which digits each site holds."""
    return load_digits_tasks(n_tasks=SITES, classes=CLASSES, n_train=TRAIN_ROWS, n_test=TEST_ROWS, pca=None, seed=seed)


def _entries(graph: str) -> Iterator[_Entry]:
    yield _Entry(
        ALONE,
        LocalELM(),
        "Every site learns alone from its own rows and hears nothing of the others. It is what the other three have "
        "to beat.",
    )
    yield _Entry(
        POOLED,
        MTLELM(),
        "All data are brought to one place, which fits one shared layer U and, for every site, weights A of its own. "
        "It is what the sites want to avoid, and the level that the next two should reach.",
        "green",
        ":",
    )
    yield _Entry(
        TOGETHER,
        DMTLELM(graph=graph),
        "Every site keeps its rows and its A. For each step the sites add up their gradients for U over the graph, and "
        "all take the same step, so that they hold the same U at any time. A neighbour may hear one site's own "
        "gradient, never its rows.",
        "blue",
    )
    yield _Entry(
        COARSE,
        DMTLELM(graph=graph, message_bits=2),
        "The same, but a message tells only by how much its content has changed, in 2 bits a number, and goes along a "
        "spanning tree of the graph. It trades more rounds for far fewer bytes, on the way to the same optimum.",
        "orange",
        "--",
    )


def compare(splits: Sequence[TaskSplit], output: Output, seed: int, hidden: int, graph: str) -> Comparison:
    """Fit every method on every draw; errors are means over the draws, everything else is the first one's."""
    methods: list[Method] = []
    means: dict[str, list[float]] = {}
    for entry in _entries(graph):
        errors = []
        for k, split in enumerate(splits):
            words = f"{entry.name:<{len(COARSE)}}" + (f" draw {k + 1} of {len(splits)}" if len(splits) > 1 else "")
            model: Any = MultiTaskELMClassifier(hidden, solver=entry.solver, random_state=seed + k)
            with output.progress(words) as show, watch(show), warnings.catch_warnings():
                warnings.simplefilter("ignore", ConvergenceWarning)  # it would not say which method; the note does
                began = time.perf_counter()
                model.fit(split.X_train, split.y_train, tasks=split.tasks_train)
                seconds = time.perf_counter() - began
            errors.append(_errors(model, split))
            if k == 0 and model.stop_ not in (Stop.CONVERGED, Stop.DIRECT):
                output.note(f"{entry.name}, after {model.n_iter_} rounds: {model.stop_.value}")
            if k == 0:
                first, took = model, seconds
        means[entry.name] = [sum(draw.values()) / len(draw) for draw in errors]
        averaged = {site: sum(draw[site] for draw in errors) / len(errors) for site in errors[0]}
        methods.append(_method(entry, first, averaged, took))
        if entry.name == TOGETHER:
            network, shape = first.graph_, first.U_.shape[-2:]
    return Comparison(
        story=STORY,
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
    """Say what each method found, once where it is the same.

    >>> _each({"a": "12", "b": "12"}), _each({"a": "12", "b": "13"})
    ('12', '12 (a), 13 (b)')
    """
    values = list(found.values())
    return values[0] if len(set(values)) == 1 else ", ".join(f"{value} ({name})" for name, value in found.items())


def _penalties(method: Method) -> str:
    mu1, mu2 = method.penalties
    return f"mu1 = mu2 = {mu1:g}" if mu1 == mu2 else f"mu1 = {mu1:g}, mu2 = {mu2:g}"


def _method(entry: _Entry, model: Any, errors: dict[str, float], seconds: float) -> Method:
    history = model.history_
    return Method(
        name=entry.name,
        meaning=entry.meaning,
        errors=errors,
        seconds=seconds,
        rounds=int(model.n_iter_),
        exchanges=int(model.n_exchanges_),
        bytes=int(history["bytes"].iloc[-1]) if len(history) else 0,
        ending=model.stop_.name,
        advice=model.stop_.value,
        history=history[["round", "objective", "consensus_gap", "exchanges", "bytes"]],
        pooled=entry.name == POOLED,
        certificate=model.certificate_,
        rank=None if model.U_ is None else int(model.U_.shape[-1]),
        penalties=model.penalties_ or (),
        colour=entry.colour,
        dash=entry.dash,
    )
