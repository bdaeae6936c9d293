"""Pictures of a thousand parts are refused before Pillow looks at them."""

import io
import struct
import zlib

import pytest

from edgeinfer.errors import InputError
from edgeinfer.media.crowded import MOST, crowd, several_scans
from edgeinfer.media.image import measured, open_image
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
    assert open_image(few).size == (64, 48)
    assert measured(few, RECORD)[0] == 64 * 48
    with pytest.raises(InputError, match="save it anew"):
        open_image(many)
    assert measured(many, RECORD) == (0, 0)


def tags(count: int, *, big: bool = False, numbers: int = 1) -> bytes:
    """Return a list of tags, as TIFF and Exif have them."""
    if big:
        entries = b"".join(
            struct.pack("<HHQQ", (40000 + i) % 65536, 4, numbers, 8) for i in range(count)
        )
        return b"II+\0\x08\0\0\0" + struct.pack("<QQ", 16, count) + entries + bytes(8)
    entries = b"".join(
        struct.pack("<HHII", (40000 + i) % 65536, 4, numbers, 8) for i in range(count)
    )
    return b"II*\0" + struct.pack("<IH", 8, count) + entries + bytes(4)


@pytest.mark.parametrize("big", [False, True])
@pytest.mark.parametrize("form", ["JPEG", "PNG", "WEBP"])
def test_what_a_camera_wrote_has_few_tags(form: str, big: bool) -> None:
    for count, received in ((20, ""), (MOST + 1, f"{MOST + 1} tags")):
        given = written(form, exif=b"Exif\0\0" + tags(count, big=big))
        assert crowd(io.BytesIO(given)) == received
    if form != "JPEG":
        given = written(form, exif=tags(1) + bytes(1 << 20))
        assert "bytes of Exif" in crowd(io.BytesIO(given))


@pytest.mark.parametrize("form", ["JPEG", "PNG", "WEBP", "TIFF"])
def test_lists_below_the_first_count_as_well(form: str) -> None:
    """Where an image is turned, or a TIFF is loaded, older Pillows read all of them."""
    orientation = struct.pack("<HHII", 0x0112, 3, 1, 6)

    def below(count: int, kind: int = 4, lists: int = 1) -> bytes:
        place = 8 + 2 + 12 * (lists + 1) + 4
        names = struct.pack("<HHII", 0x8769, kind, 1, place) * lists
        head = b"II*\0" + struct.pack("<IH", 8, lists + 1) + orientation + names + bytes(4)
        entry = struct.pack("<HHII", 0x9000, 3, 300, 0)
        return head + struct.pack("<H", count) + entry * count + bytes(1000)

    for inner, said in (
        (below(2), ""),
        (below(300), "tags of more than 4 times the bytes"),
        (below(1001), "1001 tags"),
        (below(2, kind=16), "a list of tags, of 1 numbers of type 16"),
        (below(1, lists=9), "more than 8 lists"),
    ):
        given = inner if form == "TIFF" else written(form, exif=b"Exif\0\0" + inner)
        found = crowd(io.BytesIO(given))
        assert said in found
        assert bool(said) == bool(found)


def test_exif_as_text_has_few_tags() -> None:
    """A few kB of such a PNG were unpacked to gigabytes by older Pillows."""
    image = pytest.importorskip("PIL.Image")
    info = pytest.importorskip("PIL.PngImagePlugin").PngInfo

    def with_text(content: str) -> bytes:
        told, out = info(), io.BytesIO()
        told.add_text("Raw profile type exif", content, zip=True)
        image.new("L", (4, 2)).save(out, "PNG", pnginfo=told)
        return out.getvalue()

    def profile(exif: bytes) -> str:
        return f"\nexif\n{len(exif):8}\n{exif.hex()}\n"

    turned = b"II*\0" + struct.pack("<IHHHII", 8, 1, 0x0112, 3, 1, 6) + bytes(4)
    assert open_image(with_text(profile(turned))).size == (2, 4)
    for content, said in (
        (profile(tags(MOST + 1)), f"{MOST + 1} tags"),
        (profile(tags(300, numbers=65_000)), "tags of more than 4 times the bytes"),
        ("\nexif\n       3\nxyz\n", "no text of hexadecimal digits"),
    ):
        with pytest.raises(InputError, match=said):
            open_image(with_text(content))


def test_what_a_camera_wrote_in_parts_is_one() -> None:
    part = tags(2000)
    segments = [part[:20000], part[20000:]]
    whole = written("JPEG")
    marks = b"".join(
        b"\xff\xe1" + struct.pack(">H", len(s) + 8) + b"Exif\0\0" + s for s in segments
    )
    with pytest.raises(InputError, match="2000 tags"):
        open_image(whole[:2] + marks + whole[2:])
    many = b"\xff\xe1" + struct.pack(">H", 65000 + 8) + b"Exif\0\0" + bytes(65000)
    with pytest.raises(InputError, match="bytes of Exif"):
        open_image(whole[:2] + many * 20 + whole[2:])


