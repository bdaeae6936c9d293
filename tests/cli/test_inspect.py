"""``edgeinfer inspect`` of models and bundles, word for word."""

import json
import re
import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

import onnx
import pytest

from edgeinfer.bundle.archive import Bundle
from edgeinfer.bundle.reported import checked
from edgeinfer.cli.inspect import _bundle_view
from edgeinfer.errors import BundleError
from edgeinfer.types import Stored
from tests.bundle.test_artifacts import bundle as with_page
from tests.cli.conftest import write_bundle

BUNDLE = """\
{path}: colours, from colours.onnx (onnx)

        name    type     shape
input   image   float32  [N, 2, 2, 3]
output  scores  float32  [N, 3]
input 'image' takes: image, width=2, height=2, layout=NHWC
3 labels, 'red' first

variant                precision   size  engines      median when made
cpu-onnx-fp32          fp32       144 B  onnxruntime         0.0125 ms
onnxruntime-onnx-fp32  fp32       144 B  onnxruntime         0.0125 ms

test vectors: 1 synthetic:image
trust: data only, no machine code
made with: onnx 1.2.3
full report: edgeinfer inspect {path} --report report.html
"""

MODEL = """\
colours.onnx: onnx, opset ai.onnx 17

        name    type     shape
input   image   float32  [N, 2, 2, 3]
output  scores  float32  [N, 3]

operator    count
ReduceMean      1
all             1

no weights
note: 1 of 1 nodes had no name; named by operator and number
"""


def test_a_bundle(cli: Any, bundle: Path) -> None:
    result = cli("inspect", bundle)
    assert (result.code, result.err) == (0, "")
    assert result.out == BUNDLE.format(path=bundle)


def test_a_model(cli: Any, model: Path) -> None:
    result = cli("inspect", model)
    assert (result.code, result.out) == (0, MODEL)


def test_json(cli: Any, bundle: Path, model: Path) -> None:
    made = json.loads(cli("inspect", bundle, "--json").out)
    assert made["kind"] == "bundle"
    assert [v["id"] for v in made["variants"]] == ["cpu-onnx-fp32", "onnxruntime-onnx-fp32"]
    assert made["report"] == {"made": "for a test"}
    source = json.loads(cli("inspect", model, "--json").out)
    assert source["inputs"] == [{"name": "image", "dtype": "float32", "shape": ["N", 2, 2, 3]}]
    assert source["operators"] == {"ReduceMean": 1}


def test_the_layers_of_a_conversion(cli: Any, bundle: Path, model: Path, tmp_path: Path) -> None:
    made = tmp_path / "made.edge"
    assert (
        cli("convert", model, "-t", "onnxruntime", "-t", "rpi5", "--layers", "-o", made).code == 0
    )
    result = cli("inspect", made, "--layers")
    assert result.code == 0
    lines = result.out.splitlines()
    first = "onnxruntime-onnx-fp32: errors in onnxruntime (cpu) on vector 0"
    assert lines[0] == f"{first}, times by ONNX Runtime's profiler"
    assert lines[1].split() == [
        "layer",
        "operator",
        "signal",
        "to",
        "error",
        *["largest", "error", "us", "step"],
    ]
    assert "ReduceMean" in lines[2]
    assert "rpi5-tflite-fp32: errors in litert (cpu) on vector 0" in lines
    assert (
        "note: this machine is none of the target's kind, so its times would say nothing" in lines
    )
    data = json.loads(cli("inspect", made, "--json").out)
    assert [row["op"] for row in data["report"]["layers"]["rpi5-tflite-fp32"]["rows"]] == [
        "ReduceMean"
    ]
    refused = cli("inspect", bundle, "--layers")
    assert refused.code == 2
    assert "was converted without --layers" in refused.err


def test_a_name_of_a_stranger_is_no_line_of_ours(cli: Any, tmp_path: Path) -> None:
    odd = write_bundle(tmp_path / "m.edge", name="m\ntrust: signed by key 0123; data only")
    lines = cli("inspect", odd).out.splitlines()
    assert [line for line in lines if line.startswith("trust:")] == [
        "trust: data only, no machine code"
    ]


@pytest.mark.parametrize(
    ("report", "problem"),
    [
        ({"variants": None}, "variants: expected a list, received null"),
        ({"variants": [[]]}, "variants[0]: expected an object, received a list"),
        ({"variants": [{"id": "a"}]}, "variants[0]: lacks 'engines'"),
        (
            {"variants": [{"id": "a", "engines": [{"verdict": 1}]}]},
            "variants[0].engines[0].verdict: expected a text, received a number",
        ),
        ({"layers": 3}, "layers: expected an object, received a number"),
        ({"layers": {"a": {"engine": "x"}}}, "layers.a: lacks 'device'"),
    ],
)
def test_a_report_of_another_form_is_refused(report: Any, problem: str) -> None:
    with pytest.raises(BundleError, match=re.escape(f"report.json: {problem}")):
        checked(report, "m.edge: report.json")


