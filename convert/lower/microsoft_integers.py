"""What ONNX Runtime's operators on stored integers mean: dequantize, and compute with floats.

``quantize_dynamic`` and ONNX Runtime's optimiser write them. What an operator rounds to 8 bits by
itself in each run is rounded here too where that is one tensor (``DynamicQuantizeMatMul``); the
states of ``DynamicQuantizeLSTM``, which it rounds in each step, stay as they are.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import onnx_ir as ir

_LSTM = ("activation_alpha", "activation_beta", "activations", "clip", "direction")
_LSTM_INPUTS = 8


def _has(node: ir.Node, index: int) -> bool:
    return index < len(node.inputs) and node.inputs[index] is not None


def shown(node: ir.Node, names: Iterable[str]) -> list[str]:
    """Return attributes as a definition's text has them."""
    given = node.attributes
    return [f"{name}={_value(given[name].value)}" for name in names if name in given]


def about(node: ir.Node, names: Iterable[str]) -> str:
    """Return them in their brackets, which the text's grammar does not take empty."""
    given = shown(node, names)
    return f"<{', '.join(given)}>" if given else ""


def _value(value: Any) -> str:
    if isinstance(value, str):
        return f'"{value}"'
    if isinstance(value, Sequence):
        return f"[{', '.join(_value(v) for v in value)}]"
    if isinstance(value, float):
        # The text's grammar tells floats by their point.
        text = f"{value:.9g}"
        return text if any(c in text for c in ".en") else f"{text}.0"
    return str(value)


def floats(name: str, x: str, scale: str, zero: str = "", shape: str = "") -> str:
    """Give ``name`` to ``(x - zero) * scale``.

    Args:
        name: free for this value, and as the start of others.
        x: integers.
        scale: float.
        zero: Zero of the type of ``x``; empty for none.
        shape: what scale and zero are reshaped to, as integers between commas.
    """
    lines = [f"{name}_f = Cast<to=1>({x})"]
    if shape:
        lines.append(
            f"{name}_to = Constant<value_ints=[{shape}]>() {name}_s = Reshape({scale}, {name}_to)"
        )
        scale = f"{name}_s"
    centred = f"{name}_f"
    if zero:
        lines.append(f"{name}_z = Cast<to=1>({zero})")
        point = f"{name}_z"
        if shape:
            lines.append(f"{name}_zs = Reshape({name}_z, {name}_to)")
            point = f"{name}_zs"
        lines.append(f"{name}_c = Sub({name}_f, {point})")
        centred = f"{name}_c"
    lines.append(f"{name} = Mul({centred}, {scale})")
    return " ".join(lines)


def _given(node: ir.Node, index: int) -> str:
    return f"i{index}" if _has(node, index) else ""


def lstm(node: ir.Node) -> str | None:
    """An LSTM whose weights (directions, inputs, gates) are made floats first."""
    if not all(_has(node, i) for i in (1, 2, *range(_LSTM_INPUTS, _LSTM_INPUTS + 4))):
        return None
    ways = 2 if node.attributes.get_string("direction", "forward") == "bidirectional" else 1
    lines = []
    for name, place, scale in (("w", 1, 8), ("r", 2, 10)):
        lines.append(floats(name, f"i{place}", f"i{scale}", f"i{scale + 1}", f"{ways}, 1, -1"))
        lines.append(f"{name}_t = Transpose<perm=[0, 2, 1]>({name})")
    operands = ["i0", "w_t", "r_t", *(_given(node, i) or '""' for i in range(3, _LSTM_INPUTS))]
    while operands[-1] == '""':
        operands.pop()
    made = ", ".join(f"o{i}" for i in range(len(node.outputs)))
    settings = about(node, (*_LSTM, "hidden_size", "input_forget"))
    lines.append(f"{made} = LSTM{settings}({', '.join(operands)})")
    return " ".join(lines)


def _product(node: ir.Node, bias: int) -> str:
    """Text after ``a`` and ``w`` are there as floats."""
    if _has(node, bias):
        return f"p = MatMul(a, w) o0 = Add(p, i{bias})"
    return "o0 = MatMul(a, w)"


def to_float(node: ir.Node) -> str | None:
    """``MatMulIntegerToFloat``: a product of integers with its scales, and a bias."""
    a = floats("a", "i0", "i2", _given(node, 4))
    w = floats("w", "i1", "i3", _given(node, 5))
    return f"{a} {w} {_product(node, 6)}"


