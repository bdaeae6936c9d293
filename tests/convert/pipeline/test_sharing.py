"""Weights that a bundle's artifacts hold alike lie in it once, and each artifact runs as before."""

import zipfile
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import edgeinfer
from edgeinfer.bundle.archive import Bundle
from edgeinfer.bundle.artifacts import extract
from edgeinfer.bundle.sealer import seal
from edgeinfer.bundle.sealing import Key
from edgeinfer.convert.pipeline import sharing, stages
from edgeinfer.convert.pipeline.entry import ExportResult
from edgeinfer.errors import BundleError
from edgeinfer.types import Array

onnxruntime = pytest.importorskip("onnxruntime")

TEXT = """<ir_version: 8, opset_import: ["" : 17]>
g (float[1,64,8,8] x, int64[1] id) => (float[1,3000] y, float[1,64,16,16] u) {
    a = Conv<pads = [1,1,1,1]>(x, square)
    b = Conv<pads = [1,1,1,1], group = 96>(a, deep)
    t = Tanh(b)
    u = ConvTranspose<strides = [2,2]>(t, up)
    c = GlobalAveragePool(t)
    d = Flatten(c)
    e = MatMul(d, wide)
    r = Gather(table, id)
    y = Add(e, r)
}"""
SHAPES = {
    **{"square": (96, 64, 3, 3), "deep": (96, 1, 3, 3), "up": (96, 64, 2, 2)},
    **{"wide": (96, 3000), "table": (100, 3000)},
}
ENGINES = {"tflite": "ai_edge_litert", "openvino_ir": "openvino"}


def model(seed: int = 0) -> onnx.ModelProto:
    rng = np.random.default_rng(seed)
    proto = onnx.parser.parse_model(TEXT)
    for name, shape in SHAPES.items():
        array = (rng.standard_normal(shape) / 20).astype(np.float32)
        proto.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    return proto


BYTES = sum(4 * int(np.prod(shape)) for shape in SHAPES.values())
RNG = np.random.default_rng(1)
FEEDS: dict[str, Array] = {
    "x": RNG.standard_normal((1, 64, 8, 8)).astype(np.float32),
    "id": np.array([7], np.int64),
}


def export(path: Path | str, *targets: str, **options: Any) -> ExportResult:
    options = {"input_ranges": {"id": (0, 99)}, "overwrite": True, **options}
    return edgeinfer.export(model(), path, targets=targets, **options)


def answers(path: Path, **options: Any) -> dict[str, Any]:
    with edgeinfer.load(path, backend="onnxruntime", measure=False, **options) as session:
        return dict(session.run(FEEDS))


