"""Models that run although ``onnx.checker`` refuses them are put right, with a note each.

Nothing here changes a number: names, order, declarations and what is never used, no more.
Tensor names stay as they are, whatever characters they hold.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import onnx
import onnx_ir as ir

from edgeinfer.convert.passes.infra import DEFAULT_DOMAINS
from edgeinfer.convert.passes.sizes import check_counts
from edgeinfer.convert.passes.state_defaults import StateDefaults
from edgeinfer.convert.sources.declared import check_declared_shapes
from edgeinfer.convert.sources.schemas import schema_of
from edgeinfer.errors import Remarks, SourceError


def repair(model: ir.Model, notes: Remarks, name: str) -> None:
    """Put a model right in place.

    Args:
        model: as deserialised.
        notes: gets one line for each kind of repair.
        name: Name of the model, for messages.

    Raises:
        SourceError: the graph cannot run at all: a cycle, or a tensor that nothing makes.
    """
    _refuse_undefined(model, name)
    _refuse_incomplete(model, name)
    # Inference would count up to them.
    check_counts(model)
    for step in _STEPS:
        step(model, notes)
    _sort(model, notes, name)
    # What is declared is true by the definition, not by an inference that has a default wrong.
    StateDefaults()(model)
    check_declared_shapes(model, notes)


def _graphs(model: ir.Model) -> Iterator[ir.Graph]:
    """Every graph: the main one, functions' bodies and all subgraphs."""
    seen: dict[int, ir.Graph] = {id(graph): graph for graph in model.graphs()}
    for function in model.functions.values():
        seen.setdefault(id(function.graph), function.graph)
        for node in function.all_nodes():
            if node.graph is not None and isinstance(node.graph, ir.Graph):
                seen.setdefault(id(node.graph), node.graph)
    yield from seen.values()


def _refuse_undefined(model: ir.Model, name: str) -> None:
    for graph in _graphs(model):
        for node in graph:
            for value in node.inputs:
                if value is not None and _is_undefined(value):
                    raise SourceError(
                        f"{name}: node {node.name or node.op_type!r} reads tensor {value.name!r}, "
                        "which no node, input or initializer makes; export the model again"
                    )
        for value in graph.outputs:
            if _is_undefined(value):
                raise SourceError(
                    f"{name}: output {value.name!r} is made by no node; export the model again"
                )


def _refuse_incomplete(model: ir.Model, name: str) -> None:
    """Refuse what the definition of an operator demands and a node lacks."""
    problems: list[str] = []
    own = {key[:2] for key in model.functions}
    for graph in _graphs(model):
        for node in graph:
            if (node.domain, node.op_type) in own:
                continue
            version = model.opset_imports.get(node.domain, model.opset_imports.get("ai.onnx"))
            # An operator that is not known is refused by the targets.
            if (schema := schema_of(node, version)) is not None:
                what = f"node {node.name or node.op_type!r} ({node.op_type})"
                problems += [f"{what} {fault}" for fault in _lacking(node, schema)]
    if problems:
        shown = "; ".join(problems[:_MOST_SHOWN])
        more = f"; and {len(problems) - _MOST_SHOWN} more" if len(problems) > _MOST_SHOWN else ""
        raise SourceError(f"{name}: {shown}{more}; export the model again")


_MOST_SHOWN = 10


def _lacking(node: ir.Node, schema: Any) -> Iterator[str]:
    for attribute in schema.attributes.values():
        given = node.attributes.get(attribute.name)
        if given is None:
            if attribute.required:
                yield f"has no {attribute.name!r}"
        elif given.type.name != attribute.type.name:
            kinds = given.type.name.lower(), attribute.type.name.lower()
            yield f"has {kinds[0]} as {attribute.name!r}, which is {kinds[1]}"
    if node.domain in DEFAULT_DOMAINS:
        for name in node.attributes:
            if name not in schema.attributes:
                yield f"has {name!r}, which the operator does not know"
    if len(node.inputs) < schema.min_input:
        yield f"has {len(node.inputs)} inputs, takes {schema.min_input} at least"
    if len(node.inputs) > schema.max_input:
        yield f"has {len(node.inputs)} inputs, takes {schema.max_input} at most"
    for index, (value, formal) in enumerate(zip(node.inputs, schema.inputs, strict=False)):
        if value is None and formal.option.name == "Single":
            yield f"has no input {index} ({formal.name})"
    branches = [a.as_graph() for a in node.attributes.values() if a.type == _GRAPH]
    if node.op_type == "If":
        for branch in branches:
            if len(branch.outputs) != len(node.outputs):
                yield f"has {len(node.outputs)} outputs and a branch with {len(branch.outputs)}"


_GRAPH = ir.AttributeType.GRAPH


def _is_undefined(value: ir.Value) -> bool:
    made = value.producer() is not None or value.is_graph_input() or value.is_initializer()
    return not made


def _opset_imports(model: ir.Model, notes: Remarks) -> None:
    """Fill in the imports; ``ai.onnx`` is the default domain's other name."""
    imports = model.opset_imports
    if "ai.onnx" in imports:
        version = imports.pop("ai.onnx")
        imports.setdefault("", version)
    own = {key[0] for key in model.functions}
    used = {node.domain for graph in _graphs(model) for node in graph}
    for domain in sorted(used - imports.keys()):
        # ONNX Runtime, too, takes the newest version where none is stated.
        imports[domain] = onnx.defs.onnx_opset_version() if domain == "" else 1
        if domain not in own:
            label = domain or "ai.onnx"
            notes.add(f"opset of {label} was not stated; taken as {imports[domain]}")
    for function in model.functions.values():
        for node in function.all_nodes():
            function.opset_imports.setdefault(node.domain, imports.get(node.domain, 1))


