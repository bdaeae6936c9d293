"""Kernels and whole small models by TVM against the libraries, in turns.

``python -m benchmarks.kernels small [--rounds N]``. Each engine's bound call on one thread, the
rounds interleaved; medians of the rounds' best, in microseconds of CPU time and of wall time.
``benchmarks.gemv`` has the products of 4-bit weights, ``benchmarks.image_inputs`` what stands
before an engine.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir

from edgeinfer.backends import registry
from edgeinfer.backends.base import Artifact, LoadOptions
from edgeinfer.backends.testing.cases import graph
from edgeinfer.convert.lower import LowerOptions, target_for
from edgeinfer.convert.passes import input_specs, normalise, output_specs
from edgeinfer.profiles.schema import Profile
from edgeinfer.types import Array

Call = Callable[[], object]

ENGINES = {
    "onnxruntime": ("onnx", ""),
    "openvino": ("openvino_ir", ""),
    "litert": ("tflite", ""),
    "tvm": ("tvm", "x86-64-v3"),
    "tvm, AVX-512": ("tvm", "x86-64-v4"),
}


def _weights(*shape: int) -> Array:
    return (np.random.default_rng(len(shape)).standard_normal(shape) * 0.2).astype(np.float32)


def small_models() -> dict[str, Any]:
    """Models whose arithmetic takes less than 50 µs."""
    sizes = {
        "MLP 16-16-8": (16, 16, 8),
        "MLP 64-128-128-10": (64, 128, 128, 10),
        "autoencoder 128-64-16-64-128": (128, 64, 16, 64, 128),
    }
    models = {name: _mlp(s) for name, s in sizes.items()}
    models["one dense layer 256-64"] = _mlp((256, 64))
    models["LSTM step and head, 128 (silero's decoder)"] = graph(
        "(float[1,1,128] x, float[1,1,128] h, float[1,1,128] c) => "
        "(float[1,1] p, float[1,1,128] hn, float[1,1,128] cn) {"
        " y, hn, cn = LSTM<hidden_size=128>(x, w, r, b, , h, c)"
        " f = Reshape(hn, shape) a = Relu(f) z = Gemm(a, v, d) p = Sigmoid(z) }",
        w=_weights(1, 512, 128),
        r=_weights(1, 512, 128),
        b=_weights(1, 1024),
        v=_weights(128, 1),
        d=_weights(1),
        shape=np.array([1, 128]),
    )
    models["GRU step, 64"] = graph(
        "(float[1,1,64] x, float[1,1,64] h) => (float[1,1,1,64] y, float[1,1,64] hn) {"
        " y, hn = GRU<hidden_size=64, linear_before_reset=1>(x, w, r, b, , h) }",
        w=_weights(1, 192, 64),
        r=_weights(1, 192, 64),
        b=_weights(1, 384),
    )
    models["one convolution, 8 filters on 28x28"] = graph(
        "(float[1,1,28,28] x) => (float[1,8,14,14] y) {"
        " c = Conv<strides=[2,2], pads=[1,1,1,1]>(x, w, b) y = Relu(c) }",
        w=_weights(8, 1, 3, 3),
        b=_weights(8),
    )
    return models


def _mlp(sizes: tuple[int, ...]) -> Any:
    constants: dict[str, Array] = {}
    steps, last = [], "x"
    for i, (a, b) in enumerate(pairwise(sizes)):
        constants |= {f"w{i}": _weights(a, b), f"b{i}": _weights(b)}
        end = "y" if i == len(sizes) - 2 else f"g{i}"
        steps.append(f"{end} = Gemm({last}, w{i}, b{i})")
        last = end
        if end != "y":
            steps.append(f"r{i} = Relu({end})")
            last = f"r{i}"
    text = f"(float[1,{sizes[0]}] x) => (float[1,{sizes[-1]}] y) {{ {' '.join(steps)} }}"
    return graph(text, **constants)


def bound(model: Any, engine: str, folder: Path) -> tuple[Call, dict[str, Array]]:
    """Lower a model for an engine and bind it; also returns the outputs' buffers."""
    form, machine = ENGINES[engine]
    backend = "tvm" if engine.startswith("tvm") else engine
    source = ir.from_proto(model)
    profile = Profile(
        "bench", "bench", ("linux",), (), (form,), (backend,), ("fp32",), machine=machine
    )
    folder.mkdir(parents=True)
    normal = normalise(source).model
    made = target_for(form).lower(normal, profile, LowerOptions(), folder)
    described = Artifact(form, made.files[0], input_specs(source), output_specs(source))
    ready = registry.get(backend).load(described, LoadOptions(threads=1))
    rng = np.random.default_rng(0)
    sizes = {s.name: tuple(d for d in s.shape or () if isinstance(d, int)) for s in ready.inputs}
    feeds = {name: rng.standard_normal(shape).astype(np.float32) for name, shape in sizes.items()}
    outputs = {
        s.name: np.zeros([d for d in s.shape or () if isinstance(d, int)], np.float32)
        for s in ready.outputs
    }
    return ready.bind(feeds, outputs), outputs


