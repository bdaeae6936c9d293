"""Artifacts out of their bundle: whole or not at all, and under the names that were requested."""

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from edgeinfer.bundle.archive import Bundle
from edgeinfer.bundle.artifacts import ArtifactWriter, chosen, extract
from edgeinfer.bundle.formats import format_of
from edgeinfer.bundle.manifest import EngineRequirement, Manifest, SourceRecord, Variant
from edgeinfer.bundle.trust import runs_opened
from edgeinfer.bundle.writer import BundleWriter
from edgeinfer.errors import BundleError, OutputError, UsageError
from edgeinfer.types import TensorSpec

FORMS = {
    "tflite": ("model.tflite",),
    "openvino_ir": ("model.xml", "model.bin"),
    "onnx": ("model.onnx", "model.onnx.data"),
    "mlprogram": ("model.mlpackage/Manifest.json", "model.mlpackage/Data/weights/weight.bin"),
    "tvm": ("model.so",),
}
"""Files of an artifact, by its format, as the converter names them."""

BESIDE = ("report.json", "report.html", "manifest.json")


def made(writer: BundleWriter, *formats: str, report: bytes = b"report.json") -> Manifest:
    """Put an artifact of each format, a report and a tokenizer's file into a bundle."""
    variants = []
    for format in formats:
        id = f"cpu-{format}-fp32"
        files = tuple(
            writer.add_bytes(f"variants/{id}/{name}", f"{format} {name}".encode())
            for name in FORMS[format]
        )
        engine = EngineRequirement("reference")
        variants.append(Variant(id, f"{format}-device", format, "fp32", files, (engine,)))
    spec = TensorSpec("x", "float32", (1,))
    extra = [
        writer.add_bytes(name, report if name == "report.json" else name.encode())
        for name in ("report.json", "report.html", "pipeline/words.txt", "code/x86_64.so")
    ]
    source = SourceRecord("onnx", "m.onnx", "0" * 64)
    return Manifest("m", (spec,), (spec,), tuple(variants), (), source, extra_files=tuple(extra))


def bundle(place: Path, *formats: str, report: bytes = b"report.json") -> Path:
    with BundleWriter(place) as writer:
        return writer.finish(made(writer, *formats, report=report))


def tree(folder: Path) -> set[str]:
    return {p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file()}


@pytest.mark.parametrize(
    ("output", "format"),
    [
        *((None, ""), ("m.edge", ""), ("M.EDGE", ""), ("m", ""), ("v1.5/", "")),
        *(("m.onnx", "onnx"), ("a/m.TFLITE", "tflite"), ("m.xml", "openvino_ir")),
        *(("m.mlpackage", "mlprogram"), ("m.mlpackage/", "mlprogram"), ("m.aimodel", "aimodel")),
    ],
)
def test_the_name_says_the_format(output: str | None, format: str) -> None:
    assert format_of(output) == format


@pytest.mark.parametrize(
    ("output", "why"),
    [
        ("-", "nothing is written to stdout"),
        ("m.pb", "with the suffix .pb; a bundle ends with .edge"),
        ("m-1.5", "with the suffix .5; a bundle ends with .edge"),
        ("m.tflite/", ".tflite is a file; leave the slash out"),
    ],
)
def test_a_name_that_says_nothing_is_refused(output: str, why: str) -> None:
    with pytest.raises(UsageError, match=why):
        format_of(output)


@pytest.mark.parametrize(
    ("format", "suffix", "files"),
    [
        ("tflite", ".tflite", {"m.tflite"}),
        ("openvino_ir", ".xml", {"m.xml", "m.bin"}),
        ("onnx", ".onnx", {"m.onnx", "model.onnx.data"}),
        (
            *("mlprogram", ".mlpackage"),
            {"m.mlpackage/Manifest.json", "m.mlpackage/Data/weights/weight.bin"},
        ),
    ],
)
def test_one_artifact_with_what_belongs_to_it(
    format: str, suffix: str, files: set[str], tmp_path: Path
) -> None:
    with ArtifactWriter(tmp_path / f"m{suffix}") as writer:
        assert writer.finish(made(writer, format)) == tmp_path / f"m{suffix}"
    assert tree(tmp_path) == files | {f"m{suffix}.{name}" for name in BESIDE}
    assert writer.files[0] == tmp_path / f"m{suffix}"
    texts = {(tmp_path / f).read_text() for f in files}
    assert texts == {f"{format} {name}" for name in FORMS[format]}
    with pytest.raises(UsageError, match="exists; --overwrite"):
        ArtifactWriter(tmp_path / f"m{suffix}")