def dynamic(node: ir.Node) -> str | None:
    """``DynamicQuantizeMatMul``: the same of activations that each run rounds."""
    a = f"q, s, z = DynamicQuantizeLinear(i0) {floats('a', 'q', 's', 'z')}"
    w = floats("w", "i1", "i2", _given(node, 3))
    return f"{a} {w} {_product(node, 4)}"


def _shape(value: ir.Value | None) -> tuple[int | None, ...] | None:
    if value is None or value.shape is None:
        return None
    return tuple(d if isinstance(d, int) else None for d in value.shape)


def _filter(node: ir.Node) -> float:
    found = node.attributes.get("mask_filter_value")
    return -10000.0 if found is None else float(found.value)


def mask(node: ir.Node, index: int, keys: int | None) -> str | None:
    """Make ``mask`` of a mask of keys; None where its form is not known here.

    Args:
        node: an attention of ONNX Runtime's.
        index: Index of its mask: (batch, keys), (batch, queries, keys) or the number of keys
            (batch).
        keys: how many there are.
    """
    shape = _shape(node.inputs[index])
    if shape is None or len(shape) not in (1, 2, 3):
        return None
    lines = [f"fill = Constant<value_float={_value(_filter(node))}>()"]
    lines.append("one = Constant<value_float=1.0>()")
    axes = {1: "", 2: "1, 2", 3: "1"}[len(shape)]
    if len(shape) == 1:
        if keys is None or (shape[0] is None or shape[0] != (_shape(node.inputs[0]) or (None,))[0]):
            # As many ends and starts as there are rows, or three of each: other layouts.
            return None
        lines.append(
            f"all = Constant<value_ints=[{', '.join(map(str, range(keys)))}]>() "
            f"column = Constant<value_ints=[-1, 1, 1, 1]>() ends = Cast<to=7>(i{index}) "
            "each = Reshape(ends, column) seen = Less(all, each)"
        )
    else:
        # Any number above zero lets a key through.
        lines.append(f"whole = Cast<to=7>(i{index}) none = Constant<value_ints=[0]>()")
        lines.append("seen = Greater(whole, none)")
    lines.append("seen_f = Cast<to=1>(seen) off = Sub(one, seen_f) added = Mul(off, fill)")
    if not axes:
        return " ".join([*lines, "mask = Identity(added)"])
    lines.append(f"wide = Constant<value_ints=[{axes}]>() mask = Unsqueeze(added, wide)")
    return " ".join(lines)


