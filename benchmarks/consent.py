"""Less precision by consent, next to engines that take it without asking.

    python -m benchmarks.consent cpu NET|MODEL.onnx[:NAME=1,3,9,9[:DATA.npz]] ... [--threads 1]
    python -m benchmarks.consent cuda NET[:BATCH] ...
    python -m benchmarks.consent threads NET ... [--threads 2,4]

NET is one of the tests', or vit-base or minilm-random. ``threads`` times ONNX Runtime with threads
that sleep, that are awake within a run, and that are awake always; and counts runs a second of as
many callers as threads with the policies latency and throughput.

On a processor: a session that allows bf16 next to OpenVINO as it comes, which computes in bf16
where the processor does, and both in fp32. On an NVIDIA GPU: bound sessions that allow TF32 and
fp16 next to ONNX Runtime with a CUDA graph, TF32 on, and on the file of its own converter to fp16.
Ways take turns in random order; ratios are of a round. Errors are the largest over the largest
value of the answer in fp32. A row that the gate refuses is told with its words, next to the error
that OpenVINO makes. Exits 1 where a ratio is above 1.02 beyond its quartiles or a number is wrong.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import platform
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import edgeinfer
from benchmarks.cuda import cuda_graph
from edgeinfer.backends.base import Artifact, LoadOptions
from edgeinfer.backends.engines import import_onnxruntime, import_openvino
from edgeinfer.backends.onnxruntime.backend import OnnxRuntimeBackend
from edgeinfer.bundle.archive import Bundle
from edgeinfer.types import Array

LIMIT = 1.02
SPIN = "session.intra_op.allow_spinning"
TURN_S, WARM_S = 0.012, 0.003

Way = Callable[[], Any]


def turn(way: Way) -> float:
    """Milliseconds of a call: the median of a short while, after a shorter one."""
    until = time.perf_counter() + WARM_S
    while time.perf_counter() < until:
        way()
    spent: list[float] = []
    until = time.perf_counter() + TURN_S
    while len(spent) < 2 or time.perf_counter() < until:
        start = time.perf_counter()
        way()
        spent.append((time.perf_counter() - start) * 1e3)
    return statistics.median(spent)


def rounds_of(ways: dict[str, Way], count: int) -> dict[str, list[float]]:
    """Times by way, one a round."""
    found: dict[str, list[float]] = {name: [] for name in ways}
    chance = random.Random(0)
    for _ in range(count):
        for name in chance.sample([*ways], len(ways)):
            found[name].append(turn(ways[name]))
    return found


def ratio(ours: list[float], theirs: list[float]) -> tuple[float, float, float]:
    """Median and quartiles of the rounds' ratios."""
    ratios = [a / b for a, b in zip(ours, theirs, strict=True)]
    low, middle, high = statistics.quantiles(ratios, n=4)
    return middle, low, high


def error(wanted: list[Array], got: list[Array]) -> float:
    """Largest difference over the largest value, of the worst output."""
    pairs = [
        (np.asarray(w, np.float64), np.asarray(g, np.float64))
        for w, g in zip(wanted, got, strict=True)
    ]
    return max(float(np.abs(w - g).max() / (np.abs(w).max() or 1.0)) for w, g in pairs)


def told(name: str, times: dict[str, list[float]], pairs: list[tuple[str, str]]) -> dict[str, Any]:
    """Print medians and ratios; return them."""
    medians = {way: statistics.median(spent) for way, spent in times.items()}
    print(f"{name}: " + ", ".join(f"{way} {ms:.3f} ms" for way, ms in medians.items()))
    ratios = {}
    for ours, theirs in pairs:
        if ours in times and theirs in times:
            middle, low, high = ratio(times[ours], times[theirs])
            ratios[f"{ours} / {theirs}"] = [middle, low, high]
            mark = "  ABOVE THE LIMIT" if low > LIMIT and _is_bar(ours, theirs) else ""
            print(f"  {ours} / {theirs}: {middle:.3f} ({low:.3f}..{high:.3f}){mark}", flush=True)
    return {"name": name, "ms": medians, "ratios": ratios}


def _is_bar(ours: str, theirs: str) -> bool:
    return "default" in theirs and ours != "ours fp32"


def plain_openvino(path: Path, feeds: dict[str, Array], threads: int, precision: str) -> Way:
    """OpenVINO as it comes, but for the threads and the hint for one caller."""
    openvino = import_openvino()
    options = {"PERFORMANCE_HINT": "LATENCY", "INFERENCE_NUM_THREADS": threads}
    options |= {"INFERENCE_PRECISION_HINT": precision} if precision else {}
    request = openvino.Core().compile_model(str(path), "CPU", options).create_infer_request()
    return lambda: [*request.infer(feeds, share_inputs=True, share_outputs=True).values()]


def fixed(path: Path, shapes: dict[str, tuple[int, ...]], folder: Path) -> Path:
    """Write the model with fixed sizes: every engine gets the same file."""
    import onnx

    model = onnx.load(path)
    for value in model.graph.input:
        for dim, size in zip(
            value.type.tensor_type.shape.dim, shapes.get(value.name, ()), strict=False
        ):
            dim.dim_value = size
    for value in model.graph.output:
        value.type.tensor_type.ClearField("shape")
    place = folder / path.name
    onnx.save(onnx.shape_inference.infer_shapes(model), place)
    return place


