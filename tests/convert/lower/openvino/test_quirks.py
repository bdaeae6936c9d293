"""Each rule: what it finds, what it leaves alone, and that the repair is right on OpenVINO."""

from pathlib import Path

import numpy as np
import pytest

from edgeinfer.convert.lower.openvino.quirks import RULES
from edgeinfer.convert.lower.rules import apply
from edgeinfer.errors import Remarks
from tests.convert.lower.running import check, lower, model, ops, run, run_openvino

openvino = pytest.importorskip("openvino")
RNG = np.random.default_rng(0)


def faults(text: str, opset: int = 24) -> list[str]:
    return [p.detail for p in apply(model(text, opset), RULES, Remarks())]


@pytest.mark.parametrize(
    ("text", "detail"),
    [
        (
            'g (int8[2] x) => (int8[2] y) { y = BitShift<direction = "LEFT">(x, x) }',
            "shifts of signed integers are computed otherwise",
        ),
        (
            "g (float[1,1,h,4] x) => (float[A,B,C,D] y) <int64[4] n = {1,1,2,2}>"
            ' { y = Resize<mode = "linear", antialias = 1>(x, , , n) }',
            "antialias is computed otherwise",
        ),
        (
            "g (float[1,1,h,4] x) => (float[A,B,C,D] y) <int64[2] n = {7,8}> { y = Resize<"
            'mode = "nearest", axes = [2, 3], keep_aspect_ratio_policy = "not_larger">(x, , , n) }',
            "keep_aspect_ratio_policy=not_larger is ignored",
        ),
        (
            "g (float[1,1,2,2] x) => (float[1,1,1,1] y)"
            " { y = MaxPool<kernel_shape = [1,1], strides = [2,2], ceil_mode = 1>(x) }",
            "ceil_mode adds a window of padding only",
        ),
        (
            "g (float[1,1,H,W] x) => (float[A,B,C,D] y)"
            " { y = MaxPool<kernel_shape = [1,1], strides = [2,2], ceil_mode = 1>(x) }",
            "ceil_mode may add a window of padding only, and the size is not known",
        ),
    ],
)
def test_fault_is_refused(text: str, detail: str) -> None:
    assert faults(text) == [detail]


@pytest.mark.parametrize(
    "text",
    [
        'g (uint16[2] x) => (uint16[2] y) { y = BitShift<direction = "LEFT">(x, x) }',
        "g (float[1,10,1] x) => (float[1,10,2] y) { y = DFT(x) }",
        "g (float[1,4,10,1] x) => (float[1,4,10,2] y) <int64 a = {1}> { y = DFT(x, , a) }",
        # The usual pooling of detectors: dynamic, and no window can be all padding.
        "g (float[1,1,H,W] x) => (float[A,B,C,D] y) { y = MaxPool<kernel_shape = [3,3],"
        " strides = [2,2], pads = [1,1,1,1], ceil_mode = 1>(x) }",
        "g (float[1,1,7,7] x) => (float[A,B,C,D] y)"
        " { y = MaxPool<kernel_shape = [2,2], strides = [2,2], ceil_mode = 1>(x) }",
        "g (float[1,1,H,W] x) => (float[A,B,C,D] y) <float[4] s = {1,1,2,2}>"
        ' { y = Resize<mode = "linear">(x, , s) }',
        "g (float[N,4] x) => (float[N] y) <int64[1] a = {1}> { y = ReduceMax<keepdims = 0>(x, a) }",
        "g (float[2,3,4] x) => (float[A,B,C] y) <int64[3] r = {2,2,2}> { y = Tile(x, r) }",
        "g (float[2,3] x, int64[2] r) => (float[A,B] y) { y = Tile(x, r) }",
        "g (int8[2] x) => (bool[2] y) { y = Cast<to = 9>(x) }",
    ],
)
def test_healthy_node_is_left_alone(text: str) -> None:
    whole = model(text)
    before = ops(whole)
    assert apply(whole, RULES, Remarks()) == []
    assert ops(whole) == before


Values = dict[str, object]
F, I = np.float32, np.int64  # noqa: E741
X4 = RNG.standard_normal((2, 3, 4, 5)).astype(F)


