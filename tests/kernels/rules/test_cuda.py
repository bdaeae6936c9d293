"""Rules for GPUs: what they write, run on the CPU as the CUDA C that it becomes."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest

pytest.importorskip("tvm")

import tvm

from edgeinfer import profiles
from edgeinfer.backends.testing.cases import graph
from edgeinfer.convert import passes
from edgeinfer.convert.lower.target import LowerOptions
from edgeinfer.convert.lower.tvm.target import workloads
from edgeinfer.kernels.rules import cuda
from edgeinfer.kernels.tuning import workload
from tests.kernels import cuda_text

RNG = np.random.default_rng(0)


def weights(*shape: int) -> Any:
    return (RNG.standard_normal(shape) * 0.3).astype(np.float32)


TEXTS: dict[str, str] = {}


def function_of(text: str, **constants: Any) -> Any:
    """The one workload of a graph."""
    if text in TEXTS:
        return workload.load(TEXTS[text])
    model = passes.normalise(ir.from_proto(graph(text, **constants))).model
    _, (task,), _ = workloads(model, profiles.load("tvm-sm-90"), LowerOptions())
    TEXTS[text] = task.text
    return workload.load(task.text)


def strided() -> Any:
    """Stride, border, two images; a bias and both bounds behind it."""
    return function_of(
        """(float[2,3,9,8] x) => (float[2,8,5,4] y) {
            a = Conv<strides=[2,2], pads=[1,1,1,1]>(x, w, b) y = Clip(a, lo, hi) }""",
        w=weights(8, 3, 3, 3),
        b=weights(8),
        lo=np.float32(0),
        hi=np.float32(0.5),
    )


def pointwise() -> Any:
    """One pixel each, and another input added."""
    return function_of(
        """(float[1,24,7,8] x, float[1,20,7,8] z) => (float[1,20,7,8] y) {
            a = Conv(x, w, b) c = Add(z, a) y = Relu(c) }""",
        w=weights(20, 24, 1, 1),
        b=weights(20),
    )


def channels() -> Any:
    return function_of(
        """(float[1,6,9,8] x) => (float[1,6,9,8] y) {
            a = Conv<pads=[1,1,1,1], group=6>(x, w, b) y = Relu(a) }""",
        w=weights(6, 1, 3, 3),
        b=weights(6),
    )


def row() -> Any:
    return function_of(
        "(float[1,24] x) => (float[1,40] y) { y = Gemm(x, w, b) }", w=weights(24, 40), b=weights(40)
    )


def dilated() -> Any:
    """One axis, and nothing behind it."""
    return function_of(
        "(float[1,5,40] x) => (float[1,4,36] y) { y = Conv<dilations=[2]>(x, w) }",
        w=weights(4, 5, 3),
    )


def product(rows: int, wide: int, down: int, across: int, deep: int, step: int) -> dict[str, Any]:
    names = ("rows", "wide", "down", "across", "deep", "step")
    return {
        "rule": "product",
        **dict(zip(names, (rows, wide, down, across, deep, step), strict=True)),
    }


def window(rows: int, wide: int, threads: int) -> dict[str, Any]:
    return {"rule": "window", "rows": rows, "wide": wide, "threads": threads}


@pytest.mark.sample(2)
@pytest.mark.parametrize(
    ("make", "plan"),
    [
        (strided, product(2, 2, 3, 7, 3, 1)),
        (pointwise, product(4, 4, 2, 7, 4, 2)),
        (pointwise, product(5, 2, 3, 11, 12, 1)),
        (pointwise, product(10, 1, 1, 28, 1, 8)),
        (channels, window(3, 2, 32)),
        (row, product(1, 4, 1, 4, 8, 3)),
        (dilated, product(4, 3, 1, 5, 5, 1)),
    ],
)
def test_a_plan_gives_the_numbers_of_the_plain_loops(
    make: Any, plan: dict[str, Any], tmp_path: Path
) -> None:
    function = make()
    arrays = [weights(*(int(s) for s in p.shape)) for p in function.params]
    given = [tvm.runtime.tensor(a) for a in arrays]
    plain = tvm.IRModule({workload.NAME: workload.plain(workload.copy(function))})
    tvm.compile(plain, target="llvm").jit()[workload.NAME](*given)
    # What is not written stays no number.
    arrays[-1][...] = np.nan
    cuda_text.run(workload.order(function, plan), arrays, tmp_path)
    np.testing.assert_allclose(arrays[-1], given[-1].numpy(), rtol=1e-5, atol=1e-6)


@pytest.mark.sample(4)
@pytest.mark.parametrize(
    ("make", "plan", "what"),
    [
        (pointwise, product(3, 1, 1, 32, 1, 1), "does not divide the result"),
        (pointwise, product(4, 1, 1, 28, 5, 1), "do not divide the sum"),
        (pointwise, product(4, 1, 64, 56, 1, 1), "3584 threads"),
        (pointwise, product(4, 1, 0, 56, 1, 1), "below one"),
        (pointwise, window(1, 1, 64), "does not fit"),
        (pointwise, {"rule": "product", "rows": 4}, "does not fit"),
        (pointwise, {"rows": 4}, "does not fit"),
        (channels, window(2, 1, 64), "do not divide"),
        (channels, window(1, 1, 2048), "do not divide"),
    ],
)
def test_a_plan_that_does_not_fit_is_refused(make: Any, plan: dict[str, Any], what: str) -> None:
    with pytest.raises(ValueError, match=what):
        workload.order(make(), plan)


def test_plans_that_are_offered_can_be_written() -> None:
    for make in (strided, pointwise, channels, row, dilated):
        shape = cuda.shape_of(make())
        assert shape is not None
        for arch in ("sm_87", "sm_90", "sm_110"):
            found = cuda.plans(shape, arch)
            assert len({repr(p) for p in found}) == len(found) > 1
        assert workload.order(make(), found[-1]).params


def test_what_no_rule_fits_is_left() -> None:
    text = "(float[4,40] x) => (float[4,40] y) { y = Softmax<axis=-1>(x) }"
    model = passes.normalise(ir.from_proto(graph(text))).model
    _, tasks, _ = workloads(model, profiles.load("tvm-sm-90"), LowerOptions())
    assert all(cuda.shape_of(workload.load(t.text)) is None for t in tasks)


def test_products_of_many_rows_keep_their_order_until_they_are_tuned() -> None:
    many = function_of(
        "(float[64,24] x) => (float[64,40] y) { y = Gemm(x, w, b) }",
        w=weights(24, 40),
        b=weights(40),
    )
    assert cuda.default(many, "sm_90") is None
    assert cuda.default(row(), "sm_90") is not None
    shape = cuda.shape_of(many)
    assert shape is not None
    assert cuda.plans(shape, "sm_90")
