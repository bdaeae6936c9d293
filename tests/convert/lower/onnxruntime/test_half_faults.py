"""Half-precision graphs that would end the process load, and the others are left alone."""

import itertools
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest

from edgeinfer.convert.lower.onnxruntime.half_faults import HALF_RULES
from edgeinfer.convert.lower.rules import apply
from edgeinfer.errors import Remarks
from tests.convert.lower.running import check, model, ops, run

LOAD = """
import os, sys
os.environ["ORT_DISABLE_TELEMETRY"] = "1"
import onnxruntime
onnxruntime.InferenceSession(sys.argv[1], providers=["CPUExecutionProvider"])
"""


def product(perm: tuple[int, ...], kind: str = "float16", computed: bool = False) -> ir.Model:
    """``y = MatMul (Transpose (x), w)`` with sizes of 4."""
    dims = ",".join("4" * len(perm))
    made = model(
        f"g ({kind}[{dims}] x, {kind}[4,4] w) => ({kind}[{dims}] y) {{"
        f" t = Transpose<perm=[{','.join(map(str, perm))}]>(x) y = MatMul(t, w) }}",
        opset=21,
    )
    if not computed:
        value = made.graph.inputs.pop()
        weights = np.arange(16, dtype=np.float32).reshape(4, 4) / 8
        dtype = np.float16 if kind == "float16" else np.float32
        value.const_value = ir.tensor(weights.astype(dtype), name="w")
        made.graph.register_initializer(value)
    return made


def ends_the_process(of: ir.Model, folder: Path) -> bool:
    path = folder / "m.onnx"
    ir.save(of, path)
    done = subprocess.run(
        [sys.executable, "-c", LOAD, str(path)], capture_output=True, text=True, check=False
    )
    assert done.returncode <= 0, done.stderr
    return done.returncode < 0


@pytest.mark.parametrize("perm", [(1, 0, 2), (1, 2, 0), (1, 2, 0, 3), (1, 2, 3, 0)])
def test_the_engine_still_has_the_fault_and_the_rewritten_graph_loads(
    perm: tuple[int, ...], tmp_path: Path
) -> None:
    """Fails once the engine is mended: then the rule goes."""
    whole, notes = product(perm), Remarks()
    assert ends_the_process(whole, tmp_path)
    x = np.random.default_rng(0).standard_normal((4,) * len(perm)).astype(np.float16)
    before = run(whole, {"x": x})[0]
    assert apply(whole, HALF_RULES, notes) == []
    assert ops(whole) == ["Transpose", "Reshape", "MatMul", "Reshape"]
    check(whole)
    assert not ends_the_process(whole, tmp_path)
    np.testing.assert_array_equal(run(whole, {"x": x})[0], before)
    assert notes.lines == [
        "Transpose: its fusion with a half-precision product ends the process: rewritten"
    ]


OTHERS = [p for p in itertools.permutations(range(3)) if p not in ((1, 0, 2), (1, 2, 0))]


@pytest.mark.parametrize("perm", OTHERS)
def test_other_orders_are_left_alone(perm: tuple[int, ...]) -> None:
    whole = product(perm)
    apply(whole, HALF_RULES, Remarks())
    assert ops(whole) == ["Transpose", "MatMul"]


@pytest.mark.parametrize("case", [("float", False), ("float16", True)])
def test_other_precisions_and_computed_matrices_are_left_alone(
    case: tuple[str, bool], tmp_path: Path
) -> None:
    whole = product((1, 0, 2), *case)
    assert not ends_the_process(whole, tmp_path)
    apply(whole, HALF_RULES, Remarks())
    assert ops(whole) == ["Transpose", "MatMul"]


def test_sizes_that_are_open_are_moved_in_single_precision(tmp_path: Path) -> None:
    whole = product((1, 0, 2))
    for value in (*whole.graph.inputs, *whole.graph.outputs, whole.graph[0].outputs[0]):
        value.shape = ir.Shape(["a", "b", 4])
    assert apply(whole, HALF_RULES, Remarks()) == []
    assert ops(whole) == ["Cast", "Transpose", "Cast", "MatMul"]
    assert not ends_the_process(whole, tmp_path)


def test_one_size_may_be_open(tmp_path: Path) -> None:
    whole = product((1, 0, 2))
    before = whole.clone()
    whole.graph.inputs[0].shape = ir.Shape([4, "n", 4])
    for value in (*whole.graph.outputs, whole.graph[0].outputs[0]):
        value.shape = ir.Shape(["n", 4, 4])
    assert apply(whole, HALF_RULES, Remarks()) == []
    assert ops(whole) == ["Transpose", "Reshape", "MatMul", "Reshape"]
    assert not ends_the_process(whole, tmp_path)
    x = np.random.default_rng(0).standard_normal((4, 4, 4)).astype(np.float16)
    np.testing.assert_array_equal(run(whole, {"x": x})[0], run(before, {"x": x})[0])
