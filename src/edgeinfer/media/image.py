"""A picture file to the tensor of an ``ImageInput`` record."""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from edgeinfer.bounded import absence
from edgeinfer.errors import InputError, NotAvailableError, UsageError
from edgeinfer.types import Array, ImageInput

if TYPE_CHECKING:
    from PIL import Image

INSTALL = 'pip install "edgeinfer[media]"'
WHITE = (255, 255, 255, 255)


Picture = Any
"""A path, an array (height, width[, 3 or 4]) of uint8 in RGB order, or a Pillow image."""


@dataclass(frozen=True, slots=True)
class Placement:
    """Where a source picture lies in the model's input: input = source * scale + offset.

    Attributes:
        scale: of x and y.
        offset: of x and y, in pixels of the input.
        source: width and height of the picture, upright.
        size: width and height of the input.
    """

    scale: tuple[float, float]
    offset: tuple[float, float]
    source: tuple[int, int]
    size: tuple[int, int]

    def to_source(self, points: Array) -> Array:
        """Turn points (..., 2) of the input into points of the source."""
        found: Array = (np.asarray(points, np.float64) - self.offset) / self.scale
        return found


def load_image(path: str | Path, record: ImageInput, dtype: str = "float32") -> Array:
    """Read a picture as the model takes it; see ``open_picture`` and ``prepare``.

    Returns:
        (1, channels, height, width) for NCHW, (1, height, width, channels) for NHWC.

    Raises:
        InputError: the file is no picture, is damaged, or is too large to be decoded safely.
        NotAvailableError: Pillow is not installed.
        UsageError: no such file, or the record contradicts itself or the dtype.
    """
    return prepare(open_picture(Path(path), record.color), record, dtype)[0]


def open_picture(given: Picture, color: str = "RGB") -> Image.Image:
    """Read a picture from a file, an array or Pillow, upright and with 8 bits a channel.

    The first frame is taken, turned upright as its EXIF tag says, transparency is laid on white,
    and 16-bit, CMYK, palette and grey pictures become 8-bit RGB (or grey).

    Args:
        given: a path that Pillow can read, an array of uint8, or a Pillow image.
        color: ``GRAY`` gives one channel, anything else three in RGB order.

    Raises:
        InputError: it is no picture, is damaged, or is too large to be decoded safely.
        NotAvailableError: Pillow is not installed.
        UsageError: no such file.
    """
    if isinstance(given, (str, Path)):
        return _read(Path(given), color)
    image = _pillow()
    if isinstance(given, image.Image):
        from PIL import ImageOps

        return _in_color(ImageOps.exif_transpose(given), "picture", color)
    array = np.asarray(given)
    expected = "a path, a Pillow image or uint8 of (height, width), (..., 3) or (..., 4)"
    if array.dtype != np.uint8 or array.ndim not in (2, 3) or not array.size:
        raise InputError("picture", expected, f"{array.dtype}{list(array.shape)}")
    if array.ndim == 3 and array.shape[2] not in (3, 4):
        raise InputError("picture", expected, f"{array.dtype}{list(array.shape)}")
    return _in_color(image.fromarray(np.ascontiguousarray(array)), "picture", color)


def prepare(
    picture: Image.Image, record: ImageInput, dtype: str = "float32"
) -> tuple[Array, Placement]:
    """Turn an opened picture into the tensor of a record.

    Args:
        picture: of ``open_picture``.
        record: size, colour, layout and numbers.
        dtype: element type of the model's input; an integer type takes whole numbers only.

    Returns:
        (1, channels, height, width) for NCHW, (1, height, width, channels) for NHWC; and where the
        picture lies in it.

    Raises:
        UsageError: the record contradicts itself or the dtype.
    """
    resized, placement = _resized(picture, record)
    pixels = np.asarray(resized)
    pixels = pixels[:, :, np.newaxis] if pixels.ndim == 2 else pixels
    pixels = pixels[:, :, ::-1] if record.color == "BGR" else pixels
    values = _normalised(pixels, record, np.dtype(dtype))
    if record.resize == "line":
        values = _filled(values, record, placement.size[0])
    values = values.transpose(2, 0, 1) if record.layout == "NCHW" else values
    return np.ascontiguousarray(values[np.newaxis]), placement


def _pillow() -> Any:
    try:
        from PIL import Image
    except ImportError as e:
        raise NotAvailableError(f"reading pictures needs Pillow: {INSTALL}") from e
    return Image


