import numpy as np
import pytest

from edgeinfer.convert.lower.onnxruntime.quirks import FASTER, MEANS, RULES
from edgeinfer.convert.lower.rules import apply
from edgeinfer.errors import Remarks
from tests.convert.lower.running import check, model, ops, run

RNG = np.random.default_rng(0)
X = np.concatenate([RNG.standard_normal(2000) * 6, [0, -0.0, 20, 88, -88, 200, -200]])


@pytest.mark.parametrize(
    ("node", "expected"),
    [
        ("Swish(x)", ["Sigmoid", "Mul"]),
        ("Swish<alpha = 1.702>(x)", ["Mul", "Sigmoid", "Mul"]),
        ("Mish(x)", ["Clip", "Exp", "Add", "Mul", "Add", "Div", "Mul"]),
        ("Gelu(x)", ["Gelu"]),
    ],
)
def test_faster_form_has_the_same_numbers(node: str, expected: list[str]) -> None:
    text = f"g (float[N] x) => (float[N] y) {{ y = {node} }}"
    before, after = model(text), model(text)
    assert apply(after, FASTER, Remarks()) == []
    assert ops(after) == expected
    if node != "Gelu(x)":
        check(after)
    feeds = {"x": X.astype(np.float32)}
    np.testing.assert_allclose(run(after, feeds)[0], run(before, feeds)[0], rtol=1e-6, atol=1e-6)


def test_mish_is_right_in_double_precision() -> None:
    whole = model("g (float[N] x) => (float[N] y) { y = Mish(x) }")
    apply(whole, FASTER, Remarks())
    x = X.astype(np.float32)
    exact = x * np.tanh(np.logaddexp(0, x.astype(np.float64)))
    np.testing.assert_allclose(run(whole, {"x": x})[0], exact, rtol=1e-6, atol=1e-30)


def test_mish_passes_nan_and_infinity_on() -> None:
    whole = model("g (float[N] x) => (float[N] y) { y = Mish(x) }")
    before = model("g (float[N] x) => (float[N] y) { y = Mish(x) }")
    apply(whole, FASTER, Remarks())
    feeds = {"x": np.asarray([np.nan, np.inf], np.float32)}
    np.testing.assert_array_equal(run(whole, feeds)[0], run(before, feeds)[0])


@pytest.mark.parametrize(
    ("kind", "node"),
    [("double", "Mish(x)"), ("float16", "Mish(x)"), ("double", "Gelu(x)")],
)
def test_other_types_keep_the_standard_form(kind: str, node: str) -> None:
    whole = model(f"g ({kind}[N] x) => ({kind}[N] y) {{ y = {node} }}")
    apply(whole, FASTER, Remarks())
    assert ops(whole) == [node.split("(")[0]]


def test_tanh_gelu_keeps_the_standard_form() -> None:
    whole = model('g (float[N] x) => (float[N] y) { y = Gelu<approximate = "tanh">(x) }')
    apply(whole, FASTER, Remarks())
    assert whole.graph[0].domain == ""


ATTENTION = """g (float[B,2,S,8] q, float[B,2,S,8] k, {kind}[B,1,{rows},S] m)
    => (float[B,2,S,8] y) {{
    a = Attention(q, k, k, m)
    y = Attention(a, k, k, m)
}}"""


@pytest.mark.parametrize("kind", ["float", "bool"])
def test_mask_with_one_row_is_repeated_once_for_all_nodes(kind: str) -> None:
    whole = model(ATTENTION.format(kind=kind, rows=1), opset=23)
    notes = Remarks()
    assert apply(whole, RULES, notes) == []
    assert ops(whole).count("Expand") == 1
    check(whole)
    q, k = (RNG.standard_normal((3, 2, 5, 8)).astype(np.float32) for _ in range(2))
    hidden = RNG.random((3, 1, 1, 5)) < 0.3
    hidden[..., 0] = False
    mask = np.where(hidden, -1e9, 0).astype(np.float32)

    def attend(q: np.ndarray) -> np.ndarray:
        scores = q @ k.swapaxes(-1, -2) / np.sqrt(8) + mask
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        result: np.ndarray = weights / weights.sum(-1, keepdims=True) @ k
        return result

    given = mask if kind == "float" else ~hidden
    (y,) = run(whole, {"q": q, "k": k, "m": given})
    np.testing.assert_allclose(y, attend(attend(q)), rtol=1e-4, atol=1e-5)


