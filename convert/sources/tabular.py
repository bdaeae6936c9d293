"""Maps and strings of tabular models: cut off or numbered, so that all that is left is tensors.

Converters of scikit-learn, XGBoost and LightGBM end a classifier in ``ZipMap``, which makes a list
of dictionaries of its scores, and name classes by strings. Only ONNX Runtime has either. The scores
themselves are the same numbers; a class is its place among the labels, which the bundle carries.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir

from edgeinfer.convert.families import MOVES
from edgeinfer.errors import Remarks, SourceError

DOMAIN = "ai.onnx.ml"
_MAIN = ("", "ai.onnx")


def cut_maps(proto: onnx.ModelProto, name: str, notes: Remarks) -> tuple[str, ...]:
    """Take ``ZipMap`` off the outputs of a model, in place; returns the classes it named, if any.

    Raises:
        SourceError: maps are used in another way, or are an input.
    """
    graph = proto.graph
    indices = [i for i, n in enumerate(graph.node) if n.op_type == "ZipMap" and n.domain == DOMAIN]
    maps = [graph.node[i] for i in indices]
    read = {value for node in graph.node for value in node.input}
    outputs = {v.name: v for v in graph.output}
    taken = {v.name for v in (*graph.input, *graph.initializer, *graph.output)}
    named: list[tuple[str, ...]] = []
    moved: dict[str, str] = {}
    copied: list[tuple[str, str]] = []
    for node in maps:
        if len(node.input) != 1 or len(node.output) != 1:
            raise SourceError(f"{name}: node {node.name or node.op_type!r} is no map of one value")
        scores, result = node.input[0], node.output[0]
        if result in read or result not in outputs:
            raise SourceError(f"{name}: node {node.name or node.op_type!r} makes maps for another")
        names = _names(node, name)
        shown = f"{names[0]!r} to {names[-1]!r}" if names else "their place"
        notes.add(f"output {result!r}: a list of maps (ZipMap): cut off, its scores are the output")
        named.append(names)
        notes.add(f"output {result!r}: its columns are the classes {shown}, in this order")
        info = outputs[result]
        info.type.Clear()
        info.type.tensor_type.elem_type = onnx.TensorProto.FLOAT
        if scores in taken or scores in moved:
            copied.append((scores, result))
        else:
            moved[scores] = result
    for place in reversed(indices):
        del graph.node[place]
    _rename(graph, moved)
    for scores, result in copied:
        given = [moved.get(scores, scores)]
        graph.node.append(onnx.helper.make_node("Identity", given, [result], f"{result}_scores"))
    _refuse_maps(proto, name)
    counted = named[0] if named and len(set(named)) == 1 else ()
    return () if counted == tuple(map(str, range(len(counted)))) else counted


def has_maps(proto: onnx.ModelProto) -> bool:
    """Whether any value of the main graph is a map, or a list of them."""
    graph = proto.graph
    if any(n.op_type == "ZipMap" and n.domain == DOMAIN for n in graph.node):
        return True
    return any(_is_map(v.type) for v in (*graph.input, *graph.output))


def _is_map(kind: onnx.TypeProto) -> bool:
    if kind.HasField("sequence_type"):
        return _is_map(kind.sequence_type.elem_type)
    return bool(kind.HasField("map_type"))


def _names(node: onnx.NodeProto, name: str) -> tuple[str, ...]:
    for attribute in node.attribute:
        if attribute.name == "classlabels_strings" and attribute.strings:
            try:
                return tuple(s.decode() for s in attribute.strings)
            except UnicodeDecodeError as e:
                raise SourceError(f"{name}: a class of {node.name or 'ZipMap'!r}: {e}") from e
        if attribute.name == "classlabels_int64s" and attribute.ints:
            return tuple(str(i) for i in attribute.ints)
    return ()


def _rename(graph: onnx.GraphProto, names: dict[str, str]) -> None:
    """Let values have the names of outputs, in one pass."""
    if not names:
        return
    for node in graph.node:
        for given in (node.input, node.output):
            for index, value in enumerate(given):
                if value in names:
                    given[index] = names[value]
    gone = {*names, *names.values()}
    kept = [v for v in graph.value_info if v.name not in gone]
    del graph.value_info[:]
    graph.value_info.extend(kept)


def _refuse_maps(proto: onnx.ModelProto, name: str) -> None:
    found = [v.name for v in (*proto.graph.input, *proto.graph.output) if _is_map(v.type)]
    if found:
        raise SourceError(
            f"{name}: {', '.join(map(repr, found))}: a map is no tensor, and no device takes one; "
            "export the model with numbers for it (skl2onnx: without DictVectorizer; "
            "options={'zipmap': False})"
        )


# ---- types

_KEYS = {
    "keys_floats": onnx.TensorProto.FLOAT,
    "keys_int64s": onnx.TensorProto.INT64,
    "keys_strings": onnx.TensorProto.STRING,
}


def with_key_types(proto: onnx.ModelProto) -> onnx.ModelProto:
    """Return a model that states the types of what ``LabelEncoder`` reads, which its keys tell.

    Where nothing states one, as of what trees give, onnx's inference (1.23) ends the process.
    """
    graph = proto.graph
    stated = {v.name for v in (*graph.input, *graph.output, *graph.value_info)}
    stated |= {t.name for t in graph.initializer}
    missing: dict[str, int] = {}
    for node in graph.node:
        if node.op_type == "LabelEncoder" and node.domain == DOMAIN and node.input:
            given = (_KEYS.get(a.name) or a.t.data_type for a in node.attribute if _is_keys(a))
            kind = next(given, 0)
            if kind and node.input[0] not in stated:
                missing[node.input[0]] = kind
    if not missing:
        return proto
    own = onnx.ModelProto()
    own.CopyFrom(proto)
    own.graph.value_info.extend(
        onnx.helper.make_tensor_value_info(name, kind, None) for name, kind in missing.items()
    )
    return own


def _is_keys(attribute: onnx.AttributeProto) -> bool:
    return attribute.name == "keys_tensor" or attribute.name in _KEYS


# ---- equations


def solve_known(model: ir.Model, notes: Remarks) -> None:
    """Write the solution of equations with a known matrix, which no engine has, as a product.

    Given: ``x = com.microsoft.Solve(a, b)``, as skl2onnx writes it, with a constant ``a``
    Result: ``x = MatMul(inverse of a, b)``
    """
    inverses: dict[tuple[int, bool, bool], ir.Value | None] = {}
    for node in list(model.graph):
        if node.op_type != "Solve" or node.domain != "com.microsoft" or not node.inputs:
            continue
        flags = [n in node.attributes and bool(node.attributes[n].value) for n in _SOLVED]
        key = id(node.inputs[0]), flags[0], flags[1]
        if key not in inverses:
            inverses[key] = _inverse(model, node.inputs[0], *flags)
        if (value := inverses[key]) is None:
            continue
        node.replace_input_with(0, value)
        node.domain, node.op_type = "", "MatMul"
        node.attributes.clear()
        notes.add(f"node {node.name or 'Solve'!r} (Solve): its matrix is known: a product")


_SOLVED = ("lower", "transposed")
_MOST_EQUATIONS = 4096
_MOST_LOST = 1e-3
"""Of a solution, by the matrix's condition and the precision of its numbers."""


