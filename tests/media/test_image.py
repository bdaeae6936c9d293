"""Images to tensors, against exact arrays and an independent resampling."""

import builtins
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgeinfer.errors import InputError, NotAvailableError, UsageError
from edgeinfer.media import load_image
from edgeinfer.types import Array, ImageInput

Image = pytest.importorskip("PIL.Image")

RAW: dict[str, Any] = {"scale": 1.0, "mean": (0.0,), "std": (1.0,)}
OWN = ImageInput(width=None, height=None, layout="NHWC", **RAW)


def save(path: Path, pixels: Any, mode: str | None = None, **options: Any) -> Path:
    picture = Image.fromarray(np.asarray(pixels, dtype=np.uint8)) if mode is None else pixels
    picture.save(path, **options)
    return path


def noise(height: int, width: int) -> Array:
    return np.random.default_rng(0).integers(0, 256, (height, width, 3), dtype=np.uint8)


def triangle(pixels: Array, size: int, axis: int) -> Array:
    """Resample one axis with the antialiased triangle filter, in float64."""
    moved = np.moveaxis(pixels.astype(np.float64), axis, 0)
    scale = len(moved) / size
    support = max(scale, 1.0)
    rows = []
    for i in range(size):
        centre = (i + 0.5) * scale
        weights = np.maximum(0, 1 - np.abs(np.arange(len(moved)) + 0.5 - centre) / support)
        rows.append(np.tensordot(weights / weights.sum(), moved, 1))
    return np.moveaxis(np.array(rows), 0, axis)


def test_pixels_of_a_lossless_picture_are_kept(tmp_path: Path) -> None:
    pixels = noise(5, 7)
    result = load_image(save(tmp_path / "a.png", pixels), OWN)
    assert result.dtype == np.float32
    assert result.flags.c_contiguous
    np.testing.assert_array_equal(result, pixels[np.newaxis])


def test_numbers_are_scaled_then_normalised_in_float32(tmp_path: Path) -> None:
    record = ImageInput(1, 1, mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225))
    result = load_image(save(tmp_path / "a.png", [[[255, 128, 0]]]), record)
    expected = [(1 - 0.485) / 0.229, (128 / 255 - 0.456) / 0.224, -0.406 / 0.225]
    assert result.shape == (1, 3, 1, 1)
    np.testing.assert_allclose(result.ravel(), expected, rtol=1e-6)


def test_bgr_and_nchw_move_the_channels(tmp_path: Path) -> None:
    path = save(tmp_path / "a.png", [[[1, 2, 3], [4, 5, 6]]])
    result = load_image(path, ImageInput(None, None, color="BGR", **RAW))
    np.testing.assert_array_equal(result, [[[[3, 6]], [[2, 5]], [[1, 4]]]])


def test_grey_is_luma(tmp_path: Path) -> None:
    path = save(tmp_path / "a.png", [[[255, 0, 0], [0, 255, 0], [0, 0, 255]]])
    result = load_image(path, ImageInput(None, None, color="GRAY", **RAW))
    assert result.shape == (1, 1, 1, 3)
    np.testing.assert_array_equal(result.ravel(), [76, 150, 29])  # 0.299, 0.587, 0.114 of 255


def test_grey_takes_the_defaults_of_three_equal_values(tmp_path: Path) -> None:
    result = load_image(save(tmp_path / "a.png", [[51]]), ImageInput(None, None, color="GRAY"))
    np.testing.assert_allclose(result.ravel(), [0.2], rtol=1e-6)


@pytest.mark.parametrize(("width", "height"), [(3, 2), (20, 31), (8, 31), (1, 1)])
def test_stretch_is_antialiased_bilinear(tmp_path: Path, width: int, height: int) -> None:
    pixels = noise(12, 17)
    record = ImageInput(width, height, layout="NHWC", **RAW)
    result = load_image(save(tmp_path / "a.png", pixels), record)[0]
    expected = triangle(triangle(pixels, width, 1), height, 0)
    assert np.abs(result - expected).max() <= 1.0  # Pillow rounds to 8 bits after each axis


