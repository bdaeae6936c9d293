"""Nets on an NVIDIA GPU: a session and its bound buffers against the engine's own calls.

    python -m benchmarks.cuda [--rounds 40] [--calls 20] [--json FILE] [NET ...]

Every way of calling is timed in turns, from NumPy arrays on the host to NumPy arrays on the host.
Numbers are compared with ONNX Runtime's CPU provider on the unconverted model. Exits 1 when a
bound call takes more than 1.05 times the engine's own call with bound buffers and a CUDA graph, or
when a number leaves its budget.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import edgeinfer
from edgeinfer.backends.engines import import_onnxruntime
from edgeinfer.backends.onnxruntime.cuda import load_libraries
from edgeinfer.machine.cuda import cuda_devices, driver_version
from edgeinfer.metrics import budget_for, check, compare
from edgeinfer.types import Array

LIMIT = 1.05
PROVIDER = "CUDAExecutionProvider"
NETS = ("mobilenet-v2", "resnet-50", "vit-tiny", "bert-mini")


def exported(net: str, folder: Path) -> tuple[Path, dict[str, Array]]:
    """Write a net of the tests as ONNX; return it and inputs for it."""
    import torch

    from tests.zoo.nets import torch_model

    module, inputs, _ = torch_model(net)
    path = folder / f"{net}.onnx"
    torch.onnx.export(module, kwargs=inputs, f=str(path), dynamo=True, verbose=False)
    return path, {name: np.asarray(tensor) for name, tensor in inputs.items()}


def plain_ways(path: Path, feeds: dict[str, Array]) -> dict[str, Callable[[], Any]]:
    """The engine's own calls: plain, and bound with a CUDA graph as its documentation shows."""
    onnxruntime = import_onnxruntime()
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    cuda = {"use_tf32": "0"}
    plain = onnxruntime.InferenceSession(path, options, [(PROVIDER, cuda)])
    graph = cuda_graph(path, feeds, {**cuda, "enable_cuda_graph": "1"})
    return {"engine": lambda: plain.run(None, feeds), "engine, bound, CUDA graph": graph}


def cuda_graph(
    path: Path, feeds: dict[str, Array], options: dict[str, str]
) -> Callable[[], list[Array]]:
    """Return ONNX Runtime's call with bound buffers and a CUDA graph, from host to host."""
    onnxruntime = import_onnxruntime()
    load_libraries()
    settings = onnxruntime.SessionOptions()
    settings.log_severity_level = 3
    session = onnxruntime.InferenceSession(path, settings, [(PROVIDER, options)])
    if (got := session.get_providers()[0]) != PROVIDER:
        raise SystemExit(f"onnxruntime {onnxruntime.__version__} here has no CUDA: took {got}")
    plain = onnxruntime.InferenceSession(path, settings, ["CPUExecutionProvider"])
    binding = session.io_binding()
    values = {n: onnxruntime.OrtValue.ortvalue_from_numpy(a, "cuda", 0) for n, a in feeds.items()}
    for name, value in values.items():
        binding.bind_ortvalue_input(name, value)
    results = []
    for output, array in zip(session.get_outputs(), plain.run(None, feeds), strict=True):
        value = onnxruntime.OrtValue.ortvalue_from_shape_and_type(
            list(array.shape), array.dtype.type, "cuda", 0
        )
        binding.bind_ortvalue_output(output.name, value)
        results.append(value)

    def replay() -> list[Array]:
        for name, value in values.items():
            value.update_inplace(feeds[name])
        session.run_with_iobinding(binding)
        return [value.numpy() for value in results]

    return replay


def measure(ways: dict[str, Callable[[], Any]], rounds: int, calls: int) -> dict[str, list[float]]:
    """Time each way in turns; milliseconds of one call, one figure a round."""
    found: dict[str, list[float]] = {name: [] for name in ways}
    for way in ways.values():
        for _ in range(calls):
            way()
    for _ in range(rounds):
        for name, way in ways.items():
            start = time.perf_counter()
            for _ in range(calls):
                way()
            found[name].append((time.perf_counter() - start) / calls * 1e3)
    return found


def run(net: str, precision: str, rounds: int, calls: int) -> dict[str, Any]:
    """Convert, check and time one net."""
    onnxruntime = import_onnxruntime()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        path, feeds = exported(net, folder)
        bundle = edgeinfer.export(
            path, folder / "m.edge", targets=("cuda",), precision=precision
        ).path
        ways = plain_ways(path, feeds)
        cpu = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
        expected = cpu.run(None, feeds)
        with edgeinfer.load(bundle, device="gpu") as session:
            bound = session.bind({name: array.copy() for name, array in feeds.items()})
            ways["session.run"] = lambda: session.run(feeds)
            ways["session.bind"] = bound
            times = measure(ways, rounds, calls)
            problems = []
            for label, got in (("run", session.run(feeds)), ("bind", bound())):
                for want, (name, array) in zip(expected, got.items(), strict=True):
                    metrics = compare(want, array)
                    breaches = check(metrics, budget_for(precision))
                    problems += [f"{label} {name}: {b}" for b in breaches]
            report = session.report()
    medians = {name: statistics.median(values) for name, values in times.items()}
    ratios = [
        ours / theirs
        for ours, theirs in zip(
            times["session.bind"], times["engine, bound, CUDA graph"], strict=True
        )
    ]
    return {
        "net": net,
        "precision": precision,
        "ms": medians,
        "spread_ms": {name: [min(v), max(v)] for name, v in times.items()},
        "ratio": statistics.median(ratios),
        "device": report.device,
        "problems": problems,
    }


def main() -> int:
    """Run the nets requested."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("nets", nargs="*", default=NETS, metavar="NET")
    parser.add_argument("--precision", default="fp32")
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--calls", type=int, default=20)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    devices = cuda_devices()
    if not devices:
        print("no NVIDIA device here", file=sys.stderr)
        return 3
    onnxruntime = import_onnxruntime()
    print(
        f"{devices[0].name}, driver for CUDA {driver_version()}, onnxruntime "
        f"{onnxruntime.__version__}, Python {platform.python_version()}; medians of "
        f"{options.rounds} rounds of {options.calls} calls, milliseconds"
    )
    results = []
    for net in options.nets:
        found = run(net, options.precision, options.rounds, options.calls)
        results.append(found)
        figures = ", ".join(f"{name} {ms:.3f}" for name, ms in found["ms"].items())
        print(f"{net} {options.precision}: {figures}; bound ratio {found['ratio']:.3f}", flush=True)
        for problem in found["problems"]:
            print(f"  WRONG {problem}")
    if options.json:
        options.json.write_text(json.dumps(results, indent=1))
    failed = any(r["problems"] or r["ratio"] > LIMIT for r in results)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
