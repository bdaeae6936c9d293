"""Small files ask for little work: what grows, grows with their size, and the rest is refused."""

import contextlib
import io
import json
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytest

import edgeinfer
from edgeinfer.bundle import archive, ziprules
from edgeinfer.errors import BundleError
from tests.trust import marked
from tests.trust.marked import Mark

GROWTH = 2.5
"""Times the work that twice the input may take."""


class Name(str):
    """A text that counts how often it is compared."""

    compared = 0

    def __eq__(self, other: object) -> bool:
        Name.compared += 1
        return str.__eq__(self, other)

    __hash__ = str.__hash__


def _comparisons(act: Callable[[], object]) -> int:
    Name.compared = 0
    with contextlib.suppress(BundleError, ValueError):
        act()
    return Name.compared


def _steps(act: Callable[[], object]) -> int:
    """Count what Python's interpreter executes, which no other work on the machine changes."""
    count = 0

    def step(frame: FrameType, event: str, argument: object) -> Any:
        nonlocal count
        frame.f_trace_opcodes = True
        count += event == "opcode"
        return step

    before = sys.gettrace()
    # Python 3.12 tells of opcodes from the next settrace on after some frame requested them.
    sys._getframe().f_trace_opcodes = True
    sys.settrace(step)
    try:
        with contextlib.suppress(BundleError):
            act()
    finally:
        sys.settrace(before)
    return count


def _grows_with(make: Callable[[int], Callable[[], object]], size: int) -> None:
    """Linear work doubles, quadratic work quadruples."""
    # Once unwatched: what is made at the first time only is not counted.
    with contextlib.suppress(BundleError):
        make(size)()
    once, twice = _steps(make(size)), _steps(make(2 * size))
    assert once > size
    assert twice <= GROWTH * once, f"twice the input takes {twice / once:.1f} times the steps"


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    folder = tmp_path_factory.mktemp("plain")
    bundle = marked.write(folder / "b.edge", folder, Mark(folder / "mark"), formats=("onnx",))
    with zipfile.ZipFile(bundle) as opened:
        return {name: opened.read(name) for name in opened.namelist()}


def _written(path: Path, members: dict[str, bytes], compress: int = zipfile.ZIP_STORED) -> Path:
    with zipfile.ZipFile(path, "w", compress) as out:
        for name, content in members.items():
            out.writestr(zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0)), content, compress)
    return path


def _manifest(plain: dict[str, bytes], edit: Callable[[Any], object]) -> bytes:
    data = json.loads(plain["manifest.json"])
    edit(data)
    return json.dumps(data).encode()


def test_keys_given_twice_are_found_in_one_pass() -> None:
    pairs = [(Name(f"k{i}"), 1) for i in range(1_000)]
    assert _comparisons(lambda: archive._no_duplicates([*pairs, pairs[-1]])) < 3_000
    with pytest.raises(BundleError, match="'k1' is given twice"):
        archive._json("manifest.json", b'{"k0":1,"k1":1,"k1":2,"k1":3}')


def test_members_given_twice_are_found_in_one_pass() -> None:
    infos = [zipfile.ZipInfo(f"m{i}") for i in range(1_000)]
    for info in infos:
        info.filename = Name(info.filename)
    assert _comparisons(lambda: ziprules._problem([*infos, infos[-1]], 1 << 20)) < 5_000
    assert "'m999' is there twice" in ziprules._problem([*infos, infos[-1]], 1 << 20)


def test_folders_in_each_other_are_looked_at_once() -> None:
    from edgeinfer.bundle.paths import collisions

    def make(count: int) -> Callable[[], object]:
        names = [f"{i}/" + "d/" * 150 + "f" for i in range(count)]
        return lambda: collisions(names)

    _grows_with(make, 50)
    assert collisions(["a/b", "a/b.c", "a/b/c/d"]) == [
        "'a/b' is a file and the folder of 'a/b/c/d'"
    ]


