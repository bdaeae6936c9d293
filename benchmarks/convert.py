"""Time and peak memory of converting and verifying ResNet-50 for two targets, or models of the zoo.

    python -m benchmarks.convert [--models basic-pitch,ppocr-cls]

Models are converted for four targets without machine code, and for OpenVINO alone; what counts is
their processor time, all processes together: 20 and 4 s in the median, and 500 MB. Memory is the
peak of the summed proportional set sizes of the command and all its children, sampled every 20 ms,
so that neither a child process nor a mapped file hides anything. Exits 1 above the limits: for
ResNet-50 30 s and four times the weights.
"""

from __future__ import annotations

import argparse
import platform
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import onnx
import psutil

from benchmarks.resnet50 import resnet50
from benchmarks.tflite_peers.models import MODELS

LIMIT_S = 30.0
LIMITS = {("cpu", "openvino", "rpi5", "android"): 20.0, ("openvino",): 4.0}
"""Processor seconds in the median over models, by their targets."""

LIMIT_MB = 500.0
LIMIT_FACTOR = 4.0


@dataclass(frozen=True, slots=True)
class Cost:
    """What a command took: seconds, processor seconds and peak bytes of the whole process tree."""

    seconds: float
    cpu_s: float
    peak: int


def cost_of(command: list[str]) -> Cost:
    """Run a command and its children."""
    start, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
    process = psutil.Popen(command, stdout=subprocess.DEVNULL)
    peak = 0
    while process.poll() is None:
        total = 0
        for p in [process, *_children(process)]:
            try:
                total += p.memory_full_info().pss
            except psutil.Error:
                continue
        peak = max(peak, total)
        time.sleep(0.02)
    if process.returncode:
        raise SystemExit(f"{' '.join(command)} exited with {process.returncode}")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return Cost(time.perf_counter() - start, cpu_s, peak)


def _children(process: psutil.Process) -> list[psutil.Process]:
    try:
        return list(process.children(recursive=True))
    except psutil.Error:
        return []


def _models(names: list[str]) -> int:
    """Convert models for each set of targets; return whether a median is above its limit."""
    above = False
    with tempfile.TemporaryDirectory() as temporary:
        paths = [MODELS[name].prepare(Path(temporary)) for name in names]
        for targets, limit in LIMITS.items():
            words = [word for target in targets for word in ("-t", target)]
            costs = []
            for path in paths:
                bundle = str(Path(temporary) / "made.edge")
                command = [sys.executable, "-m", "edgeinfer", "convert", str(path), *words]
                cost = cost_of([*command, "-o", bundle, "--overwrite", "--quiet"])
                costs.append(cost)
                print(
                    f"{path.stem:32}{cost.cpu_s:6.1f} CPU s {cost.peak / 1e6:5.0f} MB", flush=True
                )
            seconds = statistics.median(c.cpu_s for c in costs)
            mb = statistics.median(c.peak for c in costs) / 1e6
            high = seconds > limit or mb > LIMIT_MB
            above |= high
            told = "  ABOVE" * high
            print(f"{', '.join(targets)}: {seconds:.1f} CPU s (limit {limit:g}), {mb:.0f} MB{told}")
    return int(above)


def main() -> int:
    """Measure, print, judge."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--models", default="", help="names, with commas between them")
    arguments = parser.parse_args()
    if arguments.models:
        return _models(arguments.models.split(","))
    with tempfile.TemporaryDirectory() as temporary:
        path = Path(temporary) / "resnet50.onnx"
        model = resnet50()
        weights = sum(len(t.raw_data) for t in model.graph.initializer)
        onnx.save(model, path)
        del model
        bundle = str(Path(temporary) / "resnet50.edge")
        command = [
            *(sys.executable, "-m", "edgeinfer", "convert", str(path)),
            *("--target", "cpu", "--target", "openvino", "-o", bundle, "--overwrite", "--quiet"),
        ]
        results = [cost_of(command) for _ in range(arguments.runs)]
    seconds = sorted(r.seconds for r in results)[len(results) // 2]
    peak = max(r.peak for r in results)
    factor = peak / weights
    print(f"machine: {platform.processor() or platform.machine()}, {psutil.cpu_count()} cores")
    print(f"n={len(results)}  seconds: {', '.join(f'{r.seconds:.1f}' for r in results)}")
    print(f"median {seconds:.1f} s (limit {LIMIT_S:.0f})")
    print(
        f"peak {peak / 1e6:.0f} MB = {factor:.2f} x weights of {weights / 1e6:.0f} MB"
        f" (limit {LIMIT_FACTOR:.0f})"
    )
    return int(seconds > LIMIT_S or factor > LIMIT_FACTOR)


if __name__ == "__main__":
    sys.exit(main())
