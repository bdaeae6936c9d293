"""Others' quantizers, run by an interpreter that has them: ``KIND MODEL SAMPLES.npz OUTPUT``.

It imports nothing of edgeinfer, so it runs in an environment of its own.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np


def samples(path: str) -> list[dict[str, Any]]:
    data = np.load(path)
    count = len(next(iter(data.values())))
    return [{name: data[name][i] for name in data.files} for i in range(count)]


def onnxruntime(model: str, feeds: list[dict[str, Any]], output: str) -> None:
    from onnxruntime.quantization import (
        CalibrationDataReader,
        QuantFormat,
        QuantType,
        quantize_static,
    )
    from onnxruntime.quantization.shape_inference import quant_pre_process

    class Reader(CalibrationDataReader):  # type: ignore[misc]
        def __init__(self) -> None:
            self.left: Iterator[dict[str, Any]] = iter(feeds)

        def get_next(self) -> dict[str, Any] | None:
            return next(self.left, None)

    prepared = f"{output}.prepared.onnx"
    quant_pre_process(model, prepared, skip_symbolic_shape=True)
    quantize_static(
        prepared,
        output,
        Reader(),
        quant_format=QuantFormat.QDQ,
        per_channel=True,
        activation_type=QuantType.QUInt8,
        weight_type=QuantType.QInt8,
    )
    Path(prepared).unlink()


def nncf(model: str, feeds: list[dict[str, Any]], output: str) -> None:
    import nncf as library  # type: ignore[import-not-found]

    kinds = {"accuracy": library.ModelType.TRANSFORMER} if "minilm" in model else {}
    options = {"model_type": kinds["accuracy"]} if kinds else {}
    data = library.Dataset(feeds)
    if output.endswith(".onnx"):
        import onnx

        done = library.quantize(onnx.load(model), data, subset_size=len(feeds), **options)
        onnx.save(done, output)
        return
    import openvino

    done = library.quantize(
        openvino.Core().read_model(model), data, subset_size=len(feeds), **options
    )
    openvino.save_model(done, output)


def ai_edge(model: str, feeds: list[dict[str, Any]], output: str) -> None:
    from ai_edge_quantizer import (  # type: ignore[import-not-found]
        algorithm_manager,
        qtyping,
        quantizer,
        recipe,
        recipe_manager,
    )

    rules = recipe_manager.RecipeManager()
    rules.load_quantization_recipe(recipe.static_wi8_ai8())
    # Inputs and outputs stay float, as in the other files.
    for border in (qtyping.TFLOperationName.INPUT, qtyping.TFLOperationName.OUTPUT):
        rules.add_quantization_config(
            regex=".*",
            operation_name=border,
            algorithm_key=algorithm_manager.AlgorithmName.NO_QUANTIZE,
        )
    chosen = quantizer.Quantizer(model, rules.get_quantization_recipe())
    seen = chosen.calibrate({"serving_default": feeds}, num_threads=1)
    chosen.quantize(seen, serialize_to_path=output, enable_progress_report=False)


if __name__ == "__main__":
    kind, model, data, output = sys.argv[1:]
    {"onnxruntime": onnxruntime, "nncf": nncf, "ai-edge-quantizer": ai_edge}[kind](
        model, samples(data), output
    )