def attention(node: ir.Node) -> str | None:
    """Queries, keys and values by one product with packed weights; ``QAttention`` of integers."""
    integers = node.op_type == "QAttention"
    mask_at, past, more = (5, 8, -1) if integers else (3, 4, 5)
    known = {"num_heads", "unidirectional", "mask_filter_value", "scale", "qkv_hidden_sizes"}
    off = {"do_rotary", "past_present_share_buffer", "rotary_embedding_dim"}
    if any(n not in known and (n not in off or a.value) for n, a in node.attributes.items()):
        return None
    gives = len(node.outputs) > 1 and bool(node.outputs[1].name)
    if len(node.outputs) > 2 or _has(node, 6 if more > 0 else 9):
        return None
    x, w = _shape(node.inputs[0]), _shape(node.inputs[1])
    if x is None or w is None or len(x) != 3 or len(w) != 2 or w[1] is None:
        return None
    lines = []
    if integers:
        lines += [
            floats("x", "i0", "i3", _given(node, 6)),
            floats("w", "i1", "i4", _given(node, 7)),
        ]
    else:
        lines += ["x = Identity(i0) w = Identity(i1)"]
    lines.append("p = MatMul(x, w)")
    lines.append("packed = Add(p, i2)" if _has(node, 2) else "packed = Identity(p)")
    widths = node.attributes.get_ints("qkv_hidden_sizes", []) or [w[1] // 3] * 3
    lines.append(
        f"widths = Constant<value_ints=[{', '.join(map(str, widths))}]>() "
        "q, k, v = Split<axis=-1>(packed, widths)"
    )
    operands = ["q", "k", "v"]
    if _has(node, mask_at):
        text = mask(node, mask_at, x[1])
        rows = _shape(node.inputs[mask_at])
        if text is None or (_has(node, past) and (rows is None or len(rows) < 2)):
            return None
        lines.append(text)
        operands.append("mask")
    if more > 0 and _has(node, more):
        lines.append(f"biased = Add(mask, i{more})" if len(operands) > 3 else "")
        operands[3:] = ["biased" if len(operands) > 3 else f"i{more}"]
    heads = node.attributes.get_int("num_heads", 0)
    settings = [f"q_num_heads={heads}, kv_num_heads={heads}"]
    settings.append(f"is_causal={node.attributes.get_int('unidirectional', 0)}")
    if node.attributes.get_float("scale", 0.0):
        settings += shown(node, ("scale",))
    if _has(node, past):
        # Keys and values of the steps before, one behind the other.
        lines.append(
            "zero = Constant<value_int=0>() one_more = Constant<value_int=1>() "
            f"pk = Gather<axis=0>(i{past}, zero) pv = Gather<axis=0>(i{past}, one_more)"
        )
        operands = [*operands, *[""] * (4 - len(operands)), "pk", "pv"]
    results = "o0, nk, nv" if gives else "o0"
    lines.append(f"{results} = Attention<{', '.join(settings)}>({', '.join(operands)})")
    if gives:
        lines.append(
            "front = Constant<value_ints=[0]>() uk = Unsqueeze(nk, front) "
            "uv = Unsqueeze(nv, front) o1 = Concat<axis=0>(uk, uv)"
        )
    return " ".join(lines)


def embeddings(node: ir.Node) -> str | None:
    """Words, positions and segments looked up and added, and their norm; integers for ``QEmbed``.

    The second result is how many ones each row's mask has.
    """
    integers = node.op_type == "QEmbedLayerNormalization"
    ids = _shape(node.inputs[0])
    if ids is None or len(ids) != 2:
        return None
    scale = {2: 8, 3: 9, 4: 10, 5: 11, 6: 12}
    lines = []

    def row(name: str, place: int, where: str) -> None:
        raw = f"{name}_rows"
        lines.append(f"{raw} = Gather<axis=0>(i{place}, {where})")
        if integers:
            lines.append(floats(name, raw, f"i{scale[place]}", _given(node, scale[place] + 5)))
        else:
            lines.append(f"{name} = Identity({raw})")

    row("word", 2, "i0")
    positions = "i8" if not integers and _has(node, 8) else "steps"
    if positions == "steps" and ids[1] is not None:
        lines.append(f"steps = Constant<value_ints=[{', '.join(map(str, range(ids[1])))}]>()")
    elif positions == "steps":
        lines.append(
            "zero = Constant<value_int=0>() by = Constant<value_int=1>() "
            "width = Shape<start=1>(i0) end = Squeeze(width) steps = Range(zero, end, by)"
        )
    row("place", 3, positions)
    lines.append("both = Add(word, place)")
    total = "both"
    if _has(node, 1) and _has(node, 4):
        row("segment", 4, "i1")
        lines.append("three = Add(both, segment)")
        total = "three"
    for name, place in (("gamma", 5), ("beta", 6)):
        if integers:
            zero = _given(node, scale[place] + 5)
            lines.append(floats(name, f"i{place}", f"i{scale[place]}", zero))
        else:
            lines.append(f"{name} = Identity(i{place})")
    epsilon = node.attributes.get_float("epsilon", 1e-12)
    settings = f"axis=-1, epsilon={_value(float(epsilon))}"
    lines.append(f"o0 = LayerNormalization<{settings}>({total}, gamma, beta)")
    if len(node.outputs) > 1:
        if _has(node, 7):
            lines.append(
                "across = Constant<value_ints=[1]>() whole = Cast<to=7>(i7) "
                "is_word = Equal(whole, across) wide = Cast<to=7>(is_word) "
                "count = ReduceSum<keepdims=0>(wide, across) o1 = Cast<to=6>(count)"
            )
        elif node.outputs[1].name and _is_read(node.outputs[1]):
            return None
    if len(node.outputs) > 2:
        lines.append(f"o2 = Identity({total})")
    return " ".join(lines)


def _is_read(value: ir.Value) -> bool:
    return bool(value.uses()) or value.is_graph_output()


def same(node: ir.Node) -> str | None:
    """The standard's operator of the same name."""
    taken = ", ".join(f"i{i}" for i in range(len(node.inputs)))
    return f"o0 = {node.op_type}{about(node, ('axis', 'mode', 'upper'))}({taken})"


DEFINED = {
    "Attention": attention,
    "DequantizeLinear": same,
    "DynamicQuantizeLSTM": lstm,
    "DynamicQuantizeMatMul": dynamic,
    "EmbedLayerNormalization": embeddings,
    "MatMulIntegerToFloat": to_float,
    "Pad": same,
    "QAttention": attention,
    "QEmbedLayerNormalization": embeddings,
    "QuantizeLinear": same,
    "Trilu": same,
}
"""By operator: from a node to the text of its definition, None where there is none."""