def test_an_index_of_images_has_few_tags() -> None:
    def indexed(index: bytes) -> bytes:
        whole = written("JPEG")
        return (
            whole[:2]
            + b"\xff\xe2"
            + struct.pack(">H", len(index) + 6)
            + b"MPF\0"
            + index
            + whole[2:]
        )

    assert crowd(io.BytesIO(indexed(tags(3)))) == ""
    same = tags(300, numbers=800) + bytes(3200)
    for index, said in ((tags(1001), "1001 tags"), (same, "more than 4 times the bytes")):
        with pytest.raises(InputError, match=f"an index of images with .*{said}"):
            open_image(indexed(index))
        assert measured(indexed(index), RECORD) == (0, 0)


@pytest.mark.parametrize("big", [False, True])
def test_a_tiff_of_many_tags_or_numbers_is_refused(big: bool) -> None:
    for given in (tags(60_000, big=big), tags(3, big=big, numbers=(1 << 20) + 1)):
        with pytest.raises(InputError, match=r"60000 tags|1048577 numbers of tag 40000"):
            open_image(given)
        assert measured(given, RECORD) == (0, 0)
    assert crowd(io.BytesIO(tags(100, big=big))) == ""
    assert crowd(io.BytesIO(tags(100, big=big)[:50])) == ""
    far = (b"II+\0\x08\0\0\0" if big else b"II*\0") + b"\xff" * 8
    assert crowd(io.BytesIO(far)).startswith("a first list of tags at")


@pytest.mark.parametrize("head", [b"MM\0+", b"MM*\0", b"MM+\0", b"II\0*", b"II\0+"])
@pytest.mark.parametrize("form", ["PNG", "TIFF"])
def test_a_list_of_tags_begins_as_it_says(form: str, head: bytes) -> None:
    """Pillow takes some of these, and reads them otherwise than their head says."""
    given = head + struct.pack(">IH", 8, 0) + bytes(20)
    given = given if form == "TIFF" else written(form, exif=given)
    assert crowd(io.BytesIO(given)) == f"a list of tags that begins with {head.hex(' ')}"


@pytest.mark.parametrize("form", ["JPEG", "PNG", "WEBP"])
def test_what_a_camera_wrote_begins_with_few_prefixes(form: str) -> None:
    """Pillow before 13 takes any number away, 13 up to two."""
    for prefixes, said in ((2, f"{MOST + 1} tags"), (3, ""), (4, "begins with 45 78 69 66")):
        given = written(form, exif=b"Exif\0\0" * prefixes + tags(MOST + 1))
        found = crowd(io.BytesIO(given))
        assert found
        assert said in found
    assert crowd(io.BytesIO(written(form, exif=b"Exif\0\0" * 2 + tags(3)))) == ""


def test_a_gif_is_walked_to_the_image() -> None:
    """Pillow takes what begins no block for filling, and goes on."""
    whole, at = written("GIF"), 13 + 3 * 256

    def crowded(part: bytes) -> str:
        return crowd(io.BytesIO(whole[:at] + part + whole[at:]))

    assert crowded(b"\0" * 100 + PARTS["GIF"] * 100) == ""
    assert crowded(b"!\xfe" + b"\x01c" * MOST + b"\0") == ""
    assert crowded(b"!\xff" + b"\x01c" * 10 * MOST + b"\0") == ""
    assert "more than 1000 extensions" in crowded(b"\0" + PARTS["GIF"] * MOST)
    assert "or bytes between them" in crowded(bytes(MOST + 1))
    assert "1001 of them of comments" in crowded(b"\0!\xfe" + b"\x01c" * 1001 + b"\0")
    assert "1001 of them of comments" in crowded((b"!\xfe" + b"\x01c" * 91 + b"\0") * 11)
    assert "200001 blocks" in crowded((b"!\xff" + b"\x01c" * 50_001 + b"\0") * 4)


