"""Between a model's own inputs and outputs and those of its Core ML package.

Core ML has fewer element types, no scalars, and names of its own; a package that edgeinfer wrote
says in its metadata which name of the model each of its names stands for.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from edgeinfer.backends.checks import array_type, check_signature
from edgeinfer.backends.coreml_reference.package import Feature, FunctionDescription
from edgeinfer.bounded import parse_json
from edgeinfer.bundle.values import beyond, integer_bounds
from edgeinfer.errors import LoadError, RunError
from edgeinfer.records import dataclass
from edgeinfer.types import Array, Dim, TensorSpec

FORMAT = "mlprogram"
DTYPES = (
    *("float16", "float32", "bool"),
    *(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)),
)
"""Element types of what is handed to a package; whole numbers are int32 inside."""

NAMES = "edgeinfer.names"
"""Metadata key: JSON with the model's names of ``inputs`` and ``outputs`` by the package's."""

TYPES = "edgeinfer.types"
"""Metadata key: JSON with the model's element types of ``inputs`` and ``outputs``, likewise."""

BOUNDS = "edgeinfer.integers"
"""Metadata key: JSON with the lowest and highest value of integer inputs, by the model's names."""


CLASSES = "edgeinfer.classes"
"""Metadata key: JSON with a classifier's names in the order of the model's output; a dictionary of
Core ML's has none."""


@dataclass(frozen=True, slots=True)
class FeaturePort:
    """One tensor of a model and the feature that carries it.

    Attributes:
        spec: as the model has it.
        feature: as the package has it.
        dtype: element type of the feature's arrays.
        bounds: lowest and highest integer that the package is right for; None where all are.
        classes: names in the order of a classifier's scores.
    """

    spec: TensorSpec
    feature: Feature
    dtype: str
    bounds: tuple[int, ...] | None = None
    classes: tuple[str, ...] = ()

    def to_package(self, array: Array) -> Array:
        """Return an input as the package takes it.

        Raises:
            RunError: a value or the shape is not one that the package takes.
        """
        name = self.spec.name
        if not array.ndim and self.feature.shape == (1,):
            array = array.reshape(1)
        if fault := shape_fault(self.feature, array.shape):
            raise RunError(f"run: input {name!r}: {fault}")
        if self.bounds and (fault := beyond(self.bounds, array)):
            raise RunError(
                f"run: input {name!r}: {fault}, for which the package was proven to be right"
            )
        wanted = np.dtype(self.dtype)
        if array.dtype == wanted:
            return array
        if wanted.kind == "i" and array.size and array.dtype.kind in "iu":
            limits = np.iinfo(wanted)
            low, high = int(array.min()), int(array.max())
            if low < limits.min or high > limits.max:
                raise RunError(
                    f"run: input {name!r}: {low} to {high} do not fit {wanted}, which the package "
                    f"has for {self.spec.dtype}"
                )
        return array.astype(wanted)

    def to_model(self, value: Any) -> Array:
        """Return an output as the model gives it."""
        wanted = array_type(self.spec.dtype)
        if isinstance(value, dict):
            value = self._in_order(value)
        array = np.asarray(value)
        if self.spec.shape == () and array.shape == (1,):
            array = array.reshape(())
        if array.dtype == wanted:
            return array
        return array != 0 if wanted.kind == "b" else array.astype(wanted)

    def _in_order(self, value: Mapping[str, float]) -> Array:
        """Return a classifier's scores as the model gives them."""
        names = self.classes or tuple(value)
        if strange := set(names) ^ set(value):
            raise RunError(f"output {self.spec.name!r}: the classes {sorted(strange)[:5]} differ")
        scores = np.array([value[name] for name in names], np.float32)
        sizes = [d for d in self.spec.shape or () if isinstance(d, int)]
        fits = len(sizes) == len(self.spec.shape or ()) and np.prod(sizes) == len(scores)
        return scores.reshape(sizes) if fits and sizes else scores


