"""When an operator meets a fault of OpenVINO: each answers with the fault, or nothing."""

from __future__ import annotations

import onnx_ir as ir

from edgeinfer.convert.lower import digits
from edgeinfer.convert.lower.openvino import whole_numbers as whole
from edgeinfer.convert.lower.openvino.pooling import overhangs
from edgeinfer.convert.lower.openvino.rewrites import SETTLED
from edgeinfer.convert.lower.resizes import copied
from edgeinfer.convert.lower.rules import attribute, given
from edgeinfer.convert.passes.infra import constant

_SIGNED = frozenset({ir.DataType.INT8, ir.DataType.INT16, ir.DataType.INT32, ir.DataType.INT64})
_FLOATS = frozenset({ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.BFLOAT16})
_WINDOWS = ("left_window_size", "right_window_size")


def rounded_quotient(node: ir.Node) -> str:
    """Find remainders of floats."""
    return "a remainder of a rounded quotient" if digits.floats(node) else ""


def window(node: ir.Node) -> str:
    """Find attention that looks at a window of keys."""
    sizes = [attribute(node, name, -1) for name in _WINDOWS]
    return "the attention window is ignored" if any(s != -1 for s in sizes) else ""


def signed_shift(node: ir.Node) -> str:
    """Find shifts of signed integers."""
    x = given(node, 0)
    signed = x is not None and x.dtype in _SIGNED and whole.SETTLED not in node.meta
    return "shifts of signed integers are computed otherwise" if signed else ""


def unseen_sizes(node: ir.Node) -> str:
    """Find expansions to sizes of a run."""
    x, sizes = given(node, 0), given(node, 1)
    if x is None or sizes is None or x.shape is None or sizes.const_value is not None:
        return ""
    if not all(isinstance(d, int) and d > 1 for d in x.shape):
        return ""
    if sizes.shape is None or len(sizes.shape) != 1 or sizes.shape[0] != len(x.shape):
        return ""
    return "an expansion that seems to keep the shape is taken out, whatever sizes a run gives"


def peepholes(node: ir.Node) -> str:
    """Find an LSTM with peepholes."""
    if given(node, 7) is not None:
        return "peephole weights are ignored"
    return "input_forget is ignored" if attribute(node, "input_forget", 0) else ""


def other_functions(node: ir.Node) -> str:
    """Find a recurrent operator with functions that the plugin has no cell for."""
    named = attribute(node, "activations", ())
    names = {str(name) for name in named} if isinstance(named, (list, tuple)) else set()
    other = sorted(name for name in names if name.lower() not in ("sigmoid", "tanh", "relu"))
    return f"no cell with {' and '.join(other)}" if other else ""


def resize(node: ir.Node) -> str:
    """Find forms of Resize that are ignored or refused."""
    if attribute(node, "exclude_outside", 0):
        return "exclude_outside is ignored"
    if attribute(node, "antialias", 0):
        return "antialias is computed otherwise"
    transform = attribute(node, "coordinate_transformation_mode", "half_pixel")
    if transform in ("half_pixel_symmetric", "tf_crop_and_resize"):
        return f"{transform} is not read"
    policy = attribute(node, "keep_aspect_ratio_policy", "stretch")
    return copied(node) if policy == "stretch" else f"keep_aspect_ratio_policy={policy} is ignored"


def roi_max(node: ir.Node) -> str:
    """Find regions of which the largest sample is taken."""
    return "mode=max is computed otherwise" if attribute(node, "mode", "avg") == "max" else ""


def no_area(node: ir.Node) -> str:
    """Find regions that may have no area."""
    adaptive = attribute(node, "sampling_ratio", 0) == 0 and SETTLED not in node.meta
    mode = attribute(node, "coordinate_transformation_mode", "half_pixel")
    return "a region without area gives NaN" if adaptive and mode == "half_pixel" else ""


def crd(node: ir.Node) -> str:
    """Find blocks whose elements lie by columns first."""
    return "mode=CRD is ignored" if attribute(node, "mode", "DCR") == "CRD" else ""


def transform(node: ir.Node) -> str:
    """Find forms of DFT that are computed otherwise."""
    if attribute(node, "onesided", 0):
        return "onesided gives another shape"
    axis, x = given(node, 2), given(node, 0)
    if x is None or x.shape is None:
        return "the axis is not known without the rank"
    known = axis is None or axis.const_value is not None
    place = -2 if axis is None or axis.const_value is None else int(axis.const_value.numpy())
    # The reader takes the first axis after the batch, whatever is requested.
    return "" if known and place % len(x.shape) == 1 else "the axis is ignored"


def frame_length(node: ir.Node) -> str:
    """Find an STFT whose window alone gives the length."""
    window = given(node, 2)
    if window is None or given(node, 3) is not None:
        return ""
    return "the window is not taken without its length"


def extreme(node: ir.Node) -> str:
    """Find extremes that may be infinite."""
    x = given(node, 0)
    if x is None or x.dtype not in _FLOATS or SETTLED in node.meta:
        return ""
    empty = x.shape is not None and 0 in tuple(x.shape) and node.op_type == "ReduceMax"
    looked_at = any(_looks_for_infinity(user) for user, _ in node.outputs[0].uses())
    return "an infinite extreme becomes a finite number" if empty or looked_at else ""


def _looks_for_infinity(node: ir.Node) -> bool:
    if node.op_type in ("Cast", "CastLike", "Identity", "Unsqueeze", "Squeeze", "Reshape"):
        return any(_looks_for_infinity(user) for user, _ in node.outputs[0].uses())
    return node.op_type in ("Equal", "IsInf")


