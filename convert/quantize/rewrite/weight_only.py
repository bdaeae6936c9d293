"""Integers for weights alone: activations stay float, or get a scale of their own in each run."""

from __future__ import annotations

from collections.abc import Sequence
from collections.abc import Set as AbstractSet

import ml_dtypes
import numpy as np
import onnx_ir as ir

from edgeinfer.convert.lower.target import PRECISION_KEY
from edgeinfer.convert.passes.dead_code import RemoveDeadCode
from edgeinfer.convert.passes.infra import Namer, add_initializer, constant, rank
from edgeinfer.convert.passes.rewrite import ReplacementBuilder
from edgeinfer.convert.passes.share_duplicates import ShareInitializers
from edgeinfer.convert.quantize.recipe import Recipe
from edgeinfer.convert.quantize.rewrite.qdq import WrittenScales
from edgeinfer.convert.quantize.rewrite.shared_weights import APART, SHARED, transposed_weights
from edgeinfer.convert.quantize.rewrite.weights import StoredIntegers, store, store_blocks
from edgeinfer.convert.quantize.units import (
    STATEFUL_AXIS,
    WEIGHTED,
    array_of,
    is_flat,
    is_table,
    stateful_weights,
    weights_axis,
)
from edgeinfer.types import Array

_LEAST_BLOCK = 8
"""Rows below which a scale in half precision costs as much as another two bits a weight."""

_BESIDE = 512
"""Bytes that an operator and the names and records of its operands take in a file."""

_EACH = 16
"""Bytes of the scale and the zero point of one channel."""


def write(
    model: ir.Model,
    recipe: Recipe,
    *,
    kept: AbstractSet[str] = frozenset(),
    whole_blocks: bool = False,
    flat: bool = False,
    positive_blocks: bool = False,
    smaller_blocks: bool = False,
    half_blocks: bool = False,
    recurrent: Sequence[str] = (),
    late_tables: bool = False,
) -> WrittenScales:
    """Return a copy whose weights are integers.

    Args:
        model: normalised; it is not modified.
        recipe: a dynamic or weight-only one.
        kept: names of nodes that stay float.
        whole_blocks: take 8 bits a channel where blocks would not fill the summed axis.
        flat: leave others than convolutions over two axes and products with one matrix float.
        positive_blocks: give blocks positive scales with the precision of bfloat16.
        half_blocks: give blocks positive scales with the precision of float16.
        smaller_blocks: before that, look for smaller blocks that do fill it.
        recurrent: operators with a state whose weights are stored too, one scale a row of a gate.
        late_tables: rows of a table are taken as integers and made floats after, not before.
    """
    model = model.clone()
    namer = Namer(model)
    done: list[tuple[str, str]] = []
    left: list[tuple[str, str]] = []
    shared: dict[tuple[str, int], ir.Value] = {}
    tables = tied_tables(model)
    for node in list(model.graph):
        stateful = node.op_type in recurrent and bool(stateful_weights(node))
        weighted = node.op_type in WEIGHTED and takes_integers(node)
        weighted = weighted and (is_flat(node) or not flat)
        if node.domain or not (weighted or stateful):
            continue
        title = (node.op_type, node.name or "")
        if title[1] in kept:
            left.append(title)
            continue
        if stateful:
            for place in stateful_weights(node):
                _channels(model, node, namer, shared, STATEFUL_AXIS, place, half=recipe.half)
        elif recipe.dynamic and is_product(node):
            measured(model, node, namer)
        elif block := block_of(node, recipe, whole=whole_blocks, smaller=smaller_blocks):
            _blocks(model, node, block, namer, positive=positive_blocks, half=half_blocks)
        else:
            _channels(model, node, namer, shared, channels_axis(node), half=recipe.half)
        done.append(title)
    stored = {name for _, name in done}
    for node, weighted_nodes in tables.items():
        if stored.issuperset(n.name or "" for n in weighted_nodes) and node.name not in kept:
            _rows(model, node, namer, shared, late=late_tables, half=recipe.half)
    ShareInitializers(SHARED, APART)(model)
    RemoveDeadCode()(model)
    model.metadata_props[PRECISION_KEY] = recipe.name
    return WrittenScales(model, tuple(done), {}, tuple(left))


