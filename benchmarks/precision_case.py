"""What one task of the precision benchmark is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edgeinfer.convert.quantize.quality import Metric
from edgeinfer.types import Array


@dataclass(frozen=True, slots=True)
class Case:
    """One model with data.

    Attributes:
        name: of the case.
        model: an ONNX file.
        feeds: calibration samples.
        tests: held-out samples.
        metric: outputs and answers of the tests to a number; None compares with float.
        answers: of the tests.
        labels: of the calibration samples, where known.
        unit: what the metric measures.
    """

    name: str
    model: Path
    feeds: list[dict[str, Array]]
    tests: list[dict[str, Array]]
    metric: Metric | None = None
    answers: Sequence[Any] = ()
    labels: Sequence[Any] = ()
    unit: str = "agreement"


def traced(net: Any, example: Any, path: Path) -> None:
    """Write a trained net; its input is named ``x``."""
    import onnx_ir as ir

    from edgeinfer.convert import passes, sources

    source = sources.read(net, example_inputs=(example,))
    model = passes.normalise(source.model).model
    model.graph.inputs[0].name = "x"
    ir.save(model, path)