def _read(path: Path, color: str) -> Image.Image:
    try:
        from PIL import Image, ImageOps, UnidentifiedImageError
    except ImportError as e:
        raise NotAvailableError(f"reading pictures needs Pillow: {INSTALL}") from e
    if not path.is_file():
        raise UsageError(f"{path}: {absence(path)}")
    expected = "a picture that Pillow can read"
    try:
        with warnings.catch_warnings():
            # Pillow only warns between one and two times its limit, and raises above.
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)
            with Image.open(path) as opened:
                return _in_color(ImageOps.exif_transpose(opened), str(path), color)
    except InputError:
        raise
    except Image.DecompressionBombError as e:
        raise InputError(str(path), expected, f"too many pixels ({e})", "scale it down") from e
    except UnidentifiedImageError as e:
        raise InputError(str(path), expected, "a file of another kind") from e
    # Pillow's decoders raise any of these for damaged data.
    except (OSError, SyntaxError, ValueError, EOFError, IndexError, TypeError, KeyError) as e:
        raise InputError(str(path), expected, f"a damaged file ({_one_line(e)})") from e


def _in_color(picture: Image.Image, name: str, color: str) -> Image.Image:
    return _eight_bit(picture, name).convert("L" if color == "GRAY" else "RGB")


def _eight_bit(picture: Image.Image, name: str) -> Image.Image:
    """Return it in a mode that converts to RGB without clipping or dropping transparency."""
    from PIL import Image

    if picture.mode.startswith("I;16") or (picture.mode == "I" and picture.format == "PNG"):
        # The high byte, as Pillow itself takes it from 16-bit RGB files.
        wide = np.asarray(picture).astype(np.int64)
        return Image.fromarray((wide >> 8).clip(0, 255).astype(np.uint8))
    if picture.mode in ("I", "F"):
        received = f"32-bit pixels (mode {picture.mode}) of unknown range"
        raise InputError(name, "8 or 16 bits a channel", received, "save it as 8 or 16 bit")
    if picture.has_transparency_data:
        ground = Image.new("RGBA", picture.size, WHITE)
        return Image.alpha_composite(ground, picture.convert("RGBA"))
    return picture


def _resized(picture: Image.Image, record: ImageInput) -> tuple[Image.Image, Placement]:
    """Resize a picture; of a line the part that is filled up comes later, as numbers."""
    width, height = record.width or picture.width, record.height or picture.height
    if record.resize == "stretch":
        return _scaled(picture, (width, height), record)
    if record.resize == "limit":
        return _scaled(picture, _limited(picture, record), record)
    if record.width is None or record.height is None:
        raise UsageError(f"preprocessing: resize={record.resize!r} needs width and height")
    if record.resize == "line":
        long = math.ceil(height * picture.width / picture.height)
        size = (long if record.grow else min(long, width), height)
        resized, placement = _scaled(picture, size, record)
        return resized, replace(placement, size=(max(size[0], width), height))
    if record.resize == "crop":
        resized, found = _scaled(picture, _covering(picture, record, width, height), record)
        left, top = round((resized.width - width) / 2), round((resized.height - height) / 2)
        cut = resized.crop((left, top, left + width, top + height))
        return cut, replace(found, offset=(-left, -top), size=(width, height))
    if record.resize == "pad":
        share = max(picture.width / width, picture.height / height)
        size = (round(width * share), round(height * share))
        ground, before = _laid(picture, size, record)
        resized, found = _scaled(ground, (width, height), record)
        offset = (before[0] * found.scale[0], before[1] * found.scale[1])
        return resized, replace(found, offset=offset, source=picture.size)
    scale = min(width / picture.width, height / picture.height)
    resized, found = _scaled(picture, _fitting(picture, scale, width, height), record)
    ground, offset = _laid(resized, (width, height), record)
    return ground, replace(found, offset=offset, size=(width, height))


def _laid(
    picture: Image.Image, size: tuple[int, int], record: ImageInput
) -> tuple[Image.Image, tuple[float, float]]:
    """Lay a picture on a ground that is as large or larger; return that and where it lies."""
    colour = (round(record.pad),) * len(picture.getbands())
    ground = _pillow().new(picture.mode, size, colour)
    left, top = (size[0] - picture.width) // 2, (size[1] - picture.height) // 2
    left, top = (left, top) if record.align == "center" else (0, 0)
    ground.paste(picture, (left, top))
    return ground, (left, top)


def _scaled(
    picture: Image.Image, size: tuple[int, int], record: ImageInput
) -> tuple[Image.Image, Placement]:
    scale = (size[0] / picture.width, size[1] / picture.height)
    placement = Placement(scale, (0.0, 0.0), picture.size, size)
    if size == picture.size:
        return picture, placement
    if not record.antialias:
        return _pillow().fromarray(sampled(np.asarray(picture), size)), placement
    resampling = _pillow().Resampling[record.interpolation.upper()]
    return picture.resize(size, resampling), placement


