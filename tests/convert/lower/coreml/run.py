"""Lower a graph, evaluate the package, compare with ONNX Runtime.

from tests.convert.lower.coreml.run import check
check("g (float[2] x) => (float[2] y) {y = Relu(x)}", {"x": np.array([-1, 1], np.float32)})
"""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
from onnx_ir.passes.common import ShapeInferencePass

from edgeinfer import profiles
from edgeinfer.backends.base import Artifact, Executable, LoadOptions
from edgeinfer.backends.coreml_reference.backend import CoreMLReferenceBackend
from edgeinfer.convert.lower.coreml.options import CoreMLOptions
from edgeinfer.convert.lower.coreml.target import CoreMLTarget
from edgeinfer.convert.lower.target import Lowered, LowerOptions
from edgeinfer.convert.passes import input_specs, normalise, output_specs
from edgeinfer.types import Array
from tests.convert.lower.running import run as run_onnx
from tests.convert.lower.tflite.run import assert_close

Feeds = Mapping[str, Array]
HEADER = '<ir_version: 10, opset_import: ["" : 24]> '


def model_of(text: str) -> ir.Model:
    """A model of ONNX text with inferred shapes; a header is added where there is none."""
    made = ir.from_onnx_text(text if text.lstrip().startswith("<") else HEADER + text)
    return ShapeInferencePass()(made).model


def lower(
    text: str,
    folder: Path,
    *,
    precision: str = "fp32",
    options: CoreMLOptions | None = None,
    fp32_nodes: frozenset[str] = frozenset(),
) -> Lowered:
    """Normalise and lower into a folder."""
    normal = normalise(model_of(text)).model
    asked = LowerOptions(precision, fp32_nodes=fp32_nodes)
    return CoreMLTarget(options).lower(normal, profiles.load("ios"), asked, folder)


def opened(model: ir.Model, made: Lowered) -> Executable:
    """Open a package in the reference evaluator."""
    artifact = Artifact(made.format, made.files[0], input_specs(model), output_specs(model))
    return CoreMLReferenceBackend().load(artifact, LoadOptions())


def evaluate(text: str, made: Lowered, feeds: Feeds) -> dict[str, Array]:
    """Run a package in the reference evaluator."""
    return dict(opened(model_of(text), made).run(dict(feeds)))


def check(
    text: str,
    feeds: Feeds,
    *more: Feeds,
    rtol: float = 2e-6,
    precision: str = "fp32",
    options: CoreMLOptions | None = None,
) -> Counter[str]:
    """Compare one lowering with ONNX Runtime; returns the operators of the package.

    Args:
        text: of the model.
        feeds: by input name.
        *more: further feeds, of other sizes where the model is dynamic.
        rtol: of the largest magnitude of the expected output.
        precision: recipe.
        options: of the package.
    """
    model = model_of(text)
    with tempfile.TemporaryDirectory() as folder:
        made = lower(text, Path(folder), precision=precision, options=options)
        ready = opened(model, made)
        for one in (feeds, *more):
            names = [o.name for o in model.graph.outputs]
            right = dict(zip(names, run_onnx(model, dict(one)), strict=True))
            got = ready.run(dict(one))
            assert list(got) == names
            for name, value in right.items():
                assert_close(got[str(name)], np.asarray(value), rtol, str(name))
    return Counter(made.ops)


def floats(*shape: int, seed: int = 0) -> Array:
    """Normally distributed numbers."""
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def refusal(text: str, options: CoreMLOptions | None = None) -> Any:
    """The problems of a graph that cannot be lowered."""
    normal = normalise(model_of(text)).model
    return CoreMLTarget(options).check(normal, profiles.load("ios"), LowerOptions())
