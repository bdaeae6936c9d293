"""Families of operators are what they say, by ONNX's own evaluator."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx.reference import ReferenceEvaluator

from edgeinfer.convert.families import COMPARISONS, MOVES, RANDOM, REDUCTIONS, VIEWS
from edgeinfer.types import Array

X = np.random.default_rng(0).standard_normal((1, 4, 2, 3)).astype(np.float32)


def i(*values: Any) -> Array:
    return np.array(values, np.int64)


CASES: dict[str, tuple[list[Array], dict[str, Any]]] = {
    "Reshape": ([i(4, -1)], {}),
    "Flatten": ([], {}),
    "Squeeze": ([i(0)], {}),
    "Unsqueeze": ([i(0)], {}),
    "Identity": ([], {}),
    "Transpose": ([], {"perm": [3, 1, 0, 2]}),
    "DepthToSpace": ([], {"blocksize": 2}),
    "SpaceToDepth": ([], {"blocksize": 1}),
    "ReverseSequence": ([i(2)], {"batch_axis": 0, "time_axis": 1}),
    "Slice": ([i(1), i(3), i(1)], {}),
    "Split": ([i(1, 3)], {"axis": 1}),
    "Compress": ([np.array([True, False, True])], {"axis": 3}),
    "Gather": ([i(2, 0)], {"axis": 1}),
    "GatherElements": ([np.zeros((1, 4, 2, 3), np.int64)], {"axis": 3}),
    "GatherND": ([i([0, 3])], {}),
    "Expand": ([i(2, 4, 2, 3)], {}),
    "Tile": ([i(1, 2, 1, 1)], {}),
}


def results(op: str) -> list[Array]:
    more, attributes = CASES[op]
    names = ["x", *(f"i{n}" for n in range(len(more)))]
    feeds = dict(zip(names, (X, *more), strict=True))
    outputs = ["y", "z"] if op == "Split" else ["y"]
    graph = onnx.helper.make_graph(
        [onnx.helper.make_node(op, names, outputs, **attributes)],
        "g",
        [
            onnx.helper.make_tensor_value_info(
                name, onnx.helper.np_dtype_to_tensor_dtype(array.dtype), array.shape
            )
            for name, array in feeds.items()
        ],
        [onnx.helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, None) for n in outputs],
    )
    opset = onnx.helper.make_opsetid("", 21)
    model = onnx.helper.make_model(graph, opset_imports=[opset], ir_version=10)
    found: list[Array] = ReferenceEvaluator(model).run(None, feeds)
    return found


def test_each_has_a_case() -> None:
    assert set(CASES) == MOVES


@pytest.mark.parametrize("op", sorted(CASES))
def test_results_are_elements_of_the_first_operand(op: str) -> None:
    for found in results(op):
        assert found.size
        assert set(found.ravel()) <= set(X.ravel())


@pytest.mark.parametrize("op", VIEWS)
def test_a_view_has_all_elements_in_their_order(op: str) -> None:
    (found,) = results(op)
    np.testing.assert_array_equal(found.ravel(), X.ravel())


def test_families_are_whole() -> None:
    schemas = {schema.name: schema for schema in onnx.defs.get_all_schemas() if not schema.domain}
    assert {name for name in schemas if name.startswith("Reduce")} == REDUCTIONS
    assert set(schemas) >= RANDOM
    assert {name for name in schemas if name.startswith("Random")} <= RANDOM
    for name in COMPARISONS:
        (result,) = schemas[name].outputs
        assert result.type_str in ("T1", "tensor(bool)")
