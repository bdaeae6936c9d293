"""Give inputs the fixed shapes that were requested."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import onnx_ir as ir

from edgeinfer.convert.passes.infra import PassOutcome, outcome
from edgeinfer.errors import UsageError

Shapes = Mapping[str, Sequence[int | None]]


class BindShapes(ir.passes.InPlacePass):
    """Bind the sizes of inputs; a name of a size is bound everywhere it stands.

    Given: ``float[N,3,H,W] x, float[N,4] box`` and ``{"x": (1, 3, 224, 224)}``
    Result: ``float[1,3,224,224] x, float[1,4] box``
    """

    def __init__(self, shapes: Shapes) -> None:
        self.shapes = shapes

    def call(self, model: ir.Model) -> PassOutcome:
        """Check everything first, then bind.

        Raises:
            UsageError: an unknown input, another rank, a size that is declared differently, or
                one name bound to two sizes.
        """
        inputs = {v.name: v for v in model.graph.inputs if v.name}
        bound: dict[str, tuple[int, str]] = {}
        for name, shape in self.shapes.items():
            if name not in inputs:
                known = ", ".join(repr(n) for n in inputs) or "none"
                raise UsageError(f"no input {name!r} to give a shape; the inputs are: {known}")
            _check(inputs[name], shape, bound)
        count = 0
        for value in model.graph.inputs:
            count += _bind(value, self.shapes.get(value.name or ""), bound)
        for value in model.graph.outputs:
            _bind(value, None, bound)
        return outcome(model, count)


def _check(value: ir.Value, shape: Sequence[int | None], bound: dict[str, tuple[int, str]]) -> None:
    what = f"input {value.name!r}"
    declared = None if value.shape is None else list(value.shape)
    shown = ",".join("?" if d is None else str(d) for d in shape)
    if declared is None:
        if any(d is None for d in shape):
            raise UsageError(f"{what}: its rank is unknown, so all sizes are needed, not [{shown}]")
        declared = [ir.SymbolicDim(None)] * len(shape)
    if len(declared) != len(shape):
        raise UsageError(
            f"{what}: expected {len(declared)} sizes for {value.shape}, received [{shown}]"
        )
    for axis, (old, new) in enumerate(zip(map(_plain, declared), shape, strict=True)):
        if new is None:
            continue
        if new < 1:
            raise UsageError(f"{what}: axis {axis}: expected a positive size, received {new}")
        if isinstance(old, int):
            if old != new:
                raise UsageError(f"{what}: axis {axis} has the fixed size {old}, received {new}")
        elif old.value is not None:
            size, where = bound.setdefault(old.value, (new, what))
            if size != new:
                raise UsageError(
                    f"{what}: axis {axis} is {old.value!r}, which {where} makes {size}, "
                    f"received {new}"
                )


def _bind(
    value: ir.Value, shape: Sequence[int | None] | None, bound: dict[str, tuple[int, str]]
) -> int:
    """Write the sizes into one value; returns how many changed."""
    if value.shape is None:
        if shape is None:
            return 0
        value.shape = ir.Shape([ir.SymbolicDim(None) if d is None else d for d in shape])
        return len(shape)
    dims: list[int | ir.SymbolicDim] = []
    for axis, old in enumerate(map(_plain, value.shape)):
        new: int | ir.SymbolicDim = old
        if not isinstance(old, int):
            wanted = shape[axis] if shape is not None else None
            if wanted is None and old.value in bound:
                wanted = bound[old.value][0]
            new = old if wanted is None else wanted
        dims.append(new)
    changed = sum(
        isinstance(b, int) and (not isinstance(a, int) or a != b)
        for a, b in zip(value.shape, dims, strict=True)
    )
    value.shape = ir.Shape(dims)
    return changed


def _plain(size: int | ir.SymbolicDim) -> int | ir.SymbolicDim:
    """A size as it is meant: some exporters write open ones as -1, others name all of them "?"."""
    is_open = size < 0 if isinstance(size, int) else size.value == "?"
    return ir.SymbolicDim(None) if is_open else size