def tied_tables(model: ir.Model) -> dict[ir.Node, list[ir.Node]]:
    """Return the nodes that take rows of what others multiply with, and these others.

    Left as floats, such a table would be stored next to the integers.
    """
    found: dict[ir.Node, list[ir.Node]] = {}
    transposed = transposed_weights(model.graph)
    for node in model.graph:
        table = node.inputs[0] if is_table(node) else None
        if table is None or table.dtype != ir.DataType.FLOAT:
            continue
        # One scale for each row: the channels of a product with the transpose.
        users = [n for n, i in table.uses() if i == 1 and is_product(n) and weights_axis(n) == 0]
        twin = transposed.get(table)
        if twin is not None:
            users += [n for n, i in twin.uses() if i == 1 and is_product(n) and weights_axis(n)]
        if users:
            found[node] = users
    return found


def _rows(
    model: ir.Model,
    node: ir.Node,
    namer: Namer,
    shared: dict[tuple[str, int], ir.Value],
    *,
    late: bool,
    half: bool,
) -> None:
    """Store a table in 8 bits, one scale a row.

    Given::

        y = Gather(table, ids)

    Result, where rows are made floats late::

        y = Mul(Cast(Gather(table_int, ids)), Gather(table_scale, ids))
    """
    if not late:
        _channels(model, node, namer, shared, 0, 0, half=half)
        return
    table, ids = node.inputs[:2]
    stored = store(array_of(table), 0, name=(table.name if table is not None else "") or "table")
    build = ReplacementBuilder(namer, node.outputs[0].name or "rows")
    taken = build.op("Gather", build.const(stored.values, "int"), ids)
    steps = build.op("Gather", build.const(stored.scale.reshape(-1, 1), "scale"), ids)
    rows = build.op("Mul", build.op("Cast", taken, to=ir.DataType.FLOAT), steps)
    shape, kind = node.outputs[0].shape, node.outputs[0].type
    build.commit(model.graph, node)
    rows.shape, rows.type = shape, kind


def takes_integers(node: ir.Node) -> bool:
    """Whether the node's weights are floats, and enough of them to gain by integers."""
    weights = node.inputs[1] if len(node.inputs) > 1 else None
    tensor = constant(weights)
    if tensor is None or tensor.dtype != ir.DataType.FLOAT or len(tensor.shape) < 2:
        return False
    axis = channels_axis(node)
    channels = 1 if axis is None else int(array_of(weights).shape[axis])
    return bool(3 * tensor.size >= _EACH * channels + _BESIDE)


def is_product(node: ir.Node) -> bool:
    """Whether the node multiplies with a matrix, as it stands or transposed."""
    if node.op_type not in ("MatMul", "Gemm") or rank(node.inputs[1]) != 2:
        return False
    if node.op_type == "MatMul":
        return True
    attrs = {k: a.value for k, a in node.attributes.items()}
    ones = attrs.get("alpha", 1.0) == 1.0 and attrs.get("beta", 1.0) == 1.0
    return ones and not attrs.get("transA", 0)


def block_of(node: ir.Node, recipe: Recipe, *, whole: bool, smaller: bool) -> int:
    """Return the size of the blocks that a node's weights get; 0 for 8 bits a channel."""
    if not recipe.block or not is_product(node):
        return 0
    rows = int(_matrix(node).shape[0])
    if not whole or rows % recipe.block == 0:
        return recipe.block
    sizes = range(recipe.block, _LEAST_BLOCK - 1, -1) if smaller else ()
    return next((size for size in sizes if rows % size == 0), 0)


def _matrix(node: ir.Node) -> Array:
    """Return the weights as (K, N)."""
    weights = array_of(node.inputs[1])
    attr = node.attributes.get("transB")
    return weights.T if attr is not None and attr.as_int() else weights


def _channels(
    model: ir.Model,
    node: ir.Node,
    namer: Namer,
    shared: dict[tuple[str, int], ir.Value],
    axis: int | None,
    place: int = 1,
    *,
    half: bool,
) -> None:
    """Store 8-bit weights with one scale a channel.

    Given::

        y = Conv(x, w)

    Result::

        y = Conv(x, DequantizeLinear(w_int, w_scale, w_zero))
    """
    value = node.inputs[place]
    name = (value.name if value is not None else "") or "weights"
    key = (name, -1 if axis is None else axis)
    if key not in shared:
        stored = store(array_of(value), axis, name=name, half=half)
        shared[key] = _dequantized(model, stored, name, namer)
    node.replace_input_with(place, shared[key])


