"""Categories as numbers: one column for each, another number for each, and columns picked out."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir

from edgeinfer.convert.lower.tabular.body import NotDefinedError, TabularBody, values_of
from edgeinfer.types import Array

_EXACT = 1 << 24
"""Integers up to which float32 has every one."""

_FINDS_NAN = 4
"""Version of the operators from which on a key that is NaN is found."""


def one_hot(b: TabularBody) -> list[str]:
    """Define OneHotEncoder: a new last axis, one where the category is."""
    value = b.node.inputs[0]
    categories = values_of(b.node, "cats_int64s")
    if value is None or value.dtype in (None, ir.DataType.STRING) or categories is None:
        raise NotDefinedError("its categories are strings")
    if not values_of(b.node, "zeros", 1):
        raise NotDefinedError(
            "zeros=0 stops at unknown categories, which only ONNX Runtime can (train with "
            "handle_unknown='ignore', or take the target onnxruntime)"
        )
    x = "i0" if value.dtype == ir.DataType.INT64 else b.cast("i0", np.int64)
    wide = b.op("Unsqueeze", x, b.ints(-1))
    # Of equal categories the last one counts.
    last = {int(c): i for i, c in enumerate(categories)}
    own = np.asarray([last[int(c)] == i for i, c in enumerate(categories)])
    found = b.op("Equal", wide, b.const(categories))
    if not own.all():
        found = b.op("And", found, b.const(own))
    hot = b.cast(found, np.float32)
    if value.dtype.is_floating_point():
        # NaN is no category, whatever integer an engine makes of it.
        known = b.op("Not", b.op("IsNaN", "i0"))
        hot = b.op("Mul", hot, b.cast(b.op("Unsqueeze", known, b.ints(-1)), np.float32))
    return [hot]


def label_encoder(b: TabularBody) -> list[str]:
    """Define LabelEncoder: the value of the first key that an element equals, or the default."""
    node = b.node
    value = node.inputs[0]
    keys, _ = _given(node, "keys")
    values, kind = _given(node, "values")
    if keys.dtype.kind not in "iuf" or values.dtype.kind not in "iuf":
        raise NotDefinedError("its keys or values are strings")
    if not 0 < len(keys) == len(values):
        raise NotDefinedError(f"it has {len(keys)} keys and {len(values)} values")
    default = values_of(node, "default_tensor")
    if default is None:
        default = values_of(node, f"default_{kind}", -0.0 if kind == "float" else -1)
    default = np.asarray(default, values.dtype).reshape(1)
    if value is None or value.dtype is None:
        raise NotDefinedError("the type of the input is not known")
    return [_looked_up(b, "i0", keys, values, default, nan=_version(node) >= _FINDS_NAN)]


def _version(node: ir.Node) -> int:
    imports = {} if node.graph is None else node.graph.opset_imports
    return node.version or imports.get(node.domain, 1)


def _given(node: ir.Node, what: str) -> tuple[Array, str]:
    """Keys or values, and the name of their type among the attributes."""
    tensor = values_of(node, f"{what}_tensor")
    if tensor is not None:
        return np.asarray(tensor).reshape(-1), "tensor"
    for kind in ("int64", "float"):
        found = values_of(node, f"{what}_{kind}s")
        if found is not None:
            return found, kind
    return np.asarray(values_of(node, f"{what}_strings", [])), "string"


def _looked_up(
    b: TabularBody, x: str, keys: Array, values: Array, default: Array, *, nan: bool
) -> str:
    """Find each element's place among the keys, and there the value."""
    first: dict[Any, int] = {}
    for index, key in enumerate(keys.tolist()):
        first.setdefault("nan" if key != key else key, index)
    indices = sorted(first.values())
    keys, values = keys[indices], values[indices]
    table = b.const(np.concatenate([default, values]).astype(values.dtype))
    low = int(keys[0]) if keys.dtype.kind in "iu" else 0
    if keys.dtype.kind in "iu" and np.array_equal(keys, np.arange(low, low + len(keys))):
        # Integers in a row are positions already.
        least, most = (b.const(v, keys.dtype) for v in (low, low + len(keys) - 1))
        inside = b.op("And", b.op("GreaterOrEqual", x, least), b.op("LessOrEqual", x, most))
        # Within the ends first, so that nothing leaves a device's integers.
        near = b.op("Min", b.op("Max", x, least), most)
        shifted = b.op("Sub", near, b.const(low - 1, keys.dtype)) if low != 1 else near
        place = b.op("Where", inside, shifted, b.const(0, keys.dtype))
        return b.op("Gather", table, b.cast(place, np.int32))
    wide = b.op("Unsqueeze", x, b.ints(-1))
    found = b.op("Equal", wide, b.const(keys))
    is_nan = np.isnan(keys) if keys.dtype.kind == "f" else np.zeros(len(keys), bool)
    if nan and is_nan.any():
        found = b.op("Or", found, b.op("And", b.op("IsNaN", wide), b.const(is_nan)))
    if len(keys) >= _EXACT:
        raise NotDefinedError(f"{len(keys)} keys")
    number = np.arange(1, len(keys) + 1, dtype=np.float32)
    one = b.op("Mul", b.cast(found, np.float32), b.const(number))
    place = b.op("ReduceSum", one, b.ints(-1), keepdims=0)
    return b.op("Gather", table, b.cast(place, np.int32))


def array_feature_extractor(b: TabularBody) -> list[str]:
    """Define ArrayFeatureExtractor: positions of the last axis, as a list."""
    value, indices = b.node.inputs[:2]
    if value is None or value.shape is None or indices is None:
        raise NotDefinedError("the rank of the input is not known")
    if value.dtype == ir.DataType.STRING:
        raise NotDefinedError("it picks strings")
    flat = b.op("Reshape", "i1", b.ints(-1))
    picked = b.op("Gather", "i0", flat, axis=len(value.shape) - 1)
    return [b.op("Reshape", picked, b.ints(1, -1)) if len(value.shape) == 1 else picked]
