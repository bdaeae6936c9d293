import errno
import hashlib
import os
import signal
import subprocess
import sys
import textwrap
import time
import zipfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgeinfer.bundle.archive import Bundle
from edgeinfer.bundle.manifest import Manifest, VectorRecord
from edgeinfer.bundle.staging import Staging
from edgeinfer.bundle.writer import BundleWriter
from edgeinfer.errors import BundleError, OutputError, UsageError
from edgeinfer.metrics import compare
from edgeinfer.types import Array, TensorSpec

Small = Callable[..., Manifest]


def test_the_name_decides_the_form(tmp_path: Path, writer_of_small: Small) -> None:
    writer_of_small(tmp_path / "zip.edge")
    writer_of_small(f"{tmp_path}/folder.edge/")
    (tmp_path / "existing").mkdir()
    writer_of_small(tmp_path / "existing")
    assert (tmp_path / "zip.edge").read_bytes()[:4] == b"PK\x03\x04"
    assert (tmp_path / "folder.edge" / "manifest.json").is_file()
    assert (tmp_path / "existing" / "manifest.json").is_file()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["existing", "folder.edge", "zip.edge"]


def test_equal_contents_give_equal_bytes(tmp_path: Path, writer_of_small: Small) -> None:
    writer_of_small(tmp_path / "a.edge")
    time.sleep(2.1 - time.time() % 2)  # the next tick of a zip's clock
    writer_of_small(tmp_path / "b.edge")
    assert (tmp_path / "a.edge").read_bytes() == (tmp_path / "b.edge").read_bytes()


def test_permissions_follow_the_umask(tmp_path: Path, writer_of_small: Small) -> None:
    before = os.umask(0o027)
    try:
        writer_of_small(tmp_path / "a.edge")
        writer_of_small(f"{tmp_path}/b/")
    finally:
        os.umask(before)
    assert (tmp_path / "a.edge").stat().st_mode & 0o777 == 0o640
    assert (tmp_path / "b").stat().st_mode & 0o777 == 0o750


@pytest.mark.parametrize("form", ["zipped", "folder"])
def test_overwrite_must_be_asked_for(
    form: str, request: pytest.FixtureRequest, writer_of_small: Small
) -> None:
    path: Path = request.getfixturevalue(form)
    with pytest.raises(UsageError, match="exists; --overwrite"):
        writer_of_small(path)
    writer_of_small(path, overwrite=True, model=b"new")
    with Bundle.open(path) as bundle:
        assert bundle.read(bundle.manifest.variants[0].files[0]) == b"new"
    assert [p.name for p in path.parent.iterdir()] == [path.name]


def test_what_is_not_a_bundle_is_never_replaced(tmp_path: Path, writer_of_small: Small) -> None:
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "cat.jpg").write_bytes(b"cat")
    (tmp_path / "source.onnx").write_bytes(b"model")
    with pytest.raises(UsageError, match="is a folder but not a bundle"):
        writer_of_small(tmp_path / "photos", overwrite=True)
    with pytest.raises(UsageError, match="is a model, not a bundle"):
        writer_of_small(tmp_path / "source.onnx", overwrite=True)
    with pytest.raises(UsageError, match="expected the name of a bundle"):
        writer_of_small("/", overwrite=True)
    assert (tmp_path / "photos" / "cat.jpg").read_bytes() == b"cat"
    assert (tmp_path / "source.onnx").read_bytes() == b"model"
    with zipfile.ZipFile(tmp_path / "letter.docx", "w") as archive:
        archive.writestr("word/document.xml", "dear")
    (tmp_path / "photo.png").write_bytes(b"\x89PNG")
    for name in ("letter.docx", "photo.png"):
        before = (tmp_path / name).read_bytes()
        with pytest.raises(UsageError, match="exists and is not a bundle; choose another output"):
            writer_of_small(tmp_path / name, overwrite=True)
        assert (tmp_path / name).read_bytes() == before


def test_a_bundle_of_any_name_and_a_damaged_one_are_replaced(
    zipped: Path, tmp_path: Path, writer_of_small: Small
) -> None:
    other = tmp_path / "bundle.bin"
    other.write_bytes(zipped.read_bytes())
    (tmp_path / "cut.edge").write_bytes(zipped.read_bytes()[:100])
    (tmp_path / "reserved.bin").touch()
    for path in (other, tmp_path / "cut.edge", tmp_path / "reserved.bin"):
        writer_of_small(path, overwrite=True, model=b"new")
        with Bundle.open(path) as bundle:
            assert bundle.read(bundle.manifest.variants[0].files[0]) == b"new"


@pytest.mark.parametrize("output", ["none/x.edge", "file/x.edge"])
def test_a_folder_that_cannot_be_written(
    tmp_path: Path, output: str, writer_of_small: Small
) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(OutputError, match="cannot write") as caught:
        writer_of_small(tmp_path / output)
    assert "\n" not in str(caught.value)
    assert caught.value.exit_code == 3
    assert [p.name for p in tmp_path.iterdir()] == ["file"]


