"""Recurrent operators: weights that are stored as integers, states near zero."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import onnxruntime
import pytest
from onnx_ir.passes.common import RemoveUnusedNodesPass

from edgeinfer.convert.lower.onnxruntime.quirks import DIGITS
from edgeinfer.convert.lower.onnxruntime.recurrent import multiply_stored
from edgeinfer.convert.lower.rules import apply
from edgeinfer.convert.quantize.recipe import recipe
from edgeinfer.convert.quantize.rewrite import weight_only
from edgeinfer.convert.verify.evaluate import Evaluator
from edgeinfer.errors import Remarks
from tests.convert.lower.running import lower, model, ops, run
from tests.convert.quantize.conftest import graph
from tests.processor import skip_where_onnxruntime_saturates

HIDDEN = 24
RESULTS = ["y", "yh", "yc"]


def lstm(directions: int) -> ir.Model:
    rng = np.random.default_rng(0)
    kind = "bidirectional" if directions == 2 else "forward"
    shapes = {"w": (directions, 96, 48), "r": (directions, 96, HIDDEN), "b": (directions, 192)}
    return graph(
        f"""<ir_version: 10, opset_import: ["" : 22]>
        net (float[5,2,48] x, float[{directions},2,24] h, float[{directions},2,24] c)
          => (float[5,{directions},2,24] y, float[{directions},2,24] yh,
              float[{directions},2,24] yc)
        <float[{directions},96,48] w, float[{directions},96,24] r, float[{directions},192] b>
        {{ y, yh, yc = LSTM<hidden_size=24, direction="{kind}">(x, w, r, b, , h, c) }}""",
        **{n: (0.2 * rng.normal(size=s)).astype(np.float32) for n, s in shapes.items()},
    )


def answers(model: ir.Model, path: Path, directions: int) -> dict[str, Any]:
    ir.save(model, path)
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    rng = np.random.default_rng(1)
    feeds = {
        "x": rng.normal(size=(5, 2, 48)).astype(np.float32),
        "h": rng.normal(size=(directions, 2, HIDDEN)).astype(np.float32),
        "c": rng.normal(size=(directions, 2, HIDDEN)).astype(np.float32),
    }
    return dict(zip(RESULTS, session.run(RESULTS, feeds), strict=True))


def decibel(right: Any, other: Any) -> float:
    return float(10 * np.log10(np.square(right).sum() / np.square(right - other).sum()))


@pytest.mark.parametrize("directions", [1, 2])
def test_the_kernel_multiplies_with_the_stored_bytes(tmp_path: Path, directions: int) -> None:
    skip_where_onnxruntime_saturates()
    model = lstm(directions)
    right = answers(model, tmp_path / "float.onnx", directions)
    wanted = recipe("weight_only_wi8_afp32")
    stored = weight_only.write(model, wanted, recurrent=("LSTM",)).model
    assert multiply_stored(stored) == 1
    RemoveUnusedNodesPass()(stored)
    found = answers(stored, tmp_path / "stored.onnx", directions)
    # 31 dB is what gates or directions of another order would never reach.
    assert min(decibel(right[n], found[n]) for n in right) > 31
    sizes = [(tmp_path / f"{n}.onnx").stat().st_size for n in ("float", "stored")]
    assert sizes[1] < 0.45 * sizes[0]


def test_floats_are_left_alone() -> None:
    model = lstm(1)
    assert multiply_stored(model) == 0
    assert [n.op_type for n in model.graph] == ["LSTM"]


def test_one_scale_for_columns_is_not_what_the_kernel_takes() -> None:
    model = lstm(1)
    stored = weight_only.write(model, recipe("weight_only_wi8_afp32"), recurrent=("LSTM",)).model
    for node in stored.graph:
        if node.op_type == "DequantizeLinear":
            node.attributes["axis"] = ir.AttrInt64("axis", 2)
    assert multiply_stored(stored) == 0


@pytest.mark.parametrize("steps", ["5", "t"])
@pytest.mark.parametrize(
    "body",
    [
        "y, h = RNN<hidden_size=4>(x, w, r)",
        ', h = RNN<hidden_size=4, direction="reverse">(x, w, r)',
    ],
)
def test_a_recurrent_tanh_keeps_its_digits_near_zero(steps: str, body: str) -> None:
    """ONNX Runtime's kernel gives 0 for 1e-8 and 1.19e-7 for 1e-7."""
    shown = f"float[{steps},1,2,4] y, " if body[0] == "y" else ""
    source = model(f"""g (float[{steps},2,3] x, float[1,4,3] w, float[1,4,4] r)
        => ({shown}float[1,2,4] h) {{ {body} }}""")
    numbers = np.random.default_rng(0)
    shapes = {"x": (5, 2, 3), "w": (1, 4, 3), "r": (1, 4, 4)}
    feeds = {n: numbers.standard_normal(s).astype(np.float32) / 2 for n, s in shapes.items()}
    repaired = source.clone()
    assert not apply(repaired, DIGITS, Remarks())
    for size in (1e-7, 1e-3, 1.0):
        given = {**feeds, "x": feeds["x"] * np.float32(size)}
        want = Evaluator(source, wide=True).run(given)
        for found, right in zip(run(repaired, given), want.values(), strict=True):
            np.testing.assert_allclose(found, right, rtol=2e-6, atol=1e-6 * np.abs(right).max())


def test_no_steps_leave_the_state_as_it_came(tmp_path: Path) -> None:
    """ONNX Runtime's kernel gives zeros, and its Scan fails."""
    source = model("""g (float[t,n,3] x, float[1,4,3] w, float[1,4,4] r, float[1,n,4] s)
        => (float[t,1,n,4] y, float[1,n,4] h) { y, h = RNN<hidden_size=4>(x, w, r, , , s) }""")
    lowered = ir.load(lower(source.clone(), tmp_path).files[0])
    assert "RNN" not in ops(lowered)
    numbers = np.random.default_rng(0)
    shapes = {"x": (0, 2, 3), "w": (1, 4, 3), "r": (1, 4, 4), "s": (1, 2, 4)}
    feeds = {n: numbers.normal(size=s).astype(np.float32) for n, s in shapes.items()}
    rows, state = run(lowered, feeds)
    assert rows.shape == (0, 1, 2, 4)
    np.testing.assert_array_equal(state, feeds["s"])
    feeds["x"] = numbers.normal(size=(3, 2, 3)).astype(np.float32)
    for found, right in zip(run(lowered, feeds), run(source, feeds), strict=True):
        np.testing.assert_allclose(found, right, rtol=1e-5, atol=1e-6)
