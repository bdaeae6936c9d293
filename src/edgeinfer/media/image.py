"""An image file to the tensor of an ``ImageInput`` record."""

from __future__ import annotations

import io
import math
import struct
import warnings
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np

from edgeinfer.bounded import absence, open_file
from edgeinfer.errors import EdgeInferError, InputError, NotAvailableError, UsageError
from edgeinfer.installed import install
from edgeinfer.media.crowded import EXIF_TEXT, crowd, crowded_text, several_scans
from edgeinfer.media.geometry import TENSOR_BYTES, ImagePlacement, Laid, Size, check_scaled, steps
from edgeinfer.types import Array, ImageInput

if TYPE_CHECKING:
    from PIL import Image

WHITE = (255, 255, 255, 255)
_ORIENTATION = 0x0112
"""Tag of EXIF."""

_TURNS = {
    **{2: "FLIP_LEFT_RIGHT", 3: "ROTATE_180", 4: "FLIP_TOP_BOTTOM", 5: "TRANSPOSE"},
    **{6: "ROTATE_270", 7: "TRANSVERSE", 8: "ROTATE_90"},
}
"""How an image is brought upright, by what its EXIF tag (TIFF 6.0, Orientation) says."""

AnyImage = Any
"""A path, the contents of a file, an array (height, width[, 3 or 4]) of uint8 in RGB order, or an
image of Pillow's."""


def load_image(path: str | Path, record: ImageInput, dtype: str = "float32") -> Array:
    """Read an image as the model takes it; see ``open_image`` and ``prepare``.

    Returns:
        (1, channels, height, width) for NCHW, (1, height, width, channels) for NHWC.

    Raises:
        InputError: the file is no image, is damaged, or is too large to be decoded safely.
        NotAvailableError: Pillow is not installed.
        UsageError: no such file, or the record contradicts itself or the dtype.
    """
    return prepare(open_image(Path(path), record.color), record, dtype)[0]


def open_image(given: AnyImage, color: str = "RGB") -> Image.Image:
    """Read an image from a file, an array or Pillow, upright and with 8 bits a channel.

    The first frame is taken, rotated upright as its EXIF tag says, transparency is laid on white,
    and 16-bit, CMYK, palette and grey images become 8-bit RGB (or grey). An image of Pillow's
    that is all of that already is returned itself.

    Args:
        given: a path that Pillow can read, the contents of such a file, an array of uint8, or a
            Pillow image.
        color: ``GRAY`` gives one channel, anything else three in RGB order.

    Raises:
        InputError: it is no image, is damaged, or is too large to be decoded safely.
        NotAvailableError: Pillow is not installed.
        UsageError: no such file.
    """
    if isinstance(given, (str, Path)):
        path = Path(given)
        if not path.is_file():
            _pillow()
            raise UsageError(f"{path}: {absence(path)}")
        try:
            with open_file(path) as file:
                return _read(file, str(path), color)
        except OSError as e:
            raise UsageError(f"{path}: cannot be read: {e.strerror or e}") from e
    if isinstance(given, bytes):
        return _read(io.BytesIO(given), "image", color)
    image = _pillow()
    if isinstance(given, image.Image):
        return _in_color(_upright(given), "image", color)
    array = np.asarray(given)
    expected = "a path, a Pillow image or uint8 of (height, width), (..., 3) or (..., 4)"
    if array.dtype != np.uint8 or array.ndim not in (2, 3) or not array.size:
        raise InputError("image", expected, f"{array.dtype}{list(array.shape)}")
    if array.ndim == 3 and array.shape[2] not in (3, 4):
        raise InputError("image", expected, f"{array.dtype}{list(array.shape)}")
    return _in_color(image.fromarray(np.ascontiguousarray(array)), "image", color)


