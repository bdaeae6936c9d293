"""What operators themselves ask of their operands: indices, lengths, counts, sizes and divisors.

Beyond the hard limit an operator fails or what it gives is not defined; within the usual one it
does what it is there for: an index from the front, a slice with something in it, a size that fits.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import numpy as np

from edgeinfer.convert.families import REDUCTIONS
from edgeinfer.convert.verify.bounds.forward import reduced
from edgeinfer.convert.verify.bounds.node import BoundedNode
from edgeinfer.convert.verify.bounds.span import ANY, Span
from edgeinfer.records import dataclass


@dataclass(frozen=True, slots=True)
class Limit:
    """What an operand may hold.

    Attributes:
        usual: what it holds where the operator does something sensible.
        hard: what it may hold at all.
    """

    usual: Span
    hard: Span = ANY


Limits = Mapping[int, Limit]
"""By place of the operand."""

Rule = Callable[[BoundedNode], Limits]

_FEW = 8.0
"""What a count or a size reaches that nothing bounds."""

_LEFT_OUT = -1e3
"""Masks add this or less to the scores that they leave out."""

_LENGTH = 64.0
"""Likewise of what is as long as a signal."""


def limits(op: BoundedNode) -> Limits:
    """Return what an operator asks of its operands."""
    key = (
        op.node.op_type
        if op.node.domain in ("", "ai.onnx")
        else f"{op.node.domain}.{op.node.op_type}"
    )
    rule = LIMITS.get(key)
    return {} if rule is None else rule(op)


def _within(low: float, high: float) -> Limit:
    span = Span.of(low, high)
    return Limit(span, span)


def _index(size: int | None) -> Limit:
    """An index into so many elements; negative ones count from the end."""
    if size is None or size < 1:
        return Limit(Span.of(0, np.inf))
    return Limit(Span.of(0, size - 1), Span.of(-size, size - 1))


def _gather(op: BoundedNode) -> Limits:
    return {1: _index(op.size(0, int(op.attr("axis", 0))))}


def _tuples(op: BoundedNode, first: int) -> Limits:
    """Indices whose last axis holds one for each axis of the data, from ``first`` on."""
    shape, depth = op.shape(0), op.size(1, -1)
    if shape is None or depth is None:
        return {}
    sizes = shape[first : first + depth]
    if len(sizes) != depth or any(not s for s in sizes):
        return {}
    ends = np.array([float(s or 0) for s in sizes])
    return {1: Limit(Span.of(np.zeros(depth), ends - 1), Span.of(-ends, ends - 1))}


def _gather_nd(op: BoundedNode) -> Limits:
    return _tuples(op, int(op.attr("batch_dims", 0)))


def _scatter_nd(op: BoundedNode) -> Limits:
    return _tuples(op, 0)


def _tensor_scatter(op: BoundedNode) -> Limits:
    axis = int(op.attr("axis", -2))
    room, new = op.size(0, axis), op.size(1, axis)
    return {2: _within(0, room - new)} if room and new and room >= new else {}


def _one_hot(op: BoundedNode) -> Limits:
    depth = op.number(1)
    found = {1: Limit(Span.of(2, _FEW), Span.of(1, np.inf))} if depth is None else {}
    most = op.span(1).hull().least if depth is None else depth
    top = most - 1 if math.isfinite(most) and most >= 1 else 1
    return {**found, 0: Limit(Span.of(0, top))}


def _rotary(op: BoundedNode) -> Limits:
    return {3: _within(0, size - 1)} if (size := op.size(1, 0)) else {}


def _rotary_of_microsoft(op: BoundedNode) -> Limits:
    size, length = op.size(2, 0), op.size(0, 1 if op.rank(0) == 3 else 2)
    if not size:
        return {}
    # One number is where the first position of each row is.
    back = (length or 1) - 1 if op.elements(1) == 1 else 0
    return {1: _within(0, max(0, size - 1 - back))}


def _embedding_layer(op: BoundedNode) -> Limits:
    found = {0: _index(op.size(2, 0)), 1: _index(op.size(4, 0)), 8: _index(op.size(3, 0))}
    return {i: Limit(one.usual, one.usual) for i, one in found.items()} | {7: Limit(Span.of(0, 1))}


def _lengths(place: int, axis: int = 0) -> Rule:
    def rule(op: BoundedNode) -> Limits:
        size = op.size(0, axis)
        return {place: Limit(Span.of(1, size), Span.of(0, size))} if size else {}

    return rule


def _recurrent(op: BoundedNode) -> Limits:
    return _lengths(4, 1 if op.attr("layout", 0) else 0)(op)


def _reversed(op: BoundedNode) -> Limits:
    size = op.size(0, int(op.attr("time_axis", 0)))
    return {1: _within(1, size)} if size else {}


def _top_k(op: BoundedNode) -> Limits:
    size = op.size(0, int(op.attr("axis", -1)))
    return {1: Limit(Span.of(1, min(size, _FEW)), Span.of(0, size))} if size else {}


def _divisor(op: BoundedNode) -> Limits:
    if not op.is_whole(1):
        return _scaled(op)
    return {1: Limit(Span.of(1, np.inf), Span.of(1, np.inf))}


def _scaled(op: BoundedNode) -> Limits:
    """What floats are that are divided by the most that samples hold, and what divides any."""
    found = {1: Limit(Span.of(1e-2, np.inf))} if op.const(1) is None else {}
    step = op.number(1)
    if step in (255.0, 256.0, 127.5, 128.0) and not _is_moved(op, 0):
        return {**found, 0: Limit(Span.of(0, 255))}
    if step in (32767.0, 32768.0):
        return {**found, 0: Limit(Span.of(-step, step - 1))}
    return found


def _is_moved(op: BoundedNode, place: int) -> bool:
    """Whether an operand is a sum or a difference, as ``x - 127.5`` is: pixels no more."""
    value = op.node.inputs[place]
    maker = None if value is None else value.producer()
    return maker is not None and maker.op_type in ("Add", "Sub")


def _multiplied(op: BoundedNode) -> Limits:
    found: dict[int, Limit] = {}
    for index in (0, 1):
        factor = op.number(1 - index)
        if factor is None or op.is_whole(index):
            continue
        for step in (255.0, 256.0, 127.5, 128.0):
            if math.isclose(factor, 1 / step, rel_tol=1e-5) and not _is_moved(op, index):
                found[index] = Limit(Span.of(0, 255))
        if any(math.isclose(factor, 1 / s, rel_tol=1e-5) for s in (32767.0, 32768.0)):
            found[index] = Limit(Span.of(-32768, 32767))
        if factor in (32767.0, 32768.0):
            # Recordings of -1 to 1 become those of 16 bits.
            found[index] = Limit(Span.of(-1, 1))
        if factor <= _LEFT_OUT and _is_rest_of_one(op, index):
            found[index] = Limit(Span.of(0, 1))
    return found


def _is_rest_of_one(op: BoundedNode, place: int) -> bool:
    """Whether an operand is ``1 - x``, as of a mask whose ones count."""
    value = op.node.inputs[place]
    maker = None if value is None else value.producer()
    if maker is None or maker.op_type != "Sub":
        return False
    return BoundedNode(maker, op.spans, op.opsets).number(0) == 1


def _centred(op: BoundedNode) -> Limits:
    """Take off what images are on average: 0..1 where that is a share, else 0..255."""
    mean = op.const(1)
    if mean is None or mean.dtype.kind != "f" or mean.size not in (1, 3) or not mean.size:
        return {}
    values = np.ravel(mean)
    if ((values > 0.2) & (values < 0.8)).all():
        return {0: Limit(Span.of(0, 1))}
    if ((values > 60) & (values < 160)).all():
        return {0: Limit(Span.of(0, 255))}
    return {}


def _axis(place: int, data: int = 0) -> Rule:
    def rule(op: BoundedNode) -> Limits:
        rank = op.rank(data)
        return {place: _index(rank)} if rank else {}

    return rule


def _slice(op: BoundedNode) -> Limits:
    """Starts in the first half and ends in the second leave something between them."""
    found: dict[int, Limit] = {}
    shape, rank = op.shape(0), op.rank(0)
    axes = op.const(3)
    dims = range(op.elements(1) or 0) if axes is None else [int(a) for a in axes.ravel()]
    sizes = [op.size(0, a) for a in dims] if shape is not None else []
    if sizes and all(s for s in sizes):
        ends = np.array([float(s or 0) for s in sizes])
        starts_known, ends_known = op.const(1) is not None, op.const(2) is not None
        half = np.floor(ends / 2)
        found[1] = Limit(Span.of(0 * ends, ends - 1 if ends_known else np.maximum(half - 1, 0)))
        found[2] = Limit(Span.of(np.ones_like(ends) if starts_known else np.maximum(half, 1), ends))
        if starts_known:
            first = op.const(1)
            low = np.where(np.ravel(first) < 0, np.ravel(first) + ends, np.ravel(first))  # type: ignore[arg-type]
            found[2] = Limit(Span.of(np.minimum(low + 1, ends), ends))
        elif ends_known:
            last = np.ravel(op.const(2))  # type: ignore[arg-type]
            high = np.minimum(np.where(last < 0, last + ends, last), ends)
            found[1] = Limit(Span.of(0 * ends, np.maximum(high - 1, 0)))
    if rank:
        found[3] = _index(rank)
    found[4] = Limit(Span.of(1, 1), Span.of(1, np.inf))
    return found


def _range(op: BoundedNode) -> Limits:
    first = op.span(0).hull()
    start = first.most if math.isfinite(first.most) else 0.0
    return {
        0: Limit(Span.of(0, 0)),
        1: Limit(Span.of(start + 1, start + _LENGTH)),
        2: Limit(Span.of(1, 1), Span.of(1, np.inf)),
    }


def _new_shape(op: BoundedNode) -> Limits:
    return {0: Limit(Span.of(1, _FEW), Span.of(0, 1 << 20))}


def _expand(op: BoundedNode) -> Limits:
    """Sizes that go with those of the data, from the last axis on."""
    shape, length = op.shape(0), op.size(1, 0)
    if shape is None or length is None or any(d is None for d in shape):
        return {1: Limit(Span.of(1, _FEW), Span.of(1, 1 << 20))}
    sizes = [1] * max(0, length - len(shape)) + [d or 0 for d in shape][-length:]
    low = np.array([float(s) for s in sizes[:length]])
    high = np.where(low == 1, 2.0, low)
    return {1: Limit(Span.of(low, high), Span.of(np.ones_like(low), np.where(low == 1, 1e6, low)))}


def _reshape(op: BoundedNode) -> Limits:
    """A shape of as many elements: the data's own, joined or filled up to the rank requested."""
    shape, length, count = op.shape(0), op.size(1, 0), op.elements(0)
    if shape is None or not length or count is None:
        return {}
    known = op.span(1).full((length,))
    wanted = [float(d or 0) for d in shape]
    if length < len(wanted):
        wanted = [*wanted[: length - 1], float(np.prod(wanted[length - 1 :]))]
    wanted = [1.0] * (length - len(wanted)) + wanted
    if known is not None:
        _fill(wanted, known, float(count))
    return {1: Limit(Span.of(wanted, wanted))}


