import io
import json
import os
import shutil
import stat
import struct
import subprocess
import sys
import textwrap
import time
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgeinfer.bundle.archive import Bundle
from edgeinfer.bundle.manifest import Manifest
from edgeinfer.bundle.writer import BundleWriter
from edgeinfer.errors import BundleError, ClosedError, OutputError, UsageError

MODEL = "variants/cpu-onnx-fp32/model.onnx"


def refusal(path: Path, *, verify: bool = True) -> str:
    with pytest.raises(BundleError) as caught:
        Bundle.open(path, verify=verify)
    assert "\n" not in str(caught.value)
    assert str(caught.value).startswith(str(path))
    return str(caught.value).removeprefix(f"{path}: ")


def members(path: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(path) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def rezip(path: Path, contents: dict[Any, bytes], method: int = zipfile.ZIP_STORED) -> None:
    with zipfile.ZipFile(path, "w", method) as archive:
        for name, data in contents.items():
            archive.writestr(name, data)


def edit_manifest(contents: dict[str, bytes], edit: Callable[[dict[str, Any]], object]) -> None:
    data = json.loads(contents["manifest.json"])
    edit(data)
    contents["manifest.json"] = json.dumps(data).encode()


@pytest.mark.parametrize("form", ["zipped", "folder"])
def test_both_forms_read_alike(form: str, request: pytest.FixtureRequest) -> None:
    path: Path = request.getfixturevalue(form)
    with Bundle.open(path) as bundle:
        assert bundle.manifest.name == "small"
        assert bundle.report() == {"fine": True}
        (feeds, expected), *rest = bundle.vectors()
        assert not rest
        np.testing.assert_array_equal(feeds["ids"], np.array([5, -1]))
        assert feeds["x"].dtype == np.float32
        np.testing.assert_array_equal(expected['{"1": "y"}'], np.full((2, 4), 0.5, np.float32))
        first, second = bundle.paths(bundle.manifest.variants[0])
        assert first.read_bytes() == bundle.read(bundle.manifest.variants[0].files[0])
        assert first.parent == second.parent
        assert second.name == "model.onnx.data"
        assert bundle.notes == []


def test_a_folder_is_used_in_place(folder: Path) -> None:
    with Bundle.open(folder) as bundle:
        assert bundle.paths(bundle.manifest.variants[0])[0] == folder / MODEL


def test_a_zip_is_unpacked_once_for_all_loads(zipped: Path) -> None:
    with Bundle.open(zipped) as bundle:
        path = bundle.paths(bundle.manifest.variants[0])[0]
        inode = path.stat().st_ino
    copy = zipped.with_name("copy.edge")
    shutil.copy(zipped, copy)
    with Bundle.open(copy) as bundle:
        assert bundle.paths(bundle.manifest.variants[0])[0].stat().st_ino == inode
        assert str(path).startswith(os.environ["EDGEINFER_CACHE"])


def test_a_damaged_cache_is_unpacked_again(zipped: Path) -> None:
    with Bundle.open(zipped) as bundle:
        path = bundle.paths(bundle.manifest.variants[0])[0]
    original = path.read_bytes()
    path.write_bytes(original[:-1] + b"?")
    with Bundle.open(zipped) as bundle:
        assert bundle.paths(bundle.manifest.variants[0])[0].read_bytes() == original


def test_an_unusable_cache_gives_a_private_folder_and_a_note(
    zipped: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_bytes(b"")
    monkeypatch.setenv("EDGEINFER_CACHE", str(tmp_path / "file"))
    with Bundle.open(zipped) as bundle:
        path = bundle.paths(bundle.manifest.variants[0])[0]
        assert path.is_file()
        assert "cannot be written" in bundle.notes[0]
        assert len(bundle.notes) == 1
    assert not path.exists()


def test_a_cache_that_cannot_be_written_any_more_is_read(
    zipped: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Bundle.open(zipped) as bundle:
        before = bundle.paths(bundle.manifest.variants[0])

    def refuse(*_: str) -> Path:
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr("edgeinfer.bundle.archive.writable_folder", refuse)
    with Bundle.open(zipped) as bundle:
        assert bundle.paths(bundle.manifest.variants[0]) == before
        assert bundle.notes == []


def test_a_full_cache_is_said_and_nothing_stays(
    small_disk: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    writer_of_small: Callable[..., Manifest],
) -> None:
    path, model = tmp_path / "big.edge", np.random.default_rng(0).bytes(2 << 20)
    writer_of_small(path, model=model)
    monkeypatch.setenv("EDGEINFER_CACHE", str(small_disk))
    with Bundle.open(path) as bundle:
        found = bundle.paths(bundle.manifest.variants[0])[0]
        assert found.read_bytes() == model
        assert len(bundle.notes) == 1
        assert "No space left on device): unpacked into a temporary folder" in bundle.notes[0]
    assert not found.exists()
    assert not [p for p in small_disk.rglob("*") if p.is_file()]


@pytest.mark.parametrize("place", ["folder", "memory"])
def test_files_lie_together_where_the_cache_has_room_for_the_first_only(
    small_disk: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    writer_of_small: Callable[..., Manifest],
    place: str,
) -> None:
    path, weights = tmp_path / "big.edge", np.random.default_rng(0).bytes(2 << 20)
    writer_of_small(path, weights=weights)
    monkeypatch.setenv("EDGEINFER_CACHE", str(small_disk / "cache"))
    if place == "memory":
        monkeypatch.setattr("tempfile.tempdir", str(small_disk))
    with Bundle.open(path) as bundle:
        model, data = bundle.paths(bundle.manifest.variants[0])
        assert data.read_bytes() == weights
        assert model.parent == data.parent
        assert len(bundle.notes) == (2 if place == "memory" else 1)


def test_without_any_disk_a_bundle_is_unpacked_into_memory(
    small_disk: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    writer_of_small: Callable[..., Manifest],
) -> None:
    path, model = tmp_path / "big.edge", np.random.default_rng(0).bytes(2 << 20)
    writer_of_small(path, model=model)
    monkeypatch.setenv("EDGEINFER_CACHE", str(small_disk / "cache"))
    monkeypatch.setattr("tempfile.tempdir", str(small_disk))
    with Bundle.open(path) as bundle:
        found = bundle.paths(bundle.manifest.variants[0])
        assert found[0].read_bytes() == model
        assert len({file.parent for file in found}) == 1
        assert [note.rpartition(": ")[2] for note in bundle.notes] == [
            "unpacked into a temporary folder, again at every load",
            "unpacked into memory, again at every load",
        ]
    assert not found[0].exists()
    assert not [p for p in small_disk.rglob("*") if p.is_file()]


@pytest.mark.parametrize("is_whole", [False, True])
def test_what_a_killed_process_left_half_unpacked_goes(zipped: Path, is_whole: bool) -> None:
    with Bundle.open(zipped) as bundle:
        path = bundle.paths(bundle.manifest.variants[0])[0]
    if not is_whole:
        path.unlink()
    old, new = path.parent / ".unpack-old", path.parent / ".unpack-new"
    old.write_bytes(b"")
    new.write_bytes(b"")
    os.utime(old, (time.time() - 120,) * 2)
    with Bundle.open(zipped) as bundle:
        bundle.paths(bundle.manifest.variants[0])
    assert not old.exists()
    assert new.exists()


def test_nowhere_to_unpack_is_said(
    zipped: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_bytes(b"")
    monkeypatch.setenv("EDGEINFER_CACHE", str(tmp_path / "file"))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "file"))
    monkeypatch.setattr("edgeinfer.bundle.scratch._MEMORY", str(tmp_path / "none"))
    with (
        Bundle.open(zipped) as bundle,
        pytest.raises(OutputError, match="set EDGEINFER_CACHE or TMPDIR"),
    ):
        bundle.paths(bundle.manifest.variants[0])


def test_a_closed_bundle_says_so(zipped: Path, manifest: Manifest) -> None:
    bundle = Bundle.open(zipped)
    bundle.close()
    bundle.close()
    with pytest.raises(ClosedError, match="the bundle is closed"):
        bundle.read(manifest.variants[0].files[0])


def test_a_record_of_another_bundle_is_refused(zipped: Path, manifest: Manifest) -> None:
    from dataclasses import replace

    with Bundle.open(zipped) as bundle, pytest.raises(UsageError, match="not a file of this"):
        bundle.path(replace(manifest.variants[0].files[0], sha256="0" * 64))


def test_nothing_there(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no such file or folder"):
        Bundle.open(tmp_path / "none.edge")


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("x.edge", b"", "is not a bundle: the file is empty"),
        ("x.edge", b"just text", "is not a bundle: expected a folder or a zip file"),
        ("m.onnx", b"\x08\x0a", "is an ONNX model, not a bundle; convert it first"),
        ("m.ONNX", b"\x08\x0a", "is an ONNX model, not a bundle; convert it first"),
        ("m.pt2", b"PK\x03\x04", "is a PyTorch program, not a bundle; convert it first"),
        ("x.edge", b"PK\x03\x04 and no more", "is a damaged or cut off zip"),
    ],
)
def test_other_files_are_told_apart(tmp_path: Path, name: str, data: bytes, message: str) -> None:
    path = tmp_path / name
    path.write_bytes(data)
    assert refusal(path).startswith(message)


def test_a_zip_of_something_else(tmp_path: Path) -> None:
    path = tmp_path / "x.edge"
    rezip(path, {"a.txt": b"x"})
    assert refusal(path) == "is not a bundle: it has no manifest.json"
    rezip(path, {"input:0.npy": b"an array"})
    assert refusal(path) == "is not a bundle: it has no manifest.json"
    rezip(path, {"model/manifest.json": b"{}"})
    assert refusal(path).startswith("has its manifest.json in model/: pack the folder's contents")
    package = tmp_path / "m.mlpackage"
    (package / "Data").mkdir(parents=True)
    for name in ("Manifest.json", "Data/model.mlmodel"):
        (package / name).write_bytes(b"{}")
    assert refusal(package).startswith("is a Core ML package, not a bundle; convert with -o")
    (tmp_path / "empty").mkdir()
    assert refusal(tmp_path / "empty") == "is not a bundle: it has no manifest.json"


@pytest.mark.parametrize("keep", [0.1, 0.5, 0.9, 0.999])
def test_a_truncated_zip(zipped: Path, keep: float) -> None:
    data = zipped.read_bytes()
    zipped.write_bytes(data[: int(len(data) * keep)])
    assert refusal(zipped).startswith("is a damaged or cut off zip")


@pytest.mark.sample(20)
@pytest.mark.parametrize("seed", range(60))
def test_a_flipped_byte_is_never_read_as_whole(zipped: Path, seed: int) -> None:
    """A byte that no reader looks at (a date, a comment's place) may change; contents may not."""
    rng = np.random.default_rng(seed)
    before = members(zipped)
    data = bytearray(zipped.read_bytes())
    data[rng.integers(len(data))] ^= 1 << rng.integers(8)
    zipped.write_bytes(data)
    try:
        with Bundle.open(zipped) as bundle:
            for record in bundle.manifest.files().values():
                assert bundle.read(record) == before[record.path]
    except BundleError as e:
        assert "\n" not in str(e)  # noqa: PT017


@pytest.mark.parametrize("verify", [True, False])
@pytest.mark.parametrize("form", ["zipped", "folder"])
def test_an_altered_file(form: str, verify: bool, request: pytest.FixtureRequest) -> None:
    path: Path = request.getfixturevalue(form)
    if form == "zipped":
        contents = members(path)
        contents[MODEL] = contents[MODEL].replace(b"not", b"now")
        rezip(path, contents)
    else:
        (path / MODEL).write_bytes((path / MODEL).read_bytes().replace(b"not", b"now"))
    if verify:
        assert refusal(path).startswith(f"{MODEL} is altered: expected sha256 ")
        return
    with (
        Bundle.open(path, verify=False) as bundle,
        pytest.raises(BundleError, match=r"model\.onnx is altered"),
    ):
        bundle.paths(bundle.manifest.variants[0])


@pytest.mark.parametrize("form", ["zipped", "folder"])
def test_missing_extra_and_longer_files_are_seen_before_hashing(
    form: str, request: pytest.FixtureRequest
) -> None:
    path: Path = request.getfixturevalue(form)
    if form == "zipped":
        contents = members(path)
        contents[MODEL] += b"!"
        del contents["report.json"]
        rezip(path, contents | {"evil.py": b"import os"})
    else:
        (path / MODEL).write_bytes((path / MODEL).read_bytes() + b"!")
        (path / "report.json").unlink()
        (path / "evil.py").write_bytes(b"import os")
    message = refusal(path, verify=False)
    assert "report.json is missing" in message
    assert "evil.py is not listed in the manifest" in message
    assert f"{MODEL} is altered: expected 4100 bytes, received 4101" in message


@pytest.mark.parametrize("target", ["report.json", "variants", "manifest.json"])
def test_links_in_a_folder(folder: Path, tmp_path: Path, target: str) -> None:
    shutil.move(folder / target, tmp_path / "outside")
    (folder / target).symlink_to(tmp_path / "outside")
    assert refusal(folder) == f"{target!r} is a link or a special file"


def test_odd_names_in_a_folder(folder: Path) -> None:
    (folder / os.fsdecode(b"\xff.bin")).write_bytes(b"")
    assert refusal(folder) == "'\\udcff.bin' is not valid Unicode"


def test_a_deep_tree_ends_at_the_longest_path(folder: Path) -> None:
    deep = folder
    for _ in range(250):
        deep /= "d"
        deep.mkdir()
    assert refusal(folder).endswith("is longer than 400 characters")


def test_special_files_in_a_folder(folder: Path) -> None:
    os.mkfifo(folder / "pipe")
    assert refusal(folder) == "'pipe' is a link or a special file"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("../evil", "member '../evil' has a '..' component"),
        ("/etc/evil", "member '/etc/evil' is absolute"),
        ("a\\..\\evil", "member 'a\\\\..\\\\evil' has a backslash"),
        ("C:/evil", "member 'C:/evil' names a drive"),
        ("variants/../../evil", "member 'variants/../../evil' has a '..' component"),
        ("NUL", "member 'NUL' has the component 'NUL', which some systems reserve"),
        ("Report.JSON", "'report.json' and 'Report.JSON' are one file where case does not count"),
    ],
)
def test_names_that_leave_or_collide(zipped: Path, name: str, message: str) -> None:
    contents = {name: b"x", **members(zipped)}
    rezip(zipped, contents)
    assert refusal(zipped) == message


