"""What an input holds: declared, seen in data, inferred from the graph or a name, or not known."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
import onnx_ir as ir

from edgeinfer.convert.verify.bounds import InputBounds, Span, bounds_of
from edgeinfer.convert.verify.kinds import POSITIVE, Kind
from edgeinfer.convert.verify.ladder import LARGEST, REACH
from edgeinfer.convert.verify.sizes import Shapes
from edgeinfer.errors import EdgeInferError
from edgeinfer.records import dataclass
from edgeinfer.types import (
    Array,
    Feeds,
    ImageInput,
    InputRange,
    NoiseInput,
    Preprocessing,
    RangeSource,
    TensorSpec,
)

Declared = Mapping[str, tuple[float, float]]
"""Lowest and highest value by input name, as somebody said."""

USUAL_MOST = 99
"""What made-up integers reach where nothing bounds them: small enough for any byte or class table
that the graph may compute from them."""


@dataclass(frozen=True, slots=True)
class Allowed:
    """What one input may hold in a made-up vector.

    Attributes:
        span: Span of each element, or of all.
        source: who says so.
    """

    span: Span
    source: RangeSource


class Ranges:
    """Tells what each input may hold at given sizes."""

    def __init__(
        self,
        model: ir.Model,
        inputs: Sequence[TensorSpec],
        kinds: Mapping[str, Kind],
        declared: Declared | None = None,
    ) -> None:
        """Store what is declared.

        Args:
            model: the source as read.
            inputs: Inputs of the model.
            kinds: what they are, by name.
            declared: by the user.
        """
        self._model, self._inputs, self._kinds = model, inputs, kinds
        self._declared = dict(declared or {})
        self._seen: dict[str, tuple[float, float]] = {}
        whole = [s for s in inputs if s.dtype.startswith(("int", "uint"))]
        # What floats are divided by, say, hangs on no size; what integers index does.
        self._by_size = any(kinds[s.name].name not in ("mask", "sample_rate") for s in whole)
        self._known: dict[tuple[tuple[int, ...], ...], dict[str, InputBounds]] = {}
        self.notes: list[str] = []

    def see(self, data: Sequence[Feeds]) -> None:
        """Record real inputs: made-up ones lie where these do."""
        found = {s.name: _seen(data, s.name) for s in self._inputs}
        self._seen = {name: ends for name, ends in found.items() if ends is not None}
        self._known.clear()

    def at(self, shapes: Shapes) -> dict[str, Allowed]:
        """Return what inputs may hold, by name; one of which nothing is known is left out."""
        bounds = self._bounds(shapes)
        return {s.name: a for s in self._inputs if (a := self._one(s, bounds, shapes)) is not None}

    def _one(
        self, spec: TensorSpec, bounds: Mapping[str, InputBounds], shapes: Shapes
    ) -> Allowed | None:
        name = spec.name
        if name in self._declared:
            return Allowed(Span.of(*self._declared[name]), "declared")
        asked = bounds.get(name)
        if name in self._seen:
            span = Span.of(*self._seen[name])
            both = span if asked is None else span.meet(asked.hard)
            return Allowed(span if both.is_empty else both, "data")
        if self._kinds[name].record is not None:
            return None
        if asked is not None and not asked.span.is_open:
            return Allowed(asked.span, "graph")
        if self._kinds[name].name == "length":
            others = [shapes[s.name] for s in self._inputs if s.name != name]
            longest = max((d for shape in others for d in shape[1:]), default=1)
            return Allowed(Span.of(1, longest), "name")
        return None

    def _bounds(self, shapes: Shapes) -> dict[str, InputBounds]:
        key = tuple(shapes[s.name] for s in self._inputs) if self._by_size else ()
        if key not in self._known:
            known = {**self._seen, **self._declared}
            try:
                self._known[key] = bounds_of(self._model, shapes, known)
            # onnx and onnx_ir raise what they happen to meet; the model may run all the same.
            except (EdgeInferError, ValueError, TypeError, RuntimeError) as e:
                self._known[key] = {}
                self.notes.append(f"what operators need of inputs was not derived: {e}"[:300])
        return self._known[key]

    def recorded(self, shapes: Shapes) -> dict[str, InputRange]:
        """Return what float inputs lie between, with who says so: what a bundle records.

        Where nobody does, it is what such an input may hold at all.
        """
        known, found = self.at(shapes), {}
        for spec in self._inputs:
            kind = self._kinds[spec.name]
            if not spec.dtype.startswith(("float", "bfloat")) or kind.name == "mask":
                continue
            one = known.get(spec.name)
            if kind.record is not None and (one is None or one.source == "graph"):
                found[spec.name] = _prepared(kind.record)
            elif one is not None and math.isfinite(one.span.least + one.span.most):
                found[spec.name] = InputRange(one.span.least, one.span.most, one.source)
            else:
                most = REACH.get(kind.name, LARGEST)
                positive = kind.name in POSITIVE or (one is not None and one.span.least >= 0)
                low = 0.0 if positive else -most
                found[spec.name] = InputRange(low, most, "guess")
        return found


_FARTHEST = 8.0
"""Deviations beyond which no draw of a normal distribution is ever seen."""


def _prepared(record: Preprocessing) -> InputRange:
    """Return what a record of images, audio or noise gives."""
    if isinstance(record, NoiseInput):
        return InputRange(-_FARTHEST * record.scale, _FARTHEST * record.scale, "declared")
    if not isinstance(record, ImageInput):
        return InputRange(-1.0, 1.0, "declared")
    mean, std = np.asarray(record.mean), np.asarray(record.std)
    ends = np.stack([-mean / std, (255.0 * record.scale - mean) / std])
    return InputRange(float(ends.min()), float(ends.max()), "declared")


def _seen(data: Sequence[Feeds], name: str) -> tuple[float, float] | None:
    """Return the lowest and highest finite value that data holds of an input."""
    arrays = [np.asarray(d[name]) for d in data if name in d]
    numbers = [a.astype(np.float64) for a in arrays if a.dtype.kind in "iuf" and a.size]
    finite = [a[np.isfinite(a)] for a in numbers]
    if not any(a.size for a in finite):
        return None
    return min(float(a.min()) for a in finite if a.size), max(
        float(a.max()) for a in finite if a.size
    )


def whole_ends(
    span: Span | None, dtype: np.dtype, most: int = USUAL_MOST, *, signed: bool = False
) -> tuple[Array, Array]:
    """Return lowest and highest integers to draw, from zero on where that is possible.

    Args:
        span: what is allowed; None where nothing is known.
        dtype: that has to hold them.
        most: how far to go where there is no end.
        signed: a lowest value below zero is one that comes.
    """
    low, high = (span.low, span.high) if span is not None else (np.asarray(-np.inf),) * 2
    if span is None:
        high = np.asarray(np.inf)
    info = np.iinfo(dtype)
    from_zero = (high >= 0) & (np.isneginf(low) if signed else True)
    low = np.where(from_zero, np.maximum(low, 0), np.where(np.isneginf(low), high - most, low))
    high = np.where(np.isposinf(high), np.maximum(low, 0) + most, high)
    held = np.clip(np.ceil(low), info.min, info.max), np.clip(np.floor(high), info.min, info.max)
    return held[0], np.maximum(held[0], held[1])


def fitting(span: Span, shape: Sequence[int]) -> Span:
    """Return a span whose arrays broadcast to a shape."""
    try:
        np.broadcast_to(span.low, shape)
        np.broadcast_to(span.high, shape)
    except ValueError:
        return span.hull()
    return span