def _ir_version(model: ir.Model, notes: Remarks) -> None:
    stated = model.ir_version or 0
    if stated > onnx.IR_VERSION:
        known = [d for d in model.opset_imports if d in ("", "ai.onnx.ml")]
        wanted = [onnx.helper.make_opsetid(d, model.opset_imports[d]) for d in known]
        model.ir_version = max(10, onnx.helper.find_min_ir_version_for(wanted, True))
        notes.add(f"ir_version {stated} is not known yet; written as {model.ir_version}")
    elif stated < 4:
        # Before version 4 every initializer had to be an input as well.
        model.ir_version = 4


def _initializers_as_inputs(model: ir.Model, notes: Remarks) -> None:
    """Weights that are listed as inputs are defaults no user sets; make them weights only."""
    weights = [value for value in model.graph.inputs if value.is_initializer()]
    if not weights:
        return
    kept = [value for value in model.graph.inputs if not value.is_initializer()]
    model.graph.inputs.clear()
    model.graph.inputs.extend(kept)
    notes.add(f"{_count(weights, 'weight')} also listed as inputs; they are constants now")


def _unused_initializers(model: ir.Model, notes: Remarks) -> None:
    dropped = []
    for graph in _graphs(model):
        for name, value in list(graph.initializers.items()):
            if not value.uses() and not value.is_graph_output():
                del graph.initializers[name]
                dropped.append(value)
    if dropped:
        notes.add(f"{_count(dropped, 'weight')} that nothing uses dropped")


def _negative_sizes(model: ir.Model, notes: Remarks) -> None:
    """Sizes below zero are what some exporters write for sizes that are open."""
    found: list[ir.Value] = []
    for graph in _graphs(model):
        made = (value for node in graph for value in node.outputs)
        for value in (*graph.inputs, *graph.initializers.values(), *made):
            shape = value.shape
            if shape is None or not any(isinstance(d, int) and d < 0 for d in shape):
                continue
            value.shape = ir.Shape([None if isinstance(d, int) and d < 0 else d for d in shape])
            found.append(value)
    if found:
        names = ", ".join(repr(value.name) for value in found[:3])
        more = ", ..." if len(found) > 3 else ""
        notes.add(f"sizes below zero taken for open ones ({names}{more})")


def _graph_names(model: ir.Model, notes: Remarks) -> None:
    unnamed = [graph for graph in model.graphs() if not graph.name]
    for index, graph in enumerate(unnamed):
        graph.name = "graph" if graph is model.graph else f"subgraph_{index}"
    if unnamed:
        notes.add(f"{_count(unnamed, 'graph')} without a name got one")


def _node_names(model: ir.Model, notes: Remarks) -> None:
    """Give every node of the model its own name, so a finding can point at it."""
    nodes = [node for graph in _graphs(model) for node in graph]
    names = Counter(node.name for node in nodes if node.name)
    taken, missing, double = set(names), 0, 0
    seen: set[str] = set()
    numbers: Counter[str] = Counter()
    for node in nodes:
        if node.name and node.name not in seen:
            seen.add(node.name)
            continue
        if node.name:
            double += 1
        else:
            missing += 1
        stem = node.name or node.op_type
        while (candidate := f"{stem}_{numbers[stem]}") in taken:
            numbers[stem] += 1
        numbers[stem] += 1
        taken.add(candidate)
        seen.add(candidate)
        node.name = candidate
    if missing:
        notes.add(f"{missing} of {len(nodes)} nodes had no name; named by operator and number")
    if double:
        notes.add(f"{double} of {len(nodes)} nodes shared a name with another; numbered")


def _sort(model: ir.Model, notes: Remarks, name: str) -> None:
    bodies = (model.graph, *(function.graph for function in model.functions.values()))
    unsorted = [graph for graph in bodies if not _is_sorted(graph, set())]
    for graph in unsorted:
        try:
            graph.sort()
        except ValueError as error:
            raise SourceError(
                f"{name}: the nodes depend on each other in a circle; export the model again"
            ) from error
    if unsorted:
        notes.add("nodes were not in the order of their data; sorted")


def _is_sorted(graph: ir.Graph, made: set[ir.Value]) -> bool:
    """Whether every node, also of subgraphs, comes after what it reads."""
    for node in graph:
        for value in node.inputs:
            if value is not None and value.producer() is not None and value not in made:
                return False
        for attribute in node.attributes.values():
            for inner in _subgraphs(attribute):
                if not _is_sorted(inner, made):
                    return False
        made.update(node.outputs)
    return True


def _subgraphs(attribute: ir.Attr) -> Sequence[ir.Graph]:
    if attribute.is_ref():
        return ()
    if attribute.type == ir.AttributeType.GRAPH:
        return (attribute.as_graph(),)
    return attribute.as_graphs() if attribute.type == ir.AttributeType.GRAPHS else ()


def _count(things: list[ir.Value] | list[ir.Graph], what: str) -> str:
    return f"{len(things)} {what}" + ("s" if len(things) != 1 else "")


_STEPS: tuple[Callable[[ir.Model, Remarks], None], ...] = (
    _opset_imports,
    _initializers_as_inputs,
    _ir_version,
    _negative_sizes,
    _unused_initializers,
    _graph_names,
    _node_names,
)
