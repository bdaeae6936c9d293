"""ONNX Runtime's own operators on every target, against ONNX Runtime: one model of all of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from edgeinfer.types import Array
from tests.conformance.everywhere import lacking, run
from tests.convert.lower.running import run as run_onnx

FORMS: list[tuple[str, str, dict[str, Any]]] = [
    ("GridSample", "x g", {"mode": "bilinear", "align_corners": 1, "padding_mode": "border"}),
    ("GridSample", "x g", {"mode": "nearest", "padding_mode": "zeros"}),
    ("ConvTransposeWithDynamicPads", "x kernel pads", {"strides": [2, 2]}),
    ("Unique", "flat", {}),
    ("MatMulBnb4", "x floats largest", {"K": 6, "N": 8, "block_size": 16, "quant_type": 0}),
    ("MatMulBnb4", "x floats largest", {"K": 6, "N": 8, "block_size": 16, "quant_type": 1}),
    ("UnfoldTensor", "x", {"size": 3}),
    ("UnfoldTensor", "x", {"dim": 2, "size": 3, "step": 2}),
    ("GatherBlockQuantized", "fours i scales", {"bits": 4, "block_size": 16}),
    ("GatherBlockQuantized", "fours i scales zeros", {"bits": 4, "block_size": 16}),
    ("GatherBlockQuantized", "eights i scales", {"bits": 8, "block_size": 16}),
    ("MatMulNBits", "x packed factors", {"K": 6, "N": 7, "bits": 4, "block_size": 16}),
    ("MatMulNBits", "x packed factors offsets", {"K": 6, "N": 7, "bits": 4, "block_size": 16}),
]


def _model() -> tuple[onnx.ModelProto, dict[str, Array]]:
    rng, helper = np.random.default_rng(0), onnx.helper

    def scales(*shape: int) -> Array:
        return rng.uniform(0.01, 0.1, shape).astype(np.float32)

    def halves(*shape: int) -> Array:
        return rng.integers(0, 256, shape, dtype=np.uint8)

    feeds: dict[str, Array] = {
        "x": rng.standard_normal((2, 3, 5, 6)).astype(np.float32),
        "g": rng.uniform(-1.2, 1.2, (2, 4, 3, 2)).astype(np.float32),
        "flat": np.array([3, 1, 3, 2, 1, 7, 2], np.float32),
        "i": np.array([[0, 3, 2], [5, 5, 1]], np.int64),
    }
    known = {
        **{"fours": halves(6, 32), "zeros": halves(6, 2), "eights": halves(6, 64)},
        **{"packed": halves(7, 1, 8), "offsets": halves(7), "factors": scales(7)},
        **{"kernel": scales(3, 4, 3, 3), "pads": np.array([1, 0, 1, 1])},
        **{"floats": halves(24), "largest": scales(3)},
        "scales": scales(6, 4),
    }
    nodes = [
        helper.make_node(
            op,
            given.split(),
            [f"y{i}", *(f"unread{i}_{n}" for n in range(2 if op == "Unique" else 0))],
            f"y{i}",
            domain="com.microsoft",
            **about,
        )
        for i, (op, given, about) in enumerate(FORMS)
    ]
    graph = helper.make_graph(
        nodes,
        "g",
        [
            helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape)
            for n, a in feeds.items()
        ],
        [
            helper.make_tensor_value_info(node.output[0], onnx.TensorProto.FLOAT, None)
            for node in nodes
        ],
        [onnx.numpy_helper.from_array(a, n) for n, a in known.items()],
    )
    sets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=sets, ir_version=10), feeds


@pytest.mark.parametrize("place", ["litert", "litert-without-xnnpack", "coreml", "coreai", "tvm"])
def test_every_target_has_them(place: str) -> None:
    if reason := lacking(place):
        pytest.skip(reason)
    model, feeds = _model()
    right = run_onnx(ir.from_proto(model), feeds)
    found = run(place, model, feeds).outputs
    assert len(found) == len(FORMS)
    for one, want, form in zip(found.values(), right, FORMS, strict=True):
        np.testing.assert_allclose(one, want, rtol=1e-5, atol=1e-5, err_msg=str(form))
