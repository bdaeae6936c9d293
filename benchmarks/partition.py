"""Regions of a graph as machine code: what a border costs, and which regions pay in real models.

    python -m benchmarks.partition border
    python -m benchmarks.partition models [NAME...] [--seconds S] [--threads N] [--json FILE]

``border`` replaces one element-wise operator between two products, whose own time is next to
nothing: as an operator inside ONNX Runtime, and by splitting the session in two with the code's
own call between them, over buffers that are bound once. ``models`` converts each model as a user
does, ``-t cpu`` with LiteRT's file next to it, loads the bundle, and tells what selection took, how
far the best library is behind it, and what the report says of each region.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import platformdirs

import edgeinfer
from benchmarks.tflite_peers.models import MODELS
from edgeinfer import profiles
from edgeinfer.backends import registry
from edgeinfer.backends.base import Artifact, Executable, LoadOptions
from edgeinfer.backends.onnxruntime.regions import FORMAT, LIBRARY
from edgeinfer.convert.lower import LowerOptions, target_for
from edgeinfer.convert.lower.regions import cut, library, measure
from edgeinfer.convert.lower.regions.setting import machine_here
from edgeinfer.convert.lower.tvm import tuned
from edgeinfer.convert.lower.tvm.machines import machine
from edgeinfer.convert.passes import normalise
from edgeinfer.errors import EdgeInferError
from edgeinfer.runtime.profiledb import ProfileDB
from tests import zoo

NAMES = (
    *(
        "iris-landmark.tflite",
        "face-landmark.tflite",
        "silero-vad-openvino-16k",
        "silero-vad-16k-op15",
        "wake-melspectrogram",
    ),
    *("wake-embedding", "aecmos-1663829550", "plcmos-v2", "mtcnn-pnet-torchscript"),
    *("mtcnn-rnet-torchscript", "mtcnn-onet-torchscript", "conformer-dynamo", "bert-mini-dynamo"),
    *("yolo-head-dynamo", "lstm-dynamo", "gru-dynamo", "bilstm-dynamo", "bigru-dynamo"),
    *("mobilenet-v3-small-dynamo", "blazeface-front", "magika", "basic-pitch"),
)

_SIZES = (64, 256)


def border() -> int:
    """Time a border of each kind."""
    print(f"{'product':>10} {'plain':>9} {'operator':>9} {'split':>9}   µs of a bound call")
    for size in _SIZES:
        with tempfile.TemporaryDirectory() as folder:
            times = measure.in_turns(_ways(size, Path(folder)))
        found = [1e6 * float(np.median(t.wall)) for t in times]
        print(f"1x{size:<3}x{size:<4} " + " ".join(f"{us:9.2f}" for us in found))
    return 0


def _ways(size: int, folder: Path) -> list[Callable[[], object]]:
    """The plain graph, one with a region, and the three parts one after another."""
    text = f"""<ir_version: 10, opset_import: ["" : 21]>
    g (float[1,{size}] x, float[{size},{size}] w) => (float[1,{size}] y)
    <float[1,{size}] a, float[1,{size}] b> {{ a = MatMul(x, w) b = Erf(a) y = MatMul(b, w) }}"""
    where = machine(machine_here())
    model = ir.from_onnx_text(text)
    first, middle, last = [cut.taken_out(model, [n]) for n in model.graph]
    rng = np.random.default_rng(0)
    values = {n: rng.standard_normal((1, size)).astype(np.float32) for n in "xaby"}
    values["w"] = rng.standard_normal((size, size)).astype(np.float32)

    def bound(executable: Executable) -> Callable[[], object]:
        ins, outs = [
            {s.name: values[s.name] for s in specs}
            for specs in (executable.inputs, executable.outputs)
        ]
        return executable.bind(ins, outs)

    def plain(part: ir.Model, name: str) -> Callable[[], object]:
        path = folder / f"{name}.onnx"
        ir.save(part, path)
        made = registry.get("onnxruntime").load(Artifact("onnx", path, (), ()), LoadOptions())
        return bound(made)

    whole, head, tail = plain(model, "whole"), plain(first, "head"), plain(last, "tail")
    made = library.compile_region(middle, "Region0", where, tuned.for_machine(where, ()))
    cut.put_in(model, [model.graph.node(1)], "Region0", made.weights)
    ir.save(model, folder / "model.onnx")
    library.link([made], where, folder / LIBRARY)
    artifact = Artifact(FORMAT, folder / "model.onnx", (), ())
    inside = bound(registry.get("onnxruntime").load(artifact, LoadOptions()))
    (folder / "code").mkdir()
    profile = profiles.load(f"tvm-{where.name}")
    code = target_for("tvm").lower(
        normalise(middle.clone()).model, profile, LowerOptions(), folder / "code"
    )
    alone = bound(registry.get("tvm").load(Artifact("tvm", code.files[0], (), ()), LoadOptions()))

    def split() -> None:
        head()
        alone()
        tail()

    return [whole, inside, split]


def models(names: list[str], seconds: float, threads: int | None, output: Path | None) -> int:
    """Convert and load each model; one that fails is told and left."""
    rows = []
    for name in names:
        print(f"== {name}", flush=True)
        try:
            row = _row(name, threads, seconds)
        except (EdgeInferError, OSError, ValueError, RuntimeError) as error:
            row = {"model": name, "error": f"{type(error).__name__}: {error}"}
            print(f"   {row['error']}", flush=True)
        rows.append(row)
        if output is not None:
            output.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    better = [r["model"] for r in rows if r.get("times", 0) >= 1.2]
    print(f"code at least 1.2 times as fast as the best library: {', '.join(better) or 'none'}")
    return 0


def _row(name: str, threads: int | None, seconds: float) -> dict[str, Any]:
    cache = Path(platformdirs.user_cache_dir("edgeinfer-benchmarks")) / "partition"
    source = MODELS[name].prepare(cache) if name in MODELS else zoo.fetch(name)
    with tempfile.TemporaryDirectory() as folder:
        made = edgeinfer.export(
            source,
            Path(folder, "m.edge"),
            targets=["cpu", "rpi4"],
            machine_code=["model", "regions"],
            regions_time_s=seconds,
        )
        told = [
            line
            for v in made.report.variants
            for line in v.notes
            if v.id.startswith(f"cpu-{FORMAT}")
        ]
        told += [line for c in made.report.changes for line in c.lines if f"({FORMAT})" in line]
        with ProfileDB(Path(folder, "history.sqlite")) as history:
            session = edgeinfer.load(made.path, threads=threads, history=history, calls="bind")
            report = session.report()
            session.close()
    ms = {
        f"{c.pair.variant} on {c.pair.backend}": c.measured.median_ms
        for c in report.candidates
        if c.measured is not None
    }
    code = {k: v for k, v in ms.items() if FORMAT in k or k.endswith("on tvm")}
    others = {k: v for k, v in ms.items() if k not in code}
    times = min(others.values()) / min(code.values()) if code and others else 0.0
    print(f"   took {report.variant} on {report.backend}; code {times:.2f} times the best library")
    for line in (*(f"{k}: {v * 1e3:.4g} µs" for k, v in ms.items()), *told):
        print(f"   {line}", flush=True)
    return {
        "model": name,
        "threads": report.threads,
        "taken": f"{report.variant} on {report.backend}",
        "ms": ms,
        "times": times,
        "told": told,
        "seconds": dict(made.report.seconds),
    }


def main() -> int:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0] if __doc__ else "")
    what = parser.add_subparsers(dest="what", required=True)
    what.add_parser("border")
    real = what.add_parser("models")
    real.add_argument("names", nargs="*", default=[])
    real.add_argument("--seconds", type=float, default=45.0)
    real.add_argument("--threads", type=int)
    real.add_argument("--json", type=Path)
    given = parser.parse_args()
    if given.what == "border":
        return border()
    return models(given.names or list(NAMES), given.seconds, given.threads, given.json)


if __name__ == "__main__":
    sys.exit(main())