@pytest.mark.parametrize(
    ("text", "feeds"),
    [
        (
            "g (float[2,3,4,5] x, int64[4] r) => (float[A,B,C,D] y) { y = Tile(x, r) }",
            {"x": X4, "r": np.asarray([7, 6, 4, 2], I)},
        ),
        (
            "g (float[N,3,M,5] x, int64[4] r) => (float[A,B,C,D] y) { y = Tile(x, r) }",
            {"x": X4, "r": np.asarray([1, 2, 3, 2], I)},
        ),
        (
            "g (float[N,1,1,3] x) => (float[A,B,C,D] y) <int64[4] r = {2,2,2,1}>"
            " { y = Tile(x, r) }",
            {"x": RNG.standard_normal((4, 1, 1, 3)).astype(F)},
        ),
        (
            "g (float[2,3,N,5] x, int64[2,3,2,5] i) => (float[A,B,C,D] y) <int64[1] zero = {0}, "
            "int64[1] end = {2}, int64[1] axis = {2}> { s = Slice(x, zero, end, axis) "
            "y = GatherElements<axis = 1>(s, i) }",
            {"x": X4, "i": RNG.integers(0, 3, (2, 3, 2, 5))},
        ),
        (
            "g (float[4] x) => (bool[4] y) { y = Cast<to = 9>(x) }",
            {"x": np.asarray([0, -0.0, 0.1, np.nan], F)},
        ),
        (
            "g (float[3,2] x) => (bool[3,1] y) <int64[1] a = {1}, float inf = {-3}> {"
            " m = ReduceMax(x, a) n = IsInf(m) y = Identity(n) }",
            {"x": np.asarray([[-np.inf, -np.inf], [-np.inf, 1], [np.nan, 0]], F)},
        ),
        (
            "g (float[3,2] x) => (bool[3,1] y) <int64[1] a = {1}> {"
            " m = ReduceMin(x, a) y = IsInf(m) }",
            {"x": np.asarray([[np.inf, np.inf], [np.inf, 1], [2, 0]], F)},
        ),
        (
            "g (float[2,0,4] x) => (float[2,1,4] y) <int64[1] a = {1}> { y = ReduceMax(x, a) }",
            {"x": np.zeros((2, 0, 4), F)},
        ),
        (
            "g (float[1,1,9] x) => (float[A,B,C] y) { y = AveragePool<ceil_mode = 1,"
            " count_include_pad = 1, kernel_shape = [7], pads = [3, 3], strides = [3]>(x) }",
            {"x": np.arange(1, 10, dtype=F).reshape(1, 1, 9)},
        ),
        (
            "g (float[1,2,H,W] x) => (float[A,B,C,D] y) { y = AveragePool<ceil_mode = 1,"
            " count_include_pad = 1, kernel_shape = [3,3], pads = [1,1,1,1], strides = [2,2]>(x) }",
            {"x": RNG.standard_normal((1, 2, 6, 9)).astype(F)},
        ),
        (
            "g (float[2] x, bool[1,1] c) => (float[2] y) { y = If(c) <"
            " then_branch = t () => (float[2] u) { u = Neg(x) },"
            " else_branch = e () => (float[2] v) { v = Abs(x) }> }",
            {"x": np.asarray([1, -2], F), "c": np.asarray([[True]])},
        ),
        (
            "g (float[N] x, bool[N] c) => (float[K] y) { y = Compress(x, c) }",
            {"x": np.asarray([1, 2, 3], F), "c": np.asarray([True, False, True])},
        ),
        (
            "g (float[1] x, bool[1] c) => (float[K] y) { y = Compress(x, c) }",
            {"x": np.asarray([1], F), "c": np.asarray([True])},
        ),
        (
            "g (float[3,5] x, int64[2,2] i) => (float[2,2] y)"
            " { y = GatherElements<axis = 0>(x, i) }",
            {"x": np.arange(15, dtype=F).reshape(3, 5), "i": np.asarray([[0, 2], [1, 1]], I)},
        ),
        (
            "g (float[N,5] x, int64[1,3] i) => (float[1,3] y)"
            " { y = GatherElements<axis = -1>(x, i) }",
            {"x": np.arange(15, dtype=F).reshape(3, 5), "i": np.asarray([[0, 4, 2]], I)},
        ),
        (
            "g (float[2,3,4] x, int64[1] a) => (float[A,B,C] y) { y = ReduceL2(x, a) }",
            {"x": X4[0, :2, :3, :4].repeat(2, 1)[:, :3], "a": np.asarray([1], I)},
        ),
        (
            "g (float[2,3] x) => (float[K] y) { y = Unique<sorted = 0>(x) }",
            {"x": np.asarray([[3, 1, 3], [2, 1, 0]], F)},
        ),
        (
            "g (int64[6] x) => (int64[K] i, int64[K] c) { y, i, v, c = Unique<sorted = 0>(x) }",
            {"x": np.asarray([5, 4, 5, 4, 5, 4], I)},
        ),
        (
            "g (int64[4] x, int64[1] k) => (int64[3] y, int64[3] i)"
            " { y, i = TopK<axis = 0>(x, k) }",
            {"x": np.zeros(4, I), "k": np.asarray([3], I)},
        ),
        (
            "g (float[2,3,4] x, float[4] s, float[3,1] b) => (float[2,3,4] y)"
            " { y = LayerNormalization<axis = 1>(x, s, b) }",
            {
                "x": RNG.standard_normal((2, 3, 4)).astype(F) * F(3),
                "s": np.array([1, -2, 3, 0.5], F),
                "b": np.array([[9], [8], [-7]], F),
            },
        ),
    ],
)
def test_repair_gives_the_right_numbers(text: str, feeds: Values, tmp_path: Path) -> None:
    whole = model(text)
    expected = run(whole, feeds)
    path = lower(whole, tmp_path, "openvino").files[0]
    got = run_openvino(path, *(np.asarray(v) for v in feeds.values()))
    for a, b in zip(got, expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6)
    repaired = model(text)
    assert apply(repaired, RULES, Remarks()) == []
    check(repaired)
    for a, b in zip(run(repaired, feeds), expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6)


