"""Kernels against PyTorch, or NumPy in another way, over many shapes and options."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest

from edgeinfer.backends.coreml_reference import ops
from edgeinfer.backends.coreml_reference.program import TensorType
from edgeinfer.backends.coreml_reference.registry import OPS
from edgeinfer.types import Array

torch = pytest.importorskip("torch")
F = torch.nn.functional


def compute(kind: str, **inputs: Any) -> Any:
    entry = OPS[kind]
    return entry.call(**{k: v if v is None else entry.convert[k](v) for k, v in inputs.items()})


def close(found: Any, expected: Any, tolerance: float = 2e-5) -> None:
    wanted = expected.numpy() if isinstance(expected, torch.Tensor) else np.asarray(expected)
    assert found.shape == wanted.shape
    np.testing.assert_allclose(found, wanted, rtol=tolerance, atol=tolerance)


def draw(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def test_every_list_input_belongs_to_an_operation() -> None:
    known = {name for entry in OPS.values() for name in entry.convert}
    assert known >= set(ops.LISTS)
    assert len(OPS) >= 160


@pytest.mark.parametrize("rank", [1, 2, 3])
@pytest.mark.parametrize("groups", [1, 2, 6])
def test_conv_of_any_rank_equals_pytorch(rank: int, groups: int) -> None:
    function = (F.conv1d, F.conv2d, F.conv3d)[rank - 1]
    for case, (stride, pad, dilation) in enumerate(itertools.product((1, 2), (0, 2), (1, 2))):
        x = draw(2, 6, *(9 + a for a in range(rank)), seed=case)
        w, b = draw(12, 6 // groups, *(3 - a % 2 for a in range(rank))), draw(12)
        found = compute(
            "conv", x=x, weight=w, bias=b, strides=[stride] * rank, pad_type="custom",
            pad=[pad] * (2 * rank), dilations=[dilation] * rank, groups=groups,
        )  # fmt: skip
        expected = function(
            torch.from_numpy(x), torch.from_numpy(w), torch.from_numpy(b),
            stride, pad, dilation, groups,
        )  # fmt: skip
        close(found, expected, 5e-5)


def test_conv_in_strips_equals_conv_at_once() -> None:
    x, w = draw(1, 64, 160, 160), draw(8, 64, 5, 5) / 40
    close(compute("conv", x=x, weight=w), F.conv2d(torch.from_numpy(x), torch.from_numpy(w)), 1e-4)


@pytest.mark.parametrize(("kind", "before"), [("same", 0), ("same_lower", 1)])
def test_same_padding_puts_the_odd_row_where_it_says(kind: str, before: int) -> None:
    x, w = draw(1, 1, 6), draw(1, 1, 2)
    found = compute("conv", x=x, weight=w, pad_type=kind, strides=[1])
    wide = np.pad(x, [(0, 0), (0, 0), (before, 1 - before)])
    close(found, F.conv1d(torch.from_numpy(wide), torch.from_numpy(w)))


@pytest.mark.parametrize("groups", [1, 2])
def test_conv_transpose_equals_pytorch(groups: int) -> None:
    for stride, pad, dilation in itertools.product((1, 2, 3), (0, 1), (1, 2)):
        x, w, b = draw(2, 4, 5, 6), draw(4, 3, 3, 2), draw(3 * groups)
        expected = F.conv_transpose2d(
            torch.from_numpy(x), torch.from_numpy(w), torch.from_numpy(b),
            stride, pad, 0, groups, dilation,
        )  # fmt: skip
        found = OPS["conv_transpose"].call(
            x=x, weight=w, bias=b, strides=(stride,) * 2, pad_type="custom", pad=(pad,) * 4,
            dilations=(dilation,) * 2, groups=groups, out=(TensorType("float32", None),),
        )  # fmt: skip
        close(found, expected)


@pytest.mark.parametrize("ceil", [False, True])
@pytest.mark.parametrize("inside", [False, True])
def test_pools_equal_pytorch(ceil: bool, inside: bool) -> None:
    for size, kernel, stride, pad in itertools.product((7, 8, 10), (2, 3), (1, 2, 3), (0, 1)):
        x = draw(2, 3, size, size + 1)
        options = {
            "kernel_sizes": [kernel] * 2, "strides": [stride] * 2, "pad_type": "custom",
            "pad": [pad] * 4, "ceil_mode": ceil,
        }  # fmt: skip
        data = torch.from_numpy(x)
        if any(ceil and pad == 0 and _hangs_over(n, kernel, stride) for n in x.shape[2:]):
            continue  # PyTorch drops this window, Core ML only where there is padding
        close(compute("max_pool", x=x, **options), F.max_pool2d(data, kernel, stride, pad, 1, ceil))
        found = compute("avg_pool", x=x, exclude_padding_from_average=inside, **options)
        close(found, F.avg_pool2d(data, kernel, stride, pad, ceil, not inside))


def _hangs_over(size: int, kernel: int, stride: int) -> bool:
    """Whether the last window begins outside."""
    return -(-(size - kernel) // stride) * stride >= size


def test_l2_pool_is_the_root_of_a_sum() -> None:
    x = draw(1, 2, 6)
    found = compute("l2_pool", x=x, kernel_sizes=[3], strides=[3], pad_type="valid")
    close(found, np.sqrt((x.reshape(1, 2, 2, 3) ** 2).sum(-1)))


NORMS = {
    "batch_norm": lambda x, g, b: F.batch_norm(x, b.abs(), g.abs() + 1, g, b, eps=1e-5),
    "instance_norm": lambda x, g, b: F.instance_norm(x, None, None, g, b, eps=1e-5),
    "layer_norm": lambda x, g, b: F.layer_norm(x, (x.shape[-1],), g[:1].repeat(x.shape[-1]), None),
}


@pytest.mark.parametrize("kind", sorted(NORMS))
def test_norms_equal_pytorch(kind: str) -> None:
    x, g, b = draw(2, 5, 4, 6) * 3 + 1, draw(5, seed=1), draw(5, seed=2)
    expected = NORMS[kind](*map(torch.from_numpy, (x, g, b)))
    inputs: dict[str, Any] = {"x": x, "gamma": g, "beta": b, "epsilon": 1e-5}
    if kind == "batch_norm":
        inputs |= {"mean": np.abs(b), "variance": np.abs(g) + 1}
    if kind == "layer_norm":
        inputs |= {"gamma": np.repeat(g[:1], 6), "beta": None, "axes": [-1]}
    close(compute(kind, **inputs), expected, 1e-4)


@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_local_response_norm_equals_pytorch(size: int) -> None:
    x = draw(2, 7, 3, 3) * 10
    expected = F.local_response_norm(torch.from_numpy(x), size, 0.1, 0.7, 1.5)
    found = compute("local_response_norm", x=x, size=size, alpha=0.1, beta=0.7, k=1.5)
    close(found, expected, 1e-4)


ACTIVATIONS = {
    "elu": (F.elu, {"alpha": 1.0}),
    "erf": (torch.erf, {}),
    "gelu": (F.gelu, {}),
    "leaky_relu": (F.leaky_relu, {"alpha": 0.01}),
    "relu6": (F.relu6, {}),
    "sigmoid": (torch.sigmoid, {}),
    "sigmoid_hard": (F.hardsigmoid, {"alpha": 1 / 6, "beta": 0.5}),
    "silu": (F.silu, {}),
    "softmax": (lambda x: torch.softmax(x, -1), {}),
    "softplus": (F.softplus, {}),
    "softsign": (F.softsign, {}),
    "atanh": (torch.atanh, {}),
}


@pytest.mark.parametrize("kind", sorted(ACTIVATIONS))
def test_activations_equal_pytorch(kind: str) -> None:
    function, options = ACTIVATIONS[kind]
    x = np.concatenate([np.linspace(-30, 30, 4001), np.linspace(-1e-6, 1e-6, 101)])
    x = np.clip(x, -0.999, 0.999) if kind == "atanh" else x
    data = x.astype(np.float32)[None]
    close(compute(kind, x=data, **options), function(torch.from_numpy(data)), 1e-6)


def test_erf_is_good_to_the_last_bit_but_one() -> None:
    x = np.linspace(-7, 7, 20001, dtype=np.float32)
    exact = np.array([math.erf(v) for v in x.astype(float)])
    found = compute("erf", x=x).astype(np.float64)
    assert (np.abs(found - exact) <= 1.01 * np.abs(np.spacing(exact.astype(np.float32)))).all()


def test_integer_division_rounds_as_each_operation_says() -> None:
    x, y = (a.ravel().astype(np.int32) for a in np.meshgrid([-7, -6, 0, 6, 7], [-3, -2, 2, 3]))
    exact = x.astype(float) / y
    assert compute("real_div", x=x, y=y).tolist() == np.trunc(exact).tolist()
    assert compute("floor_div", x=x, y=y).tolist() == np.floor(exact).tolist()
    assert compute("mod", x=x, y=y).tolist() == (x - y * np.floor(exact)).tolist()


def test_round_halves_to_even() -> None:
    x = np.array([-2.5, -1.5, -0.5, 0.5, 1.5, 2.5], np.float32)
    assert compute("round", x=x).tolist() == [-2, -2, 0, 0, 2, 2]


def test_cast_to_integers_truncates_and_saturates() -> None:
    x = np.array([1.9, -1.9, 3e9, -3e9, np.nan], np.float32)
    found = OPS["cast"].call(x=x, dtype="int32", out=(TensorType("int32", (5,)),))
    assert found.tolist() == [1, -1, 2**31 - 1, -(2**31), 0]


@pytest.mark.parametrize("mode", ["bilinear", "nearest"])
@pytest.mark.parametrize("align", [False, True])
@pytest.mark.parametrize(("padding", "theirs"), [("constant", "zeros"), ("border", "border"),
                                                ("reflection", "reflection")])  # fmt: skip
def test_resample_equals_grid_sample(mode: str, align: bool, padding: str, theirs: str) -> None:
    if padding == "reflection" and not align:
        padding = "symmetric"
    x = draw(2, 3, 6, 7)
    grid = np.random.default_rng(1).uniform(-1.6, 1.6, (2, 4, 5, 2)).astype(np.float32)
    expected = F.grid_sample(
        torch.from_numpy(x), torch.from_numpy(grid), mode=mode, padding_mode=theirs,
        align_corners=align,
    )  # fmt: skip
    found = compute(
        "resample", x=x, coordinates=grid, sampling_mode=mode, padding_mode=padding,
        padding_value=0.0, coordinates_mode="normalized_minus_one_to_one", align_corners=align,
    )  # fmt: skip
    close(found, expected, 1e-4)


@pytest.mark.parametrize("align", [False, True])
def test_affine_equals_affine_grid_and_sample(align: bool) -> None:
    x = draw(1, 2, 6, 8)
    matrix = np.array([[0.8, -0.3, 0.1, 0.2, 0.9, -0.2]], np.float32)
    grid = F.affine_grid(torch.from_numpy(matrix.reshape(1, 2, 3)), [1, 2, 5, 7], align)
    expected = F.grid_sample(torch.from_numpy(x), grid, align_corners=align)
    found = compute(
        "affine", x=x, transform_matrix=matrix, output_height=5, output_width=7,
        sampling_mode="bilinear", padding_mode="constant", padding_value=0.0,
        coordinates_mode="normalized_minus_one_to_one", align_corners=align,
    )  # fmt: skip
    close(found, expected, 1e-4)


@pytest.mark.parametrize("size", [(8, 10), (3, 4), (5, 7), (12, 5)])
def test_resizing_equals_pytorch(size: tuple[int, int]) -> None:
    x = draw(1, 2, 4, 5)
    data, (h, w) = torch.from_numpy(x), size
    for mode, align in (("UNALIGN_CORNERS", False), ("STRICT_ALIGN_CORNERS", True)):
        found = compute(
            "resize_bilinear", x=x, target_size_height=h, target_size_width=w, sampling_mode=mode
        )
        close(found, F.interpolate(data, size, mode="bilinear", align_corners=align))
        general = compute("resize", x=x, shape=size, resized_dims=2, sampling_mode=mode)
        assert np.array_equal(general, found)
    nearest = compute("resize_nearest_neighbor", x=x, target_size_height=h, target_size_width=w)
    close(nearest, F.interpolate(data, size, mode="nearest-exact"))
    scales = {"scale_factor_height": h / 4, "scale_factor_width": w / 5}
    close(compute("upsample_nearest_neighbor", x=x, **scales), F.interpolate(data, size))


def test_the_modes_of_resizing_are_those_of_the_page() -> None:
    """Grid points of coremltools' page of ``resize_bilinear`` for the input 0, 1."""
    x = np.array([0, 1], np.float32).reshape(1, 1, 2)
    for mode, expected in {
        "UNALIGN_CORNERS": [0, 0.1, 0.5, 0.9, 1],
        "STRICT_ALIGN_CORNERS": [0, 0.25, 0.5, 0.75, 1],
        "ALIGN_CORNERS": [0, 0.25, 0.5, 0.75, 1],
        "DEFAULT": [0, 0.4, 0.8, 1, 1],
        "OFFSET_CORNERS": [0.1, 0.3, 0.5, 0.7, 0.9],
    }.items():
        found = compute("resize", x=x, shape=[5], resized_dims=1, sampling_mode=mode)
        assert found.ravel() == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("bidirectional", [False, True])
