"""Nets and operators for ``edgeinfer tune``, and what came of it.

    python -m benchmarks.tuning nets FOLDER          writes the ONNX files
    python -m benchmarks.tuning table JSON...        one line for each kernel and net that was tuned
    python -m benchmarks.tuning ship JSONL FOLDER    final records that won, for kernels/records
    python -m benchmarks.tuning cuda MODEL [JSONL]   on a GPU: with and without records and graphs,
                                                     next to ONNX Runtime with a CUDA graph

``cuda`` times replays of CUDA graphs over arrays that are on the card, and bound calls over arrays
of the host, in turns; medians of rounds.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir

from benchmarks.kernels import small_models
from edgeinfer.backends.testing.cases import graph
from edgeinfer.kernels.tuning.database import FINAL, Database, best


def _weights(*shape: int) -> Any:
    return (np.random.default_rng(len(shape)).standard_normal(shape) * 0.1).astype(np.float32)


def operators() -> dict[str, Any]:
    """Single operators of real nets."""
    conv = (
        "(float[1,{c},{s},{s}] x) => (float[1,{f},{o},{o}] y)"
        " {{ a = Conv<{how}>(x, w, b) y = Relu(a) }}"
    )

    def convolution(c: int, f: int, k: int, s: int, stride: int = 1, group: int = 1) -> Any:
        p = k // 2
        how = f"strides=[{stride},{stride}], pads=[{p},{p},{p},{p}], group={group}"
        text = conv.format(c=c, f=f, s=s, o=(s - 1) // stride + 1, how=how)
        return graph(text, w=_weights(f, c // group, k, k), b=_weights(f))

    def product(m: int, k: int, n: int) -> Any:
        text = f"(float[{m},{k}] x) => (float[{m},{n}] y) {{ a = Gemm(x, w, b) y = Relu(a) }}"
        return graph(text, w=_weights(k, n), b=_weights(n))

    found = {
        "gemv 1280-1000": product(1, 1280, 1000),
        "gemm 8x64x64": product(8, 64, 64),
        "gemm 64x256x1024": product(64, 256, 1024),
        "depthwise 192 28": convolution(192, 192, 3, 28, group=192),
        "depthwise 96 112 by 2": convolution(96, 96, 3, 112, 2, 96),
        "pointwise 96-24 56": convolution(96, 24, 1, 56),
        "pointwise 64-384 14": convolution(64, 384, 1, 14),
        "stem 3-32 224 by 2": convolution(3, 32, 3, 224, 2),
        "conv 64-64 56": convolution(64, 64, 3, 56),
        "softmax 12x128x128": graph(
            "(float[12,128,128] x) => (float[12,128,128] y) { y = Softmax<axis=-1>(x) }"
        ),
        "layer norm 128x768": graph(
            "(float[128,768] x) => (float[128,768] y) { y = LayerNormalization<axis=-1>(x, s, b) }",
            s=_weights(768),
            b=_weights(768),
        ),
        "average pool 320 28": graph(
            "(float[1,320,28,28] x) => (float[1,320,1,1] y) { y = GlobalAveragePool(x) }"
        ),
        "resize 64 28": graph(
            '(float[1,64,28,28] x) => (float[1,64,56,56] y) { y = Resize<mode="linear">(x, , sc) }',
            sc=np.array([1, 1, 2, 2], np.float32),
        ),
    }
    return found


def write(folder: Path) -> None:
    """Write every net and operator as an ONNX file."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, model in {**operators(), **small_models()}.items():
        slug = "".join(c if c.isalnum() else "-" for c in name.lower()).strip("-")
        ir.save(ir.from_proto(model), folder / f"{slug}.onnx")


