"""Loading with the choice remembered next to the plain engine's: processor time and memory.

    python -m benchmarks.loading [--models A,B] [--engines openvino,...] [--rounds 20] [--folder F]

Both load in processes of their own, in turns: import, opening and the first run, on one thread.
Exits 1 where the median of the ratios is above 1.15 in processor time or above 1.1 in memory; of
silero-vad, where it takes more than 0.15 s as well. A small model's engine is ready before Python
has imported what checks a bundle: ``over`` says how many milliseconds that is.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
from pathlib import Path
from typing import Any

from benchmarks.overhead import machine
from benchmarks.peers.files import Files
from benchmarks.peers.race import Peer

TARGETS = {"onnxruntime": "onnxruntime", "openvino": "openvino", "litert": "rpi5"}
OPTIONS: dict[str, dict[str, Any]] = {
    "onnxruntime": {"spinning": False},
    "openvino": {"precision": "f32"},
    "litert": {},
}
LIMIT, LIMIT_MEMORY, LIMIT_SILERO_S = 1.15, 1.1, 0.15


def main() -> int:
    """Print a row for each model and engine."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--models", default="silero-vad-16k-op15,ppocr-cls,mobilenet-v2-torchscript"
    )
    parser.add_argument("--engines", default=",".join(TARGETS))
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--folder", default="build/loading", help="for models and bundles")
    given = parser.parse_args()
    folder = Path(given.folder).resolve()
    os.environ["EDGEINFER_CACHE"] = str(folder / "cache")
    print(f"machine: {machine()}, n: {given.rounds}, in turns; medians and quartiles of ratios")
    above = [
        _row(name, engine, folder, given.rounds)
        for name in given.models.split(",")
        for engine in given.engines.split(",")
    ]
    return int(any(above))


def _row(name: str, engine: str, folder: Path, rounds: int) -> bool:
    files = Files(name, "fp32", folder / engine, [TARGETS[engine]])
    shared = {"feeds": str(files.given), "threads": 1}
    own = {"opens": "edgeinfer", "file": str(files.bundle()), "options": {}, **shared}
    file = files.path("tflite" if engine == "litert" else "onnx", Path(sys.executable))
    plain = {"opens": engine, "file": str(file), "options": OPTIONS[engine], **shared}
    for request in (own, own, plain):
        _opened(request)
    pairs = [(_opened(own), _opened(plain)) for _ in range(rounds)]
    seconds = [ours["load_cpu_s"] for ours, _ in pairs]
    over = [1e3 * (ours["load_cpu_s"] - theirs["load_cpu_s"]) for ours, theirs in pairs]
    times = sorted(ours["load_cpu_s"] / theirs["load_cpu_s"] for ours, theirs in pairs)
    memory = statistics.median(ours["memory_mb"] / theirs["memory_mb"] for ours, theirs in pairs)
    middle = statistics.median(times)
    first, third = times[len(times) // 4], times[3 * len(times) // 4]
    took = statistics.median(seconds)
    high = bool(middle > LIMIT or memory > LIMIT_MEMORY)
    if name.startswith("silero"):
        high = bool(took > LIMIT_SILERO_S and middle > LIMIT)
    print(
        f"{name:26}{engine:12}{took:7.3f} s  x{middle:.2f} ({first:.2f}-{third:.2f})  "
        f"over {statistics.median(over):4.0f} ms  memory x{memory:.2f}{'  ABOVE' * high}",
        flush=True,
    )
    return high


def _opened(request: dict[str, Any]) -> dict[str, Any]:
    with Peer(Path(sys.executable)) as peer:
        return peer.ask("open", **request)


if __name__ == "__main__":
    sys.exit(main())
