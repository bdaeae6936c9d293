"""Models that draw random numbers, made ones whose answers can be checked.

A draw becomes an input, its mean, or numbers of a seed that are the same in every run. A draw that
nothing comes of, because its scale is zero, is its mean without being asked.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import onnx_ir as ir

from edgeinfer.convert.families import RANDOM
from edgeinfer.convert.passes.infra import (
    Namer,
    add_initializer,
    all_nodes,
    attr,
    constant,
    dims_of,
    input_at,
    is_op,
    replace_node,
)
from edgeinfer.convert.passes.shapes import InferShapes
from edgeinfer.convert.passes.static_shapes import BindShapes
from edgeinfer.errors import UsageError

INPUT, ZERO = "input", "zero"
_NORMAL = ("RandomNormal", "RandomNormalLike")
_PLACES = {"Bernoulli": 0, "RandomNormalLike": 0, "RandomUniformLike": 0}
"""Where an operator takes the tensor whose shape the draw has."""

Shapes = Mapping[str, Sequence[int | None]]


def settle_noise(model: ir.Model, mode: str, shapes: Shapes) -> list[str]:
    """Replace, in place, every draw that is requested or of no effect.

    Args:
        model: as it was read.
        mode: ``input``, ``zero``, a seed as text, or empty to keep draws that have an effect.
        shapes: fixed sizes of inputs, on which those of a draw may depend.

    Returns:
        A line for each draw.

    Raises:
        UsageError: a draw cannot be replaced so.
    """
    if not any(is_op(n, "Dropout", *RANDOM) for n in all_nodes(model)):
        return []
    InferShapes()(model)
    dropouts = [n for n in all_nodes(model) if _is_left_on(n)]
    work, lines = _Work(model, mode), []
    for node in dropouts:
        lines += work.settle_dropout(node)
    InferShapes()(model)
    fixed = model.clone()
    if shapes:
        BindShapes({name: tuple(shape) for name, shape in shapes.items()})(fixed)
        InferShapes()(fixed)
    for node, twin in zip(all_nodes(model), all_nodes(fixed), strict=True):
        if is_op(node, *RANDOM):
            lines += work.settle(node, twin.outputs[0])
    return lines


def draws(model: ir.Model) -> list[str]:
    """Name the operators of a model that draw random numbers."""
    nodes = all_nodes(model)
    return sorted({n.op_type for n in nodes if is_op(n, *RANDOM) or _is_left_on(n)})


def _is_left_on(node: ir.Node) -> bool:
    """Whether a dropout is one of training, whatever the model is given."""
    if not is_op(node, "Dropout"):
        return False
    known = constant(input_at(node, 2))
    return known is not None and bool(known.numpy().any())


class _Work:
    def __init__(self, model: ir.Model, mode: str) -> None:
        self._main, self._namer, self._mode = model.graph, Namer(model), mode
        self._seeded = 0

    def settle(self, node: ir.Node, known: ir.Value) -> list[str]:
        name = node.name or node.op_type
        if self._mode != ZERO and _is_without_effect(node):
            self._put(node, self._mean(node))
            return [f"{name!r} draws numbers that are multiplied by zero: none are drawn"]
        if not self._mode:
            return []
        if node.op_type == "Multinomial":
            raise UsageError(
                f"--random {self._mode}: node {name!r} (Multinomial) draws indices; give the model "
                "without its sampling"
            )
        if self._mode == ZERO:
            self._put(node, self._mean(node))
            return [f"{name!r} draws no numbers: it gives their mean"]
        if node.graph is not self._main:
            raise UsageError(
                f"--random {self._mode}: node {name!r} draws inside a loop or a branch; take zero"
            )
        noise = self._noise(name, node, known)
        self._put(node, self._scaled(node, noise))
        what = "0..1" if node.op_type not in _NORMAL else "a mean of 0 and a deviation of 1"
        if self._mode == INPUT:
            return [f"{name!r} draws no numbers: input {noise.name!r} has them, of {what}"]
        return [f"{name!r} draws no numbers: those of seed {self._mode} are in the model"]

    def settle_dropout(self, node: ir.Node) -> list[str]:
        """Leave all elements in, or write out which go by a draw that is settled later."""
        x, name = node.inputs[0], node.name or "Dropout"
        ratio = constant(input_at(node, 1)) if input_at(node, 1) is not None else np.float32(0.5)
        if x is None or x.dtype is None or ratio is None or not (self._mode or not _part(ratio)):
            return []
        if self._mode in ("", ZERO):
            shape = ir.node("Shape", [x])
            all_in = {"value": ir.tensor(np.array([True]))}
            mask = ir.node("ConstantOfShape", [shape.outputs[0]], all_in)
            self._replace(node, [ir.node("Identity", [x]), shape, mask], 0, 2)
            return [f"{name!r} drops nothing"]
        part = _part(ratio)
        drawn = ir.node("RandomUniformLike", [x], {"dtype": ir.DataType.FLOAT.value}, name=name)
        drawn.outputs[0].type, drawn.outputs[0].shape = ir.TensorType(ir.DataType.FLOAT), x.shape
        out = ir.node("Less", [drawn.outputs[0], self._const(part, ir.DataType.FLOAT)])
        mask = ir.node("Not", [out.outputs[0]])
        scale = self._const(1.0 / (1.0 - part) if part < 1 else 0.0, x.dtype)
        more = ir.node("Mul", [x, scale])
        none = self._const(0.0, x.dtype)
        kept = ir.node("Where", [out.outputs[0], none, more.outputs[0]])
        self._replace(node, [drawn, out, mask, more, kept], 4, 2)
        return []

    def _replace(self, node: ir.Node, made: list[ir.Node], *indices: int) -> None:
        """Put nodes in the place of one whose outputs those at the positions give, in order."""
        for one in made:
            one.outputs[0].name = self._namer.fresh("noise_part")
        replace_node(node, made, [made[p].outputs[0] for p in indices[: len(node.outputs)]])

    def _put(self, node: ir.Node, made: list[ir.Node]) -> None:
        for one in made:
            one.outputs[0].name = self._namer.fresh("noise_part")
        replace_node(node, made, [made[-1].outputs[0]])

    def _const(self, value: float, kind: ir.DataType) -> ir.Value:
        array = np.array(value, kind.numpy())
        return add_initializer(self._main, self._namer.fresh("noise_number"), array)

    def _mean(self, node: ir.Node) -> list[ir.Node]:
        """Nodes that give the mean of a draw in its shape; of ``Bernoulli`` the likelier value."""
        kind = _kind(node)
        if node.op_type == "Bernoulli":
            source = node.inputs[0]
            half = self._const(0.5, (source and source.dtype) or ir.DataType.FLOAT)
            more = ir.node("Greater", [source, half])
            return [more, ir.node("Cast", [more.outputs[0]], {"to": kind.value})]
        value = float(attr(node, "mean", 0.0))
        if node.op_type not in _NORMAL:
            value = (float(attr(node, "low", 0.0)) + float(attr(node, "high", 1.0))) / 2
        filled = {"value": ir.tensor(np.array([value], kind.numpy()))}
        if node.op_type in _PLACES:
            shape = ir.node("Shape", [node.inputs[0]])
            return [shape, ir.node("ConstantOfShape", [shape.outputs[0]], filled)]
        sizes = np.array(attr(node, "shape"), np.int64)
        known = add_initializer(self._main, self._namer.fresh("noise_shape"), sizes)
        return [ir.node("ConstantOfShape", [known], filled)]

    def _noise(self, name: str, node: ir.Node, known: ir.Value) -> ir.Value:
        """Return plain numbers of the draw's shape: an input, or an initializer."""
        kind = ir.DataType.FLOAT if node.op_type == "Bernoulli" else _kind(node)
        shape = known.shape if self._mode != INPUT else node.outputs[0].shape
        if shape is None:
            raise UsageError(
                f"--random {self._mode}: node {name!r} draws of a rank that is not known; take zero"
            )
        dims = dims_of(known if self._mode != INPUT else node.outputs[0])
        if self._mode == INPUT:
            fresh = self._namer.fresh("noise")
            named = [
                d if isinstance(d, int) or d.value is not None else ir.SymbolicDim(f"{fresh}_{i}")
                for i, d in enumerate(dims)
            ]
            value = ir.Value(name=fresh, type=ir.TensorType(kind), shape=ir.Shape(named))
            self._main.inputs.append(value)
            return value
        sizes = [d for d in dims if isinstance(d, int)]
        if len(sizes) < len(dims):
            raise UsageError(
                f"--random {self._mode}: what node {name!r} draws has open sizes; fix them with "
                "--input-shape, or take input or zero"
            )
        random = np.random.default_rng([int(self._mode), self._seeded])
        self._seeded += 1
        drawn = random.standard_normal(sizes) if node.op_type in _NORMAL else random.random(sizes)
        return add_initializer(self._main, self._namer.fresh("noise"), drawn.astype(kind.numpy()))

    def _scaled(self, node: ir.Node, noise: ir.Value) -> list[ir.Node]:
        kind = _kind(node)
        if node.op_type == "Bernoulli":
            source = node.inputs[0]
            floats = ir.node("Cast", [source], {"to": ir.DataType.FLOAT.value})
            less = ir.node("Less", [noise, floats.outputs[0]])
            return [floats, less, ir.node("Cast", [less.outputs[0]], {"to": kind.value})]
        low = float(attr(node, "mean" if node.op_type in _NORMAL else "low", 0.0))
        span = float(attr(node, "scale", 1.0))
        if node.op_type not in _NORMAL:
            span = float(attr(node, "high", 1.0)) - low
        wide = ir.node("Mul", [noise, self._const(span, kind)])
        return [wide, ir.node("Add", [wide.outputs[0], self._const(low, kind)])]


