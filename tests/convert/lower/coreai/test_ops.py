"""What the node suite does not ask: open sizes, integers at their ends, bodies, half precision."""

import numpy as np
import pytest

from edgeinfer.types import Array
from tests.convert.lower.coreai.run import check, computed, floats, needs_coreai, refusal

pytestmark = needs_coreai


@pytest.mark.parametrize("op", ["Div", "Mod", "Max", "Min"])
def test_integers_that_need_64_bits(op: str) -> None:
    a = np.array([1 << 40, -(1 << 40), 7, -7, 5], np.int64)
    b = np.array([3, 3, -3, 3, 1 << 33], np.int64)
    check(f"g (int64[5] a, int64[5] b) => (int64[5] y) {{y = {op}(a, b)}}", {"a": a, "b": b})


def test_integers_wrap_as_their_type_does() -> None:
    x = np.array([100, -128, 127], np.int8)
    check("g (int8[3] x) => (int8[3] y) {y = Add(x, x)}", {"x": x})


def test_reshape_by_sizes_that_only_a_run_knows() -> None:
    text = (
        "g (float[n,m,4] x) => (float[a,b] y) <int64[1] z = {0}, int64[1] r = {-1}> "
        "{s = Shape(x) f = Gather(s, z) c = Concat<axis=0>(f, r) y = Reshape(x, c)}"
    )
    check(text, {"x": floats(2, 3, 4)}, {"x": floats(5, 1, 4)})


def test_attention_with_open_sizes() -> None:
    text = (
        "g (float[b,t,8] x) => (float[b,t,8] y) <int64[4] s = {0,0,2,4}, int64[3] o = {0,0,8}> "
        "{r = Reshape(x, s) q = Transpose<perm=[0,2,1,3]>(r) k = Transpose<perm=[0,2,3,1]>(r) "
        "m = MatMul(q, k) p = Softmax(m) v = MatMul(p, q) w = Transpose<perm=[0,2,1,3]>(v) "
        "y = Reshape(w, o)}"
    )
    check(text, {"x": floats(2, 3, 8)}, {"x": floats(1, 7, 8)})


@pytest.mark.parametrize("op", ["LSTM", "GRU", "RNN"])
@pytest.mark.parametrize("direction", ["forward", "reverse"])
def test_recurrent_layers_over_open_sequences(op: str, direction: str) -> None:
    gates = {"LSTM": 4, "GRU": 3, "RNN": 1}[op]
    text = (
        f"g (float[n,b,3] x, float[1,{4 * gates},3] w, float[1,{4 * gates},4] r, "
        f"float[1,{8 * gates}] v, int32[b] l) => (float[n,1,b,4] y, float[1,b,4] h) "
        f'{{y, h = {op}<hidden_size=4, direction="{direction}">(x, w, r, v, l)}}'
    )
    fixed = {
        "w": floats(1, 4 * gates, 3, seed=1),
        "r": floats(1, 4 * gates, 4, seed=2),
        "v": floats(1, 8 * gates, seed=3),
    }
    one = {"x": floats(7, 2, 3), "l": np.array([7, 4], np.int32), **fixed}
    check(text, one, {"x": floats(2, 1, 3), "l": np.array([2], np.int32), **fixed})


CONSTANT = "a = Constant <value = float[4] {5,6,7,8}> ()"


@pytest.mark.parametrize("first", [CONSTANT, "a = Identity(x)", "a = Neg(x)"])
@pytest.mark.parametrize("second", [CONSTANT, "a = Identity(w)", "a = Neg(x)"])
def test_branches_that_compute_nothing(first: str, second: str) -> None:
    text = (
        "g (float[4] x, bool c) => (float[4] y, float[4] z) <float[4] w = {1.0,2.0,3.0,4.0}> "
        "{y, z = If(c) <"
        f"then_branch = t () => (float[4] a, float[4] b) {{{first} b = Neg(x)}}, "
        f"else_branch = e () => (float[4] a, float[4] b) {{{second} b = Identity(x)}}>}}"
    )
    check(text, {"x": floats(4), "c": np.array(True)}, {"x": floats(4), "c": np.array(False)})


def test_constants_of_different_sizes_are_refused() -> None:
    text = (
        "g (bool c) => (float[n] y) {y = If(c) <"
        "then_branch = t () => (float[2] a) {a = Constant <value = float[2] {5,6}> ()}, "
        "else_branch = e () => (float[1] b) {b = Constant <value = float[1] {5}> ()}>}"
    )
    assert "different sizes" in refusal(text)[0].detail


