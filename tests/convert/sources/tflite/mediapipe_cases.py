"""Cases of MediaPipe's operators, and what MediaPipe itself computes for them.

python -m tests.convert.sources.tflite.mediapipe_cases PYTHON

writes ``mediapipe.npz`` anew with a Python that has mediapipe 0.10.14: small cases of each
operator, and MediaPipe's nets that are made of them, on images.
"""

from __future__ import annotations

import itertools
import math
import struct
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tests.convert.sources.tflite.custom_file import Shape, Step, flexbuffer, write_steps
from tests.convert.sources.tflite.reading import Array

GOLDEN = Path(__file__).with_name("mediapipe.npz")
RUNNER = Path(__file__).with_name("run_mediapipe.py")

SAME, VALID = 1, 2
"""As the operators' structs count them."""


@dataclass(frozen=True)
class Case:
    """One operator with its options and data."""

    id: str
    name: str
    raw: bytes
    inputs: Mapping[str, Array]
    outputs: tuple[Shape, ...]
    version: int = 1
    constants: tuple[Array, ...] = ()

    def __str__(self) -> str:
        return self.id

    def write(self, path: Path, **more: Any) -> Path:
        """Write its file."""
        constants = {f"c{i}": a for i, a in enumerate(self.constants)}
        results = {f"y{i}": shape for i, shape in enumerate(self.outputs)}
        operands = [*self.inputs, *constants]
        step = Step(self.name, operands, results, self.raw, self.version)
        return write_steps(path, self.inputs, [step], constants=constants, **more)


def cases() -> list[Case]:
    """Every case, with equal data each time."""
    return [*_deconvolutions(), *_pools(), *_landmarks(), *_pictures()]


def _random(seed: int, *shape: int) -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def _deconvolutions() -> Iterator[Case]:
    sizes = [(4, 5), (5, 4), (1, 3)]
    kernels = [(2, 2), (3, 3), (1, 4), (5, 2)]
    strides = [(1, 1), (2, 2), (3, 2), (2, 3)]
    for seed, (padding, kernel, step) in enumerate(
        itertools.product((SAME, VALID), kernels, strides)
    ):
        height, width = sizes[seed % 3]
        outs = [
            s * (n - 1) + k - (max(0, k - (n - 1) % s - 1) if padding == SAME else 0)
            for n, k, s in zip((height, width), kernel, step, strict=True)
        ]
        yield Case(
            f"deconvolution-{padding}-{kernel}-{step}-{height}x{width}",
            "Convolution2DTransposeBias",
            struct.pack("<3i", padding, step[1], step[0]),
            {"x": _random(seed, 2, height, width, 3)},
            ((2, *outs, 4),),
            constants=(_random(seed + 100, 4, *kernel, 3), _random(seed + 200, 4)),
        )


def _pool(padding: int, kernel: Shape, strides: Shape, activation: int = 0) -> bytes:
    # What follows the six fields is computed; files hold zeros there.
    numbers = (padding, strides[1], strides[0], kernel[1], kernel[0], activation)
    return struct.pack("<6i4i", *numbers, 0, 0, 0, 0)


