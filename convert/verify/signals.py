"""Made-up inputs that look like what a model was trained on, and extremes that do not."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import numpy as np
import onnx_ir as ir

from edgeinfer.convert.verify.allowed import USUAL_MOST, Allowed, fitting, whole_ends
from edgeinfer.convert.verify.bounds import Span
from edgeinfer.convert.verify.kinds import Kind
from edgeinfer.types import Array, AudioInput, ImageInput, NoiseInput, TensorSpec

Style = Literal[
    "natural",
    "standard",
    "noise",
    "zeros",
    "large",
    "negative",
    "offset",
    "ties",
    "tiny",
    "huge",
    "faint",
    "far",
]

_LARGE = 100.0

DIGITS: Mapping[Style, Callable[[Array], Array]] = {
    "offset": lambda x: x + 1000.0,
    "ties": lambda x: np.rint(4.0 * x) / 2.0,
    "tiny": lambda x: x * 1e-6,
    "huge": lambda x: x * 1.5e4,
}
"""What inputs without a unit may hold and kernels lose digits of: a mean far beyond the deviation,
equal elements and halves, magnitudes at which differences from one vanish or angles turn often."""

POWERS: Mapping[Style, Callable[[Array], Array]] = {
    "faint": lambda x: x * 1e-20,
    "far": lambda x: x * 1e15,
}
"""Likewise where a model has roots of sums of powers: powers leave float32 where roots do not."""

_LENGTHS = frozenset({"GlobalLpPool", "LRN", "LpNormalization", "LpPool", "ReduceL2"})
"""Operators that take such roots."""

_ANGLES = frozenset({"Cos", "Sin", "Tan"})
"""Operators of angles, which mean nothing at 1e15: neighbours of float32 are many turns apart."""

_DEFAULT_RATE = 16000


def digit_styles(model: ir.Model) -> tuple[Style, ...]:
    """Return the styles of inputs without a unit that a model's operators may lose digits of."""
    found = {node.op_type for node in ir.traversal.RecursiveGraphIterator(model.graph)}
    if not found & _LENGTHS:
        return tuple(DIGITS)
    return (*DIGITS, *(style for style in POWERS if style != "far" or not found & _ANGLES))


def signal(
    spec: TensorSpec,
    kind: Kind,
    shape: Sequence[int],
    style: Style,
    rng: np.random.Generator,
    allowed: Allowed | None = None,
    most: int = USUAL_MOST,
    picture: Sequence[int] = (),
) -> Array:
    """Return one input.

    Args:
        spec: gives the element type.
        kind: what the input is.
        shape: sizes of all axes.
        style: ``natural`` looks like data, ``standard`` too but with images of zero mean and
            unit spread; ``noise`` is independent; the others are extremes, which ids, masks and
            rates do not have: they stay valid. Those of ``DIGITS`` and ``POWERS`` are for
            what has no unit.
        rng: source of all randomness.
        allowed: what it may hold; whatever the style, it does not leave that.
        most: what integers reach that nothing bounds.
        picture: Height and width of images that come with it, where it is their sizes.
    """
    shape = tuple(shape)
    span = None if allowed is None else fitting(allowed.span, shape)
    match kind.name:
        case "text":
            words = np.array(["", "edge", "a longer piece of text", "Ünïcödé"], dtype=object)
            return np.asarray(words[rng.integers(0, len(words), shape)], dtype=object)
        case "draws" if isinstance(kind.record, NoiseInput):
            # Whatever the style: a voice whose noise is no noise speaks for hours.
            drawn = rng.standard_normal(shape) * kind.record.scale
            return (np.zeros(shape) if style == "zeros" else drawn).astype(spec.dtype)
        case "sample_rate" if span is None:
            return np.full(shape, _DEFAULT_RATE, dtype=spec.dtype)
        case "mask":
            mask = _mask(shape, style, rng)
            if span is not None and spec.dtype != "bool":
                mask = np.clip(mask, span.low, span.high)
            return np.asarray(mask).astype(spec.dtype)
        case "sizes" | "factor" | "share" if allowed is None or allowed.source == "graph":
            said = _said(kind, shape, style, rng, picture)
            if span is not None:
                said = np.clip(said, span.low, span.high)
            return np.asarray(said).astype(spec.dtype)
    dtype = _numpy_type(spec.dtype)
    if dtype.kind in "iu" and kind.name != "image":
        signed = allowed is not None and allowed.source != "graph"
        return _integers(kind, shape, style, rng, dtype, span, most, signed)
    values = _numbers(spec, kind, shape, style, rng)
    return values if span is None else _ranged(values, kind, span, style, rng).astype(dtype)


