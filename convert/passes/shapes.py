"""Shape inference with symbolic sizes."""

from __future__ import annotations

from collections.abc import Iterator

import onnx_ir as ir

from edgeinfer.convert.families import VIEWS
from edgeinfer.convert.passes import tabular_shapes
from edgeinfer.convert.passes.inference import (
    Inference,
    InferenceFailedError,
    is_generated,
)
from edgeinfer.convert.passes.infra import (
    DEFAULT_DOMAINS,
    PassOutcome,
    all_nodes,
    attr,
    bodies,
    dims_of,
    input_at,
    is_op,
    outcome,
    small,
    walk,
)
from edgeinfer.convert.passes.symbols import (
    Element,
    Elements,
    Symbols,
    dim,
    element,
    known,
    product,
)

ROUNDS = 6
_NO_NAMES = frozenset({"", "?", "None", "none", "-1", "null", "unk", "unknown", "dynamic"})


class InferShapes(ir.passes.InPlacePass):
    """Give every value the type and shape that follow from the inputs.

    Given: ``float[N,3] x; float[?] y = Reshape(x, [-1])``
    Result: ``float[(3*N)] y``

    Shapes declared inside the model are not believed: what follows from the inputs replaces
    them. Declarations stay for operators of other domains, and on graph outputs where inference
    knows nothing.
    """

    def call(self, model: ir.Model) -> PassOutcome:
        """Infer until nothing new is found; weights are neither read nor copied."""
        before = _snapshot(model)
        declared = _forget(model)
        notes = _infer(model, declared)
        notes.extend(_restore(declared))
        after = _snapshot(model)
        count = sum(before.get(v) != shown for v, shown in after.items())
        return outcome(model, count, *notes)


def _infer(model: ir.Model, declared: dict[ir.Value, Known]) -> list[str]:
    """Take turns with onnx's inference; returns what went wrong, if anything."""
    inference = Inference(model)
    for _ in range(ROUNDS):
        notes: list[str] = []
        try:
            inference.run()
        except InferenceFailedError as e:
            notes.append(str(e))
        for value, (kind, _shape) in declared.items():
            value.type = value.type or kind
        refined = _refine(model)
        if notes or not refined:
            break
        inference.tell(refined)
    return notes


Known = tuple[ir.TypeProtocol | None, ir.Shape | None]


def _values(model: ir.Model) -> Iterator[ir.Value]:
    for graph in walk(model.graph):
        for node in graph:
            yield from node.outputs


def _snapshot(model: ir.Model) -> dict[ir.Value, str]:
    return {v: f"{v.type}{v.shape}" for v in _values(model)}


def _forget(model: ir.Model) -> dict[ir.Value, Known]:
    """Clear what the model says about its inner values, and sizes named like no name."""
    for value in model.graph.inputs:
        if value.shape is not None:
            value.shape = ir.Shape([_named(d) for d in dims_of(value)])
    for node in all_nodes(model):
        # What a loop carries may change its shape from one round to the next; the counter and
        # the condition, which come first, are scalars and ONNX Runtime insists on their shape.
        for body in bodies(node):
            for value in body.inputs[2 if is_op(node, "Loop") else 0 :]:
                value.shape = None
    declared: dict[ir.Value, Known] = {}
    for value in _values(model):
        shape = None if value.shape is None else ir.Shape(dims_of(value))
        declared[value] = (value.type, shape)
        maker = value.producer()
        if maker is not None and maker.domain in DEFAULT_DOMAINS:
            value.shape = None
            if not value.is_graph_output():
                value.type = None
    return declared


def _named(size: int | ir.SymbolicDim) -> int | ir.SymbolicDim:
    if isinstance(size, int):
        return size if size >= 0 else ir.SymbolicDim(None)
    return ir.SymbolicDim(None) if size.value in _NO_NAMES else size


def _restore(declared: dict[ir.Value, Known]) -> list[str]:
    """Believe declarations where nothing was inferred; report those that were wrong."""
    notes: list[str] = []
    for value, (_kind, shape) in declared.items():
        node = value.producer()
        if shape is None or node is None:
            continue
        if value.shape is None:
            if value.is_graph_output() or node.domain not in DEFAULT_DOMAINS:
                value.shape = shape
            continue
        if not value.is_graph_output():
            continue
        if len(shape) != len(value.shape) or any(map(_contradicts, value.shape, shape)):
            notes.append(f"output {value.name!r}: declared {shape}, really {value.shape}")
            continue
        dims = [
            b if is_generated(a) and not isinstance(b, int) and b.value not in _NO_NAMES else a
            for a, b in zip(value.shape, shape, strict=True)
        ]
        value.shape = ir.Shape(dims)
    return notes


def _contradicts(real: int | ir.SymbolicDim, declared: int | ir.SymbolicDim) -> bool:
    return isinstance(real, int) and isinstance(declared, int) and real != declared


# --- what onnx's inference leaves open -----------------------------------------------------------


