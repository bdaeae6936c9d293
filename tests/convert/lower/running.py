"""Build models from text and run them, for the tests of lowering."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
from onnx_ir.passes.common import ShapeInferencePass

from edgeinfer import profiles
from edgeinfer.convert.lower import Lowered, LowerOptions, target_for
from edgeinfer.types import Array


def model(text: str, opset: int = 24) -> ir.Model:
    """Return a model with inferred shapes."""
    head = f'<ir_version: 10, opset_import: ["": {opset}, "com.acme": 1, "com.microsoft": 1]> '
    made = ir.from_onnx_text(head + text)
    return ShapeInferencePass()(made).model


def ops(of: ir.Model) -> list[str]:
    """Return the operators of the main graph in order, without constants."""
    return [n.op_type for n in of.graph if n.op_type != "Constant"]


def run(of: ir.Model | Path, feeds: dict[str, Any]) -> list[Array]:
    """Run on ONNX Runtime as written, without graph optimisation."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level, options.intra_op_num_threads = 3, 1
    data = str(of) if isinstance(of, Path) else ir.to_proto(of).SerializeToString()
    session = onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"])
    outputs: list[Array] = session.run(None, feeds)
    return outputs


def check(of: ir.Model) -> None:
    """Let ONNX's checker look at it."""
    onnx.checker.check_model(ir.to_proto(of), full_check=True)


def lower(of: ir.Model, folder: Path, target: str = "onnxruntime", **options: Any) -> Lowered:
    """Lower for a shipped target, into a new folder below ``folder``."""
    profile = profiles.load(target)
    out = folder / f"out{len(list(folder.iterdir()))}"
    out.mkdir()
    return target_for(profile.formats[0]).lower(of, profile, LowerOptions(**options), out)


def run_openvino(path: Path, *inputs: Array) -> list[Array]:
    """Run an IR, inputs by position; by default some machines would compute in bf16."""
    import openvino

    core = openvino.Core()
    settings = {"INFERENCE_NUM_THREADS": 1, "INFERENCE_PRECISION_HINT": "f32"}
    compiled = core.compile_model(core.read_model(path), "CPU", settings)
    result = compiled.create_infer_request().infer(dict(enumerate(inputs)))
    return [np.array(result[i]) for i in range(len(compiled.outputs))]
