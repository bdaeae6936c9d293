"""What integers of a graph, and floats they are cast from, lie between as far as operators say."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import numpy as np
import onnx_ir as ir

from edgeinfer.convert.families import MOVES
from edgeinfer.convert.lower.rules import attribute, given
from edgeinfer.types import Array

Span = tuple[int, int]
"""Lowest and highest value; those of floats may have fractions and no end."""

_ROUNDED = 1e-6
"""Share of itself by which float32 may round a value away from its ends."""

_DEPTH = 64
"""Operators that are looked through."""

_READ = 1 << 16
"""Elements of a constant that are looked at."""

_VALUES = MOVES | {"ReduceMax", "ReduceMin", "Dropout", "TopK", "Unique"}
"""Operators that give values of their first operand only."""

_ORDERED = frozenset({"TopK", "Unique"})
"""Those whose further results are positions and counts."""

_LARGEST = 1 << 1000
"""Where a float ends, and beyond any end of a type that a span is compared with."""

_LIMITS = {
    d: (int(np.iinfo(d.numpy()).min), int(np.iinfo(d.numpy()).max))
    for d in (
        *(ir.DataType.INT8, ir.DataType.INT16, ir.DataType.INT32, ir.DataType.INT64),
        *(ir.DataType.UINT8, ir.DataType.UINT16, ir.DataType.UINT32, ir.DataType.UINT64),
    )
} | {ir.DataType.BOOL: (0, 1)}


def span_of(value: ir.Value | None) -> Span | None:
    """Return what a value's integers lie between; None where it holds no integers."""
    return Spans().of(value)


NARROW = frozenset({
    ir.DataType.INT8, ir.DataType.UINT8, ir.DataType.INT16, ir.DataType.UINT16
})  # fmt: skip
"""Integers that are the last bits of an int32."""


def leaves(value: ir.Value | None, dtype: ir.DataType) -> bool:
    """Whether values, cut toward zero, may lie beyond an integer type."""
    span, (low, high) = span_of(value), _LIMITS[dtype]
    return span is None or span[0] <= low - 1 or span[1] >= high + 1


class Spans:
    """What the integers of one graph lie between.

    Sums and products that may leave the type wrap around, so that the type's own limits are all
    that is known of them.

    Attributes:
        inputs: bounds of the model's inputs, by name; of others the type's limits count.
        elements: Elements of an axis whose size is open; None where no sum over one has an end.
    """

    def __init__(
        self, inputs: Mapping[str, Span] | None = None, elements: int | None = None
    ) -> None:
        self.inputs, self.elements = inputs or {}, elements
        self._known: dict[ir.Value, Span | None] = {}

    def of(self, value: ir.Value | None, depth: int = _DEPTH) -> Span | None:
        """Return what a value lies between; None where it holds no whole numbers."""
        if value is None or value.dtype is None:
            return None
        if value not in self._known:
            self._known[value] = self._found(value, depth)
        return self._known[value]

    def before_fitting(self, node: ir.Node, depth: int = _DEPTH) -> Span | None:
        """Return what a node's integers lie between before they are fitted into their type."""
        if node.domain or not node.outputs:
            return None
        spans = [self.of(v, depth) for v in node.inputs]
        kind = node.outputs[0].dtype
        if kind in _FLOATS:
            found = _float(node, spans) or _made(node, spans, self.elements)
            return None if found is None else _loose(found)
        found = _made(node, spans, self.elements)
        if found is None or any(isinstance(e, float) and math.isnan(e) for e in found):
            return None
        low, high = (max(-_LARGEST, min(e, _LARGEST)) for e in found)
        return math.trunc(low), math.trunc(high)

    def _found(self, value: ir.Value, depth: int) -> Span | None:
        known = value.const_value
        limits = _LIMITS.get(value.dtype or ir.DataType.UNDEFINED)
        if known is not None and known.size <= _READ and known.dtype != ir.DataType.STRING:
            return _of_array(known.numpy())
        if value.is_graph_input() and (value.name or "") in self.inputs:
            return self.inputs[value.name or ""]
        node = value.producer()
        if node is None or not depth:
            return limits
        if node.op_type in _ORDERED and value is not node.outputs[0]:
            found = _places(node)
        else:
            found = self.before_fitting(node, depth - 1)
        if limits is None:
            return found
        inside = found is not None and limits[0] <= found[0] and found[1] <= limits[1]
        return found if inside else limits


def _of_array(array: Array) -> Span | None:
    if not array.size:
        return 0, 0
    if array.dtype.kind not in "iub":
        values = np.asarray(array, np.float64)
        if not np.isfinite(values).all():
            return None
        if not np.array_equal(values, np.round(values)):
            return float(values.min()), float(values.max())  # type: ignore[return-value]
    return int(array.min()), int(array.max())


_FLOATS = frozenset({ir.DataType.FLOAT, ir.DataType.DOUBLE, ir.DataType.FLOAT16})

_GROWING: Mapping[str, Callable[[float], float]] = {
    "Floor": math.floor,
    "Ceil": math.ceil,
    "Round": round,
    "Sqrt": lambda x: math.sqrt(max(x, 0.0)),
    "Log": lambda x: math.log(x) if x > 0 else -math.inf,
}
"""Functions of one float that grow with it."""

