"""What a stranger's model gives, and its head says of it, may not go together."""

from __future__ import annotations

import io
import time
import wave
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import helper

from edgeinfer.bundle.manifest import EngineRequirement, Manifest, SourceRecord, Variant
from edgeinfer.bundle.writer import BundleWriter
from edgeinfer.errors import EdgeInferError, RunError, UsageError
from edgeinfer.heads import Classify, DetectBoxes, FindText, Head, Notes, Segment
from edgeinfer.media.overlay import overlay
from edgeinfer.results import Classification, Detection, Mask, Result, Text
from edgeinfer.runtime.pipelines import pipeline
from edgeinfer.types import Array, AudioInput, ConstantInput, ImageInput, StateInput, TensorSpec

PICTURE, SOUND = (1, 3, 8, 8), (1, 256)


def bundle(
    path: Path,
    head: Head,
    outputs: Mapping[str, Array],
    more: Mapping[str, tuple[Any, tuple[int, ...]]] = {},
) -> Path:
    """Write a bundle whose model gives these outputs, whatever it is given."""
    sound = isinstance(head, Notes)
    shape = SOUND if sound else PICTURE
    nodes = [helper.make_node("ReduceMax", ["x"], ["m"], keepdims=0)]
    nodes.append(helper.make_node("Mul", ["m", "zero"], ["s"]))
    weights = [helper.make_tensor("zero", 1, [], [0.0])]
    infos = []
    for name, value in outputs.items():
        raw = value.astype(np.float32).ravel()
        weights.append(helper.make_tensor(f"{name}_v", 1, value.shape, raw))
        nodes.append(helper.make_node("Add", ["s", f"{name}_v"], [name]))
        infos.append(helper.make_tensor_value_info(name, 1, value.shape))
    given = [helper.make_tensor_value_info("x", 1, shape)]
    given += [helper.make_tensor_value_info(name, 1, size) for name, (_, size) in more.items()]
    graph = helper.make_graph(nodes, "g", given, infos, weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    image, audio = ImageInput(8, 8), AudioInput(sample_rate=16000, samples=256)
    with BundleWriter(path) as writer:
        file = writer.add_bytes("variants/v/m.onnx", model.SerializeToString())
        engine = EngineRequirement("onnxruntime")
        writer.finish(
            Manifest(
                name="m",
                inputs=(
                    TensorSpec("x", "float32", shape),
                    *(TensorSpec(name, "float32", size) for name, (_, size) in more.items()),
                ),
                outputs=tuple(TensorSpec(n, "float32", v.shape) for n, v in outputs.items()),
                vectors=(),
                head=head,
                preprocessing={
                    "x": audio if sound else image,
                    **{name: record for name, (record, _) in more.items()},
                },
                variants=(Variant("v", "cpu", "onnx", "fp32", (file,), (engine,)),),
                source=SourceRecord("onnx", "m.onnx", "ab" * 32),
            )
        )
    return path


def recording() -> bytes:
    stream = io.BytesIO()
    with wave.open(stream, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(16000)
        file.writeframes(bytes(512))
    return stream.getvalue()


ODD: dict[str, tuple[Head, dict[str, Array]]] = {
    "map": (FindText(), {"a": np.zeros((1, 2, 8, 8))}),
    "boxes": (DetectBoxes("a", "b"), {"a": np.zeros((1, 5, 3)), "b": np.zeros((1, 5))}),
    "classes": (
        DetectBoxes("a", "b", "c"),
        {"a": np.zeros((1, 5, 4)), "b": np.ones((1, 5)), "c": np.zeros((1, 2))},
    ),
    "notes": (Notes("a", "b", 32), {"a": np.zeros((1, 8, 4)), "b": np.zeros((1, 8, 5))}),
    "no classes": (Segment(), {"a": np.zeros((1, 0, 8, 8))}),
    "no scores": (Classify(), {"a": np.zeros((1, 0, 3))}),
}


@pytest.mark.parametrize("case", ODD)
def test_outputs_that_do_not_fit_are_the_models_fault(case: str, tmp_path: Path) -> None:
    head, outputs = ODD[case]
    path = bundle(tmp_path / "b.edge", head, outputs)
    given = recording() if isinstance(head, Notes) else np.zeros((8, 8, 3), np.uint8)
    with pipeline(path) as opened, pytest.raises((RunError, UsageError)) as caught:
        opened(given)
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize(
    ("record", "shape", "said"),
    [
        (ConstantInput((1.0,)), (40_000, 40_000), "1600000000 values, at most"),
        (ConstantInput((1.0,)), (2**32, 2**32), "18446744073709551616 values, at most"),
        (StateInput("a"), (2**32, 2**32), "more than 268435456 values"),
    ],
)
def test_an_input_that_is_filled_by_itself_has_a_bound(
    record: Any, shape: tuple[int, ...], said: str, tmp_path: Path
) -> None:
    path = bundle(
        tmp_path / "b.edge", Classify(), {"a": np.zeros((1, 3))}, {"more": (record, shape)}
    )
    with pytest.raises((UsageError, EdgeInferError)) as caught, pipeline(path) as opened:
        opened(np.zeros((8, 8, 3), np.uint8))
    if isinstance(record, ConstantInput):
        assert said in str(caught.value)


def test_anything_can_be_drawn() -> None:
    pytest.importorskip("PIL")
    page, none = np.zeros((20, 30, 3), np.uint8), float("nan")
    odd: list[Result] = [
        Detection((5.0, 5.0, 1.0, 1.0), 1.0, 0, "turned over"),
        Detection((none, -1e30, float("inf"), 1e30), 1.0, 0, "x" * 1_100_000),
        Detection((0.0, 0.0, 9.0, 9.0), 1.0, 0, "", keypoints=((none, 1e300),)),
        Text("y" * 1_100_000, 1.0, ((none, 0.0), (1e30, 0.0), (1e30, 1e30), (0.0, 1e30))),
        Classification(0, "z" * 1_100_000, 1.0),
    ]
    odd.append(
        Detection((0.0, 0.0, 9.0, 9.0), 1.0, 2**62, "", mask=Mask(0, 0, np.ones((9, 9), bool)))
    )
    assert overlay(page, odd).size == (30, 20)
    begun = time.process_time()
    overlay(page, [Detection((0.0, 0.0, 2e9, 2e9), 1.0, 0, "a")] * 100_000)
    assert time.process_time() - begun < 10
