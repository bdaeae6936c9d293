from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest
from onnx.reference import ReferenceEvaluator

from tests.convert.lower.coreml.run import check, evaluate, floats, lower, model_of

OLDER = '<ir_version: 10, opset_import: ["" : 20]>'
"""Of operators that ONNX Runtime has no newer kernels for."""

CONVS = (
    "", "strides=[2,2], pads=[1,0,2,1]", "dilations=[2,1]", 'auto_pad="SAME_UPPER", strides=[2,3]',
    'auto_pad="SAME_LOWER"', 'auto_pad="VALID"',
)  # fmt: skip


def weights(*shape: int) -> str:
    return "{" + ",".join(f"{v:.7f}" for v in floats(*shape, seed=3).ravel()) + "}"


@pytest.mark.parametrize("attributes", CONVS)
def test_conv(attributes: str) -> None:
    text = (
        f"g (float[2,4,9,8] x) => (y) <float[6,2,3,2] w = {weights(6, 2, 3, 2)}, "
        f"float[6] b = {weights(6)}> {{y = Conv<group=2{', ' + attributes if attributes else ''}>"
        "(x, w, b)}"
    )
    made = check(text, {"x": floats(2, 4, 9, 8)})
    assert made["conv"] == 1


@pytest.mark.parametrize("rank", [1, 3])
def test_conv_of_other_ranks(rank: int) -> None:
    sizes, kernel = [5, 6, 7][:rank], [3, 2, 2][:rank]
    count = 3 * 2 * int(np.prod(kernel))
    shape = ",".join(map(str, (3, 2, *kernel)))
    text = (
        f"g (float[1,2,{','.join(map(str, sizes))}] x) => (y) "
        f"<float[{shape}] w = {weights(count)}> {{y = Conv(x, w)}}"
    )
    check(text, {"x": floats(1, 2, *sizes)})


def test_conv_with_weights_and_bias_of_a_run() -> None:
    text = "g (float[1,2,5,5] x, float[3,2,2,2] w, float[3] b) => (y) {y = Conv(x, w, b)}"
    check(text, {"x": floats(1, 2, 5, 5), "w": floats(3, 2, 2, 2, seed=1), "b": floats(3, seed=2)})


TRANSPOSED = (
    "", "strides=[2,2], pads=[1,0,0,1]", "strides=[2,2], output_padding=[1,1]",
    "strides=[3,2], pads=[1,1,1,1], output_padding=[1,0]", "strides=[3,2], output_shape=[10,8]",
    'strides=[2,2], auto_pad="SAME_UPPER"', 'strides=[2,2], auto_pad="SAME_LOWER"',
    "dilations=[2,2]", "group=2",
)  # fmt: skip


@pytest.mark.parametrize("attributes", TRANSPOSED)
def test_conv_transpose(attributes: str) -> None:
    size = 3 if "group" in attributes else 6
    text = (
        f"g (float[1,4,3,4] x) => (y) <float[4,{size},3,3] w = {weights(4, size, 3, 3)}, "
        f"float[6] b = {weights(6)}> {{y = ConvTranspose<{attributes}>(x, w, b)}}"
    )
    check(text.replace("<>", ""), {"x": floats(1, 4, 3, 4)})


POOLS = (
    "kernel_shape=[3,2]", "kernel_shape=[3,3], strides=[2,2], pads=[1,1,0,1]",
    "kernel_shape=[3,3], strides=[2,2], ceil_mode=1",
    "kernel_shape=[3,3], strides=[2,2], pads=[1,1,1,1], ceil_mode=1",
    'kernel_shape=[3,3], strides=[2,2], auto_pad="SAME_LOWER"',
)  # fmt: skip


@pytest.mark.parametrize("attributes", [*POOLS, "kernel_shape=[2,2], dilations=[2,3]"])
def test_max_pool(attributes: str) -> None:
    text = f"g (float[1,2,8,9] x) => (y) {{y = MaxPool<{attributes}>(x)}}"
    check(text, {"x": floats(1, 2, 8, 9)})


