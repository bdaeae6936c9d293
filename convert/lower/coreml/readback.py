"""Read back what a package holds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any


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


def weighted(path: Path) -> list[tuple[str, str, str, str]]:
    """List name, operator, activations and stored weights of every operator with weights.

    Activations are ``int8`` where the operand was quantized just before.
    """
    from coremltools.proto import MIL_pb2, Model_pb2

    from edgeinfer.convert.lower.coreml.package import SPEC

    spec = Model_pb2.Model()
    spec.ParseFromString((path / SPEC).read_bytes())
    names = {
        MIL_pb2.FLOAT32: "fp32",
        MIL_pb2.FLOAT16: "fp16",
        **dict.fromkeys((MIL_pb2.INT8, MIL_pb2.UINT8), "int8"),
        **dict.fromkeys((MIL_pb2.INT4, MIL_pb2.UINT4), "int4"),
    }
    found = []
    for function in spec.mlProgram.functions.values():
        for block in function.block_specializations.values():
            made = {o.name: op for op in _operators(block) for o in op.outputs}
            for op in _operators(block):
                weight = _source(op, _WEIGHTS.get(op.type, ""), made)
                if weight is None or not weight.type.startswith("const"):
                    continue
                operand = _source(op, "x", made)
                quantized = operand is not None and operand.type == "dequantize"
                kind = "int8" if quantized else names.get(_types(op)[0], "")
                found.append((op.outputs[0].name, op.type, kind, _stored(weight, names)))
    return found


_WEIGHTS = {"conv": "weight", "conv_transpose": "weight", "linear": "weight", "matmul": "y"}


def _source(op: Any, name: str, made: dict[str, Any]) -> Any:
    """The operator that makes an operand."""
    arguments = op.inputs[name].arguments if name in op.inputs else []
    return made.get(arguments[0].name) if arguments else None


def _stored(weight: Any, names: dict[int, str]) -> str:
    """The type that a constant, or the values under a constant expression, lie in the file in."""
    if weight.type == "const":
        return names.get(_types(weight)[0], "")
    if weight.type == "constexpr_lut_to_dense":
        return "int8"
    for name in ("quantized_data", "data", "source_val"):
        if name in weight.attributes:
            return names.get(weight.attributes[name].type.tensorType.dataType, "")
        if name in weight.inputs:
            value = weight.inputs[name].arguments[0].value
            return names.get(value.type.tensorType.dataType, "")
    return ""