def operators(path: Path, folder: Path) -> Counter[str]:
    """Count what the engine is left with once it has opened a graph."""
    settings = onnxruntime.SessionOptions()
    settings.log_severity_level = 4
    settings.optimized_model_filepath = str(folder / "optimized.onnx")
    onnxruntime.InferenceSession(path, settings)
    graph = onnx.load(folder / "optimized.onnx", load_external_data=False).graph
    return Counter(node.op_type for node in graph.node)


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    ("targets", "holders"), [(("rpi5",), 1), (("cpu",), 1), (("cpu", "rpi5"), 2)]
)
def test_each_weight_lies_in_the_bundle_once(
    targets: tuple[str, ...], holders: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for library in ENGINES.values():
        pytest.importorskip(library)
    done = export(tmp_path / "m.edge", *targets)
    with zipfile.ZipFile(tmp_path / "m.edge") as archive:
        sizes = [i.file_size for i in archive.infolist() if i.filename.startswith("variants/")]
    assert holders * BYTES <= sum(sizes) < (holders + 0.1) * BYTES
    told = [line for change in done.report.changes for line in change.lines if " reads " in line]
    assert len(told) == 1
    assert "which holds the same" in told[0]

    monkeypatch.setattr(sharing, "LEAST_SHARED", 1 << 40)
    export(tmp_path / "plain.edge", *targets)
    shared, plain = answers(tmp_path / "m.edge"), answers(tmp_path / "plain.edge")
    assert shared.keys() == plain.keys() == {"y", "u"}
    for name, array in plain.items():
        np.testing.assert_array_equal(shared[name], array)


@pytest.mark.sample(1)
@pytest.mark.parametrize("target", ["rpi5", "cpu"])
def test_the_engine_is_left_with_the_same_operators(
    target: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for library in ENGINES.values():
        pytest.importorskip(library)
    found = []
    for name, least in (("shared", 1 << 20), ("plain", 1 << 40)):
        monkeypatch.setattr(sharing, "LEAST_SHARED", least)
        export(tmp_path / f"{name}.edge", target)
        with Bundle.open(tmp_path / f"{name}.edge") as bundle:
            ours = [v for v in bundle.manifest.variants if v.format == "onnx"]
            (artifact,) = extract(bundle, tmp_path / name, ours)
        found.append((operators(artifact.artifact, tmp_path), len(artifact.files)))
    (shared, files), (plain, fewer) = found
    assert shared == plain
    assert files == fewer + 1


def test_an_encrypted_bundle_runs_from_memory(tmp_path: Path) -> None:
    pytest.importorskip("cryptography")
    pytest.importorskip("ai_edge_litert")
    export(tmp_path / "m.edge", "rpi5")
    (tmp_path / "k.key").write_text(bytes(range(32)).hex())
    seal(tmp_path / "m.edge", tmp_path / "sealed.edge", Key(bytes(range(32))))
    plain = answers(tmp_path / "m.edge")
    found = answers(tmp_path / "sealed.edge", key=tmp_path / "k.key")
    for name, array in plain.items():
        np.testing.assert_array_equal(found[name], array)


def test_an_altered_weight_is_refused_by_every_artifact_that_reads_it(tmp_path: Path) -> None:
    pytest.importorskip("ai_edge_litert")
    export(f"{tmp_path}/m.edge/", "rpi5")
    (holder,) = tmp_path.glob("m.edge/variants/*/model.tflite")
    with holder.open("r+b") as file:
        file.seek(-1, 2)
        file.write(b"\x7f")
    with pytest.raises(BundleError, match=r"model\.tflite is altered"):
        answers(tmp_path / "m.edge")


def test_weights_stay_where_the_artifact_that_had_them_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("openvino")
    verified = stages._verified

    def judged(written: Any, *rest: Any) -> Any:
        found = verified(written, *rest)
        if written.job.format != "openvino_ir":
            return found
        return {
            p: replace(r, engines=tuple(replace(e, problems=("wrong",)) for e in r.engines))
            for p, r in found.items()
        }

    monkeypatch.setattr(stages, "_verified", judged)
    done = export(f"{tmp_path}/m.edge/", "cpu")
    assert [v.format for v in done.manifest.variants] == ["onnx"]
    there = {f.name for f in tmp_path.glob("m.edge/variants/*/*")}
    assert there == {"model.onnx", "model.bin"}
    monkeypatch.undo()
    answers(tmp_path / "m.edge")


def test_what_saves_little_stays_one_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("ai_edge_litert")
    monkeypatch.setattr(sharing, "LEAST_SHARED", BYTES + 1)
    done = export(tmp_path / "m.edge", "rpi5")
    assert [len(v.files) for v in done.manifest.variants] == [1, 1]


def test_a_graph_without_constants_has_nothing_to_share(tmp_path: Path) -> None:
    pytest.importorskip("openvino")
    text = """<ir_version: 8, opset_import: ["" : 17]>
    g (float[n,4] x) => (float[n,4] y) { y = Cos(x) }"""
    done = edgeinfer.export(onnx.parser.parse_model(text), tmp_path / "m.edge", targets=["cpu"])
    assert {v.format for v in done.manifest.variants} == {"onnx", "openvino_ir"}
    (empty,) = (f for v in done.manifest.variants for f in v.files if f.path.endswith(".bin"))
    assert empty.size_bytes == 0
