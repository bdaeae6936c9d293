"""Models of many kinds on every device's artifact: size, error, time, peer, or why it is refused.

    python -m benchmarks.model_table [--only NAME ...] [--again] [--times] [--jobs N]

Each model is converted by the command that a user types, for all ``TARGETS``, ``--jobs`` of them at
once. With ``--times`` ``edgeinfer bench`` then times, one by one, what runs here next to the plain
engine; on a machine that does other things that says nothing. What was measured is kept in
``benchmarks/models.json``, a row for each artifact with the processor that timed it, and is not
measured again unless ``--again``; a time that is missing is measured without the rest.
``docs/models.md`` is written of it. Bundles lie in ``--work``.
``--chat FILE.gguf`` adds a language model.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import re
import subprocess
import sys
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.model_page import Row, page

ROOT = Path(__file__).resolve().parents[1]
KEPT, PAGE = ROOT / "benchmarks" / "models.json", ROOT / "docs" / "models.md"
TARGETS = ("cpu", "rpi5", "ios", "jetson-orin")
_LONGEST, _MOST_TOLD = 1800, 240
"""Seconds that one command may take, and letters of a reason."""


@dataclass(frozen=True, slots=True)
class Model:
    """One model.

    Attributes:
        name: of the table.
        source: ``zoo:FILE``, ``net:NAME`` (a PyTorch net of ``tests.zoo``), ``random:NAME`` (an
            architecture with random weights, ``tests.e2e.architectures``) or a path.
        task: what it is for.
        shapes: sizes of inputs that the file leaves open, as ``--input-shape`` takes them.
    """

    name: str
    source: str
    task: str
    shapes: tuple[str, ...] = ()


_PITCH = "serving_default_input_2:0"
_PICTURE = ("x=1,3,224,224",)

MODELS = (
    Model("EfficientNet-lite0", "net:efficientnet-lite0", "images", ("inputs=1,3,224,224",)),
    Model("MobileNetV2", "net:mobilenet-v2", "images, random", _PICTURE),
    Model(
        "MobileNetV3 large",
        "net:mobilenet-v3-large",
        "images, random",
        ("x=1,3,224,224",),
    ),
    Model("ResNet-18", "net:resnet-18", "images, random", _PICTURE),
    Model("BlazeFace front", "zoo:blazeface-front.onnx", "faces"),
    Model("BlazeFace back", "zoo:blazeface-back.onnx", "faces"),
    Model("MTCNN O-Net", "net:mtcnn-onet", "faces", ("x=1,3,48,48",)),
    Model("Pose landmarks lite", "zoo:pose-landmark-lite.tflite", "pose"),
    Model("Selfie segmentation", "zoo:selfie-segmentation.tflite", "segmentation"),
    Model("PP-OCRv4 finder", "zoo:ppocrv4-det.onnx", "text in images", ("x=1,3,320,320",)),
    Model("PP-OCRv4 reader", "zoo:ppocrv4-rec.onnx", "text in images", ("x=1,3,48,320",)),
    Model("PP-OCR turner", "zoo:ppocr-cls.onnx", "text in images", ("x=1,3,48,192",)),
    Model("Silero VAD", "zoo:silero-vad-openvino-16k.onnx", "speech"),
    Model("Silero VAD, sizes open", "zoo:silero-vad.onnx", "speech"),
    Model("openWakeWord alexa", "zoo:wake-alexa.onnx", "a word"),
    Model("openWakeWord embedding", "zoo:wake-embedding.onnx", "a word", ("input_1=1,76,32,1",)),
    Model("Basic Pitch", "zoo:basic-pitch.onnx", "notes", (f"{_PITCH}=1,43844,1",)),
    Model("DNSMOS P.808", "zoo:dnsmos-v8.onnx", "speech quality", ("input_1=1,900,120",)),
    Model("MiniLM L6", "net:minilm", "texts", ("input_ids=1,32", "attention_mask=1,32")),
    Model("Magika", "zoo:magika.onnx", "files", ("bytes=1,2048",)),
    Model("RT-DETRv2", "random:rt_detr_v2", "objects, random and small"),
    Model("D-FINE", "random:d_fine", "objects, random and small"),
    Model("DINOv3", "random:dino_v3", "images, random, small"),
    Model("Swin v2", "random:swin_v2", "images, random, small"),
    Model("Depth Anything", "random:depth_anything", "depth, random and small"),
    Model("Whisper encoder", "random:whisper_encoder", "speech to text, random and small"),
    Model("Moonshine encoder", "random:moonshine_encoder", "speech to text, random and small"),
    Model("PatchTST", "random:patch_tst", "time series, random and small"),
)


def file_of(model: Model) -> str:
    """Return what ``edgeinfer convert`` is given."""
    kind, _, name = model.source.partition(":")
    if kind == "zoo":
        from tests.zoo import fetch

        return str(fetch(name))
    if kind == "net":
        from tests.zoo.exported import EXPORTERS, exported

        return str(exported(name, EXPORTERS[1]))
    if kind == "random":
        return f"{ROOT / 'tests' / 'e2e' / 'architectures.py'}:{name}"
    return model.source


def converted(model: Model, work: Path, targets: Sequence[str] = TARGETS) -> list[Row]:
    """Convert a model; where one target refuses, each by itself. Nothing where it is not here."""
    bundle = work / f"{_word(model.name)}{'' if len(targets) > 1 else f'-{targets[0]}'}.edge"
    asked = [word for target in targets for word in ("--target", target)]
    shapes = [word for shape in model.shapes for word in ("--input-shape", shape)]
    try:
        given = file_of(model)
    except (OSError, RuntimeError, ValueError, subprocess.SubprocessError) as e:
        sys.stderr.write(f"{model.name}: not fetched: {e}\n")
        return []
    code, told = _command("convert", given, *asked, *shapes, "-o", str(bundle), "--overwrite")
    if code and len(targets) > 1:
        return [row for target in targets for row in converted(model, work, [target])]
    if code:
        return [_refused(model, targets[0], told)]
    return [_row(model, variant, told) for variant in told["variants"]]


def _word(name: str) -> str:
    return re.sub(r"\W+", "-", name.lower()).strip("-")


def _row(model: Model, variant: dict[str, Any], told: dict[str, Any]) -> Row:
    checks = [c for c in told["checks"] if c["variant"] == variant["id"] and not c["skipped"]]
    outputs = [o for c in checks for o in c["outputs"].values()]
    signals = [float(o["sqnr_db"]) for o in outputs if o["sqnr_db"] is not None]
    return Row(
        model=model.name,
        task=model.task,
        target=variant["target"],
        variant=variant["id"],
        format=variant["format"],
        precision=variant["precision"],
        size_bytes=variant["size_bytes"],
        error=max((float(o["max_rel"]) for o in outputs), default=None),
        signal_db=min(filter(math.isfinite, signals), default=None),
        verdict=" and ".join(sorted({c["verdict"] for c in checks})) or "not run",
        checked=", ".join(f"{c['backend']} {c['version']}" for c in checks),
    )


def _refused(model: Model, target: str, told: dict[str, Any] | str) -> Row:
    message = told if isinstance(told, str) else str(told.get("message", told))
    line = " ".join(message.split())
    why = line if len(line) <= _MOST_TOLD else f"{line[: _MOST_TOLD - 3]}..."
    return Row(model.name, model.task, target, verdict="refused", why=why)


def timed(rows: Sequence[Row], work: Path) -> list[Row]:
    """Time the artifacts of one model that are made for this machine, next to the plain engine."""
    bundle = _bundle(rows[0].model, work)
    if bundle is None:
        return list(rows)
    code, told = _command("bench", str(bundle), "--seconds", "6")
    if code:
        sys.stderr.write(f"{rows[0].model}: not timed: {told}\n")
        return list(rows)
    found: dict[str, dict[str, Any]] = {}
    for row in told["rows"]:
        times = found.setdefault(row["variant"], {"machine": told["machine"]["cpu"], "why": ""})
        plain = row["engine"].startswith("plain ")
        times.update(
            dict(zip(("peer_ms", "peer") if plain else ("ms",), _taken(row), strict=False))
        )
    return [
        replace(row, **found.get(row.variant, {})) if row.target == "cpu" else row for row in rows
    ]


def _bundle(model: str, work: Path) -> Path | None:
    """Return where the artifacts of a model are that are made for this machine."""
    names = (f"{_word(model)}.edge", f"{_word(model)}-cpu.edge")
    return next((work / name for name in names if (work / name).exists()), None)


def _taken(row: dict[str, Any]) -> tuple[float, str]:
    return row["median_ms"], row["engine"]


def _command(*words: str) -> tuple[int, Any]:
    """Run a command of edgeinfer; return its code, and what it says as data."""
    paths = [str(ROOT), str(ROOT / "src"), os.environ.get("PYTHONPATH", "")]
    try:
        done = subprocess.run(
            [sys.executable, "-m", "edgeinfer", *words, "--json"],
            capture_output=True,
            text=True,
            check=False,
            timeout=_LONGEST,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))},
            cwd=ROOT,
        )
    except subprocess.TimeoutExpired:
        return 1, f"no end within {_LONGEST} s"
    try:
        return done.returncode, json.loads(done.stdout)
    except ValueError:
        return done.returncode or 70, done.stderr or done.stdout


def kept() -> list[Row]:
    """Return what was measured before."""
    return [Row(**row) for row in json.loads(KEPT.read_text("utf-8"))] if KEPT.exists() else []


def keep(rows: Iterable[Row]) -> None:
    """Write rows in the order of the table."""
    order = [m.name for m in MODELS]
    found = sorted(rows, key=lambda r: order.index(r.model) if r.model in order else len(order))
    lines = ",\n".join(
        json.dumps({k: v for k, v in asdict(r).items() if v not in (None, "")}) for r in found
    )
    KEPT.write_text(f"[\n{lines}\n]\n", "utf-8")


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure what is missing, and write the page."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="*", default=[], metavar="NAME")
    parser.add_argument("--again", action="store_true")
    parser.add_argument("--times", action="store_true")
    parser.add_argument("--chat", metavar="FILE")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--work", type=Path, default=ROOT / "build" / "models")
    given = parser.parse_args(arguments)
    given.work.mkdir(parents=True, exist_ok=True)
    models = [*MODELS, *_chat(given.chat)]
    there = {row.model for row in kept()}
    asked = [model for model in models if model.name in given.only or not given.only]
    wanted = [model for model in asked if given.again or model.name not in there]
    with ThreadPoolExecutor(given.jobs) as pool:
        for found in pool.map(lambda model: converted(model, given.work), wanted):
            _report(found)
    if given.times:
        for model in asked:
            rows = [row for row in kept() if row.model == model.name]
            if rows and (model in wanted or _lack_times(rows)):
                if _bundle(model.name, given.work) is None:
                    converted(model, given.work, ["cpu"])
                _report(timed(rows, given.work))
    PAGE.write_text(page(kept()), "utf-8")
    return 0


def _lack_times(rows: Sequence[Row]) -> bool:
    """Whether an artifact that is made for this machine was not timed; a chat's is in tokens."""
    return any(
        row.ms is None and row.verdict != "refused" and row.target == "cpu" and row.task != "chat"
        for row in rows
    )


def _chat(path: str | None) -> list[Model]:
    return [] if path is None else [Model(Path(path).stem, path, "chat")]


def _report(found: Sequence[Row]) -> None:
    """Keep the rows of one model, and tell how it went; of none what is known stays."""
    if not found:
        return
    keep([row for row in kept() if row.model != found[0].model] + list(found))
    sys.stdout.write(f"{found[0].model}: {', '.join(row.verdict for row in found)}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
