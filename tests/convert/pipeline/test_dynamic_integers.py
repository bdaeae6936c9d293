"""What ``onnxruntime.quantization.quantize_dynamic`` writes with its defaults, on every target."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

import edgeinfer
from edgeinfer.types import Array
from tests.conformance.everywhere import PLACES, lacking

RNG = np.random.default_rng(7)


def _weights(*shape: int) -> Array:
    return (RNG.normal(size=shape) * 0.3).astype(np.float32)


NETS = {
    "layers": (
        "(float[n,16] x) => (float[n,4] y) { a = MatMul(x, w) b = Relu(a) y = MatMul(b, v) }",
        {"w": _weights(16, 32), "v": _weights(32, 4)},
        _weights(3, 16) * 5,
    ),
    "convolutions": (
        "(float[n,3,8,8] x) => (float[n,6,6,6] y) "
        "{ a = Conv(x, w, b) r = Relu(a) y = Conv<pads = [1,1,1,1]>(r, v) }",
        {"w": _weights(8, 3, 3, 3), "b": _weights(8), "v": _weights(6, 8, 3, 3)},
        _weights(2, 3, 8, 8) * 4,
    ),
    # The oracles leave out what it rounds in each step.
    "recurrent": (
        "(float[t,2,5] x) => (float[t,1,2,6] y) { y = LSTM<hidden_size = 6>(x, w, r, b) }",
        {"w": _weights(1, 24, 5), "r": _weights(1, 24, 6), "b": _weights(1, 48)},
        _weights(4, 2, 5) * 3,
    ),
    "coupled gates and other functions": (
        "(float[t,2,5] x) => (float[t,1,2,6] y) { y = LSTM<hidden_size = 6, input_forget = 1, "
        'clip = 0.9, activations = ["HardSigmoid", "Softsign", "Tanh"]>(x, w, r, b) }',
        {"w": _weights(1, 24, 5), "r": _weights(1, 24, 6), "b": _weights(1, 48)},
        _weights(4, 2, 5) * 3,
    ),
}


@pytest.mark.sample(each=("net", "place"))
@pytest.mark.parametrize("place", ["onnxruntime", "openvino", "litert", "coreml", "tvm"])
@pytest.mark.parametrize("net", NETS)
def test_it_runs_as_onnxruntime_runs_it(net: str, place: str, tmp_path: Path) -> None:
    quantization = pytest.importorskip("onnxruntime.quantization")
    if why := lacking(place):
        pytest.skip(why)
    text, weights, x = NETS[net]
    model = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": 17]> g {text}')
    model.graph.initializer.extend(numpy_helper.from_array(w, n) for n, w in weights.items())
    onnx.save(model, tmp_path / "float.onnx")
    path = tmp_path / "model_quantized.onnx"
    quantization.quantize_dynamic(tmp_path / "float.onnx", path)
    at = PLACES[place]
    made = edgeinfer.export(path, tmp_path / "m.edge", targets=[at.profile])
    with edgeinfer.load(made.path, backend=at.backend, measure=False) as session:
        found = session.run({"x": x})["y"]
    import onnxruntime

    (want,) = onnxruntime.InferenceSession(path).run(None, {"x": x})
    assert np.abs(found - want).max() <= 0.02 * np.abs(want).max()
