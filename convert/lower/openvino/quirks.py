"""What OpenVINO's ONNX reader and CPU plugin get wrong or lack, as a table of rules."""

from __future__ import annotations

from collections.abc import Callable

import onnx_ir as ir

from edgeinfer.convert.families import REDUCTIONS
from edgeinfer.convert.lower import digits
from edgeinfer.convert.lower.faults import (
    attention_scores_before_mask,
    batchwise_recurrent,
    draw_below,
    even_window,
    fractional_corners,
    inverted_bernoulli,
    move_batch,
    sum_channels,
)
from edgeinfer.convert.lower.openvino import apart, moves, sixteen_bits
from edgeinfer.convert.lower.openvino import whole_numbers as whole
from edgeinfer.convert.lower.openvino.heads import equal_axes, transpose_five
from edgeinfer.convert.lower.openvino.pooling import overhangs, pad_before_average
from edgeinfer.convert.lower.openvino.rewrites import (
    SETTLED,
    bool_by_comparison,
    compress_flat,
    gather_from_a_part,
    keep_infinite_extreme,
    narrower_axes,
    reduce_then_squeeze,
    scalar_condition,
    squeeze_by_reshape,
    state_frame_length,
    tile_by_expand,
    unique_along,
    zero_without_area,
)
from edgeinfer.convert.lower.resizes import copied, resize_by_axis
from edgeinfer.convert.lower.rules import Repair, Rule, attribute, by_definition, given

_SIGNED = frozenset({ir.DataType.INT8, ir.DataType.INT16, ir.DataType.INT32, ir.DataType.INT64})
_FLOATS = frozenset({ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.BFLOAT16})
_WINDOWS = ("left_window_size", "right_window_size")


def _rounded_quotient(node: ir.Node) -> str:
    return "a remainder of a rounded quotient" if digits.floats(node) else ""


def _window(node: ir.Node) -> str:
    sizes = [attribute(node, name, -1) for name in _WINDOWS]
    return "the attention window is ignored" if any(s != -1 for s in sizes) else ""


def _signed_shift(node: ir.Node) -> str:
    x = given(node, 0)
    signed = x is not None and x.dtype in _SIGNED and whole.SETTLED not in node.meta
    return "shifts of signed integers are computed otherwise" if signed else ""


def _unseen_sizes(node: ir.Node) -> str:
    x, sizes = given(node, 0), given(node, 1)
    if x is None or sizes is None or x.shape is None or sizes.const_value is not None:
        return ""
    if not all(isinstance(d, int) and d > 1 for d in x.shape):
        return ""
    if sizes.shape is None or len(sizes.shape) != 1 or sizes.shape[0] != len(x.shape):
        return ""
    return "an expansion that seems to keep the shape is taken out, whatever sizes a run gives"


def _peepholes(node: ir.Node) -> str:
    if given(node, 7) is not None:
        return "peephole weights are ignored"
    return "input_forget is ignored" if attribute(node, "input_forget", 0) else ""


def _resize(node: ir.Node) -> str:
    if attribute(node, "exclude_outside", 0):
        return "exclude_outside is ignored"
    if attribute(node, "antialias", 0):
        return "antialias is computed otherwise"
    transform = attribute(node, "coordinate_transformation_mode", "half_pixel")
    if transform in ("half_pixel_symmetric", "tf_crop_and_resize"):
        return f"{transform} is not read"
    policy = attribute(node, "keep_aspect_ratio_policy", "stretch")
    return copied(node) if policy == "stretch" else f"keep_aspect_ratio_policy={policy} is ignored"


def _roi_max(node: ir.Node) -> str:
    return "mode=max is computed otherwise" if attribute(node, "mode", "avg") == "max" else ""


def _no_area(node: ir.Node) -> str:
    adaptive = attribute(node, "sampling_ratio", 0) == 0 and SETTLED not in node.meta
    mode = attribute(node, "coordinate_transformation_mode", "half_pixel")
    return "a region without area gives NaN" if adaptive and mode == "half_pixel" else ""


