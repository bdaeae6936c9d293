"""What this processor's engines cannot do, whatever is asked of them."""

from __future__ import annotations

import functools

import numpy as np
import pytest


@functools.cache
def openvino_sums_saturate() -> bool:
    """Whether OpenVINO's int8 products saturate here, as they do on x86-64 without VNNI or AMX.

    The largest sums of unsigned activations and signed weights leave 16 bits; its kernels for AVX2
    keep them there. The gate and the first load see it and refuse; tests of equal numbers cannot
    hold.
    """
    import openvino
    from onnx import TensorProto, helper, numpy_helper

    width, kind = 256, TensorProto.FLOAT
    one = numpy_helper.from_array(np.float32(1), "one")
    zeros = [
        numpy_helper.from_array(np.zeros((), t), n) for t, n in ((np.uint8, "u"), (np.int8, "s"))
    ]
    weights = numpy_helper.from_array(np.full((width, 16), 127, np.int8), "w")
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "one", "u"], ["q"]),
        helper.make_node("DequantizeLinear", ["q", "one", "u"], ["d"]),
        helper.make_node("DequantizeLinear", ["w", "one", "s"], ["v"]),
        helper.make_node("MatMul", ["d", "v"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "sums",
        [helper.make_tensor_value_info("x", kind, [16, width])],
        [helper.make_tensor_value_info("y", kind, [16, 16])],
        [one, *zeros, weights],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    compiled = openvino.Core().compile_model(
        openvino.Core().read_model(model.SerializeToString()),
        "CPU",
        {"INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": 1},
    )
    found = compiled([np.full((16, width), 255, np.float32)])[0]
    return not np.array_equal(found, np.full((16, 16), 255.0 * 127 * width, np.float32))


@functools.cache
def openvino_cuts_bfloat16() -> bool:
    """Whether OpenVINO cuts float32 off instead of rounding it where an output is bfloat16."""
    import openvino
    from openvino import opset13

    x = opset13.parameter([4], np.float32)
    model = openvino.Model([opset13.convert(x, "bf16")], [x], "cut")
    options = {"INFERENCE_PRECISION_HINT": "f32"}
    compiled = openvino.Core().compile_model(model, "CPU", options)
    # The nearest is 0.12598 (0x3E01); cut off it is 0.125 (0x3E00).
    found = compiled([np.full(4, 0.1259, np.float32)])[0]
    return bool(np.asarray(found).view(np.uint16)[0] != 0x3E01)


def skip_where_openvino_saturates() -> None:
    """Skip the calling test, by name, where the processor lacks exact products."""
    pytest.importorskip("openvino")
    if openvino_sums_saturate():
        pytest.skip("int8 sums of OpenVINO saturate on this processor (x86-64 without VNNI)")


def skip_where_onnxruntime_saturates() -> None:
    """Skip the calling test, by name, where plain kernels of ONNX Runtime add up in 16 bits.

    The product asks it for others; without its optimisation it has none.
    """
    ort = pytest.importorskip("onnxruntime")
    from edgeinfer.backends.onnxruntime.sums import precise_entries

    if precise_entries(ort):
        pytest.skip("int8 sums of plain ONNX Runtime saturate on this processor (no VNNI)")
