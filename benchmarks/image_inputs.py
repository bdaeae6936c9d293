"""An image of 1920 x 1080 to the tensor of 224 x 224 that a model takes, next to OpenCV and Pillow.

``python -m benchmarks.image_inputs [--rounds N] [--image FILE]`` times what stands before
the engine by default: a bundle is converted for each way, opened as a pipeline, and its
``prepare`` is called with an array. OpenCV and Pillow are followed by NumPy, step by step as the
record says it; next to them, without a limit, OpenCV and the fastest NumPy that was found: by
planes or whole rows, one product and one sum, so that last bits differ. One thread each, rounds in
turns; medians of milliseconds of wall (and processor) time, ratios by rounds of processor time with
their quartiles. Ends with 1 where a ratio is below its limit, where Pillow does the work, or where
the tensor is not the one that the record defines.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import edgeinfer
from benchmarks.pipelines import SIZE, in_turns
from edgeinfer.media.description import parse_description
from edgeinfer.media.image import open_image, prepare
from edgeinfer.types import Array

SIDE = 224
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
LIMITS = {"OpenCV and NumPy": 3.0, "Pillow and NumPy": 5.0}
"""How many times as fast as each."""

BEST = "OpenCV and NumPy at its best"


@dataclass(frozen=True, slots=True)
class Way:
    """One record.

    Attributes:
        title: for people.
        flag: of OpenCV's ``resize``, by name.
        antialias: of the record.
        layout: of the record.
        dtype: of the model's input.
        limits: as ``LIMITS``; empty where figures are only told.
    """

    title: str
    flag: str
    antialias: bool
    layout: str = "NCHW"
    dtype: str = "float32"
    limits: Mapping[str, float] | None = None


WAYS = (
    Way("four pixels, float32 NCHW", "INTER_LINEAR", False, limits=LIMITS),
    Way("four pixels, float32 NHWC", "INTER_LINEAR", False, "NHWC", limits=LIMITS),
    Way("four pixels, int8 NCHW", "INTER_LINEAR", False, dtype="int8"),
    Way("four pixels, raw bytes NHWC", "INTER_LINEAR", False, "NHWC", "uint8"),
    Way("averages, float32 NCHW", "INTER_AREA", True, limits=LIMITS),
    Way("averages, float32 NHWC", "INTER_AREA", True, "NHWC", limits=LIMITS),
)


def bundle(way: Way, folder: Path) -> Path:
    """Convert a model of next to no arithmetic that takes such a tensor."""
    import onnx

    shape = f"1,3,{SIDE},{SIDE}" if way.layout == "NCHW" else f"1,{SIDE},{SIDE},3"
    axes = "2, 3" if way.layout == "NCHW" else "1, 2"
    kind = {"float32": "float"}.get(way.dtype, way.dtype)
    graph = onnx.parser.parse_model(
        f'<ir_version: 8, opset_import: ["" : 17]> g ({kind}[{shape}] x) => (float[1,3] y) '
        f"{{ f = Cast<to = 1>(x) y = ReduceMean<axes = [{axes}], keepdims = 0>(f) }}"
    )
    onnx.save(graph, folder / "model.onnx")
    about = folder / "model.toml"
    about.write_text(
        f'[inputs.x]\nkind = "image"\nwidth = {SIDE}\nheight = {SIDE}\n'
        f'antialias = {str(way.antialias).lower()}\nlayout = "{way.layout}"\n'
        + _arithmetic(way)
        + '[output]\nkind = "embed"\n'
    )
    path = folder / "model.edge"
    edgeinfer.export(
        folder / "model.onnx", path, targets=["cpu"], description=parse_description(about)
    )
    return path


def _arithmetic(way: Way) -> str:
    if way.dtype == "float32":
        return f"mean = {list(MEAN)}\nstd = {list(STD)}\n"
    return f"scale = 1.0\nmean = [{128 if way.dtype == 'int8' else 0}]\n"


def _finish(small: Array, way: Way) -> Array:
    """What follows in NumPy."""
    if way.dtype == "float32":
        values = small.astype(np.float32)
        values *= np.float32(1 / 255)
        values -= np.array(MEAN, np.float32)
        values /= np.array(STD, np.float32)
    else:
        values = small if way.dtype == "uint8" else (small - np.uint8(128)).view(np.int8)
    laid = values.transpose(2, 0, 1) if way.layout == "NCHW" else values
    return np.ascontiguousarray(laid[np.newaxis])


def _finish_fast(small: Array, factors: tuple[Array, Array], way: Way) -> Array:
    """What follows in NumPy at its best: never three elements at a time."""
    laid = small.transpose(2, 0, 1) if way.layout == "NCHW" else small.reshape(SIDE, SIDE * 3)
    values = np.empty(laid.shape, np.float32)
    np.multiply(laid, factors[0], out=values)
    values += factors[1]
    return values.reshape((1, 3, SIDE, SIDE) if way.layout == "NCHW" else (1, SIDE, SIDE, 3))


def _factors(way: Way) -> tuple[Array, Array]:
    factor = (1 / 255 / np.array(STD)).astype(np.float32)
    offset = (-np.array(MEAN) / np.array(STD)).astype(np.float32)
    if way.layout == "NCHW":
        return factor[:, np.newaxis, np.newaxis], offset[:, np.newaxis, np.newaxis]
    return np.tile(factor, SIDE), np.tile(offset, SIDE)


def _others(source: Array, way: Way) -> dict[str, Callable[[], object]]:
    import cv2
    from PIL import Image

    cv2.setNumThreads(1)
    flag, image = getattr(cv2, way.flag), Image.fromarray(source)
    size = (SIDE, SIDE)

    def resized() -> Array:
        return np.asarray(cv2.resize(source, size, interpolation=flag))

    def averaged() -> Array:
        return np.asarray(image.resize(size, Image.Resampling.BILINEAR))

    found: dict[str, Callable[[], object]] = {
        "OpenCV and NumPy": lambda: _finish(resized(), way),
        "Pillow and NumPy": lambda: _finish(averaged(), way),
    }
    if way.dtype == "float32":
        factors = _factors(way)
        found[BEST] = lambda: _finish_fast(resized(), factors, way)
    return found


def compare(way: Way, source: Array, rounds: int) -> bool:
    """Time one way; tells figures, and returns whether all limits hold."""
    with tempfile.TemporaryDirectory() as folder:
        path = bundle(way, Path(folder))
        with edgeinfer.pipeline(path, threads=1) as opened:
            about = opened.prepare.about  # type: ignore[union-attr]
            found, _ = opened.prepare(source)  # type: ignore[union-attr]
            record: Any = opened.models[0].record
            expected, _ = prepare(open_image(source, record.color), record, way.dtype)
            if found.tobytes() != expected.tobytes():
                print(f"{way.title}: not the tensor that the record defines")
                return False
            calls = {"edgeinfer": lambda: opened.prepare(source)}  # type: ignore[union-attr]
            times = in_turns({**calls, **_others(source, way)}, rounds)
    cells = (
        f"{name} {statistics.median(w for w, _ in some):.3f} "
        f"({statistics.median(c for _, c in some):.3f})"
        for name, some in times.items()
    )
    print(f"{way.title} ({about}): {', '.join(cells)}")
    holds = "compiled code" in about
    for name in (n for n in times if n != "edgeinfer"):
        pairs = zip(times["edgeinfer"], times[name], strict=True)
        ratios = sorted(other[1] / ours[1] for ours, other in pairs)
        low, high = ratios[len(ratios) // 4], ratios[-1 - len(ratios) // 4]
        middle, limit = statistics.median(ratios), (way.limits or {}).get(name)
        said = (
            "" if limit is None else f", limit {limit:g}: {'holds' if middle >= limit else 'NOT'}"
        )
        print(f"  {middle:.2f} times as fast as {name} ({low:.2f} to {high:.2f}){said}")
        holds &= limit is None or middle >= limit
    return holds


def main() -> None:
    """Compare all ways."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--image", type=Path, help="instead of noise")
    asked = parser.parse_args()
    source = np.random.default_rng(0).integers(0, 256, (SIZE[1], SIZE[0], 3), dtype=np.uint8)
    if asked.image:
        source = np.asarray(open_image(asked.image, "RGB"))
    held = [compare(way, source, asked.rounds) for way in WAYS]
    if not all(held):
        sys.exit(1)


if __name__ == "__main__":
    main()
