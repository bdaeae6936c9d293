"""Sizes that no machine holds, which a damaged model or a wrong constant asks for."""

from __future__ import annotations

import math

import onnx_ir as ir

from edgeinfer.convert.passes.infra import DEFAULT_DOMAINS, input_at, ints, walk
from edgeinfer.errors import SourceError

_MOST_BYTES = 1 << 40
"""Of one tensor."""

_MOST_SIZE = (1 << 31) - 1
"""Of one axis: every engine here counts in 32 bits somewhere."""


_COUNTS = {
    **{"ConstantOfShape": (0,), "Expand": (1,), "OneHot": (1,), "Pad": (1,), "Range": (0, 1)},
    **{"Resize": (3,), "Tile": (1,)},
}
"""Operands that say how much there will be."""

_GROWING = frozenset({
    *("AffineGrid", "CenterCropPad", "Col2Im", "ConstantOfShape", "Expand", "EyeLike", "MaxUnpool"),
    *("Multinomial", "OneHot", "Pad", "RandomNormal", "RandomUniform", "Range", "Resize", "Tile"),
    "Upsample",
})  # fmt: skip
"""Operators that make as much of little as numbers say."""

_MOST_MADE = 1 << 28
"""Elements that those make of less than a sixteenth as many: on a machine with the memory for it,
checking a larger one would take minutes."""


def check_counts(model: ir.Model) -> None:
    """Refuse constants that ask for a tensor that cannot exist, before anything computes with them.

    Raises:
        SourceError: names the first node.
    """
    for graph in walk(model.graph):
        for name, value in graph.initializers.items():
            _check(value, f"weight {name!r}")
        for node in graph:
            _check_counts(node)


def check_sizes(model: ir.Model) -> None:
    """Refuse a model with a tensor that cannot exist, once shapes are known.

    Raises:
        SourceError: names the first one, what makes it and its sizes.
    """
    for graph in walk(model.graph):
        for value in graph.inputs:
            _check(value, f"input {value.name!r}")
        for node in graph:
            for value in node.outputs:
                _check(value, _shown(node))
            if node.domain in DEFAULT_DOMAINS and node.op_type in _GROWING:
                _check_made(node)


def _shown(node: ir.Node) -> str:
    return f"node {node.name or node.op_type!r} ({node.op_type})"


def _check_counts(node: ir.Node) -> None:
    if node.domain not in DEFAULT_DOMAINS:
        return
    for index in _COUNTS.get(node.op_type, ()):
        counts = ints(input_at(node, index))
        if counts and max(map(abs, counts)) > _MOST_SIZE:
            raise SourceError(f"{_shown(node)}: {counts} is more than any engine holds; {_ADVICE}")


def _check_made(node: ir.Node) -> None:
    made, taken = _elements(node.outputs[0]), _elements(input_at(node, 0))
    if made > _MOST_MADE and made > 16 * taken:
        raise SourceError(
            f"{_shown(node)}: makes {made} elements of {taken}, at most {_MOST_MADE}; {_ADVICE}"
        )


def _elements(value: ir.Value | None) -> int:
    """Count elements; open sizes count as one."""
    shape = () if value is None or value.shape is None else value.shape
    return math.prod(d for d in shape if isinstance(d, int))


_ADVICE = "look at the sizes that the model was exported with"


def _check(value: ir.Value, maker: str) -> None:
    known = [d for d in value.shape or () if isinstance(d, int)]
    # Strings have no size of their own.
    sized = value.dtype is not None and value.dtype != ir.DataType.STRING
    item = value.dtype.itemsize if value.dtype is not None and sized else 1
    fits = max(known, default=0) <= _MOST_SIZE and math.prod(known) * item < _MOST_BYTES
    if not fits and 0 not in known:
        shape = ", ".join(str(d) if isinstance(d, int) else "?" for d in value.shape or ())
        raise SourceError(f"{maker}: [{shape}] is more than any engine holds; {_ADVICE}")
