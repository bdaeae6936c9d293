"""What OpenVINO's ONNX reader and CPU plugin get wrong or lack, as a table of rules."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import onnx_ir as ir

from edgeinfer.convert.families import REDUCTIONS
from edgeinfer.convert.lower import digits
from edgeinfer.convert.lower.faults import (
    attention_scores_before_mask,
    batchwise_recurrent,
    draw_below,
    fractional_corners,
    inverted_bernoulli,
    move_batch,
)
from edgeinfer.convert.lower.openvino import apart, blocks, conditions, moves, sixteen_bits
from edgeinfer.convert.lower.openvino import whole_numbers as whole
from edgeinfer.convert.lower.openvino.heads import equal_axes, transpose_five
from edgeinfer.convert.lower.openvino.lengths import LENGTHS
from edgeinfer.convert.lower.openvino.pooling import pad_before_average
from edgeinfer.convert.lower.openvino.rewrites import (
    bool_by_comparison,
    compress_flat,
    gather_from_a_copy,
    gather_from_a_part,
    keep_infinite_extreme,
    narrow_scale,
    narrower_axes,
    reduce_then_squeeze,
    scalar_condition,
    squeeze_by_reshape,
    state_frame_length,
    tile_by_expand,
    unique_along,
    widen_scale,
    zero_without_area,
)
from edgeinfer.convert.lower.resizes import near_by_rounding, perhaps_copied, resize_by_parts
from edgeinfer.convert.lower.rules import Repair, Rule, by_definition, given


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
    Rule(
        ops=frozenset({"GlobalLpPool", "LpPool", "LRN"}),
        fault=lambda _: "powers of tiny and of huge elements leave float32",
        source="openvino 2026.4.1: LpPool<kernel_shape=[2], p=3>([1e15, 1e15]) = inf, "
        "LRN<size=3> of 1e15 = 0",
        repair=by_definition,
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
        fault=conditions.rounded_quotient,
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
        ops=frozenset({"DynamicQuantizeLSTM"}),
        fault=lambda _: "the LSTM that its reader makes has none of the repairs of LSTM",
        source="openvino 2026.4.1: lengths of sequences and coupled gates are ignored",
        repair=by_definition,
        domains=frozenset({"com.microsoft"}),
    ),
    Rule(
        ops=frozenset({"Attention"}),
        fault=lambda node: "" if given(node, 3) is None else "what its reader makes of the mask",
        source="openvino 2026.4.1: <unidirectional=1> with the last of 4 keys masked is 0.88 off",
        repair=by_definition,
        domains=frozenset({"com.microsoft"}),
    ),
    Rule(
        ops=frozenset({"LayerNormalization"}),
        fault=narrow_scale,
        source="openvino 2026.4.1: a scale of [4] for [3, 4]: 'Argument shapes are inconsistent'",
        repair=widen_scale,
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
        source="its reader takes equal sizes of the other axes only, openvino 2026.4.1",
        repair=gather_from_a_part,
    ),
    Rule(
        ops=frozenset({"GatherElements"}),
        fault=conditions.skipped_slice,
        source="GatherElements(Slice(x, 0, 5, axis 2), i) along axis 0, openvino 2026.4.1",
        repair=gather_from_a_copy,
    ),
    Rule(
        ops=frozenset({"Unique"}),
        fault=conditions.unsorted_whole,
        source="without inverse_indices [3, 1, 3, 2] give [3, 1, 0], openvino 2026.4.1",
        repair=unique_along,
    ),
    Rule(
        ops=frozenset({"Expand"}),
        fault=conditions.unseen_sizes,
        source="an Expand of [2, 3] to sizes of a run, [2, 4], gives [2, 3], openvino 2026.4.1",
        reason="dynamic_shape",
        hint="leave the Expand out",
    ),
    Rule(
        ops=frozenset({"LSTM"}),
        fault=conditions.peepholes,
        source="ONNX node test test_lstm_with_peepholes, openvino 2026.4.1",
        repair=by_definition,
    ),
    Rule(
        ops=frozenset({"LSTM", "GRU", "RNN"}),
        fault=conditions.other_functions,
        source="openvino 2026.4.1: 'LSTMCellDecomposition ... CALLBACK HAS THROWN' for HardSigmoid",
        repair=by_definition,
    ),
    Rule(
        ops=frozenset({"Bernoulli"}),
        fault=inverted_bernoulli,
        source="onnx 1.23: the definition of Bernoulli against its text",
        repair=draw_below,
    ),
    Rule(
        ops=frozenset({"Attention"}),
        fault=conditions.window,
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
        fault=conditions.signed_shift,
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
        fault=conditions.resize,
        source="ONNX node tests test_resize_*_{exclude_outside,antialias,not_larger}, 2026.4.1",
        repair=resize_by_parts,
        hint="fix the sizes, e.g. --input-shape x=1,3,224,224",
    ),
    Rule(
        ops=frozenset({"Resize"}),
        fault=partial(near_by_rounding, fused=True),
        source="openvino 2026.4.1: x / 1.1 is x * 0.909, so that 22 / 1.1 lies below 20",
        reason="dynamic_shape",
        hint="give its sizes with --input-shape",
    ),
    Rule(
        ops=frozenset({"Resize"}),
        fault=perhaps_copied,
        source="Resize of 5 rows by 1.1, which a run gives, copies, openvino 2026.4.1",
        repair=by_definition,
        reason="dynamic_shape",
        hint="give sizes instead of scales",
    ),
    Rule(
        ops=frozenset({"RoiAlign"}),
        fault=conditions.roi_max,
        source="ONNX node test test_roialign_mode_max, openvino 2026.4.1",
        repair=by_definition,
    ),
    Rule(
        ops=frozenset({"RoiAlign"}),
        fault=conditions.no_area,
        source="RoiAlign<sampling_ratio=0> of a point, compared with ONNX Runtime, 2026.4.1",
        repair=zero_without_area,
    ),
    Rule(
        ops=frozenset({"SpaceToDepth"}),
        fault=conditions.crd,
        source="ONNX node test test_spacetodepth_crd_mode_example, openvino 2026.4.1",
        repair=by_definition,
    ),
    Rule(
        ops=frozenset({"DFT"}),
        fault=conditions.transform,
        source="ONNX node tests test_dft_{rfft,irfft,axis}, openvino 2026.4.1",
        repair=by_definition,
    ),
    Rule(
        ops=frozenset({"STFT"}),
        fault=conditions.frame_length,
        source="a plain STFT(x, step, window), openvino 2026.4.1",
        repair=state_frame_length,
        hint="give frame_length",
    ),
    Rule(
        ops=frozenset({"ReduceMax", "ReduceMin"}),
        fault=conditions.extreme,
        source="ONNX node tests test_reduce_max_empty_set and "
        "test_attention_causal_boolmask_nan_robustness_expanded, openvino 2026.4.1",
        repair=keep_infinite_extreme,
    ),
    Rule(
        ops=REDUCTIONS,
        fault=conditions.last_of_three,
        source="ReduceSum of [2,3,4] over its last axis, then Add of 3 values, openvino 2026.4.1",
        repair=reduce_then_squeeze,
    ),
    Rule(
        ops=frozenset({"Tile"}),
        fault=conditions.repeats,
        source="ONNX node test test_tile: three or more axes repeated; [n,1,1,3] by [1,2,2,1], "
        "openvino 2026.4.1",
        repair=tile_by_expand,
        reason="requires_constant",
    ),
    Rule(
        ops=frozenset({"MaxPool"}),
        fault=conditions.max_overhang,
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
        fault=conditions.average_overhang,
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
        ops=frozenset({"ConvTranspose"}),
        fault=conditions.open_output,
        source="openvino 2026.4.1: a crop of one is taken behind, where ONNX takes it before",
        reason="dynamic_shape",
        hint="give its sizes with --input-shape",
    ),
    Rule(
        ops=frozenset({"If"}),
        fault=conditions.condition,
        source="openvino 2026.4.1: 'Rank of If condition input must be equal to 0 or 1'",
        repair=scalar_condition,
    ),
    Rule(
        ops=frozenset({"Squeeze"}),
        fault=conditions.squeeze,
        source="openvino 2026.4.1: [2,4,3] without its last axis gives [6,4] in a dynamic model",
        repair=squeeze_by_reshape,
    ),
    Rule(
        ops=frozenset({"Squeeze"}),
        fault=conditions.open_rank,
        source="openvino 2026.4.1: CPU plug-in doesn't support Squeeze with dynamic rank",
        reason="dynamic_shape",
        hint="fix the sizes, e.g. --input-shape x=1,3,224,224",
    ),
    Rule(
        ops=frozenset({"Cast"}),
        fault=conditions.to_bool,
        source="tests/golden: cast_cast_f32_bool, openvino 2026.4.1",
        repair=bool_by_comparison,
    ),
    Rule(
        ops=frozenset({"Resize"}),
        fault=conditions.nearest,
        source="tests/golden: resize_nearest_half_pixel_round_prefer_ceil, openvino 2026.4.1",
        repair=resize_by_parts,
        hint="fix the sizes, e.g. --input-shape x=1,3,224,224",
    ),
    Rule(
        ops=frozenset({"Transpose"}),
        fault=equal_axes,
        source="openvino 2026.4.1: see heads.py",
        repair=transpose_five,
    ),
    *blocks.RULES,
    *DIGITS,
    *LENGTHS,
    *WHOLE,
)
