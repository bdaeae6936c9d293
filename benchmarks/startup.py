"""CPU time and memory of commands that do next to nothing: what starting up costs.

``python -m benchmarks.startup [FOLDER]`` converts a model of one ``Conv`` for several targets and
makes the mistakes that need no engine to be found. It counts the CPU time of a command with all its
processes, and the memory of its largest one; it ends with 1 where one is above its limit. The
limits hold on an idle machine.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import onnx_ir as ir

TEXT = """<ir_version: 10, opset_import: ["": 21]>
    conv (float[1,3,16,16] x) => (float[1,8,16,16] y) <float[8,3,3,3] w = {WEIGHTS}>
    { y = Conv<pads=[1,1,1,1]>(x, w) }"""
MISTAKE_S = 0.4
FIRST_S = 1.2
FURTHER_S = 0.8
MACHINE_CODE_OFF_S = 2.0
MOST_MB = 250.0
FURTHER = ("openvino", "rpi5", "android", "jetson", "macos", "tvm-x86-64-v3")


def main() -> int:
    """Print a row for each command; return whether one is above its limit."""
    with tempfile.TemporaryDirectory() as made:
        folder = Path(sys.argv[1] if len(sys.argv) > 1 else made)
        weights = ", ".join(f"{w:.4f}" for w in np.random.default_rng(0).normal(0, 0.2, 216))
        ir.save(ir.from_onnx_text(TEXT.replace("WEIGHTS", weights)), folder / "conv.onnx")
        (folder / "empty.onnx").touch()
        print("CPU s  limit  MB   command")
        above = [
            _row(folder, MISTAKE_S, "missing.onnx", "cpu"),
            _row(folder, MISTAKE_S, "empty.onnx", "cpu"),
            _row(folder, MISTAKE_S, "conv.onnx", "nothing"),
            _row(folder, FIRST_S, "conv.onnx", "onnxruntime"),
            _row(folder, MACHINE_CODE_OFF_S, "conv.onnx", "cpu", most_mb=MOST_MB),
        ]
        for target in FURTHER:
            limit = FIRST_S + FURTHER_S
            above.append(_row(folder, limit, "conv.onnx", "onnxruntime", target))
    return int(any(above))


def _row(
    folder: Path, limit: float, model: str, *targets: str, most_mb: float = float("inf")
) -> bool:
    output = folder / "out.edge"
    output.unlink(missing_ok=True)
    shutil.rmtree(output, ignore_errors=True)
    options = [word for target in targets for word in ("-t", target)]
    command = ("convert", model, *options, "-o", str(output))
    seconds, mb = min(_cost(folder, output, command) for _ in range(3))
    high = seconds > limit or mb > most_mb
    print(f"{seconds:5.2f}  {limit:5.2f}  {mb:3.0f}  {' '.join(command[:-2])}{'  ABOVE' * high}")
    return high


def _cost(folder: Path, output: Path, command: tuple[str, ...]) -> tuple[float, float]:
    """Run in a process whose children are those of one command alone."""
    output.unlink(missing_ok=True)
    code = (
        "import resource, subprocess, sys; subprocess.run(sys.argv[1:], capture_output=True);"
        "u = resource.getrusage(resource.RUSAGE_CHILDREN);"
        "print(u.ru_utime + u.ru_stime, u.ru_maxrss)"
    )
    cli = (sys.executable, "-m", "edgeinfer", *command)
    env = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    done = subprocess.run(
        [sys.executable, "-c", code, *cli],
        cwd=folder,
        env=env,
        capture_output=True,
        text=True,
        check=True,
    )
    seconds, kilobytes = done.stdout.split()
    return float(seconds), float(kilobytes) / 1024


if __name__ == "__main__":
    sys.exit(main())
