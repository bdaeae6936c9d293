"""How far each node of a graph is off in an engine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import onnx_ir as ir

from edgeinfer.convert.verify.bisect import LowerAndRun, oracle_values
from edgeinfer.convert.verify.layer_table import NodeError
from edgeinfer.convert.verify.submodel import extract
from edgeinfer.errors import EdgeInferError
from edgeinfer.metrics import compare
from edgeinfer.types import Array, Feeds

_FLOATS = frozenset({"float16", "bfloat16", "float32", "float64"})


def errors(
    model: ir.Model, made: ir.Model, feeds: Feeds, lower_and_run: LowerAndRun
) -> tuple[tuple[NodeError, ...], str]:
    """Run a graph once with every float that it computes as an output, and judge each.

    Args:
        model: the normalised float graph; it is not modified.
        made: the graph that the artifact was made of: the same, or in integers with the same names.
        feeds: its inputs.
        lower_and_run: computes a graph the way the artifact does.

    Returns:
        Every node in order, as far as its results are known, and why some are not.
    """
    nodes = list(model.graph)
    values, wide = oracle_values(model, feeds)
    if not values:
        return _judged(nodes, {}, {}, {}), "no oracle holds all values of this model at once"
    asked = _counterparts(model, made, values)
    try:
        part = extract(made, made.graph.inputs, [*dict.fromkeys(asked.values())], values)
        given = lower_and_run(part, feeds)
    except EdgeInferError as e:
        note = f"the graph does not run with all values as outputs: {e}".splitlines()[0]
        return _judged(nodes, {}, {}, {}), note
    results = {name: given[str(v.name)] for name, v in asked.items() if str(v.name) in given}
    names = {name: str(v.name) for name, v in asked.items()}
    return _judged(nodes, values | wide, results, names), ""


def _counterparts(
    model: ir.Model, made: ir.Model, values: Mapping[str, Array]
) -> dict[str, ir.Value]:
    """Return the values of a graph that stand for those of the float graph, by the latter's names.

    What is rounded to integers is taken behind that. What an engine computes within a layer of
    integers, before a result is rounded, has none: as an output it would make a layer of floats.
    """
    known = {str(v.name): v for n in made.graph for v in n.outputs}
    within = _within_integers(made)
    found: dict[str, ir.Value] = {}
    for value in (v for n in model.graph for v in n.outputs):
        name = str(value.name)
        own, array = known.get(name), values.get(name)
        if own is None or not isinstance(array, np.ndarray) or str(array.dtype) not in _FLOATS:
            continue
        rounded = _rounded(own)
        if rounded is not None or own not in within:
            found[name] = rounded or own
    return found


def _rounded(value: ir.Value) -> ir.Value | None:
    """Return what integers of a value stand for, where it is rounded to such."""
    for quantized in (n for n, _ in value.uses() if n.op_type == "QuantizeLinear"):
        for back in (n for n, _ in quantized.outputs[0].uses()):
            if back.op_type == "DequantizeLinear":
                return back.outputs[0]
    return None


def _within_integers(made: ir.Model) -> set[ir.Value]:
    """Return what layers of integers compute and only hand on to what rounds it."""
    whole: set[ir.Value] = set()
    for node in made.graph:
        inputs = [v for v in node.inputs if v is not None and v.const_value is None]
        if inputs and all(_is_dequantized(v) or v in whole for v in inputs):
            whole |= {v for v in node.outputs if not v.is_graph_output()}
    found: set[ir.Value] = set()
    for node in reversed(made.graph):
        for value in whole.intersection(node.outputs):
            readers = [n for n, _ in value.uses()]
            if readers and all(
                n.op_type == "QuantizeLinear" or found.issuperset(n.outputs) for n in readers
            ):
                found.add(value)
    return found


def _is_dequantized(value: ir.Value) -> bool:
    node = value.producer()
    return node is not None and node.op_type == "DequantizeLinear"


def _judged(
    nodes: Sequence[ir.Node],
    expected: Mapping[str, Array],
    given: Mapping[str, Array],
    known_as: Mapping[str, str],
) -> tuple[NodeError, ...]:
    return tuple(_of_node(n, expected, given, known_as) for n in nodes)


def _of_node(
    node: ir.Node,
    expected: Mapping[str, Array],
    given: Mapping[str, Array],
    known_as: Mapping[str, str],
) -> NodeError:
    names = [str(v.name) for v in node.outputs if v.name]
    found = [compare(expected[n].astype(given[n].dtype), given[n]) for n in names if n in given]
    usable = [m for m in found if not m.problem]
    return NodeError(
        node.name or (names[0] if names else node.op_type),
        node.op_type,
        tuple(dict.fromkeys((*names, *(known_as.get(n, n) for n in names)))),
        min((m.sqnr_db for m in usable), default=None),
        max((m.max_rel for m in usable), default=None),
    )