@pytest.mark.parametrize(
    "text",
    [
        "g (float[1,10,1] x) => (float[1,6,2] y) { y = DFT<onesided = 1>(x) }",
        "g (float[1,4,10,1] x) => (float[1,4,10,2] y) { y = DFT(x) }",
        "g (float[1,2,4] x, float[1,12,4] w, float[1,12,3] r, float[1,9] p)"
        " => (float[A,B,C,D] y) { y = LSTM<hidden_size = 3>(x, w, r, , , , , p) }",
        "g (float[1,2,4] x, float[1,12,4] w, float[1,12,3] r) => (float[A,B,C,D] y)"
        " { y = LSTM<hidden_size = 3, input_forget = 1>(x, w, r) }",
        "g (float[1,2,4] x, float[1,12,4] w, float[1,12,3] r) => (float[A,B,C,D] y)"
        ' { y = LSTM<hidden_size = 3, activations = ["HardSigmoid", "Tanh", "Elu"]>(x, w, r) }',
        "g (float[1,2,4] x, float[1,3,4] w, float[1,3,3] r) => (float[A,B,C,D] y)"
        ' { y = RNN<hidden_size = 3, activations = ["Softsign"]>(x, w, r) }',
        "g (float[1,2,6,6] x, float[2,4] k, int64[2] i) => (float[2,2,2,2] y)"
        ' { y = RoiAlign<mode = "max", sampling_ratio = 1>(x, k, i) }',
    ],
)
def test_a_fault_is_written_by_its_definition(text: str) -> None:
    changed = model(text)
    kind = changed.graph[0].op_type
    assert apply(changed, RULES, Remarks()) == []
    assert kind not in ops(changed)


def test_a_window_tells_the_length_of_a_frame(tmp_path: Path) -> None:
    whole = model(
        "g (float[1,40,1] x) => (float[1,4,9,2] y) <int64 hop = {8}, float[16] w = "
        "{1,0,2,1,1,1,1,1,1,1,1,1,1,1,3,1}> { y = STFT<onesided = 1>(x, hop, w) }"
    )
    x = RNG.standard_normal((1, 40, 1)).astype(F)
    (expected,) = run(whole, {"x": x})
    path = lower(whole, tmp_path, "openvino").files[0]
    (got,) = run_openvino(path, x)
    np.testing.assert_allclose(got, expected, rtol=0, atol=1e-5)


