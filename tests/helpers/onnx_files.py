"""ONNX models in onnxruntime, and tables in the form in which they take them."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pandas as pd


def properties(model: onnx.ModelProto) -> dict[str, str]:
    return {prop.key: prop.value for prop in model.metadata_props}


def columns(model: onnx.ModelProto) -> list[dict[str, Any]]:
    return json.loads(properties(model)["columns"])


def constants(model: onnx.ModelProto) -> list[np.ndarray]:
    return [onnx.numpy_helper.to_array(one) for one in model.graph.initializer]


def feeds(model: onnx.ModelProto, rows: pd.DataFrame | np.ndarray) -> dict[str, np.ndarray]:
    """Return the inputs of a model, as its own description of them wants it."""
    if isinstance(rows, np.ndarray):
        return {"X": np.asarray(rows, dtype=np.float64)}
    found = {}
    for column in columns(model):
        values = rows[column["name"]]
        if column["type"] == "category":
            own = np.array(["" if pd.isna(value) else str(value) for value in values], dtype=object)
        elif column["type"] == "date":
            own = ((values - pd.Timestamp("1970-01-01")) / pd.Timedelta(days=1)).to_numpy(np.float64)
        else:
            own = values.to_numpy(np.float64)
        found[column["input"]] = own[:, None]
    return found


def session(model: onnx.ModelProto) -> onnxruntime.InferenceSession:
    """Check a model by all rules of ONNX, and load it."""
    onnx.checker.check_model(model, full_check=True)
    return onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])


def run(model: onnx.ModelProto, rows: pd.DataFrame | np.ndarray) -> dict[str, np.ndarray]:
    """Return the outputs of a model by their names."""
    names = [output.name for output in model.graph.output]
    return dict(zip(names, session(model).run(names, feeds(model, rows)), strict=True))
