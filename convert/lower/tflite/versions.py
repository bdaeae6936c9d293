"""Which version of an operator a file must declare, so that older runtimes refuse it by themselves.

Facts from TensorFlow's ``tools/versioning/op_version.cc`` (2025). Rules are read from the top and
the first that holds decides; 1 where none does.
"""

from __future__ import annotations

from collections.abc import Callable

from edgeinfer.convert.lower.tflite.graph import Op, Tensor, name_of

Rule = tuple[Callable[[Op], bool], int]


def version_of(op: Op) -> int:
    """Return the version of an operator as it is used here."""
    for holds, version in RULES.get(op.code, ()):
        if holds(op):
            return version
    return 1


def _in(op: Op, index: int = 0) -> Tensor | None:
    return op.inputs[index] if index < len(op.inputs) else None


def _dtype(tensor: Tensor | None) -> str:
    return "" if tensor is None else name_of(tensor.dtype)


def of(*dtypes: str, at: int = 0) -> Callable[[Op], bool]:
    """The operand has one of these element types."""
    return lambda op: _dtype(_in(op, at)) in dtypes


def either(*dtypes: str) -> Callable[[Op], bool]:
    """The first operand or the first result has one of these element types."""
    return lambda op: bool({_dtype(_in(op)), _dtype(op.outputs[0])} & set(dtypes))


def types(first: str, second: str, result: str, at: int = 1) -> Callable[[Op], bool]:
    """The data operand, the weights and the result have these element types."""
    return lambda op: (
        (_dtype(_in(op)), _dtype(_in(op, at)), _dtype(op.outputs[0])) == (first, second, result)
    )


def rank_over(limit: int) -> Callable[[Op], bool]:
    """The first operand has more axes than this."""
    return lambda op: (t := _in(op)) is not None and t.rank > limit


def option(name: str) -> Callable[[Op], bool]:
    """The option is set to something other than zero."""
    return lambda op: bool(op.options.get(name, 0))


def both(a: Callable[[Op], bool], b: Callable[[Op], bool]) -> Callable[[Op], bool]:
    """Both hold."""
    return lambda op: a(op) and b(op)


def _per_channel(index: int) -> Callable[[Op], bool]:
    def holds(op: Op) -> bool:
        tensor = _in(op, index)
        return tensor is not None and _channels(tensor) > 1

    return holds


def _channels(tensor: Tensor) -> int:
    return 0 if tensor.quantization is None else tensor.quantization.scale.size


def _either_per_channel(op: Op) -> bool:
    first = _in(op)
    return _channels(op.outputs[0]) > 1 or (first is not None and _channels(first) > 1)


def _quantized(op: Op) -> bool:
    first = _in(op)
    return first is not None and first.quantization is not None


def _plain_int16(op: Op) -> bool:
    return _dtype(_in(op)) == "int16" and not _quantized(op)


def _grouped(op: Op) -> bool:
    x, w = _in(op), _in(op, 1)
    return x is not None and w is not None and x.shape[-1] != w.shape[-1]


def _dilated(op: Op) -> bool:
    factors = (op.options.get("dilation_w_factor", 1), op.options.get("dilation_h_factor", 1))
    return factors != (1, 1)


def _broadcasts_wide(op: Op) -> bool:
    a, b = _in(op), _in(op, 1)
    if a is None or b is None:
        return False
    return a.shape != b.shape and max(a.rank, b.rank) > 4


def _no_bias(op: Op) -> bool:
    return len(op.inputs) < 3 or op.inputs[2] is None


def _rescales_up(op: Op) -> bool:
    """The product's scale is at least the result's, which the first kernels could not do."""
    a, b, out = _in(op), _in(op, 1), op.outputs[0]
    if a is None or b is None:
        return False
    if a.quantization is None or b.quantization is None or out.quantization is None:
        return False
    scales = [float(t.quantization.scale[0]) for t in (a, b, out) if t.quantization is not None]
    return scales[0] * scales[1] >= scales[2] > 0


INT8: tuple[Rule, ...] = ((of("int8"), 2),)
INT8_INT16: tuple[Rule, ...] = ((of("int16"), 3), (of("int8"), 2))
SMALL_INTS: tuple[Rule, ...] = ((of("int8", "int16"), 2),)
HALF_OR_ALIGNED: tuple[Rule, ...] = (
    (of("int16"), 4),
    (option("half_pixel_centers"), 3),
    (of("int8"), 2),
)

