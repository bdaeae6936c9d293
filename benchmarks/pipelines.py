"""Pipelines with the code that their bundles bring, and without it, in turns.

``python -m benchmarks.pipelines [BUNDLE...] [--image FILE] [--rounds N] [--threads N]``. Without
a bundle MobileNetV2 and BlazeFace are converted; without an image one of 1920 x 1080 is made.
Each pipeline is opened twice, once with ``EDGEINFER_PIPELINE_CODE=off`` (Pillow and NumPy), and
both get the same images: as an array, as a camera gives it, and as a JPEG file. What they find
has to be the same. Medians of milliseconds of wall (and processor) time; ratios by rounds, with
their quartiles. ``--boxes`` times grouping alone, on raw scores of 8400 boxes and 80 classes.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import edgeinfer
from edgeinfer.decode.boxes import BY_NUMPY, detect
from edgeinfer.heads import DetectGrid
from edgeinfer.media.description import parse_description
from edgeinfer.media.geometry import ImagePlacement
from edgeinfer.runtime.pipelines.code import SWITCH
from edgeinfer.types import Array

Call = Callable[[], object]
SIZE = (1920, 1080)

CLASSIFY = """
[inputs.x]
kind = "image"
width = 224
height = 224
resize = "crop"
crop_ratio = 0.875
mean = [0.485, 0.456, 0.406]
std = [0.229, 0.224, 0.225]

[output]
kind = "classify"
activation = "softmax"
"""


def bundles(folder: Path) -> list[Path]:
    """Convert a classifier and a detector for this machine."""
    from tests import zoo
    from tests.zoo.exported import exported

    about = folder / "classify.toml"
    about.write_text(CLASSIFY)
    examples = Path(__file__).parents[1] / "examples" / "pipelines"
    wanted = {
        "mobilenet-v2": (exported("mobilenet-v2", "dynamo"), about),
        "blazeface-front": (zoo.fetch("blazeface-front.onnx"), examples / "blazeface-front.toml"),
    }
    made = []
    for name, (model, said) in wanted.items():
        path = folder / f"{name}.edge"
        described = parse_description(said)
        code = ("functions",)
        edgeinfer.export(model, path, description=described, machine_code=code)
        made.append(path)
    return made


def photo(folder: Path) -> tuple[Array, Path]:
    """An image with soft edges, as an array and as a file."""
    from PIL import Image

    rng = np.random.default_rng(0)
    small = Image.fromarray(rng.integers(0, 256, (27, 48, 3), dtype=np.uint8))
    image = small.resize(SIZE, Image.Resampling.BICUBIC)
    image.save(folder / "photo.jpg", quality=90)
    return np.asarray(image), folder / "photo.jpg"


def in_turns(calls: Mapping[str, Call], rounds: int) -> dict[str, list[tuple[float, float]]]:
    """Time calls in turns, in changing order; milliseconds of wall and processor time."""
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in calls}
    for call in calls.values():
        call()
    for number in range(rounds):
        names = list(calls) if number % 2 else list(calls)[::-1]
        for name in names:
            best = (9e9, 9e9)
            for _ in range(3):
                wall, cpu = time.perf_counter(), time.process_time()
                calls[name]()
                took = time.perf_counter() - wall, time.process_time() - cpu
                best = min(best, took)
            found[name].append((best[0] * 1e3, best[1] * 1e3))
    return found


def tell(title: str, found: Mapping[str, Sequence[tuple[float, float]]]) -> None:
    """Print medians, and the ratio of the first to the second by wall and by processor time.

    On a busy machine only the latter says something: what takes long is interrupted more often.
    """
    before, after = found.values()
    cells = ", ".join(
        f"{name} {statistics.median(w for w, _ in times):.3f} "
        f"({statistics.median(c for _, c in times):.3f})"
        for name, times in found.items()
    )
    said = []
    for which in range(2):
        ratios = sorted(b[which] / a[which] for b, a in zip(before, after, strict=True))
        low, high = ratios[len(ratios) // 4], ratios[-1 - len(ratios) // 4]
        said.append(f"{statistics.median(ratios):.2f} times ({low:.2f} to {high:.2f})")
    print(f"{title}: {cells}; {said[0]}; by processor time {said[1]}", flush=True)


def pipeline(path: Path, given: Mapping[str, Any], rounds: int, threads: int) -> None:
    """Time one bundle's pipeline, and what stands before the engine."""
    os.environ[SWITCH] = "off"
    plain = edgeinfer.pipeline(path, threads=threads)
    del os.environ[SWITCH]
    with plain, edgeinfer.pipeline(path, threads=threads) as code:
        report = code.models[0].session.report()
        print(f"{path.name}: {report.variant} on {report.backend}, {threads} threads")
        for line in (*plain.models[0].around, *code.models[0].around):
            print(f"  {line}")
        for name, picture in given.items():
            if repr(plain(picture)) != repr(code(picture)):
                raise SystemExit(f"{path.name}: other results with code than without")
            both = {"without": lambda p=picture: plain(p), "with": lambda p=picture: code(p)}
            tell(f"  {name}, end to end", in_turns(both, rounds))
            if hasattr(plain, "prepare") and hasattr(code, "prepare"):
                alone = {
                    "without": lambda p=picture: plain.prepare(p),
                    "with": lambda p=picture: code.prepare(p),
                }
                tell(f"  {name}, before the engine", in_turns(alone, rounds))


def boxes(path: Path, rounds: int) -> None:
    """Time what stands behind a detector of the YOLO family."""
    with edgeinfer.pipeline(path, threads=1) as opened:
        by = opened.grouping  # type: ignore[union-attr]
    rng = np.random.default_rng(0)
    place = ImagePlacement((1.0, 1.0), (0.0, 0.0), (640, 640), (640, 640))
    for first in (True, False):
        for objects in (5, 100):
            raw = rng.normal(-8, 1, (8400, 84)).astype(np.float32)
            raw[:, :2], raw[:, 2:4] = rng.uniform(0, 640, (8400, 2)), rng.uniform(20, 90, (8400, 2))
            for start in rng.integers(0, 8390, objects):
                raw[start : start + 8] = raw[start] + rng.normal(0, 1, (8, 84))
                raw[start : start + 8, 4 + start % 80] = rng.uniform(0, 4, 8)
            output = {"o": np.ascontiguousarray(raw.T)[None] if first else raw[None]}
            head = DetectGrid(channels_first=first, activation="sigmoid")
            if repr(detect(output, head, place, ())) != repr(detect(output, head, place, (), by)):
                raise SystemExit("other boxes with code than without")
            both = {
                "NumPy": lambda o=output, h=head: detect(o, h, place, (), BY_NUMPY),
                "code": lambda o=output, h=head: detect(o, h, place, (), by),
            }
            shape = list(output["o"].shape)
            found = len(detect(output, head, place, ()))
            tell(f"boxes {shape}, {found} objects", in_turns(both, rounds))


def main() -> None:
    """Run what was requested."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("bundles", nargs="*", type=Path)
    parser.add_argument("--image", type=Path)
    parser.add_argument("--rounds", type=int, default=21)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--boxes", action="store_true")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        paths = asked.bundles or bundles(folder)
        array, file = photo(folder)
        if asked.image:
            from PIL import Image

            file = asked.image
            array = np.asarray(Image.open(file).convert("RGB"))
        given = {f"{array.shape[1]}x{array.shape[0]} array": array, "JPEG file": file}
        for path in paths:
            pipeline(path, given, asked.rounds, asked.threads)
        if asked.boxes:
            boxes(paths[-1], asked.rounds)


if __name__ == "__main__":
    main()