def test_forms_of_one_model_have_room_beside_each_other(tmp_path: Path) -> None:
    for format, name in (("tflite", "m.tflite"), ("onnx", "m.onnx"), ("mlprogram", "m.mlpackage")):
        with ArtifactWriter(tmp_path / name) as writer:
            writer.finish(made(writer, format))
    assert {f"{n}.report.html" for n in ("m.tflite", "m.onnx", "m.mlpackage")} <= tree(tmp_path)


@pytest.mark.parametrize("format", ["tflite", "openvino_ir", "mlprogram"])
def test_an_artifact_is_replaced_when_that_is_asked_for(format: str, tmp_path: Path) -> None:
    output = tmp_path / Path("m").with_suffix(Path(FORMS[format][0].partition("/")[0]).suffix)
    for _ in range(2):
        with ArtifactWriter(output, overwrite=True) as writer:
            writer.finish(made(writer, format))
    assert len(tree(tmp_path)) == len(FORMS[format]) + len(BESIDE)


def test_weights_of_others_are_never_replaced(tmp_path: Path) -> None:
    (tmp_path / "m.bin").write_text("precious")
    with pytest.raises(UsageError, match=r"m\.bin: exists and is of something else"):
        ArtifactWriter(tmp_path / "m.xml", overwrite=True)
    (tmp_path / "model.onnx.data").write_text("precious")
    with (
        pytest.raises(UsageError, match=r"may be another model's"),
        ArtifactWriter(tmp_path / "m.onnx", overwrite=True) as writer,
    ):
        writer.finish(made(writer, "onnx"))
    assert tree(tmp_path) == {"m.bin", "model.onnx.data"}
    assert (tmp_path / "model.onnx.data").read_text() == "precious"


def test_what_is_no_artifact_is_never_replaced(tmp_path: Path) -> None:
    (tmp_path / "m.onnx").mkdir()
    (tmp_path / "m.mlpackage").write_text("a file")
    for name in ("m.onnx", "m.mlpackage"):
        with pytest.raises(UsageError, match="choose another output"):
            ArtifactWriter(tmp_path / name, overwrite=True)


@pytest.mark.parametrize("formats", [("tflite", "onnx"), ("tvm",)])
def test_one_artifact_of_the_kind_asked_for_or_nothing(
    formats: tuple[str, ...], tmp_path: Path
) -> None:
    with (
        pytest.raises(UsageError, match=r"one artifact was requested|another form"),
        ArtifactWriter(tmp_path / "m.tflite") as writer,
    ):
        writer.finish(made(writer, *formats))
    assert not list(tmp_path.iterdir())


def test_a_rename_that_fails_leaves_what_was_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    output = tmp_path / "m.mlpackage"
    with ArtifactWriter(output) as writer:
        writer.finish(made(writer, "mlprogram"))
    before = {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()}
    rename = os.rename

    def fails(source: Path, target: Path) -> None:
        if Path(target) == output and "tree" in Path(source).parts:
            raise OSError(28, "No space left on device")
        rename(source, target)

    with ArtifactWriter(output, overwrite=True) as writer:
        manifest = made(writer, "mlprogram")
        monkeypatch.setattr(os, "rename", fails)
        with pytest.raises(OutputError, match="No space left"):
            writer.finish(manifest)
    assert {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()} == before


@pytest.mark.parametrize("native", ["allow", "auto"])
def test_every_variant_in_a_folder_of_its_id(tmp_path: Path, native: Any) -> None:
    path = bundle(tmp_path / "m.edge", "mlprogram", "openvino_ir")
    with Bundle.open(path, verify=False, native=native) as b:
        found = extract(b, tmp_path / "out", b.manifest.variants)
        raw = b.manifest_bytes()
    beside = {"manifest.json", "report.json", "report.html", "pipeline/words.txt"}
    if native == "auto":
        # A browser runs what a stranger wrote.
        beside -= {"report.html"}
    assert tree(tmp_path / "out") == {
        f"cpu-{format}-fp32/{name}"
        for format in ("mlprogram", "openvino_ir")
        for name in {*FORMS[format], *beside}
    }
    assert found[0].artifact == tmp_path / "out" / "cpu-mlprogram-fp32" / "model.mlpackage"
    assert found[1].artifact == tmp_path / "out" / "cpu-openvino_ir-fp32" / "model.xml"
    assert {f.relative_to(tmp_path / "out").as_posix() for e in found for f in e.files} == tree(
        tmp_path / "out"
    )
    assert (tmp_path / "out" / "cpu-mlprogram-fp32" / "manifest.json").read_bytes() == raw


