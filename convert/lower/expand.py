"""Replace a node by ONNX's own definition of its operator.

Many operators are defined in the standard by a graph of simpler ones. Where an engine lacks such an
operator, or computes it otherwise, that graph is the exact meaning in terms it has.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

import onnx
import onnx_ir as ir
from onnx_ir.passes.common import InlinePass, RemoveUnusedNodesPass

from edgeinfer.convert.lower import definitions, microsoft, tabular
from edgeinfer.convert.lower.rows import at_once
from edgeinfer.convert.lower.single import ORIGIN, has_subgraph, walk
from edgeinfer.convert.passes import normalise
from edgeinfer.convert.passes.inference import infer
from edgeinfer.convert.passes.infra import bodies
from edgeinfer.errors import Problem, Remarks, UnsupportedError

_DOMAIN = "edgeinfer.expand"
_LEVELS = 5
"""Definitions inside definitions."""

T = TypeVar("T")

_UNSOUND = frozenset({"Bernoulli"})
"""Definitions that contradict their own operator: ``Bernoulli`` is defined as ``random > p``, which
is 1 with probability 1 - p (onnx 1.23)."""


def _contradicts(node: ir.Node) -> bool:
    """Whether a definition is another function than the operator's text.

    ``Celu`` is ``max(0, x) + min(0, a * (exp(x / a) - 1))``, and defined as ``a * Elu(x / a)``
    (onnx 1.23): for ``a`` below zero the two choose opposite sides.
    """
    if node.op_type == "Celu" and not node.domain:
        alpha = node.attributes.get("alpha")
        return alpha is not None and alpha.as_float() <= 0
    return node.op_type in _UNSOUND


def definition(node: ir.Node, opset: int) -> onnx.FunctionProto | None:
    """Return the definition of a node, or None when the operator is a primitive one.

    It is the standard's; of operators that have none there, of those that only ONNX Runtime has,
    and of tabular models, ours.
    """
    if opset >= microsoft.OPSET:
        own = microsoft.definition(node) or tabular.definition(node)
        if own is not None:
            return own
    if node.domain not in definitions.DOMAINS or _contradicts(node) or has_subgraph(node):
        return None
    if opset >= definitions.OPSET and node.op_type in definitions.DEFINED:
        return definitions.DEFINED[node.op_type](node)
    try:
        schema = onnx.defs.get_schema(node.op_type, opset, node.domain)
    except onnx.defs.SchemaError:
        return None
    versions = [v for v in schema.function_opset_versions if v <= opset]
    if versions:
        body = schema.get_function_with_opset_version(max(versions))
        return onnx.FunctionProto.FromString(_bytes(body)) if body is not None else None
    versions = [v for v in schema.context_dependent_function_opset_versions if v <= opset]
    if not versions or any(v is not None and v.type is None for v in node.inputs):
        return None
    proto = ir.to_proto(node)
    _add_defaults(proto, schema)
    types = [_type(v).SerializeToString() for v in node.inputs]
    text = schema.get_context_dependent_function_with_opset_version(
        max(versions), proto.SerializeToString(), types
    )
    return onnx.FunctionProto.FromString(text) if text else None


def with_definitions(
    source: ir.Model,
    lower: Callable[[ir.Model], T],
    notes: Remarks,
    unless: Callable[[ir.Node], bool] = lambda node: False,
) -> T:
    """Lower a normalised model; forms that are refused take their definitions, if they have any.

    Args:
        source: the model.
        lower: what may refuse nodes.
        notes: Notes of what took a definition.
        unless: Says which nodes stay refused, whatever defines them.

    Raises:
        UnsupportedError: with what is refused in the end; of a definition that is refused too, with
            what was said of the form that it stands for.
    """
    model, said = source, dict[str, Problem]()
    for _ in range(_LEVELS):
        try:
            return lower(model)
        except UnsupportedError as error:
            again = model.clone()
            problems = {p.node: p for p in error.problems}
            refused = [
                n for name, n in walk(again) if {name, n.name} & problems.keys() and not unless(n)
            ]
            kinds = {id(node): node.op_type for node in refused}
            known = {id(node): node.name or "" for node in refused}
            done = expand(again, refused)
            if not done:
                sized = [_with_sizes(again, p) for p in _of_forms(model, problems, said)]
                raise UnsupportedError(error.target, sized) from error
            names = (known[id(node)] for node in done)
            said |= {name: problems[name] for name in names if name in problems}
            for op in sorted({kinds[id(node)] for node in done}):
                notes.add(f"{op}: a form without a lowering: replaced by its definition")
            # Definitions have constants and shapes to be worked out again.
            model = normalise(again).model
    return lower(model)


def _with_sizes(model: ir.Model, problem: Problem) -> Problem:
    """Say that sizes must be known, of what would have a definition if they were."""
    node = next((n for name, n in walk(model) if problem.node in (name, n.name)), None)
    opset = model.opset_imports.get("", 0)
    if node is None or problem.reason != "unsupported_op" or definition(node, opset) is not None:
        return problem
    known: list[ir.Value | None] = []
    for value in node.inputs:
        if value is None or value.shape is None:
            known.append(value)
            continue
        sizes = [d if isinstance(d, int) else _SOME_SIZE for d in value.shape]
        known.append(
            ir.Value(
                name=value.name,
                shape=ir.Shape(sizes),
                type=value.type,
                const_value=value.const_value,
            )
        )
    attributes = [*node.attributes.values()]
    alone = ir.Node(
        *(node.domain, node.op_type, known, attributes),
        num_outputs=len(node.outputs),
        version=node.version,
    )
    if definition(alone, opset) is None:
        return problem
    hint = "give its sizes with --input-shape"
    return replace(problem, reason="dynamic_shape", detail="sizes must be known", hint=hint)


_SOME_SIZE = 8


def _of_forms(
    model: ir.Model, problems: Mapping[str, Problem], said: Mapping[str, Problem]
) -> list[Problem]:
    """What was said of forms whose definitions are refused, unless there is more to say now."""
    origins = {node.name: name for name, node in walk(model)}
    found = []
    for name, problem in problems.items():
        first = said.get(origins.get(name) or "")
        found.append(problem if first is None or problem.hint else first)
    return list(dict.fromkeys(found))


def expand(model: ir.Model, nodes: Sequence[ir.Node]) -> list[ir.Node]:
    """Replace, in place, those of the nodes that have a definition; returns the ones that were.

    Given::

        y = Swish<alpha=1.0>(x)

    Result::

        a = Constant<value_float=1.0>()
        b = CastLike(a, x); c = Mul(b, x); d = Sigmoid(c); y = Mul(x, d)
    """
    opset = model.opset_imports.get("", 0)
    done: list[ir.Node] = []
    wanted = {id(node) for node in nodes}
    # The pass that inlines hands a node's metadata on to what takes its place.
    for name, node in [pair for pair in walk(model) if id(pair[1]) in wanted]:
        if at_once(model, node):
            done.append(node)
            continue
        proto = definition(node, opset)
        if proto is None:
            continue
        # A definition may depend on the node's types, so each gets a function of its own.
        proto.domain, proto.name, proto.overload = _DOMAIN, f"{node.op_type}_{len(done)}", ""
        for entry in proto.opset_import:
            # The operators of a definition mean the same in every later version it is listed for.
            entry.version = model.opset_imports.get(entry.domain, entry.version)
        _complete_outputs(proto, len(node.outputs))
        function = ir.from_proto(proto)
        _add_node_defaults(node, opset)
        node.metadata_props[ORIGIN] = name
        node.domain, node.op_type = _DOMAIN, proto.name
        model.functions[function.identifier()] = function
        done.append(node)
    if done:
        model.opset_imports.setdefault(_DOMAIN, 1)
        before = {node for _, node in walk(model)}
        InlinePass(criteria=lambda f: f.domain == _DOMAIN)(model)
        _name_parts([pair for pair in walk(model) if pair[1] not in before], before)
        RemoveUnusedNodesPass()(model)
        model.opset_imports.pop(_DOMAIN, None)
        infer(model)
    return done


def _name_parts(parts: Sequence[tuple[str, ir.Node]], others: Collection[ir.Node]) -> None:
    """Let a message that names a part of a definition say what it is a part of.

    What bodies of loops take is named by it, too, as each definition counts its values alone.
    """
    taken = {node.name for node in others}
    for index, (name, node) in enumerate(parts):
        label = f"{name}/{node.op_type}_{index}"
        while label in taken:
            label += "_"
        node.name = label
        taken.add(label)
        for body in bodies(node):
            for value in body.inputs:
                # A name that is taken outside is that value to OpenVINO's reader.
                value.name = f"{label}.{value.name}"


def _complete_outputs(proto: onnx.FunctionProto, count: int) -> None:
    """Keep the outputs that the node has; give those that the body leaves out a dead producer."""
    del proto.output[count:]
    made = {name for node in proto.node for name in node.output}
    proto.node.extend(
        onnx.helper.make_node("Identity", [proto.input[0]], [name])
        for name in proto.output
        if name not in made
    )


def _bytes(body: object) -> bytes:
    return body if isinstance(body, bytes) else body.SerializeToString()  # type: ignore[attr-defined]


def _type(value: ir.Value | None) -> onnx.TypeProto:
    proto = onnx.TypeProto()
    if value is not None and value.type is not None:
        ir.serde.serialize_type_into(proto, value.type)
        if value.shape is not None:
            ir.serde.serialize_shape_into(proto, value.shape)
    return proto


def _add_defaults(proto: onnx.NodeProto, schema: onnx.defs.OpSchema) -> None:
    given = {a.name for a in proto.attribute}
    proto.attribute.extend(
        a.default_value
        for a in schema.attributes.values()
        if a.name not in given and a.default_value.name
    )


def _add_node_defaults(node: ir.Node, opset: int) -> None:
    if node.domain or not onnx.defs.has(node.op_type):
        # Our definition holds what its attributes say.
        node.attributes.clear()
        return
    # A definition refers to attributes by name, so those left to their defaults must be there.
    schema = onnx.defs.get_schema(node.op_type, opset, node.domain)
    for attribute in schema.attributes.values():
        if attribute.name not in node.attributes and attribute.default_value.name:
            node.attributes.add(ir.serde.deserialize_attribute(attribute.default_value))


_LEVELS = 5
"""Definitions inside definitions."""


def with_known(
    model: ir.Model, is_known: Callable[[ir.Node, Mapping[str, int]], bool], notes: Remarks
) -> ir.Model:
    """Put definitions in the place of operators that a target has no lowering for.

    Args:
        model: is changed.
        is_known: says it of a node, by the versions of the operator sets.
        notes: get a line for each operator.
    """
    for _ in range(_LEVELS):
        lacking = [n for _, n in walk(model) if not is_known(n, model.opset_imports)]
        names = {id(n): n.op_type for n in lacking}
        done = expand(model, lacking) if lacking else []
        if not done:
            break
        for op in sorted({names[id(n)] for n in done}):
            notes.add(f"{op}: no lowering: replaced by its definition")
        # Definitions have constants and shapes to be worked out again.
        model = normalise(model).model
    return model
