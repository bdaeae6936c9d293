"""Numbers that no operator means, found before anything computes with them.

onnx's shape inference, definitions and engines divide by such numbers, allocate what they say and
count up to them. What is asked here needs a node alone, and is asked before the first of these
sees a model, then again of what passes have made of it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType

import onnx_ir as ir

from edgeinfer.convert.lower.core.named import MalformedRefusal, named_axes
from edgeinfer.convert.passes.infra import DEFAULT_DOMAINS, attr, ints, small
from edgeinfer.convert.passes.infra import input_at as given

MOST = (1 << 31) - 1
"""Any integer of a node that is no value: counts, sizes, axes, flags."""

_LONG = 1 << 24
"""Elements along one axis of a window, a border, a step, a transform."""

_ELEMENTS = 1 << 28
"""Elements that a node makes of numbers alone."""

_MOST_AXES = 64

_DOMAINS = frozenset({*DEFAULT_DOMAINS, "com.microsoft"})

_VALUES = frozenset(
    {
        *("value_int", "value_ints", "starts", "ends", "start", "end", "ignore_index"),
        "pool_int64s",
    }
)
"""Attributes that hold values, or a place that may lie behind all there is."""

_AXES = frozenset({"axis", "axes", "batch_axis", "time_axis", "batch_dims", "new_axis", "perm"})

_TYPES = frozenset({"to", "dtype", "output_dtype", "output_datatype", "softmax_precision"})
_KNOWN_TYPES = frozenset(int(each) for each in ir.DataType if each != ir.DataType.UNDEFINED)
_INTEGERS = (ir.AttributeType.INT, ir.AttributeType.INTS)


def refuse_numbers(node: ir.Node) -> None:
    """Look at the integers of a node.

    Raises:
        MalformedRefusal: says which of them means nothing.
    """
    if node.domain not in _DOMAINS:
        return
    if node.op_type == "Constant" and len(node.attributes) != 1:
        raise MalformedRefusal(f"{len(node.attributes)} values, where it takes one")
    held = {a.name: _held(a) for a in node.attributes.values() if _is_whole(a)}
    for ask in _ASKED.get(node.op_type, ()):
        ask(node)
    if node.op_type in _WINDOWS:
        _windows(node, held)
    for name, numbers in held.items():
        if name in _AXES:
            _hold(name, numbers, -_MOST_AXES, _MOST_AXES)
        elif name in _TYPES:
            _type(node, name, numbers)
        elif name not in _VALUES:
            _hold(name, numbers, -MOST - 1, MOST)


def _is_whole(attribute: ir.Attr) -> bool:
    return not attribute.is_ref() and attribute.type in _INTEGERS


def _held(attribute: ir.Attr) -> list[int]:
    is_one = attribute.type == ir.AttributeType.INT
    return [attribute.as_int()] if is_one else list(attribute.as_ints())


def _hold(name: str, numbers: Iterable[int], least: int, most: int) -> None:
    for number in numbers:
        if not least <= number <= most:
            raise MalformedRefusal(f"{name}={number}, expected {least} to {most}")


def _type(node: ir.Node, name: str, numbers: Sequence[int]) -> None:
    for number in numbers:
        # As if it had been left out, which some may.
        if number not in _KNOWN_TYPES and (number or node.op_type in ("Cast", "MelWeightMatrix")):
            raise MalformedRefusal(f"{name}={number}, which is no type of elements")


_POOLS = frozenset({"AveragePool", "LpPool", "MaxPool", "MaxUnpool", "QLinearAveragePool"})
_WINDOWS = _POOLS | {
    *("Conv", "ConvInteger", "ConvTranspose", "DeformConv", "FusedConv", "QLinearConv"),
}


def _windows(node: ir.Node, held: Mapping[str, Sequence[int]]) -> None:
    """Look at a window's numbers, one for each axis that it moves along, or one for each end."""
    x = given(node, 0)
    axes = len(held.get("kernel_shape", ()))
    if not axes and x is not None and x.shape is not None:
        axes = len(x.shape) - 2
    for name, least, ends in (
        *(("kernel_shape", 1, 1), ("strides", 1, 1), ("dilations", 1, 1), ("pads", 0, 2)),
        *(("output_padding", 0, 1), ("group", 1, 0), ("offset_group", 1, 0)),
    ):
        if name not in held:
            continue
        _hold(name, held[name], least, _LONG)
        # What is left empty is left out.
        if ends and axes > 0 and held[name] and len(held[name]) != ends * axes:
            count = len(held[name])
            raise MalformedRefusal(f"{name}: {count} numbers, where it takes {ends * axes}")


Place = int | str
"""An operand or an attribute."""


def _numbers(node: ir.Node, place: Place) -> list[int] | None:
    if isinstance(place, int):
        return ints(given(node, place))
    found = node.attributes.get(place)
    return None if found is None or not _is_whole(found) else _held(found)


def within(least: int, most: int, *places: Place) -> Callable[[ir.Node], None]:
    """Return what asks whether numbers of a node, operands or attributes, lie between two."""

    def ask(node: ir.Node) -> None:
        for place in places:
            name = place if isinstance(place, str) else f"operand {place}"
            _hold(name, _numbers(node, place) or (), least, most)

    return ask