_ENDS = {"Sigmoid": (0, 1), "Softmax": (0, 1), "HardSigmoid": (0, 1), "Tanh": (-1, 1)} | {
    "Sin": (-1, 1),
    "Cos": (-1, 1),
}


def _float(node: ir.Node, spans: list[Span | None]) -> Span | None:
    """Functions that integers have not, or that mean something else of them."""
    if node.op_type in _ENDS:
        return _ENDS[node.op_type]
    if not spans or spans[0] is None:
        return None
    low, high = spans[0]
    if (function := _GROWING.get(node.op_type)) is not None and math.isfinite(low + high):
        return function(low), function(high)  # type: ignore[return-value]
    divisor = spans[1] if len(spans) > 1 else None
    if node.op_type != "Div" or divisor is None or divisor[0] <= 0 <= divisor[1]:
        return None
    ends = [a / b for a in (low, high) for b in divisor]
    return min(ends), max(ends)  # type: ignore[return-value]


def _loose(span: Span) -> Span | None:
    """Let float32 round; None where an end is no number."""
    low, high = (float(e) if abs(e) < _LARGEST else math.inf if e > 0 else -math.inf for e in span)
    if math.isnan(low) or math.isnan(high):
        return None
    low, high = low - abs(low) * _ROUNDED, high + abs(high) * _ROUNDED
    return low, high  # type: ignore[return-value]


def _made(node: ir.Node, spans: list[Span | None], elements: int | None = None) -> Span | None:
    first = spans[0] if spans else None
    second = spans[1] if len(spans) > 1 else None
    match node.op_type:
        case op if op in _VALUES:
            return first
        case "Cast" | "CastLike":
            return first
        case "Concat" | "Trilu" | "Pad":
            return _joined(node, spans)
        case "Sum":
            return _sum(spans)
        case "Max" | "Min":
            return _extreme(max if node.op_type == "Max" else min, spans)
        case "MatMul":
            return _product(node, first, second, elements)
        case "Gemm":
            return _weighted(node, spans, elements)
        case "ReduceProd":
            return _powers(first, _reduced(node, elements))
        case "Pow" if second is not None and second[0] == second[1] >= 0:
            return _powers(first, int(second[0]))
        case "ScatterElements" | "ScatterND":
            return _scattered(node, spans, elements)
        case "Where":
            return _union(spans[1:3])
        case "Shape" | "ArgMax" | "ArgMin" | "NonZero" | "Size":
            return _places(node)
        case "Constant" | "ConstantOfShape":
            return _filled(node)
        case "Mod" if second is not None and second[0] == second[1] != 0:
            return _remainder(node, first, second[0])
        case "Sign":
            return -1, 1
        case "Clip":
            return _clipped(first, second, spans[2] if len(spans) > 2 else None)
        case "ReduceMean" if node.outputs[0].dtype in _FLOATS:
            return first
        # A mean of integers is a sum first.
        case "ReduceSum" | "CumSum" | "ReduceL1" | "ReduceSumSquare" | "ReduceMean":
            return _summed(node, first, elements)
        case "Div" if node.outputs[0].dtype in _FLOATS:
            return None
    return _arithmetic(node.op_type, first, second)


def _summed(node: ir.Node, x: Span | None, elements: int | None) -> Span | None:
    """A sum of as many as each result is made of."""
    count = _reduced(node, elements)
    if x is None or count is None:
        return None
    most = max(map(abs, x))
    if node.op_type == "ReduceSumSquare":
        return 0, count * most * most
    low = 0 if node.op_type == "ReduceL1" else min(0, x[0])
    return count * low, count * (most if node.op_type == "ReduceL1" else max(0, x[1]))


def _count(node: ir.Node, elements: int | None, index: int = 0) -> int | None:
    """How many elements an operand has; None where a size is open and nothing is said of it."""
    source = given(node, index)
    shape = source.shape if source is not None else None
    if shape is None or not all(isinstance(d, int) for d in shape):
        return elements
    return math.prod(d for d in shape if isinstance(d, int))


def _reduced(node: ir.Node, elements: int | None) -> int | None:
    """How many elements each result is made of; all of them where the axes are not known."""
    x, axes = given(node, 0), given(node, 1)
    if x is None or x.shape is None or axes is None or axes.const_value is None:
        return _count(node, elements)
    over = {int(a) % len(x.shape) for a in axes.const_value.numpy().ravel()}
    sizes = [x.shape[a] for a in over]
    if not sizes or not all(isinstance(d, int) for d in sizes):
        return _count(node, elements)
    return math.prod(d for d in sizes if isinstance(d, int))


def _joined(node: ir.Node, spans: list[Span | None]) -> Span | None:
    """Values of several operands, or of the first one and a constant: zero if not given."""
    if node.op_type == "Concat":
        return _union(spans)
    beside = spans[2] if node.op_type == "Pad" and given(node, 2) is not None else (0, 0)
    return _union([spans[0], beside])