def test_lstm_equals_pytorch(bidirectional: bool) -> None:
    layer = torch.nn.LSTM(4, 3, bidirectional=bidirectional)
    x, ways = draw(5, 2, 4), 1 + bidirectional
    h, c = draw(2, 3 * ways, seed=1), draw(2, 3 * ways, seed=2)

    def split(state: Array) -> Any:
        return torch.from_numpy(np.stack(np.split(state, ways, axis=1)))

    with torch.inference_mode():
        y, (last_h, last_c) = layer(torch.from_numpy(x), (split(h), split(c)))
    weights = {k: v.detach().numpy() for k, v in layer.named_parameters()}

    def gates(name: str) -> Array:
        i, f, z, o = np.split(weights[name], 4)
        return np.concatenate([i, f, o, z])

    inputs: dict[str, Any] = {"x": x, "initial_h": h, "initial_c": c, "output_sequence": True}
    for ours, theirs in (("", ""), ("_back", "_reverse"))[:ways]:
        inputs |= {
            f"weight_ih{ours}": gates(f"weight_ih_l0{theirs}"),
            f"weight_hh{ours}": gates(f"weight_hh_l0{theirs}"),
            f"bias{ours}": gates(f"bias_ih_l0{theirs}") + gates(f"bias_hh_l0{theirs}"),
        }
    direction = "bidirectional" if bidirectional else "forward"
    found = compute("lstm", direction=direction, **inputs)
    close(found[0], y)
    close(found[1], np.concatenate(list(last_h.numpy()), axis=1))
    close(found[2], np.concatenate(list(last_c.numpy()), axis=1))


