from typing import Any

import numpy as np
import onnx_ir as ir
import pytest

from edgeinfer.convert.lower.onnxruntime.opset import choose, runtime_for, write_as
from tests.convert.lower.running import check, model
from tests.convert.lower.tabular.tables import one_node


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("g (float[2] x) => (float[2] y) { y = Relu(x) }", 21),
        ("g (float[2] x) => (int32[2] y) { y = Cast<to = 6>(x) }", 21),
        ("g (float[2] x) => (float8e8m0[2] y) { y = Cast<to = 24>(x) }", 24),
        ("g (float[1,2,4,8] x) => (float[1,2,4,8] y) { y = Attention(x, x, x) }", 23),
        ("g (float[2,4] x, float[4] s) => (float[2,4] y) { y = RMSNormalization(x, s) }", 23),
        ("g (float[2] x) => (float[2] y) { y = Swish(x) }", 24),
        (
            "g (int64 n, bool c, float[2] a, float[2] b) => (float[2] y, float[2] z) "
            "{ y, z = Loop (n, c, a, b) <body = l (int64 i, bool k, float[2] p, float[2] q) "
            "=> (bool o, float[2] r, float[2] s) { o = Identity(k) r = Neg(p) s = Abs(q) }> }",
            21,
        ),
        ("g (bfloat16[1,1,4] x) => (bfloat16[1,1,2] y) { y = MaxPool<kernel_shape=[3]>(x) }", 22),
        ("g (float[1,1,4,4] x) => (float[1,1,2,2] y) { y = MaxPool<kernel_shape=[3,3]>(x) }", 21),
        ("g (float[2] x) => (float[2] y) { y = com.acme.Foo(x) }", 21),
        (
            "g (float[2] x, bool c) => (float[2] y) { y = If(c) <"
            " then_branch = t () => (float[2] u) { u = Swish(x) },"
            " else_branch = e () => (float[2] v) { v = Identity(x) }> }",
            24,
        ),
    ],
)  # fmt: skip
def test_oldest_version_with_the_same_meaning(text: str, version: int) -> None:
    assert choose(model(text)) == version


@pytest.mark.parametrize(
    ("node", "version"),
    [
        ("Cast<to = 10>(x)", 21),
        ('Cast<to = 10, round_mode = "up">(x)', 21),
        ('Cast<to = 10, round_mode = "down">(x)', 24),
    ],
)
def test_attribute_that_is_new_counts_unless_it_is_the_default(node: str, version: int) -> None:
    whole = model(f"g (float[2] x) => (float16[2] y) {{ y = {node} }}")
    assert choose(whole) == version


def test_older_models_keep_their_version() -> None:
    assert choose(model("g (float[2] x) => (float[2] y) { y = Relu(x) }", opset=17)) == 17


def test_default_of_a_new_attribute_is_dropped_so_that_old_readers_take_the_file() -> None:
    whole = model('g (float[2] x) => (float16[2] y) { y = Cast<to = 10, round_mode = "up">(x) }')
    write_as(whole, 21)
    assert list(whole.graph[0].attributes) == ["to"]
    assert (whole.opset_imports[""], whole.ir_version) == (21, 10)
    check(whole)


def test_requirement_follows_the_version() -> None:
    plain = model("g (float[2] x) => (float[2] y) { y = Relu(x) }")
    found = [runtime_for(plain, v, "1.32") for v in (17, 21, 23, 24, 28)]
    assert found == [">=1.18", ">=1.18", ">=1.23", ">=1.24", ">=1.32"]


@pytest.mark.parametrize(
    ("more", "oldest"),
    [
        ("pads = [1,0,1,0], count_include_pad = 1", "1.26"),
        ("pads = [0,1,0,1]", "1.23"),
        ("pads = [1,1,1,1], count_include_pad = 1", "1.23"),
        ("pads = [1,1,1,1], count_include_pad = 1, ceil_mode = 1", "1.26"),
        ('auto_pad = "SAME_UPPER", count_include_pad = 1', "1.26"),
        ("count_include_pad = 1", "1.23"),
    ],
)
def test_means_that_count_uneven_padding_need_a_release(more: str, oldest: str) -> None:
    """Before 1.26 they were divided by other counts."""
    whole = model(
        "g (float[1,1,6,6] x) => (float[1,1,a,b] y) "
        f"{{ y = AveragePool<kernel_shape = [3,3], {more}>(x) }}"
    )
    assert runtime_for(whole, 23, "1.23") == f">={oldest}"


@pytest.mark.parametrize(
    ("kind", "oldest"), [("float16", "1.30"), ("float", "1.23")], ids=["halves", "floats"]
)
def test_halves_that_are_rounded_to_integers_need_a_release(kind: str, oldest: str) -> None:
    """Before 1.30 they were cut off."""
    whole = model(
        f"g ({kind}[2] x, {kind} s, int8 z) => (int8[2] y) {{ y = QuantizeLinear(x, s, z) }}"
    )
    assert runtime_for(whole, 23, "1.23") == f">={oldest}"


