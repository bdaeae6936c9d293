"""What was hashed is what is opened, whoever may write the folder it came from."""

import os
import shutil
from pathlib import Path
from typing import Any

import pytest

import edgeinfer
from edgeinfer.bundle import archive, unpacking
from edgeinfer.bundle.manifest import FileRecord
from edgeinfer.bundle.memory import is_in_memory
from edgeinfer.bundle.signer import new_keys, sign
from edgeinfer.bundle.unpacking import copied
from edgeinfer.bundle.writer import put_signatures
from edgeinfer.errors import BundleError
from tests.trust import marked
from tests.trust.marked import Mark

pytest.importorskip("cryptography")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    bundle = marked.write(tmp_path / "b.edge", tmp_path, Mark(tmp_path / "mark"))
    shutil.unpack_archive(bundle, tmp_path / "folder.edge", "zip")
    return tmp_path / "folder.edge"


@pytest.fixture
def swapped_behind_the_hash(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Replace each file of a folder the very moment after it was read; names what was."""
    seen: list[str] = []
    stream = archive.Bundle._stream

    def swap(self: archive.Bundle, record: FileRecord, sink: Any) -> None:
        stream(self, record, sink)
        seen.append(record.path)
        (self.location / record.path).write_bytes(b"swapped")

    monkeypatch.setattr(archive.Bundle, "_stream", swap)
    return seen


def test_files_of_a_signed_folder_are_opened_as_they_were_hashed(
    folder: Path, tmp_path: Path, swapped_behind_the_hash: list[str]
) -> None:
    new_keys(tmp_path / "key", tmp_path / "public")
    with edgeinfer.Bundle.open(folder, verify=False) as opened:
        content, _ = sign(opened.manifest_bytes(), tmp_path / "key")
        want = {r.path: (folder / r.path).read_bytes() for r in opened.manifest.files().values()}
    put_signatures(folder, content)
    with edgeinfer.Bundle.open(folder, verify=False, trusted=[tmp_path / "public"]) as opened:
        for record in opened.manifest.files().values():
            assert opened.path(record).read_bytes() == want[record.path]
            assert folder not in opened.path(record).parents
    assert set(swapped_behind_the_hash) == set(want)


def _sign(folder: Path, tmp_path: Path) -> dict[str, Any]:
    new_keys(tmp_path / "key", tmp_path / "public")
    with edgeinfer.Bundle.open(folder, verify=False) as opened:
        content, _ = sign(opened.manifest_bytes(), tmp_path / "key")
    put_signatures(folder, content)
    return {"trusted": [tmp_path / "public"], "native": "deny"}


def test_what_is_signed_is_the_manifest_that_the_files_were_held_to(folder: Path) -> None:
    place = folder / "manifest.json"
    want = place.read_bytes()
    with edgeinfer.Bundle.open(folder) as opened:
        place.write_bytes(b"swapped")
        assert opened.manifest_bytes() == want


def test_a_load_hashes_each_file_once(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = _sign(folder, tmp_path)
    with edgeinfer.Bundle.open(folder) as opened:
        files = opened.manifest.files().values()
    wanted = sorted((record.sha256, record.size_bytes) for record in files)
    hashed: list[tuple[str, int]] = []

    def counted(stream: Any, sink: Any) -> tuple[str, int]:
        found = copied(stream, sink)
        hashed.append(found)
        return found

    monkeypatch.setattr(archive, "copied", counted)
    monkeypatch.setattr(unpacking, "copied", counted)
    for _ in range(2):
        hashed.clear()
        edgeinfer.load(folder, measure=False, **options).close()
        assert sorted(hashed) == wanted


def test_what_was_swapped_is_refused_though_the_cache_has_what_was_signed(
    folder: Path, tmp_path: Path
) -> None:
    options = _sign(folder, tmp_path)
    edgeinfer.load(folder, measure=False, **options).close()
    with edgeinfer.Bundle.open(folder) as opened:
        files = opened.manifest.files()
    for path in files:
        content = (folder / path).read_bytes()
        (folder / path).write_bytes(bytes(len(content)))
        with pytest.raises(BundleError, match="is altered"):
            edgeinfer.load(folder, measure=False, **options)
        (folder / path).write_bytes(content)


def test_so_is_machine_code_that_is_not_signed(
    folder: Path, swapped_behind_the_hash: list[str]
) -> None:
    with edgeinfer.Bundle.open(folder, verify=False, native="allow") as opened:
        (variant,) = [v for v in opened.manifest.variants if v.format == "tvm"]
        assert opened.paths(variant)[0].read_bytes()[:4] == b"\x7fELF"
    assert swapped_behind_the_hash == [variant.files[0].path]


def test_data_that_nobody_signed_are_opened_where_they_lie(folder: Path) -> None:
    with edgeinfer.Bundle.open(folder) as opened:
        assert opened.paths(opened.manifest.variants[0])[0].parent.parent.parent == folder


@pytest.mark.skipif(os.name != "posix", reason="modes of POSIX")
def test_a_temporary_folder_that_others_may_take_away_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundle = marked.write(tmp_path / "b.edge", tmp_path, Mark(tmp_path / "mark"))
    everybodys = tmp_path / "everybodys"
    (everybodys / "ours").mkdir(parents=True)
    everybodys.chmod(0o777)
    monkeypatch.setenv("EDGEINFER_CACHE", "/dev/null/none")
    monkeypatch.setattr("tempfile.tempdir", str(everybodys / "ours"))
    with edgeinfer.Bundle.open(bundle) as opened:
        path = opened.paths(opened.manifest.variants[0])[0]
        assert everybodys not in path.resolve().parents
        assert is_in_memory(path)
        assert any("everybody may rename what is in" in note for note in opened.notes)


def test_a_cache_that_others_may_write_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundle = marked.write(tmp_path / "b.edge", tmp_path, Mark(tmp_path / "mark"))
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o777)
    monkeypatch.setenv("EDGEINFER_CACHE", str(shared))
    with edgeinfer.Bundle.open(bundle) as opened:
        path = opened.paths(opened.manifest.variants[0])[0]
        assert shared not in path.parents
        (note,) = opened.notes
    assert "can be written by others" in note
    assert not list(shared.iterdir())
