import numpy as np
import pytest

from edgeinfer.convert.passes.fold_pad import FoldPad
from tests.convert.passes.fusing import check_fused, check_left_alone

RNG = np.random.default_rng(0)
X = RNG.standard_normal((2, 2, 6, 6)).astype(np.float32)
WEIGHT = ", ".join(f"{v:.4f}" for v in RNG.standard_normal(54))
HEAD = "g (float[N,2,6,6] x) => (y) "
CONSTANTS = (
    "<int64[8] pads = {0,0,1,2,0,0,1,0}, int64[4] few = {1,2,1,0}, int64[2] axes = {2,3},"
    " int64[2] behind = {-2,-1}, int64[8] batch = {1,0,0,0,0,0,0,0},"
    " int64[8] channel = {0,1,0,0,0,0,0,0}, int64[8] crop = {0,0,-1,0,0,0,0,0},"
    " int64[8] wide = {0,0,3,0,0,0,0,0}, float zero = {0}, float one = {1},"
    f" float[3,2,3,3] w = {{{WEIGHT}}}> "
)


def graph_of(pad: str, node: str) -> str:
    return HEAD + CONSTANTS + f"{{ p = {pad} y = {node} }}"


@pytest.mark.parametrize(
    "pad",
    [
        "Pad(x, pads)",
        "Pad(x, pads, zero)",
        'Pad<mode = "constant">(x, few, , axes)',
        "Pad(x, few, zero, behind)",
    ],
)
@pytest.mark.parametrize(
    "node",
    [
        "Conv(p, w)",
        "Conv<pads = [0,1,0,1], strides = [2,2], dilations = [2,2]>(p, w)",
        "AveragePool<kernel_shape = [3,3]>(p)",
        "AveragePool<kernel_shape = [3,3], pads = [1,0,1,0], count_include_pad = 1>(p)",
    ],
)
def test_zeros_go_into_what_reads_them(pad: str, node: str) -> None:
    remaining = {node.split("<")[0].split("(")[0]: 1}
    check_fused(graph_of(pad, node), [FoldPad()], remaining, {"x": X})


def test_minus_infinity_goes_into_a_maximum() -> None:
    text = graph_of("Pad(x, pads, low)", "MaxPool<kernel_shape = [3,3], strides = [2,2]>(p)")
    text = text.replace("{ p =", "{ z = Log(zero) p =").replace("low", "z")
    check_left_alone(text, FoldPad())
    infinite = text.replace("z = Log(zero) ", "").replace("pads, z", "pads, low")
    infinite = infinite.replace("float one = {1}", "float low = {-inf}")
    check_fused(infinite, [FoldPad()], {"MaxPool": 1}, {"x": X - 5})


@pytest.mark.parametrize(
    ("pad", "node"),
    [
        ("Pad(x, pads, one)", "Conv(p, w)"),
        ('Pad<mode = "reflect">(x, pads)', "Conv(p, w)"),
        ('Pad<mode = "edge">(x, pads)', "Conv(p, w)"),
        ("Pad(x, batch)", "Conv(p, w)"),
        ("Pad(x, crop)", "Conv(p, w)"),
        ("Pad(x, pads)", 'Conv<auto_pad = "SAME_UPPER">(p, w)'),
        ("Pad(x, pads)", "MaxPool<kernel_shape = [3,3]>(p)"),
        ("Pad(x, pads)", "AveragePool<kernel_shape = [3,3], pads = [1,1,1,1]>(p)"),
        ("Pad(x, pads)", "AveragePool<kernel_shape = [3,3], ceil_mode = 1>(p)"),
        ("Pad(x, wide)", "AveragePool<kernel_shape = [3,3]>(p)"),
        ("Pad(x, channel)", "AveragePool<kernel_shape = [3,3]>(p)"),
        ("Pad(x, pads)", "Relu(p)"),
    ],
)
def test_what_would_give_other_numbers_is_left_alone(pad: str, node: str) -> None:
    check_left_alone(graph_of(pad, node), FoldPad())


def test_a_padded_value_with_another_reader_is_left_alone() -> None:
    text = HEAD.replace("(y)", "(y, z)") + CONSTANTS
    check_left_alone(text + "{ p = Pad(x, pads) y = Conv(p, w) z = Relu(p) }", FoldPad())


def test_a_padded_value_that_is_an_output_is_left_alone() -> None:
    text = HEAD.replace("(y)", "(y, p)") + CONSTANTS + "{ p = Pad(x, pads) y = Conv(p, w) }"
    check_left_alone(text, FoldPad())


def test_pads_that_are_computed_are_left_alone() -> None:
    text = HEAD.replace("x)", "x, int64[8] n)") + CONSTANTS + "{ p = Pad(x, n) y = Conv(p, w) }"
    check_left_alone(text, FoldPad())
