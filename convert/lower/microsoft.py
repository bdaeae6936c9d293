"""What ONNX Runtime's own operators mean, in terms of the standard.

Exporters write them into models of text: norms with an addition before them, approximate gates,
rotary positions, attention over a cache. Each is given as a function of ONNX, for targets that do
not have it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import onnx
import onnx_ir as ir

from edgeinfer.convert.lower.microsoft_blocks import (
    gather_block_quantized,
    matmul_bnb4,
    matmul_nbits,
)
from edgeinfer.convert.lower.microsoft_integers import DEFINED, about

DOMAIN = "com.microsoft"
OPSET = 24
"""Of the functions."""

_HEAD = f'<domain: "edgeinfer", opset_import: ["": {OPSET}]>'


def definition(node: ir.Node) -> onnx.FunctionProto | None:
    """Return a function that computes what a node does; None where there is none for it."""
    make = _KNOWN.get(node.op_type)
    if make is None or node.domain not in ("", DOMAIN) or node.domain != _domain(node.op_type):
        return None
    text = make(node)
    if text is None or isinstance(text, onnx.FunctionProto):
        return text
    taken = ", ".join(_names("i", node.inputs))
    given = ", ".join(f"o{i}" for i in range(len(node.outputs)))
    return onnx.parser.parse_function(f"{_HEAD} f ({taken}) => ({given}) {{ {text} }}")


def _domain(op: str) -> str:
    # Written into the standard's domain, which never had it.
    return "" if op == "SimplifiedLayerNormalization" else DOMAIN


def _names(letter: str, values: Any) -> list[str]:
    return [f"{letter}{i}" for i, _ in enumerate(values)]


def _has(node: ir.Node, index: int) -> bool:
    return index < len(node.inputs) and node.inputs[index] is not None


def _wants(node: ir.Node, index: int) -> bool:
    if index >= len(node.outputs):
        return False
    value = node.outputs[index]
    return bool(value.uses()) or value.is_graph_output()


def _number(node: ir.Node, name: str, default: float) -> float:
    found = node.attributes.get(name)
    return default if found is None else found.value


def _sizes(value: ir.Value | None) -> tuple[int, ...] | None:
    if value is None or value.shape is None:
        return None
    found = tuple(d for d in value.shape if isinstance(d, int))
    return found if len(found) == len(value.shape) else None


# ---- norms and gates


def _simplified(node: ir.Node) -> str | None:
    if _wants(node, 1):
        return None
    about = f"axis={_number(node, 'axis', -1)}, epsilon={_number(node, 'epsilon', 1e-5):.9g}"
    return f"o0 = RMSNormalization<{about}>(i0, i1)"


def _skip(norm: str) -> Callable[[ir.Node], str | None]:
    """A norm of a sum: of the input, what was skipped, and a bias; the sum is the fourth result."""
    simplified = norm == "RMSNormalization"

    def text(node: ir.Node) -> str | None:
        if _wants(node, 1) or _wants(node, 2):
            return None
        bias, beta = (3, -1) if simplified else (4, 3)
        lines = ["added = Add(i0, i1)"]
        lines.append(
            f"total = Add(added, i{bias})" if _has(node, bias) else "total = Identity(added)"
        )
        more = ", i3" if beta == 3 and _has(node, 3) else ""
        epsilon = _number(node, "epsilon", 1e-12)
        lines.append(f"o0 = {norm}<axis=-1, epsilon={epsilon:.9g}>(total, i2{more})")
        if _wants(node, 3):
            lines.append("o3 = Identity(total)")
        return " ".join(lines)

    return text


def _gelu(approximate: str) -> Callable[[ir.Node], str | None]:
    def text(node: ir.Node) -> str | None:
        line = "x = Add(i0, i1)" if _has(node, 1) else "x = Identity(i0)"
        return f'{line} o0 = Gelu<approximate="{approximate}">(x)'

    return text


def _quick_gelu(node: ir.Node) -> str | None:
    alpha = _number(node, "alpha", 1.702)
    return (
        f"a = Constant<value_float={alpha:.9g}>() b = CastLike(a, i0) c = Mul(i0, b) "
        "d = Sigmoid(c) o0 = Mul(i0, d)"
    )


def _distances(node: ir.Node) -> str | None:
    """Of each row from each: differences, because squares would lose digits far from zero."""
    metric = node.attributes.get("metric")
    kind = "sqeuclidean" if metric is None else metric.as_string()
    if kind not in ("euclidean", "sqeuclidean"):
        return None
    lines = (
        "one = Constant<value_ints=[1]>() zero = Constant<value_ints=[0]>() "
        "two = Constant<value_ints=[2]>() a = Unsqueeze(i0, one) b = Unsqueeze(i1, zero) "
        "apart = Sub(a, b) "
    )
    if kind == "sqeuclidean":
        return lines + "o0 = ReduceSumSquare<keepdims=0>(apart, two)"
    return lines + "far = ReduceSumSquare<keepdims=0>(apart, two) o0 = Sqrt(far)"


# ---- positions and attention


def _rotary(node: ir.Node) -> str | None:
    if _number(node, "is_packed_batching", 0) or _number(node, "scale", 1.0) != 1:
        return None
    x, ids, angles = (_sizes(v) for v in node.inputs[:3])
    if x is None or ids is None or angles is None:
        return None
    heads, rotated = (int(_number(node, n, 0)) for n in ("num_heads", "rotary_embedding_dim"))
    if len(x) == 3 and not heads:
        if rotated:
            return None
        heads = x[2] // (2 * angles[1])
    length = x[1] if len(x) == 3 else x[2]
    lines = "ids = Identity(i1)"
    if ids == (1,) and (x[0], length) != (1, 1):
        # One position, from which all count on.
        lines = (
            f"n = Constant<value_ints=[{', '.join(map(str, range(length)))}]>() "
            f"to = Constant<value_ints=[{x[0]}, {length}]>() s = Add(i1, n) ids = Expand(s, to)"
        )
    elif ids == (1,):
        lines = "to = Constant<value_ints=[1, 1]>() ids = Reshape(i1, to)"
    about = f"interleaved={int(_number(node, 'interleaved', 0))}, rotary_embedding_dim={rotated}"
    heads_text = f", num_heads={heads}" if len(x) == 3 else ""
    return f"{lines} o0 = RotaryEmbedding<{about}{heads_text}>(i0, i2, i3, ids)"


def _multi_head(node: ir.Node) -> str | None:
    """Queries, keys and values of three axes, with a bias for them and a mask that is added."""
    shapes = [_sizes(v) for v in node.inputs[:3]]
    if any(s is None or len(s) != 3 for s in shapes) or len(shapes) < 3:
        return None
    if _has(node, 4) or len(node.inputs) > 8 or _has(node, 6) != _has(node, 7):
        return None
    widths = [s[2] for s in shapes if s is not None]
    lines, given = [], ["i0", "i1", "i2"]
    if _has(node, 3):
        start = 0
        for index, width in enumerate(widths):
            lines.append(
                f"s{index} = Constant<value_ints=[{start}]>() "
                f"e{index} = Constant<value_ints=[{start + width}]>() "
                f"b{index} = Slice(i3, s{index}, e{index}) "
                f"x{index} = Add(i{index}, b{index})"
            )
            given[index] = f"x{index}"
            start += width
    heads = int(_number(node, "num_heads", 0))
    about = f"q_num_heads={heads}, kv_num_heads={heads}"
    about += f", is_causal={int(_number(node, 'unidirectional', 0))}"
    scale = _number(node, "scale", 0.0)
    about += f", scale={scale:.9g}" if scale else ""
    given.append("i5" if _has(node, 5) else "")
    given += ["i6", "i7"] if _has(node, 6) else []
    while not given[-1]:
        given.pop()
    made = ", ".join(f"o{i}" for i in range(min(len(node.outputs), 3)))
    lines.append(f"{made} = Attention<{about}>({', '.join(given)})")
    return " ".join(lines)


_GROUPED = {"num_heads", "kv_num_heads", "do_rotary", "rotary_interleaved", "scale", "softcap"}
_OFF = {"smooth_softmax": 0, "local_window_size": -1, "qk_output": 0}


def _grouped(node: ir.Node) -> str | None:
    """Queries in groups over a cache, in which new keys and values take the place after the last.

    The cache keeps its size, or grows by the new tokens.
    """
    for name in node.attributes:
        if name not in _GROUPED and _number(node, name, 0) != _OFF.get(name):
            return None
    if not all(_has(node, i) for i in range(6)) or len(node.outputs) < 3:
        return None
    past, new, present = (_sizes(v) for v in (node.inputs[3], node.inputs[0], node.outputs[1]))
    if past is None or new is None or present is None:
        return None
    if any(_has(node, i) for i in range(9, len(node.inputs))):
        return None
    heads, groups = (int(_number(node, n, 0)) for n in ("num_heads", "kv_num_heads"))
    batch, length, width = new
    size = width // heads
    grown = present[2] - past[2]
    if grown not in (0, length):
        return None
    lines = _counted(batch, length, present[2])
    query, key = "i0", "i1"
    if _number(node, "do_rotary", 0):
        lines.append(
            f"steps = Constant<value_ints=[{', '.join(map(str, range(length)))}]>() "
            f"pair = Constant<value_ints=[{batch}, 1]>() from = Reshape(start, pair) "
            "ids = Add(from, steps)"
        )
        interleaved = int(_number(node, "rotary_interleaved", 0))
        for name, count in (("i0", heads), ("i1", groups)):
            about = f"interleaved={interleaved}, num_heads={count}"
            lines.append(f"r{name} = RotaryEmbedding<{about}>({name}, i7, i8, ids)")
        query, key = "ri0", "ri1"
    for place, name, cache in ((1, key, "i3"), (2, "i2", "i4")):
        lines.append(
            f"h{place} = Constant<value_ints=[{batch}, {length}, {groups}, {size}]>() "
            f"p{place} = Reshape({name}, h{place}) t{place} = Transpose<perm=[0,2,1,3]>(p{place})"
        )
        if grown:
            lines.append(f"c{place} = Concat<axis=2>({cache}, t{place})")
            cache = f"c{place}"
        lines.append(
            f"d{place} = TensorScatter<axis=2>({cache}, t{place}, start) "
            f"z{place} = CastLike(nought, d{place}) o{place} = Where(seen, d{place}, z{place})"
        )
    lines.append(
        f"hq = Constant<value_ints=[{batch}, {length}, {heads}, {size}]>() "
        f"pq = Reshape({query}, hq) tq = Transpose<perm=[0,2,1,3]>(pq)"
    )
    about, seen = ("is_causal=1", '"", "", "", total') if length == 1 else ("is_causal=0", "mask")
    lines += _before_and_inside(length) if length > 1 else []
    for name in ("scale", "softcap"):
        value = _number(node, name, 0.0)
        about += f", {name}={value:.9g}" if value else ""
    lines.append(
        f"a = Attention<{about}>(tq, o1, o2, {seen}) b = Transpose<perm=[0,2,1,3]>(a) "
        f"w = Constant<value_ints=[{batch}, {length}, {width}]>() o0 = Reshape(b, w)"
    )
    return " ".join(lines)


def _counted(batch: int, length: int, slots: int) -> list[str]:
    """How many tokens there are, where the new ones begin, and which positions are taken.

    A prompt of several texts is as long as the longest of them. What pads the others stands behind
    them in the cache, until tokens that are new take its place.
    """
    total = "Max(own, count)" if length > 1 else "Identity(own)"
    return [
        "one = Constant<value_int=1>()",
        f"count = Constant<value_int={length}>()",
        "last = Cast<to=7>(i5)",
        f"flat = Constant<value_ints=[{batch}]>()",
        "ends = Reshape(last, flat)",
        f"own = Add(ends, one) total = {total}",
        "start = Sub(total, count)",
        # What lies behind the last token is nothing.
        f"all = Constant<value_ints=[{', '.join(map(str, range(slots)))}]>()",
        "along = Constant<value_ints=[1, 1, -1, 1]>() slots = Reshape(all, along)",
        f"each = Constant<value_ints=[{batch}, 1, 1, 1]>() limit = Reshape(total, each)",
        "seen = Less(slots, limit) nought = Constant<value_float=0.0>()",
    ]


def _before_and_inside(length: int) -> list[str]:
    """Who sees whom in a prompt: what pads a text sees its tokens, and is seen by none of them."""
    return [
        f"rows = Constant<value_ints=[{', '.join(map(str, range(length)))}]>() "
        "row = Reshape(rows, along) first = Reshape(start, each) at = Add(first, row) "
        "over = Constant<value_ints=[1, 1, 1, -1]>() column = Reshape(all, over) "
        "before = LessOrEqual(column, at) ending = Reshape(own, each) "
        "inside = Less(column, ending) mask = And(before, inside)"
    ]


# ---- what the optimiser joins


def _fused_product(node: ir.Node) -> str | None:
    """Operands that are transposed first, and a factor."""
    if _number(node, "transBatchA", 0) or _number(node, "transBatchB", 0):
        return None
    lines, operands = [], []
    for index, name in enumerate(("transA", "transB")):
        operand, size = f"i{index}", node.inputs[index]
        if _number(node, name, 0):
            if size is None or size.shape is None or len(size.shape) < 2:
                return None
            axes = list(range(len(size.shape)))
            axes[-2:] = reversed(axes[-2:])
            lines.append(f"t{index} = Transpose<perm={axes}>({operand})")
            operand = f"t{index}"
        operands.append(operand)
    alpha = float(_number(node, "alpha", 1.0))
    lines.append(f"p = MatMul({', '.join(operands)})")
    if alpha == 1.0:
        return " ".join([*lines, "o0 = Identity(p)"])
    return " ".join(
        [*lines, f"a = Constant<value_float={alpha:.9e}>() c = CastLike(a, p) o0 = Mul(p, c)"]
    )


_GATES: dict[str, tuple[str, ...]] = {
    **{"Relu": (), "Sigmoid": (), "Tanh": (), "Softplus": (), "Softsign": ()},
    **{"LeakyRelu": ("alpha",), "Elu": ("alpha",), "HardSigmoid": ("alpha", "beta")},
}
"""What follows a product, and the names of its numbers in their order."""


def _gated(node: ir.Node, x: str, numbers: list[float]) -> str | None:
    """Text of an activation that an attribute names."""
    kind = node.attributes.get_string("activation", "")
    if not kind:
        return f"o0 = Identity({x})"
    if kind == "Clip" and len(numbers) == 2:
        low, high = (f"{v:.9e}" for v in numbers)
        return (
            f"low = Constant<value_float={low}>() high = Constant<value_float={high}>() "
            f"o0 = Clip({x}, low, high)"
        )
    if kind not in _GATES:
        return None
    given = zip(_GATES[kind], numbers, strict=False)
    settings = ", ".join(f"{name}={value:.9e}" for name, value in given)
    return f"o0 = {kind}<{settings}>({x})" if settings else f"o0 = {kind}({x})"


def _fused_conv(node: ir.Node) -> str | None:
    """A convolution, what is added to it, and an activation."""
    names = ("auto_pad", "dilations", "group", "kernel_shape", "pads", "strides")
    operands = ", ".join(["i0", "i1", *(["i2"] if _has(node, 2) else [])])
    lines = [f"c = Conv{about(node, names)}({operands})"]
    lines.append("x = Add(c, i3)" if _has(node, 3) else "x = Identity(c)")
    last = _gated(node, "x", list(node.attributes.get_floats("activation_params", [])))
    return None if last is None else " ".join([*lines, last])


def _inserted(node: ir.Node) -> str | None:
    """An axis of size one at a place that is a number."""
    place = node.inputs[1] if _has(node, 1) else None
    shape = None if place is None else place.shape
    if shape is not None and shape.is_static() and math.prod(shape.numpy()) != 1:
        return None
    return (
        "one = Constant<value_ints=[1]>() wide = Cast<to=7>(i1) axes = Reshape(wide, one) "
        "o0 = Unsqueeze(i0, axes)"
    )


def _fused_gemm(node: ir.Node) -> str | None:
    operands = ", ".join(["i0", "i1", *(["i2"] if _has(node, 2) else [])])
    product = about(node, ("alpha", "beta", "transA", "transB"))
    names = [f"activation_{n}" for n in ("alpha", "beta")]
    last = _gated(node, "x", [_number(node, n, 0.0) for n in names if n in node.attributes])
    return None if last is None else f"x = Gemm{product}({operands}) {last}"


def _sampled(node: ir.Node) -> str:
    """The standard's, which came later and has other names for the modes."""
    modes = {"bilinear": "linear", "bicubic": "cubic"}
    mode = node.attributes.get_string("mode", "bilinear")
    how = f'mode="{modes.get(mode, mode)}", align_corners={_number(node, "align_corners", 0)}'
    padding = node.attributes.get_string("padding_mode", "zeros")
    return f'o0 = GridSample<{how}, padding_mode="{padding}">(i0, i1)'


