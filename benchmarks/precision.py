"""Float, 8-bit integers and the accuracy budget on real models, beside others' quantizers.

    python -m benchmarks.precision [CASE...] --peers /path/to/python-with-peers

For each case and engine: quality on held-out samples, size and processor time of one run on one
thread. The peers' interpreter needs ``nncf``, ``ai-edge-quantizer``, ``onnxruntime`` and
``openvino``.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import subprocess
import tempfile
import time
import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

import edgeinfer
from benchmarks.precision_data import CASES, Case
from edgeinfer.backends import registry
from edgeinfer.backends.base import Artifact, Executable, LoadOptions
from edgeinfer.convert.quantize.quality import Judgement
from edgeinfer.errors import EdgeInferError
from edgeinfer.types import TensorSpec

ENGINES = {
    "onnxruntime": ("onnxruntime", "onnx", ".onnx", ("onnxruntime", "nncf")),
    "openvino": ("openvino", "openvino_ir", ".xml", ("nncf",)),
    "litert": ("rpi4", "tflite", ".tflite", ("ai-edge-quantizer",)),
}
"""By backend: target, format, suffix, and whose files it runs."""

ROUNDS = 15

PEERS_TAKE = 32
"""Samples that the peers calibrate with: with 100 pictures one of them held 7 GB in memory."""


@dataclass(slots=True)
class Row:
    """One file on one engine."""

    case: str
    engine: str
    what: str
    quality: float
    drop: float
    size_mb: float
    latency_ms: float
    precision: str = ""
    note: str = ""


def stacked(feeds: Sequence[dict[str, Any]], path: Path) -> Path:
    arrays: dict[str, Any] = {n: np.stack([f[n] for f in feeds]) for n in feeds[0]}
    np.savez(path, **arrays)
    return path


def ours(
    case: Case, engine: str, precision: str, work: Path
) -> tuple[Path, str, tuple[TensorSpec, ...], tuple[TensorSpec, ...]] | str:
    """Convert; return the artifact, its precision and its interface, or why it was refused."""
    target, format, _, _ = ENGINES[engine]
    folder = work / f"{case.name}-{engine}-{precision}"
    calibration = None if precision == "fp32" else work / f"{case.name}.npz"
    try:
        done = edgeinfer.export(
            case.model,
            f"{folder}.edge",
            targets=[target],
            precision=precision,
            calibration=calibration,
            overwrite=True,
        )
    except EdgeInferError as e:
        return str(e).splitlines()[0][:160]
    variant = next(v for v in done.manifest.variants if v.format == format)
    with zipfile.ZipFile(done.path) as archive:
        archive.extractall(folder)
    place = folder / variant.files[0].path
    return place, variant.precision, done.manifest.inputs, done.manifest.outputs


def theirs(peers: Path, kind: str, model: Path, data: Path, output: Path) -> str:
    """Let a peer quantize; return why it could not."""
    script = Path(__file__).with_name("precision_peers.py")
    command = [str(peers), str(script), kind, str(model), str(data), str(output)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900, check=False)
    return "" if done.returncode == 0 else (done.stderr.strip().splitlines() or ["?"])[-1][:160]


@contextlib.contextmanager
def opened(
    path: Path, engine: str, inputs: tuple[TensorSpec, ...], outputs: tuple[TensorSpec, ...]
) -> Iterator[Executable]:
    artifact = Artifact(ENGINES[engine][1], path, inputs, outputs)
    executable = registry.get(engine).load(artifact, LoadOptions(threads=1))
    try:
        yield executable
    finally:
        executable.close()


def size_mb(path: Path) -> float:
    files = [path, path.with_suffix(".bin"), path.with_name(path.name + ".data")]
    return sum(f.stat().st_size for f in files if f.exists()) / 1e6


def compare(case: Case, engine: str, work: Path, peers: Path | None) -> Iterator[Row]:
    """Measure all files of one engine, their timed runs taking turns."""
    files: dict[str, tuple[Path, str]] = {}
    specs: Any = None
    for precision in ("fp32", "static_wi8_ai8", "auto"):
        made = ours(case, engine, precision, work)
        if isinstance(made, str):
            yield Row(case.name, engine, precision, 0.0, 1.0, 0.0, 0.0, note=made)
            continue
        files[precision] = made[0], made[1]
        specs = made[2:]
    for kind in ENGINES[engine][3] if peers is not None else ():
        output = work / f"{case.name}-{engine}-{kind}{ENGINES[engine][2]}"
        source = files["fp32"][0] if engine == "litert" else case.model
        assert peers is not None  # noqa: S101 - said by the loop's head
        fault = theirs(peers, kind, source, work / f"{case.name}-peers.npz", output)
        if fault:
            yield Row(case.name, engine, kind, 0.0, 1.0, 0.0, 0.0, note=fault)
        else:
            files[kind] = output, ""
    yield from measured(case, engine, files, specs)


def measured(
    case: Case, engine: str, files: dict[str, tuple[Path, str]], specs: Any
) -> Iterator[Row]:
    inputs, outputs = specs
    answers: dict[str, list[dict[str, Any]]] = {}
    times: dict[str, list[float]] = {what: [] for what in files}
    with contextlib.ExitStack() as stack:
        loaded = {}
        for what, (path, _) in files.items():
            try:
                loaded[what] = stack.enter_context(opened(path, engine, inputs, outputs))
                answers[what] = [loaded[what].run(f) for f in case.tests]
            except EdgeInferError as e:
                loaded.pop(what, None)
                yield Row(case.name, engine, what, 0.0, 1.0, 0.0, 0.0, note=str(e)[:160])
        for _ in range(ROUNDS):
            for what, executable in loaded.items():
                start = time.process_time()
                executable.run(case.tests[0])
                times[what].append(1000.0 * (time.process_time() - start))
    name = outputs[0].name
    metric = None
    if case.metric is not None:
        own = case.metric
        metric = lambda found, _: own([o[name] for o in found])  # noqa: E731
    judgement = Judgement([*answers["fp32"]], (), metric)
    for what, found in answers.items():
        loss = judgement.loss(found)
        path, precision = files[what]
        yield Row(
            *(case.name, engine, what, loss.quality, loss.drop, size_mb(path)),
            *(min(times[what]), precision),
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("cases", nargs="*", default=[*CASES])
    parser.add_argument("--engine", action="append", choices=[*ENGINES])
    parser.add_argument("--peers", type=Path)
    parser.add_argument("--work", type=Path)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as scratch:
        work = options.work or Path(scratch)
        work.mkdir(parents=True, exist_ok=True)
        for name in options.cases:
            case = CASES[name](work)
            stacked(case.feeds, work / f"{case.name}.npz")
            stacked(case.feeds[:PEERS_TAKE], work / f"{case.name}-peers.npz")
            for engine in options.engine or ENGINES:
                for row in compare(case, engine, work, options.peers):
                    rows.append(row)
                    print(
                        f"{row.case:20} {row.engine:12} {row.what:18} quality {row.quality:.4f} "
                        f"drop {row.drop:7.2%} {row.size_mb:7.3f} MB {row.latency_ms:8.3f} ms "
                        f"{row.precision} {row.note}",
                        flush=True,
                    )
    if options.json:
        options.json.write_text(json.dumps([asdict(r) for r in rows], indent=1))


if __name__ == "__main__":
    main()
