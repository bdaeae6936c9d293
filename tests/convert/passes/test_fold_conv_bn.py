import numpy as np
import onnx_ir as ir
import pytest
from onnx.reference import ReferenceEvaluator

from edgeinfer.convert.passes.fold_conv_bn import MAX_GAIN, FoldConvBn
from edgeinfer.types import Array
from tests.convert.passes.fusing import check_close, check_fused, check_left_alone, graph, ops, run

RNG = np.random.default_rng(0)
X = RNG.standard_normal((2, 4, 7, 7)).astype(np.float32)
BN = "y = BatchNormalization(c, gamma, beta, mean, var)"


def values(*shape: int, low: float = -1.0, high: float = 1.0) -> str:
    numbers = RNG.uniform(low, high, int(np.prod(shape)))
    return "{" + ", ".join(f"{v:.6f}" for v in numbers) + "}"


def constants(weight: tuple[int, ...], channels: int, **more: str) -> str:
    dims = ",".join(map(str, weight))
    parts = [
        f"float[{dims}] w = {values(*weight)}",
        f"float[{channels}] b = {values(channels)}",
        f"float[{channels}] gamma = {values(channels, low=0.5, high=2)}",
        f"float[{channels}] beta = {values(channels)}",
        f"float[{channels}] mean = {values(channels)}",
        f"float[{channels}] var = {values(channels, low=0.2, high=2)}",
        *more.values(),
    ]
    return "<" + ", ".join(parts) + "> "


HEAD = "g (float[N,4,7,7] x) => (y) "
CONV = constants((6, 4, 3, 3), 6)


def exact(model_text: str, feeds: dict[str, Array]) -> Array:
    """Evaluate the same graph in double precision."""
    wide = graph(model_text.replace("float[", "double[").replace("float ", "double "))
    evaluator = ReferenceEvaluator(ir.to_proto(wide))
    found = evaluator.run(None, {k: v.astype(np.float64) for k, v in feeds.items()})
    return np.asarray(found[0])


@pytest.mark.parametrize(
    ("layer", "weight", "channels"),
    [
        ("c = Conv(x, w, b)", (6, 4, 3, 3), 6),
        ("c = Conv(x, w)", (6, 4, 3, 3), 6),
        ("c = Conv<group = 2, pads = [1,1,1,1], strides = [2,2]>(x, w, b)", (6, 2, 3, 3), 6),
        ("c = Conv<group = 4>(x, w)", (8, 1, 3, 3), 8),
        ("c = Conv(x, w)", (1, 4, 3, 3), 1),
    ],
)
def test_a_batch_norm_goes_into_the_convolution(
    layer: str, weight: tuple[int, ...], channels: int
) -> None:
    text = HEAD + constants(weight, channels) + f"{{ {layer} {BN} }}"
    check_fused(text, [FoldConvBn()], {"Conv": 1}, {"x": X}, exact(text, {"x": X}))


@pytest.mark.parametrize(
    ("group", "weight"), [(1, (4, 6, 3, 3)), (2, (4, 3, 3, 3)), (4, (4, 2, 2, 2))]
)
def test_a_batch_norm_goes_into_the_transposed_convolution(
    group: int, weight: tuple[int, ...]
) -> None:
    consts = constants(weight, weight[1] * group)
    layer = f"c = ConvTranspose<group = {group}, strides = [2,2]>(x, w, b)"
    text = HEAD + consts + f"{{ {layer} {BN} }}"
    check_fused(text, [FoldConvBn()], {"ConvTranspose": 1}, {"x": X})


