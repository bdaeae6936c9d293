from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest

from edgeinfer import profiles
from edgeinfer.convert.lower.halve import LARGEST, MASKED
from edgeinfer.convert.lower.onnxruntime.fp16 import halve
from edgeinfer.errors import Remarks
from tests.convert.lower.running import check, lower, model, ops, run

RNG = np.random.default_rng(0)
HALF, SINGLE = ir.DataType.FLOAT16, ir.DataType.FLOAT


def weights(name: str, *shape: int) -> str:
    values = (RNG.standard_normal(int(np.prod(shape))) * 0.3).round(3)
    return f"float[{','.join(map(str, shape))}] {name} = {{{','.join(map(str, values))}}}"


def network() -> ir.Model:
    return model(f"""g (float[N,8] x) => (float[N,8] y)
        <{weights("w1", 8, 16)}, {weights("b1", 16)}, {weights("w2", 16, 8)}, {weights("s", 8)}> {{
        a = MatMul(x, w1)
        b = Add(a, b1)
        c = Relu(b)
        d = MatMul(c, w2)
        e = LayerNormalization(d, s)
        y = Sigmoid(e)
    }}""")


def test_border_types_stay_and_numbers_are_close() -> None:
    whole = network()
    before = whole.clone()
    halve(whole, frozenset(), Remarks())
    check(whole)
    assert [v.dtype for v in (*whole.graph.inputs, *whole.graph.outputs)] == [SINGLE, SINGLE]
    assert [v.name for v in (*whole.graph.inputs, *whole.graph.outputs)] == ["x", "y"]
    feeds = {"x": RNG.standard_normal((3, 8)).astype(np.float32)}
    np.testing.assert_allclose(run(whole, feeds)[0], run(before, feeds)[0], atol=5e-3)


def test_weights_and_activations_are_half_and_islands_are_not() -> None:
    whole, notes = network(), Remarks()
    halve(whole, frozenset(), notes)
    kinds = {n.op_type: n.outputs[0].dtype for n in whole.graph if n.op_type != "Cast"}
    assert kinds["MatMul"] == kinds["Add"] == kinds["Relu"] == HALF
    assert kinds["LayerNormalization"] == SINGLE
    # Without weights and with an island before it, the last one is not worth a cast.
    assert kinds["Sigmoid"] == SINGLE
    assert {v.dtype for v in whole.graph.initializers.values() if v.uses()} == {HALF, SINGLE}
    assert notes.lines[-1] == "fp16: 2 of 6 nodes stay fp32: LayerNormalization 1, Sigmoid 1"


def test_one_cast_for_each_value_and_direction() -> None:
    whole = model(f"""g (float[4,4] x) => (float[4,4] y, float[4,4] z, float[4,4] u)
        <{weights("w", 4, 4)}> {{
        a = MatMul(x, w)
        b = MatMul(x, w)
        y = Exp(a)
        z = Exp(a)
        u = Add(a, b)
    }}""")
    # 16 elements are no weights to speak of; a product is kept in half precision by its neighbour.
    halve(whole, frozenset(), Remarks())
    assert ops(whole).count("Cast") == 3
    check(whole)


def test_named_nodes_stay_single() -> None:
    whole = model(f"""g (float[4,4] x) => (float[4,4] y) <{weights("w", 4, 40)}, {weights("v", 40, 4)}> {{
        [first] a = MatMul(x, w)
        [second] y = MatMul(a, v)
    }}""")  # noqa: E501
    halve(whole, frozenset({"first"}), Remarks())
    kinds = {n.name: n.outputs[0].dtype for n in whole.graph if n.op_type == "MatMul"}
    assert kinds == {"first": SINGLE, "second": HALF}