def prepare(
    picture: Image.Image, record: ImageInput, dtype: str = "float32"
) -> tuple[Array, ImagePlacement]:
    """Turn an opened image into the tensor of a record.

    Args:
        picture: Image of ``open_image``.
        record: size, colour, layout and numbers.
        dtype: element type of the model's input; an integer type takes whole numbers only.

    Returns:
        (1, channels, height, width) for NCHW, (1, height, width, channels) for NHWC; and where the
        image lies in it.

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


FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF")
"""What is read of a file, whatever its name says. Pillow's other decoders are many and little used,
and one of them starts Ghostscript."""

MOST_PLAIN, RATIO = 192 << 20, 16
"""Bytes that decoding any image may take, and how many more for each byte of its file."""

_STORED = {"1": 1, "L": 1, "P": 1, "I;16": 2, "I;16B": 2, "I;16L": 2, "I;16N": 2}
"""Bytes that Pillow stores a pixel in; four in other modes."""

_RUNS = (1, 2)
"""Compressions of a BMP: runs of eight and of four bits."""

_ROWS = 64
"""Of an image whose colours are changed at once."""

_DAMAGED = (
    *(OSError, SyntaxError, ValueError, EOFError, IndexError, TypeError, KeyError),
    *(struct.error, NotImplementedError, RuntimeError, OverflowError, ZeroDivisionError),
)


@cache
def _formats() -> tuple[str, ...]:
    """Return those that this build of Pillow has."""
    from PIL import features

    return tuple(f for f in FORMATS if f != "WEBP" or features.check("webp"))


def _pillow() -> Any:
    try:
        from PIL import Image
    except ImportError as e:
        raise NotAvailableError(f"reading images needs Pillow: {install('media')}") from e
    return Image


def measured(given: bytes, record: ImageInput) -> tuple[int, int]:
    """Return an image's pixels, and the bytes that it takes until it is a model's input.

    Zeros where it is no image.

    Raises:
        NotAvailableError: Pillow is not installed.
    """
    image = _pillow()
    made, source = 0, io.BytesIO(given)
    if crowd(source):
        return 0, 0
    keeps = several_scans(source)
    try:
        with image.open(source, formats=_formats()) as opened:
            pixels: int = opened.width * opened.height
            decoding = pixels * _bytes_a_pixel(opened, "RGB", keeps=keeps, rotated=True)
            ways = [opened.size, opened.size[::-1]]
    # Pillow's own too; what is wrong is reported when it is read.
    except Exception:
        return 0, 0
    for size in ways:
        # One that does not fit is decoded, and refused.
        with suppress(EdgeInferError):
            made = max(made, math.prod(steps(size, record).placement.size))
    return pixels, max(decoding, TENSOR_BYTES * made)


def _read(source: BinaryIO, name: str, color: str) -> Image.Image:
    try:
        from PIL import Image, UnidentifiedImageError
    except ImportError as e:
        raise NotAvailableError(f"reading images needs Pillow: {install('media')}") from e
    expected = f"an image that Pillow can read ({', '.join(FORMATS)})"
    _refuse(crowd(source), name, expected)
    keeps = several_scans(source)
    try:
        with warnings.catch_warnings():
            # Pillow only warns between one and two times its limit, and raises above.
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)
            with Image.open(source, formats=_formats()) as opened:
                size, mode = source.seek(0, io.SEEK_END), _mode(color)
                _check_size(opened, size, name, mode, keeps=keeps, rotated=False)
                opened.load()
                # Pillow unpacks it from a few bytes, and reads all of it for one tag.
                _refuse(crowded_text(opened.info), name, expected)
                # Where the tag lies behind the pixels, it is known only now.
                if opened.getexif().get(_ORIENTATION, 1) != 1:
                    _check_size(opened, size, name, mode, keeps=keeps, rotated=True)
                upright = _upright(opened)
                if upright is not opened:
                    # Lets go of the pixels as they lay.
                    opened.close()
                return _in_color(upright, name, color)
    except InputError:
        raise
    except Image.DecompressionBombError as e:
        raise InputError(name, expected, f"too many pixels ({e})", "scale it down") from e
    except UnidentifiedImageError as e:
        raise InputError(name, expected, "a file of another kind") from e
    # Pillow's decoders raise any of these for damaged data.
    except _DAMAGED as e:
        raise InputError(name, expected, f"a damaged file ({_one_line(e)})") from e


def _refuse(crowded: str, name: str, expected: str) -> None:
    if crowded:
        raise InputError(name, expected, crowded, "save it anew")


def _upright(given: Image.Image) -> Image.Image:
    """Return an image rotated as its EXIF tag says, without what says so; one that is, itself.

    Pillow's own way writes all that a camera wrote anew, for which it reads lists of any size.
    """
    method = _TURNS.get(given.getexif().get(_ORIENTATION, 1))
    if method is None:
        return given
    rotated = given.transpose(getattr(_pillow().Transpose, method))
    for said in ("exif", EXIF_TEXT, "xmp", "XML:com.adobe.xmp"):
        rotated.info.pop(said, None)
    return rotated


def _check_size(
    opened: Image.Image, size_bytes: int, name: str, mode: str, *, keeps: bool, rotated: bool
) -> None:
    """Refuse what a file of this size does not hold, before memory is taken for it."""
    wide, high = opened.size
    if (
        wide * high * _bytes_a_pixel(opened, mode, keeps=keeps, rotated=rotated)
        > MOST_PLAIN + RATIO * size_bytes
    ):
        received = f"{size_bytes} bytes for {wide} by {high} pixels"
        expected = "an image that is no decompression bomb"
        raise InputError(name, expected, received, "scale it down")


def _bytes_a_pixel(opened: Image.Image, mode: str, *, keeps: bool, rotated: bool) -> int:
    """Return the most that is held at once: what the decoder has, the image and a copy of it.

    Args:
        opened: not decoded yet.
        mode: that it is changed to.
        keeps: the decoder of a JPEG keeps all coefficients.
        rotated: it may be brought upright.
    """
    stored, kept, decoder = _STORED.get(opened.mode, 4), 0, 0
    if opened.format == "WEBP":
        # Two canvases, until the file is closed, and their bytes.
        kept, decoder = 8, 12
    elif opened.format == "TIFF":
        # A strip may be the whole, in 16 bits a channel.
        decoder = 2 * stored
    elif opened.format == "BMP":
        # What is packed is unpacked in Python, an empty rest of a row byte by byte.
        decoder = 9 if opened.info.get("compression") in _RUNS else 2
    elif getattr(opened, "custom_mimetype", None) == "image/apng":
        # What frames leave behind, of which Pillow before 13 keeps two copies for the first.
        kept = 2 * stored
    elif keeps or opened.info.get("progressive"):
        decoder = 2 * len(opened.getbands())
    changed = 0 if _is_plain(opened, mode) else _STORED.get(mode, 4)
    return stored + max(decoder, kept + max(changed, stored if rotated else 0))


def _mode(color: str) -> str:
    return "L" if color == "GRAY" else "RGB"


def _is_plain(picture: Image.Image, mode: str) -> bool:
    return picture.mode == mode and not picture.has_transparency_data


def _in_color(picture: Image.Image, name: str, color: str) -> Image.Image:
    """Return it in one mode, without clipping or dropping transparency."""
    wide, high = picture.size
    if min(picture.size) < 1:
        raise InputError(name, "an image with pixels", f"{wide} by {high} of them")
    # The high byte, as Pillow itself takes it from 16-bit RGB files.
    is_wide = picture.mode.startswith("I;16") or (picture.mode == "I" and picture.format == "PNG")
    if picture.mode in ("I", "F") and not is_wide:
        received = f"32-bit pixels (mode {picture.mode}) of unknown range"
        raise InputError(name, "8 or 16 bits a channel", received, "save it as 8 or 16 bit")
    mode = _mode(color)
    if _is_plain(picture, mode):
        return picture
    made: Image.Image = _pillow().new(mode, picture.size)
    # A band at a time: each step makes a copy.
    for top in range(0, high, _ROWS):
        box = (0, top, wide, min(top + _ROWS, high))
        band = picture.crop(box)
        made.paste((_high_bytes(band) if is_wide else _opaque(band)).convert(mode), box)
    return made


def _high_bytes(picture: Image.Image) -> Image.Image:
    high: Image.Image = _pillow().fromarray(
        (np.asarray(picture) >> 8).clip(0, 255).astype(np.uint8)
    )
    return high


def _opaque(picture: Image.Image) -> Image.Image:
    """Lay transparency on white."""
    if not picture.has_transparency_data:
        return picture
    image = _pillow()
    whole: Image.Image = image.alpha_composite(
        image.new("RGBA", picture.size, WHITE), picture.convert("RGBA")
    )
    return whole


def _resized(picture: Image.Image, record: ImageInput) -> tuple[Image.Image, ImagePlacement]:
    """Resize an image; of a line the part that is filled up comes later, as numbers."""
    plan = steps(picture.size, record)
    if plan.before is not None:
        picture = _on_ground(picture, plan.before, record)
    resized = _scaled(picture, plan.scaled, record)
    if plan.cut is not None:
        resized = resized.crop(plan.cut)
    if plan.after is not None:
        resized = _on_ground(resized, plan.after, record)
    return resized, plan.placement


def _on_ground(picture: Image.Image, laid: Laid, record: ImageInput) -> Image.Image:
    colour = (round(record.pad),) * len(picture.getbands())
    ground: Image.Image = _pillow().new(picture.mode, laid.size, colour)
    ground.paste(picture, laid.at)
    return ground


def _scaled(picture: Image.Image, size: Size, record: ImageInput) -> Image.Image:
    if size == picture.size:
        return picture
    if not record.antialias:
        made: Image.Image = _pillow().fromarray(sampled(np.asarray(picture), size))
        return made
    return scaled(picture, size, record.interpolation)


def scaled(picture: Image.Image, size: Size, name: str) -> Image.Image:
    """Resize an image by a filter of Pillow, across first and then down.

    Args:
        picture: Image of ``open_image``.
        size: width and height.
        name: Name of the filter, in small letters.

    Raises:
        InputError: it would grow out of proportion.
    """
    check_scaled(picture.size, size)
    method = _pillow().Resampling[name.upper()]
    if name != "nearest":
        # Pillow takes the side first that costs less, by a rule that changed in 13.0; between both
        # everything is rounded to bytes, so the order is in the numbers.
        picture = picture.resize((size[0], picture.height), method)
    return picture.resize(size, method)


def sampled(pixels: Array, size: tuple[int, int]) -> Array:
    """Resize bilinearly from the four nearest pixels, whatever the scale; pixel centres align.

    Args:
        pixels: (height, width[, channels]), uint8.
        size: width and height.
    """
    rows, row_share = neighbours_of(pixels.shape[0], size[1])
    columns, column_share = neighbours_of(pixels.shape[1], size[0])
    tail = (1,) * (pixels.ndim - 2)
    share = row_share.reshape(-1, 1, *tail)
    tall = pixels[rows[0]] * (1 - share) + pixels[rows[1]] * share
    share = column_share.reshape(1, -1, *tail)
    wide = tall[:, columns[0]] * (1 - share) + tall[:, columns[1]] * share
    # Halves go up, as in OpenCV; np.rint would take them to the even number.
    found: Array = (wide + np.float32(0.5)).astype(np.uint8)
    return found


def neighbours_of(old: int, new: int) -> tuple[tuple[Array, Array], Array]:
    """Return for each new pixel its two old ones and the share of the second."""
    place = (np.arange(new) + 0.5) * (old / new) - 0.5
    first = np.floor(place).astype(np.int64)
    share = (place - first).astype(np.float32)
    return (first.clip(0, old - 1), (first + 1).clip(0, old - 1)), share


def table(record: ImageInput, dtype: np.dtype[Any]) -> Array:
    """Return what each of the 256 values of a pixel becomes: (channels, 256).

    Raises:
        UsageError: the record contradicts itself or the dtype.
    """
    channels = 1 if record.color == "GRAY" else 3
    pixels = np.repeat(np.arange(256, dtype=np.uint8), channels).reshape(256, 1, channels)
    return np.ascontiguousarray(_normalised(pixels, record, dtype)[:, 0].T)


def behind_line(record: ImageInput, dtype: np.dtype[Any]) -> Array:
    """Return what fills up a line, by channel."""
    one = np.zeros((1, 1, 1 if record.color == "GRAY" else 3), dtype)
    return np.asarray(_filled(one, record, 2)[0, 1])


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
    scale, mean, std = arithmetic(record, pixels.shape[2])
    if dtype.kind == "f":
        values: Array = (pixels.astype(np.float32) * scale - mean) / std
        return values.astype(dtype, copy=False)
    if dtype.kind not in "iu":
        raise UsageError(f"preprocessing: an image cannot become {dtype}")
    levels = (np.arange(256, dtype=np.float32)[:, np.newaxis] * scale - mean) / std
    limits = np.iinfo(dtype)
    if (levels != np.rint(levels)).any() or levels.min() < limits.min or levels.max() > limits.max:
        raise UsageError(
            f"preprocessing: the input is {dtype} but scale, mean and std give values outside its"
            " whole numbers; for raw pixels set scale = 1, mean = [0], std = [1]"
        )
    return ((pixels.astype(np.float32) * scale - mean) / std).astype(dtype)


def arithmetic(record: ImageInput, channels: int) -> tuple[np.float32, Array, Array]:
    """Return scale, mean and std as numbers are computed with.

    Raises:
        UsageError: the record contradicts itself.
    """
    mean = _per_channel(record.mean, channels, "mean")
    return np.float32(record.scale), mean, _per_channel(record.std, channels, "std")


def _per_channel(values: tuple[float, ...], channels: int, name: str) -> Array:
    if len(values) not in (1, channels) and len(set(values)) != 1:
        raise UsageError(f"preprocessing: {name} has {len(values)} values for {channels} channels")
    single = values[:1] * channels
    return np.asarray(values if len(values) == channels else single, dtype=np.float32)


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__