def _crd(node: ir.Node) -> str:
    return "mode=CRD is ignored" if attribute(node, "mode", "DCR") == "CRD" else ""


def _transform(node: ir.Node) -> str:
    if attribute(node, "onesided", 0):
        return "onesided gives another shape"
    axis, x = given(node, 2), given(node, 0)
    if x is None or x.shape is None:
        return "the axis is not known without the rank"
    known = axis is None or axis.const_value is not None
    place = -2 if axis is None or axis.const_value is None else int(axis.const_value.numpy())
    # The reader takes the first axis after the batch, whatever is asked for.
    return "" if known and place % len(x.shape) == 1 else "the axis is ignored"


def _frame_length(node: ir.Node) -> str:
    window = given(node, 2)
    if window is None or given(node, 3) is not None:
        return ""
    return "the window is not taken without its length"


def _extreme(node: ir.Node) -> str:
    x = given(node, 0)
    if x is None or x.dtype not in _FLOATS or SETTLED in node.meta:
        return ""
    empty = x.shape is not None and 0 in tuple(x.shape) and node.op_type == "ReduceMax"
    looked_at = any(_looks_for_infinity(user) for user, _ in node.outputs[0].uses())
    return "an infinite extreme becomes a finite number" if empty or looked_at else ""


def _looks_for_infinity(node: ir.Node) -> bool:
    if node.op_type in ("Cast", "CastLike", "Identity", "Unsqueeze", "Squeeze", "Reshape"):
        return any(_looks_for_infinity(user) for user, _ in node.outputs[0].uses())
    return node.op_type in ("Equal", "IsInf")


def _repeats(node: ir.Node) -> str:
    value, x = given(node, 1), given(node, 0)
    known = value is not None and value.const_value is not None
    if known or x is None or (x.shape is not None and len(x.shape) < 3):
        return ""
    return "repeats that are not known give unwritten memory"


def _to_bool(node: ir.Node) -> str:
    x = given(node, 0)
    to_bool = attribute(node, "to", 0) == ir.DataType.BOOL.value
    return "NaN becomes false" if to_bool and x is not None and x.dtype in _FLOATS else ""


def _condition(node: ir.Node) -> str:
    value = given(node, 0)
    wide = value is not None and value.shape is not None and len(value.shape) > 1
    return "a condition with several axes is not taken" if wide else ""


def _squeeze(node: ir.Node) -> str:
    x, axes = given(node, 0), given(node, 1)
    if x is None or x.shape is None or axes is None or axes.const_value is None:
        return ""
    rank = len(x.shape)
    sizes = [x.shape[int(a) % rank] for a in axes.const_value.numpy().ravel()]
    open_size = any(not isinstance(size, int) for size in sizes)
    return "an axis that is not 1 is squeezed all the same" if open_size else ""


def _open_rank(node: ir.Node) -> str:
    x = given(node, 0)
    if given(node, 1) is not None or x is None or x.shape is None:
        return ""
    # With an axis left for certain, the plugin compiles it and the gate judges the numbers.
    open_sizes = [size for size in x.shape if not isinstance(size, int)]
    left = any(isinstance(size, int) and size != 1 for size in x.shape)
    if not open_sizes or left:
        return ""
    return "whether an axis is left depends on the sizes, and ranks are fixed"


def _unsorted_whole(node: ir.Node) -> str:
    whole = "axis" not in node.attributes and not attribute(node, "sorted", 1)
    return "of repeated values the wrong ones are left out" if whole else ""


def _nearest(node: ir.Node) -> str:
    nearest = attribute(node, "mode", "nearest") == "nearest"
    mode = attribute(node, "nearest_mode", "round_prefer_floor")
    tie = nearest and mode == "round_prefer_ceil"
    return "nearest_mode=round_prefer_ceil misses ties" if tie else ""


_ROWS = 3
"""Axes of what loses its last one in a way that confuses the plugin."""


