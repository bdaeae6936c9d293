"""Write the padding of windows as numbers, wherever no run can change them."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import onnx_ir as ir

from edgeinfer.convert.passes.infra import PassOutcome, all_nodes, attr, input_at, is_op, outcome
from edgeinfer.numerics.windows import extent, same
from edgeinfer.records import dataclass

_POOLS = ("AveragePool", "LpPool", "MaxPool")
_FILTERS = {"Conv": 1, "ConvInteger": 1, "ConvTranspose": 1, "QLinearConv": 3}
"""Operators with a filter, and which input it is."""

_AUTOMATIC = ("SAME_UPPER", "SAME_LOWER", "VALID")


class SettlePadding(ir.passes.InPlacePass):
    """Write ``auto_pad``, ``ceil_mode`` and ``output_shape`` as ``pads``.

    Given: ``y = MaxPool<kernel_shape=[3], auto_pad="SAME_UPPER", ceil_mode=1>(float[N,8,L] x)``
    Result: ``y = MaxPool<kernel_shape=[3], pads=[1, 1]>(x)``

    Engines read the automatic forms each in its own way: OpenVINO crops no transposed convolution
    of an open size and counts windows behind the input with ``ceil_mode``, ONNX Runtime forgets the
    dilation of a pool. Where an axis has an open size and a stride, SAME stays, without
    ``ceil_mode``, which does not change its size.
    """

    def call(self, model: ir.Model) -> PassOutcome:
        """Settle every node, subgraphs included."""
        return outcome(model, sum(_settle(node) for node in all_nodes(model)))


@dataclass(frozen=True, slots=True)
class _Axis:
    """A spatial axis.

    Attributes:
        size: Elements of the input; None where it is open.
        kernel: Taps.
        stride: Elements between windows.
        dilation: Elements between taps.
        begin: Padding before the input, as given.
        end: Padding behind the input, as given.
        extra: ``output_padding`` of a transposed convolution.
        wanted: ``output_shape`` of a transposed convolution; None without one.
    """

    size: int | None
    kernel: int
    stride: int
    dilation: int
    begin: int
    end: int
    extra: int
    wanted: int | None

    @property
    def reach(self) -> int:
        """Elements that the taps span."""
        return extent(self.kernel, self.dilation)


_Padding = tuple[int, int, int]
"""Before, behind, and a transposed convolution's ``output_padding``."""


def _settle(node: ir.Node) -> bool:
    if is_op(node, "ConvTranspose"):
        asked = attr(node, "output_shape") or attr(node, "auto_pad", "NOTSET") in _AUTOMATIC
        return bool(asked) and _write(node, _transposed, "auto_pad", "output_shape")
    if not is_op(node, *_POOLS, *_FILTERS):
        return False
    changed = False
    if attr(node, "auto_pad", "NOTSET") in _AUTOMATIC:
        # Of SAME there are as many windows either way.
        if attr(node, "auto_pad") != "VALID" and "ceil_mode" in node.attributes:
            changed = node.attributes.pop("ceil_mode").as_int() == 1
        changed |= _write(node, _automatic, "auto_pad")
    if attr(node, "auto_pad", "NOTSET") not in _AUTOMATIC and not any(attr(node, "pads", ())):
        # Of no padding none counts; engines count what rounding up adds.
        changed |= node.attributes.pop("count_include_pad", None) is not None
    if attr(node, "ceil_mode", 0) and attr(node, "auto_pad", "NOTSET") not in _AUTOMATIC:
        changed |= _write(node, _rounded_up, "ceil_mode")
    return changed


def _write(node: ir.Node, settle: Callable[[ir.Node, _Axis], _Padding | None], *old: str) -> bool:
    """Write the padding of all axes in place of other attributes, where each is settled."""
    found = [settle(node, axis) for axis in _axes(node)]
    known = [p for p in found if p is not None]
    if not known or len(known) < len(found):
        return False
    begins, ends, extra = (list(part) for part in zip(*known, strict=True))
    kernel = attr(node, "kernel_shape", ())
    if node.op_type in _POOLS and any(
        p >= k for p, k in zip(begins + ends, kernel * 2, strict=True)
    ):
        # As engines ask of pools.
        return False
    for name in old:
        node.attributes.pop(name, None)
    node.attributes["pads"] = ir.AttrInt64s("pads", begins + ends)
    if any(extra):
        node.attributes["output_padding"] = ir.AttrInt64s("output_padding", extra)
    return True


def _axes(node: ir.Node) -> Iterator[_Axis]:
    """Yield the spatial axes; none where their number or the kernel is not known."""
    weight = input_at(node, _FILTERS.get(node.op_type, 0))
    taps = None if weight is None or weight.shape is None else weight.shape[2:]
    kernel = attr(node, "kernel_shape") or (taps if node.op_type in _FILTERS else ()) or ()
    n = len(kernel)
    x = input_at(node, 0)
    sizes = (None,) * n if x is None or x.shape is None else x.shape[2:]
    if len(sizes) != n or not all(isinstance(k, int) for k in kernel):
        return
    ones = (1,) * n
    strides, dilations = attr(node, "strides") or ones, attr(node, "dilations") or ones
    extra, pads = attr(node, "output_padding") or (0,) * n, attr(node, "pads") or (0,) * (2 * n)
    wanted = attr(node, "output_shape") or (None,) * n
    rows = zip(
        sizes, kernel, strides, dilations, pads[:n], pads[n:], extra, wanted[-n:], strict=True
    )
    for size, *row in rows:
        yield _Axis(size if isinstance(size, int) else None, *row)


def _automatic(node: ir.Node, axis: _Axis) -> _Padding | None:
    if attr(node, "auto_pad") == "VALID":
        return 0, 0, 0
    size = 1 if axis.stride == 1 else axis.size
    if size is None:
        return None
    lower = attr(node, "auto_pad") == "SAME_LOWER"
    return *same(size, axis.reach, axis.stride, lower=lower), 0


def _rounded_up(node: ir.Node, axis: _Axis) -> _Padding | None:
    """Return the padding with which rounding down gives as many windows."""
    if axis.size is None:
        return None
    data = axis.size + axis.begin
    last = -(-(data + axis.end - axis.reach) // axis.stride) * axis.stride
    if last >= data:
        last -= axis.stride
    least = max(last + axis.reach - data, 0)
    if least <= axis.end < last + axis.reach - data + axis.stride:
        least = axis.end
    # What rounding up adds is no padding, which a mean over all padding tells apart.
    counts = is_op(node, "AveragePool") and attr(node, "count_include_pad", 0)
    return None if counts and least != axis.end else (axis.begin, least, 0)


def _transposed(node: ir.Node, axis: _Axis) -> _Padding | None:
    """Return what is cut from ``(size - 1) * stride + reach + extra`` elements."""
    mode = attr(node, "auto_pad", "NOTSET")
    if axis.wanted is None and mode == "VALID":
        return 0, 0, axis.extra
    total = axis.reach - axis.stride + axis.extra
    if axis.wanted is not None:
        if axis.size is None:
            return None
        total += axis.size * axis.stride - axis.wanted
    if total < 0:
        # Zeros at the end, which ONNX allows for less than a stride; engines differ for SAME.
        missing = axis.extra - total
        fits = axis.wanted is not None and missing < max(axis.stride, axis.dilation)
        return (0, 0, missing) if fits else None
    less, more = total // 2, total - total // 2
    return (less, more, axis.extra) if mode == "SAME_UPPER" else (more, less, axis.extra)