def on_cpu(text: str, threads: list[int], rounds: int) -> Iterator[dict[str, Any]]:
    """Convert one model, and time it with each number of threads."""
    file, shape, data, *_ = [*text.split(":"), "", ""]
    name, _, sizes = shape.partition("=")
    shapes = {name: tuple(map(int, sizes.split(",")))} if name else {}
    with tempfile.TemporaryDirectory() as temporary:
        own = Path(file).suffix == ".onnx"
        path = Path(file) if own else _exported(file, 1, Path(temporary))[0]
        path = fixed(path, shapes, Path(temporary)) if own else path
        made = edgeinfer.export(
            path,
            Path(temporary) / "m.edge",
            targets=("openvino",),
            also=("bf16", "fp16"),
            data=data or None,
        )
        feeds = _feeds(made.path)
        for line in (line for c in made.report.changes for line in c.lines if "refused" in line):
            print(f"{path.stem}: REFUSED {line}", flush=True)
        cpu = import_onnxruntime().InferenceSession(path, providers=["CPUExecutionProvider"])
        wanted = cpu.run(None, feeds)
        for count in threads:
            with (
                ExitStack() as stack,
                edgeinfer.load(made.path, threads=count, allow={"bf16"}) as allowed,
                edgeinfer.load(made.path, threads=count, allow=()) as plain,
            ):
                ways: dict[str, Way] = {
                    "ours fp32": partial(plain.run, feeds),
                    "OpenVINO fp32": plain_openvino(path, feeds, count, "f32"),
                    "OpenVINO default": plain_openvino(path, feeds, count, ""),
                }
                half = stack.enter_context(edgeinfer.load(made.path, threads=count, allow={"fp16"}))
                if half.report().precision == "fp16":
                    ways["ours, fp16 allowed"] = partial(half.run, feeds)
                taken = allowed.report()
                if taken.precision == "bf16":
                    ways["ours, bf16 allowed"] = partial(allowed.run, feeds)
                errors = {n: error(wanted, _arrays(way())) for n, way in ways.items()}
                row = told(
                    f"{path.stem}, {count} threads ({taken.variant})",
                    rounds_of(ways, rounds),
                    [
                        ("ours, bf16 allowed", "OpenVINO default"),
                        ("ours, bf16 allowed", "ours fp32"),
                        ("ours, fp16 allowed", "ours fp32"),
                        ("ours fp32", "OpenVINO default"),
                        ("ours fp32", "OpenVINO fp32"),
                    ],
                )
                print("  errors: " + ", ".join(f"{n} {e:.1e}" for n, e in errors.items()))
                print("\n".join(f"  {r}" for r in plain.report().rejected), flush=True)
                yield {**row, "errors": errors}


def _arrays(result: Any) -> list[Array]:
    values = result.values() if isinstance(result, dict) else result
    return [np.asarray(value) for value in values]


def _feeds(bundle: Path) -> dict[str, Array]:
    with Bundle.open(bundle, native="deny") as opened:
        return dict(next(iter(opened.vectors()))[0])