def test_one_free_side_keeps_its_size(tmp_path: Path) -> None:
    path = save(tmp_path / "a.png", noise(12, 17))
    assert load_image(path, ImageInput(8, None)).shape == (1, 3, 12, 8)


@pytest.mark.parametrize(("width", "height", "top", "left"), [(4, 4, 0, 3), (4, 4, 0, 2)])
def test_crop_takes_the_centre(
    tmp_path: Path, width: int, height: int, top: int, left: int
) -> None:
    full_width = width + 2 * left
    pixels = noise(height, full_width)
    record = ImageInput(width, height, resize="crop", layout="NHWC", **RAW)
    result = load_image(save(tmp_path / "a.png", pixels), record)[0]
    np.testing.assert_array_equal(result, pixels[top : top + height, left : left + width])


def test_crop_ratio_resizes_the_short_side_to_size_over_ratio(tmp_path: Path) -> None:
    """224 of 256 as classifiers are evaluated, on an image that is 256 high already."""
    pixels = noise(256, 300)
    record = ImageInput(224, 224, resize="crop", crop_ratio=0.875, layout="NHWC", **RAW)
    result = load_image(save(tmp_path / "a.png", pixels), record)[0]
    np.testing.assert_array_equal(result, pixels[16:240, 38:262])


@pytest.mark.parametrize("size", [(500, 333), (333, 500), (300, 451), (451, 300)])
def test_crop_resizes_to_the_whole_numbers_of_torchvision(
    tmp_path: Path, size: tuple[int, int]
) -> None:
    """Resize(256) cuts the long side off where it is no whole number; CenterCrop(224) follows."""
    picture = Image.fromarray(noise(size[1], size[0]))
    short, long = sorted(size)
    whole = int(256 * long / short)
    resized = picture.resize((256, whole) if size[0] < size[1] else (whole, 256), 2)
    left, top = round((resized.width - 224) / 2.0), round((resized.height - 224) / 2.0)
    expected = np.asarray(resized.crop((left, top, left + 224, top + 224)))
    record = ImageInput(224, 224, resize="crop", crop_ratio=0.875, layout="NHWC", **RAW)
    result = load_image(save(tmp_path / "a.png", picture, "RGB"), record)[0]
    np.testing.assert_array_equal(result, expected)


@pytest.mark.parametrize("shape", [(30, 90), (90, 30)])
def test_letterbox_keeps_the_ratio_and_pads(tmp_path: Path, shape: tuple[int, int]) -> None:
    path = save(tmp_path / "a.png", np.zeros((*shape, 3)))
    record = ImageInput(60, 60, resize="letterbox", layout="NHWC", **RAW)
    result = load_image(path, record)[0]
    expected = np.full((60, 60, 3), 114.0)
    inner = slice(20, 40)
    expected[(inner, slice(None)) if shape[0] < shape[1] else (slice(None), inner)] = 0
    np.testing.assert_array_equal(result, expected)


@pytest.mark.parametrize("resize", ["crop", "letterbox"])
def test_a_thin_picture_keeps_at_least_one_pixel(tmp_path: Path, resize: Any) -> None:
    path = save(tmp_path / "a.png", noise(1, 500))
    assert load_image(path, ImageInput(32, 32, resize=resize)).shape == (1, 3, 32, 32)


@pytest.mark.parametrize("resize", ["crop", "letterbox"])
def test_crop_and_letterbox_need_a_size(tmp_path: Path, resize: Any) -> None:
    path = save(tmp_path / "a.png", noise(4, 4))
    with pytest.raises(UsageError, match="needs width and height"):
        load_image(path, ImageInput(None, 32, resize=resize))


