"""Which pages are given back: those that a file on disk can give again, and no others."""

import mmap
import re
from pathlib import Path

import pytest

from edgeinfer.machine import pages

INODE = "08:01 1234"


@pytest.mark.parametrize(
    ("line", "taken"),
    [
        (f"7f00-7f10 r--s 00000000 {INODE}    /data/model.onnx", True),
        (f"7f00-7f10 r--p 00000000 {INODE}    /usr/lib/libm.so.6", False),
        (f"7f00-7f10 rw-s 00000000 {INODE}    /data/shared", False),
        (f"7f00-7f10 r--s 00000000 {INODE}    /memfd:tensors (deleted)", False),
        (f"7f00-7f10 r--s 00000000 {INODE}    /dev/nvidia0", False),
        (f"7f00-7f10 r--s 00000000 {INODE}    /dev/shm/queue", False),
        (f"7f00-7f10 r--s 00000000 {INODE}    /sys/devices/x/resource0", False),
        ("7f00-7f10 r--s 00000000 00:00 0 ", False),
    ],
)
def test_what_is_given_back(line: str, taken: bool) -> None:
    before = f"7e00-7e10 rw-p 00000000 00:00 0\n{line}\n"
    assert re.findall(pages._MAPPED_FILE, before, re.MULTILINE) == (
        [("7f00", "7f10")] if taken else []
    )


def test_a_mapped_file_is_still_readable(tmp_path: Path) -> None:
    path = tmp_path / "weights"
    path.write_bytes(b"0123456789" * 1000)
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as view:
        assert view[:10] == b"0123456789"
        pages.give_back()
        assert view[:] == b"0123456789" * 1000