def _fill(wanted: list[float], known: Span, count: float) -> None:
    """Change sizes that are open so that with the known ones they make up the count."""
    fixed = {i: float(known.low[i]) for i in range(len(wanted)) if known.low[i] == known.high[i]}
    if not fixed:
        return
    inferred = any(v == -1 for v in fixed.values())
    left = count / max(1.0, math.prod(v for v in fixed.values() if v > 0))
    free = [i for i in range(len(wanted)) if i not in fixed]
    for i, v in fixed.items():
        wanted[i] = v
    for place, i in enumerate(free):
        last = place == len(free) - 1 and not inferred
        if last or wanted[i] <= 0 or left % wanted[i]:
            wanted[i] = left if last else 1.0
        left /= max(wanted[i], 1.0)


def _tile(op: BoundedNode) -> Limits:
    return {1: Limit(Span.of(1, 2), Span.of(0, 1 << 10))}


def _pad(op: BoundedNode) -> Limits:
    shape = op.shape(0)
    if op.attr("mode", "constant") in ("reflect",) and shape and all(shape) and not op.has(3):
        ends = np.array([float(d or 0) - 1 for d in shape] * 2)
        return {1: Limit(Span.of(0, np.minimum(ends, 2)), Span.of(0, ends))}
    return {1: Limit(Span.of(0, 2), Span.of(0, 1 << 20))}


