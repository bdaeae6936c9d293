import numpy as np
import pytest

from edgeinfer.convert.passes.split_attention import SplitAttention
from tests.convert.passes.fusing import check_fused, check_left_alone

RNG = np.random.default_rng(0)
FEEDS = {n: RNG.standard_normal((2, 3, 5, 4)).astype(np.float32) for n in "qkv"}
HEAD = "g (float[N,3,5,4] q, float[N,3,5,4] k, float[N,3,5,4] v{more}) => (float[N,3,5,4] y) "
PRODUCTS = {"Mul": 1, "Transpose": 1, "MatMul": 2, "Softmax": 1}


def text(node: str, more: str = "") -> str:
    return HEAD.replace("{more}", f", {more}" if more else "") + "{ " + node + " }"


@pytest.mark.parametrize("scale", ["<scale = 0.3>", ""])
def test_attention_becomes_products_and_a_softmax(scale: str) -> None:
    check_fused(text(f"y = Attention{scale}(q, k, v)"), [SplitAttention()], PRODUCTS, FEEDS)


@pytest.mark.parametrize("shape", [(5, 5), (2, 1, 5, 5), (3, 5, 5)])
def test_an_added_mask_is_guarded(shape: tuple[int, ...]) -> None:
    mask = np.where(RNG.random(shape) < 0.4, -np.inf, 0.5).astype(np.float32)
    mask[..., 1, :] = -np.inf
    dims = ",".join(map(str, shape))
    remaining = PRODUCTS | {"Add": 1, "IsNaN": 1, "Where": 1}
    node = text("y = Attention<scale = 0.5>(q, k, v, m)", f"float[{dims}] m")
    check_fused(node, [SplitAttention()], remaining, FEEDS | {"m": mask})


def test_a_chosen_mask_is_guarded() -> None:
    mask = RNG.random((2, 1, 5, 5)) < 0.5
    mask[0, 0, 4] = False
    remaining = PRODUCTS | {"IsNaN": 1, "Where": 2}
    node = text("y = Attention<scale = 0.5>(q, k, v, m)", "bool[N,1,5,5] m")
    check_fused(node, [SplitAttention()], remaining, FEEDS | {"m": mask})


@pytest.mark.parametrize(
    "node",
    [
        "y = Attention<is_causal = 1>(q, k, v)",
        "y = Attention<softcap = 2.0>(q, k, v)",
        "y, a, b = Attention(q, k, v, , past, past)",
        "y, , , s = Attention<qk_matmul_output_mode = 0>(q, k, v) z = Relu(s)",
        "y = Attention<softmax_precision = 1>(q, k, v)",
    ],
)
def test_other_forms_are_left_alone(node: str) -> None:
    past = "float[N,3,2,4] past" if "past" in node else ""
    check_left_alone(text(node, past), SplitAttention())


def test_grouped_heads_are_left_alone() -> None:
    node = text("y = Attention(q, k, v)").replace(
        "float[N,3,5,4] k, float[N,3,5,4] v", "float[N,1,5,4] k, float[N,1,5,4] v"
    )
    check_left_alone(node, SplitAttention())


def test_three_axes_are_left_alone() -> None:
    node = (
        "g (float[2,5,12] q) => (float[2,5,12] y) "
        "{ y = Attention<q_num_heads = 3, kv_num_heads = 3>(q, q, q) }"
    )
    check_left_alone(node, SplitAttention())


@pytest.mark.parametrize("mask", ["float[N,1,5,3] m", "float[N,1,5,M] m"])
def test_a_mask_that_would_be_padded_is_left_alone(mask: str) -> None:
    check_left_alone(text("y = Attention<scale = 0.5>(q, k, v, m)", mask), SplitAttention())


def test_an_unknown_head_size_without_a_scale_is_left_alone() -> None:
    node = text("y = Attention(q, k, v)").replace("5,4]", "5,D]")
    check_left_alone(node, SplitAttention())


def test_more_keys_than_wanted_are_left_alone() -> None:
    check_left_alone(text("y = Attention(q, k, v)"), SplitAttention(longest=4))
    check_fused(text("y = Attention(q, k, v)"), [SplitAttention(longest=5)], PRODUCTS, FEEDS)


def test_an_unknown_number_of_keys_is_left_alone_where_few_are_wanted() -> None:
    node = text("y = Attention<scale = 0.5>(q, k, v)").replace("3,5,4", "3,L,4")
    check_left_alone(node, SplitAttention(longest=5))