def test_gru_with_reset_after_equals_pytorch() -> None:
    layer = torch.nn.GRU(4, 3)
    x, h = draw(5, 2, 4), draw(2, 3, seed=1)
    with torch.inference_mode():
        y, _ = layer(torch.from_numpy(x), torch.from_numpy(h[None]))

    def gates(name: str) -> Array:
        r, z, n = np.split(getattr(layer, name).detach().numpy(), 3)
        return np.concatenate([r, n, z])

    found = compute(
        "gru", x=x, initial_h=h, weight_ih=gates("weight_ih_l0"), weight_hh=gates("weight_hh_l0"),
        bias=gates("bias_hh_l0"), input_bias=gates("bias_ih_l0"), reset_after=True,
        output_sequence=True,
    )  # fmt: skip
    close(found[0], y)


def test_attention_equals_pytorch() -> None:
    q, k, v = draw(2, 3, 4, 8), draw(2, 3, 5, 8, seed=1), draw(2, 3, 5, 6, seed=2)
    mask = np.random.default_rng(3).random((2, 1, 4, 5)) > 0.3
    mask[..., 0] = True
    for given in (None, mask, draw(4, 5, seed=4)):
        theirs = None if given is None else torch.from_numpy(given)
        expected = F.scaled_dot_product_attention(*map(torch.from_numpy, (q, k, v)), theirs)
        found = compute("scaled_dot_product_attention", query=q, key=k, value=v, attn_mask=given)
        close(found, expected)


