"""Time and peak memory of making and evaluating Core ML packages, on any machine.

    python -m benchmarks.coreml_convert

ResNet-50 is read, normalised, lowered and saved; limits are 15 s of wall time and four times the
weights. MobileNetV2 is evaluated from its saved package by the backend ``coreml-reference``; the
limit is 2 s an image. Each run is a process of its own. Seconds are those of the steps named,
without Python's imports; memory is the peak of the summed proportional set sizes of the process and
its children, imports and mapped files included. Exits 1 above a limit.
"""

from __future__ import annotations

import argparse
import platform
import sys
import tempfile
import time
from pathlib import Path

import onnx
import psutil

from benchmarks.convert import cost_of
from benchmarks.resnet50 import resnet50

LIMIT_S = 15.0
LIMIT_FACTOR = 4.0
LIMIT_EVALUATION_S = 2.0
PRECISIONS = ("fp32", "fp16")
RUNS_OF_A_PACKAGE = 5


def convert(source: str, precision: str, folder: str) -> None:
    """Make the package; leave the seconds next to it."""
    from edgeinfer.convert import passes, sources
    from edgeinfer.convert.lower import target_for
    from edgeinfer.convert.lower.target import LowerOptions
    from edgeinfer.convert.memory import release_memory
    from edgeinfer.profiles import load

    target = target_for("mlprogram")
    start, busy = time.perf_counter(), time.process_time()
    read = sources.read(source).model
    model = passes.normalise(read).model
    release_memory(read, model)
    with tempfile.TemporaryDirectory(dir=folder) as package:
        target.lower(model, load("ios"), LowerOptions(precision), Path(package))
        _leave(folder, time.perf_counter() - start, time.process_time() - busy)


def evaluate(source: str, precision: str, folder: str) -> None:
    """Make the package, open it and run it; leave the seconds of loading and of a run."""
    import numpy as np

    from edgeinfer.backends.base import Artifact, LoadOptions
    from edgeinfer.backends.coreml_reference.backend import CoreMLReferenceBackend
    from edgeinfer.convert import passes, sources
    from edgeinfer.convert.lower import target_for
    from edgeinfer.convert.lower.target import LowerOptions
    from edgeinfer.profiles import load

    read = sources.read(source).model
    normal = passes.normalise(read).model
    with tempfile.TemporaryDirectory(dir=folder) as package:
        options = LowerOptions(precision)
        made = target_for("mlprogram").lower(normal, load("ios"), options, Path(package))
        specs = passes.input_specs(read), passes.output_specs(read)
        start = time.perf_counter()
        artifact = Artifact(made.format, made.files[0], *specs)
        ready = CoreMLReferenceBackend().load(artifact, LoadOptions())
        loaded = time.perf_counter() - start
        picture = np.random.default_rng(0).standard_normal((1, 3, 224, 224)).astype(np.float32)
        runs = []
        for _ in range(RUNS_OF_A_PACKAGE):
            start = time.perf_counter()
            ready.run({specs[0][0].name: picture})
            runs.append(time.perf_counter() - start)
        _leave(folder, loaded, sorted(runs)[len(runs) // 2])


def _leave(folder: str, *seconds: float) -> None:
    (Path(folder) / "seconds").write_text(" ".join(map(str, seconds)))


def _child(job: str, source: Path, precision: str, folder: str) -> tuple[int, float, float]:
    """Run a job in a process; its peak in bytes and the two times it left."""
    command = [sys.executable, "-m", "benchmarks.coreml_convert", job]
    peak = cost_of([*command, str(source), precision, folder]).peak
    first, second = map(float, (Path(folder) / "seconds").read_text().split())
    return peak, first, second


def conversion(folder: str, runs: int) -> bool:
    """Measure ResNet-50; print; return whether a limit is exceeded."""
    path = Path(folder) / "resnet50.onnx"
    model = resnet50()
    weights = sum(len(t.raw_data) for t in model.graph.initializer)
    onnx.save(model, path)
    del model
    failed = False
    for precision in PRECISIONS:
        rows = [_child("--convert", path, precision, folder) for _ in range(runs)]
        walls = sorted(wall for _, wall, _ in rows)
        median, peak = walls[len(walls) // 2], max(p for p, _, _ in rows)
        factor = peak / weights
        print(
            f"ResNet-50 {precision}: lowered and saved in {median:.2f} s, median of "
            f"{', '.join(f'{s:.2f}' for s in walls)} (limit {LIMIT_S:g}, CPU time "
            f"{min(c for _, _, c in rows):.2f} s); peak {peak / 1e6:.0f} MB = {factor:.2f} x "
            f"weights of {weights / 1e6:.0f} MB (limit {LIMIT_FACTOR:g})"
        )
        failed |= median > LIMIT_S or factor > LIMIT_FACTOR
    return failed


def evaluation(folder: str) -> bool:
    """Measure MobileNetV2; print; return whether the limit is exceeded."""
    from tests.zoo.exported import exported

    failed = False
    for precision in PRECISIONS:
        source = exported("mobilenet-v2", "script")
        _, loading, run = _child("--evaluate", source, precision, folder)
        print(
            f"MobileNetV2 {precision}: opened in {loading:.2f} s, a picture of 224 x 224 evaluated "
            f"in {run:.2f} s (median of {RUNS_OF_A_PACKAGE}, limit {LIMIT_EVALUATION_S:g})"
        )
        failed |= run > LIMIT_EVALUATION_S
    return failed


def main() -> int:
    """Measure, print, judge."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=3)
    arguments = parser.parse_args()
    print(f"machine: {platform.processor() or platform.machine()}, {psutil.cpu_count()} cores")
    with tempfile.TemporaryDirectory() as folder:
        failed = conversion(folder, arguments.runs)
        failed |= evaluation(folder)
    return int(failed)


if __name__ == "__main__":
    jobs = {"--convert": convert, "--evaluate": evaluate}
    if sys.argv[1:2] and sys.argv[1] in jobs:
        jobs[sys.argv[1]](*sys.argv[2:])
    else:
        sys.exit(main())
