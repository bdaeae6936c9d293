"""What engines round off in sums, as fixed noise: the same in every run, on every machine.

The errors of n numbers that are added up in turn are together those of about 0.4 sqrt(n) roundings
of the sum.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from edgeinfer.convert.families import MOVES, RECURRENT

PRODUCTS = {
    **dict.fromkeys(("Conv", "ConvTranspose", "DeformConv", "Gemm", "MatMul"), 2),
    **dict.fromkeys(("Attention", "GRU", "LSTM", "RNN"), 3),
    "Einsum": 9,
}
"""How many operands of an operator are multiplied with each other."""

_MEANS = ("GlobalAveragePool", "ReduceMean")
_POSITIVE = ("ReduceL1", "ReduceL2", "ReduceSumSquare")
_NORMS = (
    *("InstanceNormalization", "GroupNormalization", "LayerNormalization"),
    "MeanVarianceNormalization",
)
ADDING = frozenset({*PRODUCTS, *_MEANS, *_POSITIVE, *_NORMS, "ReduceSum"}) - set(RECURRENT)
"""Operators whose results are sums of many numbers, or differences to their mean."""

_HALF_STEPS = {ir.DataType.FLOAT16: 2.0**-11, ir.DataType.BFLOAT16: 2.0**-8}
"""Largest share of a number that is rounded off."""

_EXACT = frozenset({
    *(*MOVES, "Abs", "Clip", "Concat", "GlobalMaxPool", "Max", "MaxPool", "Min", "Neg", "Pad"),
    *("ReduceMax", "ReduceMin", "Relu", "ScatterElements", "ScatterND", "TopK", "Where"),
})  # fmt: skip
"""Operators that round nothing."""

_LEAST = 1e-3
"""Deviation that an epsilon of 1e-6 stands for, where there is less."""

_LANES = 16
"""Partial sums that an engine's product keeps at least."""


def moved(
    node: ir.Node, inputs: Sequence[Any], result: Any, kernel: Callable[..., tuple[Any, ...]]
) -> Any:
    """Move the results of an operator by what a sum of so many float32 rounds off."""
    if not isinstance(result, np.ndarray) or result.dtype.kind != "f" or not result.size:
        return result
    if node.op_type in PRODUCTS:
        terms, size = _of_product(node, inputs, result, kernel)
    elif node.op_type in _NORMS:
        terms, size = _of_mean(node, inputs)
    else:
        terms, size = _of_axes(node, inputs, result, kernel)
    return _off(_numbers(node), result, terms, size)


def of_states(node: ir.Node) -> Callable[[Any, Any], Any]:
    """Return what moves a state by what the sums of its step round off, and rounds it."""
    numbers = _numbers(node)

    def noise(state: Any, sums: Any) -> Any:
        size = np.sqrt(np.mean(np.square(sums), axis=-1, keepdims=True))
        off = _off(numbers, state, state.shape[-1] / _LANES, size)
        return off.astype(np.float32).astype(state.dtype)

    return noise


def rounded_again(node: ir.Node, kind: ir.DataType | None, result: Any) -> Any:
    """Move what is stored as halves by half a rounding: engines round between, or not at all."""
    if kind not in _HALF_STEPS or node.op_type in _EXACT or not isinstance(result, np.ndarray):
        return result
    return result * (1.0 + _HALF_STEPS[kind] * (_numbers(node).integers(0, 2, result.shape) - 0.5))


def _numbers(node: ir.Node) -> np.random.Generator:
    return np.random.default_rng(zlib.crc32(str(node.outputs[0].name).encode()))


def _off(numbers: np.random.Generator, result: Any, terms: float, size: Any) -> Any:
    # By all of it, up or down: where a result counts, a small number would say that none is off.
    share = 0.4 * np.sqrt(terms) * 2.0**-24
    return result + share * size * (2.0 * numbers.integers(0, 2, result.shape) - 1.0)


def _of_product(
    node: ir.Node, inputs: Sequence[Any], result: Any, kernel: Callable[..., tuple[Any, ...]]
) -> tuple[float, Any]:
    is_filter = node.op_type in ("Conv", "ConvTranspose", "DeformConv")
    terms = inputs[1][0].size if is_filter else inputs[0].shape[-1]
    channel = 1 if is_filter else result.ndim - 1
    others = tuple(a for a in range(result.ndim) if a != channel)
    size = np.sqrt(np.mean(np.square(result), axis=others, keepdims=True))
    if PRODUCTS[node.op_type] != 2:
        return terms / _LANES, size
    # Of terms that cancel, partial sums are larger than the result.
    squares = [np.square(x) for x in inputs[:2]]
    rest = [
        x if node.op_type == "DeformConv" and i != 1 else None for i, x in enumerate(inputs[2:])
    ]
    if node.op_type == "Gemm":
        rest = [np.zeros_like(x) for x in inputs[2:]]
    walk = np.sqrt(np.abs(kernel(*squares, *rest)[0]))
    return terms / _LANES, np.maximum(size, walk)


def _of_mean(node: ir.Node, inputs: Sequence[Any]) -> tuple[float, Any]:
    """What the mean is off by is left in each element, over the deviation."""
    x = inputs[0]
    shape, channels = x.shape, (1, -1, *(1 for _ in x.shape[2:]))
    axes = tuple(range(2, x.ndim))
    scale: Any = 1.0
    if node.op_type == "LayerNormalization":
        axes = tuple(range(_number(node, "axis", -1) % x.ndim, x.ndim))
        scale = inputs[1]
    elif node.op_type == "MeanVarianceNormalization":
        given = node.attributes.get("axes")
        axes = (0, 2, 3) if given is None else tuple(given.as_ints())
    else:
        scale = np.reshape(inputs[1], channels)
    if node.op_type == "GroupNormalization":
        x = x.reshape(len(x), _number(node, "num_groups", 1), -1)
        axes = (2,)
    mean, deviation = np.mean(x, axis=axes, keepdims=True), np.std(x, axis=axes, keepdims=True)
    size = np.broadcast_to(np.abs(mean) / np.maximum(deviation, _LEAST), x.shape).reshape(shape)
    return x.size / mean.size / _LANES, size * np.abs(scale)


def _number(node: ir.Node, name: str, default: int) -> int:
    found = node.attributes.get(name)
    return default if found is None else found.as_int()


def _of_axes(
    node: ir.Node, inputs: Sequence[Any], result: Any, kernel: Callable[..., tuple[Any, ...]]
) -> tuple[float, Any]:
    """Some kernels add up one after the other; partial sums are as large as a walk of the terms."""
    terms = max(inputs[0].size / result.size, 1.0)
    if node.op_type in _POSITIVE:
        return terms, result
    squares = kernel(np.square(inputs[0]), *inputs[1:])[0]
    walk = np.sqrt(squares / terms if node.op_type in _MEANS else squares)
    return terms, np.hypot(result, walk)