@pytest.mark.parametrize(
    ("layer", "weight", "remaining"),
    [
        ("c = Gemm(x, w, b)", (4, 6), {"Gemm": 1}),
        ("c = Gemm<transB = 1, alpha = 0.5, beta = 2.0>(x, w, b)", (6, 4), {"Gemm": 1}),
        ("c = Gemm(x, w)", (4, 6), {"Gemm": 1}),
        ("c = MatMul(x, w)", (4, 6), {"MatMul": 1, "Add": 1}),
    ],
)
def test_a_batch_norm_goes_into_the_product(
    layer: str, weight: tuple[int, ...], remaining: dict[str, int]
) -> None:
    text = "g (float[N,4] x) => (y) " + constants(weight, 6) + f"{{ {layer} {BN} }}"
    x = X[0, :, 0].T.copy()
    check_fused(text, [FoldConvBn()], remaining, {"x": x}, exact(text, {"x": x}))


@pytest.mark.parametrize(
    ("shape", "tail"),
    [
        ("6,1,1", "y = Mul(c, k)"),
        ("6,1,1", "y = Mul(k, c)"),
        ("1,6,1,1", "y = Div(c, k)"),
        ("6,1,1", "y = Add(k, c)"),
        ("6,1,1", "y = Sub(c, k)"),
        ("6,1,1", "m = Mul(c, k) y = Add(m, k)"),
        ("6,1,1", "m = Add(c, k) n = BatchNormalization(m, gamma, beta, mean, var) y = Mul(n, k)"),
    ],
)
def test_constants_of_a_channel_go_into_the_convolution(shape: str, tail: str) -> None:
    consts = constants((6, 4, 3, 3), 6, k=f"float[{shape}] k = {values(6, low=0.5, high=2)}")
    text = HEAD + consts + f"{{ c = Conv(x, w, b) {tail} }}"
    check_fused(text, [FoldConvBn()], {"Conv": 1}, {"x": X}, exact(text, {"x": X}))


def test_a_single_number_goes_into_the_convolution() -> None:
    consts = constants((6, 4, 3, 3), 6, k="float k = {0.25}")
    text = HEAD + consts + "{ c = Conv(x, w) m = Mul(c, k) y = Add(m, k) }"
    check_fused(text, [FoldConvBn()], {"Conv": 1}, {"x": X}, exact(text, {"x": X}))


def test_a_shift_alone_keeps_the_weights() -> None:
    consts = constants((6, 4, 3, 3), 6, k=f"float[6,1,1] k = {values(6)}")
    model = check_fused(
        HEAD + consts + "{ c = Conv(x, w) y = Add(c, k) }", [FoldConvBn()], {"Conv": 1}, {"x": X}
    )
    assert model.graph.node(0).inputs[1] is model.graph.initializers["w"]


def test_weights_that_two_layers_share_are_changed_for_one() -> None:
    text = "g (float[N,4,7,7] x) => (y, z) " + CONV + f"{{ c = Conv(x, w) {BN} z = Conv(x, w) }}"
    check_fused(text, [FoldConvBn()], {"Conv": 2}, {"x": X})


def test_a_chain_of_layers_collapses() -> None:
    text = (
        HEAD
        + constants((4, 4, 3, 3), 4)
        + (
            "{ c = Conv(x, w, b) d = BatchNormalization(c, gamma, beta, mean, var) e = Relu(d)"
            " f = Conv(e, w, b) y = BatchNormalization(f, gamma, beta, mean, var) }"
        )
    )
    # The sums of the second layer reach 75: one part in 2^23 of that.
    feeds, atol = {"x": X}, 75 * 2.0**-23
    check_fused(text, [FoldConvBn()], {"Conv": 2, "Relu": 1}, feeds, exact(text, feeds), atol)