@pytest.mark.parametrize("native", ["allow", "auto"])
def test_what_runs_when_it_is_opened_is_no_strangers(tmp_path: Path, native: Any) -> None:
    """A page was kept back under one name alone, and written where a variant listed it."""
    evil = (
        "page.html",
        "Index.HTM",
        "a.svg",
        "more.xml",
        "run.sh",
        "x.desktop",
        "x.EXE",
        "x.pif",
        "x.inetloc",
    )
    with BundleWriter(tmp_path / "m.edge") as writer:
        manifest = made(writer, "onnx", "openvino_ir")
        onnx, ir = manifest.variants
        files = [writer.add_bytes(f"variants/{onnx.id}/{n}", n.encode()) for n in evil]
        lists = [writer.add_bytes(f"pipeline/sub/{n}", n.encode()) for n in (*evil, "x.so")]
        listed = replace(onnx, files=(*onnx.files, *files))
        extra = (*manifest.extra_files, *lists)
        path = writer.finish(replace(manifest, variants=(listed, ir), extra_files=extra))
    with Bundle.open(path, native=native) as b:
        found = extract(b, tmp_path / "out", b.manifest.variants)
    written = {name.rpartition("/")[2] for name in tree(tmp_path / "out")}
    assert written >= {"model.onnx", "model.xml", "model.bin", "words.txt", "report.json"}
    assert written & {*evil, "x.so"} == ({*evil, "x.so"} if native == "allow" else set())
    left = (*evil, "report.html", *(f"pipeline/sub/{n}" for n in (*evil, "x.so")))
    assert set(found[0].left_out) == (set() if native == "allow" else set(left))


@pytest.mark.parametrize(
    ("path", "format", "runs"),
    [
        ("variants/v/model.xml", "openvino_ir", False),
        ("variants/v/report.xml", "openvino_ir", True),
        ("variants/v/model.xml", "onnx", True),
        ("variants/v/model.onnx.data", "onnx", False),
        ("variants/v/x.settingcontent-ms", "onnx", True),
        ("variants/v/x.docm", "tflite", True),
        ("pipeline/words.txt", "", False),
        ("pipeline/chars", "", False),
        ("pipeline/x.anything", "", True),
        ("report.json", "", False),
        ("report.html", "", True),
    ],
)
def test_names_of_what_runs(path: str, format: str, runs: bool) -> None:
    assert runs_opened(path, format, "variants/v/model.xml") == runs


def test_targets_and_ids_choose(tmp_path: Path) -> None:
    with Bundle.open(bundle(tmp_path / "m.edge", "tflite", "onnx", "tvm")) as b:
        manifest = b.manifest
    ids = [v.id for v in manifest.variants]
    assert [v.id for v in chosen(manifest)] == ids
    assert [v.id for v in chosen(manifest, targets=["onnx-device"])] == [ids[1]]
    assert [v.id for v in chosen(manifest, ids=[ids[2], ids[0]])] == [ids[0], ids[2]]
    with pytest.raises(UsageError, match=r"no variant of 'ios'; the bundle has cpu-tflite-fp32 \("):
        chosen(manifest, targets=["ios", "onnx-device"])


def test_an_altered_file_leaves_nothing(tmp_path: Path) -> None:
    place = tmp_path / "m"
    place.mkdir()
    bundle(place, "tflite", "onnx")
    file = place / "variants" / "cpu-onnx-fp32" / "model.onnx"
    file.write_bytes(file.read_bytes().swapcase())
    with Bundle.open(place, verify=False) as b:
        with pytest.raises(BundleError, match="is altered"):
            extract(b, tmp_path / "out", b.manifest.variants)
        assert not (tmp_path / "out").exists()
        extract(b, tmp_path / "out", b.manifest.variants[:1])
        with pytest.raises(BundleError, match="is altered"):
            extract(b, tmp_path / "out", b.manifest.variants, overwrite=True)
    assert [p.name for p in (tmp_path / "out").iterdir()] == ["cpu-tflite-fp32"]


def test_what_is_there_is_kept(tmp_path: Path) -> None:
    out = tmp_path / "out"
    (out / "cpu-tflite-fp32").mkdir(parents=True)
    (out / "cpu-tflite-fp32" / "mine.txt").write_text("mine")
    (out / "notes.txt").write_text("mine too")
    with Bundle.open(bundle(tmp_path / "m.edge", "tflite")) as b:
        with pytest.raises(UsageError, match="cpu-tflite-fp32: exists; --overwrite"):
            extract(b, out, b.manifest.variants)
        assert tree(out) == {"cpu-tflite-fp32/mine.txt", "notes.txt"}
        extract(b, out, b.manifest.variants, overwrite=True)
        assert "notes.txt" in tree(out)
        with pytest.raises(UsageError, match="is not a folder"):
            extract(b, out / "notes.txt", b.manifest.variants)
        with pytest.raises(OutputError, match="does not exist"):
            extract(b, tmp_path / "no" / "out", b.manifest.variants)