RULES: dict[str, tuple[Rule, ...]] = {
    "ABS": (
        (of("int32"), 5),
        (_plain_int16, 4),
        (of("int16"), 3),
        (of("int8", "uint8"), 2),
    ),
    "ADD": (
        (of("float16"), 6),
        (_plain_int16, 5),
        (of("int64"), 4),
        (of("int16"), 3),
        (of("int8"), 2),
    ),
    "ARG_MAX": ((of("bool"), 3), (of("int8"), 2)),
    "ARG_MIN": ((of("bool"), 3), (of("int8"), 2)),
    "AVERAGE_POOL_2D": INT8_INT16,
    "BATCH_MATMUL": (
        (of("int16"), 3),
        (of("int8"), 2),
        (both(types("float32", "int8", "float32"), option("asymmetric_quantize_inputs")), 4),
    ),
    # Version 1 was withdrawn.
    "BROADCAST_TO": ((of("int8", "int16"), 3), (lambda op: True, 2)),
    "CAST": (
        (either("bfloat16"), 7),
        (both(of("int4"), lambda op: _dtype(op.outputs[0]) == "float32"), 6),
        (either("float64", "float16"), 5),
        (either("uint16"), 4),
        (either("int8"), 3),
        (either("uint32"), 2),
    ),
    "CONCATENATION": ((of("int4"), 5), (of("uint32"), 4), *INT8_INT16),
    "CONV_2D": (
        (both(types("int16", "int8", "int16"), option("quantized_bias_type")), 8),
        (_grouped, 6),
        (types("int16", "int8", "int16"), 4),
        (types("int8", "int8", "int8"), 3),
        (types("int8", "int4", "int8"), 7),
        (both(types("float32", "int8", "float32"), _per_channel(1)), 5),
        (types("float32", "int8", "float32"), 2),
    ),
    "DEPTHWISE_CONV_2D": (
        (types("int16", "int8", "int16"), 5),
        (both(types("float32", "int8", "float32"), _per_channel(1)), 6),
        (types("float32", "int8", "float32"), 4),
        (types("int8", "int8", "int8"), 3),
        (types("int8", "int4", "int8"), 7),
        (_dilated, 2),
    ),
    "DEPTH_TO_SPACE": INT8,
    "DEQUANTIZE": (
        (of("int2"), 7),
        (of("int4"), 6),
        (of("int16", "float16"), 3),
        (both(of("int8"), _per_channel(0)), 5),
        (of("int8"), 2),
    ),
    "DIV": ((_broadcasts_wide, 2),),
    "EQUAL": ((of("int16"), 5), (of("int8"), 2)),
    "EXP": SMALL_INTS,
    "FILL": (
        (of("float16", at=1), 4),
        (of("int8", "int16", at=1), 3),
        (of("bool", at=1), 2),
    ),
    "FLOOR_DIV": ((of("int16", "int8"), 3), (of("float32"), 2)),
    "FLOOR_MOD": SMALL_INTS,
    "FULLY_CONNECTED": (
        (of("int2", at=1), 14),
        (types("int16", "int4", "int16"), 13),
        (both(types("float32", "int8", "float32"), _per_channel(1)), 12),
        (both(types("int16", "int8", "int16"), option("quantized_bias_type")), 11),
        (types("int16", "int16", "int16"), 7),
        (_no_bias, 6),
        (option("keep_num_dims"), 5),
        (types("int8", "int8", "int8"), 4),
        (types("int8", "int4", "int8"), 10),
        (both(types("float32", "int8", "float32"), option("asymmetric_quantize_inputs")), 9),
        (types("float32", "int8", "float32"), 3),
    ),
    "GATHER": (
        (of("int4"), 7),
        (of("int16", at=1), 6),
        (option("batch_dims"), 5),
        (of("int16"), 4),
        (of("bool"), 3),
        (of("int8"), 2),
    ),
    "GATHER_ND": ((of("bool"), 5), (of("int16", at=1), 4), (of("int16"), 3)),
    "GELU": ((of("int8", "uint8"), 2),),
    "GREATER": INT8,
    "GREATER_EQUAL": INT8_INT16,
    "L2_NORMALIZATION": INT8,
    "LEAKY_RELU": ((of("int16"), 2),),
    "LESS": INT8_INT16,
    "LESS_EQUAL": INT8,
    "LOG": SMALL_INTS,
    "LOGISTIC": INT8_INT16,
    "LOG_SOFTMAX": INT8,
    "MAXIMUM": ((of("int16"), 4), (_broadcasts_wide, 3), (of("int8"), 2)),
    "MAX_POOL_2D": INT8_INT16,
    "MEAN": INT8_INT16,
    "MINIMUM": ((of("int16"), 4), (_broadcasts_wide, 3), (of("int8"), 2)),
    "MIRROR_PAD": INT8_INT16,
    "MUL": (
        (of("float16"), 8),
        (_plain_int16, 7),
        (of("uint32"), 7),
        (of("int64"), 5),
        (of("int16"), 4),
        (_rescales_up, 3),
        (of("int8"), 2),
    ),
    "NOT_EQUAL": ((of("int16"), 4), (of("int8"), 2)),
    "PACK": ((of("int8"), 2), (of("int16"), 3), (of("uint32"), 4)),
    "PAD": ((of("bool"), 5), (rank_over(4), 4), *INT8_INT16),
    "PADV2": ((of("bool"), 5), (rank_over(4), 4), *INT8_INT16),
    "QUANTIZE": (
        (either("int4"), 4),
        (_either_per_channel, 3),
        (lambda op: _dtype(op.outputs[0]) == "int16", 2),
    ),
    "RANGE": ((of("int64"), 2),),
    "REDUCE_MAX": INT8_INT16,
    "REDUCE_MIN": INT8_INT16,
    "REDUCE_PROD": SMALL_INTS,
    "RELU": ((of("int16"), 3), (of("int8", "uint8"), 2)),
    "RELU6": INT8_INT16,
    "RESIZE_BILINEAR": HALF_OR_ALIGNED,
    "RESIZE_NEAREST_NEIGHBOR": (
        (of("int16"), 4),
        (option("half_pixel_centers"), 3),
        (option("align_corners"), 3),
        (of("int8"), 2),
    ),
    "REVERSE_V2": ((of("int8"), 3), (of("bool"), 2)),
    "RSQRT": INT8_INT16,
    "SELECT_V2": ((of("uint32"), 2),),
    "SIGN": ((of("int32"), 2),),
    "SLICE": (
        (of("int4"), 7),
        (of("uint32"), 6),
        (rank_over(4), 5),
        (of("int16"), 4),
        (of("int8"), 2),
    ),
    "SOFTMAX": INT8_INT16,
    "SPACE_TO_DEPTH": INT8,
    "SPLIT": ((of("int16", at=1), 4), (of("int32", at=1), 3), (of("int8", at=1), 2)),
    "SPLIT_V": INT8,
    "SQRT": SMALL_INTS,
    "SQUARED_DIFFERENCE": INT8,
    "STRIDED_SLICE": (
        (option("offset"), 8),
        (of("uint32"), 7),
        (option("ellipsis_mask"), 6),
        (option("new_axis_mask"), 6),
        (rank_over(4), 4),
        (of("bool"), 3),
        (of("int8"), 2),
    ),
    "SUB": ((of("int16"), 5), (of("int64"), 4), (_broadcasts_wide, 3), (of("int8"), 2)),
    "SUM": INT8,
    "TANH": INT8_INT16,
    "TILE": ((of("int8"), 3),),
    "TOPK_V2": ((of("int16"), 3), (of("int8"), 2)),
    "TRANSPOSE": (
        (rank_over(6), 8),
        (of("int4"), 7),
        (rank_over(5), 6),
        (of("int16"), 5),
        (rank_over(4), 4),
        (of("bool"), 3),
        (of("int8"), 2),
    ),
    "TRANSPOSE_CONV": (
        (option("fused_activation_function"), 4),
        (lambda op: len(op.inputs) == 4 and op.inputs[3] is not None, 3),
        (of("int8", at=1), 2),
    ),
    "UNIDIRECTIONAL_SEQUENCE_LSTM": (
        (option("diagonal_recurrent_tensors"), 4),
        (both(types("float32", "int8", "float32", at=2), option("asymmetric_quantize_inputs")), 3),
        (types("float32", "int8", "float32", at=2), 2),
    ),
    "UNPACK": (
        (of("int8", "uint8"), 2),
        (of("bool"), 3),
        (of("int16"), 4),
        (of("float16", "bfloat16"), 5),
    ),
    "WHERE": ((of("bool"), 1), (lambda op: True, 2)),
}
