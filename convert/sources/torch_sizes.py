"""Dynamic sizes of PyTorch models: checked, grown for a second opinion, named in the graph."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import onnx_ir as ir

from edgeinfer.errors import Remarks, UsageError

if TYPE_CHECKING:
    import torch

Shapes = Mapping[str, Mapping[int, Any]]
"""Input name to axis to the size's name: text or a ``torch.export.Dim``."""

Tensors = Mapping[str, "torch.Tensor"]


def check_sizes(dynamic: Shapes, feeds: Tensors) -> None:
    """Check that every dynamic size is one of an example input.

    Raises:
        UsageError: it names an input or an axis that is not there.
    """
    for key, axes in dynamic.items():
        if key not in feeds:
            raise UsageError(f"dynamic_shapes: no input {key!r}; inputs are {', '.join(feeds)}")
        if not isinstance(axes, Mapping):
            raise UsageError(
                f"dynamic_shapes: input {key!r}: expected {{axis: name}}, received {axes!r}"
            )
        rank = feeds[key].dim()
        for axis in axes:
            if not 0 <= axis < rank:
                raise UsageError(
                    f"dynamic_shapes: input {key!r} has {rank} axes, received axis {axis}"
                )


def grow(
    feeds: Tensors, dynamic: Shapes, only_below: int | None = None, *, twice: bool = False
) -> dict[str, torch.Tensor]:
    """Make every dynamic size one larger, by repeating its first slice.

    Args:
        feeds: example inputs.
        dynamic: their dynamic sizes.
        only_below: leave sizes that are at least this.
        twice: make them twice as large instead, by repeating everything.
    """
    import torch

    grown = dict(feeds)
    for key, axes in dynamic.items():
        for axis, size in axes.items():
            tensor = grown[key]
            wanted = only_below is None or tensor.shape[axis] < only_below
            if wanted and _is_dynamic(size) and tensor.shape[axis]:
                more = tensor if twice else tensor.narrow(axis, 0, 1)
                grown[key] = torch.cat((tensor, more), axis)
    return grown


def dynamic_axes(model: ir.Model) -> dict[str, dict[int, str]]:
    """The named sizes of a model's inputs."""
    found: dict[str, dict[int, str]] = {}
    for value in model.graph.inputs:
        for axis, size in enumerate(value.shape if value.shape is not None else ()):
            if isinstance(size, ir.SymbolicDim) and size.value is not None:
                found.setdefault(value.name or "", {})[axis] = size.value
    return found


def name_sizes(model: ir.Model, names: Shapes) -> None:
    """Give the dynamic sizes of an exported program the user's names, everywhere.

    Raises:
        UsageError: a size that is to be named is static, or no input or axis has it.
    """
    inputs = {value.name: value for value in model.graph.inputs}
    renamed: dict[str, str] = {}
    for key, axes in names.items():
        value = inputs.get(key)
        if value is None or value.shape is None:
            known = ", ".join(name or "" for name in inputs)
            raise UsageError(f"dynamic_shapes: no input {key!r}; inputs are {known}")
        for axis, new in axes.items():
            size = value.shape[axis] if 0 <= axis < len(value.shape) else None
            if not isinstance(size, ir.SymbolicDim) or size.value is None:
                raise UsageError(
                    f"dynamic_shapes: axis {axis} of input {key!r} is {size} in the exported "
                    "program; export it again with that axis dynamic"
                )
            renamed[size.value] = _label(new) or size.value
    if renamed:
        _substitute(model, renamed)


def note_merged_sizes(model: ir.Model, dynamic: Shapes, notes: Remarks) -> None:
    """Say where the module itself ties or fixes sizes that the user named."""
    for value in model.graph.inputs:
        for axis, wanted in dynamic.get(value.name or "", {}).items():
            label = _label(wanted)
            if label is None or value.shape is None:
                continue
            size = value.shape[axis]
            found = size.value if isinstance(size, ir.SymbolicDim) else size
            if isinstance(found, int):
                notes.add(f"size {label!r} of input {value.name!r}: the module fixes it to {found}")
            elif found is not None and found != label:
                notes.add(f"size {label!r} of input {value.name!r}: always equal to {found!r}")


def _label(size: Any) -> str | None:
    """Name of a size; None for a hint such as ``Dim.AUTO``."""
    if isinstance(size, str):
        return size
    name = getattr(size, "__name__", None)
    return name if isinstance(name, str) else None


def _is_dynamic(size: Any) -> bool:
    if size is None or isinstance(size, int):
        return False
    return "STATIC" not in str(getattr(size, "type", ""))


def _substitute(model: ir.Model, renamed: Mapping[str, str]) -> None:
    """Rename symbols, also inside expressions such as ``2*s17``."""
    words = re.compile(r"\b(" + "|".join(map(re.escape, renamed)) + r")\b")

    def rename(size: int | ir.SymbolicDim) -> int | str | None:
        if isinstance(size, int) or size.value is None:
            return size if isinstance(size, int) else None
        return words.sub(lambda found: renamed[found[0]], size.value)

    for graph in model.graphs():
        for value in (*graph.inputs, *(output for node in graph for output in node.outputs)):
            if value.shape is not None:
                value.shape = ir.Shape([rename(size) for size in value.shape])
