"""coremltools' own activation quantization, with the evaluator in the place of Core ML."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import edgeinfer
from edgeinfer.backends.coreml_reference.package import open_package
from edgeinfer.backends.coreml_reference.program import Constant
from edgeinfer.bundle.archive import Bundle
from edgeinfer.errors import UsageError

TEXT = """<ir_version: 10, opset_import: ["" : 20]>
g (float[1,16,4,4] x) => (float[1,16,4,4] y) { c = Conv(x, w) y = Relu(c) }"""


def model() -> onnx.ModelProto:
    made = onnx.parser.parse_model(TEXT)
    weights = np.random.default_rng(0).normal(0, 0.2, (16, 16, 3, 3)).astype(np.float32)
    made.graph.initializer.append(onnx.numpy_helper.from_array(weights, "w"))
    made.graph.node[0].attribute.append(onnx.helper.make_attribute("pads", [1, 1, 1, 1]))
    return made


def export(folder: Path, **more: Any) -> Path:
    samples = np.random.default_rng(1).uniform(-1, 1, (24, 16, 4, 4)).astype(np.float32)
    # The first sample has the largest value: it counts as well as the last.
    samples[0, 0, 0, 0] = 3.0
    np.savez(folder / "samples.npz", x=samples)
    asked: dict[str, Any] = {
        "targets": ["ios"],
        "precision": "static_wi8_ai8+fp16",
        "calibration": folder / "samples.npz",
        "calibrator": "coremltools",
    }
    return edgeinfer.export(model(), folder / "m.edge", **{**asked, **more}).path


def test_ranges_are_those_of_all_samples_as_the_evaluator_computes_them(tmp_path: Path) -> None:
    path = export(tmp_path)
    bundle = Bundle.open(path)
    (variant,) = bundle.manifest.variants
    assert variant.precision == "static_wi8_ai8+fp16"
    assert variant.accuracy["y"]["sqnr_db"] > 25
    package = open_package(bundle.paths(variant)[0])
    assert package.metadata["edgeinfer.checked"] == "by the reference evaluator, not by Core ML"
    operations = package.function().block.operations
    kinds = [op.type for op in operations if op.type != "const"]
    assert kinds.count("constexpr_affine_dequantize") == 1
    first = next(op for op in operations if op.type == "quantize")
    constants = {op.outputs[0].name: op.inputs["val"][0] for op in operations if op.type == "const"}
    (name,) = first.inputs["scale"]
    assert isinstance(name, str)
    scale = constants[name]
    assert isinstance(scale, Constant)
    np.testing.assert_allclose(np.asarray(scale.value), 3.0 / 127, rtol=2e-3)


@pytest.mark.parametrize(
    "asked",
    [
        {"targets": ["ios", "cpu"], "precision": "static_wi8_ai8"},
        {"precision": "static_wi8_ai8"},
        {"precision": "weight_only_wi8_afp16"},
    ],
)
def test_it_is_for_core_ml_and_half_precision(asked: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is for Core ML packages alone, with the precision"):
        export(tmp_path, **asked)
