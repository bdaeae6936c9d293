"""What rounding weights by data gains over the nearest: ``python -m benchmarks.rounding``.

Each model is calibrated twice on the same samples and compared on held-out ones in ONNX Runtime:
its task's measure, and the share of the outputs' energy that is wrong.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import onnx_ir as ir

from benchmarks import precision_data, precision_text
from benchmarks.precision_case import Case
from edgeinfer import profiles
from edgeinfer.convert import passes
from edgeinfer.convert.quantize.calibrate.observe import open_session
from edgeinfer.convert.quantize.calibration import Quantizer, Settings, limits_of
from edgeinfer.convert.quantize.recipe import recipe
from edgeinfer.convert.quantize.rewrite.rounding import output_error
from edgeinfer.media.samples import SampleSet, open_data
from edgeinfer.profiles.schema import Quantization

CASES: dict[str, tuple[Callable[[Path], Case], str]] = {
    "efficientnet-lite0": (precision_data.efficientnet_lite0, "static_wi8_ai8"),
    "opencv-digits": (precision_data.opencv_digits, "static_wi8_ai8"),
    "mnist": (precision_data.mnist, "static_wi8_ai8"),
    "minilm": (precision_text.minilm, "weight_only_wi4b32_afp32"),
    "minilm-int8": (precision_text.minilm, "static_wi8_ai8"),
    "spam": (precision_text.spam, "weight_only_wi4b32_afp32"),
    "words": (precision_text.words, "static_wi8_ai8"),
}
"""Model and data, and what it is quantized to."""


def main() -> None:
    """Compare the cases that are requested."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("cases", nargs="*", choices=[*CASES, []], default=[*CASES])
    parser.add_argument("--work", type=Path, default=Path(tempfile.gettempdir()) / "rounding")
    given = parser.parse_args()
    given.work.mkdir(parents=True, exist_ok=True)
    print("| model | precision | weights | measure | wrong energy of the outputs | s |")
    print("|---|---|---|---|---|---|")
    for name in given.cases:
        make, precision = CASES[name]
        compare(make(given.work), precision)


def compare(case: Case, precision: str) -> None:
    """Print a row for the float model and one for each rounding."""
    model = passes.normalise(ir.load(case.model)).model
    specs = passes.input_specs(model)
    data = open_data(case.feeds, specs)
    limits = limits_of(profiles.load("cpu"), "onnx")
    print(f"| {case.name} | fp32 | | {measured(case, model)} | | |", flush=True)
    for by_data in (False, True):
        row(case, model, precision, data, limits, by_data)


def row(
    case: Case,
    model: ir.Model,
    precision: str,
    data: SampleSet,
    limits: Quantization,
    by_data: bool,
) -> None:
    """Calibrate and measure once."""
    start = time.process_time()
    settings = Settings(force=True, round_weights=by_data)
    quantizer = Quantizer(model, recipe(precision), settings)
    quantizer.calibrate(data, [limits], passes.input_specs(model))
    written = quantizer.write(limits).model
    seconds = time.process_time() - start
    (error,) = output_error(model, [written], case.tests)
    kind = "by data" if by_data else "nearest"
    quality = measured(case, written)
    print(f"| {case.name} | {precision} | {kind} | {quality} | {error:.5f} | {seconds:.0f} |")
    for line in quantizer.notes if by_data else ():
        if "round" in line or "error of the outputs" in line:
            print(f"  {line}", flush=True)


def measured(case: Case, model: ir.Model) -> str:
    """Run the held-out samples and return the task's measure."""
    if case.metric is None:
        return ""
    names = [v.name or "" for v in model.graph.outputs]
    with tempfile.TemporaryDirectory() as folder:
        session = open_session(model, Path(folder), optimise=True)
        runs = [dict(zip(names, session.run(names, f), strict=True)) for f in case.tests]
        del session
    return f"{case.metric(runs, case.answers):.4f} {case.unit}"


if __name__ == "__main__":
    main()