def test_a_jpeg_of_several_scans_keeps_coefficients() -> None:
    """A scan of one component makes the decoder keep two bytes a value, of a plain JPEG too."""

    def segment(marker: int, content: bytes) -> bytes:
        return bytes([0xFF, marker]) + struct.pack(">H", len(content) + 2) + content

    def made(side: int, scanned: int, of: int) -> bytes:
        parts = b"".join(bytes([i + 1, 0x11, 0]) for i in range(of))
        frame = segment(0xC0, struct.pack(">BHHB", 8, side, side, of) + parts)
        scan = bytes([scanned, *(v for i in range(scanned) for v in (i + 1, 0)), 0, 63, 0])
        table = segment(0xDB, b"\0" + b"\1" * 64)
        return b"\xff\xd8" + table + frame + segment(0xDA, scan) + bytes(9000) + b"\xff\xd9"

    for scanned, of, keeps in ((1, 3, True), (3, 3, False), (1, 1, False), (2, 4, True)):
        assert several_scans(io.BytesIO(made(8, scanned, of))) == keeps
    plain, several = (measured(made(5000, scanned, 3), RECORD)[1] for scanned in (3, 1))
    assert several == 10 * 5000 * 5000
    assert several > plain
    with pytest.raises(InputError, match="no decompression bomb"):
        open_image(made(5000, 1, 3))
    for odd in (b"", b"\xff\xd8", made(8, 1, 3)[:80], b"\xff\xd8" + PARTS["JPEG"] * 1001):
        assert not several_scans(io.BytesIO(odd))


def test_an_animated_png_keeps_copies() -> None:
    whole = written("PNG")
    assert b"acTL" not in whole
    control = chunk(b"fcTL", struct.pack(">IIIIIHHBB", 0, 64, 48, 0, 0, 1, 1, 1, 1))
    animated = whole[:33] + chunk(b"acTL", struct.pack(">II", 1, 0)) + control + whole[33:]
    assert open_image(animated).size == (64, 48)
    large = animated[:16] + struct.pack(">II", 4097, 4096) + animated[24:]
    assert crowd(io.BytesIO(large)) == "an animation of 16781312 pixels"
    assert crowd(io.BytesIO(large.replace(b"acTL", b"abTL"))) == ""
    assert (
        measured(animated, ImageInput(1, 1))[1] == measured(whole, ImageInput(1, 1))[1] + 8 * 3072
    )


@pytest.mark.parametrize("tag", [273, 324])
def test_a_tiff_of_more_strips_than_images_have_is_refused(tag: int) -> None:
    """Pillow makes an object of each while it opens the file: 900 MB of 3 MB."""
    for kind in (1, 3, 4):
        for count, said in ((1 << 16, ""), ((1 << 16) + 1, "65537 strips or tiles")):
            entry = struct.pack("<HHII", tag, kind, count, 26)
            given = b"II*\0" + struct.pack("<IH", 8, 1) + entry + bytes(4 + 4 * count)
            assert crowd(io.BytesIO(given)) == said


@pytest.mark.parametrize("big", [False, True])
def test_tiles_of_a_tiff_are_no_larger_than_the_image(big: bool) -> None:
    """A decoder has one of them in memory whole, whatever of it the image shows."""

    def tiled(image: int, tile: int, kind: int = 4, count: int = 1) -> bytes:
        found = [
            (256, 4, 1, image),
            (257, 4, 1, image),
            (322, kind, count, tile),
            (323, 4, 1, tile),
        ]
        entry = "<HHQQ" if big else "<HHII"
        head = (
            b"II+\0\x08\0\0\0" + struct.pack("<Q", 16) if big else b"II*\0" + struct.pack("<I", 8)
        )
        head += struct.pack("<Q" if big else "<H", len(found))
        return head + b"".join(struct.pack(entry, *one) for one in found) + bytes(8)

    for image, tile in ((64, 16), (64, 1024), (1500, 1504), (5000, 256)):
        assert crowd(io.BytesIO(tiled(image, tile))) == ""
    for given in (
        tiled(64, 16000),
        tiled(1500, 4096),
        tiled(64, 64, kind=5),
        tiled(64, 64, count=2),
    ):
        with pytest.raises(
            InputError, match=r"tiles of 16000 by 16000 in an image of 64 by 64|tiles"
        ):
            open_image(given)
        assert measured(given, RECORD) == (0, 0)


def test_one_colour_profile_is_enough() -> None:
    profile = chunk(b"iCCP", b"x\x00\x00" + zlib.compress(bytes(1 << 20)))
    assert crowd(io.BytesIO(with_parts("PNG", profile, 1))) == ""
    with pytest.raises(InputError, match="2 of them colour profiles"):
        open_image(with_parts("PNG", profile, 2))


