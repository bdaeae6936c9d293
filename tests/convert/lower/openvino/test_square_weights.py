"""Square weights that are read as they are and transposed: each product has its own."""

from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from edgeinfer.convert.lower.openvino.square_weights import part_transposed
from edgeinfer.convert.verify.evaluate import Evaluator
from tests.conformance.everywhere import PLACES, lacking, run_each
from tests.convert.lower.running import lower, model, ops, run_openvino

N = 40
RNG = np.random.default_rng(0)
MATRIX = ", ".join(f"{v:.3f}" for v in RNG.standard_normal(N * N))
BYTES = ", ".join(str(v) for v in RNG.integers(-100, 100, N * N))
SCALES = ", ".join(f"{v:.3f}" for v in RNG.random(N) + 0.5)
FILTER = ", ".join(f"{v:.3f}" for v in RNG.standard_normal(4 * 4 * 3 * 2))

ROWS = {
    "product and Gemm": ("h = MatMul(x, w)", "y = Gemm<transB=1>(h, w)"),
    "two Gemm": ("h = Gemm<transB=1>(x, w)", "y = Gemm(h, w)"),
    "written out": ("h = MatMul(x, w)", "t = Transpose(w) y = MatMul(h, t)"),
    "two constants": ("h = MatMul(x, w)", "y = Gemm<transB=1>(h, again)"),
    "integers": ("d = DequantizeLinear(i, one) h = MatMul(x, d)", "y = Gemm<transB=1>(h, d)"),
    "integers by column": (
        "d = DequantizeLinear<axis=1>(i, s) h = MatMul(x, d)",
        "e = DequantizeLinear<axis=0>(i, s) y = Gemm<transB=1>(h, e)",
    ),
    "integer products": (
        "c, cs, cz = DynamicQuantizeLinear(x) m = MatMulInteger(c, i, cz) h = Cast<to=1>(m)",
        "t = Transpose(i) q, qs, qz = DynamicQuantizeLinear(h) n = MatMulInteger(q, t, qz)"
        " y = Cast<to=1>(n)",
    ),
}
CONVOLUTIONS = {
    "filter": ("h = Conv(x, f)", "y = ConvTranspose(h, f)"),
    "filter with strides and bias": (
        "h = Conv<strides=[2,2]>(x, f)",
        "y = ConvTranspose<strides=[2,2], pads=[1,0,0,1]>(h, f, b)",
    ),
}


def text(parts: tuple[str, str]) -> str:
    is_matrix = parts not in CONVOLUTIONS.values()
    size = f"3,{N}" if is_matrix else "1,4,9,9"
    shape = "A,B" if is_matrix else "A,B,C,D"
    weights = (
        f"float[{N},{N}] w = {{{MATRIX}}}, float[{N},{N}] again = {{{MATRIX}}},"
        f" float one = {{0.01}}, int8[{N},{N}] i = {{{BYTES}}}, float[{N}] s = {{{SCALES}}}"
        if is_matrix
        else f"float[4,4,3,2] f = {{{FILTER}}}, float[4] b = {{1, 2, -3, 4}}"
    )
    return f"g (float[{size}] x) => (float[{shape}] y) <{weights}> {{ {' '.join(parts)} }}"


def feeds(parts: tuple[str, str]) -> dict[str, np.ndarray]:
    shape = (1, 4, 9, 9) if parts in CONVOLUTIONS.values() else (3, N)
    return {"x": np.random.default_rng(1).standard_normal(shape).astype(np.float32)}


@pytest.mark.parametrize("place", PLACES)
def test_every_target_transposes_square_weights(place: str) -> None:
    if reason := lacking(place):
        pytest.skip(reason)
    rows = ROWS | CONVOLUTIONS
    cases = {n: (proto(p), feeds(p)) for n, p in rows.items()}
    wrong = {}
    # One by one: in one model all of them would share the constants.
    for name, case in cases.items():
        got = run_each(place, {name: case})[name].outputs["y"]
        right = Evaluator(ir.from_proto(case[0]), wide=True).run(case[1])["y"]
        if got.shape != right.shape or np.abs(got - right).max() > 2e-2 * np.abs(right).max():
            wrong[name] = got
    assert not wrong


def proto(parts: tuple[str, str]) -> onnx.ModelProto:
    made: onnx.ModelProto = ir.to_proto(model(text(parts)))
    return made


def test_compressed_weights_are_parted_too(tmp_path: Path) -> None:
    for parts in (ROWS["product and Gemm"], CONVOLUTIONS["filter"]):
        given = feeds(parts)
        made = lower(model(text(parts)), tmp_path, "openvino", precision="fp16")
        (got,) = run_openvino(made.files[0], given["x"])
        right = Evaluator(model(text(parts)), wide=True).run(given)["y"]
        assert np.abs(got - right).max() < 1e-2 * np.abs(right).max()


@pytest.mark.parametrize(
    "parts",
    [
        ("h = MatMul(x, w)", "y = MatMul(h, w)"),
        ("h = Gemm<transB=1>(x, w)", "t = Transpose(w) y = MatMul(h, t)"),
        ("h = MatMul(x, w)", "y = Add(h, one)"),
    ],
)
def test_leaves_alone_what_all_read_in_one_way(parts: tuple[str, str]) -> None:
    given = model(text(parts))
    before = ops(given)
    assert part_transposed(given) == 0
    assert ops(given) == before