@pytest.mark.parametrize("block", [2, 3])
def test_rearrangements_undo_each_other_and_equal_pytorch(block: int) -> None:
    x = draw(2, 2 * block * block, 3, 4)
    shuffled = compute("pixel_shuffle", x=x, upscale_factor=block)
    close(shuffled, F.pixel_shuffle(torch.from_numpy(x), block))
    assert np.array_equal(compute("pixel_unshuffle", x=shuffled, downscale_factor=block), x)
    spread = compute("depth_to_space", x=x, block_size=block)
    assert np.array_equal(compute("space_to_depth", x=spread, block_size=block), x)
    y = draw(2, 3, 4 * block, 2 * block)
    none = np.zeros((2, 2), np.int32)
    parts = compute("space_to_batch", x=y, block_shape=[block] * 2, paddings=none)
    assert np.array_equal(
        compute("batch_to_space", x=parts, block_shape=[block] * 2, crops=none), y
    )


def test_topk_gives_the_first_of_equals_in_both_directions() -> None:
    x = np.array([[3, 1, 3, 2, 1]], np.int32)
    for ascending, values, indices in ((False, [3, 3, 2], [0, 2, 3]), (True, [1, 1, 2], [1, 4, 3])):
        found = compute("topk", x=x, k=3, ascending=ascending)
        assert found[0].tolist() == [values]
        assert found[1].tolist() == [indices]
    least = np.array([np.iinfo(np.int32).min, 5, 0], np.int32)
    assert compute("argsort", x=least).tolist() == [1, 2, 0]
    assert compute("argsort", x=np.array([0, 255, 7], np.uint8)).tolist() == [1, 2, 0]