@pytest.mark.parametrize("error", [ValueError("x"), KeyboardInterrupt(), SystemExit(1)])
def test_leaving_early_leaves_nothing(tmp_path: Path, error: BaseException) -> None:
    with (  # noqa: PT012
        pytest.raises(type(error)),
        BundleWriter(tmp_path / "x.edge") as writer,
    ):
        writer.add_bytes("a", b"a")
        raise error
    assert list(tmp_path.iterdir()) == []


def test_leaving_without_finish_leaves_nothing(tmp_path: Path) -> None:
    with BundleWriter(tmp_path / "x.edge") as writer:
        writer.add_bytes("a", b"a")
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_met_by_others_is_an_output_error(tmp_path: Path) -> None:
    with (
        pytest.raises(OutputError, match="No space left on device"),
        BundleWriter(tmp_path / "x.edge"),
    ):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    assert list(tmp_path.iterdir()) == []


def test_a_disk_without_room_for_the_lock_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = os.open

    def full(path: Any, flags: int, *args: Any, **options: Any) -> int:
        # Takes no byte, neither at the first attempt nor when it is closed.
        if os.path.basename(path) == ".new":
            return opened("/dev/full", os.O_RDWR)
        return opened(path, flags, *args, **options)

    monkeypatch.setattr(os, "open", full)
    with pytest.raises(OSError, match="No space left"):
        Staging(tmp_path / "x.edge")
    assert list(tmp_path.iterdir()) == []


def test_a_failed_overwrite_keeps_the_old_bundle(zipped: Path, writer_of_small: Small) -> None:
    before = zipped.read_bytes()
    with (  # noqa: PT012
        pytest.raises(ValueError, match="late"),
        BundleWriter(zipped, overwrite=True) as writer,
    ):
        writer.add_bytes("a", b"a")
        raise ValueError("late")
    assert zipped.read_bytes() == before


def test_an_invalid_manifest_leaves_nothing(tmp_path: Path, manifest: Manifest) -> None:
    from dataclasses import replace

    target = tmp_path / "new"
    target.mkdir()
    with pytest.raises(BundleError, match="outputs"), BundleWriter(target / "x.edge") as writer:
        writer.finish(replace(manifest, outputs=()))
    assert list(target.iterdir()) == []


def test_manifest_and_files_must_agree(tmp_path: Path, manifest: Manifest) -> None:
    target = tmp_path / "new"
    target.mkdir()
    with pytest.raises(UsageError, match="was not added"), BundleWriter(target / "x") as writer:
        writer.finish(manifest)
    with (  # noqa: PT012
        pytest.raises(UsageError, match="a is not in the manifest"),
        BundleWriter(target / "x") as writer,
    ):
        writer.add_bytes("a", b"a")
        writer.finish(manifest)
    assert list(target.iterdir()) == []


@pytest.mark.parametrize("move", [True, False])
def test_files_are_hashed_while_they_are_taken(tmp_path: Path, move: bool) -> None:
    data = np.random.default_rng(0).bytes(3 << 20)
    source = tmp_path / "weights"
    source.write_bytes(data)
    with BundleWriter(tmp_path / "x.edge") as writer:
        record = writer.add_file("variants/v/weights", source, move=move)
        assert record.sha256 == hashlib.sha256(data).hexdigest()
        assert record.size_bytes == len(data)
        assert source.exists() is not move


def test_a_folder_of_the_bundle_can_be_written_by_others(tmp_path: Path) -> None:
    with BundleWriter(tmp_path / "x.edge") as writer:
        (writer.folder("variants/v") / "model.xml").write_bytes(b"<net/>")
        record = writer.adopt("variants/v/model.xml")
        assert record.size_bytes == 6
        with pytest.raises(OutputError, match="No such file"):
            writer.adopt("variants/v/other")
        with pytest.raises(UsageError, match=r"has a '\.\.' component"):
            writer.folder("../x")


@pytest.mark.parametrize(
    ("dtype", "values"),
    [
        ("string", np.array(["a", "dög", ""], object)),
        ("bfloat16", np.array([1.5, -2.0, np.inf])),
        ("float8_e4m3fn", np.array([1.5, -2.0, 0.0])),
        ("int4", np.array([-8, 7, 0])),
        ("bool", np.array([True, False, True])),
        ("float16", np.array([1.5, np.nan, -0.0])),
        ("complex64", np.array([1 + 2j, 0, -1j])),
    ],
)
def test_every_type_survives_in_a_vector(tmp_path: Path, dtype: str, values: Array) -> None:
    from edgeinfer.bundle.vectors import dtype_of, load_vector

    pytest.importorskip("ml_dtypes")
    spec = (TensorSpec("x", dtype, (3,)),)
    array = values.astype(dtype_of(dtype))
    with BundleWriter(tmp_path / "x.edge") as writer:
        record = writer.add_vector(spec, spec, {"x": array}, {"x": array}, "user")
        assert isinstance(record, VectorRecord)
        data = (writer.folder("vectors") / "0.npz").read_bytes()
    feeds, expected = load_vector("v", data, spec, spec)
    for result in (feeds["x"], expected["x"]):
        assert result.dtype == array.dtype
        assert result.tolist().__repr__() == array.tolist().__repr__()