@pytest.mark.parametrize(
    ("value", "half"),
    [(1.0, True), (65504.0, True), (70000.0, False), (1e-6, False), (0.0, True), (6.2e-5, True)],
)
def test_constants_outside_the_range_make_an_island(value: float, half: bool) -> None:
    whole = model(f"""g (float[4,10] x) => (float[4,10] y) <{weights("w", 10, 10)}, float c = {{{value}}}> {{
        a = MatMul(x, w)
        b = Div(a, c)
        y = MatMul(b, w)
    }}""")  # noqa: E501
    halve(whole, frozenset(), Remarks())
    kinds = {n.op_type: n.outputs[0].dtype for n in whole.graph}
    assert (kinds["Div"] == HALF) is half


@pytest.mark.parametrize("low", [-1e9, -3.4028235e38, -np.inf])
def test_fully_masked_row_is_not_nan_unless_it_was(low: float) -> None:
    text = f"""g (float[2,10] x, bool[2,10] m) => (float[2,10] y) <{weights("w", 10, 10)}> {{
        a = MatMul(x, w)
        b = Where(m, zero, low)
        c = Add(a, b)
        d = Softmax(c)
        y = MatMul(d, w)
    }}"""
    before, whole, notes = (
        model(text.replace("x, bool", "x, float zero, float low, bool")),
        model(text.replace("x, bool", "x, float zero, float low, bool")),
        Remarks(),
    )
    for graph in (before.graph, whole.graph):
        for name, number in (("zero", 0.0), ("low", low)):
            value = next(v for v in graph.inputs if v.name == name)
            value.const_value = ir.tensor(np.asarray(number, np.float32), name=name)
            graph.inputs.remove(value)
            graph.register_initializer(value)
    halve(whole, frozenset(), notes)
    feeds = {
        "x": RNG.standard_normal((2, 10)).astype(np.float32),
        "m": np.asarray([[False] * 10, [True] * 9 + [False]]),
    }
    (y,), (expected,) = run(whole, feeds), run(before, feeds)
    # What a fully masked row holds is up to the rounding of the masked scores, in fp32 as well.
    np.testing.assert_allclose(y[1], expected[1], atol=1e-2)
    assert bool(np.isnan(y).any()) is bool(np.isinf(low))
    assert any("became" in line for line in notes.lines) is not bool(np.isinf(low))
    assert -LARGEST < MASKED


def test_values_that_a_branch_takes_stay_single_there() -> None:
    whole = model(
        f"""g (float[4,10] x, bool c) => (float[4,10] y) <{weights("w", 10, 10)}> {{
        a = MatMul(x, w)
        b = Relu(a)
        y = If(c) <
            then_branch = t () => (float[4,10] u) {{ u = Exp(b) }},
            else_branch = e () => (float[4,10] v) {{ v = Add(b, w2) }}
        >
    }}""".replace("Add(b, w2)", "Neg(b)")
    )
    before = whole.clone()
    halve(whole, frozenset(), Remarks())
    for flag in (True, False):
        feeds = {"x": RNG.standard_normal((4, 10)).astype(np.float32), "c": np.asarray(flag)}
        np.testing.assert_allclose(run(whole, feeds)[0], run(before, feeds)[0], rtol=2e-2)


def test_scales_of_resize_and_integer_paths_keep_their_types() -> None:
    whole = model(f"""g (float[1,4,4,4] x) => (float[1,4,8,8] y, int64[4] n)
        <{weights("w", 4, 4, 1, 1)}, float[4] s = {{1, 1, 2, 2}}> {{
        a = Conv(x, w)
        b = Resize(a, , s)
        y = Relu(b)
        n = Shape(a)
    }}""")
    halve(whole, frozenset(), Remarks())
    check(whole)
    feeds = {"x": RNG.standard_normal((1, 4, 4, 4)).astype(np.float32)}
    assert run(whole, feeds)[1].tolist() == [1, 4, 4, 4]


