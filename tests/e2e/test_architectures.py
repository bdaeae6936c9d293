"""Architectures of today, with random weights, on three targets: right, or refused for a reason.

Small configurations: what is tested is that every operator of them is right on every target, which
the gate says on inputs that it makes up.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import edgeinfer

torch = pytest.importorskip("torch")
pytest.importorskip("onnxscript")

from tests.e2e.architectures import ARCHITECTURES  # noqa: E402 - it is made of torch

TARGETS = {
    "cpu": ("onnxruntime", "openvino"),
    "rpi5": ("ai_edge_litert",),
    "ios": ("coremltools",),
}


@pytest.mark.slow
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("build", ARCHITECTURES, ids=lambda b: b.__name__)
def test_it_converts_and_is_right(
    build: Callable[[], tuple[Any, tuple[Any, ...]]], target: str, tmp_path: Path
) -> None:
    for name in TARGETS[target]:
        pytest.importorskip(name)
    torch.manual_seed(0)
    module, inputs = build()
    result = edgeinfer.export(
        module.eval(), tmp_path / "m.edge", targets=[target], example_inputs=inputs
    )
    assert {v.target for v in result.manifest.variants} == {target}