def test_exif_orientation_is_applied(tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6  # the top of the scene is the right side of the stored pixels
    pixels = noise(2, 3)
    path = save(tmp_path / "a.png", Image.fromarray(pixels), "RGB", exif=exif)
    np.testing.assert_array_equal(load_image(path, OWN)[0], np.rot90(pixels, -1))


def test_transparency_is_laid_on_white(tmp_path: Path) -> None:
    path = save(tmp_path / "a.png", [[[10, 20, 30, 255], [10, 20, 30, 0], [0, 0, 0, 51]]])
    result = load_image(path, OWN)[0, 0]
    np.testing.assert_array_equal(result, [[10, 20, 30], [255, 255, 255], [204, 204, 204]])


def test_a_palette_with_a_transparent_entry_is_laid_on_white(tmp_path: Path) -> None:
    picture = Image.new("P", (2, 1))
    picture.putpalette([9, 8, 7, 1, 2, 3])
    picture.putpixel((1, 0), 1)
    path = save(tmp_path / "a.png", picture, "P", transparency=1)
    np.testing.assert_array_equal(load_image(path, OWN)[0, 0], [[9, 8, 7], [255, 255, 255]])


def test_sixteen_bit_grey_is_not_clipped(tmp_path: Path) -> None:
    wide = np.array([[0, 257 * 100, 65535]], dtype=np.uint16)
    path = tmp_path / "a.png"
    Image.fromarray(wide).save(path)
    np.testing.assert_array_equal(load_image(path, OWN)[0, 0, :, 0], [0, 100, 255])


def test_cmyk_becomes_rgb(tmp_path: Path) -> None:
    picture = Image.new("CMYK", (1, 1), (0, 255, 255, 0))
    path = save(tmp_path / "a.tif", picture, "CMYK")
    np.testing.assert_array_equal(load_image(path, OWN).ravel(), [255, 0, 0])


def test_one_bit_becomes_black_and_white(tmp_path: Path) -> None:
    picture = Image.new("1", (2, 1))
    picture.putpixel((1, 0), 1)
    path = save(tmp_path / "a.png", picture, "1")
    np.testing.assert_array_equal(load_image(path, OWN)[0, 0], [[0, 0, 0], [255, 255, 255]])


def test_float_pixels_are_refused(tmp_path: Path) -> None:
    path = save(tmp_path / "a.tif", Image.new("F", (2, 2), 0.5), "F")
    with pytest.raises(InputError, match="8 or 16 bits a channel, received 32-bit pixels"):
        load_image(path, OWN)


def test_first_frame_of_an_animation(tmp_path: Path) -> None:
    frames = [Image.new("RGB", (1, 1), color) for color in ("red", "lime")]
    path = tmp_path / "a.gif"
    frames[0].save(path, save_all=True, append_images=frames[1:])
    np.testing.assert_array_equal(load_image(path, OWN).ravel(), [255, 0, 0])


def test_uint8_input_takes_raw_pixels(tmp_path: Path) -> None:
    pixels = noise(3, 3)
    result = load_image(save(tmp_path / "a.png", pixels), OWN, "uint8")
    assert result.dtype == np.uint8
    np.testing.assert_array_equal(result[0], pixels)


def test_int8_input_takes_centred_pixels(tmp_path: Path) -> None:
    record = ImageInput(None, None, scale=1.0, mean=(128.0,), std=(1.0,), color="GRAY")
    result = load_image(save(tmp_path / "a.png", [[0, 128, 255]]), record, "int8")
    np.testing.assert_array_equal(result.ravel(), [-128, 0, 127])


def test_uint8_input_refuses_fractions(tmp_path: Path) -> None:
    path = save(tmp_path / "a.png", noise(1, 1))
    with pytest.raises(UsageError, match="set scale = 1"):
        load_image(path, ImageInput(None, None), "uint8")


def test_float16_input(tmp_path: Path) -> None:
    assert load_image(save(tmp_path / "a.png", [[51]]), OWN, "float16").dtype == np.float16


def test_wrong_number_of_means(tmp_path: Path) -> None:
    path = save(tmp_path / "a.png", noise(1, 1))
    with pytest.raises(UsageError, match="mean has 2 values for 3 channels"):
        load_image(path, ImageInput(None, None, mean=(0.1, 0.2)))


@pytest.mark.parametrize("suffix", ["png", "jpg", "bmp", "gif", "tif", "webp"])
def test_a_truncated_picture_is_one_clear_error(tmp_path: Path, suffix: str) -> None:
    path = save(tmp_path / f"a.{suffix}", noise(64, 64))
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    with pytest.raises(InputError, match=r"expected an image that Pillow can read") as caught:
        load_image(path, OWN)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("content", [b"", b"hello", b"\x89PNG\r\n\x1a\n" + b"\0" * 40])
def test_another_kind_of_file(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "a.png"
    path.write_bytes(content)
    with pytest.raises(InputError, match="an image that Pillow can read"):
        load_image(path, OWN)


def test_a_decompression_bomb_is_refused_before_it_is_decoded(tmp_path: Path) -> None:
    def chunk(kind: bytes, data: bytes) -> bytes:
        crc = struct.pack(">I", zlib.crc32(kind + data))
        return struct.pack(">I", len(data)) + kind + data + crc

    header = chunk(b"IHDR", struct.pack(">IIBBBBB", 100_000, 100_000, 8, 0, 0, 0, 0))
    path = tmp_path / "a.png"
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + header + chunk(b"IDAT", zlib.compress(b"\0" * 1000)))
    with pytest.raises(InputError, match="too many pixels"):
        load_image(path, OWN)


def test_a_missing_file_and_a_folder(tmp_path: Path) -> None:
    for path, words in ((tmp_path / "none.png", "no such file"), (tmp_path, "is a folder; name")):
        with pytest.raises(UsageError, match=words):
            load_image(path, OWN)


def test_without_pillow_the_install_line_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def refuse(name: str, *args: Any, **kwargs: Any) -> Any:
        if name.startswith("PIL"):
            raise ImportError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", refuse)
    with pytest.raises(NotAvailableError, match=r"pip install 'edgeinfer\[media\]'"):
        load_image("a.png", OWN)


def test_a_picture_without_pixels_is_refused() -> None:
    from edgeinfer.media.image import open_image

    for given in (Image.new("RGB", (5, 0)), Image.new("L", (0, 5)), np.zeros((0, 5, 3), np.uint8)):
        with pytest.raises(InputError, match=r"pixels|received"):
            open_image(given)


def test_a_file_without_pixels_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.png"
    Image.new("RGB", (5, 4)).save(path)
    raw = bytearray(path.read_bytes())
    raw[20:24] = bytes(4)
    raw[29:33] = struct.pack(">I", zlib.crc32(bytes(raw[12:29])))
    path.write_bytes(raw)
    with pytest.raises(InputError):
        load_image(path, ImageInput(4, 4))


def test_runs_that_python_unpacks_are_few(tmp_path: Path) -> None:
    """A pixel and the end of its row are four bytes, and Pillow appends the rest one by one."""

    def packed(wide: int, high: int) -> Path:
        runs = b"\x01\x07\x00\x00" * high + b"\x00\x01"
        head = struct.pack("<IiiHHIIiiII", 40, wide, high, 1, 8, 1, len(runs), 0, 0, 256, 0)
        path, begin = tmp_path / "m.bmp", 14 + len(head) + 1024
        table = b"".join(bytes((i, i, i, 0)) for i in range(256))
        size = struct.pack("<IHHI", begin + len(runs), 0, 0, begin)
        path.write_bytes(b"BM" + size + head + table + runs)
        return path

    few = np.asarray(load_image(packed(4, 3), OWN))
    assert few.reshape(3, 4, 3)[:, 0].ravel().tolist() == [7.0] * 9
    with pytest.raises(InputError, match="no decompression bomb"):
        load_image(packed(30000, 1000), OWN)
