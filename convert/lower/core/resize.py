"""What ONNX's ``Resize`` means along each axis, worked out once for all targets.

A target writes what it is given: where each element comes from is in ``Taps``. The lowerings are
registered by ``resizes``, which reads the attributes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from typing import Any

import numpy as np
import onnx_ir as ir

from edgeinfer.convert.lower.core import resample
from edgeinfer.convert.lower.core.named import MalformedRefusal, named_axes
from edgeinfer.convert.lower.core.resample import F32, MOST_OF_AN_AXIS, How, Taps
from edgeinfer.convert.lower.registry import Const, Refusal, Registry
from edgeinfer.convert.lower.signature import of_schema, plain
from edgeinfer.records import dataclass
from edgeinfer.types import Array

Lowering = Callable[..., Any]
Entries = Callable[[Any, Any, Sequence[int]], Sequence[Any]]
"""Reads wanted sizes of axes: numbers, what the target has of a run's, or None of an axis that is
known to keep its size."""

_FLOATS = ("float", "bfloat")


@dataclass(frozen=True, slots=True)
class AxisResize:
    """One axis that is resized.

    Attributes:
        index: Index of the axis.
        size: Size of the input; None where it is dynamic.
        out: Size of the result: a number, what the target has of a run's, or None where it follows
            from a dynamic size and the scale.
        scale: The scale that the node gives; None where it is the ratio of the sizes.
        roi: Start and end of what is cropped, in normalised coordinates.
    """

    index: int
    size: int | None
    out: Any
    scale: float | None = None
    roi: tuple[float, float] = (0.0, 1.0)

    @property
    def known_out(self) -> int | None:
        """The size of the result, where it is a number."""
        return self.out if isinstance(self.out, int) else None

    @property
    def is_known(self) -> bool:
        """Whether both sizes are numbers."""
        return self.size is not None and self.known_out is not None

    @property
    def ratio(self) -> float:
        """The scale that coordinates are computed with; 0 where a run decides it."""
        if self.scale is not None:
            return self.scale
        if self.size is None or self.known_out is None:
            return 0.0
        return self.known_out / self.size if self.size else 0.0

    @property
    def stays(self) -> bool:
        """Whether each element is certain to stay where it is."""
        whole = self.roi == (0.0, 1.0)
        return whole and self.ratio == 1 and (self.size is None or self.out == self.size)

    @property
    def times(self) -> int | None:
        """The whole factor by which it grows; None where that is no whole one."""
        whole = self.ratio >= 1 and self.ratio == int(self.ratio)
        exact = not self.is_known or self.out == (self.size or 0) * int(self.ratio)
        return int(self.ratio) if whole and exact else None


@dataclass(frozen=True, slots=True)
class ResizePlan:
    """A ``Resize``.

    Attributes:
        how: Modes, and what else decides the weights.
        rank: Number of axes of the input.
        axes: Those along which something happens.
        filler: What stands where a crop lies beyond the input.
    """

    how: How
    rank: int
    axes: tuple[AxisResize, ...]
    filler: float = 0.0

    @property
    def crops(self) -> bool:
        """Whether a part of the input is resized, which may lie beyond it."""
        return self.how.transform == "tf_crop_and_resize"

    def taps(self, axis: AxisResize) -> Taps:
        """Sources and weights along one axis.

        Raises:
            Refusal: a run decides its size, or engines disagree.
        """
        out = axis.known_out
        if axis.size is not None and out is not None:
            return resample.taps(self.how, axis.size, out, axis.ratio, axis.roi)
        if self.how.mode == "nearest" and self.how.rounding.startswith("round"):
            words = f"nearest_mode {self.how.rounding!r} with a dynamic size"
            why = f"{words}: engines disagree on what lies halfway"
            raise Refusal(why, "dynamic_shape", "fix the sizes with --input-shape")
        words = f"mode {self.how.mode!r} with a dynamic size"
        raise Refusal(words, "dynamic_shape", "fix the sizes with --input-shape")

    def outside(self) -> Array | None:
        """Which elements take the filler, in a shape that broadcasts; None where none does."""
        mask = np.zeros((1,) * self.rank, np.bool_)
        for axis in self.axes if self.crops else ():
            form = [-1 if a == axis.index else 1 for a in range(self.rank)]
            mask = mask | self.taps(axis).outside.reshape(form)
        return mask if mask.any() else None


def is_ambiguous(size: int | None, out: int | None, scale: float | None) -> bool:
    """Whether engines disagree on where the corners are.

    The standard's reference divides by the exact product less one, ONNX Runtime by the size.
    """
    if scale is None:
        return False
    return scale != int(scale) if size is None else out != float(F32(scale) * F32(size))


def planned(
    shape: Sequence[Any], dtype: Any, operands: Sequence[Any], about: Mapping[str, Any]
) -> ResizePlan:
    """Read ONNX's attributes.

    Args:
        shape: Shape of the input.
        dtype: Its element type.
        operands: The regions and the scales as arrays, the wanted sizes as ``Entries`` gives them;
            None where there are none.
        about: Attributes by name, all of them.

    Raises:
        MalformedRefusal: the numbers have no meaning.
        Refusal: engines disagree on what they mean.
    """
    mode = about["mode"]
    if mode != "nearest" and not str(dtype).startswith(_FLOATS):
        raise Refusal(f"mode {mode!r} of {dtype}", "unsupported_dtype")
    how = How(
        mode,
        about["coordinate_transformation_mode"],
        about["nearest_mode"],
        about["cubic_coeff_a"],
        bool(about["exclude_outside"]),
        bool(about["antialias"]) and mode != "nearest",
    )
    have = [(a, s if isinstance(s, int) else None) for a, s in _named(shape, about["axes"])]
    roi, scales, sizes = operands
    spans = _spans(roi if how.transform == "tf_crop_and_resize" else None, len(have))
    axes = _axes(have, spans, scales, sizes, about["keep_aspect_ratio_policy"])
    for axis in axes:
        _check_sizes(axis)
    moving = tuple(axis for axis in axes if not axis.stays)
    found = ResizePlan(how, len(shape), moving, about["extrapolation_value"])
    corners = (is_ambiguous(a.size, a.known_out, a.scale) for a in found.axes)
    if how.transform in ("align_corners", "tf_crop_and_resize") and any(corners):
        words = f"{how.transform} with a scale that gives no whole size"
        raise Refusal(f"{words}: engines disagree", hint="give sizes instead of scales")
    return found


def _named(shape: Sequence[Any], axes: Sequence[int] | None) -> list[tuple[int, Any]]:
    rank = len(shape)
    return [(a, shape[a]) for a in named_axes(range(rank) if axes is None else axes, rank)]


def _spans(roi: Array | None, count: int) -> list[tuple[float, float]]:
    """Start and end of what is cropped, by axis."""
    if roi is None or not roi.size:
        return [(0.0, 1.0)] * count
    ends = _numbers("roi", roi, 2 * count)
    return list(zip(ends[:count], ends[count:], strict=True))


def _numbers(name: str, given: Array, count: int) -> list[float]:
    if given.size != count:
        raise MalformedRefusal(f"{name} of {given.size} numbers, where it takes {count}")
    found = [float(number) for number in given.ravel()]
    if not np.isfinite(found).all():
        raise MalformedRefusal(f"{name}={found}, which are not all finite")
    return found


def _factors(scales: Array, count: int) -> list[float]:
    found = _numbers("scales", scales, count)
    if min(found, default=1.0) <= 0:
        raise MalformedRefusal(f"scales={found}, which are not all above zero")
    return found


def _scaled(size: int, factor: float) -> int:
    """How many elements a scale leaves, in single precision as engines compute it."""
    with np.errstate(over="ignore"):
        return int(np.floor(min(F32(size) * F32(factor), F32(2**127))))


def _check_sizes(axis: AxisResize) -> None:
    out = axis.known_out
    if out is None or out == axis.size == 0:
        return
    if axis.size == 0 or not 0 < out <= MOST_OF_AN_AXIS:
        of = "" if axis.size is None else f" of {axis.size} elements"
        what = f"axis {axis.index}{of} gets {out}"
        raise MalformedRefusal(f"{what}, where it takes 1 to {MOST_OF_AN_AXIS}")


def _axes(
    have: Sequence[tuple[int, int | None]],
    spans: Sequence[tuple[float, float]],
    scales: Array | None,
    sizes: Sequence[Any] | None,
    policy: str,
) -> list[AxisResize]:
    if scales is not None and scales.size:
        factors = _factors(scales, len(have))
        rows = zip(have, factors, strict=True)
        outs = [None if size is None else _scaled(size, factor) for (_, size), factor in rows]
        scaled = zip(have, outs, factors, spans, strict=True)
        return [AxisResize(*own, out, factor, span) for own, out, factor, span in scaled]
    if sizes is None:
        raise MalformedRefusal("neither scales nor sizes")
    if len(sizes) != len(have):
        raise MalformedRefusal(f"{len(sizes)} sizes, where it takes {len(have)}")
    wanted = zip(have, sizes, spans, strict=True)
    moving = [AxisResize(*own, out, None, span) for own, out, span in wanted]
    if policy != "stretch":
        return _keeping_ratio(moving, policy)
    return [axis for axis in moving if axis.out is not None]


def _keeping_ratio(axes: Sequence[AxisResize], policy: str) -> list[AxisResize]:
    sizes = [a.size for a in axes if a.size is not None and a.is_known]
    if len(sizes) < len(axes):
        _keep_no_ratio(policy)
    for axis in axes:
        _check_sizes(axis)
    if 0 in sizes:
        raise MalformedRefusal("an axis without elements has no ratio to keep")
    factors = [F32(a.out) / F32(size) for a, size in zip(axes, sizes, strict=True)]
    scale = min(factors) if policy == "not_larger" else max(factors)
    outs = [int(np.floor(scale * F32(size) + F32(0.5))) for size in sizes]
    rows = zip(axes, outs, strict=True)
    return [AxisResize(a.index, a.size, out, float(scale), a.roi) for a, out in rows]


def resizes(
    ops: Registry, *, entries: Entries | None = None, domain: str = "", **about: Any
) -> Callable[[Lowering], Lowering]:
    """Register ``Resize``: it takes the builder, the tensor and what is done.

    Args:
        ops: The target's table.
        entries: Reads wanted sizes that are not constant; without it they must be.
        domain: Domain of the entry.
        **about: Element types of the entry.
    """
    signature = of_schema("Resize")

    def register(body: Lowering) -> Lowering:
        @wraps(body)
        def lowered(
            g: Any,
            x: Any,
            roi: Const | None = None,
            scales: Const | None = None,
            sizes: Any = None,
            **given: Any,
        ) -> Any:
            wanted: Sequence[Any] | None = _known(sizes)
            if wanted is None and sizes is not None and entries is not None:
                _keep_no_ratio(given["keep_aspect_ratio_policy"])
                wanted = entries(g, sizes, [a for a, _ in _named(x.shape, given["axes"])])
            known = [None if c is None else c.array for c in (roi, scales)]
            return body(g, x, planned(x.shape, x.dtype, [*known, wanted], given))

        consts = {"roi", "scales", *(() if entries else ("sizes",))}
        ops.add("Resize", lowered, signature, signature.attributes, consts, domain=domain, **about)
        return body

    return register


def _known(sizes: Any) -> list[int] | None:
    """Return wanted sizes that are constant; without any there are none."""
    data = sizes.array if isinstance(sizes, Const) else None if sizes is None else sizes.data
    return None if data is None or not data.size else [int(s) for s in data.ravel()]


def _keep_no_ratio(policy: str) -> None:
    if policy != "stretch":
        raise Refusal("sizes must be known to keep their ratio", "dynamic_shape")


def of_node(node: ir.Node) -> ResizePlan | None:
    """Plan a node of a graph; None where a run decides what it does.

    Raises:
        Refusal: as ``planned``.
    """
    x, after = node.inputs[0], node.outputs[0].shape
    roi, scales, sizes = [*node.inputs[1:], None, None, None][:3]
    if x is None or x.shape is None or x.dtype is None:
        return None
    about = dict(of_schema("Resize").attributes)
    about |= {name: plain(a) for name, a in node.attributes.items()}
    axes = [a for a, _ in _named(list(x.shape), about["axes"])]
    tensors = [None if v is None else v.const_value for v in (roi, scales)]
    if any(v is not None and t is None for v, t in zip((roi, scales), tensors, strict=True)):
        return None
    known = [None if t is None else t.numpy() for t in tensors]
    wanted = None
    if sizes is not None and sizes.const_value is not None:
        wanted = sizes.const_value.numpy().tolist() or None
    elif sizes is not None and after is not None:
        _keep_no_ratio(about["keep_aspect_ratio_policy"])
        wanted = [after[a] for a in axes]
    found = planned(list(x.shape), x.dtype.numpy(), [*known, wanted], about)
    return found if all(axis.is_known for axis in found.axes) else None
