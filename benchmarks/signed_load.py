"""How much longer a signed bundle takes to load than the same one unsigned.

    python -m benchmarks.signed_load [--mb 100] [--rounds 15]

A bundle whose ONNX artifact has weights of that size is written twice, one is signed, and both are
loaded in turns with ONNX Runtime. ``first`` finds nothing in the cache, ``again`` finds what the
time before left there. Least seconds and processor seconds of all rounds, and their ratios.
"""

from __future__ import annotations

import argparse
import os
import shutil
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from onnx import TensorProto, helper, numpy_helper

import edgeinfer
from edgeinfer.bundle.archive import Bundle
from edgeinfer.bundle.manifest import EngineRequirement, Manifest, SourceRecord, Variant
from edgeinfer.bundle.signer import new_keys, sign
from edgeinfer.bundle.writer import BundleWriter, put_signatures
from edgeinfer.types import TensorSpec

WIDTH = 1024


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mb", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=15)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="edgeinfer-signed-") as name:
        folder = Path(name)
        os.environ["EDGEINFER_CACHE"] = str(folder / "cache")
        new_keys(folder / "key", folder / "public")
        print(f"{'form':8}{'cache':8}{'unsigned':>12}{'signed':>12}{'ratio':>8}{'cpu ratio':>12}")
        for form in ("zip", "folder"):
            pair = _pair(folder, form, asked.mb)
            for state in ("first", "again"):
                _told(form, state, folder, pair, asked.rounds)


def _pair(folder: Path, form: str, mb: int) -> tuple[Path, Path]:
    """Write a bundle twice and sign the second one."""
    # A name that ends so is a folder's.
    output = f"{folder}/plain{os.sep}" if form == "folder" else f"{folder}/plain.edge"
    with BundleWriter(output) as writer:
        file = writer.add_bytes("variants/v/model.onnx", _model(mb))
        variant = Variant("v", "cpu", "onnx", "fp32", (file,), (EngineRequirement("onnxruntime"),))
        source = SourceRecord("onnx", "m.onnx", "0" * 64)
        ends = TensorSpec("x", "float32", (1, WIDTH)), TensorSpec("y", "float32", (1, WIDTH))
        manifest = Manifest("m", ends[:1], ends[1:], (variant,), (), source)
        plain = writer.finish(manifest)
    signed = plain.with_name(plain.name.replace("plain", "signed"))
    (shutil.copytree if form == "folder" else shutil.copy)(plain, signed)
    with Bundle.open(signed) as opened:
        content, _ = sign(opened.manifest_bytes(), folder / "key")
    put_signatures(signed, content)
    return plain, signed


def _model(mb: int) -> bytes:
    """Return matrices that are multiplied one after the other."""
    layers = mb * (1 << 20) // (4 * WIDTH * WIDTH)
    weights = np.random.default_rng(0).standard_normal((layers, WIDTH, WIDTH), np.float32)
    names = ["x", *(f"h{i}" for i in range(layers - 1)), "y"]
    nodes = [helper.make_node("MatMul", [names[i], f"w{i}"], [names[i + 1]]) for i in range(layers)]
    ends = [helper.make_tensor_value_info(n, TensorProto.FLOAT, (1, WIDTH)) for n in ("x", "y")]
    held = [numpy_helper.from_array(w, f"w{i}") for i, w in enumerate(weights)]
    graph = helper.make_graph(nodes, "g", ends[:1], ends[1:], held)
    opsets = [helper.make_opsetid("", 17)]
    return bytes(helper.make_model(graph, opset_imports=opsets, ir_version=8).SerializeToString())


def _told(form: str, state: str, folder: Path, pair: tuple[Path, Path], rounds: int) -> None:
    trusted: dict[str, Any] = {"trusted": [folder / "public"]}
    took: dict[str, list[tuple[float, float]]] = {"unsigned": [], "signed": []}
    for number in range(rounds + 1):
        for name, path in zip(took, pair, strict=True):
            if state == "first":
                shutil.rmtree(folder / "cache", ignore_errors=True)
            options = trusted if name == "signed" else {}
            spent = _spent(path, options)
            if number:
                took[name].append(spent)
    wall = {name: min(w for w, _ in each) for name, each in took.items()}
    cpu = {name: min(c for _, c in each) for name, each in took.items()}
    print(
        f"{form:8}{state:8}{wall['unsigned']:10.4f} s{wall['signed']:10.4f} s"
        f"{wall['signed'] / wall['unsigned']:8.3f}{cpu['signed'] / cpu['unsigned']:12.3f}",
        flush=True,
    )


def _spent(path: Path, options: dict[str, Any]) -> tuple[float, float]:
    """Load once; return seconds and processor seconds."""
    wall, cpu = time.perf_counter(), time.process_time()
    with edgeinfer.load(path, backend="onnxruntime", measure=False, **options):
        pass
    return time.perf_counter() - wall, time.process_time() - cpu


if __name__ == "__main__":
    main()
