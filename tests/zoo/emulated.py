"""Every float model of the zoo as code for another CPU, through the gate under emulation.

``python -m tests.zoo.emulated`` converts each for both Raspberry Pis and prints how far its
numbers are from the oracle's; ``--jobs N`` does N at once, ``--results FILE`` keeps a line for each
and goes on where a run was ended. Times mean nothing: they are an emulator's. With ``--target
tvm-sm-90`` they run on an NVIDIA GPU instead, where there is one.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

import edgeinfer
from edgeinfer.errors import EdgeInferError, UnsupportedError
from edgeinfer.types import Array
from tests.conformance import tvm_table
from tests.zoo import fixed

_NO_END = "no end in the time there was"
_DOCUMENT = Path(__file__).parents[2] / "docs" / "tvm-ops.md"
TARGETS = ("tvm-cortex-a72", "tvm-cortex-a76")

HEAVY = (
    *("pose-landmark-heavy.tflite", "ppocrv6-rec.onnx", "resnet-50-script", "basic-pitch.onnx"),
    *("basic-pitch.tflite", "dnsmos-sig-bak-ovr.onnx", "pdnsmos-sig-bak-ovr.onnx"),
    *("dnsmos-v8.onnx", "dnsmos-bak-ovr.onnx", "dnsmos-sig.onnx", "efficientnet-b0-script"),
    *("pose-landmark-full.tflite", "crepe-full-script", "mobilenet-v3-large-script"),
    *("mobilenet-v2-script", "efficientnet-lite0-script", "resnet-18-script", "vit-tiny-script"),
    *("minilm-script", "convnext-tiny-script", "mobilenet-v3-small-script", "ppocrv6-det.onnx"),
    *("pose-landmark-lite.tflite", "face-detection-full-range.tflite", "yolo-head-script"),
    *("face-detection-full-range-sparse.tflite", "ppocrv4-rec.onnx", "gutenye-ppocrv4-rec.onnx"),
    *("ppocrv4-det.onnx", "gutenye-ppocrv4-det.onnx", "hand-landmark-full.tflite"),
    *("hand-landmark-lite.tflite", "blazeface-back.onnx", "face-detection-back.tflite"),
    *("face-landmark.tflite", "plcmos-v2.onnx", "aecmos-1668423760.onnx", "crepe-tiny-script"),
    *("unet-script", "magika.onnx", "iris-landmark.tflite", "wake-embedding.onnx"),
)
"""Longest first; these are run on one vector, the others on all that the gate makes up."""


@dataclass(frozen=True, slots=True)
class Row:
    """How one model went on one CPU.

    Attributes:
        model: its name in the zoo.
        target: what it was converted for.
        outcome: ``right``, ``refused``, ``wrong``, ``missing`` or ``failed``.
        error: the worst relative error; None where nothing ran.
        vectors: it was run on.
        seconds: of all of it.
        why: what was said where it is not right.
    """

    model: str
    target: str
    outcome: str
    error: float | None = None
    vectors: int = 0
    seconds: float = 0.0
    why: str = ""


def judge(name: str, targets: Sequence[str] = TARGETS) -> list[Row]:
    """Convert a model and have the gate run it."""
    start = time.monotonic()

    def rows(outcome: str, why: str) -> list[Row]:
        return [Row(name, t, outcome, seconds=time.monotonic() - start, why=why) for t in targets]

    with tempfile.TemporaryDirectory() as folder:
        try:
            path, shapes = _prepared(name, Path(folder))
        except Exception as error:
            return rows("missing", _line(error))
        data = _first(path, shapes) if name in HEAVY else None
        try:
            found = edgeinfer.export(
                path,
                Path(folder) / "m.edge",
                targets=targets,
                input_shapes=dict(shapes),
                data=data,
            )
        except UnsupportedError as error:
            return rows("refused", _line(error))
        except EdgeInferError as error:
            if len(targets) == 1:
                ran = "no engine here could run it" not in str(error)
                wrong = ran and "VerifyError" in type(error).__name__
                return rows("wrong" if wrong else "failed", _line(error))
            return [row for target in targets for row in judge(name, [target])]
        seconds = time.monotonic() - start
        return [_row(name, t, v, found.report, seconds) for t, v in _by_target(found, targets)]


def _by_target(found: Any, targets: Sequence[str]) -> Iterator[tuple[str, Any]]:
    for result in found.report.variants:
        yield next(t for t in targets if result.id.startswith(t)), result


def _row(name: str, target: str, result: Any, report: Any, seconds: float) -> Row:
    metrics = [o.metrics for e in result.engines for o in e.outputs]
    error = max((float(m.max_rel) for m in metrics), default=None)
    outcome = "right" if result.passed and metrics else "failed"
    return Row(name, target, outcome, error, len(report.vectors), seconds)


def _line(error: BaseException) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())[:400]


def _prepared(name: str, folder: Path) -> tuple[Path, fixed.Shapes]:
    """Return the file, with the inputs that choose a path as constants."""
    path, shapes = fixed.model(name)
    values = fixed.VALUES.get(path.stem, {})
    if not values:
        return path, shapes
    import onnx

    model = onnx.load(path)
    for key, value in values.items():
        given = next(i for i in model.graph.input if i.name == key)
        model.graph.input.remove(given)
        model.graph.initializer.append(onnx.numpy_helper.from_array(np.array(value), key))
    onnx.save(model, folder / path.name)
    return folder / path.name, shapes


def _first(path: Path, shapes: fixed.Shapes) -> list[Mapping[str, Array]]:
    """The first of the vectors that the gate would make up."""
    from edgeinfer.convert import passes, sources
    from edgeinfer.convert.verify.oracles import Oracles
    from edgeinfer.convert.verify.vectors import make_vectors

    source = sources.read(path)
    normal = passes.normalise(source.model, input_shapes=dict(shapes) or None).model
    specs = passes.input_specs(normal)
    oracles = Oracles(source.model, original=source.original)
    return [make_vectors(source.model, specs, oracles=oracles)[0].feeds]


def _all(
    names: Sequence[str],
    jobs: int,
    results: Path,
    limit_s: float,
    targets: Sequence[str] = TARGETS,
    *,
    short_first: bool = False,
) -> list[Row]:
    """Judge models in processes of their own, so many at once; each line is written as it comes."""
    done = {r.model: r for r in _read(results) if r.outcome != "failed"}
    rank = {name: i for i, name in enumerate(HEAVY)}
    left = sorted((n for n in names if n not in done), key=lambda n: rank.get(n, len(HEAVY)))
    if short_first:
        left.reverse()
    until = time.monotonic() + limit_s
    free = list(os.sched_getaffinity(0))

    def one(name: str) -> None:
        remaining = until - time.monotonic()
        if remaining < 10:
            return
        # One CPU for each: an emulator with as many threads as there are CPUs is slow.
        cpu = free.pop()
        command = [sys.executable, "-m", "tests.zoo.emulated", "--one", name, "--cpu", str(cpu)]
        command += [part for target in targets for part in ("--target", target)]
        try:
            ran = subprocess.run(command, capture_output=True, text=True, timeout=remaining)
            lines = ran.stdout.splitlines() or [f"exit code {ran.returncode}: {ran.stderr[-300:]}"]
        except subprocess.TimeoutExpired:
            lines = [_NO_END]
        finally:
            free.append(cpu)
        if not lines[-1].startswith("{"):
            failed = [Row(name, t, "failed", why=lines[-1]) for t in targets]
            lines = [json.dumps(asdict(r)) for r in failed]
        found = [line for line in lines if line.startswith("{")]
        with results.open("a", encoding="utf-8") as file:
            file.write("".join(f"{line}\n" for line in found))
        for line in found:
            _say(_shown(Row(**json.loads(line))))

    with ThreadPoolExecutor(min(jobs, len(free))) as pool:
        list(pool.map(one, left))
    return _read(results)


def _read(results: Path) -> list[Row]:
    if not results.exists():
        return []
    lines = results.read_text(encoding="utf-8").splitlines()
    return [Row(**json.loads(line)) for line in lines]


def _shown(row: Row) -> str:
    error = "-" if row.error is None else f"{row.error:.1e}"
    place = row.target.removeprefix("tvm-")
    return (
        f"{row.model:42} {place:11} {row.outcome:8} {error:>8} {row.vectors:3} "
        f"{row.seconds:6.0f} s  {row.why}"
    )


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def main() -> int:
    """Judge what is requested; 1 if anything is wrong, missing or failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="models; all if none is named")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    parser.add_argument("--cpu", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--jobs", type=int, default=1, help="models at once")
    parser.add_argument("--minutes", type=float, default=600, help="for all of it")
    parser.add_argument("--results", type=Path, default=Path("build/arm-zoo.jsonl"))
    parser.add_argument("--target", action="append", help="instead of both Raspberry Pis")
    parser.add_argument("--table", action="store_true", help="write what is known to the docs")
    parser.add_argument("--short-first", action="store_true", help="where time may not suffice")
    given = parser.parse_args()
    targets = given.target or TARGETS
    if given.table:
        known = [r for r in _read(given.results) if r.target in targets and r.why != _NO_END]
        told = {(r.model, r.target): (r.outcome, r.error, r.vectors) for r in known}
        rows_told = [(*names, *rest) for names, rest in told.items()]
        mark, text = tvm_table.ZOO, tvm_table.zoo(rows_told)
        if given.target:
            mark, text = tvm_table.GPU_ZOO, tvm_table.zoo(rows_told, tvm_table.GPUS)
        _DOCUMENT.write_text(tvm_table.replaced(_DOCUMENT.read_text("utf-8"), mark, text), "utf-8")
        return 0
    if given.one:
        if given.cpu is not None:
            os.sched_setaffinity(0, {given.cpu})
        for row in judge(given.one, targets):
            _say(json.dumps(asdict(row)))
        return 0
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    given.results.parent.mkdir(parents=True, exist_ok=True)
    limit_s = given.minutes * 60
    names, short = given.names or fixed.names(), given.short_first
    rows = _all(names, given.jobs, given.results, limit_s, targets, short_first=short)
    rows = list({(r.model, r.target): r for r in rows}.values())
    counts = {o: sum(r.outcome == o for r in rows) for o in sorted({r.outcome for r in rows})}
    _say(f"{len(rows)} conversions: {counts}")
    expected = {*fixed.REFUSED}
    return int(any(r.outcome != "right" and r.model not in expected for r in rows))


if __name__ == "__main__":
    sys.exit(main())
