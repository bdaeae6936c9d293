"""``edgeinfer compare``: the same within budget is 0, another answer is 1 and names the node."""

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from edgeinfer.bundle.archive import Bundle
from edgeinfer.bundle.manifest import EngineRequirement
from edgeinfer.metrics import OutputMetrics
from tests.cli.conftest import write_bundle

OPENVINO = EngineRequirement("openvino")

NET = """
<ir_version: 8, opset_import: ["" : 17]>
net (float[1, 2, 4, 6] {x}) => (float[1, 2, 4, 6] {y})
<float half = {{0.5}}, float bias = {{{bias}}}>
{{
    a = Sigmoid({x})
    b = Mul(a, half)
    c = Add(b, bias)
    {y} = Tanh(c)
}}
"""

SLIGHTLY_OFF = """
<ir_version: 8, opset_import: ["" : 17]>
colours (float[N, 2, 2, 3] image) => (float[N, 3] scores)
<float factor = {1.01}>
{
    more = Mul(image, factor)
    scores = ReduceMean <axes = [1, 2], keepdims = 0> (more)
}
"""

LAST = """
<ir_version: 8, opset_import: ["" : 17]>
net (float[1, 4, 6, 2] picture) => (float[1, 4, 6, 2] answer)
<float half = {0.5}, float bias = {0.25}>
{
    a = Sigmoid(picture)
    b = Mul(a, half)
    c = Add(b, bias)
    answer = Tanh(c)
}
"""


def save(path: Path, text: str) -> Path:
    onnx.save(onnx.parser.parse_model(text), str(path))
    return path


def net(path: Path, *, bias: float = 0.25, x: str = "x", y: str = "y") -> Path:
    return save(path, NET.format(bias=bias, x=x, y=y))


@pytest.mark.usefixtures("conversions_apart")
def test_the_same(cli: Any, tmp_path: Path) -> None:
    result = cli("compare", net(tmp_path / "a.onnx"), net(tmp_path / "b.onnx"), "--json")
    assert result.code == 0
    found = json.loads(result.out)
    assert found["same"] is True
    assert found["inputs"] > 1
    (row,) = found["rows"]
    assert row["outputs"]["y"]["max_abs"] == 0
    assert (row["budget"], row["node"], row["why"]) == ("fp32", "", "")


def test_the_first_node_that_diverges(cli: Any, tmp_path: Path) -> None:
    """Not the Tanh, whose result is the output, nor what comes before the altered sum."""
    result = cli("compare", net(tmp_path / "a.onnx"), net(tmp_path / "b.onnx", bias=0.3))
    assert result.code == 1
    assert "DIFFERENT" in result.out
    assert "b.onnx: first diverging node Add " in result.out
    assert result.out.endswith("made up for a.onnx: 1 of 1 DIFFERENT\n")


def test_graphs_without_a_common_name(cli: Any, tmp_path: Path) -> None:
    other = NET.replace("a =", "p =").replace("(a,", "(p,").replace("b =", "q =")
    other = other.replace("(b,", "(q,").replace("c =", "r =").replace("(c)", "(r)")
    b = save(tmp_path / "b.onnx", other.format(bias=0.3, x="u", y="v"))
    result = cli("compare", net(tmp_path / "a.onnx"), b)
    assert result.code == 1
    assert "inputs are paired by their order, for their names differ: 'x' is 'u'" in result.out
    assert "no node named: the two graphs have no value of the same name" in result.out


@pytest.mark.sample(1)
@pytest.mark.parametrize("turned", [False, True])
def test_channels_may_lie_elsewhere(cli: Any, tmp_path: Path, turned: bool) -> None:
    pair = [net(tmp_path / "a.onnx"), save(tmp_path / "b.onnx", LAST)]
    result = cli("compare", *(reversed(pair) if turned else pair))
    assert result.code == 0
    assert f"is given with its channels {'first' if turned else 'last'}" in result.out
    assert "  equal   exact  same\n" in result.out


def test_every_artifact_of_a_bundle_on_its_vectors(cli: Any, model: Path, tmp_path: Path) -> None:
    bundle = write_bundle(tmp_path / "m.edge", vectors=3)
    result = cli("compare", model, bundle)
    assert result.code == 0
    assert "cpu-onnx-fp32  onnxruntime" in result.out
    assert result.out.endswith("3 inputs of cpu-onnx-fp32: the same within budget\n")


def test_vectors_that_an_artifact_refuses_are_not_judged(
    cli: Any, model: Path, tmp_path: Path
) -> None:
    refusing: dict[str, Any] = {"vectors": 2, "nan_in": 1, "constraints": {"inputs": "not_nan"}}
    result = cli("compare", model, write_bundle(tmp_path / "m.edge", **refusing))
    assert result.code == 0
    assert "1 of 2 inputs are not judged" in result.out
    refusing["vectors"], refusing["nan_in"] = 1, 0
    result = cli("compare", model, write_bundle(tmp_path / "n.edge", **refusing))
    assert result.code == 2
    assert "of 1 inputs none is judged at fp32" in result.err