def _inverse(
    model: ir.Model, value: ir.Value | None, is_lower: bool, is_transposed: bool
) -> ir.Value | None:
    """Return the inverse of a known matrix; None where a product would not be the solution."""
    known = None if value is None else ir.convenience.get_const_tensor(value)
    given = None if known is None else np.asarray(known.numpy())
    if known is None or given is None or given.dtype not in (np.float32, np.float64):
        return None
    if given.ndim != 2 or not 0 < len(given) == given.shape[1] <= _MOST_EQUATIONS:
        return None
    matrix = np.tril(given) if is_lower else given
    matrix = (matrix.T if is_transposed else matrix).astype(np.float64)
    try:
        inverse = np.linalg.inv(matrix)
    except np.linalg.LinAlgError:
        return None
    condition = np.linalg.norm(matrix, 1) * np.linalg.norm(inverse, 1)
    if not condition * np.finfo(given.dtype).eps < _MOST_LOST:
        return None
    name = f"{known.name or 'matrix'}_inverse_{len(model.graph.initializers)}"
    made = ir.Value(
        name=name,
        shape=ir.Shape(inverse.shape),
        type=ir.TensorType(known.dtype),
        const_value=ir.tensor(inverse.astype(given.dtype), name=name),
    )
    model.graph.register_initializer(made)
    return made


