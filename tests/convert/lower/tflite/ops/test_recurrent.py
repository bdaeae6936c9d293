"""LSTM, GRU and RNN in every form, against ONNX Runtime."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

from tests.convert.lower.tflite.run import check, expected, lower, ops, outputs
from tests.convert.lower.tflite.together import rows

GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
FUSED = "UNIDIRECTIONAL_SEQUENCE_LSTM"


def build(
    kind: str,
    *,
    steps: int | str = 5,
    batch: int | str = 2,
    size: int = 3,
    hidden: int = 4,
    bias: bool = True,
    lengths: list[int] | bool = False,
    start: bool = False,
    peephole: bool = False,
    outputs: int = 3,
    runtime: bool = False,
    **attributes: Any,
) -> tuple[onnx.ModelProto, dict[str, Any]]:
    """A model of one node, and its inputs at 5 steps of a batch of 2 where sizes are open."""
    rng = np.random.default_rng(0)
    directions = 2 if attributes.get("direction") == "bidirectional" else 1
    turned = attributes.get("layout", 0)
    n_steps = 5 if isinstance(steps, str) else steps
    n_batch = 2 if isinstance(batch, str) else batch

    def place(*dims: Any) -> list[Any]:
        return [dims[1], dims[0], *dims[2:]] if turned else list(dims)

    gates = GATES[kind]
    weights: dict[str, tuple[int, ...]] = {
        "w": (directions, gates * hidden, size),
        "r": (directions, gates * hidden, hidden),
    }
    if bias:
        weights["b"] = (directions, 2 * gates * hidden)
    if peephole:
        weights["p"] = (directions, 3 * hidden)
    values = {k: (rng.standard_normal(v) * 0.5).astype(np.float32) for k, v in weights.items()}
    feeds = {"x": rng.standard_normal(place(n_steps, n_batch, size)).astype(np.float32)}
    inputs = [helper.make_tensor_value_info("x", 1, place(steps, batch, size))]
    names = ["x", "w", "r", "b" if bias else "", "", "", "", "p" if peephole else ""]
    if lengths:
        names[4] = "lens"
        if isinstance(lengths, list):
            values["lens"] = np.array(lengths, np.int32)
        else:
            feeds["lens"] = np.array([n_steps, max(1, n_steps - 2)][:n_batch], np.int32)
            inputs.append(helper.make_tensor_value_info("lens", 6, [batch]))
    if start:
        for index, name in enumerate(("h0", "c0")[: 2 if kind == "LSTM" else 1]):
            names[5 + index] = name
            state = rng.standard_normal(place(directions, n_batch, hidden))
            feeds[name] = state.astype(np.float32)
            inputs.append(helper.make_tensor_value_info(name, 1, place(directions, batch, hidden)))
    if runtime:
        for name in [n for n in values if n != "lens"]:
            feeds[name] = values.pop(name)
            inputs.append(helper.make_tensor_value_info(name, 1, feeds[name].shape))
    while not names[-1] or (kind != "LSTM" and len(names) > 6):
        names.pop()
    made = [f"y{i}" for i in range(min(outputs, 3 if kind == "LSTM" else 2))]
    results = [helper.make_tensor_value_info(n, 1, None) for n in made]
    node = helper.make_node(kind, names, made, hidden_size=hidden, **attributes)
    constants = [onnx.numpy_helper.from_array(v, k) for k, v in values.items()]
    graph = helper.make_graph([node], "g", inputs, results, constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 22)], ir_version=10)
    return onnx.shape_inference.infer_shapes(model), feeds


FORMS: list[dict[str, Any]] = [
    {},
    {"bias": False},
    {"direction": "reverse"},
    {"direction": "bidirectional"},
    {"lengths": True},
    {"lengths": [3, 5]},
    {"lengths": [5, 5]},
    {"start": True},
    {"direction": "bidirectional", "lengths": True, "start": True},
    {"direction": "reverse", "lengths": True},
    {"clip": 0.3},
    {"runtime": True, "direction": "bidirectional"},
]


@rows("steps", [1, 5, "T"])
@rows("form", FORMS)
@rows("kind", GATES)
def test_forms(kind: str, form: dict[str, Any], steps: int | str) -> None:
    if steps == 1 and isinstance(form.get("lengths"), list):
        form = {**form, "lengths": [1, 1]}
    if steps == "T" and isinstance(form.get("lengths"), list):
        form = {**form, "lengths": [2, 4]}
    model, feeds = build(kind, steps=steps, **form)
    check(model, feeds)


@rows("steps", [5, "T"])
@rows(
    "form",
    [
        {"peephole": True},
        {"peephole": True, "outputs": 1},
        {"peephole": True, "direction": "bidirectional", "start": True},
        {"peephole": True, "input_forget": 1},
        {"input_forget": 1},
        {"peephole": True, "clip": 0.5},
        {"outputs": 2},
        {"outputs": 1},
        {"outputs": 1, "direction": "reverse"},
        {"outputs": 2, "direction": "bidirectional"},
        {"outputs": 2, "bias": False},
    ],
)
def test_lstm(form: dict[str, Any], steps: int | str) -> None:
    model, feeds = build("LSTM", steps=steps, **form)
    check(model, feeds)


@rows("steps", [5, "T"])
@rows(
    "form", [{}, {"direction": "bidirectional", "start": True}, {"bias": False}, {"runtime": True}]
)
def test_gru_linear_before_reset(form: dict[str, Any], steps: int | str) -> None:
    model, feeds = build("GRU", steps=steps, linear_before_reset=1, **form)
    check(model, feeds)


@rows("batch", [1, 2, "N"])
@rows("kind", GATES)
def test_open_sizes_resize(kind: str, batch: int | str) -> None:
    model, feeds = build(kind, steps="T", batch=batch)
    rng = np.random.default_rng(1)
    n = feeds["x"].shape[1]
    more = [(9, 3 if batch == "N" else n), (1, n), (3, n)]
    check(model, feeds, *({"x": rng.standard_normal((*m, 3)).astype(np.float32)} for m in more))


ACTIVATIONS = [
    ("Relu", {}),
    ("Affine", {"activation_alpha": [0.5], "activation_beta": [0.1]}),
    ("LeakyRelu", {"activation_alpha": [0.2]}),
    ("LeakyRelu", {}),
    ("ThresholdedRelu", {"activation_alpha": [0.2]}),
    ("ScaledTanh", {"activation_alpha": [0.7], "activation_beta": [0.6]}),
    ("HardSigmoid", {"activation_alpha": [0.3], "activation_beta": [0.4]}),
    ("HardSigmoid", {}),
    ("Elu", {"activation_alpha": [0.7]}),
    ("Elu", {}),
    ("Softsign", {}),
    ("Softplus", {}),
    ("Sigmoid", {}),
    ("Tanh", {}),
]


@rows(("name", "values"), ACTIVATIONS)
def test_activations(name: str, values: dict[str, Any]) -> None:
    model, feeds = build("RNN", activations=[name], **values)
    check(model, feeds)


def test_activations_take_their_own_parameters() -> None:
    names = ["HardSigmoid", "LeakyRelu", "Softsign"]
    model, feeds = build(
        "LSTM",
        direction="bidirectional",
        activations=[*names, "Sigmoid", "ScaledTanh", "Elu"],
        activation_alpha=[0.3, 0.1, 0.9, 0.6],
        activation_beta=[0.45, 0.8],
    )
    check(model, feeds)


def test_long_sequences_loop() -> None:
    for kind in GATES:
        model, feeds = build(kind, steps=100, direction="bidirectional", start=True, lengths=True)
        assert ops(check(model, feeds)).count("WHILE") == 2


def test_states_of_two_directions_are_taken_apart_by_copies() -> None:
    model, _ = build("LSTM", steps="T", direction="bidirectional", start=True, lengths=True)
    assert ops(lower(model)).count("UNPACK") == 2
    assert "STRIDED_SLICE" not in ops(lower(model))


@pytest.mark.slow
@pytest.mark.parametrize("lengths", [True, False])
@pytest.mark.parametrize("kind", GATES)
def test_first_states_are_right_in_every_interpreter(kind: str, lengths: bool) -> None:
    # Slices gave 0.3 to 1 % of LSTMs a wrong first state, so that one in e**9 runs of this passed.
    model, feeds = build(kind, steps="T", direction="bidirectional", start=True, lengths=lengths)
    data, right = lower(model), expected(model, feeds)
    for _ in range(3000):
        found = outputs(data, feeds)
        for name, value in right.items():
            np.testing.assert_allclose(found[name], value, rtol=1e-4, atol=1e-5)


def test_large_weights_loop() -> None:
    model, feeds = build("LSTM", steps=9, size=2, hidden=300)
    assert "WHILE" in ops(check(model, feeds, rtol=1e-4))


def test_plain_lstm_of_open_length_is_one_operator() -> None:
    model, feeds = build("LSTM", outputs=2, steps="T")
    data = check(model, feeds)
    assert FUSED in ops(data)
    assert "WHILE" not in ops(data)


def test_lstm_whose_cell_is_read_is_not_fused() -> None:
    assert FUSED not in ops(check(*build("LSTM", steps="T")))


@rows("kind", GATES)
@rows("form", [{}, {"start": True, "direction": "bidirectional"}])
def test_batch_first(kind: str, form: dict[str, Any]) -> None:
    """ONNX Runtime has no layout 1; the same model time first gives the values to expect."""
    model, feeds = build(kind, layout=1, **form)
    plain, _ = build(kind, **form)
    turned = {k: v.swapaxes(0, 1) for k, v in feeds.items()}
    want = expected(plain, turned)
    want = {k: v.transpose(2, 0, 1, 3) if k == "y0" else v.swapaxes(0, 1) for k, v in want.items()}
    check(model, feeds, want=want)


def test_half_precision_weights() -> None:
    model, feeds = build("LSTM", outputs=1, hidden=32, steps=8)
    want = expected(model, feeds)["y0"]
    got = outputs(lower(model, "fp16"), feeds)["y0"]
    np.testing.assert_allclose(got, want, atol=2e-3)
