"""Whole models through the target."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest

from edgeinfer.backends.base import Coverage
from edgeinfer.backends.litert.coverage import coverage
from edgeinfer.convert.lower import target_for
from edgeinfer.convert.lower.target import LowerOptions
from edgeinfer.convert.passes import normalise
from edgeinfer.errors import UnsupportedError, UsageError
from edgeinfer.profiles import load
from tests.convert.lower.tflite.run import check, lower, model_of, ops, outputs, profile

NET = """g (float[N,3,H,W] image) => (float[N,4] scores)
<float[4,3,3,3] w = {%s}> {
    c = Conv<pads=[1,1,1,1]>(image, w)
    r = Relu(c)
    p = MaxPool<kernel_shape=[2,2], strides=[2,2]>(r)
    a = GlobalAveragePool(p)
    scores = Flatten(a)
}""" % ", ".join(f"{v:.2f}" for v in np.linspace(-1, 1, 108))  # noqa: UP031  (braces in the text)


def image(n: int, h: int, w: int) -> dict[str, np.ndarray]:
    return {"image": np.random.default_rng(0).normal(size=(n, 3, h, w)).astype(np.float32)}


def test_open_sizes_really_resize() -> None:
    data = check(NET, image(1, 8, 8), image(2, 12, 10), image(3, 7, 9))
    assert ops(data) == ["TRANSPOSE", "CONV_2D", "MAX_POOL_2D", "MEAN", "RESHAPE"]


def test_the_file_names_what_the_model_names(tmp_path: Path) -> None:
    normal = normalise(model_of(NET)).model
    made = target_for("tflite").lower(normal, load("rpi5"), LowerOptions(), tmp_path)
    assert [f.name for f in made.files] == ["model.tflite"]
    assert made.precision == "fp32"
    assert made.engines[0].backend == "litert"
    assert made.ops["CONV_2D"] == 1
    assert made.notes[0].startswith("layout: 3 operators channels last; transposes left: 1")
    assert list(outputs(made.files[0], image(1, 8, 8))) == ["scores"]


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_it_is_told_what_operators_compute_in(precision: str, tmp_path: Path) -> None:
    normal = normalise(model_of(NET)).model
    made = target_for("tflite").lower(normal, load("rpi5"), LowerOptions(precision), tmp_path)
    assert made.notes[-1] == f"1 operator with {precision} weights, computed in fp32"


def test_twenty_convolutions_need_two_transposes() -> None:
    body = "".join(
        f"c{i} = Conv<pads=[1,1,1,1]>(r{i}, w) r{i + 1} = Relu(c{i}) " for i in range(20)
    )
    weights = ", ".join(f"{v:.3f}" for v in np.linspace(-0.4, 0.5, 144))
    text = f"""g (float[1,4,8,8] r0) => (float[1,4,8,8] y)
        <float[4,4,3,3] w = {{{weights}}}> {{ {body} y = Identity(r20) }}"""
    feeds = {"r0": np.random.default_rng(0).normal(size=(1, 4, 8, 8)).astype(np.float32)}
    assert ops(check(text, feeds)).count("TRANSPOSE") == 2


def test_half_precision_weights() -> None:
    normal = normalise(model_of(NET)).model
    plain, half = lower(normal), lower(normal, "fp16")
    assert "DEQUANTIZE" in ops(half)
    feeds = image(1, 16, 16)
    want = outputs(plain, feeds)["scores"]
    for xnnpack in (True, False):
        got = outputs(half, feeds, xnnpack=xnnpack)["scores"]
        np.testing.assert_allclose(got, want, rtol=2e-3, atol=2e-3)


def test_outputs_that_are_inputs_constants_and_each_other() -> None:
    text = """g (float[2] x) => (float[2] a, float[2] b, float[2] c, float[2] d)
    <float[2] k = {1, 2}> { a = Identity(x) b = Identity(k) c = Relu(x) d = Identity(c) }"""
    check(text, {"x": np.array([-1, 3], np.float32)})


def test_a_squeeze_that_a_run_decides_on_is_right_at_every_rank() -> None:
    text = """g (float[N,1,M] x) => (y) { a = Relu(x) s = Squeeze(a) t = Sigmoid(s)
        four = Constant<value_float=4.0>() y = Mul(t, four) }"""
    rng = np.random.default_rng(0)
    sizes = [(2, 3), (1, 3), (2, 1), (1, 1)]
    feeds = [{"x": rng.normal(size=(n, 1, m)).astype(np.float32)} for n, m in sizes]
    data = check(text, *feeds)
    assert ops(data)[-1] == "SQUEEZE"


def test_an_input_nobody_reads_stays() -> None:
    text = "g (float[2] x, float[3] unused) => (float[2] y) { y = Relu(x) }"
    check(text, {"x": np.array([-1, 3], np.float32), "unused": np.zeros(3, np.float32)})


def test_every_fault_is_listed_at_once() -> None:
    text = """g (float[1,1,4,4] x, string[2] s) => (float[1,1,4,4] y, string[2] t) {
        a = Relu(x) y = com.acme.Foo(a) t = com.acme.Bar(s) }"""
    header = '<ir_version: 10, opset_import: ["" : 24, "com.acme" : 1]>'
    model = ir.from_onnx_text(header + text)
    found = target_for("tflite").check(model, profile(), LowerOptions())
    assert {p.op for p in found} >= {"com.acme::Foo"}
    with pytest.raises(UnsupportedError, match=r"com\.acme::Foo"):
        lower(model)


def test_unknown_precision_is_a_usage_error(tmp_path: Path) -> None:
    normal = normalise(model_of(NET)).model
    with pytest.raises(UsageError, match="precision 'fp8' cannot be written"):
        target_for("tflite").lower(normal, profile(), LowerOptions("fp8"), tmp_path)


def test_the_model_is_not_changed() -> None:
    normal = normalise(model_of(NET)).model
    before = ir.to_proto(normal).SerializeToString()
    lower(normal)
    assert ir.to_proto(normal).SerializeToString() == before


def test_bytes_do_not_depend_on_the_hash_seed() -> None:
    code = (
        "import hashlib, sys; from tests.convert.lower.tflite.run import lower;"
        "print(hashlib.sha256(lower(sys.stdin.read())).hexdigest())"
    )
    found = set()
    for seed in ("1", "2"):
        done = subprocess.run(
            [sys.executable, "-c", code],
            input=NET,
            capture_output=True,
            text=True,
            check=True,
            env={"PYTHONHASHSEED": seed, "PYTHONPATH": ":".join(p for p in sys.path if p)},
        )
        found.add(done.stdout)
    assert len(found) == 1


def _taken(path: Path) -> Coverage:
    from ai_edge_litert.interpreter import Interpreter

    interpreter = Interpreter(model_path=str(path), num_threads=1)
    interpreter.allocate_tensors()
    return coverage(interpreter)


def test_xnnpack_takes_a_whole_cnn(tmp_path: Path) -> None:
    path = tmp_path / "m.tflite"
    path.write_bytes(lower(NET.replace("N,3,H,W", "1,3,8,8").replace("N,4", "1,4")))
    found = _taken(path)
    assert found.whole
    assert found.ops == 5
    text = "g (float[2,5] x) => (float[2,5] y) { a = Relu(x) y = Sign(a) }"
    path.write_bytes(lower(text))
    assert _taken(path).left == ("SIGN",)
