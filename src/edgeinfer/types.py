"""Value types that every layer shares."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
Feeds = Mapping[str, Array]

Dim = int | str | None
"""A static size, the name of a symbolic size, or None where nothing is known."""


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """Name, element type and shape of a model's input or output.

    Attributes:
        name: exactly as in the source model.
        dtype: NumPy's name (``float32``, ``int64``, ``bool``), ``bfloat16`` or ``string``.
        shape: one entry per axis; equal names mean equal sizes in one run. None: rank unknown.
        layout: axis letters when known, e.g. ``NCHW``.
    """

    name: str
    dtype: str
    shape: tuple[Dim, ...] | None
    layout: str | None = None

    @property
    def is_static(self) -> bool:
        """Whether every axis has a fixed size."""
        return self.shape is not None and all(isinstance(d, int) for d in self.shape)

    def __str__(self) -> str:
        if self.shape is None:
            return f"{self.name}: {self.dtype}[...]"
        dims = ", ".join("?" if d is None else str(d) for d in self.shape)
        return f"{self.name}: {self.dtype}[{dims}]"


@dataclass(frozen=True, slots=True)
class ImageInput:
    """How a picture becomes the tensor the model takes: ``(pixel * scale - mean) / std``.

    Attributes:
        width: pixels; None keeps the picture's own size (dynamic models).
        height: pixels; None likewise.
        resize: ``stretch``, ``crop`` (short side to size, then centre crop) or ``letterbox``.
        crop_ratio: share of the resized short side that the centre crop keeps; 1.0 keeps all.
        interpolation: ``nearest``, ``bilinear`` or ``bicubic``; Pillow's, with antialiasing.
        color: ``RGB``, ``BGR`` or ``GRAY``.
        layout: ``NCHW`` or ``NHWC``.
        scale: factor on pixel values 0..255.
        mean: subtracted after scaling; one value for each channel, or one for all.
        std: divisor, likewise.
        pad: pixel value around a letterboxed picture.
    """

    width: int | None
    height: int | None
    resize: Literal["stretch", "crop", "letterbox"] = "stretch"
    crop_ratio: float = 1.0
    interpolation: Literal["nearest", "bilinear", "bicubic"] = "bilinear"
    color: Literal["RGB", "BGR", "GRAY"] = "RGB"
    layout: Literal["NCHW", "NHWC"] = "NCHW"
    scale: float = 1.0 / 255.0
    mean: tuple[float, ...] = (0.0,)
    std: tuple[float, ...] = (1.0,)
    pad: int = 114
    kind: Literal["image"] = "image"


@dataclass(frozen=True, slots=True)
class AudioInput:
    """How a recording becomes the tensor the model takes: mono, -1..1.

    Attributes:
        sample_rate: Hz.
        samples: frames in one call; None takes the whole recording.
    """

    sample_rate: int
    samples: int | None = None
    kind: Literal["audio"] = "audio"


@dataclass(frozen=True, slots=True)
class TokenInput:
    """Integer ids below ``vocab_size``."""

    vocab_size: int
    kind: Literal["tokens"] = "tokens"


Preprocessing = ImageInput | AudioInput | TokenInput
"""What the bundle records about one input; an input without a record is a plain tensor."""


def nbytes(arrays: Mapping[str, Array]) -> int:
    """Total size in bytes."""
    return sum(np.asarray(a).nbytes for a in arrays.values())
