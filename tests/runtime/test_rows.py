"""Rows of a batch are tried next to unlike ones, and no mix of them goes unseen."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

import edgeinfer
from edgeinfer.errors import UsageError
from edgeinfer.runtime.batches import Batching
from edgeinfer.runtime.rows import are_apart, rows_of
from edgeinfer.runtime.scheduler import Outputs
from edgeinfer.types import Array, Feeds

X = np.array([[0.5, -1.5, 2.0, -0.25]], np.float32)

MIXES: dict[str, Callable[[Any], Any]] = {
    "mean": lambda x: x + x.mean(axis=0, keepdims=True),
    "mean of all": lambda x: x - x.mean(),
    "largest": lambda x: x / np.maximum(x.max(), 1e-3),
    "smallest": lambda x: x - x.min(),
    "largest size": lambda x: np.round(x / np.abs(x).max() * 127) / 127 * np.abs(x).max(),
    "sum of those before": lambda x: np.cumsum(x, axis=0),
    "sum of those behind": lambda x: np.cumsum(x[::-1], axis=0)[::-1],
    "order": lambda x: np.sort(x, axis=0),
    "the one before": lambda x: x + np.roll(x, 1, axis=0) * (np.arange(len(x)) > 0)[:, None],
    "shares": lambda x: np.exp(x) / np.exp(x).sum(axis=0, keepdims=True),
    "deviation": lambda x: x / (x.std() + 1e-3),
}


@pytest.mark.parametrize("mix", MIXES)
@pytest.mark.parametrize(
    "vectors", [[X], [X, np.concatenate([X, X])], [X, 2 * X], [np.ones_like(X)]]
)
def test_every_mix_of_rows_is_found(mix: str, vectors: list[Array]) -> None:
    rows = rows_of([{"x": x} for x in vectors])
    assert not are_apart(lambda feeds: {"y": MIXES[mix](feeds["x"])}, rows)


@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.uint8, np.int64, np.bool_])
def test_rows_that_are_apart(dtype: type) -> None:
    x: Array = np.array([[0, 1, 4, 2], [3, 1, 2, 0]], dtype)
    seen: list[Array] = []

    def run(feeds: Feeds) -> Outputs:
        seen.append(feeds["x"])
        return {"y": feeds["x"] @ np.ones((4, 3), np.float32), "k": feeds["x"].argmax(axis=1)}

    assert are_apart(run, rows_of([{"x": x}]))
    assert all(a.dtype == dtype and a.max() <= x.max() for a in seen)


def test_integers_of_a_batch_are_mixed_too() -> None:
    lengths = [{"n": np.array([[5], [3]], np.int64)}]

    def run(feeds: Feeds) -> Outputs:
        return {"mask": feeds["n"] - feeds["n"].max(axis=0, keepdims=True)}

    assert not are_apart(run, rows_of(lengths))


def test_what_cannot_be_tried_is_not_said_to_be_apart() -> None:
    def run(feeds: Feeds) -> Outputs:
        if np.abs(feeds["x"]).min() < np.abs(X).min():
            raise UsageError("too small")
        return {"y": feeds["x"]}

    assert are_apart(run, rows_of([{"x": X}]))
    assert not are_apart(run, rows_of([{"x": np.ones_like(X)}]))


def test_rows_of_vectors() -> None:
    rows = rows_of([{"x": np.array([[1.0, 2.0]])}])
    assert [r["x"].tolist() for r in rows] == [[[1.0, 2.0]], [[2.0, 1.0]]]
    # The second vector begins with the first one's row, as converted bundles have it.
    rows = rows_of([{"x": X}, {"x": np.concatenate([X, 2 * X])}])
    assert [r["x"].tolist() for r in rows] == [X.tolist(), (2 * X).tolist()]
    assert rows_of([{"x": np.array(1.0)}]) == []


def test_a_model_that_mixes_rows_is_never_put_together(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("DynamicQuantizeLinear", ["x"], ["q", "s", "z"]),
        helper.make_node("MatMulInteger", ["q", "w", "z"], ["i"]),
        helper.make_node("Cast", ["i"], ["f"], to=1),
        helper.make_node("Mul", ["f", "s"], ["y"]),
    ]
    weights = np.arange(-8, 8, dtype=np.int8).reshape(4, 4)
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", 1, ["N", 4])],
        [helper.make_tensor_value_info("y", 1, ["N", 4])],
        [onnx.numpy_helper.from_array(weights, "w")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, tmp_path / "m.onnx")
    edgeinfer.export(tmp_path / "m.onnx", tmp_path / "m.edge", targets=["onnxruntime"])
    with edgeinfer.Runtime() as runtime:
        mixing = runtime.add(tmp_path / "m.edge", name="mixing", batching=Batching(size=4))
        alone = runtime.add(tmp_path / "m.edge", name="alone")
        for _ in range(2):
            with pytest.raises(UsageError, match=r"'mixing'.*the others of its batch"):
                mixing.run({"x": X})
        with pytest.raises(UsageError, match="the others of its batch"):
            mixing.submit({"x": X}).result(60)
        assert alone.run({"x": X})["y"].shape == (1, 4)
