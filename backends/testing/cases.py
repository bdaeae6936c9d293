"""Small models with inputs and the outputs that are right, computed here with NumPy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from edgeinfer.records import dataclass
from edgeinfer.types import Array

Values = dict[str, Array]
Build = Callable[[], "tuple[Any, list[tuple[Values, Values]]]"]

OPSET = 17
"""Old enough for every engine of the last years, new enough for LayerNormalization."""

IR_VERSION = 8

RTOL = {"float16": 2e-3, "bfloat16": 2e-2, "float32": 2e-6, "float64": 1e-12}
"""Relative to the largest expected value. float32: a few roundings; TF32 would give 5e-4."""


@dataclass(frozen=True, slots=True)
class Case:
    """A model and its runs.

    Attributes:
        name: short, in snake_case.
        dtypes: element types of its inputs and outputs.
        build: returns the ONNX model and pairs of inputs and expected outputs.
        may_refuse: the engine may raise ``RunError`` instead of giving the right numbers.
    """

    name: str
    dtypes: frozenset[str]
    build: Build
    may_refuse: bool = False

    def model(self) -> bytes:
        """Return the model, serialized."""
        data: bytes = self.build()[0].SerializeToString()
        return data

    def runs(self) -> list[tuple[Values, Values]]:
        """Return inputs and expected outputs of each run."""
        return self.build()[1]


CASES: dict[str, Case] = {}


def case(*dtypes: str, may_refuse: bool = False) -> Callable[[Build], Build]:
    """Register a builder under its own name."""

    def register(build: Build) -> Build:
        name = build.__name__
        if name in CASES:
            raise ValueError(f"case {name!r} exists")
        CASES[name] = Case(name, frozenset(dtypes), build, may_refuse)
        return build

    return register


def wrong(expected: Array, received: Array) -> str:
    """Say in what an output differs from what it should be; empty when it does not."""
    if received.shape != expected.shape:
        return f"expected shape {expected.shape}, received {received.shape}"
    if expected.dtype == object or received.dtype.kind in "OUS":
        same = expected.astype(str).tolist() == received.astype(str).tolist()
        return "" if same else f"expected {expected.tolist()}, received {received.tolist()}"
    if received.dtype != expected.dtype:
        return f"expected {expected.dtype}, received {received.dtype}"
    tolerance = RTOL.get(expected.dtype.name)
    if tolerance is None:
        same = np.array_equal(expected, received)
        return "" if same else f"expected {expected.tolist()}, received {received.tolist()}"
    want, got = expected.astype(np.float64), received.astype(np.float64)
    finite = np.abs(want[np.isfinite(want)])
    limit = tolerance * float(finite.max(initial=0.0))
    if np.allclose(got, want, rtol=0, atol=limit, equal_nan=True):
        return ""
    error = float(np.nanmax(np.abs(got - want)))
    return f"off by {error:.3g}, allowed {limit:.3g}"


def graph(text: str, **constants: Array) -> Any:
    """Return a model from ONNX text with named constants as initializers."""
    import onnx

    header = f'<ir_version: {IR_VERSION}, opset_import: ["" : {OPSET}]>'
    model = onnx.parser.parse_model(f"{header} case {text}")
    for name, array in constants.items():
        model.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    return model


def rename(model: Any, names: dict[str, str]) -> Any:
    """Give tensors names that ONNX text cannot hold."""
    for value in (*model.graph.input, *model.graph.output):
        value.name = names.get(value.name, value.name)
    for node in model.graph.node:
        node.input[:] = [names.get(name, name) for name in node.input]
        node.output[:] = [names.get(name, name) for name in node.output]
    return model


def normal(*shape: int, dtype: str = "float32") -> Array:
    """Return the same normally distributed values each time."""
    return np.random.default_rng(0).standard_normal(shape).astype(dtype)