def test_mask_with_a_row_for_every_query_is_left_alone() -> None:
    whole = model(ATTENTION.format(kind="float", rows="S"), opset=23)
    assert apply(whole, RULES, Remarks()) == []
    assert ops(whole) == ["Attention", "Attention"]


BYTES = """g (float[N] x) => (float[N] y)
<float s = {0.05}, uint8 z = {128}, float t = {0.03}, uint8 w = {10}> {
    q = QuantizeLinear(x, s, z)
    d = DequantizeLinear(q, s, z)
    f = Swish(d)
    r = QuantizeLinear(f, t, w)
    y = DequantizeLinear(r, t, w)
}"""


def test_between_bytes_both_factors_of_swish_are_bytes() -> None:
    before, after = model(BYTES), model(BYTES)
    apply(after, FASTER, Remarks())
    pair = ["QuantizeLinear", "DequantizeLinear"]
    assert ops(after) == [*pair, "Sigmoid", *pair, "Mul", *pair]
    check(after)
    feeds = {"x": X.astype(np.float32)}
    got, want = run(after, feeds)[0], run(before, feeds)[0]
    # Half a step of the gate, times the largest value, and one of the result.
    assert np.abs(got - want).max() <= 6.4 / 510 + 0.03


def test_bytes_on_one_side_alone_leave_floats() -> None:
    text = BYTES.replace("d = DequantizeLinear(q, s, z)", "d = Relu(x)")
    half = model(text)
    apply(half, FASTER, Remarks())
    assert "DequantizeLinear" not in ops(half)[: ops(half).index("Mul")]
    wide = model(BYTES.replace("uint8", "uint16"))
    apply(wide, FASTER, Remarks())
    assert ops(wide).count("QuantizeLinear") == 2


MEAN = """g (float[1,8,12,12] x, float[8,8,3,3] w) => (float[1,8,1,1] y)
<int64[2] axes = {2, 3}> {
    c = Conv(x, w)
    a = HardSwish(c)
    y = ReduceMean(a, axes)
}"""


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ((), ["Conv", "HardSwish", "GlobalAveragePool"]),
        (("{2, 3}", "{-1, -2}"), ["Conv", "HardSwish", "GlobalAveragePool"]),
        (
            ("ReduceMean(", "ReduceMean<keepdims=0>(", "[1,8,1,1] y", "[1,8] y"),
            ["Conv", "HardSwish", "GlobalAveragePool", "Flatten"],
        ),
        # A mean over all, of rows of a transposed value, and of an image that is large.
        (("{2, 3}", "{1, 3}", "[1,8,1,1] y", "[1,1,10,1] y"), ["Conv", "HardSwish", "ReduceMean"]),
        (
            ("HardSwish", "Transpose", "[1,8,1,1] y", "[10,10,1,1] y"),
            ["Conv", "Transpose", "ReduceMean"],
        ),
        (("[1,8,12,12]", "[1,8,36,36]"), ["Conv", "HardSwish", "ReduceMean"]),
        (("HardSwish", "Relu", "c = Conv(x, w)", "c = Exp(x)"), ["Exp", "Relu", "ReduceMean"]),
    ],
)
def test_a_mean_of_what_a_convolution_made_is_a_pool(
    changes: tuple[str, ...], expected: list[str]
) -> None:
    text = MEAN
    for old, new in zip(changes[::2], changes[1::2], strict=True):
        text = text.replace(old, new)
    before, after = model(text), model(text)
    apply(after, (*FASTER, MEANS), Remarks())
    assert ops(after) == expected
    check(after)
    feeds = {
        value.name or "": RNG.standard_normal(value.shape.numpy()).astype(np.float32)
        for value in before.graph.inputs
        if value.shape is not None
    }
    got, want = run(after, feeds)[0], run(before, feeds)[0]
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)