def _unfolded(node: ir.Node) -> str | None:
    """Windows along an axis, the elements of each along a new last one."""
    x = node.inputs[0]
    if x is None or x.shape is None:
        return None
    rank, size = len(x.shape), node.attributes.get_int("size", 1)
    axis = node.attributes.get_int("dim", -1) % rank
    order = [*range(axis + 1), *range(axis + 2, rank + 1), axis + 1]
    return (
        f"length = Shape<start={axis}, end={axis + 1}>(i0) "
        f"less = Constant<value_ints=[{size - 1}]>() end = Sub(length, less) "
        "last = Squeeze(end) zero = Constant<value_int=0>() "
        f"step = Constant<value_int={node.attributes.get_int('step', 1)}>() "
        "starts = Range(zero, last, step) one = Constant<value_ints=[1]>() "
        f"rows = Unsqueeze(starts, one) taps = Constant<value_ints={list(range(size))}>() "
        f"where = Add(rows, taps) parts = Gather<axis={axis}>(i0, where) "
        f"o0 = Transpose<perm={order}>(parts)"
    )


def _distinct(node: ir.Node) -> str:
    """The standard's, in the order in which elements come."""
    made = [f"o{i}" if _wants(node, i) else f"unread{i}" for i in range(3)]
    return f"{made[0]}, first, {made[1]}, {made[2]} = Unique<sorted=0>(i0)"


