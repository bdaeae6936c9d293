"""One graph of 8-bit integers on three engines: how many outputs are the same step?

    python -m benchmarks.precision_agree [--tasks mnist,spam] [--json FILE]

The operators that all three compute with integers are quantized with one set of scales, written for
ONNX Runtime, OpenVINO and LiteRT, and run on held-out samples. A step is that of the output's own
scale, or where the output is float, one of 255 of its range.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir

from benchmarks.precision import TASKS, add_tasks
from benchmarks.precision_case import Case
from edgeinfer import profiles
from edgeinfer.backends import registry
from edgeinfer.backends.base import Artifact, LoadOptions
from edgeinfer.convert import passes
from edgeinfer.convert.lower import target_for
from edgeinfer.convert.lower.target import LowerOptions
from edgeinfer.convert.quantize.calibration import Quantizer, Settings, limits_of
from edgeinfer.convert.quantize.recipe import recipe
from edgeinfer.media.samples import open_data
from edgeinfer.profiles.schema import Quantization

ENGINES = {
    "onnxruntime": ("onnxruntime", "onnx"),
    "openvino": ("openvino", "openvino_ir"),
    "litert": ("rpi4", "tflite"),
}
"""Backend to the profile and format that are written for it."""

SAMPLES = 100
"""At most. In nets of attention the few samples in which a rounding went the other way decide."""

WANTED = 0.99


@dataclasses.dataclass(frozen=True, slots=True)
class Agreement:
    """Of two engines on one output.

    Attributes:
        task: and its data.
        engines: the two.
        output: by name.
        same: share of the values that are the same step.
        within: share of the values that are at most a step apart.
        furthest: in steps.
    """

    task: str
    engines: str
    output: str
    same: float
    within: float
    furthest: float

    def line(self) -> str:
        """Return one line for a terminal."""
        holds = "holds" if self.within >= WANTED else "FAILS"
        return (
            f"{holds} {self.task} {self.output}: {self.engines}: same {self.same:.2%}, "
            f"within one step {self.within:.2%}, at most {self.furthest:.0f}"
        )


def shared_limits() -> dict[str, Quantization]:
    """Return for each engine what all three compute with integers, in the form that it wants."""
    own = {e: limits_of(profiles.load(p), f) for e, (p, f) in ENGINES.items()}
    least = own["litert"]
    return {
        name: dataclasses.replace(
            limits,
            ops=least.ops,
            moves=least.moves,
            joined=least.joined,
            per_channel=least.per_channel,
            float_results=(),
        )
        for name, limits in own.items()
    }


def agreements(case: Case, samples: int = SAMPLES) -> list[Agreement]:
    """Write one graph for all engines and compare what they answer."""
    model = passes.normalise(ir.load(case.model)).model
    specs = passes.input_specs(model)
    limits = shared_limits()
    quantizer = Quantizer(model, recipe("static_wi8_ai8"), Settings(force=True))
    quantizer.calibrate(open_data(case.feeds, specs), [*limits.values()], specs)
    step = max(1, len(case.tests) // samples)
    feeds = case.tests[::step][:samples]
    answers, scales = {}, {}
    for engine, limit in limits.items():
        written = quantizer.write(limit)
        scales.update({n: s.scale for n, s in written.scales.items()})
        answers[engine] = answered(written.model, engine, feeds)
    found = []
    for name in (v.name or "" for v in model.graph.outputs):
        for a, b in itertools.combinations(ENGINES, 2):
            one, other = answers[a][name], answers[b][name]
            unit = scales.get(name) or float(one.max() - one.min()) / 255.0 or 1.0
            apart = np.abs(one.astype(np.float64) - other) / unit
            shares = float(np.mean(apart < 0.01)), float(np.mean(apart < 1.01))
            found.append(Agreement(case.name, f"{a} and {b}", name, *shares, float(apart.max())))
    return found


def answered(model: ir.Model, engine: str, feeds: Sequence[Any]) -> dict[str, Any]:
    """Write a graph for an engine and run it; outputs of all samples, by name."""
    profile, format = ENGINES[engine]
    inputs, outputs = passes.input_specs(model), passes.output_specs(model)
    with tempfile.TemporaryDirectory() as folder:
        options = LowerOptions("fp32")
        lowered = target_for(format).lower(model, profiles.load(profile), options, Path(folder))
        artifact = Artifact(format, lowered.files[0], inputs, outputs)
        executable = registry.get(engine).load(artifact, LoadOptions(threads=1))
        try:
            runs = [executable.run(f) for f in feeds]
        finally:
            executable.close()
    return {s.name: np.stack([r[s.name] for r in runs]) for s in outputs}


def main() -> int:
    """Compare the engines on the tasks that are requested."""
    parser = argparse.ArgumentParser(description=__doc__)
    add_tasks(parser)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    options.work.mkdir(parents=True, exist_ok=True)
    found = []
    for name in options.tasks:
        for one in agreements(TASKS[name](options.work)):
            print(one.line(), flush=True)
            found.append(one)
        if options.json:
            options.json.write_text(json.dumps([dataclasses.asdict(f) for f in found], indent=1))
    return int(any(f.within < WANTED for f in found))


if __name__ == "__main__":
    sys.exit(main())
