"""Pictures by compiled code: the bytes that Pillow gives, or Pillow itself."""

import ctypes
import mmap
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from edgeinfer.backends.plain_functions import Functions
from edgeinfer.errors import UsageError
from edgeinfer.media.image import open_picture, prepare
from edgeinfer.runtime.pipelines.pictures import ByCode, ByPillow, preparation
from edgeinfer.types import Array, ImageInput

pytest.importorskip("PIL")

PLAIN = ImageInput(32, 24, scale=1 / 255, mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225))
GREY = replace(PLAIN, color="GRAY", mean=(0.5,), std=(0.25,))
SIZES = ((1, 1), (3, 2), (40, 30), (31, 97), (200, 33), (5, 300))


def _pictures() -> Iterator[Array]:
    rng = np.random.default_rng(0)
    for width, height in SIZES:
        noise = rng.integers(0, 256, (height, width, 3), dtype=np.uint8)
        yield noise
        yield (noise > 127) * np.uint8(255)


def _check(functions: Functions, record: ImageInput, dtype: str = "float32") -> None:
    by_code = ByCode(functions, record, dtype)
    for noise in _pictures():
        opened = open_picture(noise, record.color)
        expected, place = prepare(opened, record, dtype)
        for given in (opened,) if record.color == "GRAY" else (opened, noise):
            # By code alone: what it falls back on would give the same.
            found, where = by_code.prepared(given)
            assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
            assert found.tobytes() == expected.tobytes(), noise.shape
            assert where == place
        assert by_code(noise)[0].tobytes() == expected.tobytes()


@pytest.mark.parametrize(
    "said",
    [
        {"resize": "stretch"},
        {"resize": "stretch", "width": None, "height": None},
        {"resize": "crop"},
        {"resize": "crop", "crop_ratio": 0.875},
        {"resize": "letterbox"},
        {"resize": "letterbox", "align": "start", "pad": 0},
        {"resize": "pad", "pad": 3},
        {"resize": "limit", "side": 40, "multiple": 8, "longest": 90},
        {"resize": "limit", "side": 16, "side_rule": "max", "multiple": 4},
        {"resize": "line", "pad": 127.5},
        {"resize": "line", "grow": True},
    ],
    ids=lambda said: " ".join(map(str, said.values())),
)
@pytest.mark.parametrize("interpolation", ["nearest", "bilinear", "bicubic", "sampled"])
def test_the_same_bytes_as_pillow(
    functions: Functions, said: dict[str, Any], interpolation: str
) -> None:
    how: dict[str, Any] = {"interpolation": interpolation}
    if interpolation == "sampled":
        how = {"antialias": False}
    _check(functions, replace(PLAIN, **said, **how))
    _check(functions, replace(GREY, **said, **how))


@pytest.mark.parametrize("color", ["RGB", "BGR", "GRAY"])
@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize("dtype", ["float32", "float16", "uint8", "int8", "int32"])
def test_every_colour_layout_and_element(
    functions: Functions, color: Any, layout: Any, dtype: str
) -> None:
    plain = GREY if color == "GRAY" else PLAIN
    record = replace(plain, resize="letterbox", color=color, layout=layout)
    if not dtype.startswith("float"):
        record = replace(record, scale=1.0, mean=(128.0 if dtype == "int8" else 0.0,), std=(1.0,))
    _check(functions, record, dtype)


def test_rows_that_end_where_memory_ends(functions: Functions) -> None:
    # Behind the last byte is a page that may not be read: a read beyond it ends the process.
    size = mmap.PAGESIZE
    area = mmap.mmap(-1, 2 * size)
    libc = ctypes.CDLL(None, use_errno=True)
    start = ctypes.addressof(ctypes.c_char.from_buffer(area))
    assert libc.mprotect(ctypes.c_void_p(start + size), ctypes.c_size_t(size), 0) == 0
    methods: tuple[Any, ...] = ("nearest", "bilinear", "bicubic")
    for interpolation in methods:
        for width, height in ((20, 40), (1, 50), (400, 2), (7, 3)):
            count = width * height * 3
            flat = np.frombuffer(area, np.uint8, count, size - count)
            record = replace(PLAIN, interpolation=interpolation)
            given = flat.reshape(height, width, 3)
            expected, _ = prepare(open_picture(given.copy()), record)
            found, _ = ByCode(functions, record, "float32").prepared(given)
            assert found.tobytes() == expected.tobytes()
    sampled = replace(PLAIN, antialias=False)
    assert ByCode(functions, sampled, "float32").prepared(given)[0].size


def test_arrays_that_lie_otherwise(functions: Functions) -> None:
    by_code = ByCode(functions, PLAIN, "float32")
    noise = np.random.default_rng(0).integers(0, 256, (30, 50, 3), dtype=np.uint8)
    for given in (noise[:, ::-1], noise[::2], np.rot90(noise), noise[..., ::-1], noise[..., 0]):
        expected = prepare(open_picture(given), PLAIN)[0]
        assert by_code(given)[0].tobytes() == expected.tobytes()
    alpha = np.concatenate([noise, noise[..., :1]], axis=2)
    assert by_code(alpha)[0].tobytes() == prepare(open_picture(alpha), PLAIN)[0].tobytes()


def test_threads_do_not_disturb_each_other(functions: Functions) -> None:
    by_code = ByCode(functions, PLAIN, "float32")
    pictures = [p for p in _pictures() for _ in range(4)]
    expected = [prepare(open_picture(p), PLAIN)[0].tobytes() for p in pictures]
    with ThreadPoolExecutor(4) as pool:
        found = [f[0].tobytes() for f in pool.map(by_code, pictures)]
    assert found == expected


def test_code_is_chosen_where_it_is_right(functions: Functions) -> None:
    assert preparation(functions, "", PLAIN, "float32").about == (
        "pictures by compiled code for x86-64-v3"
    )


def test_without_code_pillow_does_it() -> None:
    found = preparation(None, "the bundle has no code for this machine", PLAIN, "float32")
    assert isinstance(found, ByPillow)
    assert found.about == "pictures by Pillow: the bundle has no code for this machine"


def test_elements_without_code_are_left_to_pillow(functions: Functions) -> None:
    found = preparation(functions, "", PLAIN, "float64")
    assert found.about == "pictures by Pillow: there is no code for elements float64"


def test_code_that_gives_something_else_is_not_used(
    functions: Functions, monkeypatch: pytest.MonkeyPatch
) -> None:
    def off_by_one(name: str, arguments: Any) -> None:
        Functions.call(functions, name, arguments)
        if name.startswith("down"):
            arguments[-1][-1] ^= 1

    monkeypatch.setattr(functions, "call", off_by_one)
    found = preparation(functions, "", PLAIN, "float32")
    assert isinstance(found, ByPillow)
    assert found.about.endswith("the bundle's code gives other numbers than Pillow here")


def test_a_record_that_contradicts_itself_is_refused_as_before(functions: Functions) -> None:
    record = replace(PLAIN, resize="crop", width=None)
    for made in (ByCode(functions, record, "float32"), ByPillow(record, "float32", "")):
        with pytest.raises(UsageError, match="needs width and height"):
            made(np.zeros((4, 4, 3), np.uint8))


def test_a_picture_that_shrinks_thousands_of_times_is_left_to_pillow(functions: Functions) -> None:
    record = ImageInput(2, 2)
    by_code = ByCode(functions, record, "float32")
    wide = np.random.default_rng(0).integers(0, 256, (2, 20000, 3), dtype=np.uint8)
    assert by_code(wide)[0].tobytes() == prepare(open_picture(wide), record)[0].tobytes()