def _last_of_three(node: ir.Node) -> str:
    """A reduction of the last of three axes before something with a value for each column.

    The plugin fuses the two and takes the value of the row: y[0, 1] gets c[0].
    """
    x, axes = given(node, 0), given(node, 1)
    if attribute(node, "keepdims", 1) or x is None or x.shape is None or axes is None:
        return ""
    last = axes.const_value is not None and axes.const_value.numpy().ravel().tolist() in ([-1], [2])
    return (
        "fused with what follows it the columns are taken for rows"
        if (len(x.shape) == _ROWS and last and _meets_columns(node.outputs[0]))
        else ""
    )


def _meets_columns(value: ir.Value) -> bool:
    """Whether, after operators of one operand, a constant of several elements comes in."""
    waiting, seen = [value], {value}
    while waiting:
        for user, _ in waiting.pop().uses():
            others = [v for v in user.inputs if v is not None and v.const_value is not None]
            if len(user.outputs) != 1 or user.domain:
                continue
            if any(v.const_value is not None and v.const_value.size > 1 for v in others):
                return True
            if user.outputs[0] not in seen and len(user.inputs) - len(others) == 1:
                seen.add(user.outputs[0])
                waiting.append(user.outputs[0])
    return False


def _max_overhang(node: ir.Node) -> str:
    """Whether ``ceil_mode`` adds a window that starts behind the input and its left padding."""
    for axis in overhangs(node):
        if axis.starts_behind is None:
            return "ceil_mode may add a window of padding only, and the size is not known"
        if axis.starts_behind:
            return "ceil_mode adds a window of padding only"
    return ""


def _other_bias(node: ir.Node) -> str:
    return "the bias is taken for 1" if attribute(node, "bias", 1.0) != 1 else ""


def _open_output(node: ir.Node) -> str:
    """Whether passes left an ``output_shape``, for want of sizes."""
    given_shape = attribute(node, "output_shape", ())
    return "output_shape of an open size is cropped at the wrong end" if given_shape else ""


def _open_powers(node: ir.Node) -> str:
    """Whether passes left ``ceil_mode``, for want of sizes."""
    left = attribute(node, "ceil_mode", 0)
    return "sums of windows that reach beyond an open size are too large" if left else ""


def _average_overhang(node: ir.Node) -> str:
    if not attribute(node, "count_include_pad", 0):
        return ""
    if any(a.overhangs is not False and not a.starts_behind for a in overhangs(node)):
        return "what ceil_mode adds is counted as padding"
    return ""


def _whole(
    ops: str, fault: Callable[[ir.Node], str], repair: Repair | None = None, hint: str = ""
) -> Rule:
    source = "openvino 2026.4.1, run alone on integers near 1.79e9"
    return Rule(frozenset(ops.split()), fault, source, repair, "unsupported_dtype", hint)


def _digits(ops: str, fault: str, repair: Repair, seen: str) -> Rule:
    def found(node: ir.Node) -> str:
        # What bfloat16 rounds once, steps round several times.
        x = given(node, 0)
        narrow = x is not None and x.dtype == ir.DataType.BFLOAT16
        return fault if digits.floats(node) and not narrow else ""

    return Rule(frozenset(ops.split()), found, f"openvino 2026.4.1: {seen}", repair)


def _small_mish(node: ir.Node) -> str:
    x = given(node, 0)
    single = x is not None and x.dtype == ir.DataType.FLOAT
    if not single or not digits.is_read(node):
        return ""
    return "log(1 + exp(x)) has no digits left far below zero"


DIGITS: tuple[Rule, ...] = (
    _digits(
        "Elu Selu Celu",
        "exp(x) - 1 has no digits left near zero",
        digits.exponential_by_tanh,
        "Elu(-1e-7) = -1.19e-7",
    ),
    _digits(
        "Softplus",
        "log(1 + exp(x)) has no digits left far below zero",
        digits.softplus_by_atanh,
        "Softplus(-20) = -1.9e-6",
    ),
    Rule(
        frozenset({"Mish"}),
        _small_mish,
        "openvino 2026.4.1: Mish(-14) is 0.0035 of itself off, Mish(-20) = 0",
        digits.mish_by_exponential,
    ),
    _digits("Erf", "has no digits near zero", digits.erf_by_tanh, "Erf(1e-7) = 0"),
    _digits(
        "ReduceL2 LpNormalization",
        "squares of tiny and of huge elements leave float32",
        digits.scaled_norm,
        "LpNormalization([1e-21, 2e-21]) = [2.9e-18, 5.8e-18]",
    ),
)
"""Kernels that lose digits."""

