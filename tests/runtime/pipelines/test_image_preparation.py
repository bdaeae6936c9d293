"""Images by compiled code: the bytes that Pillow gives, or Pillow itself."""

import ctypes
import mmap
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from edgeinfer.backends.tvm.plain_functions import Functions
from edgeinfer.errors import UsageError
from edgeinfer.media.geometry import steps
from edgeinfer.media.image import open_image, prepare
from edgeinfer.media.windows import neighbours
from edgeinfer.runtime.pipelines.blending import Blending
from edgeinfer.runtime.pipelines.canvas import Canvas
from edgeinfer.runtime.pipelines.image_preparation import ByPillow, ImagesByCode, preparation
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
    by_code = ImagesByCode(functions, record, dtype)
    for noise in _pictures():
        opened = open_image(noise, record.color)
        expected, place = prepare(opened, record, dtype)
        for given in (opened,) if record.color == "GRAY" else (opened, noise):
            # By code alone: what it falls back on would give the same.
            found, where = by_code.prepared(given)
            assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
            assert found.tobytes() == expected.tobytes(), noise.shape
            assert where == place
        assert by_code(noise)[0].tobytes() == expected.tobytes()


@pytest.mark.sample(15)
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


@pytest.mark.parametrize(
    "hidden", [("blend_", "down_float32"), ("blend_", "down_f", "sample_rows")]
)
@pytest.mark.parametrize("antialias", [True, False])
def test_libraries_of_older_bundles(
    functions: Functions,
    monkeypatch: pytest.MonkeyPatch,
    hidden: tuple[str, ...],
    antialias: bool,
) -> None:
    called = []

    def call(name: str, arguments: Any) -> None:
        called.append(name)
        Functions.call(functions, name, arguments)

    monkeypatch.setattr(
        functions, "has", lambda n: not n.startswith(hidden) and Functions.has(functions, n)
    )
    monkeypatch.setattr(functions, "call", call)
    for record in (PLAIN, GREY):
        _check(functions, replace(record, antialias=antialias, resize="letterbox"))
    assert "down_4" in called
    assert not any(n.startswith(hidden) for n in called)


def test_four_pixels_are_one_call(functions: Functions, monkeypatch: pytest.MonkeyPatch) -> None:
    called = []

    def call(name: str, arguments: Any) -> None:
        called.append(name)
        Functions.call(functions, name, arguments)

    monkeypatch.setattr(functions, "call", call)
    for dtype, scale in (("float32", 1 / 255), ("uint8", 1.0)):
        record = ImageInput(24, 32, antialias=False, scale=scale)
        ImagesByCode(functions, record, dtype).prepared(np.zeros((128, 120, 3), np.uint8))
    assert called == ["blend_3_float32", "blend_3_uint8"]


def test_four_pixels_of_any_size_in_any_place(functions: Functions) -> None:
    rng = np.random.default_rng(7)
    for _ in range(150):
        width, height, wide, tall = (int(n) for n in rng.integers(1, 90, 4))
        color = rng.choice(["RGB", "BGR", "GRAY"])
        channels = 1 if color == "GRAY" else 3
        how: dict[str, Any] = {
            "resize": rng.choice(["stretch", "crop", "letterbox", "pad", "line"]),
            "crop_ratio": float(rng.choice([1.0, 0.875])),
            "align": rng.choice(["center", "start"]),
            "color": color,
            "layout": rng.choice(["NCHW", "NHWC"]),
        }
        dtype = rng.choice(["float32", "float32", "uint8", "int8", "float16"])
        if dtype.startswith("float"):
            how["scale"] = float(rng.choice([1.0, 1 / 255, 1 / 127.5]))
            how["mean"] = tuple(rng.uniform(-1, 130, channels).tolist())
            how["std"] = tuple(rng.uniform(0.01, 80, channels).tolist())
        else:
            how |= {"scale": 1.0, "mean": (128.0 if dtype == "int8" else 0.0,)}
        record = ImageInput(width, height, antialias=bool(rng.random() < 0.3), **how)
        noise = rng.integers(0, 256, (tall, wide, 3), dtype=np.uint8)
        opened = open_image(noise, record.color)
        expected, place = prepare(opened, record, dtype)
        by_code = ImagesByCode(functions, record, dtype)
        for given in (opened,) if color == "GRAY" else (opened, noise):
            found, where = by_code.prepared(given)
            assert where == place
            assert found.tobytes() == expected.tobytes(), record


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize("dtype", ["float32", "int8"])
def test_every_value_of_a_pixel(functions: Functions, layout: Any, dtype: str) -> None:
    every = np.arange(256, dtype=np.uint8).repeat(3).reshape(16, 16, 3)
    record = ImageInput(None, None, antialias=False, layout=layout, scale=1.0, mean=(128.0,))
    if dtype == "float32":
        record = replace(PLAIN, width=None, height=None, layout=layout)
    found, _ = ImagesByCode(functions, record, dtype).prepared(every)
    assert found.tobytes() == prepare(open_image(every), record, dtype)[0].tobytes()