@pytest.mark.parametrize("include", [0, 1])
@pytest.mark.parametrize("attributes", [*POOLS, "kernel_shape=[2,2], dilations=[2,3]"])
def test_average_pool(attributes: str, include: int) -> None:
    call = f"AveragePool<{attributes}, count_include_pad={include}>(x)"
    check(f"g (float[1,2,8,9] x) => (y) {{y = {call}}}", {"x": floats(1, 2, 8, 9)})


@pytest.mark.parametrize("order", [0, 1])
def test_positions_of_maxima(order: int) -> None:
    call = f"MaxPool<kernel_shape=[2,3], strides=[2,2], storage_order={order}>(x)"
    text = f"g (float[2,2,6,7] x) => (y, int64[2,2,3,3] i) {{y, i = {call}}}"
    check(text, {"x": floats(2, 2, 6, 7)})


def test_pool_rounded_up_over_open_sizes() -> None:
    call = "MaxPool<kernel_shape=[3,3], strides=[2,2], ceil_mode=1>(x)"
    text = f"g (float[1,2,H,W] x) => (float[1,2,P,Q] y) {{y = {call}}}"
    check(text, {"x": floats(1, 2, 8, 9)}, {"x": floats(1, 2, 5, 6)})


@pytest.mark.parametrize("call", ["GlobalAveragePool(x)", "GlobalMaxPool(x)", "GlobalLpPool(x)"])
def test_global_pool(call: str) -> None:
    text = f"{OLDER} g (float[2,3,4,5] x) => (y) {{y = {call}}}"
    check(text, {"x": floats(2, 3, 4, 5)})


RESIZES = (
    ("nearest", "asymmetric", "floor", "2.0, 3.0"),
    ("nearest", "half_pixel", "round_prefer_floor", "1.5, 0.5"),
    ("nearest", "align_corners", "round_prefer_ceil", "2.0, 2.0"),
    ("linear", "half_pixel", "floor", "2.0, 2.0"),
    ("linear", "half_pixel", "floor", "0.6, 1.7"),
    ("linear", "align_corners", "floor", "2.0, 3.0"),
    ("linear", "asymmetric", "floor", "2.0, 2.0"),
    ("cubic", "half_pixel", "floor", "2.0, 1.5"),
)


@pytest.mark.parametrize(("mode", "transform", "nearest", "scales"), RESIZES)
def test_resize(mode: str, transform: str, nearest: str, scales: str) -> None:
    call = (
        f'Resize<mode="{mode}", coordinate_transformation_mode="{transform}", '
        f'nearest_mode="{nearest}">(x, , s)'
    )
    text = f"g (float[1,2,5,6] x) => (y) <float[4] s = {{1.0, 1.0, {scales}}}> {{y = {call}}}"
    check(text, {"x": floats(1, 2, 5, 6)})


def test_resize_of_open_sizes_by_whole_factors() -> None:
    call = (
        'Resize<mode="nearest", coordinate_transformation_mode="asymmetric", nearest_mode="floor">'
    )
    text = (
        "g (float[1,2,H,W] x) => (float[1,2,P,Q] y) "
        f"<float[4] s = {{1.0, 1.0, 2.0, 2.0}}> {{y = {call}(x, , s)}}"
    )
    check(text, {"x": floats(1, 2, 3, 4)}, {"x": floats(1, 2, 5, 2)})


@pytest.mark.sample(each=("mode", "padding"))
@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
@pytest.mark.parametrize("align", [0, 1])
@pytest.mark.parametrize("mode", ["linear", "nearest", "cubic"])
def test_grid_sample(padding: str, align: int, mode: str) -> None:
    call = f'GridSample<mode="{mode}", padding_mode="{padding}", align_corners={align}>(x, p)'
    text = f"g (float[1,2,5,6] x, float[1,4,3,2] p) => (y) {{y = {call}}}"
    check(text, {"x": floats(1, 2, 5, 6), "p": floats(1, 4, 3, 2, seed=5)}, rtol=1e-5)