_KNOWN = "give a constant operand, or integers of 16 bits"

WHOLE: tuple[Rule, ...] = (
    _whole(
        "Equal Less LessOrEqual Greater GreaterOrEqual", whole.compared, whole.compare_difference
    ),
    _whole("Div Mod", whole.divided, whole.divide_exactly),
    _whole(
        "ReduceMax ReduceMin ReduceSum ReduceL1 ReduceSumSquare",
        whole.reduced,
        whole.reduce_exactly,
        "give constant axes",
    ),
    _whole("ReduceMean", whole.reduced, by_definition, _KNOWN),
    _whole("Relu PRelu", whole.activated, whole.activate_exactly),
    _whole("Cast", whole.made_bool, whole.difference_from_zero),
    _whole("Cast", whole.narrowed, whole.narrow_by_bits),
    _whole("Pow", whole.raised, whole.power_by_products, _KNOWN),
    _whole("MatMul Gemm", whole.multiplied, by_definition, _KNOWN),
    _whole("Einsum", whole.multiplied, None, _KNOWN),
    _whole("Add Sub Mul Div Neg Abs BitShift", whole.saturated, whole.wrap_bytes),
    _whole("BitShift", whole.shifted, moves.move_halves),
    _whole("ReverseSequence Resize", moves.moved, moves.move_halves),
    _whole("Pad", moves.padded, moves.fill_apart),
    _whole("Where", whole.chosen, whole.choose_apart),
    _whole("Clip Min", whole.clamped, whole.clamp_by_extremes),
)
"""Integers that float32 does not hold."""