def test_scalars_and_empty_arrays_survive(tmp_path: Path) -> None:
    from edgeinfer.bundle.vectors import load_vector
    from edgeinfer.bundle.writer import dump_vector

    ins = (TensorSpec("s", "int64", ()), TensorSpec("e", "float32", (0, 3)))
    feeds = {"s": np.array(3), "e": np.zeros((0, 3), np.float32)}
    data = dump_vector(ins, (), feeds, {})
    back, _ = load_vector("v", data, ins, ())
    assert back["s"].shape == ()
    assert back["e"].shape == (0, 3)


def test_a_part_of_a_large_output_survives_and_a_damaged_one_is_refused() -> None:
    from edgeinfer.bundle.vectors import load_vector
    from edgeinfer.bundle.writer import dump_vector
    from edgeinfer.parts import Part, part

    outs = (TensorSpec("y", "float32", ("n", 900)),)
    array = np.arange(3600, dtype=np.float32).reshape(4, 900)
    given = part(array, 1000)
    _, back = load_vector("v", dump_vector((), outs, {}, {"y": given}), (), outs)
    assert compare(back["y"], array).max_abs == 0
    assert compare(back["y"], array + 1).max_abs == 1
    with pytest.raises(BundleError, match="does not fit"):
        load_vector("v", dump_vector((), outs, {}, {"y": part(array.T, 1000)}), (), outs)
    assert isinstance(given, Part)
    given.grid = np.array([[4, 900], [0, 0], [1, 7]])
    with pytest.raises(BundleError, match="a part of"):
        load_vector("v", dump_vector((), outs, {}, {"y": given}), (), outs)


KILLED = textwrap.dedent(
    """
    import sys, time
    from edgeinfer.bundle.writer import BundleWriter
    with BundleWriter(sys.argv[1], overwrite=True) as writer:
        writer.add_bytes("variants/v/model", b"half")
        print("half", flush=True)
        time.sleep(60)
    """
)


def heed_ctrl_c() -> None:
    """A background job of a shell ignores Ctrl-C, and so would its children."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def half_written(output: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", KILLED, output]
    job = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, preexec_fn=heed_ctrl_c)
    assert job.stdout is not None
    assert job.stdout.readline() == "half\n"
    return job


def test_a_killed_writer_leaves_no_half_bundle_and_the_next_one_cleans_up(
    zipped: Path, writer_of_small: Small
) -> None:
    before = zipped.read_bytes()
    job = half_written(str(zipped))
    job.kill()
    job.communicate(timeout=30)
    assert zipped.read_bytes() == before
    assert len(list(zipped.parent.iterdir())) == 2
    writer_of_small(zipped, overwrite=True)
    assert [p.name for p in zipped.parent.iterdir()] == [zipped.name]


def test_a_second_writer_of_one_output_is_refused(zipped: Path, writer_of_small: Small) -> None:
    before = zipped.read_bytes()
    job = half_written(str(zipped))
    try:
        with pytest.raises(OutputError, match=f"process {job.pid} is writing it; wait for its end"):
            writer_of_small(zipped, overwrite=True)
        writer_of_small(zipped.with_name("other.edge"))
        assert len(list(zipped.parent.iterdir())) == 3
    finally:
        job.send_signal(signal.SIGINT)
        job.communicate(timeout=30)
    assert zipped.read_bytes() == before
    writer_of_small(zipped, overwrite=True)


def test_of_many_writers_at_once_one_is_let_in(tmp_path: Path) -> None:
    def begin(_: int) -> BundleWriter | None:
        try:
            return BundleWriter(tmp_path / "x.edge")
        except OutputError:
            return None

    with ThreadPoolExecutor(8) as pool:
        begun = [writer for writer in pool.map(begin, range(8)) if writer is not None]
    assert len(begun) == 1
    with begun[0]:
        pass
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(sys.platform != "linux", reason="needs a folder that takes no files")
def test_no_temporary_name_is_told() -> None:
    with pytest.raises(OutputError) as caught:
        BundleWriter("/proc/x")
    assert str(caught.value) == "cannot write /proc/x: No such file or directory"


@pytest.mark.parametrize("size", [2 << 20, 700 << 10])
@pytest.mark.parametrize("slash", ["", "/"])
def test_a_full_disk(small_disk: Path, size: int, slash: str, writer_of_small: Small) -> None:
    """The larger model does not fit once; the smaller one fits, but not next to its own copy."""
    model = np.random.default_rng(0).bytes(size)
    if slash and size < 1 << 20:
        writer_of_small(f"{small_disk}/x/", model=model)
        return
    with pytest.raises(OutputError, match="No space left on device") as caught:
        writer_of_small(f"{small_disk}/x{slash}", model=model)
    assert "\n" not in str(caught.value)
    assert list(small_disk.iterdir()) == []


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(OutputError, match=r"x\.edge: the folder .*gone does not exist"):
        BundleWriter(tmp_path / "gone" / "x.edge")