def test_the_report_is_taken_out(cli: Any, bundle: Path, model: Path) -> None:
    path = bundle.with_name("report.json")
    result = cli("inspect", bundle, "--report", path)
    assert (result.code, result.err) == (0, f"wrote {path}\n")
    assert json.loads(path.read_text()) == {"made": "for a test"}
    assert cli("inspect", bundle, "--report", path).code == 2
    assert cli("inspect", bundle, "--report", path, "--overwrite", "-q").code == 0
    assert "has no report.html" in cli("inspect", bundle, "--report", "r.html").err
    assert "ends with .html or .json" in cli("inspect", bundle, "--report", "r.pdf").err
    assert "only a bundle has a report" in cli("inspect", model, "--report", "r.html").err


def test_a_strangers_page_is_not_written(
    cli: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A browser runs what is in it."""
    path, page = tmp_path / "m.edge", tmp_path / "r.html"
    with_page(path, "onnx", report=b"{}")
    refused = cli("inspect", path, "--report", page)
    assert refused.code == 2
    assert "report.html is a page that a browser runs, and no trusted key signed" in refused.err
    assert not page.exists()
    noted = cli("extract", path, "-o", tmp_path / "out")
    assert "report.html is left out: whoever opens it runs it" in noted.out
    assert not list(tmp_path.rglob("report.html"))
    monkeypatch.setenv("EDGEINFER_NATIVE", "allow")
    assert cli("inspect", path, "--report", page).code == 0
    assert page.read_bytes() == b"report.html"


def test_what_cannot_be_read(cli: Any, tmp_path: Path) -> None:
    text, damaged = tmp_path / "text.onnx", tmp_path / "damaged.edge"
    text.write_text("hello")
    damaged.write_bytes(write_bundle(tmp_path / "m.edge").read_bytes()[:200])
    for path, code in ((text, 1), (damaged, 1), (tmp_path / "none", 2)):
        result = cli("inspect", path)
        assert (result.code, result.out) == (code, "")
        assert str(path) in result.err
        assert result.err.count("\n") == 1


def test_weights_that_are_nodes_are_weights(cli: Any, tmp_path: Path) -> None:
    text = """<ir_version: 8, opset_import: ["" : 17]>
    g (float[2] x) => (float[2] y) { w = Constant <value = float[2] {1.0, 2.0}> ()
    k = Constant <value_ints = [1, 2, 3]> () y = Add (x, w) }"""
    onnx.save(onnx.parser.parse_model(text), str(tmp_path / "m.onnx"))
    shown = cli("inspect", tmp_path / "m.onnx", "--json")
    assert json.loads(shown.out)["weights"] == {
        "float32": {"tensors": 1, "bytes": 8},
        "int64": {"tensors": 1, "bytes": 24},
    }
    assert "no weights" not in cli("inspect", tmp_path / "m.onnx").out


def test_integer_borders_and_constraints_are_shown(cli: Any, tmp_path: Path) -> None:
    bundle = write_bundle(tmp_path / "m.edge", constraints={"inputs": "not_nan"})
    with Bundle.open(bundle) as opened:
        manifest = opened.manifest
    stored = {"image": Stored("int8", 0.5, -3)}
    variants = tuple(replace(v, stored=stored) for v in manifest.variants)
    lines = list(_bundle_view(bundle, replace(manifest, variants=variants), {}))
    assert "cpu-onnx-fp32: 'image' is int8, scale 0.5, zero point -3 in the file" in lines
    assert "cpu-onnx-fp32: asks for inputs of values without NaN" in lines


def test_what_needs_consent_is_shown(bundle: Path) -> None:
    with Bundle.open(bundle) as opened:
        manifest = opened.manifest
    first = manifest.variants[0]
    rows = (
        replace(first, id="told", computed_in="bf16", consent="bf16"),
        replace(first, id="own", consent="fp16"),
    )
    lines = list(_bundle_view(bundle, replace(manifest, variants=(first, *rows)), {}))
    assert (
        "told: the same files, computed in bf16; runs where bf16 is allowed (--allow bf16)" in lines
    )
    assert "own: runs where fp16 is allowed (--allow fp16)" in lines


def test_the_line_to_copy_is_fit_for_a_shell(cli: Any, bundle: Path) -> None:
    odd = bundle.rename(bundle.with_name("it's (1).edge"))
    line = cli("inspect", odd).out.splitlines()[-1]
    words = shlex.split(line.removeprefix("full report: "))
    assert words == ["edgeinfer", "inspect", str(odd), "--report", "report.html"]


def test_a_widened_budget_is_told_of_all_that_share_the_artifact(cli: Any, tmp_path: Path) -> None:
    engines = [{"verdict": "pass, budget widened x30 (oracles disagree)"}]
    report = {"variants": [{"id": "cpu-onnx-fp32", "engines": engines}]}
    with Bundle.open(write_bundle(tmp_path / "m.edge")) as bundle:
        lines = list(_bundle_view(bundle.location, bundle.manifest, report))
    for target in ("cpu", "onnxruntime"):
        assert f"{target}-onnx-fp32: pass, budget widened x30 (oracles disagree)" in lines
