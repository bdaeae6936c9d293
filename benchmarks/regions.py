"""Where code by TVM beats the libraries: small nets, models and operators of the zoo, with limits.

    python -m benchmarks.regions [small|models|operators|default|all] [--rounds N] [--threads N]

Bound calls in turns, so that each round is a ratio of neighbours in time: ONNX Runtime, OpenVINO
and LiteRT, each with the file that the converter writes for it, and TVM's code for what this CPU
has, which is what ``convert -t cpu`` writes. All outputs are compared first. Shown are medians of
the rounds' best in microseconds (CPU time), then the median of the ratios to the best library and
its quartiles.

``small``: nets whose arithmetic takes less than 50 µs; each has to be twice as fast as the best
library. ``models``: whole models of the zoo; ``operators``: operators and regions that stand in
models of the zoo, as models of their own; six of each have to be 1.2 times as fast. ``default``:
converts models of the zoo with ``-t cpu`` and says what a plain ``edgeinfer.load`` takes; six have
to be TVM. Exits 1 if any of this fails.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir

import edgeinfer
from benchmarks.kernels import small_models
from edgeinfer.backends import registry
from edgeinfer.backends.base import Artifact, Bound, LoadOptions
from edgeinfer.backends.testing.cases import graph
from edgeinfer.convert.lower import LowerOptions, target_for
from edgeinfer.convert.lower.regions.setting import machine_for, machine_here
from edgeinfer.convert.passes import input_specs, normalise, output_specs
from edgeinfer.profiles.schema import Profile
from edgeinfer.runtime.profiledb import ProfileDB
from edgeinfer.types import Array, TensorSpec
from tests import zoo
from tests.zoo.exported import exported

SMALL, LARGE, ENOUGH = 2.0, 1.2, 6
FORMS = {"onnxruntime": "onnx", "openvino": "openvino_ir", "litert": "tflite", "tvm": "tvm"}
TURN_S, TURNS = 0.0015, 5

MODELS: dict[str, dict[str, int]] = {
    **{f"wake-{n}.onnx": {} for n in ("alexa", "hey-mycroft", "hey-rhasspy", "timer", "weather")},
    "silero-vad-openvino-16k.onnx": {},
    "silero-vad-16k-op15.onnx": {"sequence": 576},
    "wake-melspectrogram.onnx": {"samples": 1280},
    "mtcnn-rnet": {},
    "bert-mini": {"tokens": 16},
    "bilstm": {"frames": 20},
    "oddities": {},
}
"""Names of assets or of exported nets, and sizes that are open in the file; others are 1."""


def _numbers(*shape: int) -> Array:
    return (np.random.default_rng(len(shape)).standard_normal(shape) * 0.2).astype(np.float32)


def operators() -> dict[str, Any]:
    """Operators and regions as they stand in models of the zoo, by a title that names these."""
    made = {
        "PRelu 16x96x96 (face-landmark)": graph(
            "(float[1,16,96,96] x) => (float[1,16,96,96] y) { y = PRelu(x, k) }",
            k=_numbers(16, 1, 1),
        ),
        "sum and PRelu 64x32x32 (iris-landmark)": graph(
            "(float[1,64,32,32] x, float[1,64,32,32] z) => (float[1,64,32,32] y) "
            "{ a = Add(x, z) y = PRelu(a, k) }",
            k=_numbers(64, 1, 1),
        ),
        "box distribution 400 (yolo-head)": graph(
            "(float[1,32,400] x) => (float[1,4,400] y) { r = Reshape(x, s) "
            "t = Transpose<perm=[0,1,3,2]>(r) m = Softmax<axis=3>(t) q = Mul(m, v) "
            "y = ReduceSum<keepdims=0>(q, ax) }",
            s=np.array([1, 4, 8, 400]),
            v=np.arange(8, dtype=np.float32),
            ax=np.array([3]),
        ),
        "LayerNormalization 256x32 (convnext-tiny)": graph(
            "(float[256,32] x) => (float[256,32] y) { y = LayerNormalization(x, g, h) }",
            g=_numbers(32),
            h=_numbers(32),
        ),
        "attention 4x50x16 (conformer)": graph(
            "(float[1,4,50,16] q, float[1,4,50,16] k, float[1,4,50,16] v) => "
            "(float[1,4,50,16] y) { t = Transpose<perm=[0,1,3,2]>(k) s = MatMul(q, t) "
            "c = Mul(s, sc) p = Softmax(c) y = MatMul(p, v) }",
            sc=np.array(0.25, np.float32),
        ),
        "squeeze and excite 96 (mobilenet-v3)": graph(
            "(float[1,96,14,14] x) => (float[1,96,14,14] y) { p = GlobalAveragePool(x) "
            "a = Conv(p, k, b) r = Relu(a) c = Conv(r, l, e) "
            "h = HardSigmoid<alpha=0.16666667, beta=0.5>(c) y = Mul(x, h) }",
            k=_numbers(24, 96, 1, 1),
            b=_numbers(24),
            l=_numbers(96, 24, 1, 1),
            e=_numbers(96),
        ),
        "depthwise convolution over time, 15 taps (conformer)": graph(
            "(float[1,64,50] x) => (float[1,64,50] y) "
            "{ y = Conv<group=64, pads=[7,7], kernel_shape=[15]>(x, k, b) }",
            k=_numbers(64, 1, 15),
            b=_numbers(64),
        ),
        "InstanceNormalization 16x32x32 (oddities)": graph(
            "(float[1,16,32,32] x) => (float[1,16,32,32] y) { y = InstanceNormalization(x, g, h) }",
            g=_numbers(16),
            h=_numbers(16),
        ),
        "decoded boxes 896x16 (blazeface)": graph(
            "(float[1,896,16] x, float[1,896,1] s) => (float[1,896,16] y, float[1,896,1] p) "
            "{ c = Clip(s, lo, hi) p = Sigmoid(c) a = Div(x, d) y = Mul(a, an) }",
            lo=np.array(-100, np.float32),
            hi=np.array(100, np.float32),
            d=np.array(128, np.float32),
            an=_numbers(896, 16),
        ),
        "GRU of 10 steps, 64 (aecmos)": graph(
            "(float[10,1,128] x) => (float[10,1,1,64] y) "
            "{ y, h = GRU<hidden_size=64, linear_before_reset=1>(x, w, r, b) }",
            w=_numbers(1, 192, 128),
            r=_numbers(1, 192, 64),
            b=_numbers(1, 384),
        ),
        "rotary positions 8x64x32 (language models)": _graph(
            "(float[1,8,64,32] x) => (float[1,8,64,32] y) { y = RotaryEmbedding(x, c, s) }",
            {"c": np.cos(_numbers(1, 64, 16) * 10), "s": np.sin(_numbers(1, 64, 16) * 10)},
        ),
        "int4 matrix 2816x1024 times a vector (MatMulNBits)": narrow(2816, 1024),
        "int4 matrix 2816x1024 times a vector of 8 bits (level 4)": narrow(2816, 1024, 4),
        "feed-forward 1024-2816 of int4 (language models)": feed_forward(1024, 2816),
    }
    return dict(made)


BLOCK = 32


def narrow(n: int, k: int, level: int = 0) -> onnx.ModelProto:
    """A product with 4-bit weights; level 4 lets the vector be rounded to 8 bits."""
    text = f"{{ {_product('x', 'y', n, k, level)} }}"
    return _graph(f"(float[1,1,{k}] x) => (float[1,1,{n}] y) {text}", _weights("y", n, k))


def feed_forward(size: int, inner: int) -> onnx.ModelProto:
    """Root mean square norm, two products, their gate, a third product and the input."""
    text = (
        f"n = RMSNormalization<epsilon=0.00001>(x, f) {_product('n', 'g', inner, size)} "
        f"{_product('n', 'u', inner, size)} s = Sigmoid(g) a = Mul(g, s) m = Mul(a, u) "
        f"{_product('m', 'd', size, inner)} y = Add(x, d)"
    )
    known = {"f": _numbers(size) + 1}
    for name, sizes in (("g", (inner, size)), ("u", (inner, size)), ("d", (size, inner))):
        known |= _weights(name, *sizes)
    return _graph(f"(float[1,1,{size}] x) => (float[1,1,{size}] y) {{ {text} }}", known)


def _graph(text: str, known: Mapping[str, Array]) -> onnx.ModelProto:
    made: onnx.ModelProto = graph(text, **known)
    del made.opset_import[:]
    made.opset_import.append(onnx.helper.make_opsetid("", 23))
    made.opset_import.append(onnx.helper.make_opsetid("com.microsoft", 1))
    return made


def _product(x: str, y: str, n: int, k: int, level: int = 0) -> str:
    about = f"K={k}, N={n}, bits=4, block_size={BLOCK}, accuracy_level={level}"
    return f"{y} = com.microsoft.MatMulNBits<{about}>({x}, {y}_q, {y}_s)"


def _weights(name: str, n: int, k: int) -> dict[str, Array]:
    rng = np.random.default_rng(n)
    q = rng.integers(0, 256, (n, k // BLOCK, BLOCK // 2), dtype=np.uint8)
    scales = ((rng.random((n, k // BLOCK)) + 0.5) * 0.2 / k**0.5).astype(np.float32)
    return {f"{name}_q": q, f"{name}_s": scales.reshape(-1)}


def fixed(name: str, sizes: Mapping[str, int]) -> Path | onnx.ModelProto:
    """A model of the zoo with all its sizes known."""
    path = zoo.fetch(name) if name in zoo.assets() else exported(name, "dynamo")
    proto = onnx.load(path)
    for value in proto.graph.input:
        for dim in value.type.tensor_type.shape.dim:
            if not dim.dim_value:
                dim.dim_value = sizes.get(dim.dim_param, 1)
    for value in proto.graph.output:
        for dim in value.type.tensor_type.shape.dim:
            if dim.dim_param:
                dim.Clear()
    return proto


def bound(
    model: ir.Model, engine: str, folder: Path, threads: int
) -> tuple[Bound, dict[str, Array]]:
    """Write a normalised model for an engine and bind it; also returns the outputs' buffers."""
    form = FORMS[engine]
    here = machine_for(model) if engine == "tvm" else ""
    profile = Profile("bench", "bench", ("linux",), (), (form,), (engine,), ("fp32",), machine=here)
    folder.mkdir()
    made = target_for(form).lower(model.clone(), profile, LowerOptions(), folder)
    about = Artifact(form, made.files[0], input_specs(model), output_specs(model))
    ready = registry.get(engine).load(about, LoadOptions(threads=threads))
    feeds = _feeds(ready.inputs)
    outputs = {name: np.zeros_like(array) for name, array in ready.run(feeds).items()}
    return ready.bind(feeds, outputs), outputs


