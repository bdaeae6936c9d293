"""Read back what a package holds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from edgeinfer.records import dataclass


def read_back(path: Path) -> tuple[str, dict[str, int]]:
    """Return the precision and the operator counts of a package.

    The precision joins every floating-point type of weights and of what operators make, e.g.
    ``fp16+fp32``; conversions at the program's own inputs and outputs do not count.
    """
    from coremltools.proto import MIL_pb2, Model_pb2

    from edgeinfer.convert.lower.coreml.package import SPEC

    spec = Model_pb2.Model()
    spec.ParseFromString((path / SPEC).read_bytes())
    names = {MIL_pb2.FLOAT32: "fp32", MIL_pb2.FLOAT16: "fp16"}
    found: set[str] = set()
    ops: Counter[str] = Counter()
    for function in spec.mlProgram.functions.values():
        outputs = {n for b in function.block_specializations.values() for n in b.outputs}
        for block in function.block_specializations.values():
            for op in _operators(block):
                if op.type == "const":
                    found |= {names[t] for t in _types(op) if t in names and _is_weight(op)}
                    continue
                ops[op.type] += 1
                if op.type == "constexpr_cast":
                    found.add("fp16")
                if op.type == "cast" and any(o.name in outputs for o in op.outputs):
                    continue
                found |= {names[t] for t in _types(op) if t in names}
    order = [n for n in ("fp16", "fp32") if n in found]
    return "+".join(order) or "fp32", dict(sorted(ops.items()))


def _operators(block: Any) -> Iterator[Any]:
    for op in block.operations:
        yield op
        for inner in op.blocks:
            yield from _operators(inner)


def _types(op: Any) -> list[int]:
    return [o.type.tensorType.dataType for o in op.outputs if o.type.HasField("tensorType")]


def _is_weight(op: Any) -> bool:
    value = op.attributes["val"]
    return bool(value.HasField("blobFileValue"))


@dataclass(frozen=True, slots=True)
class ReadWeights:
    """The weights of an operator.

    Attributes:
        name: Name of the operator's result.
        op: the operator.
        activations: type of what they are combined with; ``int8`` where that was quantized just
            before.
        stored: as in a recipe's name: ``fp16``, ``int8``, ``int4``, ``p4`` (a palette), ``p4g16``,
            ``s`` (sparse), ``sp4``, ``si8`` or ``p4i8``.
        zeros: share of them that is zero and not stored.
    """

    name: str
    op: str
    activations: str
    stored: str
    zeros: float = 0.0


def weighted(path: Path) -> list[ReadWeights]:
    """List every operator with weights."""
    from coremltools.proto import Model_pb2

    from edgeinfer.convert.lower.coreml.package import SPEC

    spec = Model_pb2.Model()
    spec.ParseFromString((path / SPEC).read_bytes())
    found = []
    for function in spec.mlProgram.functions.values():
        for block in function.block_specializations.values():
            made = {o.name: op for op in _operators(block) for o in op.outputs}
            for op in _operators(block):
                weight = _source(op, _WEIGHTS.get(op.type, ""), made)
                while weight is not None and weight.type in _MOVES:
                    weight = _source(weight, "x", made)
                if weight is None or not weight.type.startswith("const"):
                    continue
                operand = _source(op, "x", made)
                quantized = operand is not None and operand.type == "dequantize"
                kind = "int8" if quantized else _names().get(_types(op)[0], "")
                stored, zeros = _stored(weight, made)
                found.append(ReadWeights(op.outputs[0].name, op.type, kind, stored, zeros))
    return found


_WEIGHTS = {
    **{"conv": "weight", "conv_transpose": "weight", "linear": "weight", "matmul": "y"},
    **{"gather": "x", "lstm": "weight_ih", "gru": "weight_ih", "rnn": "weight_ih"},
}

_MOVES = frozenset({"squeeze", "reshape", "transpose", "slice_by_index"})
"""What may stand between packed weights and their product: they cannot be cut beforehand."""


def _names() -> dict[int, str]:
    from coremltools.proto import MIL_pb2

    return {
        MIL_pb2.FLOAT32: "fp32",
        MIL_pb2.FLOAT16: "fp16",
        **dict.fromkeys((MIL_pb2.INT8, MIL_pb2.UINT8), "int8"),
        **dict.fromkeys((MIL_pb2.INT4, MIL_pb2.UINT4), "int4"),
    }


def _source(op: Any, name: str, made: dict[str, Any]) -> Any:
    """The operator that makes an operand."""
    arguments = op.inputs[name].arguments if name in op.inputs else []
    return made.get(arguments[0].name) if arguments else None


def _stored(weight: Any, made: dict[str, Any]) -> tuple[str, float]:
    """How weights lie in the file, and the share of zeros that do not."""
    if weight.type == "const":
        return _names().get(_types(weight)[0], ""), 0.0
    if weight.type == "constexpr_lut_to_dense":
        return _palette(weight, made), 0.0
    if weight.type == "constexpr_sparse_to_dense":
        inner = _source(weight, "nonzero_data", made)
        kind = ""
        if inner is not None and inner.type in _INNER:
            kind = _palette(inner, made) if "lut" in inner.type else "i8"
        return f"s{kind}", _zeros(weight, made)
    for name in ("quantized_data", "data", "source_val"):
        if (value := _operand(weight, name)) is not None:
            return _names().get(value.type.tensorType.dataType, ""), 0.0
    return "", 0.0


def _operand(op: Any, name: str) -> Any:
    """The type and value of an operand that is written in place; None for one made elsewhere."""
    if name in op.attributes:
        return op.attributes[name]
    arguments = op.inputs[name].arguments if name in op.inputs else []
    return arguments[0].value if arguments and arguments[0].HasField("value") else None


def _shape(op: Any, name: str, made: dict[str, Any]) -> list[int]:
    value = _operand(op, name)
    if value is None:
        maker = _source(op, name, made)
        if maker is None:
            return []
        value = maker.outputs[0]
    return [int(d.constant.size) for d in value.type.tensorType.dimensions]


def _palette(op: Any, made: dict[str, Any]) -> str:
    """``p`` and the bits of an index; ``g`` and the channels of a group where there are several."""
    table = _shape(op, "lut", made)
    entries = table[0] if len(table) == 1 else table[-2]
    name = f"p{(entries - 1).bit_length()}"
    groups = next(((axis, n) for axis, n in enumerate(table[:-2]) if n > 1), None)
    if groups is not None:
        dense = op if op.type == "constexpr_lut_to_dense" else _dense(op, made)
        size = int(dense.outputs[0].type.tensorType.dimensions[groups[0]].constant.size)
        name += f"g{size // groups[1]}"
    integers = _source(op, "lut", made)
    return name + ("i8" if integers is not None and integers.type != "const" else "")


def _dense(op: Any, made: dict[str, Any]) -> Any:
    """The operator that makes a full tensor of what another one gives without its zeros."""
    name = op.outputs[1].name
    return next(
        other
        for other in made.values()
        if "nonzero_data" in other.inputs and other.inputs["nonzero_data"].arguments[0].name == name
    )


def _zeros(op: Any, made: dict[str, Any]) -> float:
    """The share of a tensor that is not stored."""
    dense = op.outputs[0].type.tensorType.dimensions
    total = int(np.prod([d.constant.size for d in dense]))
    inner = _source(op, "nonzero_data", made)
    packed = inner is not None and inner.type in _INNER
    holder, name = (inner, _INNER[inner.type]) if packed else (op, "nonzero_data")
    return 1.0 - _shape(holder, name, made)[0] / total


_INNER = {
    "constexpr_lut_to_sparse": "indices_nonzero_data",
    "constexpr_sparse_blockwise_shift_scale": "nonzero_data",
}
