"""Reading a member says what is wrong: the file, or the machine."""

import zipfile
from pathlib import Path

import pytest

from edgeinfer.bundle.storage import Zip


def test_memory_that_is_short_is_no_damage(zipped: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def short(*_: object) -> bytes:
        raise MemoryError

    storage = Zip(zipped)
    monkeypatch.setattr(zipfile.ZipExtFile, "read", short)
    with storage.open("report.json") as stream, pytest.raises(MemoryError):
        stream.read(10)
    storage.close()
