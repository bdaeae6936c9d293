"""Images to tensors: by compiled code where the bundle has some for this machine, else by Pillow.

Both give the same bytes. The windows and weights by which the code resizes are asked of Pillow
itself, and before the code is used it has to give what Pillow gives on a few images.
"""

from __future__ import annotations

import threading
from typing import Any, Protocol

import numpy as np

from edgeinfer.backends.tvm.plain_functions import Functions
from edgeinfer.errors import EdgeInferError
from edgeinfer.media.geometry import ImagePlacement, Laid, Steps, steps
from edgeinfer.media.image import AnyImage, open_image, prepare
from edgeinfer.media.kept import by_bytes
from edgeinfer.media.pixels import pixels_of
from edgeinfer.media.windows import Neighbours, TooManyError
from edgeinfer.records import dataclass
from edgeinfer.runtime.pipelines.blending import Blending
from edgeinfer.runtime.pipelines.canvas import Canvas, UnfitError, level_of
from edgeinfer.runtime.pipelines.resizing import READABLE, Resizing, resizing, windows_across
from edgeinfer.types import Array, ImageInput

_MOST_BYTES = 1 << 31
_TRIED = ((97, 61), (300, 200), (24, 40))
"""Sizes of the images on which the code has to give what Pillow gives."""


class Preparation(Protocol):
    """What turns images into tensors.

    Attributes:
        about: how, for people.
    """

    about: str

    def __call__(self, picture: AnyImage) -> tuple[Array, ImagePlacement]:
        """Prepare an image.

        Returns:
            The tensor, and where the image lies in it, as ``media.image.prepare`` gives them.
        """
        ...


class ByPillow:
    """Pillow and NumPy.

    Args:
        record: Record of the input.
        dtype: Element type of the input.
        reason: why.
    """

    def __init__(self, record: ImageInput, dtype: str, reason: str) -> None:
        self.about = f"images by Pillow: {reason}"
        self._record, self._dtype = record, dtype

    def __call__(self, picture: AnyImage) -> tuple[Array, ImagePlacement]:
        """Prepare an image."""
        return prepare(open_image(picture, self._record.color), self._record, self._dtype)


def preparation(
    functions: Functions | None, without: str, record: ImageInput, dtype: str
) -> Preparation:
    """Choose how images are prepared for one input.

    Args:
        functions: Functions of the bundle for this CPU; None if it has none that can be used.
        without: why.
        record: Record of the input.
        dtype: Element type of the input.
    """
    if functions is None:
        return ByPillow(record, dtype, without)
    try:
        made = ImagesByCode(functions, record, dtype)
        made.check()
    except UnfitError as e:
        return ByPillow(record, dtype, str(e))
    except EdgeInferError as e:
        return ByPillow(record, dtype, f"the bundle's code cannot be used: {e}")
    return made


