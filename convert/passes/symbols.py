"""Integer tensors whose elements are sizes: known numbers, or names of sizes not known yet."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from edgeinfer.convert.passes.infra import attr, constant, input_at, ints, is_op, walk

Element = int | ir.SymbolicDim | None
Elements = npt.NDArray[np.object_]
MAX_ELEMENTS = 64
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.]*")


def known(value: Element) -> bool:
    """Whether the element is a number."""
    return isinstance(value, int)


def is_size(value: Element) -> bool:
    """Whether the element is the plain name of a size, so it cannot be negative."""
    return (
        isinstance(value, ir.SymbolicDim)
        and value.value is not None
        and _NAME.fullmatch(value.value) is not None
    )


def dim(value: Element) -> int | ir.SymbolicDim:
    """The element as a size of a shape."""
    return ir.SymbolicDim(None) if value is None else value


def element(value: int | ir.SymbolicDim) -> Element:
    """A size of a shape as an element."""
    return value if isinstance(value, int) or value.value is not None else None


class Symbols:
    """Elements of every integer tensor of a model, from the shapes known now."""

    def __init__(self, model: ir.Model) -> None:
        self._elements: dict[ir.Value, Elements] = {}
        for graph in walk(model.graph):
            for node in graph:
                if is_op(node, *_RULES) and len(node.outputs) == 1:
                    self._visit(node)

    def of(self, value: ir.Value | None) -> Elements | None:
        """The elements, as an array of the tensor's shape; None where nothing is known."""
        if value is None:
            return None
        tensor = constant(value)
        return self._elements.get(value) if tensor is None else _from_constant(tensor)

    def _visit(self, node: ir.Node) -> None:
        try:
            result = _RULES[node.op_type](self, node)
        # A node that no run accepts (an index out of range, shapes that do not fit).
        except (IndexError, ValueError, TypeError, ZeroDivisionError):
            return
        if result is not None and result.size <= MAX_ELEMENTS:
            self._elements[node.outputs[0]] = result


def _from_constant(tensor: ir.TensorProtocol) -> Elements | None:
    if tensor.size > MAX_ELEMENTS or tensor.dtype not in _INTEGERS:
        return None
    array = tensor.numpy()
    if tensor.dtype == ir.DataType.BOOL:
        return array.astype(object)
    return np.array([int(v) for v in array.ravel()], dtype=object).reshape(array.shape)


_INTEGERS = {ir.DataType.INT64, ir.DataType.INT32, ir.DataType.BOOL}


def _shape(symbols: Symbols, node: ir.Node) -> Elements | None:
    x = node.inputs[0]
    if x is None or x.shape is None:
        return None
    dims = [element(d) for d in x.shape]
    return _array(dims[attr(node, "start", 0) : attr(node, "end", None)])


def _array(values: list[Element]) -> Elements:
    out = np.empty(len(values), dtype=object)
    out[:] = values
    return out


def _size(symbols: Symbols, node: ir.Node) -> Elements | None:
    x = node.inputs[0]
    if x is None or x.shape is None:
        return None
    return _scalar(product([element(d) for d in x.shape]))


def _scalar(value: Element) -> Elements:
    out = np.empty((), dtype=object)
    out[()] = value
    return out


def product(values: list[Element]) -> Element:
    """Product of elements; zero wins over what is not known."""
    result: Element = 1
    for v in values:
        result = _combine("*", result, v)
    return result


def _combine(op: str, a: Element, b: Element) -> Element:
    """Exact arithmetic on two elements, None where it is not certain."""
    if isinstance(a, int) and isinstance(b, int):
        return _integers(op, a, b)
    if op == "*" and (a == 1 or b == 1):
        return b if a == 1 else a
    if op == "*" and (a == 0 or b == 0):
        return 0
    if op in "+-" and b == 0:
        return a
    if op == "+" and a == 0:
        return b
    if op == "/" and b == 1:
        return a
    if op == "/" or a is None or b is None or not (_plain(a) and _plain(b)):
        return None
    try:
        return _algebra(op, a, b)
    except (ValueError, TypeError, AttributeError):
        return None


