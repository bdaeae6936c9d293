"""Linear models, and what is done to columns before them."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from edgeinfer.convert.lower.tabular.body import NotDefinedError, TabularBody, is_read, values_of
from edgeinfer.convert.lower.tabular.scores import (
    add_column,
    argmax,
    choose,
    is_number_labelled,
    labels_of,
    transform,
)
from edgeinfer.types import Array


def regressor(b: TabularBody) -> list[str]:
    """Define LinearRegressor: a product and a sum."""
    count = int(values_of(b.node, "targets", 1))
    scores = _product(b, count)
    kind = values_of(b.node, "post_transform", "NONE")
    return [transform(b, scores, kind, count, np.float32)]


def classifier(b: TabularBody) -> list[str]:
    """Define LinearClassifier; one row of coefficients is the second class of two."""
    labels, node = labels_of(b.node), b.node
    if is_read(node, 0) and not is_number_labelled(node):
        raise NotDefinedError("its classes are strings")
    count = len(values_of(node, "intercepts", np.zeros(0)))
    if not count:
        raise NotDefinedError("it has no intercepts, which count its classes")
    scores = _product(b, count)
    kind = values_of(node, "post_transform", "NONE")
    if count > 1:
        return [argmax(b, scores, labels), transform(b, scores, kind, count, np.float32)]
    pair = labels if len(labels) == 2 else np.asarray([0, 1])
    label = choose(b, scores, 0.0, pair, np.float32)
    if len(labels) != 2:
        return [label, transform(b, scores, kind, 1, np.float32)]
    return [label, add_column(b, scores, kind, mixed=False, dtype=np.float32)]


def _product(b: TabularBody, count: int) -> str:
    x = b.rows()
    if b.dtype is np.float64:
        x = b.cast(x, np.float32)
    weights = values_of(b.node, "coefficients").reshape(count, -1)
    scores = b.op("MatMul", x, b.const(np.ascontiguousarray(weights.T), np.float32))
    bias = values_of(b.node, "intercepts", np.zeros(0))
    return b.op("Add", scores, b.const(bias, np.float32)) if len(bias) else scores


# ---- columns


def _floats(b: TabularBody) -> str:
    """The first input as float32, of whatever shape."""
    value = b.node.inputs[0]
    if value is None or value.dtype is None:
        raise NotDefinedError("the type of the input is not known")
    return "i0" if value.dtype == ir.DataType.FLOAT else b.cast("i0", np.float32)


def scaler(b: TabularBody) -> list[str]:
    """Define Scaler: each column less its offset, times its scale."""
    x = _floats(b)
    offset, scale = (values_of(b.node, n) for n in ("offset", "scale"))
    if offset is not None and len(offset):
        x = b.op("Sub", x, b.const(offset, np.float32))
    if scale is not None and len(scale):
        x = b.op("Mul", x, b.const(scale, np.float32))
    return [x]


def normalizer(b: TabularBody) -> list[str]:
    """Define Normalizer: rows over their greatest value, their sum or their length."""
    x, kind = _floats(b), values_of(b.node, "norm", "MAX")
    axes = b.ints(-1)
    if kind == "MAX":
        size = b.op("ReduceMax", x, axes, keepdims=1)
    elif kind == "L1":
        size = b.op("ReduceSum", b.op("Abs", x), axes, keepdims=1)
    elif kind == "L2":
        # Squares of large or small numbers leave the range of floats; shares of the largest do not.
        most = b.op("ReduceMax", b.op("Abs", x), axes, keepdims=1)
        x = b.op("Div", x, _or_one(b, most))
        size = b.op("Sqrt", b.op("ReduceSum", b.op("Mul", x, x), axes, keepdims=1))
    else:
        raise NotDefinedError(f"norm {kind!r} is not known")
    return [b.op("Div", x, _or_one(b, size))]


def _or_one(b: TabularBody, size: str) -> str:
    is_zero = b.op("Equal", size, b.const(0, np.float32))
    return b.op("Where", is_zero, b.const(1, np.float32), size)


def imputer(b: TabularBody) -> list[str]:
    """Define Imputer: what equals one value becomes another, for each column."""
    value = b.node.inputs[0]
    if value is None or value.dtype is None or value.shape is None:
        raise NotDefinedError("the type and the rank of the input are not known")
    dtype = value.dtype.numpy()
    kind = "float" if dtype.kind == "f" else "int64"
    made = values_of(b.node, f"imputed_value_{kind}s")
    replaced = values_of(b.node, f"replaced_value_{kind}", 0)
    if made is None or not len(made):
        raise NotDefinedError(f"it has no imputed_value_{kind}s, for an input of {dtype}")
    columns = value.shape[-1]
    if len(made) > 1 and len(made) != columns:
        # One for each column counts only where there are as many columns.
        if not isinstance(columns, int):
            raise NotDefinedError("the number of columns is not known")
        made = made[:1]
    if dtype.kind == "f" and np.isnan(replaced):
        found = b.op("IsNaN", "i0")
    else:
        found = b.op("Equal", "i0", b.const(replaced, dtype))
    return [b.op("Where", found, b.const(made, dtype), "i0")]


def binarizer(b: TabularBody) -> list[str]:
    """Define Binarizer: one above the threshold, else zero."""
    value = b.node.inputs[0]
    if value is None or value.dtype is None:
        raise NotDefinedError("the type of the input is not known")
    dtype = value.dtype.numpy()
    threshold = b.const(values_of(b.node, "threshold", 0.0), np.float32)
    x = "i0" if dtype == np.float32 else b.cast("i0", np.float32)
    return [b.cast(b.op("Greater", x, threshold), dtype)]


def feature_vectorizer(b: TabularBody) -> list[str]:
    """Define FeatureVectorizer: columns of all inputs side by side, filled up with zeros."""
    sizes = values_of(b.node, "inputdimensions")
    parts = []
    for index, (value, size) in enumerate(zip(b.node.inputs, sizes, strict=True)):
        if value is None or value.shape is None or value.dtype is None:
            raise NotDefinedError(f"the type and the rank of input {index} are not known")
        name = f"i{index}"
        if value.dtype != ir.DataType.FLOAT:
            name = b.cast(name, np.float32)
        if len(value.shape) != 2:
            name = b.op("Reshape", name, b.ints(*((1, -1) if len(value.shape) == 1 else (0, -1))))
        own = value.shape[-1] if len(value.shape) in (1, 2) else None
        if own != size:
            if not isinstance(own, int):
                raise NotDefinedError(f"the number of columns of input {index} is not known")
            name = _resized(b, name, own, int(size))
        parts.append(name)
    return [b.op("Concat", *parts, axis=1) if len(parts) > 1 else parts[0]]


def _resized(b: TabularBody, name: str, own: int, size: int) -> str:
    if own > size:
        return b.op("Slice", name, b.ints(0), b.ints(size), b.ints(1))
    pads: Array = np.asarray([0, 0, 0, size - own], np.int64)
    return b.op("Pad", name, b.const(pads), b.const(0, np.float32))
