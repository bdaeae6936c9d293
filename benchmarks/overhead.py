"""What a session costs over the engine's own call, on a model that itself takes microseconds.

    python benchmarks/overhead.py [--engine openvino] [--rounds 60] [--calls 1000]

Each round times every way of calling in turn, so that a change of the machine's load hits all
alike; the figures are processor time of one call. Exits 1 above the limits: 1.5 µs over the
engine's bound call with ``bind``, 5 µs over its plain call without.
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

import edgeinfer
from benchmarks.tiny import MLP, bundle
from edgeinfer.backends.engines import import_onnxruntime, import_openvino
from edgeinfer.types import Array

LIMIT_BIND_US = 1.5
LIMIT_RUN_US = 5.0


def microseconds(call: Callable[[], object], calls: int) -> float:
    start = time.process_time()
    for _ in range(calls):
        call()
    return (time.process_time() - start) / calls * 1e6


Ways = dict[str, Callable[[], object]]
"""Ways of calling the same model, by name."""


def ways(folder: Path, engine: str) -> Ways:
    """Return every way of calling the same model in an engine and in a session."""
    x = np.random.default_rng(0).standard_normal((1, 16), np.float32)
    path = bundle(MLP, folder / "mlp.edge", {"x": x}, engine)
    session = edgeinfer.load(path, threads=1)
    bound = session.bind({"x": x.copy()})
    feeds = {"x": x}
    plain = {"onnxruntime": _onnxruntime, "openvino": _openvino}[engine](folder, x)
    np.testing.assert_allclose(session(x), bound()["y"])
    ours = {"session.run": lambda: session.run(feeds), "session(x)": lambda: session(x)}
    return plain | ours | {"bound()": bound}


def _onnxruntime(folder: Path, x: Array) -> Ways:
    onnxruntime, feeds = import_onnxruntime(), {"x": x}
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    engine = onnxruntime.InferenceSession(folder / "mlp.onnx", options)
    binding, y = engine.io_binding(), np.zeros((1, 8), np.float32)
    binding.bind_input("x", "cpu", 0, np.float32, x.shape, x.ctypes.data)
    binding.bind_output("y", "cpu", 0, np.float32, y.shape, y.ctypes.data)
    raw = engine._sess
    return {
        "engine run": lambda: engine.run(None, feeds),
        "engine run, native method": lambda: raw.run(["y"], feeds, None),
        "engine bound": lambda: engine.run_with_iobinding(binding),
        "engine bound, native method": lambda: raw.run_with_iobinding(binding._iobinding, None),
    }


def _openvino(folder: Path, x: Array) -> Ways:
    openvino, feeds = import_openvino(), {"x": x}
    options = {"PERFORMANCE_HINT": "LATENCY", "INFERENCE_NUM_THREADS": 1}
    compiled = openvino.Core().compile_model(folder / "mlp.onnx", "CPU", options)
    request, bound = compiled.create_infer_request(), compiled.create_infer_request()
    bound.set_input_tensor(openvino.Tensor(x, shared_memory=True))
    shared = {"share_inputs": True, "share_outputs": True}
    return {
        "engine run": lambda: request.infer(feeds, **shared),
        "engine bound": lambda: bound.infer(None, **shared),
    }


def machine() -> str:
    name = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.exists():
        lines = info.read_text(errors="replace").splitlines()
        name = next((ln.split(":")[1].strip() for ln in lines if ln.startswith("model name")), name)
    load = f", load {os.getloadavg()[0]:.1f}" if hasattr(os, "getloadavg") else ""
    return f"{name}, {os.cpu_count()} CPUs{load}, Python {platform.python_version()}"


def measure(calls: dict[str, Callable[[], object]], rounds: int, n: int) -> dict[str, list[float]]:
    figures: dict[str, list[float]] = {name: [] for name in calls}
    for call in calls.values():
        microseconds(call, n)
    for _ in range(rounds):
        for name, call in calls.items():
            figures[name].append(microseconds(call, n))
    return figures


def over(figures: dict[str, list[float]], ours: str, theirs: str) -> tuple[float, float]:
    """Return median difference and ratio of two ways, paired by round."""
    pairs = list(zip(figures[ours], figures[theirs], strict=True))
    return statistics.median(a - b for a, b in pairs), statistics.median(a / b for a, b in pairs)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--calls", type=int, default=1000)
    parser.add_argument("--engine", choices=("onnxruntime", "openvino"), default="onnxruntime")
    given = parser.parse_args()
    print(f"command: python {' '.join(sys.argv)}")
    print(f"machine: {machine()}")
    with tempfile.TemporaryDirectory() as folder:
        os.environ["EDGEINFER_CACHE"] = folder
        figures = measure(ways(Path(folder), given.engine), given.rounds, given.calls)
    print(f"n: {given.rounds} rounds of {given.calls} calls each, in turns\n")
    print(f"{'':33}{'median':>9}{'p10':>9}{'p90':>9}   µs a call")
    for name, values in figures.items():
        deciles = statistics.quantiles(values, n=10)
        print(f"{name:33}{statistics.median(values):9.2f}{deciles[0]:9.2f}{deciles[-1]:9.2f}")
    print()
    failed = 0
    for ours, theirs, limit in (
        ("session.run", "engine run", LIMIT_RUN_US),
        ("session(x)", "engine run", LIMIT_RUN_US),
        ("bound()", "engine bound", LIMIT_BIND_US),
        ("session.run", "engine run, native method", LIMIT_RUN_US),
        ("bound()", "engine bound, native method", LIMIT_BIND_US),
    ):
        if theirs not in figures:
            continue
        difference, ratio = over(figures, ours, theirs)
        verdict = "ok" if difference <= limit else "ABOVE THE LIMIT"
        failed += difference > limit
        text = f"{ours} over {theirs}"
        print(f"{text:44}{difference:+7.2f} µs  x{ratio:.2f}  limit {limit} µs  {verdict}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
