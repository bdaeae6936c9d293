"""Weights in blocks of which the last one is cut short, on OpenVINO."""

from __future__ import annotations

from pathlib import Path

import ml_dtypes
import numpy as np
import onnx_ir as ir
import pytest

from tests.convert.lower.running import lower, model, run_openvino

pytest.importorskip("openvino")


@pytest.mark.sample(1)
@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("kind", [np.uint8, ml_dtypes.uint4])
def test_the_last_block_may_be_short(kind: type, axis: int, tmp_path: Path) -> None:
    """24 elements in blocks of 16; OpenVINO refuses what its size does not divide."""
    rng = np.random.default_rng(0)
    w = np.moveaxis(rng.integers(0, 16, (24, 5)), 0, axis)
    zeros = np.moveaxis(rng.integers(0, 16, (2, 5)), 0, axis)
    scales = np.moveaxis(rng.uniform(0.1, 1, (2, 5)), 0, axis).astype(np.float32)
    shape = ",".join(map(str, w.shape))
    of = model(
        f"g (float[{shape}] x) => (float[{shape}] y) {{"
        f" f = DequantizeLinear<axis = {axis}, block_size = 16>(w, s, z) y = Add(x, f) }}"
    )
    known = {"w": w.astype(kind), "s": scales, "z": zeros.astype(kind)}
    node = next(n for n in of.graph if n.op_type == "DequantizeLinear")
    for index, (name, array) in enumerate(known.items()):
        value = ir.Value(name=f"{name}0", const_value=ir.tensor(array), shape=ir.Shape(array.shape))
        value.dtype = ir.DataType.from_numpy(array.dtype)
        of.graph.register_initializer(value)
        node.replace_input_with(index, value)
    lowered = lower(of, tmp_path, "openvino")
    spread = (np.take(np.repeat(v, 16, axis), range(24), axis) for v in (scales, zeros))
    factors, offsets = spread
    x = np.zeros(w.shape, np.float32)
    (found,) = run_openvino(lowered.files[0], x)
    np.testing.assert_allclose(found, (w - offsets) * factors, rtol=1e-6)
