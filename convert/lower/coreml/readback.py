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
