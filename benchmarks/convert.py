"""Time and peak memory of converting and verifying ResNet-50 for two targets.

    python -m benchmarks.convert

Memory is the peak of the summed proportional set sizes of the command and all its children,
sampled every 20 ms, so that neither a child process nor a mapped file hides anything. Exits 1 above
the limits: 30 s and four times the weights.
"""

from __future__ import annotations

import argparse
import platform
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import onnx
import psutil

from benchmarks.resnet50 import resnet50

LIMIT_S = 30.0
LIMIT_FACTOR = 4.0


def peak_while(command: list[str]) -> tuple[float, int]:
    """Run a command; return seconds and peak bytes of the whole process tree."""
    start = time.perf_counter()
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
    return time.perf_counter() - start, peak


def _children(process: psutil.Process) -> list[psutil.Process]:
    try:
        return list(process.children(recursive=True))
    except psutil.Error:
        return []


def main() -> int:
    """Measure, print, judge."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=3)
    arguments = parser.parse_args()
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
        results = [peak_while(command) for _ in range(arguments.runs)]
    seconds = sorted(s for s, _ in results)[len(results) // 2]
    peak = max(p for _, p in results)
    factor = peak / weights
    print(f"machine: {platform.processor() or platform.machine()}, {psutil.cpu_count()} cores")
    print(f"n={len(results)}  seconds: {', '.join(f'{s:.1f}' for s, _ in results)}")
    print(f"median {seconds:.1f} s (limit {LIMIT_S:.0f})")
    print(
        f"peak {peak / 1e6:.0f} MB = {factor:.2f} x weights of {weights / 1e6:.0f} MB"
        f" (limit {LIMIT_FACTOR:.0f})"
    )
    return int(seconds > LIMIT_S or factor > LIMIT_FACTOR)


if __name__ == "__main__":
    sys.exit(main())
