"""Recurrent operators against ONNX Runtime, with each option that the ONNX reference leaves out."""

import itertools
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest
from onnx import helper

from edgeinfer.convert.verify.evaluate import Evaluator
from edgeinfer.types import Array

GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
STEPS, BATCH, WIDTH, HIDDEN = 6, 4, 3, 5
COMMON: dict[str, dict[str, Any]] = {
    "plain": {},
    "clip": {"clip": 0.4},
    "hard": {"activations": {"LSTM": ["HardSigmoid", "Softsign", "Relu"],
                             "GRU": ["HardSigmoid", "LeakyRelu"], "RNN": ["Elu"]}},
    "numbers": {"activations": {"LSTM": ["HardSigmoid", "ScaledTanh", "Affine"],
                                "GRU": ["HardSigmoid", "ScaledTanh"], "RNN": ["LeakyRelu"]},
                "activation_alpha": {"LSTM": [0.3, 0.9, 0.7], "GRU": [0.3, 0.9], "RNN": [0.2]},
                "activation_beta": {"LSTM": [0.4, 0.8, 0.1], "GRU": [0.4, 0.8], "RNN": []}},
}  # fmt: skip
OWN: dict[str, list[tuple[str, dict[str, Any]]]] = {
    "LSTM": [("coupled", {"input_forget": 1}), ("peephole", {})],
    "GRU": [("after", {"linear_before_reset": 1})],
    "RNN": [],
}


def cases() -> list[Any]:
    found = []
    for kind, direction in itertools.product(GATES, ("forward", "reverse", "bidirectional")):
        ways = 2 if direction == "bidirectional" else 1
        options = [
            (name, {k: v[kind] * ways if isinstance(v, dict) else v for k, v in given.items()})
            for name, given in COMMON.items()
        ]
        for name, given in [*options, *OWN[kind]]:
            given = {k: v for k, v in given.items() if v != []}
            found.append(
                pytest.param(kind, direction, name, given, id=f"{kind}-{direction}-{name}")
            )
    return found


def layer(
    kind: str, direction: str, name: str, given: dict[str, Any], lengths: list[int] | None
) -> tuple[onnx.ModelProto, dict[str, Array]]:
    ways, gates = 2 if direction == "bidirectional" else 1, GATES[kind]
    rng = np.random.default_rng(5)

    def draw(*shape: int) -> Array:
        return rng.standard_normal(shape).astype(np.float32)

    feeds: dict[str, Array] = {
        "X": draw(STEPS, BATCH, WIDTH),
        "W": draw(ways, gates * HIDDEN, WIDTH),
        "R": draw(ways, gates * HIDDEN, HIDDEN) * np.float32(0.5),
        "B": draw(ways, 2 * gates * HIDDEN),
        "L": np.array(lengths or [STEPS] * BATCH, np.int32),
        "H": draw(ways, BATCH, HIDDEN),
    }
    if kind == "LSTM":
        feeds["C"] = draw(ways, BATCH, HIDDEN)
        if name == "peephole":
            feeds["P"] = draw(ways, 3 * HIDDEN)
    results = ["Y", "Yh", "Yc"][: 3 if kind == "LSTM" else 2]
    node = helper.make_node(
        kind, list(feeds), results, hidden_size=HIDDEN, direction=direction, **given
    )
    graph = helper.make_graph(
        [node],
        "g",
        [
            helper.make_tensor_value_info(k, helper.np_dtype_to_tensor_dtype(v.dtype), v.shape)
            for k, v in feeds.items()
        ],
        [helper.make_tensor_value_info(r, onnx.TensorProto.FLOAT, None) for r in results],
    )
    opsets = [helper.make_opsetid("", 20)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=9), feeds


@pytest.mark.sample(25)
@pytest.mark.parametrize("lengths", [None, [6, 3, 1, 4]], ids=["all", "lengths"])
@pytest.mark.parametrize(("kind", "direction", "name", "given"), cases())
def test_as_onnx_runtime(
    kind: str, direction: str, name: str, given: dict[str, Any], lengths: list[int] | None
) -> None:
    model, feeds = layer(kind, direction, name, given, lengths)
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    found = Evaluator(ir.from_proto(model), wide=True).run(feeds)
    for value, expected in zip(found.values(), session.run(None, feeds), strict=True):
        np.testing.assert_allclose(value, expected, rtol=1e-4, atol=2e-5)


@pytest.mark.parametrize("kind", GATES)
def test_batch_first(kind: str) -> None:
    model, feeds = layer(kind, "bidirectional", "plain", {}, [6, 3, 1, 4])
    expected = Evaluator(ir.from_proto(model), wide=True).run(feeds)
    node = model.graph.node[0]
    node.attribute.append(helper.make_attribute("layout", 1))
    del model.graph.input[:]
    swapped = {k: np.swapaxes(v, 0, 1) if k in "XHC" else v for k, v in feeds.items()}
    model.graph.input.extend(
        helper.make_tensor_value_info(k, helper.np_dtype_to_tensor_dtype(v.dtype), v.shape)
        for k, v in swapped.items()
    )
    found = Evaluator(ir.from_proto(model), wide=True).run(swapped)
    np.testing.assert_array_equal(found["Y"], expected["Y"].transpose(2, 0, 1, 3))
    np.testing.assert_array_equal(found["Yh"], np.swapaxes(expected["Yh"], 0, 1))
