"""Our .tflite files against those that others make, in LiteRT with XNNPACK and one thread.

    python -m benchmarks.tflite_peers [--json out.json] [--models PART] [--kinds fp32,fp16]
    python -m benchmarks.tflite_peers --from out.json [--document]

First pairs that others made of the same weights: ours, made of their ONNX, must be as near, have no
more operators and transposes, and be no slower. Then onnx2tf, installed in an environment of its
own, on the same ONNX files: models converted, wrong numbers, transposes, time to convert, size of
the install, latency in four precisions. Both keep the layout of the model's inputs.

Latency is CPU time of the calling thread, of files that take turns in one process; the ratio is the
median over turns. Against onnx2tf the columns count, over all models that both get right; single
models in which its file is better are printed too. Exits 1 if a limit is broken; each is printed.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import platform
import sys
import tempfile
from pathlib import Path

import platformdirs

from benchmarks.tflite_peers import document, onnx2tf, ours, pairs
from benchmarks.tflite_peers.compare import Row, compare
from benchmarks.tflite_peers.models import EXPORTERS, MODELS
from benchmarks.tflite_peers.summary import behind, judged, pair_line, row_line, tables

QUANTIZED = (
    *("mobilenet-v2-torchscript", "mobilenet-v3-small-torchscript", "resnet-18-torchscript"),
    *("resnet-50-torchscript", "efficientnet-lite0-torchscript", "yolo-head-torchscript"),
    *("unet-torchscript", "convnext-tiny-torchscript", "vit-tiny-torchscript", "bert-mini-dynamo"),
    *("ppocrv4-det", "ppocrv4-rec", "blazeface-front", "basic-pitch", "wake-embedding"),
    *("crepe-tiny-dynamo", "crepe-tiny-torchscript", "mobilenet-v2-dynamo", "resnet-18-dynamo"),
    *("efficientnet-lite0-dynamo", "resnet-50-dynamo", "mobilenet-v3-small-dynamo"),
    *("yolo-head-dynamo", "unet-dynamo", "vit-tiny-dynamo", "bert-mini-torchscript", "ppocr-cls"),
    *(f"mtcnn-{net}-{exporter}" for net in ("pnet", "rnet", "onet") for exporter in EXPORTERS),
    *(f"wake-{name}" for name in ("alexa", "hey-mycroft", "hey-rhasspy", "timer", "weather")),
    *("wake-melspectrogram", "gru-torchscript", "lstm-torchscript", "audio-torchscript"),
)
"""Models that are compared as integers too: well-known ones, and those that onnx2tf may manage."""


def main() -> int:
    """Measure, print, judge."""
    arguments = _arguments()
    if arguments.source:
        return _told(Path(arguments.source), arguments.document)
    cache = Path(arguments.cache)
    found_pairs: list[pairs.Pair] = []
    rows: list[Row] = []
    sizes: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        if not arguments.no_pairs:
            for pair in pairs.measure(cache, folder, arguments.seconds, arguments.models):
                found_pairs.append(pair)
                print(pair_line(pair), flush=True)
        if not arguments.no_onnx2tf:
            try:
                sizes = _against_onnx2tf(arguments, cache, folder, rows)
            except KeyboardInterrupt:
                print(f"interrupted after {len(rows)} rows, which are told", flush=True)
    text, broken = tables(found_pairs, rows, sizes), judged(found_pairs, rows, sizes)
    print(text)
    print("\n".join(f"behind in {line}" for line in behind(rows)))
    print("\n".join(f"BROKEN {line}" for line in broken) or "every limit holds")
    if arguments.json:
        record = {
            "machine": f"{platform.machine()} {_processor()}",
            "pairs": [dataclasses.asdict(p) for p in found_pairs],
            "rows": [dataclasses.asdict(r) for r in rows],
            "sizes_mb": sizes,
            "broken": broken,
        }
        Path(arguments.json).write_text(json.dumps(record, indent=1), encoding="utf-8")
    return int(bool(broken))


def _told(figures: Path, into_document: bool) -> int:
    """Print, or write into the documentation, what an earlier run has measured."""
    if into_document:
        document.write(figures)
    else:
        print(document.written(figures))
    _, (found_pairs, rows, sizes) = document.read(figures)
    broken = judged(found_pairs, rows, sizes)
    print("\n".join(f"behind in {line}" for line in behind(rows)))
    print("\n".join(f"BROKEN {line}" for line in broken) or "every limit holds")
    return int(bool(broken))


def _against_onnx2tf(
    arguments: argparse.Namespace, cache: Path, folder: Path, rows: list[Row]
) -> dict[str, float]:
    program = onnx2tf.install(Path(arguments.venv or cache / "onnx2tf"), arguments.python)
    kinds = arguments.kinds.split(",")
    for name, model in MODELS.items():
        if arguments.models not in name:
            continue
        for kind in kinds:
            if kind in ("fp32", "fp16") or name in QUANTIZED:
                row = compare(model, kind, program, cache, folder / "ours", arguments.seconds)
                rows.append(row)
                print(row_line(row), flush=True)
    sizes = {"onnx2tf": onnx2tf.size_mb(program)}
    if not arguments.models:
        sizes["edgeinfer"] = onnx2tf.folder_mb(ours.install(cache / "edgeinfer"))
    return sizes


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--json", default="", help="write all figures here")
    parser.add_argument("--from", dest="source", default="", help="figures of an earlier run")
    parser.add_argument("--document", action="store_true", help="write them into docs/tflite.md")
    parser.add_argument("--models", default="", help="only names with this part")
    parser.add_argument("--kinds", default=",".join(onnx2tf.KINDS), help="precisions")
    parser.add_argument("--seconds", type=float, default=3.0, help="of each race")
    parser.add_argument("--cache", default=platformdirs.user_cache_dir("edgeinfer-peers"))
    parser.add_argument("--venv", default="", help="where onnx2tf is or will be installed")
    parser.add_argument("--python", default="", help="a Python 3.12 to install it with")
    parser.add_argument("--no-pairs", action="store_true")
    parser.add_argument("--no-onnx2tf", action="store_true")
    return parser.parse_args()


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    if not info.exists():
        return platform.processor()
    lines = [x for x in info.read_text(encoding="utf-8").splitlines() if x.startswith("model name")]
    return f"{lines[0].split(':')[1].strip()} x{len(lines)}" if lines else ""


if __name__ == "__main__":
    sys.exit(main())
