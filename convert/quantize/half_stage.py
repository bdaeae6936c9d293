"""What a conversion to half precision does beyond lowering: ranges, and the arithmetic itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from edgeinfer.errors import RunError
from edgeinfer.metrics import budget_for

if TYPE_CHECKING:
    import onnx_ir as ir

    from edgeinfer.convert.lower.target import Lowered, LowerOptions
    from edgeinfer.convert.verify import EngineResult, Report
    from edgeinfer.types import Feeds

_ROUNDS_ITSELF = frozenset({"mlprogram"})
"""Formats whose engine in the gate rounds every result to half precision."""

_UNPACKED = {
    "openvino_ir": "devices that compute in fp16 (a GPU, when asked)",
    "tflite": "delegates that compute in fp16 (a GPU's)",
}
"""Formats whose engine unpacks half-precision weights, and what may compute otherwise."""


class Halves:
    """Half precision in one conversion; does nothing where another precision is asked for."""

    def __init__(self, precision: str) -> None:
        """Take note."""
        self.asked = precision == "fp16"
        self._kept: dict[str, str] | None = None

    def look(self, model: ir.Model, samples: Sequence[Feeds]) -> list[str]:
        """Find what has to stay in single precision; return lines for the report."""
        if not self.asked or self._kept is not None:
            return []
        from edgeinfer.convert.quantize.half_ranges import describe, outside

        try:
            self._kept = outside(model, samples)
        except RunError as e:
            self._kept = {}
            return [f"fp16: ranges were not looked at: {e}"]
        return describe(model, self._kept)

    def options(self, options: LowerOptions) -> LowerOptions:
        """Add what was found."""
        kept = options.fp32_nodes | frozenset(self._kept or ())
        return replace(options, fp32_nodes=kept)

    def check(
        self, model: ir.Model, lowered: Lowered, report: Report
    ) -> tuple[tuple[EngineResult, ...], str]:
        """Evaluate in half precision what the engine at hand computes in single precision.

        Args:
            model: normalised, float.
            lowered: what was written.
            report: has the vectors and the oracles' answers.

        Returns:
            A further result for the gate, where the artifact itself was evaluated; and a line that
            says which arithmetic was checked.
        """
        from edgeinfer.convert.verify.half import ask_file, ask_in_half, sentence

        if not self.asked or report.expected is None or "fp16" not in lowered.precision:
            return (), "nothing in half precision was checked"
        budget = budget_for(lowered.precision)
        if lowered.format == "onnx":
            result = ask_file(lowered.files[0], report.vectors, report.expected, budget)
            return (result,), sentence(result, "in the arithmetic of half-precision hardware")
        if lowered.format in _ROUNDS_ITSELF:
            return (), "the engine of the gate rounds every result to half precision itself"
        if lowered.format in _UNPACKED:
            result = ask_in_half(
                model, report.vectors, report.expected, budget, everywhere=True, seconds=30.0
            )
            where = f"half-precision weights, computed in fp32; on {_UNPACKED[lowered.format]}"
            return (), sentence(result, where)
        return (), "the arithmetic of half-precision hardware was not checked"