class ImagesByCode:
    """Compiled code; Pillow reads the files.

    Args:
        functions: Functions of the library.
        record: Record of the input.
        dtype: Element type of the input.
    """

    def __init__(self, functions: Functions, record: ImageInput, dtype: str) -> None:
        self.about = f"images by compiled code for {functions.machine}"
        self._functions = functions
        self._record, self._dtype = record, np.dtype(dtype)
        self._pairs = functions.has("across_pairs_3")
        self._memory = threading.local()

    def __call__(self, picture: AnyImage) -> tuple[Array, ImagePlacement]:
        """Prepare an image."""
        if not self._is_ready(picture):
            picture = open_image(picture, self._record.color)
        try:
            return self.prepared(picture)
        except (UnfitError, TooManyError):
            opened = open_image(picture, self._record.color)
            return prepare(opened, self._record, self._dtype.name)

    def check(self) -> None:
        """Hold the code against Pillow.

        Raises:
            UnfitError: it gives something else, or there is none for this record.
            UsageError: the record contradicts itself.
        """
        rng = np.random.default_rng(0)
        for width, height in _TRIED:
            noise = rng.integers(0, 256, (height, width, 3), dtype=np.uint8)
            # Half of it black and white, whose sums run over both ends of a byte.
            noise[::2] = (noise[::2] > 127) * np.uint8(255)
            opened = open_image(noise, self._record.color)
            expected, place = prepare(opened, self._record, self._dtype.name)
            for given in (opened, noise) if self._is_ready(noise) else (opened,):
                try:
                    found, where = self.prepared(given)
                except TooManyError:
                    continue
                if where != place or found.tobytes() != expected.tobytes():
                    raise UnfitError("the bundle's code gives other numbers than Pillow here")

    def _is_ready(self, picture: AnyImage) -> bool:
        """Whether it is an array of the colours that the record wants."""
        if not isinstance(picture, np.ndarray) or picture.dtype != np.uint8:
            return False
        return picture.ndim == 3 and picture.shape[2] == 3 and self._record.color != "GRAY"

    def prepared(self, picture: Any) -> tuple[Array, ImagePlacement]:
        """Prepare an image by code alone.

        Args:
            picture: Image of ``open_image``, or an array (height, width, 3) where that is wanted.

        Raises:
            UnfitError: there is no code for it.
            TooManyError: it is made smaller by too much.
        """
        record = self._record
        pixels = pixels_of(picture)
        way = _way(pixels.shape, record, self._dtype)
        plan, ground, canvas = way.plan, way.ground, way.canvas
        # What is only above and below has one value in each of its rows, and need not be there.
        if way.is_laid:
            pixels = _on_ground(pixels, ground, record)
            ground = Laid(ground.size, (0, 0))
        if pixels.nbytes >= _MOST_BYTES or not pixels.size:
            raise UnfitError("there is no code for images of this size")
        out, by = canvas.blank(), way.by
        # Libraries of older bundles have tables alone.
        counted = canvas.counted if self._functions.has(f"down_{canvas.counted}") else ""
        written = out.reshape(-1).view(counted or f"u{canvas.size}")
        if way.blending is not None and counted:
            way.blending(self._functions, pixels, written)
            return out[np.newaxis], plan.placement
        if by.samples is None:
            level = 0 if plan.before is None else level_of(record)
            rows = self._across(pixels, by, ground.at[1], level)
        else:
            rows = self._sampled(pixels, by.samples, by.columns)
        held, columns, step = rows.shape
        line = np.empty(columns * step, np.uint8)
        finish = (canvas.norm, canvas.shifts) if counted else (canvas.table, canvas.order)
        given = rows.reshape(held, columns * step), by.rows, by.down, *finish, canvas.place
        self._functions.call(f"down_{counted or canvas.size}", (*given, line, written))
        return out[np.newaxis], plan.placement

    def _across(self, pixels: Array, by: Resizing, top: int, level: int) -> Array:
        """Weigh along rows; of all rows only those that are read later.

        Args:
            pixels: (height, width, channels).
            by: how.
            top: rows above the image.
            level: what they and those below consist of.
        """
        height, width, channels = pixels.shape
        begin, end = (row - top for row in by.needed)
        paired = self._pairs and channels > 1
        name = f"across_pairs_{channels}" if paired else f"across_{channels}"
        out = self._scratch((end - begin, by.columns, 1 if channels == 1 else 4))
        out[: max(-begin, 0)] = level
        out[max(height - begin, 0) :] = level
        first, behind = max(begin, 0), min(end, height)
        common = windows_across(by, channels, paired=paired).pair
        flat = pixels.reshape(height, width * channels)
        # What lies behind the last rows is not ours to read: they are copied.
        safe = max(height - -(-READABLE // flat.shape[1]), 0)
        if (count := min(behind, safe) - first) > 0:
            some = np.array([first, first - begin, count], np.int32)
            self._functions.call(name, (flat, *common, some, out))
        if (start := max(first, safe)) < behind:
            size = (behind - start) * flat.shape[1]
            copied = np.zeros(size + READABLE, np.uint8)
            tail = copied[:size].reshape(behind - start, flat.shape[1])
            tail[:] = flat[start:behind]
            some = np.array([0, start - begin, behind - start], np.int32)
            self._functions.call(name, (tail, *common, some, out))
        return out

    def _sampled(
        self, pixels: Array, samples: tuple[Neighbours, Neighbours], columns: int
    ) -> Array:
        """Blend the four pixels around each place."""
        height, width, channels = pixels.shape
        across, down = samples
        count, size = len(down.pixels), width * channels
        rows = pixels.reshape(height, size)
        out = self._scratch((count, columns, 1 if channels == 1 else 4))
        positions = across.pixels * np.int32(channels)
        name, done = f"sample_rows_{channels}", 0
        # Libraries of older bundles have rows copied, all of them.
        if self._functions.has(name):
            # Three bytes are read as four; what lies behind the last row is not ours to read.
            ends = down.pixels.max(axis=1) >= (height - 1 if channels == 3 else height)
            done = int(np.argmax(ends)) if ends.any() else count
        if done:
            by_row = down.pixels[:done], positions, across.shares, down.shares[:done]
            self._functions.call(name, (rows, *by_row, out[:done]))
        if done < count:
            source = self._scratch((count - done, 2, size), "rows")
            # All are rows of the image; asked to make sure, NumPy takes ten times as long.
            np.take(rows, down.pixels[done:], axis=0, out=source, mode="clip")
            shares = across.shares, down.shares[done:]
            self._functions.call(f"sample_{channels}", (source, positions, *shares, out[done:]))
        return out

    def _scratch(self, shape: tuple[int, ...], name: str = "made") -> Array:
        """Memory of this thread, which the next image uses again; more may be read behind it."""
        count = int(np.prod(shape))
        held: Array | None = getattr(self._memory, name, None)
        if held is None or held.size < count + READABLE:
            held = np.zeros(count + READABLE, np.uint8)
            setattr(self._memory, name, held)
        return held[:count].reshape(shape)


def _on_ground(pixels: Array, laid: Laid, record: ImageInput) -> Array:
    if laid.size == (pixels.shape[1], pixels.shape[0]):
        return pixels
    ground = np.full((laid.size[1], laid.size[0], pixels.shape[2]), level_of(record), np.uint8)
    # As Pillow does it, what does not fit is cut off.
    left, top = laid.at
    kept = pixels[max(-top, 0) : laid.size[1] - top, max(-left, 0) : laid.size[0] - left]
    left, top = max(left, 0), max(top, 0)
    ground[top : top + kept.shape[0], left : left + kept.shape[1]] = kept
    return ground


@dataclass(frozen=True, slots=True, eq=False)
class _Way:
    """How images of one size become tensors.

    Attributes:
        plan: what happens to them.
        ground: what they lie on before.
        is_laid: they have to be copied to it.
        by: how it is resized.
        canvas: what is written.
        blending: Blending of four pixels at once; None where others or more are weighed.
    """

    plan: Steps
    ground: Laid
    is_laid: bool
    by: Resizing
    canvas: Canvas
    blending: Blending | None

    @property
    def nbytes(self) -> int:
        """Bytes of what it holds that grows with an image: blending has a copy for each channel."""
        return self.by.nbytes * (1 if self.blending is None else 6)


@by_bytes
def _way(shape: tuple[int, int, int], record: ImageInput, dtype: np.dtype[Any]) -> _Way:
    height, width, channels = shape
    plan = steps((width, height), record)
    ground = Laid((width, height), (0, 0)) if plan.before is None else plan.before
    is_laid = ground.size[0] != width or not record.antialias
    by, canvas = _resizing(ground.size, plan, record), Canvas(plan, record, dtype)
    blending = None
    if by.samples is not None and canvas.counted:
        blending = Blending(by.samples, ground.size[1], channels, canvas)
    return _Way(plan, ground, is_laid, by, canvas, blending)


def _resizing(size: tuple[int, int], plan: Steps, record: ImageInput) -> Resizing:
    width, height = plan.scaled
    kept = plan.cut or (0, 0, width, height)
    if kept[0] < 0 or kept[1] < 0 or kept[2] > width or kept[3] > height:
        raise UnfitError("a crop that reaches beyond the image")
    # Pillow leaves what has its size already as it is, whatever the method.
    method = record.interpolation if record.antialias or size == plan.scaled else "sampled"
    return resizing(size, plan.scaled, kept, method)