@pytest.mark.sample(2)
@pytest.mark.parametrize("what", ["variants", "inputs", "preprocessing", "labels", "extra_files"])
def test_wrong_elements_of_a_manifest_are_not_all_kept(
    plain: dict[str, bytes], tmp_path: Path, what: str
) -> None:
    def make(count: int) -> Callable[[], object]:
        def edit(data: Any) -> None:
            data[what] = (
                {str(i): 0 for i in range(count)} if what == "preprocessing" else [0] * count
            )

        raw = _manifest(plain, edit)
        path = _written(tmp_path / f"{count}.edge", {**plain, "manifest.json": raw})
        return lambda: edgeinfer.Bundle.open(path)

    _grows_with(make, 500)
    with pytest.raises(BundleError) as caught:
        make(100_000)()
    assert len(str(caught.value)) < 10_000


def test_many_variants_and_many_inputs_do_not_multiply(
    plain: dict[str, bytes], tmp_path: Path
) -> None:
    def make(count: int) -> Callable[[], object]:
        def edit(data: Any) -> None:
            (first, *_), (tensor, *_) = data["variants"], data["inputs"]
            data["variants"] = [{**first, "id": f"v{i}"} for i in range(count)]
            data["inputs"] = [{**tensor, "name": f"x{i}"} for i in range(count)]

        raw = _manifest(plain, edit)
        path = _written(tmp_path / f"{count}.edge", {**plain, "manifest.json": raw})
        return lambda: edgeinfer.Bundle.open(path)

    _grows_with(make, 50)


@pytest.mark.parametrize(
    "raw",
    [
        b'{"a":[' + b",".join([b"[]"] * 300_000) + b"]}",
        b'{"a":[' + b",".join([b"1"] * 3_000_000) + b"]}",
        b'{"a":"' + b"x" * (archive.MAX_MANIFEST + 1) + b'"}',
    ],
    ids=["lists", "values", "bytes"],
)
def test_a_manifest_is_bounded(plain: dict[str, bytes], tmp_path: Path, raw: bytes) -> None:
    path = _written(tmp_path / "b.edge", {**plain, "manifest.json": raw})
    with pytest.raises(BundleError, match=r"is larger than|has more than"):
        edgeinfer.Bundle.open(path)


def test_another_encoding_of_a_manifest_is_refused(plain: dict[str, bytes], tmp_path: Path) -> None:
    text = plain["manifest.json"].decode()
    for encoding in ("utf-16", "utf-32", "utf-8-sig"):
        path = _written(tmp_path / "b.edge", {**plain, "manifest.json": text.encode(encoding)})
        with pytest.raises(BundleError, match="is not valid JSON"):
            edgeinfer.Bundle.open(path)


def test_a_report_and_a_vector_are_bounded(
    plain: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = _written(tmp_path / "b.edge", plain)
    monkeypatch.setattr(archive, "MAX_VECTOR", 100)
    with edgeinfer.Bundle.open(path) as opened:
        with pytest.raises(BundleError, match=r"vectors/0.npz is larger than 0 KiB"):
            list(opened.vectors())
        record = opened.manifest.vectors[0].file
        with pytest.raises(BundleError, match="is larger than 0 KiB"):
            opened.read(record, 10)


def test_what_grows_much_when_it_is_unpacked_is_refused(
    plain: dict[str, bytes], tmp_path: Path
) -> None:
    zeros = {**plain, "x": bytes(32 << 20)}
    path = _written(tmp_path / "b.edge", zeros, zipfile.ZIP_DEFLATED)
    with pytest.raises(BundleError, match="decompression bomb"):
        edgeinfer.Bundle.open(path)
    stream = io.BytesIO()
    np.savez_compressed(stream, x=np.zeros(16 << 20, np.uint8))
    assert len(stream.getvalue()) < 1 << 20


def test_the_labels_of_a_sample_are_taken_in_turn(tmp_path: Path) -> None:
    """Each sample once added up the samples before each other one."""
    from edgeinfer.media.samples import open_data
    from edgeinfer.types import TensorSpec

    def make(count: int) -> Callable[[], object]:
        path = tmp_path / f"{count}.npz"
        np.savez_compressed(path, x=np.zeros((count, 2), np.float32), labels=np.arange(count))
        return lambda: list(open_data(path, [TensorSpec("x", "float32", (1, 2))]).samples())

    _grows_with(make, 100)