RULES: tuple[Rule, ...] = (
    Rule(
        ops=frozenset({"QuantizeLinear"}),
        fault=sixteen_bits.unbounded,
        source="openvino 2026.4.1: QuantizeLinear(100, 1 / 32768) to int16 and back is 100",
        repair=sixteen_bits.write_out,
        hint="quantize it to 8 bits, or with one scale for the whole tensor",
        domains=frozenset({"", "com.microsoft"}),
    ),
    Rule(
        ops=frozenset({"DynamicQuantizeLinear"}),
        fault=lambda _: "what lies halfway goes by x * 255 / (highest - lowest)",
        source="ONNX node test test_dynamicquantizelinear, openvino 2026.4.1",
        repair=by_definition,
    ),
    Rule(
        ops=frozenset({"Det", "DeformConv"}),
        fault=lambda _: "no conversion for it",
        source="openvino 2026.4.1: 'No conversion rule found for operations: Det'",
        repair=by_definition,
        reason="unsupported_op",
        hint="give its sizes with --input-shape",
    ),
    Rule(
        ops=frozenset({"Add", "Sub", "Mul", "Div"}),
        fault=apart.joined,
        source="openvino 2026.4.1: (0.5 + 12582912) - 12582912 = 0.5",
        repair=apart.part,
    ),
    Rule(
        ops=frozenset({"Sum"}),
        fault=apart.summed_up,
        source="openvino 2026.4.1: Sum(0.5, 12582912, -12582912) = 0.5",
        repair=apart.add_in_turn,
    ),
    Rule(
        ops=frozenset({"Mod"}),
        fault=_rounded_quotient,
        source="openvino 2026.4.1: Mod<fmod=1>(1e10, 3) = 0",
        repair=by_definition,
    ),
    Rule(
        ops=frozenset({"LSTM", "GRU", "RNN"}),
        fault=batchwise_recurrent,
        source="ONNX node tests test_{lstm,gru,simple_rnn}_batchwise, openvino 2026.4.1",
        repair=move_batch,
    ),
    Rule(
        ops=frozenset({"Compress"}),
        fault=lambda node: "" if "axis" in node.attributes else "its rank is lost",
        source="a Compress of n elements without an axis does not load, openvino 2026.4.1",
        repair=compress_flat,
    ),
    Rule(
        ops=frozenset({"GatherElements"}),
        fault=lambda node: "fewer positions than elements" if narrower_axes(node) else "",
        source="its reader takes equal sizes beside the axis only, openvino 2026.4.1",
        repair=gather_from_a_part,
    ),
    Rule(
        ops=frozenset({"Unique"}),
        fault=_unsorted_whole,
        source="without inverse_indices [3, 1, 3, 2] give [3, 1, 0], openvino 2026.4.1",
        repair=unique_along,
    ),
    Rule(
        ops=frozenset({"Expand"}),
        fault=_unseen_sizes,
        source="an Expand of [2, 3] to sizes of a run, [2, 4], gives [2, 3], openvino 2026.4.1",
        reason="dynamic_shape",
        hint="leave the Expand out",
    ),
    Rule(
        ops=frozenset({"LSTM"}),
        fault=_peepholes,
        source="ONNX node test test_lstm_with_peepholes, openvino 2026.4.1",
        repair=by_definition,
    ),
    Rule(
        ops=frozenset({"LRN"}),
        fault=lambda n: even_window(n) or _other_bias(n),
        source="openvino 2026.4.1: LRN<size=4> sums five channels, LRN<bias=2> adds 1",
        repair=sum_channels,
    ),
    Rule(
        ops=frozenset({"Bernoulli"}),
        fault=inverted_bernoulli,
        source="onnx 1.23: the definition of Bernoulli against its text",
        repair=draw_below,
    ),
    Rule(
        ops=frozenset({"Attention"}),
        fault=_window,
        source="ONNX node test test_attention_local_window, openvino 2026.4.1",
        repair=by_definition,
    ),
    Rule(
        ops=frozenset({"Attention"}),
        fault=attention_scores_before_mask,
        source="ONNX node test ..._qk_matmul_bias_3d_mask_causal, openvino 2026.4.1",
        repair=by_definition,
    ),
    Rule(
        ops=frozenset({"BitShift"}),
        fault=_signed_shift,
        source="ONNX node test test_bitshift_right_int8_negative_input, openvino 2026.4.1",
        reason="unsupported_dtype",
    ),
    Rule(
        ops=frozenset({"Resize"}),
        fault=fractional_corners,
        source="ONNX node test test_resize_downsample_scales_linear_align_corners",
        hint="give sizes instead of scales",
    ),
    Rule(
        ops=frozenset({"Resize"}),
        fault=_resize,
        source="ONNX node tests test_resize_*_{exclude_outside,antialias,not_larger}, 2026.4.1",
        repair=resize_by_axis,
        hint="fix the sizes, e.g. --input-shape x=1,3,224,224",
    ),
    Rule(
        ops=frozenset({"RoiAlign"}),
        fault=_roi_max,
        source="ONNX node test test_roialign_mode_max, openvino 2026.4.1",
        repair=by_definition,
    ),
    Rule(
        ops=frozenset({"RoiAlign"}),
        fault=_no_area,
        source="RoiAlign<sampling_ratio=0> of a point, beside ONNX Runtime, 2026.4.1",
        repair=zero_without_area,
    ),
    Rule(
        ops=frozenset({"SpaceToDepth"}),
        fault=_crd,
        source="ONNX node test test_spacetodepth_crd_mode_example, openvino 2026.4.1",
        repair=by_definition,
    ),
    Rule(
        ops=frozenset({"DFT"}),
        fault=_transform,
        source="ONNX node tests test_dft_{rfft,irfft,axis}, openvino 2026.4.1",
        repair=by_definition,
    ),
    Rule(
        ops=frozenset({"STFT"}),
        fault=_frame_length,
        source="a plain STFT(x, step, window), openvino 2026.4.1",
        repair=state_frame_length,
        hint="give frame_length",
    ),
    Rule(
        ops=frozenset({"ReduceMax", "ReduceMin"}),
        fault=_extreme,
        source="ONNX node tests test_reduce_max_empty_set and "
        "test_attention_causal_boolmask_nan_robustness_expanded, openvino 2026.4.1",
        repair=keep_infinite_extreme,
    ),
    Rule(
        ops=REDUCTIONS,
        fault=_last_of_three,
        source="ReduceSum of [2,3,4] over its last axis, then Add of 3 values, openvino 2026.4.1",
        repair=reduce_then_squeeze,
    ),
    Rule(
        ops=frozenset({"Tile"}),
        fault=_repeats,
        source="ONNX node test test_tile, openvino 2026.4.1: three or more axes repeated",
        repair=tile_by_expand,
        reason="requires_constant",
    ),
    Rule(
        ops=frozenset({"MaxPool"}),
        fault=_max_overhang,
        source="ONNX node test test_maxpool_2d_ceil_output_size_reduce_by_one, openvino 2026.4.1",
        hint="set ceil_mode=0 and explicit pads",
    ),
    Rule(
        ops=frozenset({"AveragePool"}),
        fault=moves.counts_integers,
        source="openvino 2026.4.1: AveragePool(DequantizeLinear(x, s, 1)) is -17 for 1 at a border",
        repair=moves.scale_before,
    ),
    Rule(
        ops=frozenset({"AveragePool"}),
        fault=_average_overhang,
        source="tests/golden: averagepool_avgpool1d_k7_s3_p33_ceil_cip, openvino 2026.4.1",
        repair=pad_before_average,
        hint="set ceil_mode=0 and explicit pads",
    ),
    Rule(
        ops=frozenset({"Pad"}),
        fault=moves.wrapped,
        source="openvino 2026.4.1: 'Unsupported padding mode: [wrap]'",
        repair=moves.gather_around,
    ),
    Rule(
        ops=frozenset({"LpPool"}),
        fault=_open_powers,
        source="openvino 2026.4.1: a mean is multiplied by what a whole window holds",
        reason="dynamic_shape",
        hint="give its sizes with --input-shape",
    ),
    Rule(
        ops=frozenset({"ConvTranspose"}),
        fault=_open_output,
        source="openvino 2026.4.1: a crop of one is taken behind, where ONNX takes it before",
        reason="dynamic_shape",
        hint="give its sizes with --input-shape",
    ),
    Rule(
        ops=frozenset({"If"}),
        fault=_condition,
        source="openvino 2026.4.1: 'Rank of If condition input must be equal to 0 or 1'",
        repair=scalar_condition,
    ),
    Rule(
        ops=frozenset({"Squeeze"}),
        fault=_squeeze,
        source="openvino 2026.4.1: [2,4,3] without its last axis gives [6,4] in a dynamic model",
        repair=squeeze_by_reshape,
    ),
    Rule(
        ops=frozenset({"Squeeze"}),
        fault=_open_rank,
        source="openvino 2026.4.1: CPU plug-in doesn't support Squeeze with dynamic rank",
        reason="dynamic_shape",
        hint="fix the sizes, e.g. --input-shape x=1,3,224,224",
    ),
    Rule(
        ops=frozenset({"Cast"}),
        fault=_to_bool,
        source="tests/golden: cast_cast_f32_bool, openvino 2026.4.1",
        repair=bool_by_comparison,
    ),
    Rule(
        ops=frozenset({"Resize"}),
        fault=_nearest,
        source="tests/golden: resize_nearest_half_pixel_round_prefer_ceil, openvino 2026.4.1",
        repair=resize_by_axis,
        hint="fix the sizes, e.g. --input-shape x=1,3,224,224",
    ),
    Rule(
        ops=frozenset({"Transpose"}),
        fault=equal_axes,
        source="openvino 2026.4.1: see heads.py",
        repair=transpose_five,
    ),
    *DIGITS,
    *WHOLE,
)