def rounds_asked(description: str | None) -> int:
    """Take the rounds from the command line, and one thread for TVM's code."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=15)
    os.environ["TVM_NUM_THREADS"] = "1"
    rounds: int = parser.parse_args().rounds
    return rounds


def interleaved(calls: dict[str, Call], rounds: int, budget_s: float = 0.02) -> dict[str, Any]:
    """Time calls in turns; returns (wall, CPU) microseconds, medians over rounds of the best."""
    counts = {}
    for name, call in calls.items():
        start = time.perf_counter()
        for _ in range(5):
            call()
        counts[name] = max(1, int(budget_s / 4 / max(1e-7, (time.perf_counter() - start) / 5)))
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in calls}
    for _ in range(rounds):
        for name, call in calls.items():
            best = (9e9, 9e9)
            for _ in range(4):
                wall, cpu = time.perf_counter(), time.process_time()
                for _ in range(counts[name]):
                    call()
                took = time.perf_counter() - wall, time.process_time() - cpu
                best = min(best[0], took[0]), min(best[1], took[1])
            found[name].append((best[0] / counts[name] * 1e6, best[1] / counts[name] * 1e6))
    return {name: tuple(np.median(np.array(times), axis=0)) for name, times in found.items()}


def _print(title: str, times: dict[str, tuple[float, float]], ours: str) -> None:
    others = {n: t for n, t in times.items() if not n.startswith("tvm")}
    best = min(others, key=lambda n: others[n][0])
    cells = ", ".join(f"{n} {w:.2f} ({c:.2f})" for n, (w, c) in times.items())
    ratio = times[best][0] / times[ours][0]
    print(f"{title}: {cells}; {ours} is {ratio:.2f} times as fast as {best}", flush=True)


def small(rounds: int) -> None:
    """Whole small models."""
    for title, model in small_models().items():
        with tempfile.TemporaryDirectory() as folder:
            calls, results = {}, {}
            for i, engine in enumerate(ENGINES):
                try:
                    calls[engine], results[engine] = bound(model, engine, Path(folder, str(i)))
                    calls[engine]()
                except Exception as error:  # an engine that cannot is told, not hidden
                    calls.pop(engine, None)
                    print(f"{title}: {engine}: {str(error).splitlines()[0][:120]}")
            for name, values in results.items():
                for key, array in values.items():
                    np.testing.assert_allclose(
                        array, results["onnxruntime"][key], rtol=2e-4, atol=2e-5, err_msg=name
                    )
            _print(title, interleaved(calls, rounds), "tvm")


def main() -> None:
    """Run what was requested."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("part", choices=["small"])
    parser.add_argument("--rounds", type=int, default=15)
    asked = parser.parse_args()
    os.environ.setdefault("TVM_BIND_THREADS", "0")
    small(asked.rounds)


if __name__ == "__main__":
    main()
