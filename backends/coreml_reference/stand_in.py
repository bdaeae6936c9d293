"""A stand-in for Core ML behind coremltools' own ``MLModel``: the evaluator answers ``predict``.

Off a Mac coremltools builds models and cannot run them, so whatever it does by running them, such
as finding the ranges of activations, fails. Within ``answering()`` it works. What comes back is
evaluated, not run on Apple hardware.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

from edgeinfer.backends.coreml_reference.evaluate import ProgramEvaluator, State, StateCell
from edgeinfer.backends.coreml_reference.package import Feature, Package, open_package
from edgeinfer.backends.coreml_reference.signature import shape_fault
from edgeinfer.backends.engines import import_coremltools
from edgeinfer.errors import EdgeInferError
from edgeinfer.types import Array

# What coremltools asks of the system; states need macOS 15.
MACOS = (15, 3)
NEWEST_SPECIFICATION = 10


class StateProxy:
    """Stands in for a prediction's state."""

    def __init__(self, cells: State, dtypes: Mapping[str, str]) -> None:
        self.cells = cells
        self._dtypes = dtypes

    def read_state(self, name: str) -> Array:
        """Return a copy of a state."""
        return np.array(self.cells[name].value, np.float32)

    def write_state(self, name: str, value: Array) -> None:
        """Replace a state, rounded to its type."""
        held = self.cells[name].value.shape if name in self.cells else None
        if np.shape(value) != held:
            shape = np.shape(value)
            raise RuntimeError(f"state {name!r}: expected shape {held}, received {shape}")
        rounded = np.asarray(value).astype(self._dtypes[name])
        self.cells[name] = StateCell(rounded.astype(self.cells[name].value.dtype))


class ModelProxy:
    """Stands in for ``coremltools.libcoremlpython._MLModelProxy``."""

    def __init__(
        self,
        path: str,
        compute_units: str = "ALL",
        function_name: str = "",
        optimization_hints: Mapping[str, str] | None = None,
        asset: Any = None,
    ) -> None:
        started = time.perf_counter_ns()
        self.compute_units = compute_units
        self.optimization_hints = dict(optimization_hints or {})
        try:
            package = self.open(Path(path))
            self._evaluator = ProgramEvaluator(package.function(function_name))
            self._description = package.description(function_name)
        except EdgeInferError as error:
            raise RuntimeError(str(error)) from error
        self._loaded_in = time.perf_counter_ns() - started
        self._predicted_in = 0

    def open(self, path: Path) -> Package:
        """Open the package that a path stands for."""
        return open_package(path)

    def predict(self, data: Mapping[str, Any], state: StateProxy | None = None) -> dict[str, Any]:
        """Compute all outputs; arrays come back in the types that Core ML gives."""
        started = time.perf_counter_ns()
        feeds = {f.name: self._feed(f, data) for f in self._description.inputs}
        try:
            found = self._evaluator.run(feeds, None if state is None else state.cells)
        except EdgeInferError as error:
            # The words of Core ML come first, which programs may look for.
            message = f"Unable to compute the prediction using ML Program: {error}"
            raise RuntimeError(message) from error
        self._predicted_in = time.perf_counter_ns() - started
        kinds = {f.name: f for f in self._description.outputs}
        return {name: _handed_out(value, kinds.get(name)) for name, value in found.items()}

    def batchPredict(self, data: list[Mapping[str, Any]]) -> list[dict[str, Any]]:  # noqa: N802
        """Compute one item after the other."""
        return [self.predict(item) for item in data]

    def newState(self) -> StateProxy:  # noqa: N802
        """Return a state of zeros."""
        dtypes = {f.name: f.dtype for f in self._description.states}
        return StateProxy(self._evaluator.make_state(), dtypes)

    def get_last_predict_duration_in_nano_seconds(self) -> int:
        """Return how long the last prediction took."""
        return self._predicted_in

    def get_load_duration_in_nano_seconds(self) -> int:
        """Return how long opening the model took."""
        return self._loaded_in

    @staticmethod
    def maximum_supported_specification_version() -> int:
        """Return the newest version of the format that is known."""
        return NEWEST_SPECIFICATION

    @staticmethod
    def _feed(feature: Feature, data: Mapping[str, Any]) -> Array:
        if feature.name not in data:
            raise RuntimeError(f"input {feature.name!r} is missing, received {sorted(data)}")
        value = data[feature.name]
        array = _pixels(value, feature) if feature.kind == "image" else np.asarray(value)
        if feature.shape == (1,) and array.ndim == 0:
            array = array.reshape(1)
        if fault := shape_fault(feature, array.shape):
            raise RuntimeError(f"input {feature.name!r}: {fault}")
        return array


@contextmanager
def answering(proxy: type[ModelProxy] = ModelProxy) -> Iterator[None]:
    """Let coremltools believe that it runs on a Mac whose Core ML is the evaluator."""
    import_coremltools()
    from coremltools.models import _compiled_model, model, utils

    with ExitStack() as patches:
        for module in (model, _compiled_model, utils):
            for name, value in (
                ("_MLModelProxy", proxy),
                ("_is_macos", lambda: True),
                ("_macos_version", lambda: MACOS),
            ):
                if hasattr(module, name):
                    patches.enter_context(mock.patch.object(module, name, value))
        yield


def _pixels(value: Any, feature: Feature) -> Array:
    """Return a PIL image as the program takes it: channels first, values 0 to 255."""
    pixels = np.asarray(value, np.float32)
    if pixels.ndim == 2:
        return pixels[None, None]
    planes = pixels[..., :3].transpose(2, 0, 1)[None]
    return planes[:, ::-1] if feature.image == "BGR" else planes


def _handed_out(value: Any, feature: Feature | None) -> Any:
    if isinstance(value, dict):
        return value
    if feature is not None and feature.kind == "label":
        return value.item()
    if feature is not None and feature.kind == "image":
        return _picture(value, feature)
    array = np.asarray(value)
    array = array.reshape(1) if array.ndim == 0 else array
    return array.astype(np.float32) if array.dtype == np.float16 else array


def _picture(value: Array, feature: Feature) -> Any:
    from PIL import Image

    if feature.image == "F":
        return Image.fromarray(value[0, 0].astype(np.float32))
    pixels = np.clip(np.round(value[0]), 0, 255).astype(np.uint8)
    if len(pixels) == 1:
        return Image.fromarray(pixels[0])
    ordered = pixels[::-1] if feature.image == "BGR" else pixels
    return Image.fromarray(np.ascontiguousarray(ordered.transpose(1, 2, 0)))