def test_where_the_oracles_part_the_budget_is_wider(cli: Any, tmp_path: Path) -> None:
    """As for ``verify``; the answers of the model differ, as rounding may move them."""
    model = save(tmp_path / "off.onnx", SLIGHTLY_OFF)
    assert cli("compare", model, write_bundle(tmp_path / "m.edge")).code == 1
    spread = {"scores": OutputMetrics(12, 0.02, 0.02, 30.0, 30.0, 0.02)}
    result = cli("compare", model, write_bundle(tmp_path / "w.edge", spread=spread))
    assert result.code == 0
    assert "only within the widened budget: input 0, output 'scores'" in result.out


def test_ones_own_data(cli: Any, tmp_path: Path) -> None:
    """On these the two are alike, though not on others: both sigmoids are at their end."""
    b = NET.replace("Sigmoid({x})", "HardSigmoid({x})").format(bias=0.25, x="x", y="y")
    pair = net(tmp_path / "a.onnx"), save(tmp_path / "b.onnx", b)
    np.savez(tmp_path / "x.npz", x=np.full((3, 2, 4, 6), 50.0, np.float32))
    assert cli("compare", *pair).code == 1
    result = cli("compare", *pair, "--data", tmp_path / "x.npz")
    assert result.code == 0
    assert result.out.endswith("x.npz: the same within budget\n")


def test_a_coarser_budget(cli: Any, tmp_path: Path) -> None:
    pair = net(tmp_path / "a.onnx"), net(tmp_path / "b.onnx", bias=0.3)
    assert cli("compare", *pair, "--precision", "static_wi8_ai8").code == 0
    result = cli("compare", *pair, "--precision", "fp3")
    assert result.code == 2
    assert "fp3" in result.err


def test_a_device_has_no_converter(
    cli: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It compares all the same; what only the converter can tell is requested or left out."""
    monkeypatch.setitem(sys.modules, "edgeinfer.convert.verify.divergence", None)
    monkeypatch.setitem(sys.modules, "edgeinfer.convert.quantize.readback_apart", None)
    pair = net(tmp_path / "a.onnx"), net(tmp_path / "b.onnx", bias=0.3)
    np.savez(tmp_path / "x.npz", x=np.ones((1, 2, 4, 6), np.float32))
    result = cli("compare", *pair, "--data", tmp_path / "x.npz", "--precision", "fp32")
    assert result.code == 1
    assert "no node named: the converter reads graphs, and it is not installed here" in result.out
    result = cli("compare", *pair, "--data", tmp_path / "x.npz")
    assert result.code == 2
    assert "give --precision" in result.err


def test_the_most_precise_artifact_of_a_bundle_is_right(
    cli: Any, bundle: Path, model: Path, tmp_path: Path
) -> None:
    """Not the first one that it has."""
    pytest.importorskip("openvino")
    with Bundle.open(bundle) as opened:
        coarse, fine = opened.manifest.variants
        # Two artifacts: those that are equal are run once.
        other = replace(fine, id="fine", precision="fp32")
        variants = (replace(coarse, precision="fp16"), replace(other, engines=(OPENVINO,)))
    result = cli("compare", write_bundle(tmp_path / "m.edge", variants=variants), model)
    assert result.code == 0
    assert result.out.startswith("right: fine on openvino")


@pytest.mark.sweep
def test_an_ir_and_a_tflite_file(cli: Any, tmp_path: Path) -> None:
    """Of other formats; an IR is no graph that inputs are made up for."""
    ov = pytest.importorskip("openvino")
    pytest.importorskip("ai_edge_litert")
    a = net(tmp_path / "a.onnx")
    ov.save_model(ov.convert_model(a), str(tmp_path / "a.xml"), compress_to_fp16=False)
    assert cli("compare", a, tmp_path / "a.xml").code == 0
    assert cli("convert", a, "-t", "rpi5", "-o", tmp_path / "a.tflite").code == 0
    result = cli("compare", tmp_path / "a.xml", tmp_path / "a.tflite")
    assert result.code == 0
    assert "made up for a.tflite" in result.out
    result = cli("compare", tmp_path / "a.xml", tmp_path / "a.xml")
    assert result.code == 2
    assert "give --data FILE.npz" in result.err


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    ("text", "told"),
    [
        (
            NET.replace("float[1, 2, 4, 6] {x}", "double[1, 2, 4, 6] {x}").replace(
                "Sigmoid({x})", "Cast <to = 1> ({x})"
            ),
            "float64",
        ),
        (
            NET.replace("{x}) =>", "{x}, float z) =>").replace("Tanh(c)", "Add(c, z)"),
            "do not go together",
        ),
        (NET.replace("4, 6]", "4, 7]"), "expected x: float32[1, 2, 4, 7]"),
    ],
)
def test_models_that_do_not_go_together(cli: Any, tmp_path: Path, text: str, told: str) -> None:
    b = save(tmp_path / "b.onnx", text.format(bias=0.25, x="x", y="y"))
    result = cli("compare", net(tmp_path / "a.onnx"), b)
    assert result.code in (1, 2)
    assert told in result.err
    assert result.out == ""


def test_what_no_engine_opens(cli: Any, tmp_path: Path) -> None:
    a = net(tmp_path / "a.onnx")
    (tmp_path / "b.pt2").write_bytes(b"x")
    for b, told in (("b.pt2", "convert it first"), ("none.onnx", "no such file")):
        result = cli("compare", a, tmp_path / b)
        assert result.code == 2
        assert told in result.err