def _padded_transposed(node: ir.Node) -> str | None:
    """The standard's, where the amounts are known."""
    pads = node.inputs[2] if _has(node, 2) else None
    if pads is None or pads.const_value is None:
        return None
    amounts = ", ".join(map(str, pads.const_value.numpy().tolist()))
    names = ("auto_pad", "dilations", "group", "kernel_shape", "output_padding", "strides")
    more = about(node, names)[1:-1]
    operands = ", ".join(["i0", "i1", *(["i3"] if _has(node, 3) else [])])
    return f"o0 = ConvTranspose<pads=[{amounts}]{', ' * bool(more)}{more}>({operands})"


_KNOWN: dict[str, Callable[[ir.Node], str | onnx.FunctionProto | None]] = {
    "CDist": _distances,
    "ConvTransposeWithDynamicPads": _padded_transposed,
    **DEFINED,
    "FusedConv": _fused_conv,
    "FusedGemm": _fused_gemm,
    "FusedMatMul": _fused_product,
    "ExpandDims": _inserted,
    "TransposeMatMul": _fused_product,
    "SimplifiedLayerNormalization": _simplified,
    "SkipSimplifiedLayerNormalization": _skip("RMSNormalization"),
    "SkipLayerNormalization": _skip("LayerNormalization"),
    "FastGelu": _gelu("tanh"),
    "Gelu": _gelu("none"),
    "BiasGelu": _gelu("none"),
    "QuickGelu": _quick_gelu,
    "RotaryEmbedding": _rotary,
    "MultiHeadAttention": _multi_head,
    "GroupQueryAttention": _grouped,
    "GatherBlockQuantized": gather_block_quantized,
    "GridSample": _sampled,
    "MatMulBnb4": matmul_bnb4,
    "MatMulNBits": matmul_nbits,
    "UnfoldTensor": _unfolded,
    "Unique": _distinct,
}