@pytest.mark.parametrize(
    "text",
    [
        HEAD + CONV + f"{{ c = Conv(x, w, b) d = Relu(c) {BN.replace('(c,', '(d,')} }}",
        HEAD.replace("(y)", "(y, c)") + CONV + f"{{ c = Conv(x, w, b) {BN} }}",
        HEAD.replace("(y)", "(y, z)") + CONV + f"{{ c = Conv(x, w, b) {BN} z = Relu(c) }}",
        HEAD.replace("x)", "x, float[6,4,3,3] u)") + CONV + f"{{ c = Conv(x, u, b) {BN} }}",
        HEAD.replace("x)", "x, float[6] u)") + CONV + f"{{ c = Conv(x, w, u) {BN} }}",
        HEAD.replace("x)", "x, float[6] u)")
        + CONV
        + f"{{ c = Conv(x, w, b) {BN.replace('gamma', 'u')} }}",
        HEAD
        + CONV
        + f"{{ c = Conv(x, w, b) {BN.replace('(c', '<epsilon = 0.0>(c')} }}".replace(
            ", var", ", mean"
        ),
        "g (float[N,4,7,7] x) => (y) " + CONV + "{ c = Conv(x, w, b)"
        " y, m, v = BatchNormalization<training_mode = 1>(c, gamma, beta, mean, var) }",
        "g (float[N,4,7,7] x, float[N,6,5,5] r) => (y) "
        + CONV
        + "{ c = Conv(x, w, b) y = Add(c, r) }",
    ],
    ids=[
        "activation between",
        "output",
        "other reader",
        "computed weight",
        "computed bias",
        "computed scale",
        "negative variance",
        "training",
        "residual",
    ],
)
def test_what_cannot_be_folded_is_left_alone(text: str) -> None:
    check_left_alone(text, FoldConvBn())


@pytest.mark.parametrize("shape", ["5", "1,5", "5,1", "1,1,5,1", "2,6,1,1", "6,5,1", "1,1,6,1,1"])
def test_constants_of_other_axes_are_left_alone(shape: str) -> None:
    count = int(np.prod([int(d) for d in shape.split(",")]))
    consts = constants((6, 4, 3, 3), 6, k=f"float[{shape}] k = {values(count, low=0.5, high=2)}")
    head = "g (float[2,4,7,7] x) => (y) "
    check_left_alone(head + consts + "{ c = Conv(x, w, b) y = Mul(c, k) }", FoldConvBn())


def test_a_constant_over_the_convolution_is_left_alone() -> None:
    consts = constants((6, 4, 3, 3), 6, k="float k = {0.25}")
    text = HEAD + consts + "{ c = Conv(x, w, b) y = Div(k, c) }"
    check_left_alone(text, FoldConvBn())
    check_left_alone(text.replace("Div", "Sub"), FoldConvBn())


@pytest.mark.parametrize("layer", ["c = Conv(x, w, b) u = Add(c, m)", "u = Conv(x, w, m6)"])
def test_what_is_taken_away_again_is_left_alone(layer: str) -> None:
    big = ", ".join(["12582912.0"] * 6)
    consts = constants((6, 4, 3, 3), 6, m="float m = {12582912.0}", m6=f"float[6] m6 = {{{big}}}")
    check_left_alone(HEAD + consts + f"{{ {layer} y = Sub(u, m) }}", FoldConvBn())


def test_a_product_of_more_axes_is_left_alone() -> None:
    text = "g (float[N,6,4] x) => (y) " + constants((4, 6), 6) + f"{{ c = MatMul(x, w) {BN} }}"
    check_left_alone(text, FoldConvBn())


def test_a_bias_after_a_matrix_product_stays_its_sum() -> None:
    text = "g (float[N,4] x) => (y) " + constants((4, 6), 6) + "{ c = MatMul(x, w) y = Add(c, b) }"
    check_left_alone(text, FoldConvBn())


def test_a_bias_for_each_row_is_left_alone() -> None:
    consts = constants((4, 6), 6, k=f"float[3,1] k = {values(3)}")
    text = "g (float[3,4] x) => (y) " + consts + f"{{ c = Gemm(x, w, k) {BN} }}"
    check_left_alone(text, FoldConvBn())


def test_a_batch_norm_on_its_own_stays() -> None:
    text = (
        HEAD + constants((4, 4, 1, 1), 4) + "{ y = BatchNormalization(x, gamma, beta, mean, var) }"
    )
    check_left_alone(text, FoldConvBn())