@pytest.mark.parametrize(
    ("more", "oldest"),
    [
        ('activations = ["HardSigmoid"]', "1.29"),
        ('activations = ["HardSigmoid"], activation_alpha = [0.2]', "1.23"),
        ('activations = ["Tanh"]', "1.23"),
        ("hidden_size = 4", "1.23"),
    ],
)
def test_activations_without_their_parameters_need_a_release(more: str, oldest: str) -> None:
    """Before 1.29 they were others than the standard's."""
    more = more if "hidden_size" in more else f"hidden_size = 4, {more}"
    whole = model(
        "g (float[3,1,2] x, float[1,4,2] w, float[1,4,4] r) => (float[3,1,1,4] y) "
        f"{{ y = RNN<{more}>(x, w, r) }}"
    )
    assert runtime_for(whole, 23, "1.23") == f">={oldest}"


@pytest.mark.parametrize(
    ("op", "about", "oldest"),
    [
        ("LinearClassifier", {"intercepts": [0.5], "post_transform": "LOGISTIC"}, "1.27"),
        ("LinearClassifier", {"intercepts": [0.5]}, "1.23"),
        ("LinearClassifier", {"intercepts": [0.5, 1.0], "post_transform": "LOGISTIC"}, "1.23"),
        ("TreeEnsemble", {}, "1.24"),
        ("TreeEnsembleRegressor", {}, "1.23"),
    ],
)
def test_tables_that_were_read_wrong_need_a_release(
    op: str, about: dict[str, Any], oldest: str
) -> None:
    whole = one_node(op, np.ones((2, 3), np.float32), coefficients=[1.0, 2.0, 3.0], **about)
    assert runtime_for(whole, 23, "1.23") == f">={oldest}"


@pytest.mark.parametrize(
    ("equation", "oldest"), [("bcka->bac", "1.26"), ("b c k a -> k b c a", "1.23")]
)
def test_a_sum_of_one_value_needs_a_release(equation: str, oldest: str) -> None:
    """Before 1.26 its run failed."""
    text = f'{{ y = Einsum<equation = "{equation}">(x) }}'
    whole = model(f"g (float[1,2,3,4] x) => (float y) {text}")
    assert runtime_for(whole, 23, "1.23") == f">={oldest}"


@pytest.mark.parametrize(("op", "oldest"), [("Erf", "1.27"), ("Gelu", "1.23"), ("Tanh", "1.23")])
def test_an_error_function_of_nan_needs_a_release(op: str, oldest: str) -> None:
    """Before 1.27 it was 1."""
    whole = model(f"g (float[2] x) => (float[2] y) {{ y = {op}(x) }}")
    assert runtime_for(whole, 23, "1.23") == f">={oldest}"


def test_the_file_format_is_one_that_the_release_reads() -> None:
    """A new exporter writes a new one for an old version of the operators too."""
    whole = model("g (float[2] x) => (float[2] y) { y = Relu(x) }", opset=17)
    whole.ir_version = 12
    write_as(whole, 17)
    assert whole.ir_version == 10


@pytest.mark.parametrize(
    ("node", "mask", "oldest"),
    [
        ("Attention(q, q, q)", "", "1.23"),
        ("Attention<is_causal = 1>(q, q, q)", "", "1.23"),
        ("Attention(q, q, q, m)", "bool[2,2] m", "1.28"),
        ("Attention(q, q, q, m)", "float[2,2] m", "1.28"),
        ("Attention(q, q, q, k)", "", "1.23"),
        ("Attention<is_causal = 1>(q, q, q, k)", "", "1.28"),
        ("Attention(q, q, q, none)", "", "1.28"),
        ("Attention(q, q, q, b)", "", "1.23"),
        ("Attention(q, q, q, , , , n)", "int64[1] n", "1.28"),
    ],
)
def test_zeros_of_queries_without_a_key_need_a_release(node: str, mask: str, oldest: str) -> None:
    """Before 1.28 they were NaN."""
    head = f"g (float[1,1,2,4] q{mask and ', '}{mask}) => (float[1,1,2,4] y) "
    zeros = "float[2,2] k = {0, 0, 0, 0}, float[2,2] none = {0, 0, 0, 0}"
    whole = model(f"{head}<{zeros}, bool[2,2] b = {{0, 1, 1, 0}}> {{ y = {node} }}")
    empty = np.array([[0, 0], [-np.inf, -np.inf]], np.float32)
    whole.graph.initializers["none"].const_value = ir.tensor(empty)
    assert runtime_for(whole, 23, "1.23") == f">={oldest}"
