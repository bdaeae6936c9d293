"""What a process of its own costs: the same runs with and without, for 1 MB of input.

    python -m benchmarks.isolation

The model computes next to nothing, so that a call is the way there and back. Runs alternate, so
that whatever else the machine does meets both. Exits 1 when the median of the differences is above
60 µs; the same difference is printed for ``bind``, and for 4 kB and 16 MB.
"""

from __future__ import annotations

import argparse
import platform
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper

from edgeinfer.backends import registry
from edgeinfer.backends.base import Artifact, LoadOptions
from edgeinfer.backends.process.isolated import IsolatedBackend

LIMIT_US = 60.0
JUDGED = 1 << 20


def model(folder: Path, count: int) -> Artifact:
    """Write a model that takes ``count`` floats and returns their first."""
    take = helper.make_node("Slice", ["x", "start", "end"], ["y"])
    graph = helper.make_graph(
        [take],
        "first",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [count])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1])],
        [
            helper.make_tensor("start", TensorProto.INT64, [1], [0]),
            helper.make_tensor("end", TensorProto.INT64, [1], [1]),
        ],
    )
    path = folder / f"{count}.onnx"
    opset = helper.make_opsetid("", 17)
    onnx.save(helper.make_model(graph, opset_imports=[opset], ir_version=8), path)
    return Artifact("onnx", path, (), ())


def differences(
    direct: Callable[[], object], isolated: Callable[[], object], rounds: int
) -> tuple[list[float], list[float]]:
    """Run both in turn; return microseconds of the first, and how much longer the second took."""
    base, extra = [], []
    for index in range(rounds + rounds // 10):
        start = time.perf_counter()
        direct()
        middle = time.perf_counter()
        isolated()
        end = time.perf_counter()
        if index >= rounds // 10:
            base.append((middle - start) * 1e6)
            extra.append((end - middle) * 1e6 - base[-1])
    return base, extra


def measure(folder: Path, size: int, rounds: int) -> tuple[float, float]:
    """Print one line for ``run`` and one for ``bind``; return the medians of the differences."""
    artifact, options = model(folder, size // 4), LoadOptions(threads=1)
    x = np.random.default_rng(0).standard_normal(size // 4).astype(np.float32)
    direct = registry.get("onnxruntime").load(artifact, options)
    with IsolatedBackend("onnxruntime") as backend:
        isolated = backend.load(artifact, options)
        y = {"y": np.empty(1, np.float32)}, {"y": np.empty(1, np.float32)}
        pairs: dict[str, tuple[Callable[[], object], Callable[[], object]]] = {
            "run": (lambda: direct.run({"x": x}), lambda: isolated.run({"x": x})),
            "bind": (direct.bind({"x": x}, y[0]), isolated.bind({"x": x}, y[1])),
        }
        medians = []
        for name, (one, other) in pairs.items():
            base, extra = differences(one, other, rounds)
            low, _, high = statistics.quantiles(extra, n=4)
            medians.append(statistics.median(extra))
            print(
                f"{size / 1e6:8.3f} MB  {name:4}  direct {statistics.median(base):6.1f} µs  "
                f"isolated {medians[-1]:+7.1f} µs  (quartiles {low:.1f} .. {high:.1f})"
            )
        isolated.close()
    direct.close()
    return medians[0], medians[1]


def main() -> int:
    """Measure, print, judge."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=4000)
    arguments = parser.parse_args()
    print(f"machine: {platform.processor() or platform.machine()}, n={arguments.rounds}")
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        measure(folder, 1 << 12, arguments.rounds)
        judged = measure(folder, JUDGED, arguments.rounds)
        measure(folder, 1 << 24, max(arguments.rounds // 20, 20))
    print(f"limit for {JUDGED / 1e6:.0f} MB: {LIMIT_US:.0f} µs")
    return int(max(judged) > LIMIT_US)


if __name__ == "__main__":
    sys.exit(main())