@pytest.mark.parametrize("mode", ["half_pixel", "output_half_pixel"])
def test_roi_align(mode: str) -> None:
    call = (
        f'RoiAlign<coordinate_transformation_mode="{mode}", output_height=2, output_width=3, '
        "sampling_ratio=2, spatial_scale=0.5>(x, r, b)"
    )
    text = f"{OLDER} g (float[2,3,8,9] x, float[2,4] r, int64[2] b) => (y) {{y = {call}}}"
    rois = np.array([[0, 1, 12, 13], [-3, 2, 30, 20]], np.float32)
    check(text, {"x": floats(2, 3, 8, 9), "r": rois, "b": np.array([1, 0])}, rtol=1e-5)


def test_depth_and_space() -> None:
    for call in ("DepthToSpace<blocksize=2>", 'DepthToSpace<blocksize=2, mode="CRD">'):
        check(f"g (float[1,8,2,3] x) => (y) {{y = {call}(x)}}", {"x": floats(1, 8, 2, 3)})
    check(
        "g (float[1,2,4,6] x) => (y) {y = SpaceToDepth<blocksize=2>(x)}", {"x": floats(1, 2, 4, 6)}
    )


def test_norms() -> None:
    five = "{1.0, 0.5, 2.0, -1.0, 3.0}"
    for call in (
        "BatchNormalization<epsilon=0.1>(x, s, b, b, v)", "InstanceNormalization(x, s, b)",
        "LRN<size=3, alpha=0.2>(x)", "LpNormalization<axis=1, p=1>(x)",
        "LpNormalization<axis=2>(x)", "MeanVarianceNormalization(x)",
    ):  # fmt: skip
        text = (
            f"{OLDER} g (float[2,5,4,3] x) => (float[2,5,4,3] y) "
            f"<float[5] s = {five}, float[5] b = {five}, "
            f"float[5] v = {{1.0, 2.0, 0.5, 0.1, 3.0}}> {{y = {call}}}"
        )
        check(text, {"x": floats(2, 5, 4, 3)}, rtol=5e-6)


def test_layer_norms() -> None:
    three = "{1.0, 0.5, -2.0}"
    for call in (
        "LayerNormalization(x, s, b)", "RMSNormalization(x, s)",
        "LayerNormalization<axis=1>(x, t)", "GroupNormalization<num_groups=2>(x, g, g)",
    ):  # fmt: skip
        text = (
            f"g (float[2,4,3] x) => (y) <float[3] s = {three}, float[3] b = {three}, "
            f"float[4,3] t = {weights(12)}, float[4] g = {weights(4)}> {{y = {call}}}"
        )
        check(text, {"x": floats(2, 4, 3)}, rtol=5e-6)


def test_layer_norm_gives_its_statistics() -> None:
    text = (
        "g (float[2,4] x) => (y, float[2,1] m, float[2,1] i) <float[4] s = {1.0,2.0,3.0,4.0}> "
        "{y, m, i = LayerNormalization(x, s)}"
    )
    check(text, {"x": floats(2, 4)}, rtol=5e-6)


def test_cubic_grid_of_volumes(tmp_path: Path) -> None:
    """ONNX Runtime has none: ONNX's reference tells."""
    call = 'GridSample<mode="cubic">(x, p)'
    text = f"g (float[1,2,4,5,3] x, float[1,2,2,2,3] p) => (y) {{y = {call}}}"
    feeds = {"x": floats(1, 2, 4, 5, 3), "p": floats(1, 2, 2, 2, 3, seed=5)}
    (want,) = ReferenceEvaluator(ir.to_proto(model_of(text))).run(None, feeds)
    got = evaluate(text, lower(text, tmp_path), feeds)["y"]
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("policy", ["not_larger", "not_smaller"])
def test_resize_keeps_the_ratio_of_the_sizes(policy: str) -> None:
    call = f'Resize<axes=[2,3], keep_aspect_ratio_policy="{policy}", mode="nearest">(x, , , s)'
    sizes = "1,1,1,2" if policy == "not_larger" else "1,1,2,3"
    text = f"g (float[1,1,2,4] x) => (float[{sizes}] y) <int64[2] s = {{1,3}}> {{y = {call}}}"
    check(text, {"x": floats(1, 1, 2, 4)})