def on_cuda(text: str, rounds: int) -> Iterator[dict[str, Any]]:
    """Convert one net of the tests, and time its bound forms."""
    import onnx
    from onnxruntime.transformers.float16 import convert_float_to_float16

    net, _, batch = text.partition(":")
    with tempfile.TemporaryDirectory() as temporary:
        path, feeds = _exported(net, int(batch or 1), Path(temporary))
        half = path.with_name("half.onnx")
        onnx.save(convert_float_to_float16(onnx.load(path), keep_io_types=True), half)
        ranges = {n: (-6.0, 6.0) for n, a in feeds.items() if a.dtype == np.float32}
        made = edgeinfer.export(
            path,
            Path(temporary) / "m.edge",
            targets=("cuda",),
            also=("tf32", "fp16"),
            input_ranges=ranges,
        )
        for line in (line for c in made.report.changes for line in c.lines):
            if "refused" in line or "left out" in line or "stay fp32" in line:
                print(f"{text}: {line}", flush=True)
        options = {"use_tf32": "1", "enable_cuda_graph": "1"}
        ways: dict[str, Way] = {
            "ORT fp32 graph": cuda_graph(path, feeds, {**options, "use_tf32": "0"}),
            "ORT default graph": cuda_graph(path, feeds, options),
            "ORT default fp16 graph": cuda_graph(half, feeds, options),
        }
        wanted = _arrays(ways["ORT fp32 graph"]())
        sessions = []
        for name, kinds in (("fp32", ()), ("tf32", ("tf32",)), ("fp16", ("fp16",))):
            session = edgeinfer.load(made.path, device="gpu", allow=kinds, calls="bind")
            sessions.append(session)
            print(f"{text}: {name} is {session.report().variant}", flush=True)
            ways[f"ours {name}"] = session.bind({n: a.copy() for n, a in feeds.items()})
        errors = {n: error(wanted, _arrays(way())) for n, way in ways.items()}
        pairs = [
            ("ours fp32", "ORT fp32 graph"),
            ("ours tf32", "ORT default graph"),
            ("ours fp16", "ORT default fp16 graph"),
        ]
        # Another process may use the device too.
        with (Path(tempfile.gettempdir()) / "consent.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            times = rounds_of(ways, rounds)
        row = told(text, times, pairs)
        print("  errors: " + ", ".join(f"{n} {e:.1e}" for n, e in errors.items()), flush=True)
        for session in sessions:
            session.close()
        yield {**row, "errors": errors}


def on_threads(net: str, threads: list[int], rounds: int) -> Iterator[dict[str, Any]]:
    """Time one net with threads that sleep or not, and with several callers at once."""
    wakes = {
        "asleep": {},
        "awake in a run": {SPIN: "1", "session.force_spinning_stop": "1"},
        "awake": {SPIN: "1"},
    }
    with tempfile.TemporaryDirectory() as temporary:
        path, feeds = _exported(net, 1, Path(temporary))
        made = edgeinfer.export(path, Path(temporary) / "m.edge", targets=("cpu",))
        for count in threads:
            opened = {
                name: OnnxRuntimeBackend().load(
                    Artifact("onnx", path, (), ()), LoadOptions(threads=count, extra=extra)
                )
                for name, extra in wakes.items()
            }
            ways: dict[str, Way] = {n: partial(e.run, feeds) for n, e in opened.items()}
            pairs = [("awake in a run", "asleep"), ("awake", "asleep")]
            yield told(f"{net}, {count} threads", rounds_of(ways, rounds), pairs)
            for executable in opened.values():
                executable.close()
            found: dict[str, list[float]] = {}
            for policy in ("latency", "throughput"):
                with edgeinfer.load(made.path, threads=count, policy=policy) as session:
                    rates = [_rate(partial(session.run, feeds), count) for _ in range(5)]
                    found[f"{policy} ({session.report().backend})"] = rates
            listed = ", ".join(f"{n} {statistics.median(r):.1f}" for n, r in found.items())
            print(f"{net}, {count} callers and threads, runs a second: {listed}", flush=True)
            yield {"name": f"{net}, {count} callers", "rates": found}


def _rate(way: Way, callers: int) -> float:
    """Runs a second of so many callers at once."""
    until = time.perf_counter() + 0.5

    def call(_: int) -> int:
        done = 0
        while time.perf_counter() < until:
            way()
            done += 1
        return done

    start = time.perf_counter()
    with ThreadPoolExecutor(callers) as pool:
        return sum(pool.map(call, range(callers))) / (time.perf_counter() - start)


def _exported(net: str, batch: int, folder: Path) -> tuple[Path, dict[str, Array]]:
    import torch

    from tests.zoo.nets import torch_model
    from tests.zoo.sequence import BertEncoder, BertSizes, VisionTransformer

    torch.manual_seed(0)
    if net == "vit-base":
        module, inputs = VisionTransformer(768, 12, 12).eval(), {"x": torch.randn(1, 3, 224, 224)}
    elif net == "minilm-random":
        module = BertEncoder(BertSizes(30522, 384, 1536, 12, 6)).eval()
        ids = torch.randint(1, 30522, (1, 128))
        inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    else:
        module, inputs, _ = torch_model(net)
    inputs = {n: torch.cat([t] * batch) for n, t in inputs.items()}
    path = folder / f"{net}.onnx"
    torch.onnx.export(
        *(module, tuple(inputs.values()), path),
        input_names=list(inputs),
        opset_version=17,
        dynamo=False,
    )
    return path, {name: np.asarray(tensor) for name, tensor in inputs.items()}


def main() -> int:
    """Run what is requested."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("where", choices=["cpu", "cuda", "threads"])
    parser.add_argument("models", nargs="+")
    parser.add_argument("--threads", default="1,4")
    parser.add_argument("--rounds", type=int, default=24)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    threads = [int(count) for count in given.threads.split(",")]
    print(f"{platform.platform()}, Python {platform.python_version()}, {given.rounds} rounds")
    rows: list[dict[str, Any]] = []
    for text in given.models:
        try:
            if given.where == "cuda":
                rows += on_cuda(text, given.rounds)
            else:
                rows += {"cpu": on_cpu, "threads": on_threads}[given.where](
                    text, threads, given.rounds
                )
        # One that fails must not take the others along.
        except Exception as e:
            rows.append({"name": text, "failed": f"{type(e).__name__}: {e}"})
            print(f"{text}: FAILED {type(e).__name__}: {e}", flush=True)
    if given.json:
        given.json.write_text(json.dumps(rows, indent=1))
    above = [
        r["name"]
        for r in rows
        for pair, (_, low, _) in r.get("ratios", {}).items()
        if low > LIMIT and _is_bar(*pair.split(" / "))
    ]
    failed = [r["name"] for r in rows if "failed" in r]
    print(f"above {LIMIT}: {', '.join(above) or 'none'}; failed: {', '.join(failed) or 'none'}")
    return 1 if above or failed else 0


if __name__ == "__main__":
    sys.exit(main())