def _makes(place: Place, least: int = 0) -> Callable[[ir.Node], None]:
    """Return what asks whether the sizes of a result are some, and not too many together."""

    def ask(node: ir.Node) -> None:
        sizes = _numbers(node, place)
        within(least, MOST, place)(node)
        if sizes is not None:
            _few(math.prod(sizes))

    return ask


def _few(count: int) -> None:
    if count > _ELEMENTS:
        raise MalformedRefusal(f"makes {count} elements of a few numbers, at most {_ELEMENTS}")


def _axis(node: ir.Node) -> None:
    x, axis = given(node, 0), node.attributes.get("axis")
    if axis is not None and not axis.is_ref() and x is not None and x.shape is not None:
        named_axes([axis.as_int()], len(x.shape))


def _axis_of_transform(node: ir.Node) -> None:
    x, axis = given(node, 0), _numbers(node, 2) or _numbers(node, "axis")
    if axis is not None and x is not None and x.shape is not None:
        named_axes(axis, len(x.shape))


def _range(node: ir.Node) -> None:
    ends = [small(given(node, place)) for place in range(3)]
    if any(end is None or end.size != 1 for end in ends):
        return
    start, limit, step = (end.reshape(-1)[0].item() for end in ends if end is not None)
    if not all(map(math.isfinite, (start, limit, step))) or not step:
        raise MalformedRefusal(f"from {start} to {limit} by {step}")
    _few(max(0, int(-((start - limit) // step))))


def _split(node: ir.Node) -> None:
    within(1, len(node.outputs), "num_outputs")(node)
    sizes = _numbers(node, 1)
    if sizes is not None and len(sizes) != len(node.outputs):
        raise MalformedRefusal(f"{len(sizes)} sizes for {len(node.outputs)} results")


def _split_to_sequence(node: ir.Node) -> None:
    x, sizes, array = given(node, 0), _numbers(node, 1), small(given(node, 1))
    if sizes is None or array is None or array.ndim > 1:
        return
    within(0 if array.ndim else 1, MOST, 1)(node)
    axis = attr(node, "axis", 0)
    if not array.ndim or x is None or x.shape is None or not -len(x.shape) <= axis < len(x.shape):
        return
    there = x.shape[axis]
    if isinstance(there, int) and sum(sizes) != there:
        raise MalformedRefusal(f"sizes of {sum(sizes)} together, where there are {there}")


def _top(node: ir.Node) -> None:
    x, axis, count = given(node, 0), attr(node, "axis", -1), _numbers(node, 1)
    within(0, MOST, 1)(node)
    if not count or x is None or x.shape is None or not -len(x.shape) <= axis < len(x.shape):
        return
    there = x.shape[axis]
    if isinstance(there, int) and count[0] > there:
        raise MalformedRefusal(f"the {count[0]} largest of {there}")


def _scan(node: ir.Node) -> None:
    within(1, len(node.inputs), "num_scan_inputs")(node)


def _grams(node: ir.Node) -> None:
    within(0, 1000, "min_gram_length", "max_gram_length", "max_skip_count")(node)
    within(0, _LONG, "ngram_counts", "ngram_indexes")(node)
    counts, pool = attr(node, "ngram_counts", ()), node.attributes.get("pool_int64s")
    length = None if pool is None else len(pool.as_ints())
    if list(counts) != sorted(counts) or (length is not None and max(counts, default=0) > length):
        raise MalformedRefusal(f"ngram_counts={list(counts)} of {length} words")


def _bits(node: ir.Node) -> None:
    """Source: ONNX Runtime's ContribOperators.md: a block is a power of two, 16 at least."""
    within(1, _LONG, "K", "N")(node)
    within(16, _LONG, "block_size")(node)
    size = attr(node, "block_size", 16)
    if size & (size - 1):
        raise MalformedRefusal(f"block_size={size}, which is no power of two")


_ASKED: Mapping[str, tuple[Callable[[ir.Node], None], ...]] = MappingProxyType(
    {
        "AffineGrid": (_makes(1, 1),),
        **dict.fromkeys(("BlackmanWindow", "HammingWindow", "HannWindow"), (within(0, _LONG, 0),)),
        "Col2Im": (
            *(within(1, _LONG, 2, "dilations", "strides"), within(0, _LONG, "pads")),
            _makes(1, 1),
        ),
        "ConstantOfShape": (_makes(0),),
        "DFT": (within(1, _LONG, 1), _axis_of_transform),
        **dict.fromkeys(("DequantizeLinear", "QuantizeLinear"), (within(0, _LONG, "block_size"),)),
        **dict.fromkeys(("GRU", "LSTM", "RNN"), (within(1, _LONG, "hidden_size"),)),
        "LRN": (within(1, _LONG, "size"),),
        "MatMulNBits": (_bits,),
        "MelWeightMatrix": (within(1, _LONG, 0, 1, 2),),
        "Range": (_range,),
        "RoiAlign": (within(0, 1 << 12, "sampling_ratio", "output_height", "output_width"),),
        "STFT": (within(1, _LONG, 1, 3),),
        "Scan": (_scan,),
        "Split": (_split,),
        "SplitToSequence": (_split_to_sequence,),
        "TfIdfVectorizer": (_grams,),
        "TopK": (_top,),
        "Unique": (_axis,),
    }
)
"""What is asked of each operator besides; others refuse such numbers themselves."""