@pytest.mark.parametrize("kind", ["int8", "uint8", "int64"])
def test_shifts_at_the_ends_of_a_type(kind: str) -> None:
    limits = np.iinfo(kind)
    x = np.array([limits.min, limits.max, 1, 1], kind)
    by = np.array([1, 1, limits.bits - 1, limits.bits - 2], kind)
    for way, right in (("LEFT", x << by), ("RIGHT", x >> by)):
        text = f"g ({kind}[4] x, {kind}[4] b) => ({kind}[4] y) "
        text += f'{{y = BitShift<direction="{way}">(x, b)}}'
        np.testing.assert_array_equal(computed(text, {"x": x, "b": by})["y"], right)


@pytest.mark.parametrize("kind", ["float", "int64", "bool"])
@pytest.mark.parametrize(
    "body", ["p = Identity(u) q = Identity(v)", "p = {both}(v, u) q = Identity(v)"]
)
def test_a_loop_hands_its_values_around(kind: str, body: str) -> None:
    dtype = {"float": np.float32, "int64": np.int64, "bool": np.bool_}[kind]
    body = body.format(both="Or" if kind == "bool" else "Add")
    text = (
        f"g ({kind}[2] x, {kind}[2] w, int64 n) => ({kind}[2] y, {kind}[2] z) <bool go = {{1}}> "
        f"{{y, z = Loop(n, go, x, w) <body = b (int64 i, bool c, {kind}[2] v, {kind}[2] u) "
        f"=> (bool k, {kind}[2] p, {kind}[2] q) {{k = Identity(c) {body}}}>}}"
    )
    feeds: dict[str, Array] = {"x": np.array([0, 3], dtype), "w": np.array([1, 0], dtype)}
    check(text, {**feeds, "n": np.array(3)}, {**feeds, "n": np.array(4)})


def test_one_value_is_several_outputs() -> None:
    text = "g (float[2] x) => (float[2] y, float[2] z, float[2] v) "
    check(f"{text} {{y = Identity(x) z = Neg(x) v = Identity(z)}}", {"x": floats(2)})


def test_results_without_elements() -> None:
    text = "g (int64[3,0,5] x) => (int64[3,0,5] y) {y = Trilu(x)}"
    assert computed(text, {"x": np.zeros((3, 0, 5), np.int64)})["y"].shape == (3, 0, 5)


def test_a_loop_collects_what_it_makes() -> None:
    text = (
        "g (float[3] x, int64 n) => (float[3] y, float[m,3] z) <bool go = {1}> "
        "{y, z = Loop(n, go, x) <body = b (int64 i, bool c, float[3] v) "
        "=> (bool k, float[3] w, float[3] u) {k = Identity(c) w = Add(v, v) u = Neg(w)}>}"
    )
    check(text, {"x": floats(3), "n": np.array(4)}, {"x": floats(3), "n": np.array(1)})


def test_a_constant_of_one_branch_is_seen_by_all() -> None:
    text = (
        "g (float[2] x, bool c) => (float[2] y, float[2] z) <float[2] w = {1.0,2.0}> {y = If(c) <"
        "then_branch = t () => (float[2] a) {a = Add(x, w)}, "
        "else_branch = e () => (float[2] b) {b = Sub(x, w)}> z = Mul(x, w)}"
    )
    check(text, {"x": floats(2), "c": np.array(False)}, {"x": floats(2), "c": np.array(True)})


@pytest.mark.parametrize("factor", [2, 3])
@pytest.mark.parametrize("mode", ["nearest", "linear"])
def test_open_pictures_grow_by_whole_factors(mode: str, factor: int) -> None:
    text = (
        f"g (float[1,2,h,w] x) => (float[1,2,a,b] y) "
        f"<float[4] s = {{1.0,1.0,{factor}.0,{factor}.0}}>"
        f' {{y = Resize<mode="{mode}", coordinate_transformation_mode="half_pixel">(x, , s)}}'
    )
    check(text, {"x": floats(1, 2, 3, 5)}, {"x": floats(1, 2, 4, 1)})


