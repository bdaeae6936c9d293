"""The whole way: a conversion that is requested integers."""

import json
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest

import edgeinfer
from edgeinfer.convert.pipeline.entry import check
from edgeinfer.convert.quantize import calibration
from edgeinfer.errors import InputError, UsageError, VerifyError
from edgeinfer.types import Array
from tests.convert.quantize.conftest import graph
from tests.processor import skip_where_openvino_saturates


def convert(model: Path, data: Path, out: Path, **options: Any) -> dict[str, Any]:
    precision = options.pop("precision", "static_wi8_ai8")
    done = edgeinfer.export(
        model, out / "made.edge", precision=precision, calibration=data, overwrite=True, **options
    )
    with zipfile.ZipFile(done.path) as archive:
        report: dict[str, Any] = json.loads(archive.read("report.json"))
    return report


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def one_scale(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is joined gets one scale, as it would where nobody looked at ranges or spreads."""
    monkeypatch.setattr(calibration, "apart", lambda units, ranges: {})
    monkeypatch.setattr(calibration, "crowded", lambda layout, ranges, spreads, bits: {})


@pytest.mark.sample(1)
@pytest.mark.parametrize("target", ["onnxruntime", "android"])
def test_scores_of_a_detector_keep_steps_of_their_own(
    target: str, clipped_detector: tuple[Path, Path], tmp_path: Path
) -> None:
    report = convert(*clipped_detector, tmp_path, targets=[target])
    assert report["passed"]
    lines = next(c["lines"] for c in report["changes"] if c["stage"] == "quantize")
    assert any(line.startswith("Concat 'Concat_10' stays float: what it joins") for line in lines)


def test_a_layer_that_gives_boxes_and_scores_stays_float(tmp_path: Path) -> None:
    numbers = np.random.default_rng(0)

    def normal(*shape: int) -> Array:
        return numbers.standard_normal(shape).astype(np.float32)

    model = graph(
        """<ir_version: 10, opset_import: ["" : 24]>
        net (float[1,3,6,6] x) => (float[1,4,6,6] boxes, float[1,1,6,6] score)
        <float[8,3,3,3] w, float[5,8,1,1] both, int64[2] sizes = {4, 1}> {
          c = Conv<pads = [1, 1, 1, 1]>(x, w)
          h = Relu(c)
          all = Conv(h, both)
          boxes, logit = Split<axis = 1>(all, sizes)
          score = Sigmoid(logit)
        }""",
        w=normal(8, 3, 3, 3) / 5,
        both=np.concatenate([normal(4, 8, 1, 1) * 200, normal(1, 8, 1, 1) / 2]),
    )
    ir.save(model, tmp_path / "net.onnx")
    np.savez(tmp_path / "data.npz", x=normal(160, 1, 3, 1, 1) + normal(160, 1, 3, 6, 6) / 10)
    files = tmp_path / "net.onnx", tmp_path / "data.npz"
    report = convert(*files, tmp_path, targets=["onnxruntime", "android"])
    assert report["passed"]
    lines = next(c["lines"] for c in report["changes"] if c["stage"] == "quantize")
    assert any(line.startswith("Conv 'Conv_2' stays float: parts of its result") for line in lines)


@pytest.mark.usefixtures("one_scale")
def test_a_detector_that_lost_its_scores_fails_visibly(
    detector: tuple[Path, Path], tmp_path: Path
) -> None:
    with pytest.raises(VerifyError) as caught:
        convert(*detector, tmp_path, targets=["onnxruntime"])
    text = str(caught.value)
    assert "signal to error of the worst channel 0.0 dB, at least 3.0 dB required" in text
    assert "first diverging node Concat" in text


def test_a_model_without_weights_stays_float_and_the_report_says_so(tmp_path: Path) -> None:
    model = ir.from_onnx_text(
        """<ir_version: 10, opset_import: ["" : 24]>
        net (float[1,8] x) => (float[1,8] y) { a = Sigmoid(x)  y = Add(a, x) }"""
    )
    ir.save(model, tmp_path / "net.onnx")
    rng = np.random.default_rng(0)
    np.savez(tmp_path / "data.npz", x=rng.normal(size=(64, 1, 8)).astype(np.float32))
    files = tmp_path / "net.onnx", tmp_path / "data.npz"
    report = convert(*files, tmp_path, targets=["onnxruntime"])
    assert report["passed"]
    assert report["variants"][0]["precision"] == "fp32"
    (variant,) = report["quantization"]["variants"].values()
    assert variant["units"] == []


ENGINES = ("onnxruntime", "openvino", "android", "ios")
SOME = ("android",)
"""The next test has ONNX Runtime."""


@pytest.mark.slow
@pytest.mark.usefixtures("one_scale")
@pytest.mark.parametrize("target", ENGINES)
def test_a_head_of_integers_fails_on_every_engine(
    target: str, clipped_detector: tuple[Path, Path], tmp_path: Path
) -> None:
    with pytest.raises(VerifyError, match=r"worst channel -?\d+\.\d dB, at least 3.0 dB required"):
        convert(*clipped_detector, tmp_path, targets=[target])


@pytest.mark.usefixtures("cache", "one_scale")
@pytest.mark.parametrize("engines", [SOME, pytest.param(ENGINES, marks=pytest.mark.sweep)])
def test_auto_repairs_the_head_on_every_engine(
    engines: tuple[str, ...], clipped_detector: tuple[Path, Path], tmp_path: Path
) -> None:
    if "openvino" in engines:
        skip_where_openvino_saturates()
    report = convert(*clipped_detector, tmp_path, targets=engines, precision="auto")
    assert report["passed"]
    searched = report["quantization"]["search"]
    assert len(searched) == len(engines)
    for found in searched.values():
        assert found["points"][0]["drop"] > 0.5
        assert found["holds"]
        assert found["chosen"]["drop"] <= 0.01
        # The Concat, or what comes into it as a float.
        assert {"Concat_10", "Conv_6", "Conv_8"} & {*found["chosen"]["kept"]}


@pytest.mark.usefixtures("cache", "one_scale")
def test_auto_repairs_the_detector_by_itself(detector: tuple[Path, Path], tmp_path: Path) -> None:
    report = convert(*detector, tmp_path, targets=["onnxruntime"], precision="auto")
    (found,) = report["quantization"]["search"].values()
    assert found["holds"]
    assert found["points"][0]["drop"] > 0.5
    assert found["chosen"]["drop"] <= 0.01
    assert any("Concat" in n or "Sigmoid" in n for n in found["chosen"]["kept"])
    (variant,) = report["variants"]
    assert variant["precision"] == "static_wi8_ai8"
    units = report["quantization"]["variants"]["onnxruntime (onnx)"]["units"]
    assert {u["name"] for u in units if u["kept"]} <= set(found["chosen"]["kept"])
    lines = next(c["lines"] for c in report["changes"] if c["stage"] == "quantize")
    assert any("stays float:" in line for line in lines)


def test_targets_share_one_set_of_scales(detector: tuple[Path, Path], tmp_path: Path) -> None:
    report = convert(*detector, tmp_path, targets=["openvino", "android"])
    assert {v["precision"] for v in report["variants"]} == {"static_wi8_ai8"}
    made = report["quantization"]["variants"]
    assert set(made) == {"openvino (openvino_ir)", "android (tflite)"}
    for variant in made.values():
        assert variant["weighted_layers"] == {"int8/int8": 5}
        assert len(variant["layers"]) == 5
        assert len(variant["units"]) >= 4
        assert all(u["sqnr_db"] is None or u["sqnr_db"] > 15 for u in variant["units"])
        assert variant["bytes"] > 0


def test_bad_data_is_refused_and_forced_data_is_told(
    detector: tuple[Path, Path], tmp_path: Path
) -> None:
    model, data = detector
    few = tmp_path / "few.npz"
    np.savez(few, images=np.load(data)["images"][:4])
    with pytest.raises(UsageError, match="calibration data refused: 4 distinct samples"):
        convert(model, few, tmp_path, targets=["openvino"])
    report = convert(model, few, tmp_path, targets=["openvino"], force=True)
    assert report["quantization"]["data"]["forced"] is True
    assert report["quantization"]["data"]["level"] == "refused"


def test_one_sample_calibrates_when_it_is_forced(
    detector: tuple[Path, Path], tmp_path: Path
) -> None:
    model, data = detector
    one = tmp_path / "one.npz"
    np.savez(one, images=np.load(data)["images"][:1])
    with pytest.raises(UsageError, match="1 distinct samples"):
        convert(model, one, tmp_path, targets=["openvino"])
    assert convert(model, one, tmp_path, targets=["openvino"], force=True)["passed"]


def test_nan_in_the_data_is_one_clear_error(detector: tuple[Path, Path], tmp_path: Path) -> None:
    model, data = detector
    images = np.load(data)["images"].copy()
    images[3, 0, 0, 0, 0] = np.nan
    np.savez(tmp_path / "nan.npz", images=images)
    with pytest.raises(UsageError, match="elements are NaN or infinite"):
        convert(model, tmp_path / "nan.npz", tmp_path, targets=["openvino"])
    with pytest.raises(UsageError, match=r"value 'images' of the input: .* NaN or infinite"):
        convert(model, tmp_path / "nan.npz", tmp_path, targets=["openvino"], force=True)


def test_nothing_and_wrong_shapes_are_told(detector: tuple[Path, Path], tmp_path: Path) -> None:
    model, _ = detector
    (tmp_path / "empty").mkdir()
    with pytest.raises(UsageError, match="is empty"):
        convert(model, tmp_path / "empty", tmp_path, targets=["openvino"])
    np.savez(tmp_path / "wrong.npz", images=np.zeros((4, 3, 8, 8), np.float32))
    with pytest.raises(InputError, match=r"float32\[4, 3, 8, 8\]"):
        convert(model, tmp_path / "wrong.npz", tmp_path, targets=["openvino"])
    with pytest.raises(UsageError, match="needs --calibration"):
        edgeinfer.export(model, tmp_path / "x.edge", precision="static_wi8_ai8")


def test_what_cannot_be_is_told_before_anything_is_read(tmp_path: Path) -> None:
    def asked(**options: Any) -> str:
        with pytest.raises(UsageError) as caught:
            edgeinfer.export(tmp_path / "none.onnx", calibration=tmp_path, **options)
        return str(caught.value)

    assert "calibrator 'best' is unknown" in asked(precision="static_wi8_ai8", calibrator="best")
    assert "max drop 1.5" in asked(precision="auto", max_drop=1.5)
    assert "not possible on cpu" in asked(precision="static_wi8_ai16")


@pytest.mark.sample(1)
@pytest.mark.parametrize("method", ["minmax", "percentile", "entropy", "mse"])
def test_every_calibrator_passes_the_gate(
    method: str, detector: tuple[Path, Path], tmp_path: Path
) -> None:
    report = convert(*detector, tmp_path, targets=["openvino"], calibrator=method)
    assert report["quantization"]["calibrator"] == method
    assert report["passed"]


def test_what_would_keep_a_model_from_integers_can_be_asked(detector: tuple[Path, Path]) -> None:
    found = check(detector[0], targets=["cpu", "rpi4"], precision="static_wi8_ai8")
    assert set(found) >= {"cpu-onnx", "cpu-openvino_ir", "rpi4-tflite"}
    assert not any(found.values())
