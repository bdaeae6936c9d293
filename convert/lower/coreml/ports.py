"""A program's inputs and outputs: names that Core ML allows, types it takes, sizes it may have."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import field, replace
from typing import Any

import numpy as np
import onnx_ir as ir

from edgeinfer.convert.lower.coreml.deployment import IOS16, IOS18, Deployment
from edgeinfer.convert.lower.coreml.emitter import held
from edgeinfer.convert.lower.coreml.options import LARGEST, CoreMLOptions
from edgeinfer.convert.lower.coreml.tensor import MAX_RANK
from edgeinfer.convert.lower.registry import Refusal
from edgeinfer.errors import Problem, UnsupportedError
from edgeinfer.records import dataclass

# fmt: off
_RESERVED = frozenset({
    "any", "bool", "program", "func", "tensor", "list", "dict", "tuple", "true", "false", "string",
    "bf16", "fp16", "fp32", "fp64", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32",
    "uint64", "state",
})
# fmt: on
"""Names that coremltools renames by itself (``name_sanitization_utils``, coremltools 9.0)."""


@dataclass(frozen=True, slots=True)
class Port:
    """One input or output.

    Attributes:
        source: name in the model.
        name: name in the package.
        dtype: element type in the model; the package's is ``kind``.
        kind: ``fp32``, ``fp16`` or ``int32``.
        dims: sizes; names for those known only at run time.
    """

    source: str
    name: str
    dtype: np.dtype[Any]
    kind: str
    dims: tuple[int | str, ...]

    @property
    def shape(self) -> tuple[int | str, ...]:
        """The sizes in the package, which has no scalars."""
        return self.dims or (1,)


@dataclass(slots=True)
class PortNames:
    """Gives every input and output a name that Core ML leaves as it is."""

    taken: set[str] = field(default_factory=set)

    def of(self, source: str) -> str:
        """Return the name itself where it is allowed, else one much like it."""
        plain = re.sub(r"\W", "_", source, flags=re.ASCII) or "_"
        if plain[0].isdigit():
            plain = f"_{plain}"
        if plain in _RESERVED:
            plain = f"{plain}_"
        name, count = plain, 0
        while name in self.taken:
            count += 1
            name = f"{plain}_{count}"
        self.taken.add(name)
        return name


def port_of(value: ir.Value, names: PortNames, deployment: Deployment) -> Port:
    """Describe an input or output.

    Raises:
        Refusal: Core ML cannot hold it.
    """
    if value.type is not None and not isinstance(value.type, ir.TensorType):
        raise Refusal(f"{value.name!r} is no tensor", "unsupported_dtype")
    if value.dtype is None or value.shape is None:
        raise Refusal(f"{value.name!r} has no known type or rank", "dynamic_shape")
    if value.dtype == ir.DataType.STRING or value.dtype.bitwidth < 8:
        raise Refusal(f"{value.dtype.name.lower()} is not held by Core ML", "unsupported_dtype")
    dtype = np.dtype(value.dtype.numpy())
    kind = held(dtype)
    if kind == "bool":
        kind = "int32"
    if kind == "fp16" and deployment < IOS16:
        kind = "fp32"
    if len(value.shape) > MAX_RANK:
        raise Refusal(f"{value.name!r} has rank {len(value.shape)}", "unsupported_rank")
    if 0 in value.shape:
        raise Refusal(f"{value.name!r} has no elements", "dynamic_shape")
    name = value.name or ""
    dims = tuple(
        d if isinstance(d, int) else (d.value or f"{name}:{axis}")
        for axis, d in enumerate(value.shape)
    )
    return Port(name, names.of(name), dtype, kind, dims)


class PortSymbols:
    """One of coremltools' symbols for each dynamic size."""

    def __init__(self) -> None:
        self._known: dict[str, Any] = {}

    def shape(self, dims: Sequence[int | str]) -> tuple[Any, ...]:
        """Put symbols in the place of names."""
        return tuple(d if isinstance(d, int) else self._symbol(d) for d in dims)

    def _symbol(self, name: str) -> Any:
        from coremltools.converters.mil.mil import get_new_symbol

        if name not in self._known:
            self._known[name] = get_new_symbol()
        return self._known[name]


def sized(ports: Sequence[Port], options: CoreMLOptions) -> CoreMLOptions:
    """Give every input the shapes and bounds that follow from equal names of sizes.

    Raises:
        UnsupportedError: several inputs have listed shapes, which the deployment target lacks.
    """
    shapes = dict(options.shapes)
    counts = {len(s) for s in shapes.values()}
    if len(counts) == 1:
        sets = [_known(ports, {n: s[i] for n, s in shapes.items()}) for i in range(counts.pop())]
        for port in ports:
            open_sizes = [d for d in port.shape if isinstance(d, str)]
            if port.source not in shapes and all(d in s for s in sets for d in open_sizes):
                found = [tuple(d if isinstance(d, int) else s[d] for d in port.shape) for s in sets]
                if len(set(found)) > 1:
                    shapes[port.source] = tuple(found)
    if len(shapes) > 1 and options.deployment < IOS18:
        names = ", ".join(repr(n) for n in shapes)
        detail = f"{options.deployment} lists the shapes of one input only, not of {names}"
        problem = Problem(
            *(next(iter(shapes)), "model input", "dynamic_shape", detail),
            f"deployment target {IOS18} or newer, or ranges",
        )
        raise UnsupportedError("coreml", [problem])
    ranges = dict(options.ranges)
    for port in ports:
        for axis, dim in enumerate(port.shape):
            ends = options.ranges.get(f"{port.source}:{axis}")
            if ends is not None and isinstance(dim, str):
                low, high = ranges.get(dim, ends)
                ranges[dim] = max(low, ends[0]), min(high, ends[1])
    return replace(options, shapes=shapes, ranges=ranges)


def _known(ports: Sequence[Port], shapes: Mapping[str, Sequence[int]]) -> dict[str, int]:
    """Return the sizes by name that some inputs' shapes tell."""
    return {
        dim: size
        for port in ports
        for dim, size in zip(port.shape, shapes.get(port.source, ()), strict=False)
        if isinstance(dim, str)
    }


def input_type(port: Port, options: CoreMLOptions) -> Any:
    """Return coremltools' description of an input."""
    import coremltools as ct

    types = {"fp32": np.float32, "fp16": np.float16, "int32": np.int32}
    shape = _flexible(port, options)
    if port.source in options.images:
        from edgeinfer.convert.lower.coreml.images import image_type

        return image_type(port, options.images[port.source], shape)
    return ct.TensorType(name=port.name, shape=shape, dtype=types[port.kind])


def _flexible(port: Port, options: CoreMLOptions) -> Any:
    import coremltools as ct

    fixed = options.shapes.get(port.source)
    if fixed:
        return ct.EnumeratedShapes(shapes=[list(s) for s in fixed], default=list(fixed[0]))
    if all(isinstance(d, int) for d in port.shape):
        return port.shape
    sizes = []
    for axis, dim in enumerate(port.shape):
        if isinstance(dim, int):
            sizes.append(dim)
            continue
        low, high = options.ranges.get(dim) or options.ranges.get(
            f"{port.source}:{axis}", (1, LARGEST)
        )
        sizes.append(ct.RangeDim(lower_bound=low, upper_bound=high, default=low))
    return ct.Shape(shape=sizes)