def _integers(
    kind: Kind,
    shape: tuple[int, ...],
    style: Style,
    rng: np.random.Generator,
    dtype: np.dtype,
    span: Span | None,
    most: int,
    signed: bool,
) -> Array:
    """Integers that are allowed; among several the lowest and the highest of them.

    Of a few bits any may come; of wide ones the graph asks for what counts, from zero on.
    """
    few = np.iinfo(dtype)
    if span is None and kind.vocab is None and shape and dtype.itemsize == 1 and most > 1:
        span = Span.of(few.min, few.max)
    if span is None and kind.vocab is not None:
        span = Span.of(0, kind.vocab - 1)
    if span is None and (not shape or kind.name == "state"):
        # A lone integer is a count, a length or a switch; one is the value most models take.
        span = Span.of(0, 0) if style == "zeros" else Span.of(min(1, most) if not shape else 0, 1)
        span = Span.of(min(span.least, most), min(span.most, most))
        return rng.integers(int(span.least), int(span.most) + 1, shape).astype(dtype)
    signed = signed or dtype.itemsize <= np.dtype(np.int16).itemsize
    ends = whole_ends(span, dtype, most, signed=signed)
    low, high = (np.broadcast_to(e, shape) for e in ends)
    if kind.name == "positions" and shape:
        along = np.broadcast_to(np.arange(shape[-1]), shape)
        return np.asarray(low + along % (high - low + 1)).astype(dtype)
    if style == "zeros":
        return np.asarray(np.clip(0, low, high)).astype(dtype)
    # Ends of 64 bits are no floats; what is drawn stays below.
    top = np.minimum(high, float(1 << 62)).astype(np.int64)
    values = rng.integers(low.astype(np.int64), top + 1, shape)
    if not shape:
        return np.asarray(values).astype(dtype)
    flat = values.reshape(-1)
    if flat.size > 2:
        indices = rng.permutation(flat.size)[:2]
        flat[indices[0]], flat[indices[1]] = (
            low.reshape(-1)[indices[0]],
            top.reshape(-1)[indices[1]],
        )
    return np.asarray(flat.reshape(shape).astype(dtype))


def _ranged(values: Array, kind: Kind, span: Span, style: Style, rng: np.random.Generator) -> Array:
    """Bring what looks like data into the range that it has."""
    low, high = (np.broadcast_to(e, values.shape) for e in (span.low, span.high))
    wide = values.astype(np.float64)
    ends = np.isfinite(low) & np.isfinite(high)
    if not ends.all():
        # One end or none: only the side is known.
        side = np.where(np.isfinite(low), low + np.abs(wide), high - np.abs(wide))
        return np.asarray(np.where(np.isfinite(low) | np.isfinite(high), side, wide))
    if style == "zeros":
        return np.clip(np.zeros(values.shape), low, high)
    if style == "large":
        return np.where(rng.random(values.shape) < 0.5, low, high)
    if style == "noise":
        return low + rng.random(values.shape) * (high - low)
    middle, half = (low + high) / 2, (high - low) / 2
    if style == "negative":
        return np.where(middle > 0, low, np.minimum(low + rng.random(values.shape) * half, high))
    if kind.name == "image":
        # Images are 0..1 here, or 0..255 where they are integers.
        top = max(1.0, float(wide.max(initial=0.0)))
        return low + np.clip(wide, 0.0, top) / top * (high - low)
    most = float(np.abs(wide).max(initial=0.0)) or 1.0
    reach = wide / most
    if kind.name == "audio" and (low < 0).all():
        return np.asarray(np.clip(reach * np.maximum(-low, high), low, high))
    return np.asarray(middle + half * reach)


