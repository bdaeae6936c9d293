"""Models that take indices, lengths or counts convert for every format, with data or without."""

from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest

import edgeinfer
from edgeinfer.types import Array

HEAD = '<ir_version: 10, opset_import: ["": 21]> '
TARGETS = {"onnxruntime": None, "openvino": None, "rpi4": "litert", "ios": "coreml-reference"}
OFFSET = (
    HEAD
    + """g (float[6,5] x, int64[3] i) => (float[3,5] y) {
    two = Constant<value_ints=[2]>() j = Add(i, two) y = Gather(x, j) }"""
)
ADDED = (
    HEAD
    + """g (float[6,5] x, int64[3,1] i, float[3,5] u) => (float[6,5] y) {
    y = ScatterND<reduction="add">(x, i, u) }"""
)


def written(text: str, folder: Path) -> Path:
    ir.save(ir.from_onnx_text(text), folder / "m.onnx")
    return folder / "m.onnx"


@pytest.mark.sample(4)
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("given", [False, True])
def test_positions_with_an_offset(target: str, given: bool, tmp_path: Path) -> None:
    x = np.random.default_rng(0).standard_normal((6, 5)).astype(np.float32)
    feeds: dict[str, Array] = {"x": x, "i": np.array([0, 3, 1])}
    out = tmp_path / "o.edge"
    data = [feeds] if given else None
    done = edgeinfer.export(written(OFFSET, tmp_path), out, targets=[target], data=data)
    assert done.report.passed
    with edgeinfer.load(out, backend=TARGETS[target]) as session:
        np.testing.assert_allclose(session(**feeds), x[feeds["i"] + 2], rtol=1e-6)


@pytest.mark.parametrize("target", TARGETS)
def test_rows_that_are_added_to(target: str, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    x, u = rng.standard_normal((6, 5)), rng.standard_normal((3, 5))
    out = tmp_path / "o.edge"
    edgeinfer.export(written(ADDED, tmp_path), out, targets=[target])
    right = x.astype(np.float32)
    np.add.at(right, [0, 5, 0], u.astype(np.float32))
    with edgeinfer.load(out, backend=TARGETS[target]) as session:
        found = session(x.astype(np.float32), np.array([[0], [5], [0]]), u.astype(np.float32))
    np.testing.assert_allclose(found, right, rtol=1e-5, atol=1e-6)
