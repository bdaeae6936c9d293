"""8-bit activations and weights by coremltools' own calibration, with the evaluator as Core ML.

coremltools finds the ranges of activations by running the model, which it can do on a Mac only.
Behind ``stand_in.answering`` the evaluator runs it, on any machine.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

from edgeinfer.backends.coreml_reference.package import open_package
from edgeinfer.backends.coreml_reference.stand_in import answering
from edgeinfer.convert.lower.coreml.package import settle
from edgeinfer.convert.lower.coreml.ports import Port
from edgeinfer.errors import UsageError
from edgeinfer.types import Array, Feeds


def quantize_activations(path: Path, inputs: Sequence[Port], samples: Sequence[Feeds]) -> None:
    """Quantize a package in place: activations by the ranges that samples give, then weights.

    Args:
        path: the package, written by ``package.write``.
        inputs: its inputs, none of them an image.
        samples: feeds of the model.

    Raises:
        UsageError: there are no samples, or an input is an image.
    """
    import coremltools as ct
    from coremltools.optimize import coreml as cto

    if not samples:
        raise UsageError("calibrator 'coremltools': the calibration data holds no sample")
    package = open_package(path)
    if any(f.kind == "image" for f in package.description().inputs):
        raise UsageError("calibrator 'coremltools' takes no image inputs: leave --image-input out")
    data = [_given(feeds, inputs) for feeds in samples]
    config = cto.OptimizationConfig(
        global_config=cto.OpLinearQuantizerConfig(mode="linear_symmetric")
    )
    with answering(), _ranges_of_all_samples(), tempfile.TemporaryDirectory() as folder:
        model = ct.models.MLModel(str(path), skip_model_load=True)
        quantized = cto.linear_quantize_activations(model, config, data)
        quantized = cto.linear_quantize_weights(quantized, config)
        made = Path(folder, path.name)
        quantized.save(str(made))
        del model, quantized
        shutil.rmtree(path)
        shutil.move(made, path)
    settle(path, package.metadata)


def _given(feeds: Feeds, inputs: Sequence[Port]) -> dict[str, Array]:
    kinds = {"fp32": np.float32, "fp16": np.float32, "int32": np.int32}
    return {
        p.name: np.asarray(feeds[p.source], kinds[p.kind]).reshape(
            np.shape(feeds[p.source]) or (1,)
        )
        for p in inputs
    }


def _ranges_of_all_samples() -> Any:
    """Coremltools 9.0 keeps the range of the last sample only; it means to keep that of all."""
    from coremltools.optimize.coreml.experimental import _post_training_quantization as tools
    from coremltools.optimize.coreml.experimental._model_debugger import ModelDebugger

    def widened(name: str, value: Any, ranges: Mapping[str, dict[str, float]]) -> None:
        low, high = float(np.min(value)), float(np.max(value))
        known = ranges[name]
        known["rmin"] = min(low, known.get("rmin", low))
        known["rmax"] = max(high, known.get("rmax", high))

    def recorded(value: Any, name: str, ranges: Mapping[str, dict[str, float]]) -> None:
        widened(name, value, ranges)

    stack = ExitStack()
    stack.enter_context(mock.patch.object(tools, "_update_tensor_range", widened))
    stack.enter_context(
        mock.patch.object(ModelDebugger, "record_intermediate_output", staticmethod(recorded))
    )
    return stack
