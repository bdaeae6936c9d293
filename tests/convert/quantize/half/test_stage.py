"""A conversion to half precision says which arithmetic was checked, and fails in that."""

from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest

import edgeinfer
from edgeinfer.convert.quantize.half import ranges as half_ranges
from edgeinfer.convert.quantize.half import repair as half_repair
from edgeinfer.convert.verify import Report
from edgeinfer.convert.verify.evaluate import Evaluator
from edgeinfer.errors import InputError, UsageError, VerifyError
from tests.convert.quantize.conftest import graph

SAID = {"x": (-3.0, 3.0)}
"""What the input of ``squares`` holds."""


def halved(source: Path, out: Path, target: str) -> Report:
    done = edgeinfer.export(source, out, targets=[target], precision="fp16", input_ranges=SAID)
    return done.report


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
    report = edgeinfer.export(
        squares, out, targets=["onnxruntime"], precision="fp16", input_ranges=SAID
    ).report
    (variant,) = report.variants
    # An evaluation is no run on a device.
    assert [(e.backend, e.stands_in) for e in variant.engines] == [
        ("onnxruntime", False),
        ("half-arithmetic", True),
    ]
    assert all(e.passed and e.outputs for e in variant.engines)
    (line,) = (n for n in variant.notes if "arithmetic of half-precision hardware" in n)
    assert "within the budget; 6 of 6 inputs" in line
    lines = [c.lines for c in report.changes if c.stage == "half precision"]
    assert [text.split(" needs")[0] for text in lines[0]] == ["fp16: Mul 'c'", "fp16: Mul 'd'"]
    assert "half-arithmetic" in report.to_html()