def test_same_value_given_out_twice_and_used_inside() -> None:
    whole = model(f"""g (float[4,10] x) => (float[4,10] a, float[4,10] y)
        <{weights("w", 10, 10)}> {{
        a = MatMul(x, w)
        y = MatMul(a, w)
    }}""")
    before = whole.clone()
    halve(whole, frozenset(), Remarks())
    check(whole)
    assert [v.name for v in whole.graph.outputs] == ["a", "y"]
    feeds = {"x": RNG.standard_normal((4, 10)).astype(np.float32)}
    for got, expected in zip(run(whole, feeds), run(before, feeds), strict=True):
        np.testing.assert_allclose(got, expected, atol=1e-2)


def test_long_sums_stay_single() -> None:
    whole = model("g (float[1,9000] x, float[9000,1] w) => (float[1,1] y) { y = MatMul(x, w) }")
    halve(whole, frozenset(), Remarks())
    assert ops(whole) == ["MatMul"]


def test_precision_is_read_back_and_the_source_is_untouched(tmp_path: Path) -> None:
    whole = network()
    before = ir.to_onnx_text(whole)
    lowered = lower(whole, tmp_path, precision="fp16")
    assert lowered.precision == "fp16+fp32"
    assert ir.to_onnx_text(whole) == before
    single = lower(whole, tmp_path)
    assert single.precision == "fp32"


CUDA = profiles.load("cuda")

CLASSIFIER = f"""g (float[N,8,6,6] x) => (float[N,4] y)
    <{weights("w1", 16, 8, 1, 1)}, {weights("w2", 16, 1, 3, 3)}, {weights("w3", 8, 16, 1, 1)},
     {weights("w4", 4, 8)}, {weights("b4", 4)}, float low = {{0}}, float high = {{6}}> {{
    a = Conv(x, w1)
    b = Clip(a, low, high)
    c = Conv <group = 16, pads = [1,1,1,1]> (b, w2)
    d = Clip(c, low, high)
    e = Conv(d, w3)
    f = Add(x, e)
    m = GlobalAveragePool(f)
    v = Flatten(m)
    y = Gemm <transB = 1> (v, w4, b4)
}}"""
"""What MobileNets are made of."""

ENCODER = f"""g (float[N,5,8] x) => (float[N,5,8] y)
    <{weights("wq", 8, 8)}, {weights("wk", 8, 8)}, {weights("wv", 8, 8)}, {weights("s", 8)},
     {weights("w1", 8, 16)}, {weights("w2", 16, 8)}, float root = {{2.828}}> {{
    n = LayerNormalization(x, s)
    q = MatMul(n, wq)
    k = MatMul(n, wk)
    v = MatMul(n, wv)
    kt = Transpose <perm = [0,2,1]> (k)
    scores = MatMul(q, kt)
    scaled = Div(scores, root)
    p = Softmax(scaled)
    a = MatMul(p, v)
    size = Shape(a)
    r = Reshape(a, size)
    h = Add(x, r)
    m = LayerNormalization(h, s)
    i = MatMul(m, w1)
    g = Gelu(i)
    o = MatMul(g, w2)
    y = Add(h, o)
}}"""
"""What ViTs and MiniLMs are made of."""


@pytest.mark.parametrize("text", [CLASSIFIER, ENCODER], ids=["cnn", "transformer"])
def test_on_a_gpu_there_are_casts_at_the_ends_alone(text: str) -> None:
    from onnxruntime.transformers.float16 import convert_float_to_float16

    whole = model(text)
    theirs = convert_float_to_float16(ir.to_proto(whole), keep_io_types=True)
    before, notes = whole.clone(), Remarks()
    halve(whole, frozenset(), notes, ops=frozenset(CUDA.fp16_ops))
    check(whole)
    casts = [n for n in whole.graph if n.op_type == "Cast"]
    assert len(casts) == 2 <= sum(n.op_type == "Cast" for n in theirs.graph.node)
    assert casts[0].inputs[0] is whole.graph.inputs[0]
    assert casts[1].outputs[0] is whole.graph.outputs[0]
    assert notes.lines == []
    shape = [d if isinstance(d, int) else 2 for d in whole.graph.inputs[0].shape or ()]
    feeds = {"x": RNG.standard_normal(shape).astype(np.float32)}
    np.testing.assert_allclose(run(whole, feeds)[0], run(before, feeds)[0], atol=2e-2)


