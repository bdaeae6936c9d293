"""What is kept of this machine's making is whole, or as none."""

from pathlib import Path

import pytest

from edgeinfer.bundle.kept import is_whole, keep


def test_a_file_counts_with_its_record_alone(tmp_path: Path) -> None:
    made, place = tmp_path / "made.o", tmp_path / "kept.o"
    assert not is_whole(place)
    made.write_bytes(b"code")
    keep(made, place)
    assert is_whole(place)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["kept.o", "kept.o.sha256"]
    record = tmp_path / "kept.o.sha256"
    said = record.read_text()
    for name, found, told in (
        ("cut off", b"cod", said),
        ("altered", b"Code", said),
        ("a record of no bytes", b"code", ""),
        ("a record of none", b"code", None),
    ):
        place.write_bytes(found)
        record.unlink() if told is None else record.write_text(told)
        assert not is_whole(place), name


def test_a_folder_of_the_cache_is_a_known_one() -> None:
    """What ``cache clear`` does not know would stay for ever."""
    from edgeinfer.bundle.cache import writable_folder

    with pytest.raises(ValueError, match="'other' is no folder of the cache"):
        writable_folder("other")