# ---- strings


class _StaysText(Exception):  # noqa: N818 - a way out, not an error
    """Strings are used in a way that numbers are not."""


def number_strings(model: ir.Model, notes: Remarks) -> tuple[str, ...]:
    """Replace strings that a model knows by their place in one list, in place; returns the list.

    Nothing is done, and nothing returned, where strings come in from outside or are more than
    compared and moved: ONNX Runtime alone runs such a model.
    """
    texts = [v for v in _values(model) if v.dtype == ir.DataType.STRING]
    made = any(_strings_of(n) for n in model.graph)
    if not texts and not made:
        return ()
    if any(v.dtype == ir.DataType.STRING for v in model.graph.inputs):
        return ()
    words = _Words()
    try:
        edits = [edit for node in model.graph for edit in _edits(node, words)]
        constants = [v for v in model.graph.initializers.values() if _is_text(v.const_value)]
        for value in constants:
            _number(value, words)
    except _StaysText:
        return ()
    for edit in edits:
        edit()
    for value in _values(model):
        if value.dtype == ir.DataType.STRING:
            value.type = ir.TensorType(ir.DataType.INT64)
    shown = [v for v in model.graph.outputs if v.name in {t.name for t in texts}]
    for value in shown:
        notes.add(f"output {value.name!r}: text: its place among the labels now, an integer")
    return tuple(words.positions) if shown else ()


class _Words:
    """All strings of a model, in the order in which they turn up."""

    def __init__(self) -> None:
        self.positions: dict[str, int] = {}

    def number(self, word: Any) -> int:
        text = word.decode() if isinstance(word, bytes) else str(word)
        return self.positions.setdefault(text, len(self.positions))

    def numbers(self, words: Any) -> list[int]:
        return [self.number(w) for w in words]


_LABELS = {
    "TreeEnsembleClassifier": "classlabels_int64s",
    "LinearClassifier": "classlabels_ints",
    "SVMClassifier": "classlabels_ints",
}
_ALIKE = MOVES | {"ArrayFeatureExtractor", "Concat", "Equal", "Where", "Shape", "Size"}
"""Operators that do the same with numbers in the place of strings."""

Edit = Callable[[], None]


def _values(model: ir.Model) -> Iterator[ir.Value]:
    yield from model.graph.inputs
    for node in model.graph:
        yield from node.outputs


def _strings_of(node: ir.Node) -> list[str]:
    """Attributes that are strings of data."""
    return [
        name
        for name, a in node.attributes.items()
        if a.type == ir.AttributeType.STRINGS
        and name.startswith(("classlabels_", "cats_", "keys_", "values_"))
    ]


def _is_text(tensor: ir.TensorProtocol | None) -> bool:
    return tensor is not None and tensor.dtype == ir.DataType.STRING


def _number(value: ir.Value, words: _Words) -> None:
    """Make a constant of strings one of integers."""
    tensor = value.const_value
    if tensor is None:
        return
    value.const_value = _numbered(tensor, words, value.name)
    value.type = ir.TensorType(ir.DataType.INT64)


def _numbered(tensor: ir.TensorProtocol, words: _Words, name: str | None) -> ir.TensorProtocol:
    array = np.asarray(tensor.numpy())
    numbers = np.asarray(words.numbers(array.reshape(-1)), np.int64).reshape(array.shape)
    return ir.tensor(numbers, name=name)


