"""A graph of ONNX operators, written as formulas of tensors.

Arithmetic on tensors appends nodes: ``(X - mean) / scale`` is two nodes and two constants. All numbers are doubles.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from elmesh.errors import ElmeshError
from elmesh.version import __version__

try:
    import onnx
    from onnx import ModelProto, numpy_helper
except ImportError as error:
    raise ElmeshError(
        'ONNX files need the package onnx, which is not installed; run pip install "elmesh[onnx]".'
    ) from error

__all__ = ["Graph", "ModelProto", "Tensor"]

# The first operators that compare text, and the first format with them: onnxruntime reads these since version 1.16.
_OPSET, _IR_VERSION = 19, 9
_ROWS = "N"


@dataclass(frozen=True)
class Tensor:
    """A value of a graph; arithmetic with arrays and other tensors of the graph appends nodes."""

    graph: Graph
    name: str

    def __add__(self, other: Tensor | NDArray[Any] | float) -> Tensor:
        return self.graph.node("Add", self, other)

    def __sub__(self, other: Tensor | NDArray[Any] | float) -> Tensor:
        return self.graph.node("Sub", self, other)

    def __mul__(self, other: Tensor | NDArray[Any] | float) -> Tensor:
        return self.graph.node("Mul", self, other)

    def __truediv__(self, other: Tensor | NDArray[Any] | float) -> Tensor:
        return self.graph.node("Div", self, other)

    def __matmul__(self, other: Tensor | NDArray[Any]) -> Tensor:
        return self.graph.node("MatMul", self, other)


class Graph:
    """Inputs, nodes and outputs; ``reserved`` are names that its outputs will have.

    Examples
    --------
    >>> graph = Graph(["y"])
    >>> x = graph.input("x", np.float64, 2, "two numbers")
    >>> graph.output("y", (x - np.ones(2)) @ np.ones((2, 1)), np.float64, [1], "their sum, less 2")
    >>> [node.op_type for node in graph.model("a sum", {}).graph.node]
    ['Sub', 'MatMul', 'Identity']
    """

    def __init__(self, reserved: Collection[str]) -> None:
        self._names = set(reserved)
        self._inputs: list[onnx.ValueInfoProto] = []
        self._outputs: list[onnx.ValueInfoProto] = []
        self._nodes: list[onnx.NodeProto] = []
        self._constants: list[onnx.TensorProto] = []

    def input(self, name: str, dtype: type[np.generic], width: int, description: str) -> Tensor:
        """Add an input of shape (rows, width); it has the name unless another value has."""
        while name in self._names:
            name += " (input)"
        self._names.add(name)
        self._inputs.append(_value_info(name, dtype, [_ROWS, width], description))
        return Tensor(self, name)

    def output(self, name: str, value: Tensor, dtype: type[np.generic], shape: Sequence[int], description: str) -> None:
        """Add an output of shape (rows, ...) under one of the reserved names."""
        self._nodes.append(onnx.helper.make_node("Identity", [value.name], [name], name=name))
        self._outputs.append(_value_info(name, dtype, [_ROWS, *shape], description))

    def node(self, operator: str, *operands: Tensor | NDArray[Any] | float, **attributes: Any) -> Tensor:
        """Append a node; operands that are arrays or numbers become constants."""
        inputs = [x.name if isinstance(x, Tensor) else self._constant(np.asarray(x)) for x in operands]
        name = self._fresh(operator)
        self._nodes.append(onnx.helper.make_node(operator, inputs, [name], name=name, **attributes))
        return Tensor(self, name)

    def columns(self, value: Tensor, chosen: NDArray[np.int64]) -> Tensor:
        """Return some columns of a value, in the given order."""
        return self.node("Gather", value, chosen, axis=1)

    def as_number(self, truth: Tensor) -> Tensor:
        """Return 1 where a value is true and 0 where it is false."""
        return self.node("Cast", truth, to=onnx.TensorProto.DOUBLE)

    def model(self, description: str, properties: Mapping[str, str]) -> ModelProto:
        """Return the graph as a model with a description and further properties."""
        graph = onnx.helper.make_graph(self._nodes, "elmesh", self._inputs, self._outputs, self._constants)
        model = onnx.helper.make_model(
            graph,
            opset_imports=[onnx.helper.make_opsetid("", _OPSET)],
            ir_version=_IR_VERSION,
            producer_name="elmesh",
            producer_version=__version__,
            doc_string=description,
        )
        onnx.helper.set_model_props(model, dict(properties))
        return model

    def _constant(self, array: NDArray[Any]) -> str:
        name = self._fresh("constant")
        text = array.dtype.kind == "U"
        self._constants.append(numpy_helper.from_array(array.astype(object) if text else array, name))
        return name

    def _fresh(self, stem: str) -> str:
        """Return a name that no other value has: names of inputs are a user's."""
        number = len(self._nodes) + len(self._constants)
        while f"{stem}_{number}" in self._names:
            number += 1
        self._names.add(f"{stem}_{number}")
        return f"{stem}_{number}"


def _value_info(
    name: str, dtype: type[np.generic], shape: Sequence[int | str], description: str
) -> onnx.ValueInfoProto:
    kind = onnx.TensorProto.STRING if dtype is np.str_ else onnx.helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    return onnx.helper.make_tensor_value_info(name, kind, list(shape), description)
