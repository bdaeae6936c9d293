"""Pictures whose files are far too small for them."""

import io
from pathlib import Path

import pytest

from edgeinfer.errors import InputError
from edgeinfer.media.image import open_picture


def test_a_picture_of_more_pixels_than_its_file_holds_is_refused(tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    stream = io.BytesIO()
    image.new("1", (8000, 8000)).save(stream, "PNG", optimize=True)
    assert len(stream.getvalue()) < 50_000
    (tmp_path / "x.png").write_bytes(stream.getvalue())
    with pytest.raises(InputError, match="bytes for 8000 by 8000 pixels"):
        open_picture(tmp_path / "x.png")