def _resize(op: BoundedNode) -> Limits:
    if len(op.node.inputs) == 2:
        # Of opset 10, which has no regions and no sizes.
        return {1: _resize_scales(op)}
    shape = op.shape(0)
    if not shape or op.attr("axes") is not None:
        return {2: Limit(Span.of(1, 2), Span.of(1e-2, 1e3))}
    ends = np.array([float(d or 1) for d in shape])
    # Images are resized by height and width, never by batch and channels.
    kept = np.arange(len(shape)) < 2 if len(shape) > 2 else np.zeros(len(shape), bool)
    low, high = np.where(kept, ends, ends), np.where(kept, ends, 2 * ends)
    return {2: _resize_scales(op), 3: Limit(Span.of(low, high), Span.of(1, 1 << 20))}


def _resize_scales(op: BoundedNode) -> Limit:
    rank = op.rank(0) or 0
    kept = np.arange(rank) < 2 if rank > 2 else np.zeros(max(rank, 1), bool)
    return Limit(Span.of(1, np.where(kept, 1.0, 2.0)), Span.of(1e-2, 1e3))


def _upsample(op: BoundedNode) -> Limits:
    return {1: Limit(_resize_scales(op).usual, Span.of(1, 1e3))} if op.rank(0) else {}


def _split(op: BoundedNode) -> Limits:
    """Even parts."""
    size, parts = op.size(0, int(op.attr("axis", 0))), len(op.node.outputs)
    if not size:
        return {}
    even = [float(size // parts + (i < size % parts)) for i in range(parts)]
    return {1: Limit(Span.of(even, even))}


def _split_to_sequence(op: BoundedNode) -> Limits:
    size = op.size(0, int(op.attr("axis", 0)))
    return {1: Limit(Span.of(1, max(1, size // 2)), Span.of(1, size))} if size else {}


def _nms(op: BoundedNode) -> Limits:
    boxes = op.size(1, -1) or _FEW
    return {
        2: Limit(Span.of(1, boxes), Span.of(0, np.inf)),
        3: Limit(Span.of(0.3, 0.7), Span.of(0, 1)),
        4: Limit(Span.of(0, 0.5)),
    }


def _classes(op: BoundedNode) -> Limits:
    return {1: _within(0, size - 1)} if (size := op.size(0, 1)) else {}


def _unpooled(op: BoundedNode) -> Limits:
    count = op.elements(0)
    return {1: _within(0, count - 1)} if count else {}


def _regions(op: BoundedNode) -> Limits:
    size = op.size(0, 0)
    return {2: _within(0, size - 1)} if size else {}


def _shifted(op: BoundedNode) -> Limits:
    kind = op.dtype(0)
    return {1: _within(0, kind.itemsize * 8 - 1)} if kind is not None else {}


def _powered(op: BoundedNode) -> Limits:
    return {1: Limit(Span.of(0, 3))} if op.const(1) is None else {}


def _positive(op: BoundedNode) -> Limits:
    return {0: Limit(Span.of(1e-3, np.inf))}


def _trips(op: BoundedNode) -> Limits:
    return {0: Limit(Span.of(1, _FEW), Span.of(0, np.inf))}


def _window(op: BoundedNode) -> Limits:
    return {0: Limit(Span.of(2, _LENGTH), Span.of(1, 1 << 20))}


def _spectrum(op: BoundedNode) -> Limits:
    rank = op.rank(0)
    found = {1: Limit(Span.of(2, _LENGTH), Span.of(1, 1 << 20))}
    return {**found, 2: Limit(Span.of(1, rank - 2), Span.of(-rank, rank - 2))} if rank else found


def _short_spectrum(op: BoundedNode) -> Limits:
    length = op.size(0, 1) or _LENGTH
    half = max(1.0, length // 2)
    return {1: _within(1, half), 3: Limit(Span.of(2, half), Span.of(1, length))}


def _cropped(op: BoundedNode) -> Limits:
    shape, axes = op.shape(0), op.attr("axes")
    dims = range(len(shape)) if shape is not None and axes is None else (axes or ())
    sizes = [op.size(0, int(a)) for a in dims]
    if not sizes or not all(sizes):
        return {}
    ends = np.array([float(s or 0) for s in sizes])
    return {1: Limit(Span.of(np.ones_like(ends), ends), Span.of(1, 1 << 20))}


def _affine(op: BoundedNode) -> Limits:
    batch, length = op.size(0, 0), op.size(1, 0)
    if not batch or not length:
        return {}
    low = np.array([float(batch), *[1.0] * (length - 1)])
    return {1: Limit(Span.of(low, np.where(np.arange(length) == 0, low, _FEW)))}


def _compared(op: BoundedNode) -> Limits:
    """What is compared with positions, as in a mask of lengths, lies among them."""
    found: dict[int, Limit] = {}
    for index in (0, 1):
        other = op.span(1 - index).hull()
        known = math.isfinite(other.least) and math.isfinite(other.most)
        if known and op.is_whole(index) and other.most > other.least:
            found[index] = Limit(Span.of(max(other.least, 1), other.most + 1))
    return found


def _picked(op: BoundedNode) -> Limits:
    return {1: _index(op.size(0, -1))}


def _grouped_attention(op: BoundedNode) -> Limits:
    """Lengths of what was seen with what is new, less one; and the most of them."""
    new = op.size(0, 1)
    past = op.size(3, 2) or 0
    if not new:
        return {}
    total = float(new + past)
    return {5: _within(total - 1, total - 1), 6: _within(total, total)}


def _packed_attention(mask: int, past: int) -> Rule:
    """A mask of zeros and ones, or how many keys each row has."""

    def rule(op: BoundedNode) -> Limits:
        if op.rank(mask) != 1:
            return {mask: Limit(Span.of(0, 1))}
        keys = (op.size(0, 1) or 0) + (op.size(past, 3) or 0)
        return {mask: Limit(Span.of(1, keys), Span.of(0, keys))} if keys else {}

    return rule


def _padded_attention(op: BoundedNode) -> Limits:
    length = op.size(1, 2) if op.rank(1) == 4 else op.size(1, 1)
    past = (op.size(4, 2) or 0) if op.has(4) else 0
    return {6: Limit(Span.of(1, length + past), Span.of(0, length + past))} if length else {}


def _summed_count(op: BoundedNode) -> Limits:
    rank = op.rank(0)
    return {1: _index(rank)} if rank and reduced(op) is None else {}


LIMITS: dict[str, Rule] = {
    **dict.fromkeys(("Gather", "GatherElements", "ScatterElements", "Scatter"), _gather),
    **dict.fromkeys(("RNN", "LSTM", "GRU"), _recurrent),
    **dict.fromkeys(("Squeeze", "CumSum", "CumProd"), _axis(1)),
    **dict.fromkeys(REDUCTIONS, _summed_count),
    **dict.fromkeys(("Less", "LessOrEqual", "Greater", "GreaterOrEqual"), _compared),
    **dict.fromkeys(("Log", "Sqrt"), _positive),
    **dict.fromkeys(("HannWindow", "HammingWindow", "BlackmanWindow"), _window),
    **dict.fromkeys(("NegativeLogLikelihoodLoss", "SoftmaxCrossEntropyLoss"), _classes),
    "AffineGrid": _affine,
    "Attention": _padded_attention,
    "BitShift": _shifted,
    "CenterCropPad": _cropped,
    "ConstantOfShape": _new_shape,
    "DFT": _spectrum,
    "Div": _divisor,
    "Expand": _expand,
    "GatherND": _gather_nd,
    "Loop": _trips,
    "MaxUnpool": _unpooled,
    "Mod": _divisor,
    "Mul": _multiplied,
    "NonMaxSuppression": _nms,
    "OneHot": _one_hot,
    "Pad": _pad,
    "Pow": _powered,
    "Range": _range,
    "Reshape": _reshape,
    "Resize": _resize,
    "ReverseSequence": _reversed,
    "RoiAlign": _regions,
    "RotaryEmbedding": _rotary,
    "STFT": _short_spectrum,
    "ScatterND": _scatter_nd,
    "Slice": _slice,
    "Split": _split,
    "SplitToSequence": _split_to_sequence,
    "Sub": _centred,
    "TensorScatter": _tensor_scatter,
    "Tile": _tile,
    "TopK": _top_k,
    "Upsample": _upsample,
    "ai.onnx.ml.ArrayFeatureExtractor": _picked,
    "com.microsoft.Attention": _packed_attention(3, 4),
    "com.microsoft.DynamicQuantizeLSTM": _recurrent,
    "com.microsoft.EmbedLayerNormalization": _embedding_layer,
    "com.microsoft.GroupQueryAttention": _grouped_attention,
    "com.microsoft.QAttention": _packed_attention(5, 8),
    "com.microsoft.QEmbedLayerNormalization": _embedding_layer,
    "com.microsoft.RotaryEmbedding": _rotary_of_microsoft,
}
"""By operator; those of other domains with their domain in front."""