def test_links_in_a_zip(zipped: Path) -> None:
    info = zipfile.ZipInfo("link")
    info.create_system = 3
    info.external_attr = (stat.S_IFLNK | 0o777) << 16
    rezip(zipped, {**members(zipped), info: b"/etc/passwd"})
    assert refusal(zipped) == "member 'link' is a link or a special file"


def test_duplicate_members(zipped: Path) -> None:
    contents = members(zipped)
    with zipfile.ZipFile(zipped, "a") as archive, pytest.warns(UserWarning, match="Duplicate"):
        archive.writestr(MODEL, contents[MODEL])
    assert refusal(zipped) == f"member {MODEL!r} is there twice"


def test_encrypted_members(zipped: Path) -> None:
    data = bytearray(zipped.read_bytes())
    central = data.rindex(b"PK\x01\x02")
    data[central + 8] |= 1
    zipped.write_bytes(data)
    assert "is encrypted" in refusal(zipped)


@pytest.mark.parametrize("method", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_unusual_packing(zipped: Path, method: int) -> None:
    rezip(zipped, dict(members(zipped)), method)
    assert "is packed by a method other than stored or deflated" in refusal(zipped)


def test_a_deflated_bundle_is_fine(zipped: Path) -> None:
    rezip(zipped, dict(members(zipped)), zipfile.ZIP_DEFLATED)
    with Bundle.open(zipped) as bundle:
        assert bundle.paths(bundle.manifest.variants[0])[0].is_file()


def test_a_decompression_bomb_is_seen_before_it_is_unpacked(zipped: Path) -> None:
    rezip(zipped, {**members(zipped), "zeros": bytes(32 << 20)}, zipfile.ZIP_DEFLATED)
    assert "decompression bomb" in refusal(zipped)


def test_members_that_share_bytes(zipped: Path) -> None:
    """The central directory names one member's bytes twice, as an overlapping bomb does."""
    data = zipped.read_bytes()
    contents = members(zipped)
    end = data.rindex(b"PK\x05\x06")
    count, size, start = struct.unpack("<HLL", data[end + 10 : end + 20])
    last = data.rindex(b"PK\x01\x02")
    entry = data[last:end].replace(b"vectors/0.npz", b"vectors/1.npz")
    tail = struct.pack("<4sHHHHLLH", b"PK\x05\x06", 0, 0, count + 1, count + 1, 0, start, 0)
    tail = tail[:12] + struct.pack("<L", size + len(entry)) + tail[16:]
    zipped.write_bytes(data[:end] + entry + tail)
    assert len(members_listed(zipped)) == len(contents) + 1
    assert refusal(zipped).endswith("overlaps another one")


def members_listed(path: Path) -> list[str]:
    with zipfile.ZipFile(path) as archive:
        return archive.namelist()


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (b"{", "manifest.json is not valid JSON"),
        (b"\xff\xfe", "manifest.json is not valid JSON"),
        (b"[" * 100_000, "manifest.json is not valid JSON"),
        (b'{"a": 1, "a": 2}', "manifest.json is not valid JSON: key 'a' is given twice"),
        (b"[]", "manifest: expected a JSON object"),
        (b'{"schema": [2, 0]}', "manifest: schema 2.0 is unknown"),
    ],
)
def test_a_broken_manifest(zipped: Path, raw: bytes, message: str) -> None:
    rezip(zipped, {**members(zipped), "manifest.json": raw})
    assert refusal(zipped).startswith(message)