def test_half_precision_is_left_alone() -> None:
    text = (
        "g (float16[N,1,3,3] x) => (y) <float16[1,1,1,1] w = {15360}, float16[1] g = {15360}>"
        " { c = Conv(x, w) y = BatchNormalization(c, g, g, g, g) }"
    )
    check_left_alone(text, FoldConvBn())


@pytest.mark.parametrize(("var", "folds"), [(1e-6, True), (1e-9, False), (0.0, False)])
def test_a_variance_that_would_amplify_is_left_alone(var: float, folds: bool) -> None:
    text = HEAD + CONV + f"{{ c = Conv(x, w, b) {BN.replace('(c', '<epsilon = 0.0>(c')} }}"
    model = graph(text)
    data = np.ones(6, np.float32)
    data[2] = var
    model.graph.initializers["var"].const_value = ir.tensor(data)
    model.graph.initializers["gamma"].const_value = ir.tensor(np.ones(6, np.float32))
    assert (1 / np.sqrt(max(var, 1e-30)) < MAX_GAIN) == folds
    before = run(model, {"x": X})[0]
    assert FoldConvBn()(model).modified == folds
    check_close(run(model, {"x": X})[0], before, atol=0.01 if folds else 0.0)


@pytest.mark.parametrize("size", [1e36, 1e-36])
def test_weights_at_the_edge_of_single_precision_are_left_alone(size: float) -> None:
    model = graph(HEAD + CONV + f"{{ c = Conv(x, w) {BN} }}")
    w = model.graph.initializers["w"]
    w.const_value = ir.tensor((w.const_value.numpy() * size).astype(np.float32))  # type: ignore[union-attr]
    assert not FoldConvBn()(model).modified


def test_a_dead_channel_stays_dead() -> None:
    model = graph(HEAD + CONV + f"{{ c = Conv(x, w) {BN} }}")
    gamma = np.array([1, 0, 1, 0, 1, 1], np.float32)
    model.graph.initializers["gamma"].const_value = ir.tensor(gamma)
    before = run(model, {"x": X})[0]
    assert FoldConvBn()(model).modified
    assert ops(model) == {"Conv": 1}
    check_close(run(model, {"x": X})[0], before)


@pytest.mark.parametrize("gain", [1.0, 100.0, 5000.0])
@pytest.mark.parametrize("mean", [0.0, 100.0])
def test_a_fold_is_as_near_to_float64_as_what_it_replaces(gain: float, mean: float) -> None:
    rng = np.random.default_rng(1)
    parameters = {
        "gamma": rng.uniform(0.5, 1, 6),
        "beta": rng.uniform(-1, 1, 6),
        "mean": mean * rng.uniform(-1, 1, 6),
        "var": (rng.uniform(0.6, 1, 6) / gain) ** 2,
    }
    text = HEAD + CONV + f"{{ c = Conv(x, w, b) {BN.replace('(c', '<epsilon = 0.0>(c')} }}"
    model = graph(text)
    wide = graph(text.replace("float[", "double["))
    for name, value in parameters.items():
        rounded = value.astype(np.float32)
        model.graph.initializers[name].const_value = ir.tensor(rounded)
        wide.graph.initializers[name].const_value = ir.tensor(rounded.astype(np.float64))
    for name in ("w", "b"):
        tensor = model.graph.initializers[name].const_value
        assert tensor is not None
        wide.graph.initializers[name].const_value = ir.tensor(tensor.numpy().astype(np.float64))
    exact_y = np.asarray(ReferenceEvaluator(ir.to_proto(wide)).run(None, {"x": X.astype(float)})[0])
    before = run(model, {"x": X})[0]
    assert FoldConvBn()(model).modified
    after = run(model, {"x": X})[0]
    assert np.abs(after - exact_y).max() < 10 * np.abs(before - exact_y).max()