def table(paths: list[Path]) -> None:
    """Print what each run of ``edgeinfer tune --json`` came to."""
    for path in paths:
        try:
            found = json.loads(path.read_text("utf-8"))
        except ValueError:
            print(f"{path.stem}: no result: {path.read_text('utf-8')[-200:]!r}")
            continue
        for k in found["kernels"]:
            engine = k["onnxruntime_us"]
            print(
                f"{path.stem}: {k['title']}: own {k['own_us']:.4g} us, tuned "
                f"{k['tuned_us'] or 0:.4g} (spread {100 * (k['spread'] or 0):.1f} %, "
                f"n {k['rounds']}), ORT's operator {engine or '-'}; {k['trials']} tried, "
                f"{k['failed']} failed, lower quartile of ratios {k['sure'] or 0:.2f}: "
                f"{k['verdict']}"
            )
        whole = found["whole"]
        if whole:
            engines = whole["engines"]
            fastest = min(engines, key=engines.get) if engines else ""
            beside = f"; {engines[fastest] / whole['tuned']:.2f} x {fastest}" if fastest else ""
            told = ", ".join(f"{n} {us:.4g}" for n, us in engines.items())
            print(
                f"{path.stem}: WHOLE before {whole['before']:.4g} us, tuned {whole['tuned']:.4g} "
                f"(spread {100 * whole['spread']:.1f} %, n {whole['rounds']}, lower quartile of "
                f"ratios {whole['sure']:.2f}), {told}{beside}"
            )


def ship(source: Path, folder: Path) -> None:
    """Copy the final records that won into one file for each machine and processor."""
    records = Database(source).read().records
    for machine, cpu in sorted({(r.machine, r.cpu) for r in records if r.kind == FINAL}):
        slug = "".join(c if c.isalnum() else "-" for c in cpu.lower()).strip("-")
        target = folder / machine / f"{slug}.jsonl"
        target.unlink(missing_ok=True)
        own = [r for r in records if r.cpu == cpu]
        won = [r for r in best(own, machine, cpu).values() if r.won]
        for record in sorted(won, key=lambda r: r.title):
            Database(target).add(record)
            print(
                f"  {record.title}: {record.before_us:.4g} to {record.us:.4g} us, n {record.n}, "
                f"spread {record.spread:.1%}, lower quartile of ratios {record.sure:.2f}"
            )
        print(f"{target}: {len(won)} records")


# ---- on a GPU

_CALLS = 20