def _refine(model: ir.Model) -> set[ir.Value]:
    """Fill in sizes that follow from the elements of shape tensors; returns what changed."""
    symbols, changed = Symbols(model), set()
    for graph in walk(model.graph):
        for node in graph:
            changed |= tabular_shapes.learn(node)
            dims = _dims(node, symbols)
            if dims is None:
                continue
            value = node.outputs[0]
            old = None if value.shape is None else dims_of(value)
            if old is None:
                value.shape = ir.Shape([dim(d) for d in dims])
                changed.add(value)
            elif len(old) == len(dims):
                new = [_fill(a, b) for a, b in zip(old, dims, strict=True)]
                if any(a is not b for a, b in zip(old, new, strict=True)):
                    value.shape = ir.Shape(new)
                    changed.add(value)
    return changed


def _fill(old: int | ir.SymbolicDim, new: Element) -> int | ir.SymbolicDim:
    if not is_generated(old) or new is None:
        return old
    return old if isinstance(new, ir.SymbolicDim) and is_generated(new) else new


def _dims(node: ir.Node, symbols: Symbols) -> list[Element] | None:
    if is_op(node, "Reshape"):
        return _reshape(node, symbols.of(input_at(node, 1)))
    if is_op(node, "ConstantOfShape"):
        shape = symbols.of(input_at(node, 0))
        return None if shape is None or shape.ndim != 1 else list(shape)
    if is_op(node, "Expand"):
        return _expand(node, symbols.of(input_at(node, 1)))
    if is_op(node, "Resize"):
        return _resize(node, symbols.of(input_at(node, 3)))
    return None


def _resize(node: ir.Node, sizes: Elements | None) -> list[Element] | None:
    """Sizes as they are given; with factors, an axis that keeps its size keeps its name."""
    if attr(node, "axes") is not None:
        return None
    if sizes is not None and sizes.size:
        stretch = attr(node, "keep_aspect_ratio_policy", "stretch") == "stretch"
        return list(sizes) if stretch else None
    x, factors = node.inputs[0], small(input_at(node, 2))
    if x is None or x.shape is None or factors is None or factors.shape != (len(x.shape),):
        return None
    return [element(d) if factor == 1 else None for d, factor in zip(x.shape, factors, strict=True)]


def _reshape(node: ir.Node, shape: Elements | None) -> list[Element] | None:
    x = node.inputs[0]
    if shape is None or shape.ndim != 1 or x is None:
        return None
    source = None if x.shape is None else [element(d) for d in x.shape]
    dims: list[Element] = list(shape)
    if attr(node, "allowzero", 0) == 0:
        for i, d in enumerate(dims):
            if d == 0:
                dims[i] = source[i] if source is not None and i < len(source) else None
    if -1 in [d for d in dims if known(d)]:
        hole = next(i for i, d in enumerate(dims) if known(d) and d == -1)
        rest = dims[:hole] + dims[hole + 1 :]
        found = (_quotient([element(d) for d in dims_of(v)], rest) for v in _views(x))
        dims[hole] = next((d for d in found if d is not None), None)
    return dims


def _views(value: ir.Value) -> Iterator[ir.Value]:
    """The value and those it is a view of: all have as many elements, some with plainer sizes."""
    current: ir.Value | None = value
    while current is not None:
        if current.shape is not None:
            yield current
        node = current.producer()
        current = node.inputs[0] if node is not None and is_op(node, *VIEWS) else None


def _quotient(whole: list[Element], part: list[Element]) -> Element:
    """Product of ``whole`` over product of ``part``, sizes that are in both left out."""
    names = [d.value if isinstance(d, ir.SymbolicDim) else None for d in whole]
    left = list(whole)
    rest: list[Element] = []
    for d in part:
        if isinstance(d, ir.SymbolicDim) and d.value is not None and d.value in names:
            index = names.index(d.value)
            names[index], left[index] = None, 1
        else:
            rest.append(d)
    divisor = product(rest)
    numbers = product([d for d in left if isinstance(d, int)])
    if not isinstance(divisor, int) or not isinstance(numbers, int):
        return None
    if divisor <= 0 or numbers % divisor:
        return None
    return product([numbers // divisor, *(d for d in left if not isinstance(d, int))])


def _expand(node: ir.Node, shape: Elements | None) -> list[Element] | None:
    x = node.inputs[0]
    if shape is None or shape.ndim != 1 or x is None or x.shape is None:
        return None
    a, b = [element(d) for d in x.shape], list(shape)
    width = max(len(a), len(b))
    pad: list[Element] = [1] * width
    pairs = zip((pad + a)[-width:], (pad + b)[-width:], strict=True)
    return [_broadcast(p, q) for p, q in pairs] if width else []


def _broadcast(a: Element, b: Element) -> Element:
    if a == 1 or b == 1:
        return b if a == 1 else a
    if isinstance(a, int) or isinstance(b, int):
        return a if isinstance(a, int) else b
    return a if a is not None and b is not None and a.value == b.value else None