def test_what_passes_in_single_precision_alone_fails(
    squares: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(half_ranges, "outside", lambda model, samples: {})
    monkeypatch.setattr(half_repair, "first_part", lambda model, good: frozenset())
    with pytest.raises(VerifyError) as caught:
        edgeinfer.export(
            squares,
            tmp_path / "o.edge",
            targets=["onnxruntime"],
            precision="fp16",
            input_ranges=SAID,
        )
    assert "half-arithmetic: output 'y': 80 of 80 elements differ in NaN" in str(caught.value)
    assert "first diverging node Mul" in str(caught.value)


def test_what_a_magnitude_that_nobody_ruled_out_breaks_names_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its place among the vectors of half precision was taken for one among all."""
    monkeypatch.setattr(half_ranges, "outside", lambda model, samples, **about: {})
    monkeypatch.setattr(half_repair, "first_part", lambda model, good: frozenset())
    model = graph("""<ir_version: 10, opset_import: ["" : 24]> g (float[2,16] x) => (float[2,16] y)
        <float s = {0.0001}> { a = Mul(x, x) y = Mul(a, s) }""")
    ir.save(model, tmp_path / "m.onnx")
    with pytest.raises(VerifyError) as caught:
        edgeinfer.export(
            tmp_path / "m.onnx", tmp_path / "o.edge", targets=["onnxruntime"], precision="fp16"
        )
    assert ", synthetic:reach 60000)" in str(caught.value)
    assert "nobody said what the inputs hold: --input-range" in str(caught.value)


def test_what_no_range_shows_is_repaired(
    squares: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first part of the model stays in single precision, as little of it as will do."""
    monkeypatch.setattr(half_ranges, "outside", lambda model, samples: {})
    out = tmp_path / "o.edge"
    report = edgeinfer.export(
        squares, out, targets=["onnxruntime"], precision="fp16", input_ranges=SAID
    ).report
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
    report = edgeinfer.export(
        squares, out, targets=["openvino"], precision="fp16", input_ranges=SAID
    ).report
    (line,) = (n for n in report.variants[0].notes if "computed in fp32" in n)
    assert "NOT within the budget (output 'y'" in line
    assert report.variants[0].passed


def spectrum(tmp_path: Path) -> Path:
    """Powers of a signal in bands, and their logarithm, then products: features and a net."""
    rng = np.random.default_rng(0)
    model = graph(
        """<ir_version: 10, opset_import: ["" : 24]> g (float[1,64] audio) => (float[1,8] y)
        <float[64,33] re, float[64,33] im, float[33,16] mel, float least, float[16,16] w,
         float[16,8] v, float[16] ones> {
          a = MatMul(audio, re)  b = MatMul(audio, im)
          aa = Mul(a, a)  bb = Mul(b, b)  p = Add(aa, bb)
          m = MatMul(p, mel)  c = Max(m, least)  l = Log(c)
          n = LayerNormalization<axis=-1>(l, ones)
          h = MatMul(n, w)  r = Relu(h)  y = MatMul(r, v)
        }""",
        re=np.cos(np.outer(np.arange(64), np.arange(33)) * np.pi / 32).astype(np.float32),
        im=np.sin(np.outer(np.arange(64), np.arange(33)) * np.pi / 32).astype(np.float32),
        mel=rng.uniform(0, 0.2, (33, 16)).astype(np.float32),
        least=np.asarray(1e-3, np.float32),
        w=(rng.normal(size=(16, 16)) * 0.3).astype(np.float32),
        v=(rng.normal(size=(16, 8)) * 0.3).astype(np.float32),
        ones=np.ones(16, np.float32),
    )
    path = tmp_path / "spectrum.onnx"
    ir.save(model, path)
    return path


@pytest.mark.parametrize("target", ["onnxruntime", "ios"])
def test_what_nobody_ruled_out_stays_in_single_precision(target: str, tmp_path: Path) -> None:
    """Recordings of 16 bits go into a model whose name and shape say nothing of them."""
    source, out = spectrum(tmp_path), tmp_path / "o.edge"
    done = edgeinfer.export(source, out, targets=[target], precision="fp16")
    (variant,) = done.manifest.variants
    assert variant.precision == "fp16+fp32", "the net behind the norm is in half precision"
    assert str(done.manifest.ranges["audio"]) == "-60000..60000 (guess)"
    lines = next(c.lines for c in done.report.changes if c.stage == "half precision")
    assert any("nobody said what the inputs hold" in line for line in lines)
    assert any("--input-range NAME=LO:HI" in line for line in lines)
    assert {"synthetic:reach 0.01", "synthetic:reach 60000"} <= {
        v.origin for v in done.report.vectors
    }
    time = np.arange(64) / 64
    loud = (11938 * np.sin(2 * np.pi * 5 * time)).astype(np.float32)[None]
    right = Evaluator(ir.load(source), wide=True).run({"audio": loud})["y"]
    backend = "coreml-reference" if target == "ios" else None
    with edgeinfer.load(out, backend=backend) as session:
        found = session(loud)
    np.testing.assert_allclose(found, right, atol=0.02 * np.abs(right).max())


def test_what_was_said_lets_more_be_half(tmp_path: Path) -> None:
    source, out = spectrum(tmp_path), tmp_path / "o.edge"
    free = edgeinfer.export(
        source, out, targets=["onnxruntime"], precision="fp16", overwrite=True
    ).report
    said = edgeinfer.export(
        source,
        out,
        targets=["onnxruntime"],
        precision="fp16",
        input_ranges={"audio": (-1.0, 1.0)},
        overwrite=True,
    ).report

    def lines(report: Report) -> tuple[str, ...]:
        return next((c.lines for c in report.changes if c.stage == "half precision"), ())

    assert len(lines(said)) < len(lines(free))
    assert not any("nobody said" in line for line in lines(said))


def test_data_says_it_too(tmp_path: Path) -> None:
    source, out = spectrum(tmp_path), tmp_path / "o.edge"
    data = [{"audio": np.full((1, 64), v, np.float32)} for v in (-2.0, 3.0)]
    done = edgeinfer.export(source, out, targets=["onnxruntime"], precision="fp16", data=data)
    assert str(done.manifest.ranges["audio"]) == "-2..3 (data)"
    with edgeinfer.load(out) as session:
        assert session.report().precision == done.manifest.variants[0].precision
        session(np.full((1, 64), 3.0, np.float32))
        with pytest.warns(RuntimeWarning, match="half precision was judged: -2..3"):
            session(np.full((1, 64), 4.0, np.float32))
        with pytest.raises(InputError, match="--input-range NAME=LO:HI") as caught:
            session(np.full((1, 64), -7.0, np.float32))
        assert "received 7" in str(caught.value)


def test_single_precision_has_no_such_bound(tmp_path: Path) -> None:
    source, out = spectrum(tmp_path), tmp_path / "o.edge"
    data = [{"audio": np.full((1, 64), 1.0, np.float32)}]
    edgeinfer.export(source, out, targets=["onnxruntime"], data=data)
    with edgeinfer.load(out) as session:
        assert np.isfinite(session(np.full((1, 64), 1e6, np.float32))).all()


def test_a_range_of_what_is_no_input_is_refused(squares: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no input of this name; there are 'x'"):
        edgeinfer.export(squares, tmp_path / "o.edge", input_ranges={"z": (0, 1)})
    with pytest.raises(UsageError, match="expected LOW:HIGH"):
        edgeinfer.export(squares, tmp_path / "o.edge", input_ranges={"x": (1, 0)})
