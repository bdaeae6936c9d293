"""Integers at the borders: inputs and outputs as the operators next to them store them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from edgeinfer.convert.lower.tflite.graph import Graph, Op, Tensor, TensorQuantization
from edgeinfer.convert.lower.tflite.quantize import same
from edgeinfer.errors import UsageError
from edgeinfer.types import Stored

ALL = ""
"""The name that stands for every input and output."""

FLOAT = "float32"

_CENTRE = 128
"""What is stored as uint8 is the int8 value moved by it."""

_FRACTIONS = frozenset({"LOGISTIC", "SOFTMAX"})
"""Results from 0 to 1: their scale is known without calibration, 1/256 as TFLite's kernels have."""


def store_borders(
    graph: Graph, wanted: Mapping[str, str], names: Sequence[str], results: Sequence[str]
) -> dict[str, Stored]:
    """Let inputs and outputs be integers, in place; returns what they mean, by name.

    Given::

        y = DEQUANTIZE(CONV_2D(QUANTIZE(x)))

    Result, for ``{"": "int8"}``::

        y = CONV_2D(x)                 x, y: int8 with the scales that were between

    Args:
        graph: the main graph, ready to be written.
        wanted: element types by name of an input or output; under ``ALL`` that of all others.
        names: Names of the inputs.
        results: Types of the outputs.

    Raises:
        UsageError: a name is unknown, or no such integers stand next to a border; lists all.
    """
    known = {*names, *results}
    if unknown := sorted(n for n in wanted if n != ALL and n not in known):
        raise UsageError(f"io dtype: no input or output {unknown}; there are {sorted(known)}")
    stored: dict[str, Stored] = {}
    faults: list[str] = []
    for side, tensors, own in (("input", graph.inputs, names), ("output", graph.outputs, results)):
        for index, (tensor, name) in enumerate(zip(list(tensors), own, strict=True)):
            kind = wanted.get(name, wanted.get(ALL, FLOAT))
            if kind == FLOAT or (tensor.dtype != np.float32 and name not in wanted):
                continue
            store = _store_input if side == "input" else _store_output
            found = store(graph, index, np.dtype(kind))
            if isinstance(found, str):
                faults.append(f"{side} {name!r}: {found}")
            else:
                stored[name] = _meaning(np.dtype(kind), found)
    if faults:
        raise UsageError(
            f"io dtype: {'; '.join(faults)}; X=float32 keeps one as it is, X=int8 chooses one only"
        )
    graph.drop_dead()
    return stored


def _meaning(dtype: np.dtype[Any], q: TensorQuantization) -> Stored:
    return Stored(dtype.name, float(q.scale[0]), int(q.zero_point[0]))


def _store_input(graph: Graph, index: int, dtype: np.dtype[Any]) -> TensorQuantization | str:
    x = graph.inputs[index]
    if x.dtype != np.float32:
        return f"is {x.dtype.name} already"
    readers = graph.readers().get(id(x), [])
    makers = [op for op in readers if op.code == "QUANTIZE"]
    if not makers:
        return "is read as float32: nothing quantizes it"
    inner = makers[0].outputs[0]
    q = inner.quantization
    if q is None or any(not same(q, op.outputs[0].quantization) for op in makers):
        return "is quantized with several scales"
    if any(op.outputs[0].dtype != inner.dtype for op in makers):
        return "is quantized to several types"
    own = _as_stored(dtype, inner.dtype, q)
    if own is None:
        return f"is quantized to {inner.dtype.name}, {dtype.name} would be rounded twice"
    border = Tensor(x.name, x.shape, dtype, quantization=own)
    graph.inputs[index] = border
    first: list[Op] = []
    value = border
    if dtype != inner.dtype:
        value = Tensor(f"{x.name}_{inner.dtype.name}", x.shape, inner.dtype, quantization=q)
        first.append(Op("QUANTIZE", [border], [value]))
    _replace(graph, {id(op.outputs[0]): value for op in makers})
    graph.ops = [op for op in graph.ops if op not in makers]
    if len(makers) < len(readers):
        # What computes with floats goes on with those that the integers stand for.
        floats = Tensor(f"{x.name}_float", x.shape, x.dtype)
        first.append(Op("DEQUANTIZE", [border], [floats]))
        _replace(graph, {id(x): floats})
    graph.ops = [*first, *graph.ops]
    return own


def _store_output(graph: Graph, index: int, dtype: np.dtype[Any]) -> TensorQuantization | str:
    y = graph.outputs[index]
    if y.dtype != np.float32:
        return f"is {y.dtype.name} already"
    maker = graph.producers().get(id(y))
    if maker is None:
        return "is computed by nothing"
    source = maker.inputs[0] if maker.code == "DEQUANTIZE" else None
    q = None if source is None else source.quantization
    if source is None or q is None:
        return _store_fraction(graph, index, maker, dtype)
    own = _as_stored(dtype, source.dtype, q)
    if own is None:
        return f"is made of {source.dtype.name}, {dtype.name} would be rounded twice"
    name = y.name
    y.name = graph.fresh_name("t")
    taken = {id(t) for t in (*graph.inputs, *graph.outputs)}
    if dtype == source.dtype and id(source) not in taken and source.data is None:
        source.name = name
        graph.outputs[index] = source
        return own
    border = Tensor(name, y.shape, dtype, quantization=own)
    graph.ops.append(Op("QUANTIZE", [source], [border]))
    graph.outputs[index] = border
    return own


def _store_fraction(
    graph: Graph, index: int, maker: Op, dtype: np.dtype[Any]
) -> TensorQuantization | str:
    """Round what is a share of one, whose scale needs no samples."""
    y = graph.outputs[index]
    if maker.code not in _FRACTIONS:
        return "is computed in float32: no scale is known for it"
    steps = 1 << (15 if dtype == np.int16 else 8)
    zero = {"int8": -_CENTRE, "uint8": 0, "int16": 0}[dtype.name]
    q = TensorQuantization(np.array([1 / steps], np.float32), np.array([zero], np.int64))
    border = Tensor(y.name, y.shape, dtype, quantization=q)
    y.name = graph.fresh_name("t")
    graph.ops.append(Op("QUANTIZE", [y], [border]))
    graph.outputs[index] = border
    return q


def _as_stored(
    dtype: np.dtype[Any], inner: np.dtype[Any], q: TensorQuantization
) -> TensorQuantization | None:
    """The same numbers in another type; None where it would need another scale."""
    if dtype == inner:
        return q
    moves = {("uint8", "int8"): _CENTRE, ("int8", "uint8"): -_CENTRE}
    move = moves.get((dtype.name, inner.name))
    return None if move is None else TensorQuantization(q.scale, q.zero_point + move, q.axis)


def _replace(graph: Graph, new: Mapping[int, Tensor]) -> None:
    for op in graph.ops:
        op.inputs = [t if t is None else new.get(id(t), t) for t in op.inputs]
    graph.outputs = [new.get(id(t), t) for t in graph.outputs]
