"""Arrays named as tensors survive a round trip, whatever the name."""

import io
import zipfile
from pathlib import Path

import numpy as np
import pytest

from edgeinfer.bundle.vectors import load_vector
from edgeinfer.errors import BundleError, InputError, OutputError, UsageError
from edgeinfer.media import read_arrays, write_arrays
from edgeinfer.types import TensorSpec

NAMES = [
    "x",
    "file",
    "a",
    "a.npy",
    "",
    "/",
    "../up",
    "a/b:0",
    '{"1": "a/b"}',
    "naïve 名",
    "x" * 300,
]


def test_every_name_keeps_its_array(tmp_path: Path) -> None:
    arrays = {name: np.full((2, i), i, dtype=np.int16) for i, name in enumerate(NAMES)}
    write_arrays(tmp_path / "a.npz", arrays)
    back = read_arrays(tmp_path / "a.npz")
    assert list(back) == NAMES
    for name, array in arrays.items():
        assert back[name].dtype == np.int16
        np.testing.assert_array_equal(back[name], array)


def test_numpy_reads_what_is_written_and_the_other_way_round(tmp_path: Path) -> None:
    arrays = {"a/b": np.arange(6.0).reshape(2, 3), "n": np.array(3), "t": np.array(["ab", "c"])}
    write_arrays(tmp_path / "a.npz", arrays)
    with np.load(tmp_path / "a.npz") as theirs:
        for name, array in arrays.items():
            np.testing.assert_array_equal(theirs[name], array)
    np.savez_compressed(tmp_path / "b.npz", **arrays)  # type: ignore[arg-type]
    assert set(read_arrays(tmp_path / "b.npz")) == set(arrays)


def test_an_npy_file_has_no_name(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.arange(3))
    np.testing.assert_array_equal(read_arrays(tmp_path / "a.npy")[""], [0, 1, 2])


def test_text_is_stored_without_pickle(tmp_path: Path) -> None:
    write_arrays(tmp_path / "a.npz", {"t": np.array(["ab", "ü"], dtype=object)})
    np.testing.assert_array_equal(read_arrays(tmp_path / "a.npz")["t"], ["ab", "ü"])


def test_an_existing_file_is_replaced(tmp_path: Path) -> None:
    for value in (1, 2):
        write_arrays(tmp_path / "a.npz", {"x": np.array(value)})
    assert read_arrays(tmp_path / "a.npz")["x"] == 2
    assert [p.name for p in tmp_path.iterdir()] == ["a.npz"]


def test_pickled_objects_are_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=np.array([{}], dtype=object))
    with pytest.raises(InputError, match="Object arrays cannot be loaded"):
        read_arrays(tmp_path / "a.npz")


def test_damaged_files(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    write_arrays(path, {"x": np.arange(1000)})
    whole = path.read_bytes()
    for content in (b"", b"hello", whole[: len(whole) // 2], whole.replace(b"\x07\0", b"\x08\0")):
        path.write_bytes(content)
        with pytest.raises(InputError, match=r"expected an \.npz file") as caught:
            read_arrays(path)
        assert "\n" not in str(caught.value)


def test_a_header_that_claims_more_than_memory(tmp_path: Path) -> None:
    raw = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        raw, {"descr": "<f4", "fortran_order": False, "shape": (1 << 50,)}
    )
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as archive:
        archive.writestr("x.npy", raw.getvalue())
    with pytest.raises(InputError, match="a damaged file"):
        read_arrays(tmp_path / "a.npz")


@pytest.mark.parametrize(
    "header",
    [
        "{'descr': '<U0', 'fortran_order': False, 'shape': (1099511627776,)}",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (True,)}",
        "(((",
    ],
)
def test_headers_that_no_array_has(tmp_path: Path, header: str) -> None:
    raw = b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header.encode() + bytes(8)
    path = tmp_path / "a.npy"
    path.write_bytes(raw)
    with pytest.raises(InputError, match="a damaged file or another kind"):
        read_arrays(path)
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        archive.writestr("in/0.npy", raw)
    with pytest.raises(BundleError, match="is not a readable"):
        load_vector("v", stream.getvalue(), (TensorSpec("x", "string", (None,)),), ())


def test_few_bytes_do_not_unpack_to_many(tmp_path: Path) -> None:
    path = tmp_path / "x.npz"
    np.savez_compressed(path, x=np.zeros(129 << 20, np.uint8), y=np.zeros(2 << 20, np.uint8))
    assert path.stat().st_size < 1 << 20
    with pytest.raises(InputError, match=r"bytes unpack to 131 MiB, more than 200 times"):
        read_arrays(path)
    np.savez_compressed(path, x=np.zeros(16 << 20, np.uint8))
    assert read_arrays(path)["x"].nbytes == 16 << 20


def test_a_zip_of_something_else(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as archive:
        archive.writestr("manifest.json", "{}")
    with pytest.raises(InputError, match=r"member 'manifest.json' is no array"):
        read_arrays(tmp_path / "a.npz")


def test_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no such file"):
        read_arrays(tmp_path / "none.npz")


def test_nothing_is_left_when_the_folder_is_missing_or_the_name_impossible(tmp_path: Path) -> None:
    with pytest.raises(OutputError, match="cannot be written: No such file or directory"):
        write_arrays(tmp_path / "none" / "a.npz", {"x": np.zeros(1)})
    with pytest.raises(UsageError, match="cannot be stored"):
        write_arrays(tmp_path / "a.npz", {"a\0b": np.zeros(1)})
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_leaves_nothing(tmp_path: Path) -> None:
    def fail(*args: object, **kwargs: object) -> None:
        raise OSError(28, "No space left on device")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(np.lib.format, "write_array", fail)
        with pytest.raises(OutputError, match="No space left on device"):
            write_arrays(tmp_path / "a.npz", {"x": np.zeros(3)})
    assert list(tmp_path.iterdir()) == []
