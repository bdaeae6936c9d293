"""What ONNX Runtime's CPU provider gets wrong, lacks or computes slowly, as a table of rules."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from edgeinfer.convert.lower import digits
from edgeinfer.convert.lower.faults import (
    attention_scores_before_mask,
    batchwise_recurrent,
    draw_below,
    fractional_corners,
    inverted_bernoulli,
    move_batch,
)
from edgeinfer.convert.lower.onnxruntime.faster import (
    contrib_gelu,
    is_mean_of_map,
    mean_by_pool,
    repeat_mask_rows,
    silu_by_sigmoid,
)
from edgeinfer.convert.lower.onnxruntime.one_hot import by_cast, without_kernel
from edgeinfer.convert.lower.onnxruntime.ranges import gather_cast, sliced
from edgeinfer.convert.lower.onnxruntime.remainders import (
    by_floor,
    by_minus_one,
    guard_divisor,
    inexact_remainder,
)
from edgeinfer.convert.lower.onnxruntime.resizes import (
    guard_kept,
    name_all_axes,
    some_axes,
    unguarded,
)
from edgeinfer.convert.lower.onnxruntime.wide_sums import (
    SUMS,
    inexact_einsum,
    inexact_mean,
    inexact_product,
    inexact_sum,
    mean_of_halves,
    multiply_in_turn,
    sum_before,
    sum_halves,
)
from edgeinfer.convert.lower.resizes import copied_whole, resize_by_axis
from edgeinfer.convert.lower.rules import Rule, attribute, by_definition, given


def _unpool_size(node: ir.Node) -> str:
    return "output_shape is taken without moving the indices" if given(node, 2) else ""


def _open_dilated(node: ir.Node) -> str:
    """Whether passes left automatic padding of a dilated window, for want of sizes."""
    same = attribute(node, "auto_pad", "NOTSET") in ("SAME_UPPER", "SAME_LOWER")
    dilations = attribute(node, "dilations", ())
    dilated = isinstance(dilations, Sequence) and any(d != 1 for d in dilations)
    return "auto_pad of an open size forgets the dilations" if same and dilated else ""


def _mask_rows(node: ir.Node) -> str:
    mask, query = given(node, 3), given(node, 0)
    if mask is None or query is None or mask.shape is None or query.shape is None:
        return ""
    if len(mask.shape) < 2 or mask.shape[-2] != 1 or query.shape[-2] == 1:
        return ""
    return "a mask with one row for all queries is not broadcast"


def _short_mask(node: ir.Node) -> str:
    mask, keys, past = given(node, 3), given(node, 1), given(node, 4)
    if mask is None or keys is None or mask.shape is None or keys.shape is None:
        return ""
    if past is not None and past.shape is None:
        return ""
    lengths = [keys.shape[-2], *(past.shape[-2:-1] if past is not None and past.shape else ())]
    known = [s for s in (mask.shape[-1], *lengths) if isinstance(s, int)]
    if len(known) <= len(lengths) or known[0] >= sum(known[1:]):
        return ""
    return "a mask over fewer keys than there are is not filled up"


def _swish(_: ir.Node) -> str:
    return "no kernel; the formula is fused"


def _mish(node: ir.Node) -> str:
    return "slow kernels" if _is_single(node) else ""


def _gelu(node: ir.Node) -> str:
    exact = attribute(node, "approximate", "none") == "none"
    return "the contrib kernel is faster" if exact and _is_single(node) else ""


def _mean_of_map(node: ir.Node) -> str:
    return "a pool keeps its order" if _is_single(node) and is_mean_of_map(node) else ""


def _is_single(node: ir.Node) -> bool:
    value = given(node, 0)
    return value is not None and value.dtype == ir.DataType.FLOAT


RULES: tuple[Rule, ...] = (
    Rule(
        ops=frozenset({"AveragePool", "Conv", "MaxPool"}),
        fault=_open_dilated,
        source="onnxruntime 1.32: 'Dilation not supported for AutoPadType', too few rows of a pool",
        reason="dynamic_shape",
        hint="give its sizes with --input-shape",
    ),
    Rule(
        ops=frozenset({"LSTM", "GRU", "RNN"}),
        fault=batchwise_recurrent,
        source="onnxruntime 1.32: 'Batchwise recurrent operations (layout == 1) are not supported'",
        repair=move_batch,
    ),
    Rule(
        ops=frozenset({"Gather"}),
        fault=sliced,
        source="onnxruntime 1.32: Gather(x, Range(-2, 2, 1)) has no rows",
        repair=gather_cast,
    ),
    Rule(
        ops=frozenset({"OneHot"}),
        fault=without_kernel,
        source="onnxruntime 1.32: 'Could not find an implementation for OneHot'",
        repair=by_cast,
    ),
    Rule(
        ops=frozenset({"Bernoulli"}),
        fault=inverted_bernoulli,
        source="onnx 1.23: the definition of Bernoulli against its text",
        repair=draw_below,
    ),
    Rule(
        ops=frozenset({"Attention"}),
        fault=attention_scores_before_mask,
        source="ONNX node test ..._qk_matmul_bias_3d_mask_causal, onnxruntime 1.32",
        repair=by_definition,
    ),
    Rule(
        ops=frozenset({"Attention"}),
        fault=_mask_rows,
        source="onnxruntime 1.32: 'inconsistent q_sequence_length (between attn_mask and Q)'",
        repair=repeat_mask_rows,
    ),
    Rule(
        ops=frozenset({"Attention"}),
        fault=_short_mask,
        source="ONNX node test test_attention_4d_diff_heads_mask4d_padded_kv, onnxruntime 1.32: "
        "'inconsistent total_sequence_length'",
        repair=by_definition,
    ),
    Rule(
        ops=SUMS,
        fault=inexact_sum,
        source="ReduceSum of 2**60 + 1 and 3 is 2**60, onnxruntime 1.32",
        repair=sum_halves,
    ),
    Rule(
        ops=frozenset({"ReduceMean"}),
        fault=inexact_mean,
        source="ReduceMean of 2**60 + 1 and 3 is 2**59, onnxruntime 1.32",
        repair=mean_of_halves,
    ),
    Rule(
        ops=frozenset({"ReduceProd"}),
        fault=inexact_product,
        source="ReduceProd of 2**31 + 1 and 2**30 + 1 is even, onnxruntime 1.32",
        repair=multiply_in_turn,
        hint="declare what integer inputs hold, or give the sizes of the axes",
    ),
    Rule(
        ops=frozenset({"Einsum"}),
        fault=inexact_einsum,
        source="Einsum ij->i of 2**60 + 1 and 3 is 2**60, onnxruntime 1.32",
        repair=sum_before,
    ),
    Rule(
        ops=frozenset({"Mod"}),
        fault=inexact_remainder,
        source="Mod<fmod=1>(-2**63, 1 - 2**63) is 0, onnxruntime 1.30; right in 1.32",
        repair=by_floor,
    ),
    Rule(
        ops=frozenset({"Div", "Mod"}),
        fault=by_minus_one,
        source="Div(-2**63, -1) ends the process by SIGFPE, onnxruntime 1.32; Mod in 1.30 too",
        repair=guard_divisor,
    ),
    Rule(
        ops=frozenset({"MaxUnpool"}),
        fault=_unpool_size,
        source="ONNX node test test_maxunpool_export_with_output_shape, onnxruntime 1.32",
    ),
    Rule(
        ops=frozenset({"Resize"}),
        fault=fractional_corners,
        source="ONNX node test test_resize_downsample_scales_linear_align_corners",
        hint="give sizes instead of scales",
    ),
    Rule(
        ops=frozenset({"Resize"}),
        fault=copied_whole,
        source="Resize of 4 elements by 1.2 copies, onnxruntime 1.32: upsample.cc, no_scale",
        repair=resize_by_axis,
        hint="give sizes instead of scales",
    ),
    Rule(
        ops=frozenset({"Resize"}),
        fault=some_axes,
        source="onnxruntime 1.32: 'Number of elements of input sizes (0)' of optimised int8 models",
        repair=name_all_axes,
    ),
    Rule(
        ops=frozenset({"Resize"}),
        fault=unguarded,
        source="Resize of 4 elements by 1.2 copies, onnxruntime 1.32: upsample.cc, no_scale",
        repair=guard_kept,
        reason="dynamic_shape",
        hint="give sizes instead of scales",
    ),
)
"""Faults; without a repair the node is refused."""


def _exponential(node: ir.Node) -> str:
    return "exp(x) - 1 has no digits left near zero" if _is_plain(node) else ""


def _squares(node: ir.Node) -> str:
    if attribute(node, "p", 2) != 2 or not digits.floats(node):
        return ""
    return "squares of tiny and of huge elements leave float32"


def _instances(node: ir.Node) -> str:
    if digits.CENTRED in node.meta or not _is_plain(node):
        return ""
    return "large means are subtracted from each other"


def _moments(node: ir.Node) -> str:
    return "the mean of squares less the square of the mean" if _is_plain(node) else ""


def _small_results(node: ir.Node) -> str:
    if not _is_plain(node) or not digits.is_read(node):
        return ""
    return "has no digits below -12 and is zero below -18"


def _hidden(node: ir.Node) -> str:
    """One less the other of two exponentials; those of LSTM and GRU are another kernel's.

    Of an open length it has a step by now, as the Scan of the definition needs.
    """
    x = given(node, 0)
    if x is None or x.shape is None or x.shape[0] == 0:
        return ""
    named = attribute(node, "activations", ["Tanh"])
    if not isinstance(named, (list, tuple)) or not _is_plain(node):
        return ""
    kinds = {str(a).lower() for a in named}
    return "tanh has no digits left near zero" if kinds & {"tanh", "scaledtanh"} else ""


def _transform(node: ir.Node) -> str:
    """Lengths that are no power of two go by way of a chirp, which costs two digits."""
    value = given(node, 0)
    if value is None or value.dtype != ir.DataType.FLOAT or value.shape is None:
        return ""
    stated = given(node, 1 if node.op_type == "DFT" else 3)
    length: object = None
    if stated is not None:
        length = None if stated.const_value is None else int(stated.const_value.numpy().ravel()[0])
    elif node.op_type == "STFT":
        window = given(node, 2)
        length = None if window is None or window.shape is None else window.shape[0]
    else:
        axis = given(node, 2)
        at = -2 if axis is None else axis.const_value
        length = None if at is None else value.shape[_whole(at)]
    if not isinstance(length, int) or length & (length - 1) == 0:
        return ""
    return "loses two digits where the length is no power of two"


def _whole(number: int | ir.TensorProtocol) -> int:
    return number if isinstance(number, int) else int(number.numpy().ravel()[0])


def _is_plain(node: ir.Node) -> bool:
    value = given(node, 0)
    return value is not None and value.dtype in (ir.DataType.FLOAT, ir.DataType.DOUBLE)


PROBABILITIES = Rule(
    ops=frozenset({"Sigmoid"}),
    fault=_small_results,
    source="onnxruntime 1.32: Sigmoid(-14) is 0.57 of itself off, Sigmoid(-20) = 0",
    repair=digits.sigmoid_by_exponential,
)

DIGITS: tuple[Rule, ...] = (
    Rule(
        ops=frozenset({"Elu", "Selu", "Celu"}),
        fault=_exponential,
        source="onnxruntime 1.32: Elu(-1e-7) = -1.19e-7",
        repair=digits.exponential_by_tanh,
    ),
    Rule(
        ops=frozenset({"ReduceL2", "LpNormalization"}),
        fault=_squares,
        source="onnxruntime 1.32: ReduceL2([1e-30]) = 0, ReduceL2([1e20]) = inf",
        repair=digits.scaled_norm,
    ),
    Rule(
        ops=frozenset({"GlobalLpPool", "LpPool", "LRN"}),
        fault=lambda _: "powers of tiny and of huge elements leave float32",
        source="onnxruntime 1.32: LpPool<kernel_shape=[2], p=3>([1e15, 1e15]) = inf",
        repair=by_definition,
    ),
    Rule(
        ops=frozenset({"InstanceNormalization"}),
        fault=_instances,
        source="onnxruntime 1.32: a channel of -100 alone comes out 0.043 for 0.041",
        repair=digits.centre_first,
    ),
    Rule(
        ops=frozenset({"GroupNormalization"}),
        fault=_moments,
        source="onnxruntime 1.32: 0.038 of the largest value off at a mean of 1000",
        repair=digits.normalise_groups,
    ),
    Rule(
        ops=frozenset({"MeanVarianceNormalization"}),
        fault=_moments,
        source="onnxruntime 1.32: equal elements give NaN, 1e-21 gives 0.8 for 8e-13",
        repair=digits.normalise_mean_variance,
    ),
    PROBABILITIES,
    Rule(
        ops=frozenset({"RNN"}),
        fault=_hidden,
        source="onnxruntime 1.32: a state of tanh(1e-7) is 1.19e-7, tanh(1e-8) is 0; its kernel "
        "takes 44 us for 50 steps of 64 where the definition takes 54, and 3.5 ms for 0.9 with a "
        "batch of 16",
        repair=by_definition,
    ),
    Rule(
        ops=frozenset({"DFT", "STFT"}),
        fault=_transform,
        source="onnxruntime 1.32: 3e-5 of the largest value off at a length of 400, 5e-7 at 512",
        repair=by_definition,
    ),
)
"""Kernels that lose digits; a repair that does not apply leaves the node as it is. They come after
half precision, which keeps these operators whole in single."""

SWISH = Rule(frozenset({"Swish"}), _swish, "see faster.py", repair=silu_by_sigmoid)

FASTER: tuple[Rule, ...] = (
    SWISH,
    Rule(frozenset({"Mish"}), _mish, "see digits.py", repair=digits.mish_by_exponential),
    Rule(frozenset({"Gelu"}), _gelu, "see faster.py", repair=contrib_gelu),
)
"""Slow forms; a repair that does not apply leaves the node as it is."""

MEANS = Rule(frozenset({"ReduceMean"}), _mean_of_map, "see faster.py", repair=mean_by_pool)
"""Slow on x86-64, where convolutions have an order of their own."""