def _feeds(inputs: tuple[TensorSpec, ...]) -> dict[str, Array]:
    rng = np.random.default_rng(0)
    found: dict[str, Array] = {}
    for spec in inputs:
        shape = tuple(d for d in spec.shape or () if isinstance(d, int))
        if spec.dtype.startswith("float"):
            found[spec.name] = (rng.standard_normal(shape) * 0.5).astype(spec.dtype)
        else:
            found[spec.name] = rng.integers(1, 100, shape).astype(spec.dtype)
    return found


def race(calls: Mapping[str, Callable[[], object]], rounds: int) -> dict[str, Array]:
    """Time calls in turns: (rounds, 2) microseconds by the clock and of the processor.

    A round has the least of five short turns of each.
    """
    counts = {}
    for name, call in calls.items():
        call()
        start = time.perf_counter()
        call()
        counts[name] = max(1, int(TURN_S / max(1e-7, time.perf_counter() - start)))
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in calls}
    for _ in range(rounds):
        for name, call in calls.items():
            call()
            # The least of some short turns: what interrupts one is not the code's.
            turns = [_turn(call, counts[name]) for _ in range(TURNS)]
            least = np.min(turns, axis=0)
            found[name].append((float(least[0]), float(least[1])))
    return {name: np.array(times) for name, times in found.items()}


