"""Forms that OpenVINO's CPU plugin computes right where it gets the plain operator wrong."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from edgeinfer.convert.lower.faults import builder
from edgeinfer.convert.lower.rules import attribute, given
from edgeinfer.convert.passes.infra import Namer


def tile_by_expand(model: ir.Model, node: ir.Node) -> bool:
    """Repeat by broadcasting.

    Given::

        y = Tile(x, repeats)

    Result, for two axes::

        s = Shape(x)
        e = Expand(Reshape(x, [1, s0, 1, s1]), [r0, s0, r1, s1])
        y = Reshape(e, Mul(s, repeats))
    """
    x, repeats = given(node, 0), given(node, 1)
    if x is None or repeats is None or x.shape is None or len(x.shape) == 0:
        return False
    rank = len(x.shape)
    build = builder(model, node)
    shape = build.op("Shape", x)
    last = build.const(np.asarray([1], np.int64), "last")
    flat = build.const(np.asarray([-1], np.int64), "flat")
    ones = build.const(np.ones(rank, np.int64), "ones")

    def pairs(left: ir.Value) -> ir.Value:
        sides = (build.op("Unsqueeze", v, last) for v in (left, shape))
        return build.op("Reshape", build.op("Concat", *sides, axis=1), flat)

    spread = build.op("Expand", build.op("Reshape", x, pairs(ones)), pairs(repeats))
    build.op("Reshape", spread, build.op("Mul", shape, repeats))
    build.commit(model.graph, node)
    return True


def compress_flat(model: ir.Model, node: ir.Node) -> bool:
    """Choose among the elements along an axis of their own.

    Given: ``y = Compress(x, c)``
    Result: ``y = Compress<axis=0>(Reshape(x, [-1]), c)``
    """
    build = builder(model, node)
    flat = build.op("Reshape", node.inputs[0], build.const(np.asarray([-1], np.int64), "flat"))
    build.op("Compress", flat, node.inputs[1], axis=0)
    build.commit(model.graph, node)
    return True


def unique_along(model: ir.Model, node: ir.Node) -> bool:
    """Choose among the elements along an axis of their own.

    Given: ``y, i, v, c = Unique<sorted=0>(x)``
    Result: ``y, i, v, c = Unique<axis=0, sorted=0>(Reshape(x, [-1]))``
    """
    x, graph = given(node, 0), node.graph
    if x is None or graph is None:
        return False
    name = Namer(model).fresh
    last = ir.Value(
        name=name("flat"),
        type=ir.TensorType(ir.DataType.INT64),
        shape=ir.Shape([1]),
        const_value=ir.tensor(np.asarray([-1], np.int64)),
    )
    model.graph.register_initializer(last)
    flat = ir.Node("", "Reshape", [x, last])
    flat.outputs[0].name, flat.outputs[0].type = name("elements"), x.type
    graph.insert_before(node, flat)
    node.replace_input_with(0, flat.outputs[0])
    node.attributes["axis"] = ir.AttrInt64("axis", 0)
    return True


def narrower_axes(node: ir.Node) -> list[int]:
    """Axes along which a GatherElements has fewer positions than its data has elements.

    Two sizes that are both open count as equal.
    """
    x, indices = given(node, 0), given(node, 1)
    if x is None or indices is None or x.shape is None or indices.shape is None:
        return []
    axis = int(str(attribute(node, "axis", 0))) % len(x.shape)
    pairs = enumerate(zip(x.shape, indices.shape, strict=True))
    return [a for a, (n, m) in pairs if a != axis and n != m and int in (type(n), type(m))]


def gather_from_a_part(model: ir.Model, node: ir.Node) -> bool:
    """Cut the data to the positions' sizes, except along the axis that is gathered.

    Not by Slice, which OpenVINO removes there.

    Given: ``y = GatherElements<axis=0>(x, i)``, x of [3, 5] and i of [2, 2]
    Result: ``y = GatherElements<axis=0>(Gather<axis=1>(x, Range(0, 2, 1)), i)``
    """
    x, indices, axes = given(node, 0), given(node, 1), narrower_axes(node)
    if x is None or indices is None or not axes:
        return False
    build = builder(model, node)
    zero, one = (build.const(np.asarray(v, np.int64), n) for v, n in ((0, "zero"), (1, "one")))
    sizes = build.op("Shape", indices)
    for axis in axes:
        size = build.op("Gather", sizes, build.const(np.asarray(axis, np.int64), "place"))
        x = build.op("Gather", x, build.op("Range", zero, size, one), axis=axis)
    build.op("GatherElements", x, indices, axis=int(str(attribute(node, "axis", 0))))
    build.commit(model.graph, node)
    return True


def gather_from_a_copy(model: ir.Model, node: ir.Node) -> bool:
    """Read all of the last axis before positions are looked up: what is between, OpenVINO keeps.

    Given: ``y = GatherElements(Slice(x, [0], end), i)``
    Result: ``y = GatherElements(Gather<axis=-1>(s, Range(0, Shape<start=-1>(s), 1)), i)``
    """
    cut, indices = given(node, 0), given(node, 1)
    if cut is None or indices is None:
        return False
    build = builder(model, node)
    zero, one, none = (
        build.const(np.asarray(v, np.int64), n)
        for v, n in ((0, "zero"), (1, "one"), ([], "scalar"))
    )
    size = build.op("Reshape", build.op("Shape", cut, start=-1), none)
    whole = build.op("Gather", cut, build.op("Range", zero, size, one), axis=-1)
    build.op("GatherElements", whole, indices, axis=int(str(attribute(node, "axis", 0))))
    build.commit(model.graph, node)
    return True


def normalised_sizes(node: ir.Node) -> list[int] | None:
    """Return the sizes of the axes that a LayerNormalization normalises; None if not all known."""
    x = given(node, 0)
    if x is None or x.shape is None:
        return None
    sizes = list(x.shape)[int(str(attribute(node, "axis", -1))) :]
    known = [d for d in sizes if isinstance(d, int)]
    return known if len(known) == len(sizes) else None


def narrow_scale(node: ir.Node) -> str:
    """Say what goes wrong: the reader flattens a scale that broadcasts to the axes normalised."""
    sizes = normalised_sizes(node)
    shapes = [v.shape for v in node.inputs[1:3] if v is not None and v.shape is not None]
    narrow = sizes is not None and any(list(shape) != sizes for shape in shapes)
    return "a scale or a bias of fewer elements than are normalised" if narrow else ""


def widen_scale(model: ir.Model, node: ir.Node) -> bool:
    """Give LayerNormalization a scale and a bias of all the axes that it normalises.

    Given: ``y = LayerNormalization<axis=1>(x, s, b)``
    Result: ``y = LayerNormalization<axis=1>(x, Expand(s, sizes), Expand(b, sizes))``
    """
    sizes = normalised_sizes(node)
    if sizes is None:
        return False
    build = builder(model, node)
    ends = build.const(np.array(sizes, np.int64), "sizes")
    wide = [v if v is None else build.op("Expand", v, ends) for v in node.inputs[1:3]]
    for value, old in zip(wide, node.inputs[1:3], strict=True):
        if value is not None and old is not None:
            value.type, value.shape = old.type, ir.Shape(sizes)
    build.insert(model.graph, node)
    for index, value in enumerate(wide, 1):
        node.replace_input_with(index, value)
    return True


def state_frame_length(model: ir.Model, node: ir.Node) -> bool:
    """Say how long a frame is, which is as long as its window.

    Given::

        y = STFT(x, step, window)

    Result, for a window of 512::

        y = STFT(x, step, window, 512)
    """
    window = given(node, 2)
    size = window.shape[0] if window is not None and window.shape is not None else None
    if not isinstance(size, int):
        return False
    length = ir.Value(
        name=Namer(model).fresh("frame_length"),
        type=ir.TensorType(ir.DataType.INT64),
        shape=ir.Shape([]),
        const_value=ir.tensor(np.array(size, np.int64)),
    )
    model.graph.register_initializer(length)
    node.resize_inputs(4)
    node.replace_input_with(3, length)
    return True


def scalar_condition(model: ir.Model, node: ir.Node) -> bool:
    """Reshape a condition of one element to a scalar; ``If`` then takes it.

    Given::

        y = If(c)

    Result::

        s = Reshape(c, []); y = If(s)
    """
    condition, graph = given(node, 0), node.graph
    if condition is None or graph is None:
        return False
    namer = Namer(model)
    shape = ir.Value(
        name=namer.fresh("scalar"),
        type=ir.TensorType(ir.DataType.INT64),
        shape=ir.Shape([0]),
        const_value=ir.tensor(np.zeros(0, np.int64)),
    )
    model.graph.register_initializer(shape)
    reshaped = ir.node("Reshape", [condition, shape])
    value = reshaped.outputs[0]
    value.name = namer.fresh(f"{condition.name}.scalar")
    value.type, value.shape = ir.TensorType(ir.DataType.BOOL), ir.Shape([])
    graph.insert_before(node, reshaped)
    node.replace_input_with(0, value)
    return True


def bool_by_comparison(model: ir.Model, node: ir.Node) -> bool:
    """Compare with zero: the plugin's conversion makes NaN false.

    Given::

        y = Cast<to=bool>(x)

    Result::

        y = Not(Equal(x, 0))
    """
    x = given(node, 0)
    if x is None or x.dtype is None:
        return False
    build = builder(model, node)
    build.op("Not", build.op("Equal", x, build.const(np.zeros((), x.dtype.numpy()), "zero")))
    build.commit(model.graph, node)
    return True


def squeeze_by_reshape(model: ir.Model, node: ir.Node) -> bool:
    """Reshape to the sizes of the axes that stay, which fails where another one is not 1.

    Given::

        y = Squeeze(x, axes)

    Result, for the last of three axes, and for the middle one::

        y = Reshape(x, [0, 0])
        y = Reshape(x, GatherElements(Shape(x), [0, 2]))
    """
    x, axes = given(node, 0), given(node, 1)
    if x is None or x.shape is None or axes is None or axes.const_value is None:
        return False
    rank = len(x.shape)
    gone = {int(a) % rank for a in axes.const_value.numpy().ravel()}
    stay = [axis for axis in range(rank) if axis not in gone]
    build = builder(model, node)
    if stay == list(range(len(stay))):
        target = build.const(np.zeros(len(stay), np.int64), "keep")
    else:
        # For a Gather in this place the plugin puts a -1, which takes any size.
        axis = build.const(np.asarray(stay, np.int64), "stay")
        target = build.op("GatherElements", build.op("Shape", x), axis)
    build.op("Reshape", x, target)
    build.commit(model.graph, node)
    return True


def reduce_then_squeeze(model: ir.Model, node: ir.Node) -> bool:
    """Keep the axis that is reduced, and drop it afterwards.

    Given::

        y = ReduceSum<keepdims=0>(x, axes)

    Result::

        kept = ReduceSum<keepdims=1>(x, axes); y = Squeeze(kept, axes)
    """
    out, axes = node.outputs[0], given(node, 1)
    build = builder(model, node)
    kept = build.op(node.op_type, *node.inputs, keepdims=1)
    kept.type = out.type
    if out.shape is not None:
        kept.shape = ir.Shape([*out.shape, 1])
    build.op("Squeeze", kept, axes)
    build.commit(model.graph, node)
    return True


def keep_infinite_extreme(model: ir.Model, node: ir.Node) -> bool:
    """Put the infinity back that the plugin replaces by the largest finite number.

    Given::

        y = ReduceMax(x, axes)

    Result::

        some = ReduceMax(Cast<to=float>(Not(Equal(x, -inf))), axes)
        y = Where(Greater(some, 0), ReduceMax(x, axes), -inf)
    """
    x = given(node, 0)
    if x is None or x.dtype is None:
        return False
    build = builder(model, node)
    bound = -np.inf if node.op_type == "ReduceMax" else np.inf
    infinite = build.const(np.asarray(bound, x.dtype.numpy()), "infinite")
    zero = build.const(np.asarray(0, np.float32), "zero")
    options = {a.name: a.value for a in node.attributes.values()}
    axes = given(node, 1)
    finite = build.op("Not", build.op("Equal", x, infinite))
    marks = build.op("Cast", finite, to=ir.DataType.FLOAT.value)
    some = build.op("ReduceMax", marks, axes, **options)
    build.nodes[-1].meta[SETTLED] = True
    extreme = build.op(node.op_type, x, axes, **options)
    build.nodes[-1].meta[SETTLED] = True
    build.op("Where", build.op("Greater", some, zero), extreme, infinite)
    build.commit(model.graph, node)
    return True


def zero_without_area(model: ir.Model, node: ir.Node) -> bool:
    """Give regions without an area, which have no samples, the zeros that they stand for.

    Given::

        y = RoiAlign<sampling_ratio=0>(x, rois, i)

    Result::

        first, last = Split(Sub(Mul(rois, scale), 0.5), axis=1)
        some = ReduceMin(Cast<to=float>(Greater(last, first)), axis=1)
        y = Where(Greater(Reshape(some, [-1, 1, 1, 1]), 0), RoiAlign(x, rois, i), 0)
    """
    x, rois, image = (given(node, i) for i in range(3))
    if x is None or x.dtype is None or rois is None or rois.dtype is None:
        return False
    build, kind = builder(model, node), rois.dtype.numpy()
    options = {a.name: a.value for a in node.attributes.values()}
    scale = build.const(np.asarray(options.get("spatial_scale", 1.0), kind), "scale")
    middle = build.const(np.asarray(0.5, kind), "middle")
    corners = build.op("Sub", build.op("Mul", rois, scale), middle)
    at = [build.const(np.asarray([n], np.int64), f"at{n}") for n in (0, 1, 2, 4)]
    first = build.op("Slice", corners, at[0], at[2], at[1])
    last = build.op("Slice", corners, at[2], at[3], at[1])
    sides = build.op("Cast", build.op("Greater", last, first), to=ir.DataType.FLOAT.value)
    both = build.op("ReduceMin", sides, at[1])
    build.nodes[-1].meta[SETTLED] = True
    whole = build.const(np.asarray([-1, 1, 1, 1], np.int64), "whole")
    none = build.const(np.asarray(0, np.float32), "none")
    some = build.op("Greater", build.op("Reshape", both, whole), none)
    taken = build.op("RoiAlign", x, rois, image, **options)
    build.nodes[-1].meta[SETTLED] = True
    build.op("Where", some, taken, build.const(np.asarray(0, x.dtype.numpy()), "zero"))
    build.commit(model.graph, node)
    return True


SETTLED = "repaired"
"""Marks a node that is part of its own repair."""
