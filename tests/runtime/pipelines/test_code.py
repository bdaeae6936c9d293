"""The library of a bundle: used where it fits, told of where it does not."""

import platform
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import edgeinfer
from edgeinfer.bundle.archive import Bundle
from edgeinfer.bundle.made import remember_made
from edgeinfer.bundle.writer import BundleWriter
from edgeinfer.heads import Classify, DetectGrid
from edgeinfer.runtime.pipelines import ImagePipeline
from edgeinfer.runtime.pipelines.code import SWITCH, TRIALS, open_code
from edgeinfer.types import ImageInput
from tests.runtime.pipelines.conftest import MakeBundle

pytest.importorskip("PIL")

COLOURS = """
colours (float[N, 3, 16, 16] image) => (float[N, 3] scores)
{ scores = ReduceMean <axes = [2, 3], keepdims = 0> (image) }
"""
BOXES = """
boxes (float[1, 1, 10, 6] image) => (float[1, 10, 6] found)
{
    shape = Constant <value_ints = [1, 10, 6]> ()
    found = Reshape (image, shape)
}
"""
NOISE = np.random.default_rng(0).integers(0, 256, (90, 120, 3), dtype=np.uint8)

WithCode = Callable[[Path, Path], Path]


@pytest.fixture
def with_code(tmp_path: Path) -> WithCode:
    """Write a bundle anew with a library in it."""

    def write(bundle: Path, library: Path) -> Path:
        with Bundle.open(bundle) as opened, BundleWriter(tmp_path / "with.edge") as writer:
            manifest = opened.manifest
            for record in (*manifest.variants[0].files, *manifest.extra_files):
                writer.add_bytes(record.path, opened.read(record))
            added = writer.add_file("code/x86_64.so", library)
            files = (*manifest.extra_files, added)
            path = writer.finish(replace(manifest, extra_files=files))
            assert not remember_made(writer.digest)
            return path

    return write


@pytest.fixture
def colours(make: MakeBundle) -> Path:
    said = {"preprocessing": {"image": ImageInput(16, 16)}, "labels": ("red", "green", "blue")}
    return make("colours", COLOURS, head=Classify(top=3), **said)


def _pipeline(bundle: Path) -> ImagePipeline:
    found = edgeinfer.pipeline(bundle, threads=1)
    assert isinstance(found, ImagePipeline)
    return found


def test_a_pipeline_uses_it_and_says_so(
    colours: Path, library: Path, with_code: WithCode, monkeypatch: pytest.MonkeyPatch
) -> None:
    with _pipeline(colours) as plain:
        expected = plain(NOISE)
        assert plain.model.around == ["images by Pillow: the bundle has no code for this machine"]
    bundle = with_code(colours, library)
    with _pipeline(bundle) as code:
        assert code.model.around == ["images by compiled code for x86-64-v3"]
        assert code(NOISE) == expected
    monkeypatch.setenv(SWITCH, "off")
    with _pipeline(bundle) as switched:
        assert switched.model.around == [f"images by Pillow: {SWITCH}=off"]
        assert switched(NOISE) == expected


def test_a_detector_uses_it_too(make: MakeBundle, library: Path, with_code: WithCode) -> None:
    said = {"preprocessing": {"image": ImageInput(6, 10, color="GRAY", scale=1.0)}}
    plain = make("boxes", BOXES, head=DetectGrid(box="xyxy", threshold=90.0), **said)
    with _pipeline(plain) as before, _pipeline(with_code(plain, library)) as after:
        assert after.model.around == [
            "images by compiled code for x86-64-v3",
            "boxes by compiled code for x86-64-v3",
        ]
        found = before(NOISE)
        assert found
        assert after(NOISE) == found


def test_one_for_another_machine_is_not_looked_at(
    colours: Path, library: Path, with_code: WithCode, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundle = with_code(colours, library)
    monkeypatch.setattr(platform, "machine", lambda: "riscv64")
    with Bundle.open(bundle) as opened:
        assert open_code(opened) == (None, "the bundle has no code for this machine")


def test_one_that_this_cpu_does_not_understand_is_refused(
    colours: Path, library: Path, with_code: WithCode, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = frozenset({"fpu", "sse2"})
    monkeypatch.setattr("edgeinfer.backends.tvm.library.cpu_features", lambda: known)
    with _pipeline(with_code(colours, library)) as code:
        (about,) = code.model.around
    assert about.startswith("images by Pillow: the bundle's code cannot be used: ")
    assert "this CPU lacks avx" in about


@pytest.mark.parametrize("damage", ["cut", "empty", "text"])
def test_one_that_is_damaged_is_refused(
    colours: Path, library: Path, with_code: WithCode, tmp_path: Path, damage: str
) -> None:
    bad = tmp_path / "bad.so"
    content = library.read_bytes()
    bad.write_bytes({"cut": content[: len(content) // 2], "empty": b"", "text": b"hello"}[damage])
    with _pipeline(with_code(colours, bad)) as code:
        (about,) = code.model.around
        assert about.startswith("images by Pillow: the bundle's code cannot be used: ")
        assert len(code(NOISE)) == 3


def test_one_that_ends_its_process_is_refused(
    colours: Path,
    library: Path,
    with_code: WithCode,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def ends(path: str, request: object) -> str:
        return "signal SIGILL"

    monkeypatch.setattr(TRIALS, "attempt", ends)
    monkeypatch.setattr(TRIALS, "remembered", {})
    with _pipeline(with_code(colours, library)) as code:
        (about,) = code.model.around
    told = "ends the process: signal SIGILL; remembered; `edgeinfer cache clear` forgets it"
    assert about.endswith(told)