def test_a_manifest_that_points_outside(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "secret").write_bytes(b"s")
    contents = {"manifest.json": (folder / "manifest.json").read_bytes()}
    edit_manifest(contents, lambda d: d["extra_files"][0].update(path="../secret"))
    (folder / "manifest.json").write_bytes(contents["manifest.json"])
    assert "'../secret' has a '..' component" in refusal(folder)


def npz(**arrays: Any) -> bytes:
    stream = io.BytesIO()
    np.savez(stream, **arrays)
    return stream.getvalue()


X = np.zeros((2, 4), np.float32)
IDS = np.zeros(2, np.int64)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"text", "is not a readable .npz"),
        (npz(**{"in/0": X, "in/1": IDS}), "its arrays are not the manifest's inputs and outputs"),
        (
            npz(**{"in/0": X, "in/1": IDS.astype(np.int32), "out/0": X}),
            "in/1: expected int64, received int32",
        ),
        (
            npz(**{"in/0": np.zeros((2, 5), np.float32), "in/1": IDS, "out/0": X}),
            "in/0: shape [2, 5] does not fit x: float32[N, 4]",
        ),
        (npz(**{"in/0": np.array([{}]), "in/1": IDS, "out/0": X}), "without pickles"),
    ],
)
def test_a_vector_that_does_not_fit(zipped: Path, data: bytes, message: str) -> None:
    import hashlib

    contents = members(zipped)
    contents["vectors/0.npz"] = data
    record = {"sha256": hashlib.sha256(data).hexdigest(), "size_bytes": len(data)}
    edit_manifest(contents, lambda d: d["vectors"][0]["file"].update(record))
    rezip(zipped, dict(contents))
    with Bundle.open(zipped) as bundle, pytest.raises(BundleError) as caught:
        list(bundle.vectors())
    assert message in str(caught.value)