def _pools() -> Iterator[Case]:
    chosen = [
        (SAME, (2, 2), (2, 2), (6, 4), 0),
        (SAME, (2, 2), (2, 2), (5, 7), 0),
        (SAME, (3, 3), (2, 2), (5, 6), 3),
        (SAME, (3, 2), (1, 1), (4, 4), 2),
        (VALID, (2, 3), (1, 2), (5, 8), 1),
        (VALID, (1, 1), (3, 3), (7, 7), 0),
    ]
    for seed, (padding, kernel, strides, size, activation) in enumerate(chosen):
        counts = [
            -(-n // s) if padding == SAME else (n - k) // s + 1
            for n, k, s in zip(size, kernel, strides, strict=True)
        ]
        # Few values, so that the first of equal ones is requested.
        data = np.round(_random(seed, 2, *size, 3) * 2)
        yield Case(
            f"pool-{padding}-{kernel}-{strides}-{size}-{activation}",
            "MaxPoolingWithArgmax2D",
            _pool(padding, kernel, strides, activation),
            {"x": data},
            ((2, *counts, 3),) * 2,
        )
    for kernel in ((2, 2), (3, 2), (1, 3)):
        places = np.random.default_rng(7).integers(0, math.prod(kernel), (2, 3, 4, 5))
        yield Case(
            f"unpool-{kernel}",
            "MaxUnpooling2D",
            _pool(SAME, kernel, kernel),
            {"x": _random(1, 2, 3, 4, 5), "places": places.astype(np.float32) + np.float32(0.1)},
            ((2, 3 * kernel[0], 4 * kernel[1], 5),),
        )


def _landmarks() -> Iterator[Case]:
    points = np.abs(_random(3, 1, 20, 3)) * 60
    apart = {"": points, "-one-place": np.repeat(points[:, :1], 20, axis=1)}
    fields = {"output_height": 8, "output_width": 16, "scale_x": 1.5, "scale_y": 1.25}
    for (end, data), angle, (left, right) in itertools.product(
        apart.items(), (0.0, 0.7), ((2, 9), (9, 2), (5, 6))
    ):
        turned = {"left_rotation_idx": left, "right_rotation_idx": right}
        subset = {"subset_idxs": [0, 4, 7, 11, 19], "target_rotation_radians": angle}
        yield Case(
            f"placing-{left}-{right}-{angle}{end}",
            "Landmarks2TransformMatrix",
            flexbuffer({**fields, **turned, **subset}),
            {"x": data},
            ((1, 4, 4),),
            version=2,
        )
    for dimensions in (2, 3):
        yield Case(
            f"moved-landmarks-{dimensions}",
            "TransformLandmarks",
            b"",
            {"x": _random(4, 1, 7, dimensions), "matrix": _random(5, 1, 4, 4)},
            ((1, 7, dimensions),),
            version=2,
        )


def _pictures() -> Iterator[Case]:
    for angle, scale, shift in ((0.0, 1.0, 0.0), (0.4, 0.7, 2.0), (-1.9, 1.3, 6.0)):
        c, s = math.cos(angle) * scale, math.sin(angle) * scale
        rows = [[c, -s, 0, shift], [s, c, 0, shift - 1], [0, 0, 1, 0], [0, 0, 0, 1]]
        yield Case(
            f"moved-picture-{angle}-{scale}",
            "TransformTensorBilinear",
            flexbuffer({"output_height": 5, "output_width": 7}),
            {"x": _random(6, 1, 9, 8, 3), "matrix": np.array([rows], np.float32)},
            ((1, 5, 7, 3),),
            version=2,
        )


NETS = {
    "selfie-segmentation.tflite": (256, 256),
    "selfie-landscape.tflite": (144, 256),
    "face-landmark-attention.tflite": (192, 192),
}
"""Files of the zoo with such operators, and how high and wide their images are."""

PICTURES = {"astronaut.png": (0, 150), "chelsea.png": (40, 120)}
"""Of the zoo; where a part without resizing is cut out, so that it is the same everywhere."""


def picture(name: str, size: Shape) -> Array:
    """A part of an image, from 0 to 1."""
    from PIL import Image

    from tests.zoo import fetch

    (top, left), (height, width) = PICTURES[name], size
    with Image.open(fetch(name)) as photo:
        pixels = np.asarray(photo.convert("RGB"))
    part = pixels[top : top + height, left : left + width]
    return part[None].astype(np.float32) / np.float32(255)


def thinned(values: Array) -> Array:
    """At most a few thousand elements of an output."""
    return values.ravel()[:: -(-values.size // 3000)]


def golden() -> dict[str, list[Array]]:
    """What MediaPipe computed, by case."""
    with np.load(GOLDEN) as stored:
        found: dict[str, list[Array]] = {}
        for key in sorted(stored.files):
            found.setdefault(key.rpartition("/")[0], []).append(stored[key])
    return found


def _run(python: str, path: Path, inputs: list[Array], outputs: int) -> list[Array]:
    with tempfile.TemporaryDirectory() as folder:
        feeds, results = Path(folder) / "x.npz", Path(folder) / "y.npz"
        np.savez(feeds, *inputs)
        command = [python, str(RUNNER), str(path), str(feeds), str(results), str(outputs)]
        subprocess.run(command, check=True)
        with np.load(results) as read:
            return [read[f"arr_{i}"] for i in range(outputs)]


def _write_golden(python: str) -> None:
    from edgeinfer.convert.sources.tflite.file import load
    from tests.zoo import fetch

    made: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        for case in cases():
            path = case.write(Path(folder) / "m.tflite")
            found = _run(python, path, list(case.inputs.values()), len(case.outputs))
            for i, (value, shape) in enumerate(zip(found, case.outputs, strict=True)):
                made[f"{case.id}/{i}"] = value.reshape(shape)
    for (net, size), name in itertools.product(NETS.items(), PICTURES):
        outputs = len(load(fetch(net)).graphs[0].outputs)
        found = _run(python, fetch(net), [picture(name, size)], outputs)
        made |= {f"{net} {name}/{i}": thinned(value) for i, value in enumerate(found)}
    np.savez_compressed(GOLDEN, **made)


if __name__ == "__main__":
    _write_golden(sys.argv[1])
