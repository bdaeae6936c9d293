"""What choosing by measurement costs against the best engine picked by hand.

    python -m benchmarks.selection [--models PART] [--seconds 2] [--json out.json]

Each model is converted for ONNX Runtime, OpenVINO, LiteRT and, where TVM is installed, TVM. With 1
and with 2 threads the bundle is loaded as a user does, with an empty history, and what was chosen
is raced against every engine loaded by name, in turns. Regret is how much slower
the choice is than the fastest; two loads of one engine differ by what the machine does meanwhile,
so a choice that *is* the fastest engine has no regret. Exits 1 when the median regret of all pairs
is above 3 %, or that of one model above 3 % beyond the spread of the race.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import platformdirs

import edgeinfer
from benchmarks.tflite_peers.models import MODELS
from edgeinfer.backends import registry
from edgeinfer.errors import EdgeInferError
from edgeinfer.runtime.profiledb import ProfileDB

LIMIT = 0.03
TARGETS = {
    "onnxruntime": "onnxruntime",
    "openvino": "openvino",
    "litert": "rpi4",
    "tvm": "tvm-x86-64-v3",
}
NAMES = (
    *("mobilenet-v2-torchscript", "mobilenet-v3-small-torchscript", "resnet-18-torchscript"),
    *("efficientnet-lite0-torchscript", "convnext-tiny-torchscript", "vit-tiny-torchscript"),
    *("bert-mini-torchscript", "blazeface-front", "basic-pitch", "silero-vad", "ppocrv4-rec"),
    *("wake-alexa", "wake-embedding", "unet-torchscript"),
)


@dataclass(frozen=True, slots=True)
class Row:
    """One model with one number of threads.

    Attributes:
        model: its name.
        threads: of the engines.
        chosen: backend that the load took.
        ms: median of each backend, raced in turns.
        regret: how much slower the choice is than the fastest.
        noise: relative quartile distance of the race between the two.
        load_s: of the first load, measurements included.
        absent: why a backend took no part.
    """

    model: str
    threads: int
    chosen: str
    ms: dict[str, float]
    regret: float
    noise: float
    load_s: float
    absent: dict[str, str]


def main() -> int:
    """Measure, print, judge."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--models", default="", help="only names with this part")
    parser.add_argument("--seconds", type=float, default=2.0, help="of each race")
    parser.add_argument("--json", default="", help="write all figures here")
    arguments = parser.parse_args()
    rows = []
    for name in NAMES:
        if arguments.models not in name:
            continue
        with tempfile.TemporaryDirectory() as temporary:
            for row in measure(name, Path(temporary), arguments.seconds):
                rows.append(row)
                print(_line(row), flush=True)
    regrets = [row.regret for row in rows]
    middle = statistics.median(regrets)
    hits = sum(not regret for regret in regrets)
    print(f"machine: {platform.machine()}; {len(rows)} races, {hits} took the fastest engine")
    print(
        f"regret: median {middle:.1%}, mean {statistics.mean(regrets):.1%}, max {max(regrets):.1%}"
    )
    broken = [row for row in rows if row.regret > LIMIT + row.noise]
    for row in broken:
        print(f"BROKEN {row.model} with {row.threads} threads: regret {row.regret:.1%}")
    if arguments.json:
        Path(arguments.json).write_text(json.dumps([asdict(r) for r in rows], indent=1))
    return int(bool(broken) or middle > LIMIT)


def measure(name: str, folder: Path, seconds: float) -> Iterator[Row]:
    """Convert a model for every engine, then race with 1 and with 2 threads."""
    source = MODELS[name].prepare(Path(platformdirs.user_cache_dir("edgeinfer-peers")) / "models")
    absent: dict[str, str] = {}
    parts = []
    for backend, target in TARGETS.items():
        probe = registry.get(backend).probe()
        if not probe.available:
            absent[backend] = probe.reason
            continue
        part = folder / f"{backend}.edge"
        try:
            edgeinfer.export(source, part, targets=[target])
        except EdgeInferError as error:
            absent[backend] = str(error).splitlines()[0]
        else:
            parts.append((backend, target))
    bundle = folder / "all.edge"
    edgeinfer.export(source, bundle, targets=[target for _, target in parts])
    for threads in (1, 2):
        yield _raced(name, bundle, [backend for backend, _ in parts], threads, seconds, absent)


def _raced(
    name: str,
    bundle: Path,
    backends: list[str],
    threads: int,
    seconds: float,
    absent: dict[str, str],
) -> Row:
    absent = dict(absent)
    with ProfileDB(bundle.with_suffix(f".{threads}.sqlite")) as history:
        start = time.perf_counter()
        with edgeinfer.load(bundle, threads=threads, history=history) as session:
            chosen = session.report().backend
            load_s = time.perf_counter() - start
        sessions = {}
        for backend in backends:
            try:
                sessions[backend] = edgeinfer.load(
                    bundle, threads=threads, history=history, backend=backend
                )
            except EdgeInferError as error:
                absent[backend] = str(error).splitlines()[0]
        took = _race(sessions, seconds)
        for each in sessions.values():
            each.close()
    medians = {backend: statistics.median(times) * 1e3 for backend, times in took.items()}
    best = min(medians, key=medians.__getitem__)
    ratios = [a / b - 1 for a, b in zip(took[chosen], took[best], strict=True)]
    low, regret, high = statistics.quantiles(ratios, n=4)
    if chosen == best:
        low = regret = high = 0.0
    return Row(name, threads, chosen, medians, max(regret, 0.0), (high - low) / 2, load_s, absent)


def _race(sessions: dict[str, edgeinfer.Session], seconds: float) -> dict[str, list[float]]:
    """Run in turns, as the choice was measured: by ``run``."""
    rng = np.random.default_rng(0)
    first = next(iter(sessions.values()))
    feeds = {name: np.array(x) for name, x in first.bind().inputs.items()}
    for array in feeds.values():
        if array.dtype.kind == "f":
            array[...] = rng.standard_normal(array.shape)
    took: dict[str, list[float]] = {backend: [] for backend in sessions}
    for session in sessions.values():
        session.run(feeds)
    until = time.perf_counter() + seconds
    while time.perf_counter() < until or len(next(iter(took.values()))) < 20:
        for backend, session in sessions.items():
            start = time.perf_counter()
            session.run(feeds)
            took[backend].append(time.perf_counter() - start)
    return took


def _line(row: Row) -> str:
    figures = "  ".join(f"{backend} {ms:.3f}" for backend, ms in row.ms.items())
    lost = "".join(f"  no {backend}: {why[:60]}" for backend, why in row.absent.items())
    return (
        f"{row.model:32} {row.threads} thr  {row.chosen:12} regret {row.regret:6.1%}"
        f"  load {row.load_s:.1f} s  ms: {figures}{lost}"
    )


if __name__ == "__main__":
    sys.exit(main())