def test_nothing_is_written_beside_the_tensor(functions: Functions) -> None:
    samples = neighbours(50, 17), neighbours(40, 9)
    noise = np.random.default_rng(0).integers(0, 256, (40, 50, 3), dtype=np.uint8)
    for layout, dtype in (("NCHW", "float32"), ("NHWC", "float32"), ("NHWC", "uint8")):
        record = ImageInput(17, 9, antialias=False, layout=layout, scale=1.0)  # type: ignore[arg-type]
        canvas = Canvas(steps((50, 40), record), record, np.dtype(dtype))
        count = 17 * 9 * 3
        around = np.full(count + 32, 77, dtype)
        Blending(samples, 40, 3, canvas)(functions, noise, around[16:-16])
        expected = prepare(open_image(noise), record, dtype)[0]
        assert around[16:-16].tobytes() == expected.tobytes()
        assert set(around[:16]) == set(around[-16:]) == {77}


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
            expected, _ = prepare(open_image(given.copy()), record)
            found, _ = ImagesByCode(functions, record, "float32").prepared(given)
            assert found.tobytes() == expected.tobytes()
    for layout, dtype in (("NCHW", "float32"), ("NHWC", "float32"), ("NHWC", "float16")):
        for width, height in ((20, 40), (1, 50), (400, 2), (7, 3), (32, 1)):
            count = width * height * 3
            flat = np.frombuffer(area, np.uint8, count, size - count)
            sampled = replace(PLAIN, antialias=False, layout=layout)  # type: ignore[arg-type]
            given = flat.reshape(height, width, 3)
            expected, _ = prepare(open_image(given.copy()), sampled, dtype)
            found, _ = ImagesByCode(functions, sampled, dtype).prepared(given)
            assert found.tobytes() == expected.tobytes()


def test_arrays_that_lie_otherwise(functions: Functions) -> None:
    by_code = ImagesByCode(functions, PLAIN, "float32")
    noise = np.random.default_rng(0).integers(0, 256, (30, 50, 3), dtype=np.uint8)
    for given in (noise[:, ::-1], noise[::2], np.rot90(noise), noise[..., ::-1], noise[..., 0]):
        expected = prepare(open_image(given), PLAIN)[0]
        assert by_code(given)[0].tobytes() == expected.tobytes()
    alpha = np.concatenate([noise, noise[..., :1]], axis=2)
    assert by_code(alpha)[0].tobytes() == prepare(open_image(alpha), PLAIN)[0].tobytes()


def test_threads_do_not_disturb_each_other(functions: Functions) -> None:
    by_code = ImagesByCode(functions, PLAIN, "float32")
    pictures = [p for p in _pictures() for _ in range(4)]
    expected = [prepare(open_image(p), PLAIN)[0].tobytes() for p in pictures]
    with ThreadPoolExecutor(4) as pool:
        found = [f[0].tobytes() for f in pool.map(by_code, pictures)]
    assert found == expected


def test_code_is_chosen_where_it_is_right(functions: Functions) -> None:
    assert preparation(functions, "", PLAIN, "float32").about == (
        "images by compiled code for x86-64-v3"
    )


def test_without_code_pillow_does_it() -> None:
    found = preparation(None, "the bundle has no code for this machine", PLAIN, "float32")
    assert isinstance(found, ByPillow)
    assert found.about == "images by Pillow: the bundle has no code for this machine"


def test_elements_without_code_are_left_to_pillow(functions: Functions) -> None:
    found = preparation(functions, "", PLAIN, "float64")
    assert found.about == "images by Pillow: there is no code for elements float64"


@pytest.mark.parametrize("antialias", [True, False])
def test_code_that_gives_something_else_is_not_used(
    functions: Functions, monkeypatch: pytest.MonkeyPatch, antialias: bool
) -> None:
    record = replace(PLAIN, antialias=antialias)

    def off_by_one(name: str, arguments: Any) -> None:
        Functions.call(functions, name, arguments)
        if name.startswith(("down", "blend")):
            arguments[-1].view(np.uint8)[-4] ^= 1

    assert isinstance(preparation(functions, "", record, "float32"), ImagesByCode)
    monkeypatch.setattr(functions, "call", off_by_one)
    found = preparation(functions, "", record, "float32")
    assert isinstance(found, ByPillow)
    assert found.about.endswith("the bundle's code gives other numbers than Pillow here")


def test_a_record_that_contradicts_itself_is_refused_as_before(functions: Functions) -> None:
    record = replace(PLAIN, resize="crop", width=None)
    for made in (ImagesByCode(functions, record, "float32"), ByPillow(record, "float32", "")):
        with pytest.raises(UsageError, match="needs width and height"):
            made(np.zeros((4, 4, 3), np.uint8))


def test_a_picture_that_shrinks_thousands_of_times_is_left_to_pillow(functions: Functions) -> None:
    record = ImageInput(2, 2)
    by_code = ImagesByCode(functions, record, "float32")
    wide = np.random.default_rng(0).integers(0, 256, (2, 20000, 3), dtype=np.uint8)
    assert by_code(wide)[0].tobytes() == prepare(open_image(wide), record)[0].tobytes()