def channels_axis(node: ir.Node) -> int | None:
    """Return the axis of the channels that have a scale each; None where there is one for all."""
    groups = node.attributes.get("group")
    grouped = node.op_type == "ConvTranspose" and groups is not None and groups.as_int() > 1
    return None if grouped else weights_axis(node)


def _dequantized(model: ir.Model, stored: StoredIntegers, name: str, namer: Namer) -> ir.Value:
    graph = model.graph
    values = add_initializer(graph, namer.fresh(f"{name}.int"), stored.values)
    scale = add_initializer(graph, namer.fresh(f"{name}.scale"), stored.scale)
    zeros = np.zeros(stored.scale.shape, stored.values.dtype)
    zero = add_initializer(graph, namer.fresh(f"{name}.zero"), zeros)
    attributes = {} if stored.axis is None else {"axis": stored.axis}
    node = ir.node("DequantizeLinear", [values, scale, zero], attributes)
    return _placed(graph, node, f"{name}.dq", stored.values.shape, namer)


def _placed(
    graph: ir.Graph, node: ir.Node, name: str, shape: tuple[int, ...], namer: Namer
) -> ir.Value:
    out = node.outputs[0]
    out.name = namer.fresh(name)
    node.name = out.name
    out.type, out.shape = ir.TensorType(ir.DataType.FLOAT), ir.Shape(shape)
    graph.insert_before(graph[0], node)
    return out


def _blocks(
    model: ir.Model, node: ir.Node, block: int, namer: Namer, *, positive: bool, half: bool = False
) -> None:
    """Store 4-bit weights with one scale for each block of the summed axis.

    Given::

        y = MatMul(x, w)

    Result::

        y = MatMul(x, DequantizeLinear<axis=0, block_size=32>(w_int4, w_scale))
    """
    name = (node.inputs[1].name if node.inputs[1] is not None else "") or "weights"
    stored = store_blocks(_matrix(node), block, name=name, positive=positive, half=half)
    graph = model.graph
    values = stored.values[: stored.rows].astype(ml_dtypes.int4)
    packed = ir.tensor(values, dtype=ir.DataType.INT4)
    made = add_initializer(graph, namer.fresh(f"{name}.int"), packed)
    scale = add_initializer(graph, namer.fresh(f"{name}.scale"), stored.scale)
    attributes = {"axis": 0, "block_size": block}
    dequantize = ir.node("DequantizeLinear", [made, scale], attributes)
    out = _placed(graph, dequantize, f"{name}.dq", values.shape, namer)
    node.replace_input_with(1, out)
    node.attributes.pop("transB", None)


def measured(model: ir.Model, node: ir.Node, namer: Namer) -> None:
    """Measure the activations in each run.

    Given::

        y = MatMul(x, w)

    Result::

        q, s, z = DynamicQuantizeLinear(x)
        y = Mul(Cast(MatMulInteger(q, w_int, z, w_zero)), Mul(s, w_scale))
    """
    name = (node.inputs[1].name if node.inputs[1] is not None else "") or "weights"
    stored = store(_matrix(node), 1, name=name)
    build = ReplacementBuilder(namer, node.outputs[0].name or "dynamic")
    measured = ir.node("DynamicQuantizeLinear", [node.inputs[0]], num_outputs=3)
    build.nodes.append(measured)
    zero = build.const(np.zeros(stored.scale.shape, np.int8), "zero")
    weights = build.const(stored.values, "int")
    product = build.op("MatMulInteger", measured.outputs[0], weights, measured.outputs[2], zero)
    floats = build.op("Cast", product, to=ir.DataType.FLOAT)
    factor = build.op("Mul", measured.outputs[1], build.const(stored.scale, "scale"))
    y = build.op("Mul", floats, factor)
    if len(node.inputs) > 2 and node.inputs[2] is not None:
        y = build.op("Add", y, node.inputs[2])
    shape, kind = node.outputs[0].shape, node.outputs[0].type
    build.commit(model.graph, node)
    y.shape, y.type = shape, kind
