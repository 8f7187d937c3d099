"""A site's model as an ONNX graph, which other programs and languages run without elmesh.

The graph does all that ``predict`` does, in doubles: columns of a table to numbers (:mod:`elmesh.tables.schema`),
numbers to features h (:mod:`elmesh.data.features`), and features to predictions, in the units of the table::

    prediction = (h - mean h) U A + mean t,        variance = s2 (noise + h'C h)

It contains one site's weights, and what all sites share: the hidden layer, and means, standard deviations and
categories of columns. U and A are there as their product. Where ``predict`` refuses a value, because it is infinite, or
NaN in an array, a graph cannot: the prediction of that row is NaN.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from elmesh.data.features import FeatureMap, Features, HiddenLayer, TrainedLayer
from elmesh.errors import ElmeshError
from elmesh.estimators.card import confidentiality
from elmesh.estimators.head import Head
from elmesh.estimators.model import MultiTaskModel
from elmesh.estimators.onnx_graph import Graph, ModelProto, Tensor
from elmesh.tables import TableSchema
from elmesh.tables.dates import CYCLE_STARTS, CYCLES
from elmesh.tables.schema import CategoricalColumn, DateColumn, NumericColumn
from elmesh.typing import Label
from elmesh.version import __version__

__all__ = ["export_site"]

Column = NumericColumn | CategoricalColumn | DateColumn
Description = dict[str, Any]

_OUTPUTS = ("prediction", "std", "label", "probabilities")
_OPERATORS = {"sigmoid": "Sigmoid", "tanh": "Tanh", "relu": "Relu", "sine": "Sin", "none": "Identity"}
# The types of labels by those of classes.
_LABELS: dict[str, type[np.generic]] = {
    "b": np.bool_, "i": np.int64, "u": np.uint64, "f": np.float64, "U": np.str_, "O": np.str_,
}  # fmt: skip
# The axis of columns, as operators take it.
_COLUMNS = np.array([1], dtype=np.int64)
# How inputs are to be written.
_NUMBERS = "as in the table of the fit, NaN if missing"
_NUMBERS_OF_ARRAY = "in the order and the units of the fit"
_DAYS = "days since 1970-01-01 00:00, NaN if missing"
_TEXT = 'text without spaces around it, whole numbers without decimals, "" if missing'


def export_site(
    model: MultiTaskModel, table: TableSchema | None, site: Label | None, *, return_std: bool = False
) -> ModelProto:
    """Return the model of one site, or with ``site=None`` what all sites have in common, as an ONNX model.

    Parameters
    ----------
    model : MultiTaskModel
        A model that has the site, or a common part.
    table : TableSchema or None
        How the columns of its table become numbers; None for a model of an array.
    site : str, int or None
        The site.
    return_std : bool, default=False
        Whether a regression has the standard deviation of its predictions as another output.
    """
    if return_std and (model.kind == "classification" or model.common is None):
        raise ElmeshError(
            "The standard deviation of predictions is for regressions with a common or a private part; leave it out, "
            "or fit a regression with mesh-elm's defaults."
        )
    model = model if site is None else model.for_task(site)
    head = _common_head(model) if site is None else next(iter(model.heads.values()))
    try:
        return _make_model(model, head, table, site, return_std)
    except UnicodeEncodeError as error:
        raise ElmeshError(
            f"{error.object!r} has characters that are not valid Unicode, which an ONNX file cannot hold; replace "
            "them, and fit the model again."
        ) from error


def _make_model(
    model: MultiTaskModel, head: Head, table: TableSchema | None, site: Label | None, return_std: bool
) -> ModelProto:
    graph = Graph(_OUTPUTS)
    X, columns = _array_input(graph, model) if table is None else _table_inputs(graph, table)
    H = _features(graph, model.layer, X)
    scores = (H - head.h_mean) @ (head.A if head.U is None else head.U @ head.A) + head.t_mean
    if head.classes is not None:
        if head.link is not None:
            scores = scores * head.link[0] + head.link[1]
        about = _classify(graph, scores, head.classes, head.temperature)
    else:
        variance = None
        if return_std and model.common is not None and isinstance(model.layer, FeatureMap):
            noise, C = model.common.posterior(model.layer.groups, head)
            spread = graph.node("ReduceSum", (H @ C) * H, _COLUMNS)
            variance = (spread + noise) * model.common.s2
        about = _regress(graph, scores, variance, len(head.t_mean), model.y_ndim, table)
    secret = confidentiality(model)
    whom = "a site that was not in the fit" if site is None else f"the site {site}"
    properties = {
        "elmesh_version": __version__,
        "kind": model.kind,
        **({} if site is None else {"site": str(site)}),
        "columns": json.dumps(columns, ensure_ascii=False),
        **{name: json.dumps(values, ensure_ascii=False) for name, values in about.items()},
        "confidentiality": secret,
    }
    return graph.model(f"A {model.kind} for {whom}, made by elmesh {__version__}. {secret}", properties)


def _common_head(model: MultiTaskModel) -> Head:
    """Return the head of a site that was not in the fit."""
    common = model.common
    if common is None:
        raise ElmeshError("The model has no common part: export the model of a site, or fit with mesh-elm's defaults.")
    return Head(None, common.W, np.zeros(len(common.W)), common.t_mean, model.classes, common.temperature, common.link)


# From columns to numbers.


def _array_input(graph: Graph, model: MultiTaskModel) -> tuple[Tensor, list[Description]]:
    names = None if model.feature_names is None else list(model.feature_names)
    X = graph.input("X", np.float64, model.layer.n_inputs, f"numbers; {_NUMBERS_OF_ARRAY}")
    return X, [{"input": X.name, "type": "numbers", "unit": _NUMBERS_OF_ARRAY, "columns": names}]


def _table_inputs(graph: Graph, table: TableSchema) -> tuple[Tensor, list[Description]]:
    """Add an input per column; return all of them, encoded as the schema does, and a description of each."""
    about: list[Description] = []

    def add(column: Column) -> Tensor:
        described, dtype = _describe(column)
        tensor = graph.input(column.name, dtype, 1, f"{described['type']}; {described['unit']}")
        about.append({"name": column.name, "input": tensor.name, **described})
        return tensor

    # A column of one value and without gaps is encoded as nothing.
    numeric = [column for column in table.numeric if column.feature_names]
    dates = [column for column in table.dates if column.feature_names]
    blocks = [_encode_numbers(graph, numeric, [add(column) for column in numeric])] if numeric else []
    for column in table.categorical:
        known = [*column.categories, *([""] if column.missing else [])]
        blocks.append(graph.as_number(graph.node("Equal", add(column), np.array([known], dtype=object))))
    if dates:
        blocks.append(_encode_numbers(graph, dates, [add(column) for column in dates]))
    return graph.node("Concat", *blocks, axis=1), about


def _encode_numbers(graph: Graph, columns: Sequence[NumericColumn | DateColumn], inputs: Sequence[Tensor]) -> Tensor:
    """Return columns of numbers, or of days: standardised, as waves, and as indicators, in the order of the schema."""
    k = len(columns)
    mean, std = np.array([c.mean for c in columns]), np.array([c.std for c in columns])
    fill = np.array([c.mean if isinstance(c, DateColumn) else c.fill_value for c in columns])
    cycles = [c.cycles if isinstance(c, DateColumn) else () for c in columns]
    values = graph.node("Concat", *inputs, axis=1)
    missing = graph.node("IsNaN", values)
    filled = graph.node("Where", missing, fill, values)
    blocks = [(filled - mean) / np.where(std > 0, std, 1.0), graph.as_number(missing)]
    # A cosine is a sine a quarter of a turn later; many versions of onnxruntime have no cosine of doubles.
    waves = [(j, cycle, phase) for j in range(k) for cycle in cycles[j] for phase in (0.0, np.pi / 2)]
    if waves:
        own, phases = np.array([j for j, _, _ in waves]), np.array([phase for _, _, phase in waves])
        start, length = (np.array([of[cycle] for _, cycle, _ in waves]) for of in (CYCLE_STARTS, CYCLES))
        angles = (graph.columns(filled, own) - start) * (2.0 * np.pi) / length + phases
        # A missing date is nowhere in a cycle.
        blocks.append(graph.node("Where", graph.columns(missing, own), 0.0, graph.node("Sin", angles)))
    order: list[int] = []
    for j, column in enumerate(columns):
        of_column = [2 * k + i for i, wave in enumerate(waves) if wave[0] == j]
        order += [*[j] * (column.std > 0), *of_column, *[k + j] * column.indicator]
    return graph.columns(graph.node("Concat", *blocks, axis=1), np.array(order))


def _describe(column: Column) -> tuple[Description, type[np.generic]]:
    if isinstance(column, CategoricalColumn):
        return {"type": "category", "unit": _TEXT, "categories": list(column.categories)}, np.str_
    if isinstance(column, DateColumn):
        return {"type": "date", "unit": _DAYS}, np.float64
    return {"type": "number", "unit": _NUMBERS}, np.float64


# From numbers to features.


def _features(graph: Graph, layer: Features, X: Tensor) -> Tensor:
    # Zero, and NaN in a row with a value that is not finite: limits and activations would hide it.
    zero = graph.node("ReduceSum", X * 0.0, _COLUMNS)
    if isinstance(layer, HiddenLayer):
        return _hidden(graph, layer, X) + zero
    if isinstance(layer, TrainedLayer):
        constant = [zero + 1.0] if layer.base.constant else []
        return graph.node("Concat", *constant, graph.node("Tanh", _features(graph, layer.base, X) @ layer.B), axis=1)
    Z = X - layer.mean
    if layer.limit is not None:
        Z = graph.node("Min", graph.node("Max", Z, -layer.limit), layer.limit)
    if layer.scale is not None:
        Z = Z / layer.scale
    parts = [zero + 1.0] if layer.constant else []
    if layer.direct_links:
        parts.append(Z / math.sqrt(layer.n_inputs))
    for hidden in layer.layers:
        centre = 0.5 if hidden.activation == "sigmoid" else 0.0
        parts.append((_hidden(graph, hidden, Z) - centre) / math.sqrt(hidden.width))
    return graph.node("Concat", *parts, axis=1) + zero


def _hidden(graph: Graph, layer: HiddenLayer, X: Tensor) -> Tensor:
    if layer.n_hidden is None:
        return X
    W, b = layer.weights
    operator = _OPERATORS[layer.activation]
    return graph.node(operator, X @ W + b)


# From scores to outputs; each function returns what is to be known about them.


def _classify(graph: Graph, scores: Tensor, classes: NDArray[Any], temperature: float | None) -> Description:
    dtype = _LABELS[classes.dtype.kind]
    winner = graph.node("ArgMax", scores, axis=1, keepdims=0)
    graph.output("label", graph.node("Gather", classes.astype(dtype), winner), dtype, [], "the most probable class")
    shares = graph.node("Softmax", scores / (temperature or 1.0), axis=1)
    names = ", ".join(map(str, classes.tolist()))
    graph.output("probabilities", shares, np.float64, [len(classes)], f"the probability of each class: {names}")
    return {"classes": classes.tolist()}


def _regress(
    graph: Graph, scores: Tensor, variance: Tensor | None, n_outputs: int, y_ndim: int, table: TableSchema | None
) -> Description:
    shape = [n_outputs] if y_ndim == 2 else []
    targets = () if table is None else table.target_columns
    names = ", ".join(target.name for target in targets) or "the target"
    mean = np.array([target.mean for target in targets]) if targets else np.zeros(n_outputs)
    unit = np.array([target.std for target in targets]) if targets else np.ones(n_outputs)
    found = {"prediction": (scores * unit + mean, f"{names}, in the units of the fit")}
    if variance is not None:
        found["std"] = (graph.node("Sqrt", variance) * unit, "the standard deviation of the prediction")
    for name, (value, description) in found.items():
        flat = value if y_ndim == 2 else graph.node("Squeeze", value, _COLUMNS)
        graph.output(name, flat, np.float64, shape, description)
    return {"targets": [target.name for target in targets]} if targets else {}