def _edits(node: ir.Node, words: _Words) -> Iterator[Edit]:
    """What turns a node's strings into numbers.

    Raises:
        _StaysText: nothing does.
    """
    own = _strings_of(node)
    takes = any(v is not None and v.dtype == ir.DataType.STRING for v in node.inputs)
    gives = any(v.dtype == ir.DataType.STRING for v in node.outputs)
    if node.domain == DOMAIN and node.op_type in _LABELS:
        if own:
            numbers = words.numbers(node.attributes["classlabels_strings"].value)
            yield lambda: _swap(node, own, {_LABELS[node.op_type]: numbers})
    elif node.domain == DOMAIN and node.op_type == "OneHotEncoder" and own:
        numbers = words.numbers(node.attributes["cats_strings"].value)
        yield lambda: _swap(node, own, {"cats_int64s": numbers})
    elif node.domain == DOMAIN and node.op_type == "LabelEncoder":
        yield from _encoder(node, words)
    elif node.domain == DOMAIN and node.op_type == "CategoryMapper":
        yield _mapper(node, words)
    elif node.op_type == "Constant" and gives:
        yield _constant(node, words)
    elif (takes or gives or own) and node.op_type not in _ALIKE:
        raise _StaysText


def _swap(node: ir.Node, gone: list[str], new: dict[str, Any]) -> None:
    for name in gone:
        node.attributes.pop(name)
    for name, value in new.items():
        node.attributes.add(
            ir.AttrInt64s(name, value) if isinstance(value, list) else _attr(name, value)
        )


def _attr(name: str, value: Any) -> ir.Attr:
    return value if isinstance(value, ir.Attr) else ir.AttrInt64(name, value)


def _encoder(node: ir.Node, words: _Words) -> Iterator[Edit]:
    gone: list[str] = []
    new: dict[str, Any] = {}
    for what in ("keys", "values"):
        found = node.attributes.get(f"{what}_strings")
        if found is not None:
            gone.append(found.name)
            new[f"{what}_int64s"] = words.numbers(found.value)
    for name in ("keys_tensor", "values_tensor", "default_tensor"):
        found = node.attributes.get(name)
        if found is not None and _is_text(found.as_tensor()):
            new[name] = ir.AttrTensor(name, _numbered(found.as_tensor(), words, None))
    if "values_int64s" in new and "values_strings" in gone:
        default = node.attributes.get("default_string")
        text = "_Unused" if default is None else default.value
        gone += [] if default is None else ["default_string"]
        gone += ["default_int64"] if "default_int64" in node.attributes else []
        new["default_int64"] = words.number(text)
    if gone or new:
        yield lambda: _swap(node, gone, new)


def _mapper(node: ir.Node, words: _Words) -> Edit:
    """CategoryMapper as a LabelEncoder: which way it goes says the type of what comes in."""
    strings = words.numbers(node.attributes["cats_strings"].value)
    integers = [int(v) for v in node.attributes["cats_int64s"].value]
    first = node.inputs[0]
    from_text = first is not None and first.dtype == ir.DataType.STRING
    if first is None or first.dtype is None:
        raise _StaysText
    if from_text:
        default = node.attributes.get("default_int64")
        missing = -1 if default is None else default.as_int()
    else:
        default = node.attributes.get("default_string")
        missing = words.number("_Unused" if default is None else default.value)
    keys, values = (strings, integers) if from_text else (integers, strings)

    def edit() -> None:
        node.op_type = "LabelEncoder"
        node.attributes.clear()
        new = {"keys_int64s": keys, "values_int64s": values, "default_int64": missing}
        _swap(node, [], new)

    return edit


def _constant(node: ir.Node, words: _Words) -> Edit:
    found = node.attributes.get("value")
    if found is not None:
        tensor = _numbered(found.as_tensor(), words, None)
    elif (strings := node.attributes.get("value_strings")) is not None:
        tensor = ir.tensor(np.asarray(words.numbers(strings.value), np.int64))
    elif (string := node.attributes.get("value_string")) is not None:
        tensor = ir.tensor(np.asarray(words.number(string.value), np.int64))
    else:
        raise _StaysText

    def edit() -> None:
        node.attributes.clear()
        node.attributes.add(ir.AttrTensor("value", tensor))

    return edit