def _sum(spans: list[Span | None]) -> Span | None:
    held = [s for s in spans if s is not None]
    if len(held) < len(spans):
        return None
    return sum(s[0] for s in held), sum(s[1] for s in held)


def _extreme(choose: Callable[..., int], spans: list[Span | None]) -> Span | None:
    held = [s for s in spans if s is not None]
    if not held or len(held) < len(spans):
        return None
    return choose(s[0] for s in held), choose(s[1] for s in held)


def _product(node: ir.Node, a: Span | None, b: Span | None, elements: int | None) -> Span | None:
    """Sums of products; as many as the last axis of the first operand has."""
    source = given(node, 0)
    axis = 0 if attribute(node, "transA", 0) else -1
    last = source.shape[axis] if source is not None and source.shape else None
    count = last if isinstance(last, int) else _count(node, elements)
    if a is None or b is None or count is None:
        return None
    ends = [count * x * y for x in a for y in b]
    return min(0, *ends), max(0, *ends)


def _weighted(node: ir.Node, spans: list[Span | None], elements: int | None) -> Span | None:
    """A product of matrices and what is added to it, each times its factor."""
    parts = [_product(node, spans[0], spans[1], elements), *spans[2:]]
    factors = [float(str(attribute(node, name, 1.0))) for name in ("alpha", "beta")]
    scaled = [
        None if part is None else sorted(factor * end for end in part)
        for part, factor in zip(parts, factors, strict=False)
    ]
    whole = [s if s is None or not all(map(math.isfinite, s)) else _outwards(*s) for s in scaled]
    return _sum(whole)  # type: ignore[arg-type]


def _outwards(low: float, high: float) -> Span:
    return math.floor(low), math.ceil(high)


def _powers(x: Span | None, count: int | None) -> Span | None:
    """A product of so many factors."""
    if x is None or count is None:
        return None
    most = max(map(abs, x))
    top = most**count if most <= 1 or count * math.log2(most) < 80 else math.inf
    return (0 if x[0] >= 0 else -top), max(top, 1)  # type: ignore[return-value]


def _scattered(node: ir.Node, spans: list[Span | None], elements: int | None) -> Span | None:
    """What was there, and what is put or added there."""
    x, updates, how = spans[0], spans[2], attribute(node, "reduction", "none")
    count = _count(node, elements, 2)
    if x is None or updates is None:
        return None
    if how == "mul":
        factors, most = _powers(updates, count), max(map(abs, x))
        if factors is None:
            return None
        top = most * max(map(abs, factors))
        return (0 if x[0] >= 0 and factors[0] >= 0 else -top), top
    if how == "add":
        if count is None:
            return None
        return x[0] + count * min(0, updates[0]), x[1] + count * max(0, updates[1])
    return _union([x, updates])


def _union(spans: list[Span | None]) -> Span | None:
    held = [s for s in spans if s is not None]
    if not held or len(held) < len(spans):
        return None
    return min(s[0] for s in held), max(s[1] for s in held)


def _places(node: ir.Node) -> Span | None:
    """Sizes and positions are bounded by sizes that are known."""
    x = given(node, 0)
    if x is None or x.shape is None or not all(isinstance(d, int) for d in x.shape):
        return None
    sizes = [d for d in x.shape if isinstance(d, int)]
    return 0, (math.prod(sizes) if node.op_type == "Size" else max(sizes, default=0))


def _filled(node: ir.Node) -> Span | None:
    found = attribute(node, "value", None)
    if found is None or not hasattr(found, "numpy"):
        return (0, 0) if node.op_type == "ConstantOfShape" else None
    return _of_array(found.numpy())


def _remainder(node: ir.Node, first: Span | None, divisor: int) -> Span | None:
    most = abs(divisor) - 1
    if not attribute(node, "fmod", 0):
        return (0, most) if divisor > 0 else (-most, 0)
    low = -most if first is None or first[0] < 0 else 0
    return low, most if first is None or first[1] > 0 else 0


def _clipped(x: Span | None, low: Span | None, high: Span | None) -> Span | None:
    if x is None and (low is None or high is None):
        return None
    bottom, top = x or (-math.inf, math.inf)
    if low is not None:
        bottom, top = max(bottom, low[0]), max(top, low[1])
    if high is not None:
        bottom, top = min(bottom, high[0]), min(top, high[1])
    return bottom, top  # type: ignore[return-value]


def _arithmetic(op: str, a: Span | None, b: Span | None) -> Span | None:
    if a is None:
        return None
    match op:
        case "Neg":
            return -a[1], -a[0]
        case "Abs":
            return (0 if a[0] <= 0 <= a[1] else min(map(abs, a))), max(map(abs, a))
        case "Relu":
            return max(a[0], 0), max(a[1], 0)
    if b is None:
        return None
    match op:
        case "Add":
            return a[0] + b[0], a[1] + b[1]
        case "Sub":
            return a[0] - b[1], a[1] - b[0]
        case "Mul":
            ends = [x * y for x in a for y in b]
            return min(ends), max(ends)
        case "Div" if b[0] > 0 or b[1] < 0:
            most = max(map(abs, a))
            return (0 if a[0] >= 0 and b[0] > 0 else -most), most
    return None
