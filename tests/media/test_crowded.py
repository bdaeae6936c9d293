"""Pictures of a thousand parts are refused before Pillow looks at them."""

import io
import struct
import zlib

import pytest

from edgeinfer.errors import InputError
from edgeinfer.media.crowded import MOST, crowd
from edgeinfer.media.image import measured, open_picture
from edgeinfer.types import ImageInput

image = pytest.importorskip("PIL.Image")
RECORD = ImageInput(64, 48)


def written(form: str, **options: object) -> bytes:
    stream = io.BytesIO()
    image.effect_noise((64, 48), 50).convert("P" if form == "GIF" else "RGB").save(
        stream, form, **options
    )
    return stream.getvalue()


def chunk(kind: bytes, content: bytes) -> bytes:
    body = kind + content
    return struct.pack(">I", len(content)) + body + struct.pack(">I", zlib.crc32(body))


def with_parts(form: str, part: bytes, count: int) -> bytes:
    """Put parts where the first of a picture's own may be."""
    whole = written(form)
    at = {"PNG": 33, "JPEG": 2, "GIF": 13 + 3 * 256}[form]
    return whole[:at] + part * count + whole[at:]


PARTS = {"PNG": chunk(b"abCd", b""), "JPEG": b"\xff\xe0\x00\x02", "GIF": b"!\xfe\x01x\x00"}


@pytest.mark.parametrize("form", PARTS)
def test_many_parts_are_refused_and_some_are_not(form: str) -> None:
    few, many = (with_parts(form, PARTS[form], n) for n in (100, MOST + 1))
    assert open_picture(few).size == (64, 48)
    assert measured(few, RECORD)[0] == 64 * 48
    with pytest.raises(InputError, match="save it anew"):
        open_picture(many)
    assert measured(many, RECORD) == (0, 0)


def test_one_colour_profile_is_enough() -> None:
    profile = chunk(b"iCCP", b"x\x00\x00" + zlib.compress(bytes(1 << 20)))
    assert crowd(io.BytesIO(with_parts("PNG", profile, 1))) == ""
    with pytest.raises(InputError, match="2 of them colour profiles"):
        open_picture(with_parts("PNG", profile, 2))


@pytest.mark.parametrize("form", ["PNG", "JPEG", "GIF", "BMP", "TIFF", "WEBP"])
def test_pictures_that_programs_write_are_taken_whole_or_cut_off(form: str) -> None:
    if form == "WEBP":
        pytest.importorskip("PIL._webp")
    whole = written(form, **({"progressive": True} if form == "JPEG" else {}))
    for end in (*range(0, 64), len(whole) // 2, len(whole)):
        assert crowd(io.BytesIO(whole[:end])) == ""


def test_filling_without_end() -> None:
    assert (
        crowd(io.BytesIO(b"\xff\xd8" + b"\xff" * 10_000_000)) == "more than 1000 bytes of filling"
    )
