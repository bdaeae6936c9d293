"""Real models: read whole, the numbers as in the file, the traps of their exporters noted."""

from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest

from edgeinfer.convert.sources import read
from edgeinfer.errors import SourceError
from edgeinfer.types import Array
from tests.zoo import assets, fetch

pytestmark = pytest.mark.models

MODELS = [name for name in assets() if name.endswith(".onnx")]
REFUSED = {
    "basic-pitch.savedmodel": "tf2onnx.convert --saved-model",
    "basic-pitch.mlpackage": "a Core ML model",
    "silero-vad.jit": "a TorchScript archive",
    "silero-vad-16k.safetensors": "a safetensors file",
    "efficientnet-lite0.pth": "weights without a graph",
    "mtcnn-pnet.pt": "weights without a graph",
    "magika-config.json": "a JSON file",
    "imagenet-labels.txt": "a text file",
    "chelsea.png": "not a known model format",
}


def session(model: str | bytes) -> ort.InferenceSession:
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    return ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])


def feeds(original: ort.InferenceSession, size: int) -> dict[str, Array]:
    rng = np.random.default_rng(0)
    made: dict[str, Array] = {}
    for item in original.get_inputs():
        unknown = [1 if axis == 0 else size for axis in range(len(item.shape))]
        if item.name == "state":
            unknown = [2, 1, 128]
        pairs = zip(item.shape, unknown, strict=True)
        dims = [stated if isinstance(stated, int) else chosen for stated, chosen in pairs]
        if item.name == "sr":
            made[item.name] = np.array(16000, np.int64)
        elif "int" in item.type:
            dtype = np.int32 if "int32" in item.type else np.int64
            made[item.name] = rng.integers(0, 200, dims, dtype)
        else:
            made[item.name] = rng.random(dims, np.float32)
    return made


SIZES = {
    "silero-vad": (512, 576),
    "aecmos": (160, 80),
    "plcmos": (16, 32),
    "wake-mel": (12640,),
}
"""Sizes for the unknown axes; 64 unless the model asks for more."""


def size_of(name: str) -> tuple[int, ...]:
    return next((sizes for prefix, sizes in SIZES.items() if name.startswith(prefix)), (64,))


@pytest.mark.parametrize("name", MODELS)
def test_model_is_read_with_its_numbers(name: str) -> None:
    path = fetch(name)
    source = read(path)
    proto = ir.to_proto(ir.external_data.load_to_model(source.model))
    # The checker demands a shape of each output; one whose rank follows from the sizes has none.
    if all(v.shape is not None for v in source.model.graph.outputs):
        onnx.checker.check_model(proto)
    before, after = session(str(path)), session(proto.SerializeToString())
    weights = {w.name for w in onnx.load(path).graph.initializer}
    names = [item.name for item in before.get_inputs()]
    assert [v.name for v in source.model.graph.inputs] == [n for n in names if n not in weights]
    assert [v.name for v in source.model.graph.outputs] == [o.name for o in before.get_outputs()]
    results = None
    for size in size_of(name):
        try:
            inputs = feeds(before, size)
            results = before.run(None, inputs)
        except Exception:
            # This size does not suit the model; ONNX Runtime has no common error class.
            continue
        for expected, actual in zip(results, after.run(None, inputs), strict=True):
            np.testing.assert_array_equal(actual, expected)
        break
    assert results is not None, "no size suits the model"


def test_false_declared_shape_of_a_published_model() -> None:
    source = read(fetch("plcmos-v2.onnx"))
    assert source.notes.lines == [
        "output 'plcmos' is declared as [], a trial run gives [2]; replaced"
    ]
    # It squeezes an open batch, so a run with one more or less has another rank.
    assert source.model.graph.outputs[0].shape is None


def test_json_as_a_tensor_name() -> None:
    (output,) = read(fetch("wake-timer.onnx")).model.graph.outputs
    assert output.name is not None
    assert output.name.startswith('{"1": "1_minute_timer"')


@pytest.mark.parametrize("name", ["ppocrv4-det.onnx", "silero-vad.onnx", "wake-timer.onnx"])
def test_shuffled_nodes_are_sorted_again(name: str, tmp_path: Path) -> None:
    model = onnx.load(fetch(name))
    order = np.random.default_rng(0).permutation(len(model.graph.node))
    nodes = [model.graph.node[int(i)] for i in order]
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    with pytest.raises(onnx.checker.ValidationError):
        onnx.checker.check_model(model)
    path = tmp_path / "shuffled.onnx"
    path.write_bytes(model.SerializeToString())
    source = read(path)
    assert "nodes were not in the order of their data; sorted" in source.notes.lines
    proto = ir.to_proto(ir.external_data.load_to_model(source.model))
    # The checker demands a shape of each output; one whose rank follows from the sizes has none.
    if all(v.shape is not None for v in source.model.graph.outputs):
        onnx.checker.check_model(proto)
    before, after = session(str(fetch(name))), session(proto.SerializeToString())
    inputs = feeds(before, 512 if name.startswith("silero") else 64)
    for expected, actual in zip(before.run(None, inputs), after.run(None, inputs), strict=True):
        np.testing.assert_array_equal(actual, expected)


@pytest.mark.parametrize("name", REFUSED)
def test_other_files_are_refused(name: str) -> None:
    with pytest.raises(SourceError, match=REFUSED[name]) as caught:
        read(fetch(name))
    assert "\n" not in str(caught.value)
