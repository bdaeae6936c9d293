"""Code for a GPU by its whole way, on a GPU that the CPU stands in for."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx.reference import ReferenceEvaluator

pytest.importorskip("tvm")

from tests import cuda_emulator, samples

pytestmark = pytest.mark.skipif(
    not cuda_emulator.is_possible(), reason="g++ on Linux stands in for nvcc"
)

WORKER = Path(__file__).with_name("gpu_worker.py")
ROOT = Path(__file__).parents[4]
HEAD = '<ir_version: 10, opset_import: ["": 21]>\n'
_rng = np.random.default_rng(0)


def _normal(*shape: int) -> Any:
    return _rng.standard_normal(shape).astype(np.float32)


def _constant(name: str, *shape: int) -> str:
    values = ", ".join(f"{v:.6f}" for v in _normal(*shape).reshape(-1))
    return f"float[{','.join(map(str, shape))}] {name} = {{{values}}}"


_WEIGHTS = ", ".join([_constant("w", 1, 16, 5), _constant("r", 1, 16, 4), _constant("b", 1, 32)])
_masked = _normal(3, 70)
_masked[1] = -np.inf
_spoiled = _normal(2, 300)
_spoiled[1, 290] = np.nan


def _whole(kind: str, *shape: int) -> str:
    values = ", ".join(map(str, _rng.integers(0, 16, shape).reshape(-1)))
    return f"{kind}[{','.join(map(str, shape))}] {{}} = {{{{{values}}}}}"


_NIBBLES = ", ".join(
    [
        _whole("uint4", 96, 5).format("q"),
        _whole("uint4", 3, 5).format("n"),
        _constant("s", 3, 5),
    ]
)

CASES: dict[str, tuple[str, dict[str, Any]]] = {
    # A row whose extreme is infinite, and one with NaN: threads combine them as one loop would.
    "masked": (
        "m (float[3,70] x) => (float[3,70] y) <float none = {-inf}, float zero = {0}> {\n"
        "top = ReduceMax<keepdims=1>(x)\n empty = Equal(top, none)\n p = Softmax(x)\n"
        "y = Where(empty, zero, p) }",
        {"x": _masked},
    ),
    "extremes": (
        "m (float[2,300] x) => (float[2] y, float[2] z) <int64[1] a = {1}> {\n"
        "y = ReduceMax<keepdims=0>(x, a)\n z = ReduceMin<keepdims=0>(x, a) }",
        {"x": _spoiled},
    ),
    # Fewer results than TVM's rule for vectors has threads, which wrote beyond them; and no sum.
    "columns": (
        "m (float[2,4,4] x, float[4,1,4] w, float[4,1,1] v)"
        " => (float[2,4,1] y, float[2,4,4] z) {\n"
        "y = Conv<group=4>(x, w)\n z = Conv<group=4>(x, v) }",
        {"x": _normal(2, 4, 4), "w": _normal(4, 1, 4), "v": _normal(4, 1, 1)},
    ),
    # CUDA C has no bits of a number, and extremes are told by bits: NaN is one of them.
    "known": (
        "m (float[2,300] x) => (float[2,300] y, float[2,300] z, int64[2] p)"
        " <float none = {0}, float half = {0.5}> {\n"
        "y = Max(none, x)\n z = Min(half, x, none)\n p = ArgMax<axis=1, keepdims=0>(y) }",
        {"x": _spoiled},
    ),
    "put": (
        "m (float[4,3] x, int64[2,3] i, float[2,3] u) => (float[4,3] y, float[4,3] z) {\n"
        "y = ScatterElements<axis=0>(x, i, u)\n"
        'z = ScatterElements<axis=0, reduction="add">(x, i, u) }',
        {
            "x": _normal(4, 3),
            "i": np.array([[0, -1, 2], [1, 3, 2]]),
            "u": _normal(2, 3),
        },
    ),
    "steps": (
        "m (float[3,2,5] x, float[1,2,4] h, float[1,2,4] c)"
        f" => (float[3,1,2,4] y, float[1,2,4] yh, float[1,2,4] yc) <{_WEIGHTS}> {{\n"
        "y, yh, yc = LSTM<hidden_size=4>(x, w, r, b, , h, c) }",
        {"x": _normal(3, 2, 5), "h": _normal(1, 2, 4), "c": _normal(1, 2, 4)},
    ),
    # Products that read their matrix before what comes ahead of them has ended.
    "nibbles": (
        f"m (float[2,96] x) => (float[2,5] y, float[2,5] z) <{_NIBBLES}> {{\n"
        "w = DequantizeLinear<axis=0, block_size=32>(q, s, n)\n"
        "r = Relu(x)\n y = MatMul(r, w)\n z = MatMul(x, w) }",
        {"x": _normal(2, 96)},
    ),
    # By TVM's virtual machine, as models of many kernels are: another shape of a result is a copy.
    "views": (
        "m (float[3,1,5] x) => (float[3,5] y, float[3,10] z) <int64[1] one = {1}> {\n"
        "y = Squeeze(x, one)\n a = Relu(x)\n b = Squeeze(a, one)\n c = Tanh(b)\n"
        "z = Concat<axis=1>(b, c) }",
        {"x": _normal(3, 1, 5)},
    ),
    "nothing": (
        "m (float[2,4] x) => (float[2,0] y, float[2] z) "
        "<int64[1] s = {4}, int64[1] e = {9}, int64[1] a = {1}> {\n"
        "y = Slice(x, s, e, a)\n z = ReduceSum<keepdims=0>(y, a) }",
        {"x": _normal(2, 4)},
    ),
    # Products are rounded before they are added.
    "rounded": (
        "m (float[3,40] x, float[3,40] w, float16[2,4] h) => (float[3,40] y, float16[2,4] z) {\n"
        "p = Mul(x, w)\n q = Mul(w, x)\n y = Sub(p, q)\n s = Mul(h, h)\n z = Add(s, h) }",
        {"x": _normal(3, 40), "w": _normal(3, 40), "h": _normal(2, 4).astype(np.float16)},
    ),
}


@pytest.fixture(scope="module")
def found(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, dict[str, Any]]:
    path = tmp_path_factory.mktemp("gpu") / "cases"
    cases = {name: CASES[name] for name in samples.asked(request, "name")}
    path.write_bytes(pickle.dumps({n: (HEAD + text, feeds) for n, (text, feeds) in cases.items()}))
    places = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    subprocess.run(
        [sys.executable, "-W", "ignore", str(WORKER), str(path)],
        check=True,
        env={**os.environ, "PYTHONPATH": places},
    )
    answers: dict[str, dict[str, Any]] = pickle.loads(path.read_bytes())
    return answers


@pytest.mark.sample(2)
@pytest.mark.parametrize("name", CASES)
def test_numbers(name: str, found: dict[str, dict[str, Any]]) -> None:
    text, feeds = CASES[name]
    model = ReferenceEvaluator(onnx.parser.parse_model(HEAD + text))
    wanted = dict(zip(model.output_names, model.run(None, feeds), strict=True))
    if name == "put":
        # The reference takes negative places for what they are in NumPy, and so do we.
        assert wanted["y"][3, 1] == feeds["u"][1, 1]
    for key, value in wanted.items():
        assert found[name][key].shape == value.shape
        np.testing.assert_allclose(found[name][key], value, rtol=1e-5, atol=1e-6, err_msg=key)
