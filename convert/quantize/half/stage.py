"""What a conversion to half precision does beyond lowering: ranges, and the arithmetic itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from edgeinfer.backends import registry
from edgeinfer.errors import RunError
from edgeinfer.machine.arithmetic import lacking
from edgeinfer.machine.cuda import cuda_devices
from edgeinfer.machine.fingerprint import known_facts
from edgeinfer.metrics import budget_for

if TYPE_CHECKING:
    import onnx_ir as ir

    from edgeinfer.convert.lower.target import Lowered, LowerOptions
    from edgeinfer.convert.verify import EngineResult, Report
    from edgeinfer.convert.verify.answers import Expected
    from edgeinfer.metrics import Budget
    from edgeinfer.profiles.schema import Profile
    from edgeinfer.types import Array, Feeds

_BFLOAT = "bf16"

_UNSAID = (
    "fp16: nobody said what the inputs hold, so {count} more layers stay fp32, which magnitudes "
    "from 0.01 to 60000 (images: 255) would take out of range: --input-range NAME=LO:HI or "
    "--data lets them be fp16"
)

_ROUNDS_ITSELF = frozenset({"mlprogram"})
"""Formats whose engine in the gate rounds every result to half precision."""

_UNPACKED = {
    "openvino_ir": "devices that compute in fp16 (a GPU, if chosen)",
    "tflite": "delegates that compute in fp16 (a GPU's)",
}
"""Formats whose engine unpacks half-precision weights, and what may compute otherwise."""


def is_here(kind: str, profile: Profile, format: str) -> bool:
    """Whether an engine here computes files of a target in floats that it may be set to use.

    A GPU alone is not enough: an engine that was built without CUDA leaves it unused.
    """
    if profile.unit == "cpu":
        return not lacking(kind, known_facts().cpu.features)
    if not cuda_devices():
        return False
    engines = [registry.get(name) for name in profile.backends]
    reading = [engine for engine in engines if format in engine.capabilities().formats]
    return any(unit.kind == profile.unit for e in reading for unit in e.probe().devices)


def check_told(model: ir.Model, kind: str, report: Report) -> tuple[EngineResult, ...]:
    """Judge the arithmetic that an engine may be set to use, in place of one that has it.

    Args:
        model: normalised, float.
        kind: ``bf16``, ``fp16`` or ``tf32``.
        report: has the vectors and the oracles' answers.
    """
    from edgeinfer.convert.verify.half import ask_in_half

    if report.expected is None:
        return ()
    names = {"bf16": "bfloat16", "fp16": "float16"}
    result = ask_in_half(
        *(model, report.vectors, report.expected, budget_for(kind)),
        everywhere=names.get(kind, kind),
    )
    return (result,)


class Halves:
    """Half precision in one conversion; does nothing where another precision is requested."""

    def __init__(self, precision: str) -> None:
        """Store the arguments."""
        self.asked = precision in ("fp16", _BFLOAT)
        self._precision = precision
        self._kept: dict[str, str] | None = None
        self._repaired = False

    def look(
        self, model: ir.Model, samples: Sequence[Feeds], ladder: Sequence[Feeds] = ()
    ) -> list[str]:
        """Find what has to stay in single precision; return lines for the report.

        Args:
            model: normalised, float.
            samples: ordinary inputs.
            ladder: inputs of each magnitude that nobody ruled out.
        """
        if self._precision != "fp16" or self._kept is not None:
            # bfloat16 has the range of single precision.
            return []
        from edgeinfer.convert.quantize.half.ranges import describe, outside

        try:
            self._kept = outside(model, samples)
            free: dict[str, str] = {}
            for step in ladder:
                # No margin: the ladder goes up to the end of the range by itself.
                found = outside(model, [step], margin=1.0)
                free |= {n: why for n, why in found.items() if n not in self._kept | free}
        except RunError as e:
            self._kept = {}
            return [f"fp16: ranges were not looked at: {e}"]
        lines = describe(model, self._kept)
        if free:
            self._kept = self._kept | free
            lines += [_UNSAID.format(count=len(free)), *describe(model, free)]
        return lines

    def options(self, options: LowerOptions, profile: Profile) -> LowerOptions:
        """Add what was found and counts for a target."""
        return replace(options, fp32_nodes=options.fp32_nodes | self._for(profile))

    def _for(self, profile: Profile) -> frozenset[str]:
        from edgeinfer.convert.quantize.half.ranges import Inside

        found = (self._kept or {}).items()
        return frozenset(n for n, why in found if not (profile.fp16_ops and type(why) is Inside))

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

        kind = self._precision
        if not self.asked or report.expected is None or kind not in lowered.precision:
            return (), "nothing in half precision was checked"
        budget = budget_for(lowered.precision)
        if lowered.format == "onnx":
            result = ask_file(lowered.files[0], report.vectors, report.expected, budget, kind)
            where = "GPUs with bf16" if kind == _BFLOAT else "half-precision hardware"
            return (result,), sentence(result, f"in the arithmetic of {where}")
        if kind == _BFLOAT:
            return self._check_bfloat(model, report, report.expected, budget)
        if lowered.format in _ROUNDS_ITSELF:
            return (), "the engine of the gate rounds every result to half precision itself"
        if lowered.format in _UNPACKED:
            result = ask_in_half(
                model, report.vectors, report.expected, budget, everywhere="float16", seconds=30.0
            )
            where = f"half-precision weights, computed in fp32; on {_UNPACKED[lowered.format]}"
            return (), sentence(result, where)
        return (), "the arithmetic of half-precision hardware was not checked"

    def run(self, model: ir.Model, lowered: Lowered, feeds: Feeds) -> Mapping[str, Array]:
        """Evaluate an artifact once, as ``check`` does.

        Raises:
            CannotEvaluate: an operator is unknown or failed.
        """
        from edgeinfer.convert.verify.evaluate import Evaluator
        from edgeinfer.convert.verify.half import run_file, run_in_half

        if self._precision != _BFLOAT or lowered.format == "onnx":
            return run_file(lowered.files[0], feeds)
        return run_in_half(Evaluator(model, wide=False, halved="bfloat16"), feeds)

    @staticmethod
    def _check_bfloat(
        model: ir.Model, report: Report, expected: Expected, budget: Budget
    ) -> tuple[tuple[EngineResult, ...], str]:
        """Let the evaluator judge where no processor at hand computes in bfloat16.

        Where one does, the gate runs what is real, of which the plugin keeps some in single
        precision; the evaluator rounds everything.
        """
        from edgeinfer.backends.engines import import_openvino
        from edgeinfer.backends.openvino.floats import has_bf16
        from edgeinfer.convert.verify.half import ask_in_half, sentence

        result = ask_in_half(model, report.vectors, expected, budget, everywhere="bfloat16")
        if has_bf16(import_openvino().Core()):
            where = "in bf16 on this processor; with every operator's result rounded to bf16"
            return (), sentence(result, where)
        return (result,), sentence(result, "in the arithmetic of processors with bf16")

    def repair(
        self,
        model: ir.Model,
        lowered: Lowered,
        checks: tuple[EngineResult, ...],
        report: Report,
        profile: Profile,
    ) -> str:
        """Keep more in single precision where an artifact failed; done once.

        Returns:
            A line for the report; empty where there is nothing to repair, or nothing helps.
        """
        if self._repaired or not self.asked:
            return ""
        if all(c.passed or c.skipped for c in checks):
            return ""
        from edgeinfer.convert.lower.onnxruntime import bf16, fp16
        from edgeinfer.convert.quantize.half.repair import first_part
        from edgeinfer.convert.verify.half import ask_in_half
        from edgeinfer.errors import Remarks

        if report.expected is None or lowered.format != "onnx":
            return ""
        self._repaired = True
        kept = self._kept or {}
        own = self._for(profile)
        positions = [i for i, v in enumerate(report.vectors) if not v.edge or v.reach]
        failing = [o.vector for c in checks for o in c.outputs if o.vector is not None]
        place = failing[0] if failing else positions[0]
        vectors = [report.vectors[place]]
        expected = replace(report.expected, answers=(report.expected.answers[place],))
        budget = budget_for(lowered.precision)
        usual = [report.expected.answers[i] for i in positions if not report.vectors[i].reach]

        def good(names: frozenset[str]) -> bool:
            half, notes = model.clone(), Remarks()
            if self._precision == _BFLOAT:
                bf16.halve(half, names | own, notes, frozenset())
            else:
                fp16.halve(half, names | own, notes, ops=frozenset(profile.fp16_ops))
            return ask_in_half(half, vectors, expected, budget, usual=usual).passed

        names = first_part(model, good)
        if not names:
            return ""
        self._kept = {**kept, **dict.fromkeys(names, "the result fails without")}
        return (
            f"{self._precision}: the first {len(names)} of {len(list(model.graph))} nodes stay "
            "fp32: the result left its budget without"
        )