@pytest.mark.parametrize("form", ["PNG", "JPEG", "GIF", "BMP", "TIFF", "WEBP"])
def test_images_that_programs_write_are_taken_whole_or_cut_off(form: str) -> None:
    if form == "WEBP":
        pytest.importorskip("PIL._webp")
    whole = written(form, **({"progressive": True} if form == "JPEG" else {}))
    for end in (*range(0, 64), len(whole) // 2, len(whole)):
        found = crowd(io.BytesIO(whole[:end]))
        # The tags of a TIFF that is cut off are missing.
        assert not found or (form == "TIFF" and found.startswith("a first list of tags at"))


def test_tags_of_the_same_bytes_are_counted_each() -> None:
    """Pillow 10 keeps those of each: a thousand times the file."""
    for kind, size in ((7, 1), (2, 1), (3, 2), (12, 8)):
        for count, many in ((4, ""), (10, "tags of more than 4 times the bytes that there are")):
            bytes_of = 100_000
            given = b"II*\0" + struct.pack("<IH", 8, count)
            given += b"".join(
                struct.pack("<HHII", 40000 + i, kind, bytes_of // size, 200) for i in range(count)
            )
            given = (given + bytes(4)).ljust(bytes_of + 200, b"\0")
            assert crowd(io.BytesIO(given)) == many


@pytest.mark.parametrize(
    "before", [b"", b"x", b"\xff\x00", b"\xff\xd9", b"\xff\xf0\xff\xc8\xff\xd8", b"\xff\xff"]
)
def test_segments_count_up_to_the_first_scan(before: bytes) -> None:
    """Pillow reads on behind the size, what is no marker, and an end."""
    whole = written("JPEG")
    size = whole.index(b"\xff\xc0")
    size += 2 + int.from_bytes(whole[size + 2 : size + 4], "big")
    for at in (2, size):
        few, many = (whole[:at] + before + PARTS["JPEG"] * n + whole[at:] for n in (100, MOST))
        assert crowd(io.BytesIO(few)) == ""
        assert crowd(io.BytesIO(many)) == f"more than {MOST} segments before the image"
        with pytest.raises(InputError, match="save it anew"):
            open_image(many)


def test_segments_hide_in_no_marker_without_content() -> None:
    """Pillow reads what looks like the content of such a marker as segments."""
    whole, hidden = written("JPEG"), PARTS["JPEG"] * 10_000
    given = whole[:2] + b"\xff\xf0" + struct.pack(">H", len(hidden) + 2) + hidden + whole[2:]
    assert "more than" in crowd(io.BytesIO(given))


@pytest.mark.parametrize(
    "between", [b"", b"\xff", b"\xff\xd0", PARTS["JPEG"], b"\xff\xfe\0\4\xff\xd9"]
)
def test_a_jpeg_has_so_many_scans(between: bytes) -> None:
    """Each takes a decoder time by the pixels, and may be of 66 bytes."""
    whole = written("JPEG", progressive=True)
    last = between + whole[whole.rindex(b"\xff\xda") : -2]
    begun = whole.count(b"\xff\xda")
    for count, received in ((100 - begun, ""), (101 - begun, "more than 100 scans")):
        assert crowd(io.BytesIO(whole[:-2] + last * count + whole[-2:])) == received
    # What lies behind the end is none of it: videos of telephones do.
    assert crowd(io.BytesIO(whole + last * 1000)) == ""
    assert crowd(io.BytesIO(whole[:-2] + last * 50)) == ""


@pytest.mark.parametrize("kind", [0x02, 0xBF, 0xC0, 0xC2, 0xC8, 0xD8, 0xDE, 0xF0, 0xFD])
def test_scans_hide_behind_no_marker_that_decoders_skip(kind: int) -> None:
    """In a scan with restarts a decoder throws such a marker away alone, and reads what follows."""
    whole = written("JPEG", progressive=True)
    at = whole.rindex(b"\xff\xda")
    restarts = b"\xff\xdd\0\4\0\1"
    hidden = b"\0" + restarts + whole[at:-2] * (60_000 // len(whole[at:-2]))
    mark = bytes((0xFF, kind)) + struct.pack(">H", len(hidden) + 2)
    given = whole[:at] + restarts + whole[at:-2] + mark + hidden + whole[-2:]
    assert crowd(io.BytesIO(given)) == f"a marker FF {kind:02X} behind the first scan"
    with pytest.raises(InputError, match="save it anew"):
        open_image(given)


def test_segments_between_scans_are_counted() -> None:
    whole = written("JPEG", progressive=True)
    few, many = (whole[:-2] + PARTS["JPEG"] * n + whole[-2:] for n in (900, MOST))
    assert crowd(io.BytesIO(few)) == ""
    assert crowd(io.BytesIO(many)) == f"more than {MOST} segments behind the first scan"


def test_what_a_camera_wrote_counts_in_a_picture_that_is_cut_off() -> None:
    """Pillow reads it where no scan follows."""
    whole = written("JPEG", exif=b"Exif\0\0" + tags(MOST + 1))
    for end in (whole.index(b"\xff\xda"), whole.index(b"\xff\xc4")):
        assert crowd(io.BytesIO(whole[:end])) == f"{MOST + 1} tags"


def test_filling_without_end() -> None:
    assert (
        crowd(io.BytesIO(b"\xff\xd8" + b"\xff" * 10_000_000)) == "more than 1000 bytes of filling"
    )
