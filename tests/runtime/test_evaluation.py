"""``edgeinfer.evaluate`` gives the accuracy that the quantizer reported, on the same samples."""

import json
from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnx_ir as ir
import pytest

import edgeinfer
from edgeinfer.errors import UsageError

SAMPLES = 96


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A net that reads scikit-learn's digits, and digits that it has not seen."""
    datasets = pytest.importorskip("sklearn.datasets")
    neural_network = pytest.importorskip("sklearn.neural_network")
    x, y = datasets.load_digits(return_X_y=True)
    x = (x / 16.0).astype(np.float32)
    # Trained for so little that it errs: an accuracy of 1 would be met by chance.
    net = neural_network.MLPClassifier((24,), max_iter=12, random_state=0)
    with pytest.warns(UserWarning, match="Maximum iterations"):
        net.fit(x[:1200], y[:1200])
    folder = tmp_path_factory.mktemp("digits")
    _save(net.coefs_, net.intercepts_, folder / "digits.onnx")
    inputs = x[1200:][:SAMPLES, None]
    np.savez(folder / "digits.npz", x=inputs, labels=y[1200:][:SAMPLES])
    return folder / "digits.onnx", folder / "digits.npz"


def _save(
    weights: list[npt.NDArray[np.float64]], biases: list[npt.NDArray[np.float64]], path: Path
) -> None:
    model = ir.from_onnx_text(
        """<ir_version: 10, opset_import: ["" : 20]>
        digits (float[1,64] x, float[64,24] a, float[24] b, float[24,10] c, float[10] d)
            => (float[1,10] y)
        { h = Gemm(x, a, b)  r = Relu(h)  y = Gemm(r, c, d) }"""
    )
    given = (weights[0], biases[0], weights[1], biases[1])
    for value, array in zip(model.graph.inputs[1:], given, strict=True):
        value.const_value = ir.tensor(array.astype(np.float32), name=value.name)
        model.graph.register_initializer(value)
    del model.graph.inputs[1:]
    ir.save(model, path)


def test_the_accuracy_is_what_the_quantizer_reported(
    digits: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EDGEINFER_CACHE", str(tmp_path / "cache"))
    model, data = digits
    result = edgeinfer.export(
        *(model, tmp_path / "digits.edge"),
        targets=["onnxruntime", "android"],
        precision="auto",
        calibration=data,
        metric="top1",
    )
    found = edgeinfer.evaluate(result.path, data, "top1")
    assert found.complete
    assert (found.metric, found.samples) == ("top1", SAMPLES)
    with edgeinfer.Bundle.open(result.path) as bundle:
        record = next(f for f in bundle.manifest.extra_files if f.path == "report.json")
        search = json.loads(bundle.read(record))["quantization"]["search"]
    reported = {title.split()[0]: s["chosen"]["quality"] for title, s in search.items()}
    assert {s["samples"] for s in search.values()} == {SAMPLES}
    assert reported.keys() == {"onnxruntime", "android"}
    for target, quality in reported.items():
        rows = [r for r in found.rows if r.variant.startswith(target)]
        assert rows
        assert {r.quality for r in rows if r.backend in ("onnxruntime", "litert")} == {quality}
        assert 0.5 < quality < 1.0
    assert all(r.size_bytes > 0 and (r.sample_ms or 0) > 0 for r in found.rows)


def test_the_numbers_are_those_of_the_samples(digits: tuple[Path, Path], tmp_path: Path) -> None:
    """As many of the answers as are turned round are wrong."""
    model, data = digits
    result = edgeinfer.export(model, tmp_path / "digits.edge", targets=["onnxruntime"])
    arrays = dict(np.load(data))
    with edgeinfer.load(result.path, backend="onnxruntime") as session:
        answers = [int(np.argmax(session(x))) for x in arrays["x"]]
    feeds = [{"x": x, "labels": np.array([a])} for x, a in zip(arrays["x"], answers, strict=True)]
    for feed in feeds[:24]:
        feed["labels"] = (feed["labels"] + 1) % 10
    with edgeinfer.Bundle.open(result.path) as bundle:
        found = edgeinfer.evaluate(bundle, feeds, backend="onnxruntime")
    assert [r.quality for r in found.rows] == [1 - 24 / SAMPLES]
    assert repr(found).endswith("best top1 0.75 (onnxruntime-onnx-fp32), 1 rows>")
    # An evaluator's times say nothing of a device.
    (row,) = edgeinfer.evaluate(result.path, feeds[:4], backend="reference").rows
    assert (row.quality, row.sample_ms) == (0.0, None)
    del feeds[3]["labels"]
    with pytest.raises(UsageError, match="sample 3 has no label"):
        edgeinfer.evaluate(result.path, feeds)