def test_two_processes_may_unpack_at_once(
    tmp_path: Path, writer_of_small: Callable[..., Manifest]
) -> None:
    path = tmp_path / "big.edge"
    writer_of_small(path, model=np.random.default_rng(0).bytes(8 << 20))
    code = textwrap.dedent(
        """
        import hashlib, sys
        from edgeinfer.bundle.archive import Bundle
        print("ready", flush=True); sys.stdin.readline()
        with Bundle.open(sys.argv[1]) as bundle:
            for record in bundle.manifest.files().values():
                data = bundle.path(record).read_bytes()
                assert hashlib.sha256(data).hexdigest() == record.sha256
        print("fine")
        """
    )
    command = [sys.executable, "-c", code, str(path)]
    jobs = [
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for _ in range(3)
    ]
    for job in jobs:
        assert job.stdout is not None
        assert job.stdout.readline() == "ready\n"
    outputs = []
    for job in jobs:
        assert job.stdin is not None
        job.stdin.write("go\n")
        job.stdin.flush()
    for job in jobs:
        outputs.append(job.communicate(timeout=60)[0])  # noqa: PERF401
    assert outputs == ["fine\n"] * 3
    cache = Path(os.environ["EDGEINFER_CACHE"])
    assert not list(cache.rglob(".unpack-*"))


