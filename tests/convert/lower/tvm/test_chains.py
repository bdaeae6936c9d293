"""Long chains of element-wise steps: what TVM is given of them grows by the step, not by powers."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest

from tests.conformance.everywhere import lacking, run

HEAD = '<ir_version: 10, opset_import: ["" : 21]> g'
PAIR = "{q} = QuantizeLinear({x}, s, z) {y} = DequantizeLinear({q}, s, z)"


def _chain(step: str, count: int) -> str:
    names = ["x", *(f"t{i}" for i in range(count - 1)), "y"]
    return " ".join(step.format(x=names[i], y=names[i + 1], q=f"q{i}") for i in range(count))


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Characters of each function that TVM compiles."""
    pytest.importorskip("tvm")
    from tvm import tirx

    from edgeinfer.convert.lower.tvm import build

    sizes: list[int] = []
    prepare = build.prepared

    def prepared(*given: Any) -> Any:
        made = prepare(*given)
        functions = [f for f in made.functions.values() if isinstance(f, tirx.PrimFunc)]
        sizes.extend(len(f.script()) for f in functions)
        return made

    monkeypatch.setattr(build, "prepared", prepared)
    return sizes


@pytest.mark.parametrize("step", [PAIR, "{y} = HardSwish({x})"])
def test_what_a_chain_is_written_as(step: str, written: list[int]) -> None:
    if reason := lacking("tvm"):
        pytest.skip(reason)
    model = onnx.parser.parse_model(
        f"{HEAD} (float[N,8] x) => (float[N,8] y) <float s = {{0.05}}, uint8 z = {{130}}>"
        f"{{ {_chain(step, 5)} }}"
    )
    x = np.linspace(-5, 5, 24, dtype=np.float32).reshape(3, 8)
    found, right = (run(p, model, {"x": x}).outputs["y"] for p in ("tvm", "onnxruntime"))
    np.testing.assert_allclose(found, right, rtol=1e-5, atol=1e-6)
    assert max(written) < 10_000


def test_choices_are_not_written_out_without_end() -> None:
    """Seven Relus in a row go into one step; the eighth reads what they give."""
    if reason := lacking("tvm"):
        pytest.skip(reason)
    from tvm import tirx

    from edgeinfer.kernels.rules import cpu

    seen: list[int] = []
    arrange = cpu._arrange

    def watched(sch: Any, block: Any, machine: Any) -> None:
        seen.append(cpu._written_out(sch.get(block).body, tirx.Select))
        arrange(sch, block, machine)

    model = onnx.parser.parse_model(
        f"{HEAD} (float[N,8] x) => (float[N,8] y) {{ {_chain('{y} = Relu({x})', 20)} }}"
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cpu, "_arrange", watched)
        run("tvm", model, {"x": np.ones((2, 8), np.float32)})
    assert len(seen) > 1
    assert max(seen) <= cpu._MOST_CHOICES
