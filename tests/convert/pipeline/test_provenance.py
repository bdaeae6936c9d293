"""A bundle says what made it and what is in it."""

import importlib.util
import json
import platform
from pathlib import Path

import onnx
import pytest

import edgeinfer
from edgeinfer.bundle.manifest import SourceRecord
from edgeinfer.convert.pipeline.provenance import SBOM_NAME, tools_of

GRAPH = """
<ir_version: 8, opset_import: ["" : 17]>
twice (float[2] x) => (float[2] y) { y = Add (x, x) }
"""


@pytest.fixture
def made(tmp_path: Path) -> Path:
    model = onnx.parser.parse_model(GRAPH)
    return edgeinfer.export(model, tmp_path / "m.edge", targets=["onnxruntime"]).path


def test_what_took_part_is_named_and_nothing_else(made: Path) -> None:
    with edgeinfer.Bundle.open(made) as bundle:
        tools = bundle.manifest.tools
        report = bundle.report()
    assert tools["python"] == platform.python_version()
    assert {"numpy", "onnx", "onnx-ir", "onnxruntime"} <= set(tools)
    assert not {"torch", "apache-tvm", "gcc", "coremltools", "ai-edge-litert"} & set(tools)
    assert report is not None
    assert report["tools"] == tools


def test_what_made_and_judged_code_is_named() -> None:
    if importlib.util.find_spec("tvm") is None:
        pytest.skip("apache-tvm is not installed")
    source = SourceRecord("onnx", "m", "0" * 64)
    tools = tools_of(source, (), ["litert", "tvm"], ["gcc"])
    assert {"apache-tvm", "gcc"} <= set(tools)
    assert "torch" not in tools
    assert tools_of(source, (), [], ["no-such-compiler"])["no-such-compiler"] == "unknown"


def test_the_bill_of_materials_lists_every_file_with_its_hash(made: Path) -> None:
    with edgeinfer.Bundle.open(made) as bundle:
        files = bundle.manifest.files()
        bill = json.loads(bundle.read(files[SBOM_NAME]))
        tools = bundle.manifest.tools
    assert (bill["bomFormat"], bill["specVersion"]) == ("CycloneDX", "1.6")
    listed = {}
    for part in bill["components"]:
        for file in part.get("components", [part]):
            listed[file["name"]] = file["hashes"][0]["content"]
    assert listed == {p: f.sha256 for p, f in files.items() if p != SBOM_NAME}
    named = {c["name"]: c["version"] for c in bill["metadata"]["tools"]["components"]}
    assert named == tools
    references = [part["bom-ref"] for part in bill["components"]]
    assert len(set(references)) == len(references)
    assert bill["dependencies"] == [{"ref": "bundle", "dependsOn": references}]


def test_the_same_model_gives_the_same_number(tmp_path: Path) -> None:
    numbers = set()
    for name in "ab":
        made = edgeinfer.export(
            onnx.parser.parse_model(GRAPH), tmp_path / f"{name}.edge", targets=["onnxruntime"]
        )
        with edgeinfer.Bundle.open(made.path) as bundle:
            (variant,) = bundle.manifest.variants
            numbers.add(variant.files[0].sha256)
    assert len(numbers) == 1