def test_long_sums_are_single_inside_of_a_kernel() -> None:
    there = model(f"""g (float[1,9000] x) => (float[1,1] y) <{weights("w", 9000, 1)}> {{
        y = MatMul(x, w)
    }}""")
    anywhere = there.clone()
    halve(anywhere, frozenset(), Remarks())
    halve(there, frozenset(), Remarks(), ops=frozenset(CUDA.fp16_ops))
    assert not any(n.op_type == "Cast" for n in anywhere.graph)
    assert sum(n.op_type == "Cast" for n in there.graph) == 2


def test_what_a_gpu_has_no_kernel_for_is_an_island() -> None:
    whole = model(f"""g (float[4,16] x) => (float[4,16] y)
        <{weights("w", 16, 16)}, int64 axis = {{1}}> {{
        a = MatMul(x, w)
        b = CumSum(a, axis)
        y = MatMul(b, w)
    }}""")
    halve(whole, frozenset(), Remarks(), ops=frozenset(CUDA.fp16_ops))
    assert ops(whole) == ["Cast", "MatMul", "Cast", "CumSum", "Cast", "MatMul", "Cast"]


def test_a_bound_against_division_by_zero_needs_no_single_precision() -> None:
    whole = model(f"""g (float[4,16] x) => (float[4,16] y)
        <{weights("w", 16, 16)}, float least = {{1e-12}}, int64[1] axes = {{1}}> {{
        a = MatMul(x, w)
        size = ReduceL2(a, axes)
        held = Clip(size, least)
        b = Div(a, held)
        y = MatMul(b, w)
    }}""")
    before = whole.clone()
    halve(whole, frozenset(), Remarks(), ops=frozenset(CUDA.fp16_ops))
    assert sum(n.op_type == "Cast" for n in whole.graph) == 2
    for x in (np.zeros((4, 16), np.float32), RNG.standard_normal((4, 16)).astype(np.float32)):
        np.testing.assert_allclose(run(whole, {"x": x})[0], run(before, {"x": x})[0], atol=2e-2)


def test_a_small_number_that_is_added_needs_it() -> None:
    whole = model(f"""g (float[4,16] x) => (float[4,16] y)
        <{weights("w", 16, 16)}, float little = {{1e-12}}> {{
        a = MatMul(x, w)
        b = Add(a, little)
        y = MatMul(b, w)
    }}""")
    halve(whole, frozenset(), Remarks(), ops=frozenset(CUDA.fp16_ops))
    kinds = {n.op_type: n.outputs[0].dtype for n in whole.graph if n.op_type != "Cast"}
    assert (kinds["Add"], kinds["MatMul"]) == (SINGLE, HALF)


def test_a_mask_of_whole_numbers_becomes_half_at_once() -> None:
    whole = model(f"""g (float[4,16] x, int64[4,1] mask) => (float[4,16] y)
        <{weights("w", 16, 16)}> {{
        a = MatMul(x, w)
        m = Cast <to = 1> (mask)
        b = Mul(a, m)
        y = MatMul(b, w)
    }}""")
    before = whole.clone()
    halve(whole, frozenset(), Remarks(), ops=frozenset(CUDA.fp16_ops))
    used = {node for value in whole.graph.outputs for node in _above(value)}
    casts = [n.outputs[0].dtype for n in whole.graph if n.op_type == "Cast" and n in used]
    assert sorted(str(d) for d in casts) == ["FLOAT", "FLOAT16", "FLOAT16"]
    feeds = {"x": RNG.standard_normal((4, 16)).astype(np.float32), "mask": np.eye(4, 1, dtype=int)}
    np.testing.assert_allclose(run(whole, feeds)[0], run(before, feeds)[0], atol=2e-2)


def _above(value: ir.Value | None) -> set[ir.Node]:
    maker = None if value is None else value.producer()
    return set() if maker is None else {maker}.union(*(_above(v) for v in maker.inputs))