def ports(
    backend: str,
    kind: str,
    wanted: tuple[TensorSpec, ...],
    description: FunctionDescription,
    metadata: Mapping[str, str],
) -> tuple[FeaturePort, ...]:
    """Match a description of inputs or outputs with the features of a package.

    Args:
        backend: for messages.
        kind: ``input`` or ``output``.
        wanted: the artifact's description; when empty the package's own is taken.
        description: Description of the function.
        metadata: Metadata of the package.

    Raises:
        LoadError: a tensor is missing or cannot be held in its feature.
    """
    features = description.inputs if kind == "input" else description.outputs
    names = _recorded(metadata, NAMES, f"{kind}s")
    types = _recorded(metadata, TYPES, f"{kind}s")
    bounds = _bounds(metadata) if kind == "input" else {}
    classes = _classes(metadata)
    if not wanted:
        return tuple(
            replace(
                _own(backend, f, names.get(f.name, f.name), types.get(f.name)),
                bounds=bounds.get(names.get(f.name, f.name)),
                classes=classes,
            )
            for f in features
        )
    found = []
    for feature in features:
        # The name in the metadata is the model's; without one the package's own serves.
        known = (names.get(feature.name, feature.name), feature.name)
        dtype = types.get(feature.name) or _held(backend, feature)
        found.append(dict.fromkeys(known, dtype))
    order = check_signature(backend, kind, wanted, found)
    return tuple(
        FeaturePort(
            *(spec, features[index], _held(backend, features[index])),
            bounds.get(spec.name),
            classes,
        )
        for spec, index in zip(wanted, order, strict=True)
    )


def shape_fault(feature: Feature, shape: tuple[int, ...]) -> str | None:
    """Say why Core ML would refuse an input's shape."""
    if feature.kind not in ("array", "image"):
        return None
    if feature.shapes:
        known = (*feature.shapes, feature.shape)
        return None if shape in known else f"shape {shape} is not one of {sorted(set(known))}"
    if feature.ranges:
        fits = len(shape) == len(feature.ranges) and all(
            low <= n and (high is None or n <= high)
            for n, (low, high) in zip(shape, feature.ranges, strict=True)
        )
        return None if fits else f"shape {shape} is outside of {feature.ranges}"
    if feature.shape and shape != feature.shape:
        return f"expected shape {feature.shape}, received {shape}"
    return None


def _recorded(metadata: Mapping[str, str], key: str, kind: str) -> dict[str, str]:
    try:
        found = parse_json(metadata.get(key, "{}")).get(kind, {})
        return {str(k): str(v) for k, v in found.items()}
    except (ValueError, AttributeError) as error:
        raise LoadError(f"the package's metadata {key!r} cannot be read") from error


def _bounds(metadata: Mapping[str, str]) -> dict[str, tuple[int, ...]]:
    try:
        return integer_bounds(metadata.get(BOUNDS, "{}"))
    except ValueError as error:
        raise LoadError(f"the package's metadata {BOUNDS!r} cannot be read") from error


def _classes(metadata: Mapping[str, str]) -> tuple[str, ...]:
    try:
        return tuple(str(name) for name in parse_json(metadata.get(CLASSES, "[]")))
    except (ValueError, TypeError) as error:
        raise LoadError(f"the package's metadata {CLASSES!r} cannot be read") from error


def _own(backend: str, feature: Feature, name: str, dtype: str | None) -> FeaturePort:
    held = _held(backend, feature)
    shape: tuple[Dim, ...] | None = tuple(feature.shape)
    if feature.kind in ("label", "dictionary"):
        shape = () if feature.kind == "label" else (None,)
    elif feature.shapes:
        lengths = [set(axis) for axis in zip(*feature.shapes, strict=False)]
        shape = tuple(n.pop() if len(n) == 1 else None for n in lengths)
    elif feature.ranges:
        shape = tuple(low if low == high else None for low, high in feature.ranges)
    elif not feature.shape:
        shape = None
    return FeaturePort(TensorSpec(name, dtype or held, shape), feature, held)


def _held(backend: str, feature: Feature) -> str:
    """Return the element type of the arrays that a feature carries."""
    if feature.kind in ("image", "dictionary"):
        return "float32"
    if not feature.dtype:
        raise LoadError(f"backend {backend!r}: {feature.name!r} has elements of an unknown type")
    return feature.dtype