def _turn(call: Callable[[], object], count: int) -> tuple[float, float]:
    wall, cpu = time.perf_counter(), time.process_time()
    for _ in range(count):
        call()
    took = time.perf_counter() - wall, time.process_time() - cpu
    return took[0] / count * 1e6, took[1] / count * 1e6


def compared(title: str, proto: onnx.ModelProto, rounds: int, threads: int) -> float:
    """Race one model; prints a line and returns how many times as fast the code is."""
    model = normalise(ir.from_proto(proto)).model
    calls: dict[str, Bound] = {}
    results: dict[str, dict[str, Array]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for engine in FORMS:
            try:
                call, results[engine] = bound(model, engine, Path(folder, engine), threads)
                call()
                calls[engine] = call
            except Exception as error:  # an engine that cannot is told, not hidden
                print(f"  {title}: {engine}: {' '.join(str(error).split())[:140]}")
        if "tvm" not in calls or len(calls) < 2:
            return 0.0
        for engine in calls:
            _agree(engine, proto, results[engine], results["tvm"])
        times = race(calls, rounds)
    middle = {name: np.median(t, axis=0) for name, t in times.items()}
    best = min((n for n in times if n != "tvm"), key=lambda n: middle[n][0])
    ratios = times[best][:, 0] / times["tvm"][:, 0]
    low, ratio, high = np.percentile(ratios, [25, 50, 75])
    cells = ", ".join(f"{n} {w:.2f} ({c:.2f})" for n, (w, c) in middle.items())
    by_cpu = middle[best][1] / middle["tvm"][1]
    print(
        f"{title}: {cells}; {ratio:.2f} times as fast as {best} ({low:.2f} to {high:.2f}, "
        f"n = {rounds}; by CPU time {by_cpu:.2f})",
        flush=True,
    )
    return float(ratio)


def _agree(
    engine: str, proto: onnx.ModelProto, found: Mapping[str, Array], ours: Mapping[str, Array]
) -> None:
    """Compare outputs: with our code's, or where rounding is allowed with what it may change."""
    for node in proto.graph.node:
        levels = [a.i for a in node.attribute if a.name == "accuracy_level"]
        if levels == [4]:
            return _agree_by_level(engine, proto, found)
    for name, array in ours.items():
        if array.dtype.kind == "f":
            limit = 1e-3 * max(1.0, float(np.abs(array).max(initial=0.0)))
            np.testing.assert_allclose(found[name], array, rtol=1e-3, atol=limit, err_msg=engine)
    return None


def _agree_by_level(engine: str, proto: onnx.ModelProto, found: Mapping[str, Array]) -> None:
    """Hold a product with a vector of 8 bits against its definition in float64.

    Level 4 lets the vector be "quantized with the same block_size to int8" (ONNX Runtime,
    ``ContribOperators.md``), so an element is off by half a step, max |block| / 254, at the most.
    No result may be further off than all of these together, and on the whole they may not be
    further off than independent errors of half a step each.
    """
    packed, scales = (onnx.numpy_helper.to_array(t) for t in proto.graph.initializer)
    codes = np.stack([packed & 15, packed >> 4], axis=-1).reshape(*packed.shape[:2], BLOCK)
    weights = (codes - 8.0) * scales.reshape(*packed.shape[:2], 1)
    vector = _feeds((TensorSpec("x", "float32", (1, 1, weights[0].size)),))["x"]
    blocks = vector.reshape(1, -1, BLOCK).astype(np.float64)
    half = np.abs(blocks).max(axis=-1, keepdims=True) / 254
    apart = np.abs(found["y"].reshape(-1) - (weights * blocks).sum(axis=(1, 2)))
    most = (np.abs(weights) * half).sum(axis=(1, 2))
    whole, allowed = float(np.square(apart).sum()), float(np.square(weights * half).sum())
    if (apart > most + 1e-5).any() or whole > allowed:
        raise AssertionError(
            f"{engine}: off by {apart.max():.2g} where a vector of 8 bits allows {most.min():.2g}, "
            f"by {(whole / len(apart)) ** 0.5:.2g} in the root mean square where it allows "
            f"{(allowed / len(apart)) ** 0.5:.2g}"
        )


def small(rounds: int, threads: int) -> list[str]:
    """Nets whose call is the cost."""
    found = {t: compared(t, m, rounds, threads) for t, m in small_models().items()}
    return [f"{t}: {ratio:.2f} times, below {SMALL}" for t, ratio in found.items() if ratio < SMALL]


def models(rounds: int, threads: int) -> list[str]:
    """Whole models of the zoo."""
    found = {n: compared(n, fixed(n, s), rounds, threads) for n, s in MODELS.items()}
    return _enough("models", found)


def regions(rounds: int, threads: int) -> list[str]:
    """Operators and regions of the zoo."""
    found = {t: compared(t, m, rounds, threads) for t, m in operators().items()}
    return _enough("operators", found)


def _enough(what: str, found: Mapping[str, float]) -> list[str]:
    won = sum(ratio >= LARGE for ratio in found.values())
    print(f"{won} of {len(found)} {what} at least {LARGE} times as fast as the best library")
    return [] if won >= ENOUGH else [f"{what}: {won} at least {LARGE} times, not {ENOUGH}"]


def default(rounds: int, threads: int) -> list[str]:
    """What a plain load of a plain conversion takes."""
    taken = 0
    for name, sizes in MODELS.items():
        with tempfile.TemporaryDirectory() as folder:
            bundle = Path(folder, "m.edge")
            source = Path(folder, "m.onnx")
            onnx.save(fixed(name, sizes), source)
            start = time.perf_counter()
            edgeinfer.export(source, bundle, targets=["cpu"], machine_code=["model"])
            took = time.perf_counter() - start
            with (
                ProfileDB(Path(folder, "history")) as kept,
                edgeinfer.load(bundle, threads=threads, history=kept) as session,
            ):
                chosen = session.report().backend
        taken += chosen == "tvm"
        print(f"{name}: converted in {took:.0f} s, loaded on {chosen}", flush=True)
    print(f"{taken} of {len(MODELS)} models run on TVM by default")
    return [] if taken >= ENOUGH else [f"default: {taken} models on TVM, not {ENOUGH}"]


def main() -> int:
    """Run what was requested."""
    parts = {"small": small, "models": models, "operators": regions, "default": default}
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("part", choices=[*parts, "all"], nargs="?", default="all")
    parser.add_argument("--rounds", type=int, default=21)
    parser.add_argument("--threads", type=int, default=1)
    asked = parser.parse_args()
    os.environ.setdefault("TVM_BIND_THREADS", "0")
    print(f"code for {machine_here()}, {asked.threads} threads", flush=True)
    failed: list[str] = []
    for name, part in parts.items():
        if asked.part in (name, "all"):
            failed += part(asked.rounds, asked.threads)
    for line in failed:
        print(f"FAILED {line}")
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
