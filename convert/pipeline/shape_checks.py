"""What was asked of sizes, ranges and states, held against the model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from edgeinfer.convert.pipeline.shape_sets import Ranges
from edgeinfer.errors import SourceError, UsageError
from edgeinfer.types import TensorSpec

if TYPE_CHECKING:
    import onnx_ir as ir


def check_ranges(model: ir.Model, ranges: Ranges) -> None:
    """Refuse bounds of what a model does not leave open.

    Raises:
        UsageError: an input is unknown, or its size is fixed.
    """
    inputs = {v.name: v for v in model.graph.inputs}
    for (name, axis), (low, high) in ranges.items():
        shape = inputs[name].shape if name in inputs else None
        if shape is None or axis >= len(shape):
            raise UsageError(f"sizes {low}..{high}: there is no axis {axis} of an input {name!r}")
        if isinstance(shape[axis], int):
            raise UsageError(
                f"input {name!r}: axis {axis} has the fixed size {shape[axis]}, not {low}..{high}; "
                "export the model with an open size"
            )


def check_input_ranges(
    inputs: Sequence[TensorSpec], ranges: Mapping[str, tuple[float, float]]
) -> None:
    """Refuse ranges of values of what is no input, or holds no numbers.

    Raises:
        UsageError: says which, and what there is.
    """
    known = {s.name: s for s in inputs}
    for name in ranges:
        if name not in known:
            there = ", ".join(map(repr, known))
            raise UsageError(f"input range {name!r}: no input of this name; there are {there}")
        if known[name].dtype in ("string", "bool"):
            raise UsageError(f"input range {name!r}: {known[name].dtype} has no range of numbers")


def check_states(model: ir.Model, states: Mapping[str, str]) -> None:
    """Refuse states that are no input, no output, or of another kind than the output.

    Raises:
        UsageError: says which, and what there is.
    """
    inputs = {v.name: v for v in model.graph.inputs}
    outputs = {v.name: v for v in model.graph.outputs}
    for source, result in states.items():
        for name, known, side in ((source, inputs, "input"), (result, outputs, "output")):
            if name not in known:
                there = ", ".join(repr(n) for n in known)
                raise UsageError(f"state {source}:{result}: no {side} {name!r}; there are {there}")
        taken, given = inputs[source], outputs[result]
        if taken.dtype != given.dtype or not _may_equal(taken.shape, given.shape):
            raise UsageError(
                f"state {source}:{result}: the input is {taken.dtype}{taken.shape}, the output "
                f"{given.dtype}{given.shape}"
            )


def _may_equal(one: ir.Shape | None, two: ir.Shape | None) -> bool:
    if one is None or two is None:
        return True
    fixed = [(a, b) for a, b in zip(one, two, strict=False) if isinstance(a, int)]
    return len(one) == len(two) and all(not isinstance(b, int) or a == b for a, b in fixed)


def check_tensors(model: ir.Model) -> None:
    """Refuse inputs and outputs that are no tensors, which no bundle can describe.

    Raises:
        SourceError: lists all of them.
    """
    import onnx_ir as ir

    found = [
        f"{kind} {value.name!r} is {what}"
        for kind, values in (("input", model.graph.inputs), ("output", model.graph.outputs))
        for value in values
        for of, what in ((ir.SequenceType, "a list of tensors"), (ir.OptionalType, "optional"))
        if isinstance(value.type, of)
    ]
    if found:
        raise SourceError(
            f"{'; '.join(found)}: inputs and outputs of a bundle are tensors; give the tensors "
            "themselves (ConcatFromSequence, SequenceAt, OptionalGetElement in the model)"
        )
