"""Models of one node, and a check of one against ONNX's reference where an engine lacks it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import helper
from onnx.reference import ReferenceEvaluator

from tests.convert.lower.tflite.run import check

Array = npt.NDArray[Any]


def f32(*values: Any) -> Array:
    return np.array(values, np.float32)


def single(
    op: str,
    inputs: Sequence[Array | None],
    *,
    constants: Sequence[int] = (),
    dynamic: bool = False,
    outputs: int = 1,
    opset: int = 24,
    types: Sequence[Any] = (),
    shape: Sequence[int | str] | None = None,
    **attributes: Any,
) -> onnx.ModelProto:
    """One node whose inputs are ``x0``, ``x1``, ... and whose results are ``y0``, ...

    Args:
        op: ONNX operator.
        inputs: examples; None leaves one out.
        constants: positions of initializers.
        dynamic: leave every size of the inputs open.
        outputs: how many results.
        opset: of the default domain.
        types: element types of the results; default that of the first input.
        shape: of the results, for operators whose shapes ONNX does not infer.
        **attributes: of the node.
    """
    names = [f"x{i}" if x is not None else "" for i, x in enumerate(inputs)]
    results = [f"y{i}" for i in range(outputs)]
    node = helper.make_node(op, names, results, **attributes)
    values, initializers = [], []
    for index, (name, x) in enumerate(zip(names, inputs, strict=True)):
        if x is None:
            continue
        if index in constants:
            initializers.append(onnx.numpy_helper.from_array(x, name))
            continue
        shape = [f"{name}_{i}" for i in range(x.ndim)] if dynamic else x.shape
        kind = helper.np_dtype_to_tensor_dtype(x.dtype)
        values.append(helper.make_tensor_value_info(name, kind, shape))
    first = next(x for x in inputs if x is not None)
    kinds = [*types, *[first.dtype] * (outputs - len(types))]
    made = [
        helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(np.dtype(t)), shape)
        for n, t in zip(results, kinds, strict=True)
    ]
    graph = helper.make_graph([node], "g", values, made, initializers)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)


def feeds_of(model: onnx.ModelProto, inputs: Sequence[Array | None]) -> dict[str, Array]:
    return {v.name: inputs[int(v.name[1:])] for v in model.graph.input}  # type: ignore[misc]


def reference(model: onnx.ModelProto, feeds: Mapping[str, Array]) -> dict[str, Array]:
    with np.errstate(all="ignore"):
        found = ReferenceEvaluator(model).run(None, dict(feeds))
    # The reference forgets an element type here and there; the model's is right.
    return {
        o.name: np.asarray(y).astype(helper.tensor_dtype_to_np_dtype(o.type.tensor_type.elem_type))
        for o, y in zip(model.graph.output, found, strict=True)
    }


def agree(
    op: str,
    *inputs: Array | None,
    like: str = "engine",
    rtol: float = 1e-5,
    both: bool = True,
    want: Mapping[str, Array] | None = None,
    **options: Any,
) -> bytes:
    """Check one node with fixed sizes and, unless ``both`` is off, with open ones.

    Args:
        op: ONNX operator.
        *inputs: values; None leaves one out.
        like: ``engine`` for ONNX Runtime, ``reference`` for ONNX's own code.
        rtol: of the largest expected magnitude.
        both: also with dynamic sizes.
        want: values to expect instead.
        **options: of ``single``.

    Returns:
        The file with fixed sizes.
    """
    data = b""
    for dynamic in (True, False) if both else (False,):
        model = single(op, inputs, dynamic=dynamic, **options)
        feeds = feeds_of(model, inputs)
        right = want
        if right is None and like == "reference":
            right = reference(model, feeds)
        data = check(model, feeds, want=right, rtol=rtol)
    return data