def _part(ratio: ir.TensorProtocol | np.float32) -> float:
    """Return which part of the elements a dropout takes."""
    array = ratio if isinstance(ratio, np.float32) else ratio.numpy()
    return float(np.asarray(array).reshape(-1)[0])


def _kind(node: ir.Node) -> ir.DataType:
    given = attr(node, "dtype")
    if given is not None:
        return ir.DataType(given)
    source = input_at(node, 0)
    return (source.dtype if source is not None else None) or ir.DataType.FLOAT


def _is_without_effect(node: ir.Node) -> bool:
    """Whether all that is drawn is the same number, or is multiplied by zero."""
    if node.op_type in _NORMAL and attr(node, "scale", 1.0) == 0:
        return True
    uniform = node.op_type in ("RandomUniform", "RandomUniformLike")
    if uniform and attr(node, "low", 0.0) == attr(node, "high", 1.0):
        return True
    if node.op_type in ("Bernoulli", "Multinomial") or node.outputs[0].is_graph_output():
        return False
    uses = node.outputs[0].uses()
    return bool(uses) and all(_is_multiplied_by_zero(user, place) for user, place in uses)


def _is_multiplied_by_zero(user: ir.Node, place: int) -> bool:
    if not is_op(user, "Mul"):
        return False
    other = user.inputs[1 - place]
    maker = None if other is None else other.producer()
    if is_op(maker, "Constant") and maker is not None and "value_float" in maker.attributes:
        return float(attr(maker, "value_float")) == 0.0
    known = constant(other)
    return known is not None and not known.numpy().any()
