"""What the user names is read whole only while it is as small as such files are."""

import io
import json
import os
import sys
import tracemalloc
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from edgeinfer import bounded
from edgeinfer.bounded import (
    Archive,
    absence,
    json_bytes,
    leads_out,
    open_file,
    parse_json,
    read_bounded,
)
from edgeinfer.bundle.sealing import key_from
from edgeinfer.bundle.signing import pem_of
from edgeinfer.errors import UsageError
from edgeinfer.media.preprocessing import read_labels
from edgeinfer.runtime.difference import pipe_of
from edgeinfer.runtime.serve.options import keys_of


def test_files_are_read_up_to_their_bound(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"x" * 2048)
    assert len(read_bounded(tmp_path / "f", 2048)) == 2048
    with pytest.raises(OSError, match="it has more than 1 KiB"):
        read_bounded(tmp_path / "f", 1024)


def test_a_small_file_takes_no_more_memory_for_a_large_bound(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"x" * 2048)
    tracemalloc.start()
    try:
        assert len(read_bounded(tmp_path / "f", 64 << 20)) == 2048
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs files that tell no size")
def test_a_file_that_tells_no_size_is_read_up_to_its_bound() -> None:
    place = Path("/proc/self/status")
    assert place.stat().st_size == 0
    assert read_bounded(place, 1 << 20).startswith(b"Name:")
    with pytest.raises(OSError, match="it has more than 0 KiB"):
        read_bounded(place, 100)


@pytest.mark.skipif(not Path("/dev/zero").exists(), reason="needs a device that never ends")
def test_devices_that_never_end_are_refused() -> None:
    for read in (lambda p: pem_of(Path(p)), read_labels, key_from, keys_of):
        with pytest.raises(UsageError, match=r"/dev/zero: .*is a device or a pipe; give a file"):
            read("/dev/zero")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs pipes that have names")
def test_pipes_are_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OSError, match="is a device or a pipe") as error:
        open_file(tmp_path / "pipe")
    assert error.value.filename == str(tmp_path / "pipe")


def test_folders_and_what_is_missing_are_told_apart(tmp_path: Path) -> None:
    with pytest.raises(IsADirectoryError):
        open_file(tmp_path)
    with pytest.raises(FileNotFoundError):
        open_file(tmp_path / "x")


def test_it_is_said_why_a_path_is_no_file(tmp_path: Path) -> None:
    assert absence(tmp_path) == "is a folder; name the files in it"
    assert absence(tmp_path / "x") == "no such file"
    assert absence(Path("/dev/null")) == "is a device or a pipe; give a file"


def _listed(count: int) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        for index in range(count):
            archive.writestr(str(index), "")
    return out.getvalue()


def test_a_zip_may_list_so_many_members(monkeypatch: pytest.MonkeyPatch) -> None:
    """``zipfile`` reads what the list holds, whatever number the end of the file gives."""
    monkeypatch.setattr(bounded, "MAX_LISTED", 8)
    assert len(Archive(io.BytesIO(_listed(8))).namelist()) == 8
    raw = bytearray(_listed(9))
    with pytest.raises(zipfile.BadZipFile, match="lists more than 8 members"):
        Archive(io.BytesIO(raw))
    raw[-14:-10] = (1).to_bytes(2, "little") * 2
    with pytest.raises(zipfile.BadZipFile, match="lists more than 8 members"):
        Archive(io.BytesIO(raw))


@pytest.mark.parametrize("kind", [str, bytes])
@pytest.mark.parametrize("piece", ['{"":{}}', "[]", "[[[[]]]]", '{"Ā":"Ā"}', '{"":0}'])
def test_json_of_brackets_is_refused(piece: str, kind: type) -> None:
    def given(count: int) -> str | bytes:
        text = '["\U0001f600",' + f"{piece}," * count + "0]"
        return text if kind is str else text.encode()

    assert len(parse_json(given(1_000))) == 1_002
    with pytest.raises(ValueError, match=r"characters of JSON that take \d+ MiB to read"):
        parse_json(given(2_000_000))


def test_json_that_is_deep_is_refused() -> None:
    with pytest.raises(ValueError, match="nested too deeply"):
        parse_json("[" * 200_000)


_WORST = (
    lambda: "[" + "[]," * 600_000 + "0]",
    lambda: "[" + ("[" * 900 + "]" * 900 + ",") * 700 + "0]",
    lambda: "[" + '{"":0},' * 400_000 + "0]",
    lambda: '{"\U0001f600":["\U0001f600",' + '{"Ā":"Ā"},' * 150_000 + "0]}",
    lambda: "{" + ",".join(f'"{i:x}":0' for i in range(500_000)) + "}",
    lambda: "[" + '"ab",' * 800_000 + "0]",
    lambda: '["\U0001f600",' + '"Āa",' * 500_000 + "0]",
    lambda: "[" + "300," * 800_000 + "0]",
)


@pytest.mark.sample(2)
@pytest.mark.parametrize("text", _WORST)
def test_json_takes_no_more_than_is_reckoned(text: Callable[[], str]) -> None:
    """Else a text that fits the bound takes more than the bound."""
    tracemalloc.start()
    try:
        written = text()
        before, _ = tracemalloc.get_traced_memory()
        tracemalloc.reset_peak()
        read = json.loads(written)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert read
    assert peak - before + sys.getsizeof(written) < json_bytes(written) < 3 * (peak - before)


def test_a_vocabulary_with_merges_is_read() -> None:
    """Half a million merges, as large vocabularies have them, each a list of two."""
    assert len(parse_json("[" + '["ab","c"],' * 500_000 + "0]")) == 500_001


@pytest.mark.skipif(sys.platform == "win32", reason="has no pipes with names")
def test_pipes_that_a_model_takes_for_its_own(tmp_path: Path) -> None:
    model = tmp_path / "m.xml"
    model.write_bytes(b"weights in other.data")
    (tmp_path / "gone.bin").symlink_to(tmp_path / "nowhere")
    assert pipe_of(model) is None
    for name, is_own in (("unlike", False), ("other.data", True), ("m.bin", True)):
        os.mkfifo(tmp_path / name)
        assert (pipe_of(model) == tmp_path / name) is is_own
        (tmp_path / name).unlink()
    package = tmp_path / "m.mlpackage" / "Data"
    package.mkdir(parents=True)
    (package / "x").write_bytes(b"x")
    assert pipe_of(package.parent) is None
    (package / "weights.bin").symlink_to("/dev/zero")
    assert pipe_of(package.parent) == package / "weights.bin"


def test_links_lead_out_but_those_of_a_hub_cache(tmp_path: Path) -> None:
    outside, folder = tmp_path / "key", tmp_path / "model"
    outside.write_text("secret")
    folder.mkdir()
    (folder / "own").write_text("data")
    (folder / "link").symlink_to(outside)
    (folder / "within").symlink_to(folder / "own")
    assert [leads_out(folder / n, folder) for n in ("own", "within", "link")] == [
        False,
        False,
        True,
    ]
    snapshot, blob = tmp_path / "hub/snapshots/ab", tmp_path / "hub/blobs/12"
    snapshot.mkdir(parents=True)
    blob.parent.mkdir()
    blob.write_text("data")
    (snapshot / "config.json").symlink_to(blob)
    (snapshot / "link").symlink_to(outside)
    assert not leads_out(snapshot / "config.json", snapshot)
    assert leads_out(snapshot / "link", snapshot)