def _mask(shape: tuple[int, ...], style: Style, rng: np.random.Generator) -> Array:
    """Ones, then zeros, along the last axis; the first row is full, as in an unpadded batch."""
    if not shape:
        return np.asarray(1)
    if 0 in shape:
        return np.zeros(shape)
    length = shape[-1]
    rows = rng.integers(max(1, length // 2), length + 1, shape[:-1])
    if style != "noise":
        rows = rows.copy()
        rows.reshape(-1)[:1] = length
    return np.asarray(np.arange(length) < rows[..., None])


def _said(
    kind: Kind,
    shape: tuple[int, ...],
    style: Style,
    rng: np.random.Generator,
    picture: Sequence[int],
) -> Array:
    """What a net takes besides its data: ordinary whatever the style, since nothing else comes.

    Pictures fill the input in natural vectors, and part of it in others.
    """
    drawn = rng.random(shape)
    if kind.name == "share":
        return 0.05 + 0.9 * drawn
    if kind.name == "factor":
        return np.asarray(2.0 ** (2.0 * drawn - 1.0))
    sizes = np.broadcast_to(np.asarray(picture, np.float64), shape)
    return sizes if style == "natural" else np.ceil(sizes * (0.5 + 0.5 * drawn))


def _numbers(
    spec: TensorSpec, kind: Kind, shape: tuple[int, ...], style: Style, rng: np.random.Generator
) -> Array:
    dtype = _numpy_type(spec.dtype)
    if dtype.kind in "iu":
        picture = np.zeros(shape) if style == "zeros" else _plain_picture(kind, shape, style, rng)
        return (picture * 255.0).astype(dtype)
    if style == "zeros" or (kind.name == "state" and style == "natural"):
        return np.zeros(shape, dtype)
    if kind.name == "image":
        values = _picture_values(kind, shape, style, rng)
    elif kind.name == "audio":
        values = _recording(kind, shape, style, rng)
    else:
        values = rng.standard_normal(shape)
    if style == "large":
        values = values * _LARGE
    if style == "negative":
        values = -np.abs(values)
    made = DIGITS.get(style) or POWERS.get(style)
    if made is not None:
        values = made(values)
    if _takes_pixels(kind):
        values = np.clip(np.rint(values), 0, 255)
    return np.asarray(values).astype(dtype)


def _takes_pixels(kind: Kind) -> bool:
    """Whether the input is given pixels as they are, which have nothing beyond their range."""
    record = kind.record
    if not isinstance(record, ImageInput) or record.scale != 1.0:
        return False
    return not any(record.mean) and all(s == 1.0 for s in record.std)


def _numpy_type(name: str) -> np.dtype[Any]:
    if name in ("bfloat16",) or name.startswith("float8"):
        import ml_dtypes

        narrow: np.dtype[Any] = np.dtype(getattr(ml_dtypes, name))
        return narrow
    return np.dtype(name)


def _plain_picture(
    kind: Kind, shape: tuple[int, ...], style: Style, rng: np.random.Generator
) -> Array:
    axis = kind.channel_axis if kind.channel_axis is not None else 1
    return _picture(shape, axis, style, rng)


def _picture_values(
    kind: Kind, shape: tuple[int, ...], style: Style, rng: np.random.Generator
) -> Array:
    axis = kind.channel_axis if kind.channel_axis is not None else 1
    picture = _plain_picture(kind, shape, style, rng)
    record = kind.record
    if not isinstance(record, ImageInput):
        # Nothing says which range the model was trained on, so each style tries another one.
        if style == "standard":
            return (picture - 0.45) / 0.225
        return picture * 2.0 - 1.0 if style == "noise" else picture
    form = [1] * len(shape)
    form[axis] = -1
    channels = shape[axis]
    mean = np.resize(np.asarray(record.mean), channels).reshape(form)
    std = np.resize(np.asarray(record.std), channels).reshape(form)
    return np.asarray((np.rint(picture * 255.0) * record.scale - mean) / std)


def _picture(shape: tuple[int, ...], axis: int, style: Style, rng: np.random.Generator) -> Array:
    """Gradients, discs, hard edges and 1/f noise, 0..1, another image for each of the batch."""
    if style == "noise":
        return rng.random(shape)
    channels = shape[axis]
    height, width = (s for i, s in enumerate(shape[1:], 1) if i != axis)
    pictures = np.empty((shape[0], channels, height, width))
    for picture in pictures:
        _draw(picture, rng)
    return np.moveaxis(pictures, 1, axis)


def _draw(picture: Array, rng: np.random.Generator) -> None:
    channels, height, width = picture.shape
    y, x = np.meshgrid(np.linspace(0, 1, height), np.linspace(0, 1, width), indexing="ij")
    tint = rng.random((channels, 3))
    picture[:] = tint[:, 0, None, None] * x + tint[:, 1, None, None] * y
    for _ in range(6):
        colour = rng.random((channels, 1))
        centre_x, centre_y, radius = rng.random(), rng.random(), 0.05 + 0.2 * rng.random()
        disc = (x - centre_x) ** 2 + (y - centre_y) ** 2 < radius**2
        picture[:, disc] = colour
        left, top = rng.random(2) * 0.8
        box = (np.abs(x - left - 0.1) < 0.1) & (np.abs(y - top - 0.05) < 0.05)
        picture[:, box] = rng.random((channels, 1))
    _write(picture, rng)
    picture += 0.08 * _pink(height, width, rng)
    np.clip(picture, 0.0, 1.0, out=picture)


def _write(picture: Array, rng: np.random.Generator) -> None:
    """Write a few lines of strokes like print on a light panel, which text nets look for."""
    _, height, width = picture.shape
    size = max(1, min(height, width) // 100)
    tall, wide = 7 * size, 6 * size
    bottom, right = height - height // 8, width - width // 8
    if bottom - height // 2 < 2 * tall or right - width // 8 < 4 * wide:
        return
    picture[:, height // 2 : bottom, width // 8 : right] = 0.9
    for top in range(height // 2 + 2 * size, bottom - tall, 2 * tall):
        for left in range(width // 8 + 2 * size, right - wide, wide):
            if rng.random() < 0.15:
                continue
            strokes = np.kron(rng.random((7, 4)) < 0.5, np.ones((size, size), bool))
            cell = picture[:, top : top + tall, left : left + 4 * size]
            cell[:, strokes] = 0.1


def _pink(height: int, width: int, rng: np.random.Generator) -> Array:
    frequency = np.hypot(np.fft.fftfreq(height)[:, None], np.fft.rfftfreq(width)[None, :])
    spectrum = np.fft.rfft2(rng.standard_normal((height, width)))
    noise = np.fft.irfft2(
        spectrum / np.maximum(frequency, 1.0 / max(height, width)), (height, width)
    )
    return np.asarray(noise / (noise.std() or 1.0))


def _recording(kind: Kind, shape: tuple[int, ...], style: Style, rng: np.random.Generator) -> Array:
    """Voiced syllables with gliding pitch and pauses between them, -1..1."""
    if style == "noise":
        return 0.1 * rng.standard_normal(shape)
    axis = kind.time_axis if kind.time_axis is not None else len(shape) - 1
    rate = kind.record.sample_rate if isinstance(kind.record, AudioInput) else _DEFAULT_RATE
    length = shape[axis]
    rows = int(np.prod(shape)) // max(1, length)
    time = np.arange(length) / rate
    out = np.empty((rows, length))
    for row in out:
        pitch = 110 + 120 * rng.random() + 40 * np.sin(2 * np.pi * (1.5 * time + rng.random()))
        phase = 2 * np.pi * np.cumsum(pitch) / rate
        voice = sum(np.sin(h * phase + rng.random()) / h for h in range(1, 9))
        syllables = np.clip(np.sin(2 * np.pi * (3.1 * time + 0.25 + 0.2 * rng.random())), 0, 1)
        row[:] = 0.25 * syllables * voice + 0.002 * rng.standard_normal(length)
    moved = [s for i, s in enumerate(shape) if i != axis]
    return np.moveaxis(out.reshape(*moved, length), -1, axis)
