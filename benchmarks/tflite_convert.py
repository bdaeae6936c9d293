"""Time and peak memory of making a .tflite file of ResNet-50: read, normalise, lower, write.

    python -m benchmarks.tflite_convert

Each run is a process of its own. Seconds are those of the four steps, without Python's imports;
memory is the peak of the summed proportional set sizes of the process and its children, imports and
mapped files included. Exits 1 above the limits: 3 s and three times the weights.
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

LIMIT_S = 3.0
LIMIT_FACTOR = 3.0
PRECISIONS = ("fp32", "fp16")


def convert(source: str, precision: str, folder: str) -> None:
    """Make the file; leave the seconds next to it."""
    from edgeinfer.convert import passes, sources
    from edgeinfer.convert.lower import target_for
    from edgeinfer.convert.lower.target import LowerOptions
    from edgeinfer.convert.memory import release_memory
    from edgeinfer.profiles import load

    target = target_for("tflite")
    start, busy = time.perf_counter(), time.process_time()
    read = sources.read(source).model
    model = passes.normalise(read).model
    release_memory(read, model)
    target.lower(model, load("rpi5"), LowerOptions(precision), Path(folder))
    spent = time.perf_counter() - start, time.process_time() - busy
    (Path(folder) / "seconds").write_text(" ".join(map(str, spent)))


def main() -> int:
    """Measure, print, judge."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=3)
    arguments = parser.parse_args()
    print(f"machine: {platform.processor() or platform.machine()}, {psutil.cpu_count()} cores")
    failed = False
    with tempfile.TemporaryDirectory() as temporary:
        path = Path(temporary) / "resnet50.onnx"
        model = resnet50()
        weights = sum(len(t.raw_data) for t in model.graph.initializer)
        onnx.save(model, path)
        del model
        for precision in PRECISIONS:
            command = [sys.executable, "-m", "benchmarks.tflite_convert", "--child"]
            seconds, busy, peaks = [], [], []
            for _ in range(arguments.runs):
                peaks.append(cost_of([*command, str(path), precision, temporary]).peak)
                wall, cpu = (Path(temporary) / "seconds").read_text().split()
                seconds.append(float(wall))
                busy.append(float(cpu))
            median, factor = sorted(seconds)[len(seconds) // 2], max(peaks) / weights
            print(
                f"{precision}: median {median:.2f} s of {', '.join(f'{s:.2f}' for s in seconds)} "
                f"(limit {LIMIT_S:g}, CPU time {min(busy):.2f} s); "
                f"peak {max(peaks) / 1e6:.0f} MB = {factor:.2f} x weights of "
                f"{weights / 1e6:.0f} MB (limit {LIMIT_FACTOR:g})"
            )
            failed |= median > LIMIT_S or factor > LIMIT_FACTOR
    return int(failed)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        convert(*sys.argv[2:])
    else:
        sys.exit(main())