def _suppressed(boxes: Array, scores: Array, overlap: float, least: float, most: int) -> list[int]:
    """The plain algorithm over corners."""
    low, high = boxes[:, :2] - boxes[:, 2:] / 2, boxes[:, :2] + boxes[:, 2:] / 2
    kept: list[int] = []
    for i in sorted(range(len(boxes)), key=lambda n: -scores[n]):
        shared = [np.clip(np.minimum(high[i], high[k]) - np.maximum(low[i], low[k]), 0, None).prod()
                  for k in kept]  # fmt: skip
        areas = [boxes[i, 2:].prod() + boxes[k, 2:].prod() for k in kept]
        ratios = [s / (a - s) for s, a in zip(shared, areas, strict=True)]
        if scores[i] > least and all(r <= overlap for r in ratios):
            kept.append(i)
    return kept[:most]


@pytest.mark.parametrize("seed", range(5))
def test_nms_keeps_what_the_plain_algorithm_keeps(seed: int) -> None:
    rng = np.random.default_rng(seed)
    boxes = np.concatenate([rng.uniform(0, 20, (1, 40, 2)), rng.uniform(3, 9, (1, 40, 2))], 2)
    boxes, scores = boxes.astype(np.float32), rng.standard_normal((1, 40, 1)).astype(np.float32)
    kinds = (TensorType("float32", None),) * 4
    found = OPS["non_maximum_suppression"].call(
        boxes=boxes, scores=scores, iou_threshold=0.3, score_threshold=-0.5, max_boxes=12,
        out=kinds,
    )  # fmt: skip
    expected = _suppressed(boxes[0], scores[0, :, 0], 0.3, -0.5, 12)
    assert found[3].tolist() == [len(expected)]
    assert found[2][0, : len(expected)].tolist() == expected
    assert (found[2][0, len(expected) :] == -1).all()
    assert np.array_equal(found[0][0, : len(expected)], boxes[0, expected])


@pytest.mark.parametrize("mode", ["add", "sub", "mul", "div", "max", "min", "update"])
def test_scatters_agree_with_loops(mode: str) -> None:
    functions: dict[str, Any] = {
        "add": np.add, "sub": np.subtract, "mul": np.multiply, "div": np.divide,
        "max": np.maximum, "min": np.minimum, "update": lambda _, new: new,
    }  # fmt: skip
    data, updates = draw(5, 4), draw(3, 4, seed=1)
    indices = np.array([4, 0, 4 if mode != "update" else 1], np.int32)
    expected = data.copy()
    for row, index in enumerate(indices):
        expected[index] = functions[mode](expected[index], updates[row])
    inputs = {"data": data, "updates": updates, "mode": mode}
    close(compute("scatter", indices=indices, axis=0, **inputs), expected)
    close(compute("scatter_nd", indices=indices[:, None], **inputs), expected)
    along = np.repeat(indices[:, None], 4, axis=1)
    close(compute("scatter_along_axis", indices=along, axis=0, **inputs), expected)


