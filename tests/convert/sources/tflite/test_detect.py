"""``TFLite_Detection_PostProcess``: as LiteRT's kernel, up to its last box; zeros behind it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgeinfer.backends.engines import import_litert
from edgeinfer.convert.sources.tflite import read_file
from edgeinfer.convert.sources.tflite.file import load
from edgeinfer.convert.verify.answers import Vector
from edgeinfer.convert.verify.definitions import define
from edgeinfer.convert.verify.oracles import Oracles
from edgeinfer.errors import SourceError, UnsupportedError
from tests.convert.sources.tflite.custom_file import Step, flexbuffer, write_steps
from tests.convert.sources.tflite.reading import Array, rng, run_onnx

NAME = "TFLite_Detection_PostProcess"
ANCHORS, MOST = 60, 10
FIELDS: dict[str, Any] = {
    **{"max_detections": MOST, "max_classes_per_detection": 1, "detections_per_class": 4},
    **{"nms_score_threshold": 0.6, "nms_iou_threshold": 0.5, "num_classes": 3},
    **{"y_scale": 10.0, "x_scale": 8.0, "h_scale": 5.0, "w_scale": 4.0},
}


def _around() -> Array:
    places, sizes = rng().random((ANCHORS, 2)), 0.1 + 0.3 * rng().random((ANCHORS, 2))
    return np.concatenate([places, sizes], axis=1).astype(np.float32)


def _feeds(columns: int, coded: int = 4) -> dict[str, Array]:
    boxes = rng().standard_normal((1, ANCHORS, coded)).astype(np.float32) / 2
    return {"boxes": boxes, "scores": rng().random((1, ANCHORS, columns), dtype=np.float32)}


def _write(folder: Path, feeds: dict[str, Array], told: bool = True, **fields: Any) -> Path:
    options = {**FIELDS, **fields}
    rows = MOST * options["max_classes_per_detection"]
    shapes = [(1, rows, 4), (1, rows), (1, rows), (1,)] if told else [()] * 4
    results = {f"y{i}": shape for i, shape in enumerate(shapes)}
    step = Step(NAME, ["boxes", "scores", "anchors"], results, flexbuffer(options))
    return write_steps(folder / "m.tflite", feeds, [step], constants={"anchors": _around()})


def _litert(path: Path, feeds: dict[str, Array]) -> list[Array]:
    litert = import_litert()
    reference = litert.OpResolverType.BUILTIN_REF
    engine = litert.Interpreter(str(path), experimental_op_resolver_type=reference)
    engine.allocate_tensors()
    for detail, value in zip(engine.get_input_details(), feeds.values(), strict=True):
        engine.set_tensor(detail["index"], value)
    engine.invoke()
    return [engine.get_tensor(d["index"]) for d in engine.get_output_details()]


CASES = [
    (columns, labels, threshold, regular)
    for columns, labels, regular in ((4, 1, False), (3, 1, False), (4, 2, False), (4, 1, True))
    for threshold in (1e-8, 0.6, 0.97, 2.0)
]


@pytest.mark.parametrize(("columns", "labels", "threshold", "regular"), CASES)
def test_equals_litert(
    columns: int, labels: int, threshold: float, regular: bool, tmp_path: Path
) -> None:
    feeds = _feeds(columns, coded=4 + labels)
    fields: dict[str, Any] = {"max_classes_per_detection": labels, "use_regular_nms": regular}
    path = _write(tmp_path, feeds, nms_score_threshold=threshold, **fields)
    want = _litert(path, feeds)
    read = list(run_onnx(read_file(path).model, feeds).values())
    (op,) = load(path).graphs[0].ops
    for made in (read, define(op, [*feeds.values(), _around()])):
        assert [a.shape for a in made] == [a.shape for a in want]
        np.testing.assert_array_equal(made[3], want[3])
        rows = int(want[3][0]) * labels
        for value, right in zip(made[:3], want[:3], strict=True):
            np.testing.assert_allclose(value[:, :rows], right[:, :rows], rtol=1e-5, atol=1e-6)
            assert not value[:, rows:].any()


def test_a_score_that_is_the_threshold_counts(tmp_path: Path) -> None:
    feeds = _feeds(4)
    feeds["scores"] = np.zeros((1, ANCHORS, 4), np.float32)
    feeds["scores"][0, [3, 40], 2] = 0.6
    path = _write(tmp_path, feeds)
    found = run_onnx(read_file(path).model, feeds)
    assert found["y3"] == _litert(path, feeds)[3] == 2
    np.testing.assert_array_equal(found["y1"][0, :2], [1, 1])


def test_shapes_are_known_where_the_file_tells_none(tmp_path: Path) -> None:
    feeds = _feeds(4)
    found = read_file(_write(tmp_path, feeds, told=False))
    shapes = [tuple(v.shape or ()) for v in found.model.graph.outputs]
    assert shapes == [(1, MOST, 4), (1, MOST), (1, MOST), (1,)]
    assert found.notes.lines == []
    with Oracles(found.model, original=found.original) as oracles:
        expected = oracles.expected([Vector(feeds, "synthetic:normal")])
    assert expected.answers[0].agreed == ("litert and definitions", "float64")
    assert f"LiteRT's kernel of {NAME} may leave old memory" in expected.notes[0]
    assert "no kernels" not in expected.notes[0]


def test_what_is_not_read_is_told(tmp_path: Path) -> None:
    feeds = _feeds(4)
    both: dict[str, Any] = {"use_regular_nms": True, "max_classes_per_detection": 2}
    with pytest.raises(UnsupportedError, match="several classes for each box"):
        read_file(_write(tmp_path, feeds, **both))
    two = {n: np.repeat(a, 2, axis=0) for n, a in feeds.items()}
    with pytest.raises(UnsupportedError, match="one image of a known number of boxes"):
        read_file(_write(tmp_path, two))
    with pytest.raises(SourceError, match=r"boxes \[1, 60, 4\], scores \[1, 60, 4\]"):
        read_file(_write(tmp_path, feeds, num_classes=2))
    with pytest.raises(SourceError, match="overlap 0"):
        read_file(_write(tmp_path, feeds, nms_iou_threshold=0.0))
    for number in (np.nan, np.inf):
        with pytest.raises(SourceError, match="is malformed: numbers"):
            read_file(_write(tmp_path, feeds, x_scale=number))
    with pytest.raises(SourceError, match="at most 0 boxes"):
        read_file(_write(tmp_path, feeds, max_detections=0))
