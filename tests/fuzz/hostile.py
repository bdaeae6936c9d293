"""One-operator models with hostile numbers in every place that takes an integer.

Places are the integer attributes of an operator's schema, those that the node suite leaves to
their defaults too, and the operands that hold integers, as constants. Models of the node suite
stand for operators; of several with the same places the smallest one does.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import onnx
from onnx import AttributeProto, helper, numpy_helper

from tests.conformance.node_cases import Case, given_names, plain, suite

NUMBERS = (0, -1, 2**31 - 1, 2**31, 2**62, 2**63 - 1, -(2**62), -(2**63))
_MOST_ELEMENTS, _LARGE = 64, 1 << 14
_WHOLE = (AttributeProto.INT, AttributeProto.INTS)

MICROSOFT = """
MatMulNBits<K=32, N=4, bits=4, block_size=16>(f_2x32, u8_4x2x8, f_8)
MatMulNBits<K=32, N=4, bits=8, block_size=32>(f_2x32, u8_4x1x32, f_4, u8_4)
GroupQueryAttention<num_heads=2, kv_heads=1>(f_1x2x16, f_1x2x8, f_1x2x8, , , i_1, i_)
FusedConv<kernel_shape=[2, 2], group=1, strides=[1, 1]>(f_1x2x4x4, f_2x2x2x2)
SkipLayerNormalization(f_1x2x8, f_1x2x8, f_8)
RotaryEmbedding<num_heads=2, rotary_embedding_dim=0, interleaved=0>(f_1x2x16, l_1x2, f_2x4, f_2x4)
QLinearAdd(u8_4, f_, u8_, u8_4, f_, u8_, f_, u8_)
DequantizeLinear<axis=0, block_size=2>(u8_4x4, f_2x4, u8_2x4)
"""
"""Operators of ONNX Runtime: operands are kind and sizes."""

_KINDS = {"f": np.float32, "u8": np.uint8, "i": np.int32, "l": np.int64}


class Place(NamedTuple):
    """Where a number stands: an attribute or an operand of a model, and which of its numbers."""

    case: str
    model: onnx.ModelProto
    where: str | int
    which: slice
    values: tuple[int, ...]

    @property
    def title(self) -> str:
        """A name that says operator and place."""
        which = "all" if self.which == slice(None) else self.which.start
        return f"{self.model.graph.node[0].op_type} {self.where} {which} {self.case}"

    def model_with(self, number: int) -> onnx.ModelProto:
        """Return the model with that number there."""
        model = onnx.ModelProto()
        model.CopyFrom(self.model)
        (node,) = model.graph.node
        values = np.array(self.values, object)
        values[self.which] = number
        if isinstance(self.where, str):
            kept = [a for a in node.attribute if a.name != self.where]
            old = next((a for a in node.attribute if a.name == self.where), None)
            is_one = old.type == AttributeProto.INT if old is not None else len(values) == 1
            new = helper.make_attribute(
                self.where, int(values[0]) if is_one else [*map(int, values)]
            )
            del node.attribute[:]
            node.attribute.extend([*kept, new])
        else:
            (held,) = [t for t in model.graph.initializer if t.name == node.input[self.where]]
            before = numpy_helper.to_array(held)
            cut = [_cut(int(v), before.dtype) for v in values]
            array = np.array(cut, before.dtype).reshape(before.shape)
            held.CopyFrom(numpy_helper.from_array(array, held.name))
        for value in model.graph.output:
            # What a file says of results is not believed, but would be held against the number.
            value.type.tensor_type.ClearField("shape")
        return model


def places() -> list[Place]:
    """Return all places of all operators, each kind of model once."""
    found: dict[tuple[Any, ...], Place] = {}
    for case in [*suite(), *_microsoft()]:
        nodes = case.model.graph.node
        if len(nodes) != 1 or len(case.data_sets) != 1 or case.model.ByteSize() > _LARGE:
            continue
        for place in _places(case):
            key = (nodes[0].op_type, place.where, _which(place), *_forms(nodes[0]))
            kept = found.get(key)
            if kept is None or place.model.ByteSize() < kept.model.ByteSize():
                found[key] = place
    return list(found.values())


def forms() -> Iterator[tuple[str, onnx.ModelProto]]:
    """Yield every place with every number, and a name of both."""
    for place in places():
        for number in NUMBERS:
            yield f"{place.title} = {number}", place.model_with(number)


def seeds() -> list[bytes]:
    """Return a model for each operator, for ``in_numbers``."""
    models = {place.model.graph.node[0].op_type: place.model for place in places()}
    return [model.SerializeToString() for model in models.values()]


def in_numbers(raw: bytes, rng: random.Random) -> bytes:
    """Put a hostile number into one integer of a model, or into several."""
    model = onnx.ModelProto.FromString(raw)
    for _ in range(rng.choice((1, 1, 2, 3))):
        wholes = [a for n in model.graph.node for a in n.attribute if a.type in _WHOLE]
        held = [
            tensor
            for tensor in model.graph.initializer
            if numpy_helper.to_array(tensor).dtype.kind in "iu" and math.prod(tensor.dims)
        ]
        found = rng.choice([*wholes, *held] or [None])
        if isinstance(found, AttributeProto) and found.type == AttributeProto.INT:
            found.i = rng.choice(NUMBERS)
        elif isinstance(found, AttributeProto) and found.ints:
            found.ints[rng.randrange(len(found.ints))] = rng.choice(NUMBERS)
        elif isinstance(found, onnx.TensorProto):
            values = numpy_helper.to_array(found)
            array = values.copy().reshape(-1)
            array[rng.randrange(array.size)] = _cut(rng.choice(NUMBERS), values.dtype)
            found.CopyFrom(numpy_helper.from_array(array.reshape(values.shape), found.name))
    return bytes(model.SerializeToString())


def _cut(number: int, dtype: np.dtype[Any]) -> int:
    limits = np.iinfo(dtype)
    return min(max(number, int(limits.min)), int(limits.max))


def _which(place: Place) -> object:
    return None if place.which == slice(None) else place.which.start


def _forms(node: onnx.NodeProto) -> tuple[object, ...]:
    """What tells forms of an operator apart: which operands and results, and words."""
    words = tuple(sorted((a.name, a.s) for a in node.attribute if a.type == AttributeProto.STRING))
    return tuple(map(bool, node.input)), len(node.output), words


def _places(case: Case) -> Iterator[Place]:
    (node,) = case.model.graph.node
    names = given_names(case.model)
    if any(isinstance(plain(v), list) or v is None for v in case.data_sets[0][0]):
        arrays: dict[str, Any] = {}
    else:
        arrays = dict(zip(names, map(np.asarray, map(plain, case.data_sets[0][0])), strict=False))
    held = _held(case.model, node, arrays)
    version = {o.domain: o.version for o in case.model.opset_import}.get(node.domain, 1)
    for name, values in _attributes(node, version):
        yield from _each(case.name, held, name, values)
    known = {t.name: numpy_helper.to_array(t) for t in held.graph.initializer}
    for index, name in enumerate(node.input):
        if name in known and known[name].dtype.kind in "iu" and name:
            yield from _each(case.name, held, index, [int(v) for v in known[name].flat])


def _each(
    case: str, model: onnx.ModelProto, where: str | int, values: Sequence[int]
) -> Iterator[Place]:
    """Yield the first, the last and all of the numbers."""
    for which in (slice(0, 1), slice(len(values) - 1, len(values)), slice(None))[
        : 3 if len(values) > 1 else 1
    ]:
        yield Place(case, model, where, which, tuple(values))


def _held(model: onnx.ModelProto, node: onnx.NodeProto, arrays: dict[str, Any]) -> onnx.ModelProto:
    """Return the model with what it is given of integers, and of few numbers, as constants."""
    held = onnx.ModelProto()
    held.CopyFrom(model)
    constant = {
        name: arrays[name]
        for index, name in enumerate(node.input)
        if name in arrays
        and arrays[name].dtype.kind in "iuf"
        and arrays[name].size <= _MOST_ELEMENTS
        and (arrays[name].dtype.kind in "iu" or index)
    }
    kept = [v for v in held.graph.input if v.name not in constant]
    del held.graph.input[:]
    held.graph.input.extend(kept)
    for name, array in constant.items():
        held.graph.initializer.append(numpy_helper.from_array(array, name))
    return held


def _attributes(node: onnx.NodeProto, version: int) -> Iterator[tuple[str, list[int]]]:
    given = {a.name: a for a in node.attribute}
    for attribute in given.values():
        if attribute.type == AttributeProto.INT:
            yield attribute.name, [attribute.i]
        elif attribute.type == AttributeProto.INTS and attribute.ints:
            yield attribute.name, list(attribute.ints)
    try:
        schema = onnx.defs.get_schema(node.op_type, version, node.domain)
    except onnx.defs.SchemaError:
        return
    for name, formal in schema.attributes.items():
        if name not in given and int(formal.type) in _WHOLE:
            # So long as those that it does have; else as the axes of a picture.
            lengths = [len(a.ints) for a in given.values() if a.ints]
            count = 1 if int(formal.type) == AttributeProto.INT else max(lengths, default=2)
            yield name, [1] * count


def _microsoft() -> Iterator[Case]:
    for number, line in enumerate(filter(None, MICROSOFT.strip().splitlines())):
        head, _, operands = line.rpartition("(")
        rng, names, arrays = np.random.default_rng(0), list[str](), list[Any]()
        for index, word in enumerate(operands.rstrip(")").split(",")):
            names.append(f"x{index}" if word.strip() else "")
            if word.strip():
                kind, _, sizes = word.strip().partition("_")
                shape = tuple(map(int, sizes.split("x"))) if sizes else ()
                arrays.append((rng.random(shape) * 2).astype(_KINDS[kind]))
        infos = [
            helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape)
            for n, a in zip(filter(None, names), arrays, strict=True)
        ]
        node = onnx.parser.parse_node(f"y = com.microsoft.{head}({', '.join(filter(None, names))})")
        del node.input[:]
        node.input.extend(names)
        outputs = [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, None)]
        graph = helper.make_graph([node], "g", infos, outputs)
        opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
        model = helper.make_model(graph, opset_imports=opsets, ir_version=10)
        yield Case(f"microsoft_{number}", model, [(arrays, [])], 1e-3, 1e-5)