def _plain(value: Element) -> bool:
    """Names such as ``seq-len`` would be read as a difference: no algebra on them."""
    return isinstance(value, int) or is_size(value) or _is_made(value)


def _is_made(value: Element) -> bool:
    """Whether the name is an expression that was written here: those have parentheses."""
    return isinstance(value, ir.SymbolicDim) and value.value is not None and value.value[:1] == "("


def _algebra(op: str, a: Any, b: Any) -> Element:
    result = a + b if op == "+" else a - b if op == "-" else a * b
    text = result.value if isinstance(result, ir.SymbolicDim) else str(result)
    if text is None:
        return None
    if re.fullmatch(r"-?\d+", text):
        return int(text)
    return ir.SymbolicDim(text if _NAME.fullmatch(text) else f"({text})")


def _integers(op: str, a: int, b: int) -> Element:
    match op:
        case "+":
            result = a + b
        case "-":
            result = a - b
        case "*":
            result = a * b
        case "/":
            # Integer division in ONNX truncates towards zero.
            result = int(math.copysign(1, a) * math.copysign(1, b)) * (abs(a) // abs(b))
        case _:
            return None
    return result if -(2**31) <= result < 2**31 else None


def _binary(op: str) -> Callable[[Symbols, ir.Node], Elements | None]:
    def rule(symbols: Symbols, node: ir.Node) -> Elements | None:
        a, b = symbols.of(node.inputs[0]), symbols.of(node.inputs[1])
        if a is None or b is None:
            return None
        return _pairwise(lambda x, y: _combine(op, x, y), a, b)

    return rule


def _same(symbols: Symbols, node: ir.Node) -> Elements | None:
    return symbols.of(node.inputs[0])


def _cast(symbols: Symbols, node: ir.Node) -> Elements | None:
    source = node.inputs[0]
    to = ir.DataType(attr(node, "to"))
    numbers = (ir.DataType.INT64, ir.DataType.INT32)
    if to not in numbers or source is None or source.dtype not in numbers:
        return None
    return symbols.of(source)


def _gather(symbols: Symbols, node: ir.Node) -> Elements | None:
    data, indices = symbols.of(node.inputs[0]), symbols.of(node.inputs[1])
    if data is None or indices is None or not all(known(i) for i in indices.ravel()):
        return None
    axis = attr(node, "axis", 0)
    picked = np.take(data, indices.astype(np.int64), axis=axis, mode="raise")
    return np.asarray(picked, dtype=object) if isinstance(picked, np.ndarray) else _scalar(picked)


def _slice(symbols: Symbols, node: ir.Node) -> Elements | None:
    data = symbols.of(node.inputs[0])
    if data is None or data.ndim != 1 or len(node.inputs) < 3:
        return None
    bounds = [symbols.of(node.inputs[i]) for i in (1, 2)]
    step = [1] if input_at(node, 4) is None else ints(input_at(node, 4))
    if step is None or step[0] <= 0:
        return None
    if any(b is None or b.size != 1 or not known(b.ravel()[0]) for b in bounds):
        return None
    start, end = (b.ravel()[0] for b in bounds if b is not None)
    return data[start : end : step[0]]


def _concat(symbols: Symbols, node: ir.Node) -> Elements | None:
    parts = [symbols.of(v) for v in node.inputs]
    shapes = [p if p is not None else _unknown(v) for p, v in zip(parts, node.inputs, strict=True)]
    if any(s is None or s.ndim != 1 for s in shapes) or attr(node, "axis", 0) not in (0, -1):
        return None
    return np.concatenate([s for s in shapes if s is not None])


def _unknown(value: ir.Value | None) -> Elements | None:
    """A vector of known length and unknown elements."""
    if value is None or value.shape is None or len(value.shape) != 1:
        return None
    length = value.shape[0]
    return _array([None] * length) if isinstance(length, int) and length <= MAX_ELEMENTS else None


def _reshape(symbols: Symbols, node: ir.Node) -> Elements | None:
    data, shape = symbols.of(node.inputs[0]), ints(node.inputs[1])
    return None if data is None or shape is None or 0 in shape else data.reshape(shape)


def _unsqueeze(symbols: Symbols, node: ir.Node) -> Elements | None:
    data, axes = symbols.of(node.inputs[0]), _axes(node)
    return None if data is None or axes is None else np.expand_dims(data, tuple(axes))


def _squeeze(symbols: Symbols, node: ir.Node) -> Elements | None:
    data = symbols.of(node.inputs[0])
    if data is None:
        return None
    if input_at(node, 1) is None and "axes" not in node.attributes:
        return data.squeeze()
    axes = _axes(node)
    return None if axes is None else data.squeeze(tuple(axes))


def _axes(node: ir.Node) -> list[int] | None:
    """``axes`` in the old form or the new one."""
    if "axes" in node.attributes:
        return list(attr(node, "axes"))
    return ints(input_at(node, 1))


def _equal(symbols: Symbols, node: ir.Node) -> Elements | None:
    a, b = symbols.of(node.inputs[0]), symbols.of(node.inputs[1])
    if a is None or b is None:
        return None
    return _pairwise(_are_equal, a, b)


def _pairwise(function: Callable[[Any, Any], Element], a: Elements, b: Elements) -> Elements:
    left, right = np.broadcast_arrays(a, b)
    out = np.empty(left.shape, dtype=object)
    for index in np.ndindex(left.shape):
        out[index] = function(left[index], right[index])
    return out


def _are_equal(a: Element, b: Element) -> bool | None:
    if isinstance(a, int) and isinstance(b, int):
        return a == b
    if isinstance(a, ir.SymbolicDim) and isinstance(b, ir.SymbolicDim) and a.value == b.value:
        return True
    number, other = (a, b) if isinstance(a, int) else (b, a)
    return False if isinstance(number, int) and number < 0 and is_size(other) else None


def _where(symbols: Symbols, node: ir.Node) -> Elements | None:
    parts = [symbols.of(v) for v in node.inputs]
    if any(p is None for p in parts):
        return None
    condition, a, b = np.broadcast_arrays(*[p for p in parts if p is not None])
    out = np.empty(condition.shape, dtype=object)
    for index in np.ndindex(condition.shape):
        c = condition[index]
        out[index] = None if c is None else a[index] if c else b[index]
    return out


def _constant_of_shape(symbols: Symbols, node: ir.Node) -> Elements | None:
    shape = symbols.of(node.inputs[0])
    if shape is None or not all(known(d) for d in shape) or math.prod(shape) > MAX_ELEMENTS:
        return None
    tensor = attr(node, "value")
    if tensor is None or tensor.dtype not in _INTEGERS:
        return None
    out = np.empty(tuple(shape), dtype=object)
    out[...] = int(tensor.numpy().ravel()[0])
    return out


def _reduce_prod(symbols: Symbols, node: ir.Node) -> Elements | None:
    data = symbols.of(node.inputs[0])
    if data is None or data.ndim != 1 or attr(node, "noop_with_empty_axes", 0):
        return None
    value = product(list(data))
    return _array([value]) if attr(node, "keepdims", 1) else _scalar(value)


_RULES: dict[str, Callable[[Symbols, ir.Node], Elements | None]] = {
    "Shape": _shape,
    "Size": _size,
    "Identity": _same,
    "Cast": _cast,
    "Gather": _gather,
    "Slice": _slice,
    "Concat": _concat,
    "Reshape": _reshape,
    "Unsqueeze": _unsqueeze,
    "Squeeze": _squeeze,
    "Add": _binary("+"),
    "Sub": _binary("-"),
    "Mul": _binary("*"),
    "Div": _binary("/"),
    "Equal": _equal,
    "Where": _where,
    "ConstantOfShape": _constant_of_shape,
    "ReduceProd": _reduce_prod,
}
