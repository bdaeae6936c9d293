"""What one task of the precision benchmark is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from edgeinfer.accuracy import Metric
from edgeinfer.backends.base import Executable
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
        carried: outputs that are given to inputs of the next test, by the input's name: each file
            is measured with the state that it made itself.
    """

    name: str
    model: Path
    feeds: list[dict[str, Array]]
    tests: list[dict[str, Array]]
    metric: Metric | None = None
    answers: Sequence[Any] = ()
    labels: Sequence[Any] = ()
    unit: str = "agreement"
    carried: Mapping[str, str] = field(default_factory=dict)

    def run(self, executable: Executable, count: int) -> list[dict[str, Array]]:
        """Run the first tests, in order."""
        found: list[dict[str, Array]] = []
        for feeds in self.tests[:count]:
            state = {i: found[-1][o] for i, o in self.carried.items()} if found else {}
            found.append(dict(executable.run({**feeds, **state})))
        return found


def traced(net: Any, example: Any, path: Path) -> None:
    """Write a trained net; its input is named ``x``."""
    import onnx_ir as ir

    from edgeinfer.convert import passes, sources

    source = sources.read(net, example_inputs=(example,))
    model = passes.normalise(source.model).model
    model.graph.inputs[0].name = "x"
    ir.save(model, path)
