"""PyTorch nets as Core ML packages, evaluated by ``coreml-reference``: equal to the module."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest

from edgeinfer.convert import sources
from edgeinfer.convert.passes import input_specs
from tests.e2e.test_coreml_lowering import evaluated, within

torch = pytest.importorskip("torch")

from tests.zoo.exported import EXPORTERS, exported  # noqa: E402
from tests.zoo.nets import NETS, torch_model  # noqa: E402

pytestmark = pytest.mark.models


@pytest.mark.timeout(900)
@pytest.mark.parametrize("precision", ["fp32", "fp16"])
@pytest.mark.parametrize("exporter", ["module", *EXPORTERS])
@pytest.mark.parametrize("name", NETS)
def test_pytorch_nets(name: str, exporter: str, precision: str, tmp_path: Path) -> None:
    """By our own reader of modules, and as ONNX of both of PyTorch's exporters."""
    pytest.importorskip("coremltools")
    module, inputs, dynamic = torch_model(name)
    if exporter == "module":
        source = sources.read(module, example_inputs=inputs, dynamic_shapes=dynamic).model
    else:
        source = ir.load(exported(name, exporter))
    with torch.no_grad():
        results = module(**inputs)
    results = [results] if torch.is_tensor(results) else list(results)
    values = [np.asarray(v) for v in inputs.values()]
    feeds = {s.name: v for s, v in zip(input_specs(source), values, strict=True)}
    got, found = evaluated(source, feeds, tmp_path / "m", precision)
    assert ("fp16" in found) == (precision == "fp16")
    want = dict(zip(got, (r.numpy() for r in results), strict=True))
    within(got, want, found)
