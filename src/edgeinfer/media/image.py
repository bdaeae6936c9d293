"""A picture file to the tensor of an ``ImageInput`` record."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from edgeinfer.errors import InputError, NotAvailableError, UsageError
from edgeinfer.types import Array, ImageInput

if TYPE_CHECKING:
    from PIL import Image

INSTALL = 'pip install "edgeinfer[media]"'
WHITE = (255, 255, 255, 255)


def load_image(path: str | Path, record: ImageInput, dtype: str = "float32") -> Array:
    """Read a picture as the model takes it.

    The first frame is taken, turned upright as its EXIF tag says, transparency is laid on white,
    and 16-bit, CMYK, palette and grey pictures become 8-bit RGB (or grey) before resizing.

    Args:
        path: any file that Pillow reads.
        record: size, colour, layout and numbers.
        dtype: element type of the model's input; an integer type takes whole numbers only.

    Returns:
        (1, channels, height, width) for NCHW, (1, height, width, channels) for NHWC.

    Raises:
        InputError: the file is no picture, is damaged, or is too large to be decoded safely.
        NotAvailableError: Pillow is not installed.
        UsageError: no such file, or the record contradicts itself or the dtype.
    """
    picture = _resized(_read(Path(path), record.color), record)
    pixels = np.asarray(picture)
    pixels = pixels[:, :, np.newaxis] if pixels.ndim == 2 else pixels
    pixels = pixels[:, :, ::-1] if record.color == "BGR" else pixels
    values = _normalised(pixels, record, np.dtype(dtype))
    values = values.transpose(2, 0, 1) if record.layout == "NCHW" else values
    return np.ascontiguousarray(values[np.newaxis])


def _read(path: Path, color: str) -> Image.Image:
    try:
        from PIL import Image, ImageOps, UnidentifiedImageError
    except ImportError as e:
        raise NotAvailableError(f"reading pictures needs Pillow: {INSTALL}") from e
    if not path.is_file():
        raise UsageError(f"{path}: no such file")
    expected = "a picture that Pillow can read"
    try:
        with warnings.catch_warnings():
            # Pillow only warns between one and two times its limit, and raises above.
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)
            with Image.open(path) as opened:
                upright = ImageOps.exif_transpose(opened)
                return _eight_bit(upright, str(path)).convert("L" if color == "GRAY" else "RGB")
    except InputError:
        raise
    except Image.DecompressionBombError as e:
        raise InputError(str(path), expected, f"too many pixels ({e})", "scale it down") from e
    except UnidentifiedImageError as e:
        raise InputError(str(path), expected, "a file of another kind") from e
    # Pillow's decoders raise any of these for damaged data.
    except (OSError, SyntaxError, ValueError, EOFError, IndexError, TypeError, KeyError) as e:
        raise InputError(str(path), expected, f"a damaged file ({_one_line(e)})") from e


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


def _resized(picture: Image.Image, record: ImageInput) -> Image.Image:
    from PIL import Image

    interpolation = Image.Resampling[record.interpolation.upper()]
    if record.resize == "stretch":
        size = (record.width or picture.width, record.height or picture.height)
        return picture if size == picture.size else picture.resize(size, interpolation)
    if record.width is None or record.height is None:
        raise UsageError(f"preprocessing: resize={record.resize!r} needs width and height")
    width, height = record.width, record.height
    if record.resize == "crop":
        resized = picture.resize(_covering(picture, record, width, height), interpolation)
        left, top = round((resized.width - width) / 2), round((resized.height - height) / 2)
        return resized.crop((left, top, left + width, top + height))
    scale = min(width / picture.width, height / picture.height)
    inner = _fitting(picture, scale, width, height)
    resized = picture.resize(inner, interpolation)
    ground = Image.new(picture.mode, (width, height), (record.pad,) * len(picture.getbands()))
    ground.paste(resized, ((width - resized.width) // 2, (height - resized.height) // 2))
    return ground


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