def sampled(pixels: Array, size: tuple[int, int]) -> Array:
    """Resize bilinearly from the four nearest pixels, whatever the scale; pixel centres align.

    Args:
        pixels: (height, width[, channels]), uint8.
        size: width and height.
    """
    rows, row_share = _neighbours(pixels.shape[0], size[1])
    columns, column_share = _neighbours(pixels.shape[1], size[0])
    tail = (1,) * (pixels.ndim - 2)
    share = row_share.reshape(-1, 1, *tail)
    tall = pixels[rows[0]] * (1 - share) + pixels[rows[1]] * share
    share = column_share.reshape(1, -1, *tail)
    wide = tall[:, columns[0]] * (1 - share) + tall[:, columns[1]] * share
    # Halves go up, as in OpenCV; np.rint would take them to the even number.
    found: Array = (wide + np.float32(0.5)).astype(np.uint8)
    return found


def _neighbours(old: int, new: int) -> tuple[tuple[Array, Array], Array]:
    """Return for each new pixel its two old ones and the share of the second."""
    place = (np.arange(new) + 0.5) * (old / new) - 0.5
    first = np.floor(place).astype(np.int64)
    share = (place - first).astype(np.float32)
    return (first.clip(0, old - 1), (first + 1).clip(0, old - 1)), share


def _limited(picture: Image.Image, record: ImageInput) -> tuple[int, int]:
    """Return both sides after one is brought to its limit, to the nearest multiple."""
    if record.side is None:
        raise UsageError("preprocessing: resize='limit' needs side")
    short, long = sorted(picture.size)
    ratio = 1.0
    if record.side_rule == "min" and short < record.side:
        ratio = record.side / short
    if record.side_rule == "max" and long > record.side:
        ratio = record.side / long
    if record.longest is not None:
        ratio = min(ratio, record.longest / long)
    width, height = (
        max(round(int(side * ratio) / record.multiple), 1) * record.multiple
        for side in picture.size
    )
    return width, height


def _covering(picture: Image.Image, record: ImageInput, width: int, height: int) -> tuple[int, int]:
    """Return the size before a centre crop: the tighter side rounded, the other one cut off.

    The same whole numbers as torchvision's ``Resize``, with which most classifiers are evaluated.
    """
    if width * picture.height >= height * picture.width:
        new_width = round(width / record.crop_ratio)
        return new_width, new_width * picture.height // picture.width
    new_height = round(height / record.crop_ratio)
    return new_height * picture.width // picture.height, new_height


def _fitting(picture: Image.Image, scale: float, width: int, height: int) -> tuple[int, int]:
    """Return the size inside a letterbox; a thin picture keeps at least one pixel."""
    new_width, new_height = round(picture.width * scale), round(picture.height * scale)
    return max(min(new_width, width), 1), max(min(new_height, height), 1)


def _filled(values: Array, record: ImageInput, width: int) -> Array:
    """Fill a line up to its width; the pad may lie between two pixel values."""
    height, short, channels = values.shape
    if short == width:
        return values
    pad = np.full((height, width - short, channels), record.pad, np.float32)
    if values.dtype.kind in "iu":
        pad = pad.round()
    return np.concatenate([values, _normalised(pad, record, values.dtype)], axis=1)


def _normalised(pixels: Array, record: ImageInput, dtype: np.dtype[Any]) -> Array:
    channels = pixels.shape[2]
    scale = np.float32(record.scale)
    mean = _per_channel(record.mean, channels, "mean")
    std = _per_channel(record.std, channels, "std")
    if dtype.kind == "f":
        values: Array = (pixels.astype(np.float32) * scale - mean) / std
        return values.astype(dtype, copy=False)
    if dtype.kind not in "iu":
        raise UsageError(f"preprocessing: a picture cannot become {dtype}")
    levels = (np.arange(256, dtype=np.float32)[:, np.newaxis] * scale - mean) / std
    limits = np.iinfo(dtype)
    if (levels != np.rint(levels)).any() or levels.min() < limits.min or levels.max() > limits.max:
        raise UsageError(
            f"preprocessing: the input is {dtype} but scale, mean and std give values outside its"
            " whole numbers; for raw pixels set scale = 1, mean = [0], std = [1]"
        )
    return ((pixels.astype(np.float32) * scale - mean) / std).astype(dtype)


def _per_channel(values: tuple[float, ...], channels: int, name: str) -> Array:
    if len(values) not in (1, channels) and len(set(values)) != 1:
        raise UsageError(f"preprocessing: {name} has {len(values)} values for {channels} channels")
    single = values[:1] * channels
    return np.asarray(values if len(values) == channels else single, dtype=np.float32)


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__
