"""Operators below the roof."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from edgeinfer.cli import roofline
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