def _nested(output: Path, writer_of_small: Callable[..., Manifest]) -> Path:
    """Write a bundle with another one in its folder ``inside/it``."""
    with BundleWriter(output) as writer:
        place = writer.folder("inside") / "it"
        writer_of_small(f"{place}/")
        names = sorted(p.relative_to(place).as_posix() for p in place.rglob("*") if p.is_file())
        extra = tuple(writer.adopt(f"inside/it/{name}") for name in names)
        file = writer.add_bytes("variants/a/b", b"c")
        with Bundle.open(place) as inner:
            manifest = inner.manifest
            variant = replace(manifest.variants[0], id="a", files=(file,))
            changes: dict[str, Any] = {"variants": (variant,), "vectors": (), "name": "whole"}
            writer.finish(replace(manifest, **changes, extra_files=extra))
    return output


@pytest.mark.parametrize("name", ["whole.edge", "whole"])
def test_a_bundle_in_a_bundle_is_one_of_its_own(
    name: str, tmp_path: Path, writer_of_small: Callable[..., Manifest]
) -> None:
    if name == "whole":
        (tmp_path / name).mkdir()
    output = _nested(tmp_path / name, writer_of_small)
    with Bundle.open(output, native="allow") as whole:
        part = whole.part("inside/it")
        assert (whole.manifest.name, part.manifest.name) == ("whole", "small")
        assert part.location == output / "inside/it"
        assert part.native == whole.native
        part.check()
        assert part.paths(part.manifest.variants[0])[0].read_bytes().startswith(b"not really")
        part.close()
        assert whole.read(whole.manifest.variants[0].files[0]) == b"c"
        with pytest.raises(UsageError, match="there is no bundle in it named 'inside'"):
            whole.part("inside")