@pytest.mark.parametrize("axis", [1, 2, -1])
def test_gathers_agree_with_loops(axis: int) -> None:
    x = draw(2, 5, 6)
    indices = np.random.default_rng(0).integers(0, 5, (2, 3)).astype(np.int32)
    found = compute("gather", x=x, indices=indices, axis=axis, batch_dims=1)
    close(
        found, np.stack([np.take(x[b], indices[b], axis - 1 if axis > 0 else -1) for b in (0, 1)])
    )
    nd = compute("gather_nd", x=x, indices=indices[..., :1], batch_dims=1)
    close(nd, np.stack([x[b, indices[b, 0]] for b in (0, 1)]))
    with pytest.raises(IndexError):
        compute("gather", x=x, indices=np.array([-1]), axis=axis, validate_indices=True)


def test_slices_follow_numpy() -> None:
    x = draw(5, 6, 7)
    found = compute(
        "slice_by_index", x=x, begin=[4, -3, 2], end=[0, 0, 3], stride=[-2, 1, 1],
        end_mask=[True, True, False], squeeze_mask=[False, False, True],
    )  # fmt: skip
    assert np.array_equal(found, x[4::-2, -3:, 2])
    sized = compute("slice_by_size", x=x, begin=[1, 2, 0], size=[2, -1, 7])
    assert np.array_equal(sized, x[1:3, 2:])
    with pytest.raises(ValueError, match="3 elements from 3 on are not in an axis of 5"):
        compute("slice_by_size", x=x, begin=[3, 0, 0], size=[3, 1, 1])
    written = compute(
        "slice_update", x=x, update=np.ones((2, 6, 7), np.float32), begin=[1, 0, 0], end=[3, 6, 7]
    )
    assert np.array_equal(written, np.concatenate([x[:1], np.ones((2, 6, 7)), x[3:]]))
    with pytest.raises(ValueError, match=r"update of \(1, 6, 7\) does not fit"):
        compute("slice_update", x=x, update=x[:1], begin=[1, 0, 0], end=[3, 6, 7])


@pytest.mark.parametrize(
    ("shape", "expected"),
    [([0, 6], (2, 6)), ([1, 0, -1, 0], (1, 1, 4, 3)), ([-1, 0], (4, 3)), ([2, -1], (2, 6))],
)
def test_a_zero_in_reshape_copies_a_length(shape: list[int], expected: tuple[int, ...]) -> None:
    x = draw(2, 6) if shape == [0, 6] else draw(4, 3)
    assert np.array_equal(compute("reshape", x=x, shape=shape), x.reshape(expected))


@pytest.mark.parametrize("keep", [False, True])
@pytest.mark.parametrize("axes", [None, [0], [-1, 0]])
def test_reductions_follow_their_formulas(keep: bool, axes: list[int] | None) -> None:
    x = draw(3, 4, 5).astype(np.float32)
    over = tuple(range(3)) if axes is None else tuple(a % 3 for a in axes)
    d = np.abs(x.astype(np.float64))
    how: dict[str, Any] = {"axis": over, "keepdims": keep}
    for kind, expected in {
        "reduce_l1_norm": d.sum(**how),
        "reduce_l2_norm": np.sqrt((d**2).sum(**how)),
        "reduce_log_sum": np.log(d.sum(**how)),
        "reduce_log_sum_exp": np.log(np.exp(d).sum(**how)),
        "reduce_max": d.max(**how),
        "reduce_mean": d.mean(**how),
        "reduce_min": d.min(**how),
        "reduce_prod": d.prod(**how),
        "reduce_sum": d.sum(**how),
        "reduce_sum_square": (d**2).sum(**how),
    }.items():
        close(compute(kind, x=np.abs(x), axes=axes, keep_dims=keep), expected, 1e-4)


@pytest.mark.parametrize("exclusive", [False, True])
@pytest.mark.parametrize("reverse", [False, True])
def test_cumsum_sums_what_comes_before(exclusive: bool, reverse: bool) -> None:
    x = np.arange(1, 13, dtype=np.int32).reshape(3, 4)
    found = compute("cumsum", x=x, axis=-1, exclusive=exclusive, reverse=reverse)
    for row, column in np.ndindex(3, 4):
        start, stop = (column + exclusive, 4) if reverse else (0, column + 1 - exclusive)
        assert found[row, column] == x[row, start:stop].sum()