def repeats(node: ir.Node) -> str:
    """Find a Tile whose repeats are not known, or of four and more axes with an open size."""
    value, x = given(node, 1), given(node, 0)
    if x is None or (x.shape is not None and len(x.shape) < 3):
        return ""
    if value is None or value.const_value is None:
        return "repeats that are not known give unwritten memory"
    is_open = x.shape is None or not x.shape.is_static()
    if not is_open or (x.shape is not None and len(x.shape) < 4):
        return ""
    repeated = bool((value.const_value.numpy() != 1).any())
    return "repeats along axes of one element are put in another order" if repeated else ""


def skipped_slice(node: ir.Node) -> str:
    """Find positions in what is the start of a tensor along another axis."""
    x, axis = given(node, 0), int(str(attribute(node, "axis", 0)))
    cut = x.producer() if x is not None else None
    if x is None or cut is None or cut.op_type != "Slice":
        return ""
    starts, steps = (constant(given(cut, i)) for i in (1, 4))
    if starts is None or starts.numpy().any():
        return ""
    if given(cut, 4) is not None and (steps is None or (steps.numpy() != 1).any()):
        return ""
    axes = constant(given(cut, 3))
    rank = len(x.shape) if x.shape is not None else 0
    along = {0} if axes is None or not rank else {int(a) % rank for a in axes.numpy().ravel()}
    only = bool(rank) and axes is not None and along == {axis % rank}
    return "" if only else "the slice before it is left out"


def to_bool(node: ir.Node) -> str:
    """Find floats that are cast to truth values."""
    x = given(node, 0)
    to_bool = attribute(node, "to", 0) == ir.DataType.BOOL.value
    return "NaN becomes false" if to_bool and x is not None and x.dtype in _FLOATS else ""


def condition(node: ir.Node) -> str:
    """Find a condition with several axes."""
    value = given(node, 0)
    wide = value is not None and value.shape is not None and len(value.shape) > 1
    return "a condition with several axes is not taken" if wide else ""


def squeeze(node: ir.Node) -> str:
    """Find squeezed axes of dynamic size."""
    x, axes = given(node, 0), given(node, 1)
    if x is None or x.shape is None or axes is None or axes.const_value is None:
        return ""
    rank = len(x.shape)
    sizes = [x.shape[int(a) % rank] for a in axes.const_value.numpy().ravel()]
    open_size = any(not isinstance(size, int) for size in sizes)
    return "an axis that is not 1 is squeezed all the same" if open_size else ""


def open_rank(node: ir.Node) -> str:
    """Find squeezes whose result has a rank of the run."""
    x = given(node, 0)
    if given(node, 1) is not None or x is None or x.shape is None:
        return ""
    # With an axis left for certain, the plugin compiles it and the gate judges the numbers.
    open_sizes = [size for size in x.shape if not isinstance(size, int)]
    left = any(isinstance(size, int) and size != 1 for size in x.shape)
    if not open_sizes or left:
        return ""
    return "whether an axis is left depends on the sizes, and ranks are fixed"


def unsorted_whole(node: ir.Node) -> str:
    """Find repeated values in the order of appearance."""
    whole = "axis" not in node.attributes and not attribute(node, "sorted", 1)
    return "of repeated values the wrong ones are left out" if whole else ""


def nearest(node: ir.Node) -> str:
    """Find nearest neighbours that are rounded otherwise."""
    nearest = attribute(node, "mode", "nearest") == "nearest"
    mode = attribute(node, "nearest_mode", "round_prefer_floor")
    tie = nearest and mode == "round_prefer_ceil"
    return "nearest_mode=round_prefer_ceil misses ties" if tie else ""


_ROWS = 3
"""Axes of what loses its last one in a way that confuses the plugin."""


def last_of_three(node: ir.Node) -> str:
    """A reduction of the last of three axes before something with a value for each column.

    The plugin fuses the two and takes the value of the row: y[0, 1] gets c[0].
    """
    x, axes = given(node, 0), given(node, 1)
    if attribute(node, "keepdims", 1) or x is None or x.shape is None or axes is None:
        return ""
    last = axes.const_value is not None and axes.const_value.numpy().ravel().tolist() in ([-1], [2])
    return (
        "fused with what follows it the columns are taken for rows"
        if (len(x.shape) == _ROWS and last and _meets_columns(node.outputs[0]))
        else ""
    )


def _meets_columns(value: ir.Value) -> bool:
    """Whether, after operators of one operand, a constant of several elements comes in."""
    waiting, seen = [value], {value}
    while waiting:
        for user, _ in waiting.pop().uses():
            others = [v for v in user.inputs if v is not None and v.const_value is not None]
            if len(user.outputs) != 1 or user.domain:
                continue
            if any(v.const_value is not None and v.const_value.size > 1 for v in others):
                return True
            if user.outputs[0] not in seen and len(user.inputs) - len(others) == 1:
                seen.add(user.outputs[0])
                waiting.append(user.outputs[0])
    return False


def max_overhang(node: ir.Node) -> str:
    """Whether ``ceil_mode`` adds a window that starts behind the input and its left padding."""
    for axis in overhangs(node):
        if axis.starts_behind is None:
            return "ceil_mode may add a window of padding only, and the size is not known"
        if axis.starts_behind:
            return "ceil_mode adds a window of padding only"
    return ""


def open_output(node: ir.Node) -> str:
    """Whether passes left an ``output_shape``, for want of sizes."""
    given_shape = attribute(node, "output_shape", ())
    return "output_shape of an open size is cropped at the wrong end" if given_shape else ""


def average_overhang(node: ir.Node) -> str:
    """Find means whose windows lie beyond the padding."""
    if not attribute(node, "count_include_pad", 0):
        return ""
    if any(a.overhangs is not False and not a.starts_behind for a in overhangs(node)):
        return "what ceil_mode adds is counted as padding"
    return ""