def test_half_precision_within_its_rounding() -> None:
    text = (
        "g (float[1,3,8,8] x, float[4,3,3,3] w) => (float[1,4,6,6] y) "
        "{c = Conv(x, w) r = Relu(c) y = Add(r, r)}"
    )
    feeds = {"x": floats(1, 3, 8, 8), "w": floats(4, 3, 3, 3, seed=1)}
    check(text, feeds, rtol=4e-3, precision="fp16")


def test_means_written_as_a_sum_and_a_factor_do_not_overflow() -> None:
    text = (
        "g (float[1,512] x) => (float[1,1] y) <int64[1] a = {1}, float f = {0.001953125}> "
        "{s = ReduceSum(x, a) m = Mul(s, f) y = Relu(m)}"
    )
    check(text, {"x": floats(1, 512) + 300}, rtol=2e-3, precision="fp16")


@pytest.mark.parametrize("kind", ["seq(float[5])", "optional(float[5])", "optional(seq(float[5]))"])
def test_what_is_no_tensor_is_refused(kind: str) -> None:
    problems = refusal(
        f"g ({kind} x, float[2] z) => ({kind} y, float[2] w) {{y = Identity(x) w = Relu(z)}}"
    )
    assert [(p.op, p.detail) for p in problems] == [
        ("model input", "'x' is no tensor"),
        ("model output", "'y' is no tensor"),
    ]


@pytest.mark.parametrize(
    "call",
    [
        *("AveragePool<kernel_shape=[8,8]>(x)", "LpPool<kernel_shape=[8,8]>(x)"),
        *("GlobalAveragePool(x)", "ReduceSum(x, a)", "ReduceMean(x, a)"),
        *("ReduceL1(x, a)", "ReduceL2(x, a)"),
    ],
)
def test_halves_whose_sum_does_not_fit_are_added_up_in_single_precision(call: str) -> None:
    value = 60 if call.startswith(("ReduceSum", "ReduceL1")) else 6000
    text = f"g (float16[1,2,8,8] x) => (float16[1,2,1,1] y) <int64[2] a = {{2,3}}> {{y = {call}}}"
    check(text, {"x": np.full((1, 2, 8, 8), value, np.float16)}, rtol=1e-3)


@pytest.mark.parametrize(
    ("call", "value"),
    [
        *(("LpNormalization<axis=1>(x)", 6000), ("LRN<size=3, alpha=0.01>(x)", 600)),
        *(("GlobalLpPool(x)", 6000), ("InstanceNormalization(x, w, w)", 600)),
    ],
)
def test_halves_whose_squares_do_not_fit_are_what_single_precision_makes_of_them(
    call: str, value: int
) -> None:
    half = (
        "g (float16[1,4,1,2] x) => (float16[1,4,1,a] y) "
        f"<float[4] f = {{1.0,2.0,3.0,4.0}}> {{w = CastLike(f, x) y = {call}}}"
    )
    x = np.array([1, -2, 3, 4, 0, 6, -7, 8], np.float16).reshape(1, 4, 1, 2) * np.float16(value / 8)
    single = half.replace("float16", "float", 2)
    want = computed(single, {"x": x.astype(np.float32)})["y"]
    np.testing.assert_allclose(computed(half, {"x": x})["y"], want, rtol=1e-3)


def test_all_that_is_refused_comes_in_one_list() -> None:
    problems = refusal(
        "g (float[2,3] x) => (float[2,3] y, float[2,3] z) "
        "{y = Bernoulli(x) z = RandomNormalLike(x)}"
    )
    assert {p.op for p in problems} == {"Bernoulli", "RandomNormalLike"}


@pytest.mark.parametrize("op", ["Sum", "Mean", "Max", "Min", "Prod", "L2", "LogSumExp"])
def test_reductions_of_open_sizes(op: str) -> None:
    text = f"g (float[n,3,m] x) => (float[1,3,1] y) <int64[2] a = {{0,2}}> {{y = Reduce{op}(x, a)}}"
    check(text, {"x": floats(2, 3, 4)}, {"x": floats(1, 3, 1)}, rtol=1e-5)


@pytest.mark.parametrize("op", ["Sum", "Max", "Prod"])
def test_reductions_of_what_a_run_leaves_empty(op: str) -> None:
    text = (
        "g (float[4] x) => (float[1] y) <int64[1] a = {0}> "
        f"{{n = NonZero(x) t = Transpose(n) f = GatherND(x, t) y = Reduce{op}(f, a)}}"
    )
    check(text, {"x": np.zeros(4, np.float32)}, {"x": floats(4)})