def cuda(model: Path, records: Path | None, rounds: int) -> None:
    """Time a net on the card: over arrays there, and over the caller's own."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        calls: dict[str, Callable[[], Any]] = {}
        answers: dict[str, Any] = {}
        given = {"tvm": (), "tvm tuned": (str(records),)} if records else {"tvm": ()}
        ways = [
            *((n, partial(_tvm, model, files, folder / n)) for n, files in given.items()),
            ("onnxruntime", partial(_onnxruntime, model, "1")),
            ("onnxruntime without TF32", partial(_onnxruntime, model, "0")),
            ("onnxruntime, arrays here", partial(_through_edgeinfer, model)),
        ]
        for name, prepare in ways:
            try:
                found = prepare()
            except Exception as error:  # what one way cannot do is told, the others go on
                print(f"{name}: {type(error).__name__}: {str(error)[-300:]}", flush=True)
                continue
            for suffix, (call, answer) in found.items():
                call()
                calls[name + suffix], answers[name + suffix] = call, answer
        right = _on_cpu(model)
        for name, answer in answers.items():
            worst = max(
                float(np.abs(a - b).max() / np.abs(b).max())
                for a, b in zip(answer(), right, strict=True)
            )
            print(f"{name}: relative error {worst:.2g}", flush=True)
        times: dict[str, list[float]] = {n: [] for n in calls}
        for _ in range(rounds):
            for name, call in calls.items():
                start = time.perf_counter()
                for _ in range(_CALLS):
                    call()
                times[name].append((time.perf_counter() - start) / _CALLS * 1e3)
        for name, row in times.items():
            low, middle, high = np.quantile(row, (0.25, 0.5, 0.75))
            print(f"{name}: {middle:.4f} ms, quartiles {low:.4f} to {high:.4f}, n {len(row)}")
        for name in times:
            for other in (n for n in times if n.startswith("onnxruntime")):
                if name.startswith("tvm") and ("arrays here" in name) == ("arrays here" in other):
                    ratios = np.divide(times[name], times[other])
                    low, middle, high = np.quantile(ratios, (0.25, 0.5, 0.75))
                    print(f"{name} / {other}: {middle:.3f}, quartiles {low:.3f} to {high:.3f}")


def _feeds(model: Path) -> dict[str, Any]:
    from edgeinfer.backends.engines import import_onnxruntime

    session = import_onnxruntime().InferenceSession(str(model), providers=["CPUExecutionProvider"])
    rng = np.random.default_rng(0)
    return {
        i.name: rng.standard_normal([d if isinstance(d, int) else 1 for d in i.shape]).astype("f4")
        for i in session.get_inputs()
    }


def _on_cpu(model: Path) -> list[Any]:
    from edgeinfer.backends.engines import import_onnxruntime

    session = import_onnxruntime().InferenceSession(str(model), providers=["CPUExecutionProvider"])
    return list(session.run(None, _feeds(model)))


_Way = dict[str, tuple[Callable[[], Any], Callable[[], list[Any]]]]


def _tvm(model: Path, records: tuple[str, ...], folder: Path) -> _Way:
    from edgeinfer import profiles
    from edgeinfer.backends.base import Artifact, LoadOptions
    from edgeinfer.backends.tvm.backend import TvmBackend
    from edgeinfer.convert import passes, sources
    from edgeinfer.convert.lower import LowerOptions, target_for

    folder.mkdir(parents=True)
    normal = passes.normalise(sources.read(model).model).model
    made = target_for("tvm").lower(
        normal, profiles.load("tvm-sm-90"), LowerOptions(records=records), folder
    )
    for line in made.notes:
        print(f"  {line[:160]}")
    loaded = TvmBackend().load(Artifact("tvm", made.files[0], (), ()), LoadOptions("gpu"))
    feeds = _feeds(model)

    def answer() -> list[Any]:
        return list(loaded.run(feeds).values())

    results = {n: np.empty_like(a) for n, a in loaded.run(feeds).items()}
    found: _Way = {", arrays here": (loaded.bind(feeds, results), answer)}
    if loaded.recorded is not None:
        found[""] = (loaded.recorded.replay, answer)
    return found


def _through_edgeinfer(model: Path) -> _Way:
    """ONNX Runtime as edgeinfer runs it, with bound arrays and a CUDA graph."""
    from edgeinfer.backends.base import Artifact, LoadOptions
    from edgeinfer.backends.onnxruntime.backend import OnnxRuntimeBackend

    loaded = OnnxRuntimeBackend().load(Artifact("onnx", model, (), ()), LoadOptions("gpu"))
    feeds = _feeds(model)
    results = {n: np.empty_like(a) for n, a in loaded.run(feeds).items()}
    bound = loaded.bind(feeds, results)

    def answer() -> list[Any]:
        bound()
        return list(results.values())

    return {"": (bound, answer)}


def _onnxruntime(model: Path, tf32: str) -> _Way:
    from edgeinfer.backends.engines import import_onnxruntime

    onnxruntime = import_onnxruntime()
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    cuda = {"use_tf32": tf32, "enable_cuda_graph": "1"}
    session = onnxruntime.InferenceSession(str(model), options, [("CUDAExecutionProvider", cuda)])
    if session.get_providers()[0] != "CUDAExecutionProvider":
        raise ImportError("ONNX Runtime has no CUDA here")
    binding = session.io_binding()
    for name, array in _feeds(model).items():
        binding.bind_ortvalue_input(
            name, onnxruntime.OrtValue.ortvalue_from_numpy(array, "cuda", 0)
        )
    values = []
    for output in session.get_outputs():
        value = onnxruntime.OrtValue.ortvalue_from_shape_and_type(
            output.shape, np.float32, "cuda", 0
        )
        values.append(value)
        binding.bind_ortvalue_output(output.name, value)

    def call() -> None:
        session.run_with_iobinding(binding)

    def answer() -> list[Any]:
        call()
        return [v.numpy() for v in values]

    return {"": (call, answer)}


def main() -> None:
    """Do what is asked."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=("nets", "table", "ship", "cuda"))
    parser.add_argument("paths", nargs="+", type=Path)
    parser.add_argument("--rounds", type=int, default=40)
    given = parser.parse_args()
    match given.what:
        case "nets":
            write(given.paths[0])
        case "table":
            table(given.paths)
        case "ship":
            ship(*given.paths)
        case _:
            records = given.paths[1] if given.paths[1:] else None
            cuda(given.paths[0], records, given.rounds)


if __name__ == "__main__":
    main()
