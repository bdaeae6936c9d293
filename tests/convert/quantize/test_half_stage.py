"""A conversion to half precision says which arithmetic was checked, and fails in that."""

from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest

import edgeinfer
from edgeinfer.convert.quantize import half_ranges, half_repair
from edgeinfer.errors import VerifyError
from tests.convert.quantize.conftest import graph


@pytest.fixture(autouse=True)
def _in_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EDGEINFER_IN_PROCESS", "1")


@pytest.fixture(scope="module")
def squares(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model whose inner squares reach a million."""
    rng = np.random.default_rng(0)
    model = graph(
        """<ir_version: 10, opset_import: ["" : 24]> g (float[2,16] x) => (float[2,40] y)
        <float[16,16] w, float[16,40] v, float k, float s> {
          a = MatMul(x, w)
          b = Mul(a, k)
          c = Mul(b, b)
          d = Mul(c, s)
          y = MatMul(d, v)
        }""",
        w=(rng.normal(size=(16, 16)) * 0.3).astype(np.float32),
        v=(rng.normal(size=(16, 40)) * 0.3).astype(np.float32),
        k=np.asarray(400, np.float32),
        s=np.asarray(1e-4, np.float32),
    )
    path = tmp_path_factory.mktemp("squares") / "squares.onnx"
    ir.save(model, path)
    return path


def test_the_artifact_is_checked_in_the_arithmetic_of_the_device(
    squares: Path, tmp_path: Path
) -> None:
    out = tmp_path / "o.edge"
    report = edgeinfer.export(squares, out, targets=["onnxruntime"], precision="fp16").report
    (variant,) = report.variants
    assert [e.backend for e in variant.engines] == ["onnxruntime", "half-arithmetic"]
    assert all(e.passed and e.outputs for e in variant.engines)
    (line,) = (n for n in variant.notes if "arithmetic of half-precision hardware" in n)
    assert "within the budget; 4 of 4 inputs" in line
    lines = [c.lines for c in report.changes if c.stage == "half precision"]
    assert [text.split(" needs")[0] for text in lines[0]] == ["fp16: Mul 'c'", "fp16: Mul 'd'"]
    assert "half-arithmetic" in report.to_html()


def test_what_passes_in_single_precision_alone_fails(
    squares: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(half_ranges, "outside", lambda model, samples: {})
    monkeypatch.setattr(half_repair, "first_part", lambda model, good: frozenset())
    with pytest.raises(VerifyError) as caught:
        edgeinfer.export(squares, tmp_path / "o.edge", targets=["onnxruntime"], precision="fp16")
    assert "half-arithmetic: output 'y': 80 of 80 elements differ in NaN" in str(caught.value)
    assert "first diverging node Mul" in str(caught.value)


def test_what_no_range_shows_is_repaired(
    squares: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first part of the model stays in single precision, as little of it as will do."""
    monkeypatch.setattr(half_ranges, "outside", lambda model, samples: {})
    out = tmp_path / "o.edge"
    report = edgeinfer.export(squares, out, targets=["onnxruntime"], precision="fp16").report
    (change,) = (c for c in report.changes if c.stage == "half precision")
    assert change.lines == (
        "fp16: the first 3 of 4 nodes stay fp32: the result left its budget without",
    )
    assert report.variants[0].precision == "fp16+fp32"
    assert all(e.passed for e in report.variants[0].engines)


def test_the_shortest_first_part_is_found() -> None:
    body = "\n".join(f"v{i + 1} = Neg(v{i})" for i in range(20))
    model = graph(
        f"""<ir_version: 10, opset_import: ["" : 24]> g (float[2,4] v0) => (float[2,4] y)
        <float[4,4] w> {{ {body} y = MatMul(v20, w) }}""",
        w=np.ones((4, 4), np.float32),
    )
    asked: list[int] = []

    def good(names: frozenset[str]) -> bool:
        asked.append(len(names))
        return len(names) >= 13

    assert half_repair.first_part(model, good) == frozenset(f"v{i + 1}" for i in range(13))
    assert len(asked) <= 7
    # The last product is never given up: then nothing would be left in half precision.
    assert half_repair.first_part(model, lambda names: "y" in names) == frozenset()


def test_engines_that_unpack_halves_are_told_from_devices_that_compute_in_them(
    squares: Path, tmp_path: Path
) -> None:
    out = tmp_path / "o.edge"
    report = edgeinfer.export(squares, out, targets=["openvino"], precision="fp16").report
    (line,) = (n for n in report.variants[0].notes if "computed in fp32" in n)
    assert "NOT within the budget (output 'y'" in line
    assert report.variants[0].passed