def test_attention_window_is_written_out(tmp_path: Path) -> None:
    text = """g (float[1,2,6,8] q) => (float[1,2,6,8] y) {
        y = Attention<is_causal = 1, left_window_size = 2>(q, q, q) }"""
    whole = model(text, opset=25)
    q = RNG.standard_normal((1, 2, 6, 8)).astype(F)
    scores = q @ q.swapaxes(-1, -2) / np.sqrt(8)
    row, column = np.indices((6, 6))
    scores = np.where((column <= row) & (column >= row - 2), scores, -np.inf)
    weights = np.exp(scores)
    expected = weights / weights.sum(-1, keepdims=True) @ q
    (y,) = run_openvino(lower(whole, tmp_path, "openvino").files[0], q)
    np.testing.assert_allclose(y, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("axis", [0, 1, 2])
@pytest.mark.parametrize("sizes", ["2,3,4", "B,C,D"])
def test_squeeze_of_an_open_size_refuses_what_is_not_one(
    axis: int, sizes: str, tmp_path: Path
) -> None:
    dims = sizes.split(",")
    dims[axis] = "T"
    graph = model(
        f"g (float[{','.join(dims)}] x) => (float[M,N] y) <int64[1] a = {{{axis}}}>"
        " { s = Squeeze(x, a) y = Neg(s) }"
    )
    path = lower(graph, tmp_path, "openvino").files[0]
    x = RNG.standard_normal((2, 3, 4)).astype(np.float32)
    one = x.take([0], axis)
    np.testing.assert_array_equal(run_openvino(path, one)[0], -one.squeeze(axis))
    # With one thread the engine gives an empty result instead of its error.
    compiled = openvino.Core().compile_model(path, "CPU", {"INFERENCE_NUM_THREADS": 2})
    with pytest.raises(RuntimeError, match="reshape"):
        compiled([x])


def test_squeeze_of_a_known_size_stays() -> None:
    graph = model("g (float[B,1,4] x) => (float[B,4] y) <int64[1] a = {1}> { y = Squeeze(x, a) }")
    assert apply(graph, RULES, Remarks()) == []
    assert ops(graph) == ["Squeeze"]


def test_squeeze_of_open_sizes_is_refused_with_what_to_do() -> None:
    (problem,) = apply(model("g (float[N,1] x) => (float y) { y = Squeeze(x) }"), RULES, Remarks())
    assert (problem.op, problem.reason) == ("Squeeze", "dynamic_shape")
    assert "--input-shape" in problem.hint


@pytest.mark.parametrize("axes", ["2", "-1"])
@pytest.mark.parametrize("op", ["ReduceSum", "ReduceMean", "ReduceMax", "ReduceLogSumExp"])
def test_a_reduction_of_the_last_of_three_axes_keeps_columns_apart(
    op: str, axes: str, tmp_path: Path
) -> None:
    text = (
        "g (float[N,3,4] x) => (float[N,3] y) "
        f"<int64[1] a = {{{axes}}}, float half = {{0.5}}, float[3] c = {{1.0,20.0,300.0}}> "
        f"{{ r = {op}<keepdims = 0>(x, a) h = Mul(r, half) y = Sub(c, h) }}"
    )
    whole, x = model(text), RNG.standard_normal((2, 3, 4)).astype(np.float32)
    lowered = lower(whole, tmp_path, "openvino")
    found = run_openvino(lowered.files[0], x)[0]
    np.testing.assert_allclose(found, run(whole, {"x": x})[0], rtol=1e-5)


def test_other_reductions_stay() -> None:
    text = (
        "g (float[N,3,4] x) => (float[N,4] y) <int64[1] a = {1}, float[4] c = {1.0,2.0,3.0,4.0}> "
        "{ r = ReduceSum<keepdims = 0>(x, a) y = Add(r, c) }"
    )
    whole = model(text)
    apply(whole, RULES, Remarks())
    assert ops(whole) == ["ReduceSum", "Add"]