def test_files_of_a_variant_are_no_bundle_inside(
    tmp_path: Path, writer_of_small: Callable[..., Manifest]
) -> None:
    with Bundle.open(_nested(tmp_path / "whole.edge", writer_of_small), native="allow") as whole:
        manifest = whole.manifest
        files = (*manifest.variants[0].files, *manifest.extra_files)
        variant = replace(manifest.variants[0], files=files)
        whole.manifest = replace(manifest, variants=(variant,), extra_files=())
        assert whole.manifest.files() == manifest.files()
        # What no list of a manifest's parts shows, nothing opens.
        with pytest.raises(UsageError, match="there is no bundle in it named 'inside/it'"):
            whole.part("inside/it")


def test_an_altered_manifest_inside_is_refused(
    tmp_path: Path, writer_of_small: Callable[..., Manifest]
) -> None:
    output = _nested(tmp_path / "whole.edge", writer_of_small)
    contents = members(output)
    inner = contents["inside/it/manifest.json"]
    contents["inside/it/manifest.json"] = inner.replace(b'"small"', b'"smali"')
    rezip(output, contents)
    with (
        Bundle.open(output, verify=False) as whole,
        pytest.raises(BundleError, match=r"inside/it/manifest\.json is altered"),
    ):
        whole.part("inside/it")
