"""Operators below the roof."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgeinfer.backends.testing.cases import graph
from edgeinfer.cli import lmbench, roofline
from edgeinfer.errors import NotAvailableError

ROOF = roofline.Roof("x86-64-v3", 1, 10.0, 100.0)


def _event(name: str, op: str, us: float, ins: list[list[int]], out: list[int]) -> dict[str, Any]:
    sizes = {"activation_size": 400, "parameter_size": 400, "output_size": 200}
    told = {
        "op_name": op,
        "input_type_shape": [{"float": s} for s in ins],
        "output_type_shape": [{"float": out}],
        **sizes,
    }
    return {"cat": "Node", "name": f"{name}_kernel_time", "dur": us, "args": told}


def test_operators_are_placed_by_what_bounds_them() -> None:
    events = [
        {"cat": "Session", "name": "model_run", "dur": 9},
        *[_event("c", "Conv", 30.0, [[1, 8, 9, 9], [16, 8, 3, 3]], [1, 16, 9, 9])] * 4,
        *[_event("r", "Relu", 10.0, [[1, 50]], [1, 50])] * 4,
        _event("m", "MatMul", 10.0, [[4, 32], [32, 8]], [4, 8]),
    ]
    conv, relu, product = roofline.placed(events, ROOF)
    assert (conv.node, conv.bound, conv.share) == ("c", "arithmetic", 0.6)
    assert conv.gflop_s == pytest.approx(2 * 16 * 81 * 72 / 30e-6 / 1e9)
    assert conv.of_roof == pytest.approx(conv.gflop_s / 100)
    assert (relu.bound, relu.intensity) == ("memory", 0.05)
    assert relu.of_roof == pytest.approx(50 / 10e-6 / 1e9 / (0.05 * 10))
    assert product.gflop_s == pytest.approx(2 * 4 * 8 * 32 / 10e-6 / 1e9)


@pytest.mark.parametrize(
    ("op", "ins", "out", "operations"),
    [
        ("MatMulNBits", [[3, 64], [8, 2, 16], [16]], [3, 8], 2 * 3 * 8 * 64),
        ("QLinearMatMul", [[3, 64], [], [], [64, 8]], [3, 8], 2 * 3 * 8 * 64),
        ("Gemm", [[64, 3], [64, 8]], [3, 8], 2 * 3 * 8 * 64),
        ("Gemm", [[3, 64], [8, 64]], [3, 8], 2 * 3 * 8 * 64),
        (
            "QLinearConv",
            [[1, 4, 9, 9], [], [], [6, 4, 3, 3]],
            [1, 6, 9, 9],
            2 * 6 * 81 * 36,
        ),
        ("ConvTranspose", [[1, 4, 5, 5], [4, 6, 2, 2]], [1, 6, 10, 10], 2 * 4 * 25 * 24),
        ("LSTM", [[5, 2, 8], [1, 16, 8], [1, 16, 4]], [5, 1, 2, 4], 2 * 10 * (128 + 64)),
        ("GRU", [[5, 2, 8], [1, 12, 8], [1, 12, 4]], [5, 1, 2, 4], 2 * 10 * (96 + 48)),
        ("MultiHeadAttention", [[1, 6, 32], [1, 9, 32], [1, 9, 32]], [1, 6, 32], 4 * 6 * 9 * 32),
        ("Softmax", [[6, 9]], [6, 9], 54),
    ],
)
def test_operations_of_every_kind_of_product(
    op: str, ins: list[list[int]], out: list[int], operations: int
) -> None:
    (found,) = roofline.placed([_event("n", op, 1.0, ins, out)], ROOF)
    assert found.gflop_s == pytest.approx(operations / 1e-6 / 1e9)


def test_weights_that_the_engine_packed_are_counted(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    weights = np.ones((256, 512), np.float32)
    net = graph("(float[1,256] x) => (float[1,512] y) { y = MatMul(x, w) }", w=weights)
    path = tmp_path / "net.onnx"
    path.write_bytes(net.SerializeToString())
    (found,) = roofline.place(path, {"x": np.ones((1, 256), np.float32)}, ROOF, tmp_path)
    assert found.intensity == pytest.approx(2 * 256 * 512 / (weights.nbytes + 4 * (256 + 512)))
    assert found.bound == "memory"


def test_lines_say_where_the_limits_meet() -> None:
    (line,) = roofline.lines(ROOF, [])
    assert line == (
        "roof: 10.0 GB/s read from memory, 100 GFLOP/s (x86-64-v3, threads: 1); they meet at "
        "10.0 operations a byte"
    )


def test_without_tvm_the_install_line_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tvm", None)
    with pytest.raises(NotAvailableError, match=r"pip install 'edgeinfer\[tvm\]'"):
        roofline.measure(1)


def test_limits_of_this_machine_are_plausible() -> None:
    pytest.importorskip("tvm")
    roof = roofline.measure(1)
    assert 0.1 < roof.gb_s < 1000
    assert 1 < roof.gflop_s < 5000
    assert roof.at(1e9) == roof.gflop_s


def test_a_device_has_no_roof(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where nothing converts, a language model is timed all the same."""
    monkeypatch.setitem(sys.modules, "edgeinfer.cli.roofline", None)
    gb_s, why = lmbench._reading("cpu", 1)
    assert gb_s is None
    assert why.startswith("share of reading: unknown: edgeinfer-runtime runs bundles and converts")
