"""Definitions of ours against ONNX Runtime, or against NumPy where that has no kernel."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir
import onnxruntime as ort
import pytest

from edgeinfer.convert.lower.expand import expand
from edgeinfer.types import Array

GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}


def build(op: str, given: dict[str, Array], outputs: list[str], **about: Any) -> ir.Model:
    """One node whose inputs are ``given`` in order; names that begin with c are constants."""
    inputs = [
        ir.Value(
            name=name,
            type=ir.TensorType(ir.DataType.from_numpy(array.dtype)),
            shape=ir.Shape(array.shape),
            const_value=ir.tensor(array, name=name) if name[0] == "c" else None,
        )
        if array.size
        else None
        for name, array in given.items()
    ]
    node = ir.node(op, inputs, about, num_outputs=len(outputs))
    for value, name in zip(node.outputs, outputs, strict=True):
        value.name, value.type = name, ir.TensorType(ir.DataType.FLOAT)
    fed = [v for v in inputs if v is not None and v.const_value is None]
    fixed = [v for v in inputs if v is not None and v.const_value is not None]
    graph = ir.Graph(
        fed, node.outputs, nodes=[node], initializers=fixed, opset_imports={"": 24}, name="g"
    )
    return ir.Model(graph, ir_version=10)


def run(model: ir.Model, given: dict[str, Array]) -> list[Array]:
    options = ort.SessionOptions()
    options.log_severity_level = 4
    session = ort.InferenceSession(
        ir.to_proto(model).SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    names = {value.name for value in session.get_inputs()}
    return list(session.run(None, {k: v for k, v in given.items() if k in names}))


def same(
    op: str,
    given: dict[str, Array],
    outputs: list[str],
    want: list[Array] | None = None,
    **about: Any,
) -> None:
    model = build(op, given, outputs, **about)
    if want is None:
        # ONNX Runtime has no kernel of the newest RoiAlign, whose form is the same.
        model.graph.opset_imports[""] = 16 if op == "RoiAlign" else 24
        want = run(model, given)
        model.graph.opset_imports[""] = 24
    (node,) = model.graph
    assert expand(model, [node]) == [node]
    assert op not in [n.op_type for n in model.graph]
    for found, right in zip(run(model, given), want, strict=True):
        assert found.shape == right.shape
        np.testing.assert_allclose(found, right, rtol=1e-4, atol=2e-5)


NOTHING = np.zeros(0, np.float32)


def layer(kind: str, ways: int, *, lengths: bool, states: bool, peephole: bool) -> dict[str, Array]:
    random, rows = np.random.default_rng(0), GATES[kind] * 5

    def normal(*shape: int) -> Array:
        return random.standard_normal(shape).astype(np.float32) * np.float32(0.4)

    found = {
        "x": normal(6, 3, 4) * np.float32(3),
        "w": normal(ways, rows, 4),
        "r": normal(ways, rows, 5),
        "b": normal(ways, 2 * rows),
        "lengths": np.array([6, 2, 4], np.int32) if lengths else NOTHING,
        "h": normal(ways, 3, 5) if states else NOTHING,
    }
    if kind == "LSTM":
        found["k"] = normal(ways, 3, 5) if states else NOTHING
        found["p"] = normal(ways, 15) if peephole else NOTHING
    return found


OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "clip": {"clip": 0.3},
    "activations": {"activations": ["HardSigmoid", "Softsign", "LeakyRelu"]},
    "numbers": {
        "activations": ["HardSigmoid", "ScaledTanh", "Affine"],
        "activation_alpha": [0.3, 1.2, 0.7],
        "activation_beta": [0.4, 0.8, 0.1],
    },
}


@pytest.mark.sample(each=("options", "direction", "kind"))
@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
@pytest.mark.parametrize("kind", GATES)
def test_recurrent_layers(kind: str, direction: str, options: str) -> None:
    ways = 2 if direction == "bidirectional" else 1
    about: dict[str, Any] = {"hidden_size": 5, "direction": direction} | OPTIONS[options]
    count = {"LSTM": 3, "GRU": 2, "RNN": 1}[kind]
    for name in ("activations", "activation_alpha", "activation_beta"):
        if name in about:
            about[name] = about[name][:count] * ways
    outputs = ["y", "yh", "yc"] if kind == "LSTM" else ["y", "yh"]
    for lengths, states in ((False, False), (True, False), (True, True)):
        given = layer(kind, ways, lengths=lengths, states=states, peephole=states)
        same(kind, given, outputs, **about)
        if kind == "GRU":
            same(kind, given, outputs, linear_before_reset=1, **about)


def test_coupled_gates() -> None:
    given = layer("LSTM", 1, lengths=False, states=True, peephole=False)
    same("LSTM", given, ["y", "yh", "yc"], hidden_size=5, input_forget=1)


def test_batch_first() -> None:
    given = layer("GRU", 2, lengths=True, states=True, peephole=False)
    about: dict[str, Any] = {"hidden_size": 5, "direction": "bidirectional"}
    want = run(build("GRU", given, ["y", "yh"], **about), given)
    turned = given | {"x": given["x"].transpose(1, 0, 2), "h": given["h"].transpose(1, 0, 2)}
    right = [want[0].transpose(2, 0, 1, 3), want[1].transpose(1, 0, 2)]
    same("GRU", turned, ["y", "yh"], want=right, layout=1, **about)


@pytest.mark.sample(each=("steps", "direction", "kind"))
@pytest.mark.parametrize("steps", [None, 200])
@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
@pytest.mark.parametrize("kind", GATES)
def test_open_and_many_steps_are_a_scan(kind: str, direction: str, steps: int | None) -> None:
    ways = 2 if direction == "bidirectional" else 1
    about: dict[str, Any] = {"hidden_size": 5, "direction": direction}
    outputs = ["y", "yh", "yc"] if kind == "LSTM" else ["y", "yh"]
    for given_states in (False, True):
        given = layer(kind, ways, lengths=True, states=given_states, peephole=given_states)
        given["x"] = np.resize(given["x"], (steps or 6, 3, 4))
        model = build(kind, given, outputs, **about)
        model.graph.inputs[0].shape = ir.Shape([steps, None, 4])
        want = run(model, given)
        assert expand(model, list(model.graph))
        assert sum(n.op_type == "Scan" for n in model.graph) == ways
        for found, right in zip(run(model, given), want, strict=True):
            assert found.shape == right.shape
            np.testing.assert_allclose(found, right, rtol=1e-4, atol=2e-5)


@pytest.mark.sample(each=("corners", "padding", "mode"))
@pytest.mark.parametrize("corners", [0, 1])
@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
@pytest.mark.parametrize(
    ("mode", "space"),
    [
        *[(mode, (6, 5)) for mode in ("linear", "nearest", "cubic")],
        *[(mode, (3, 4, 5)) for mode in ("linear", "nearest")],
    ],
)
def test_grid_sample(mode: str, space: tuple[int, ...], padding: str, corners: int) -> None:
    random = np.random.default_rng(0)
    x = random.standard_normal((2, 3, *space)).astype(np.float32)
    # Far outside too, and not where two places are equally near.
    grid = random.uniform(-2.5, 2.5, (2, *([4] * len(space)), len(space))).astype(np.float32)
    about: dict[str, Any] = {"mode": mode, "padding_mode": padding, "align_corners": corners}
    same("GridSample", {"x": x, "g": grid}, ["y"], **about)


@pytest.mark.parametrize("transformation", ["half_pixel", "output_half_pixel"])
@pytest.mark.parametrize(("mode", "ratio"), [("avg", 2), ("max", 2), ("avg", 0)])
def test_roi_align(mode: str, ratio: int, transformation: str) -> None:
    random = np.random.default_rng(0)
    x = random.standard_normal((2, 3, 9, 7)).astype(np.float32)
    rois = np.array([[0, 0, 12, 9], [-3, 2, 5, 30], [4, 4, 4.5, 4.2]], np.float32)
    given: dict[str, Array] = {"x": x, "rois": rois, "image": np.array([1, 0, 1], np.int64)}
    about: dict[str, Any] = {
        "output_height": 3,
        "output_width": 2,
        "sampling_ratio": ratio,
        "spatial_scale": 0.5,
        "mode": mode,
        "coordinate_transformation_mode": transformation,
    }
    same("RoiAlign", given, ["y"], **about)


def test_regions_of_any_size_with_samples_of_their_own_number() -> None:
    random = np.random.default_rng(1)
    first = random.uniform(-30, 30, (40, 2))
    rois = np.concatenate([first, first + random.uniform(-3, 60, (40, 2))], 1).astype(np.float32)
    image, x = random.integers(0, 2, 40), random.standard_normal((2, 3, 12, 17)).astype(np.float32)
    given: dict[str, Array] = {"x": x, "rois": rois, "image": image}
    same("RoiAlign", given, ["y"], output_height=3, output_width=4)


def test_the_largest_of_samples_of_any_number_has_no_definition() -> None:
    given: dict[str, Array] = {
        "x": np.zeros((1, 1, 4, 4), np.float32),
        "rois": np.zeros((1, 4), np.float32),
        "image": np.zeros(1, np.int64),
    }
    model = build("RoiAlign", given, ["y"], mode="max")
    assert expand(model, list(model.graph)) == []


@pytest.mark.parametrize("axis", [1, 2, -2])
@pytest.mark.parametrize("length", [None, 6, 11])
def test_transforms(axis: int, length: int | None) -> None:
    random = np.random.default_rng(0)
    x = random.standard_normal((2, 8, 7, 2)).astype(np.float32)
    size = np.zeros(0, np.int64) if length is None else np.array(length)
    whole = x[..., 0] + 1j * x[..., 1]
    at = axis % 4

    def parts(values: Array) -> Array:
        return np.stack([values.real, values.imag], -1).astype(np.float32)

    given = {"x": x, "c0": size, "c1": np.array(axis)}
    same("DFT", given, ["y"], want=[parts(np.fft.fft(whole, length, at))])
    same("DFT", given, ["y"], want=[parts(np.fft.ifft(whole, length, at))], inverse=1)
    real = given | {"x": x[..., :1]}
    same("DFT", real, ["y"], want=[parts(np.fft.rfft(x[..., 0], length, at))], onesided=1)


@pytest.mark.parametrize("shape", [(2, 50), (2, 50, 1), (1, 50, 2)])
@pytest.mark.parametrize("windowed", [False, True])
@pytest.mark.parametrize("onesided", [0, 1])
def test_transforms_of_frames(shape: tuple[int, ...], windowed: bool, onesided: int) -> None:
    x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    if x.shape[2:] == (2,) and onesided:
        pytest.skip("a complex signal has no half of a spectrum")
    window = np.hanning(12).astype(np.float32) if windowed else np.zeros(0, np.float32)
    given = {"x": x, "c0": np.array(5), "c1": window, "c2": np.array(12)}
    whole = x[..., 0] + (1j * x[..., 1] if x.shape[2:] == (2,) else 0) if x.ndim == 3 else x
    frames = np.stack([whole[:, at : at + 12] for at in range(0, 39, 5)], axis=1)
    spectra = np.fft.fft(frames * (window if windowed else 1))
    spectra = spectra[..., :7] if onesided else spectra
    want = np.stack([spectra.real, spectra.imag], -1).astype(np.float32)
    same("STFT", given, ["y"], want=[want], onesided=onesided)


@pytest.mark.parametrize(
    "about",
    [{}, {"strides": [2, 2]}, {"pads": [1, 0, 1, 2]}, {"dilations": [1, 2]}],
)
def test_blocks_back_to_a_picture(about: dict[str, Any]) -> None:
    image, block = np.array([7, 8]), np.array([3, 2])
    pads, strides = about.get("pads", [0] * 4), about.get("strides", [1, 1])
    dilations = about.get("dilations", [1, 1])
    counts = [
        (image[a] + pads[a] + pads[a + 2] - dilations[a] * (block[a] - 1) - 1) // strides[a] + 1
        for a in range(2)
    ]
    x = np.random.default_rng(0).standard_normal((2, 12, int(np.prod(counts)))).astype(np.float32)
    same("Col2Im", {"x": x, "c0": image, "c1": block}, ["y"], **about)


@pytest.mark.parametrize("shape", [(4, 3), (2, 3, 4, 5)])
def test_statistics_of_a_batch(shape: tuple[int, ...]) -> None:
    random = np.random.default_rng(0)
    x = random.standard_normal(shape).astype(np.float32) * 2 + 5
    scale, bias, mean, variance = (random.random(3).astype(np.float32) + 1 for _ in range(4))
    given = {"x": x, "s": scale, "b": bias, "m": mean, "v": variance}
    axes = tuple(a for a in range(len(shape)) if a != 1)
    own, spread = x.mean(axes), x.var(axes)
    form = [3 if a == 1 else 1 for a in range(len(shape))]
    y = (x - own.reshape(form)) / np.sqrt(spread.reshape(form) + 1e-3)
    right = [
        y * scale.reshape(form) + bias.reshape(form),
        mean * 0.8 + own * np.float32(0.2),
        variance * 0.8 + spread * np.float32(0.2),
    ]
    model = build("BatchNormalization", given, ["y", "rm", "rv"], training_mode=1, momentum=0.8,
                  epsilon=1e-3)  # fmt: skip
    assert expand(model, list(model.graph))
    for found, wanted in zip(run(model, given), right, strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("ratio", [0.0, 0.5])
def test_a_share_of_zero_drops_nothing(ratio: float) -> None:
    x = np.random.default_rng(0).standard_normal((2, 3)).astype(np.float32)
    given = {"x": x, "cr": np.array(ratio, np.float32), "ct": np.array(True)}
    model = build("Dropout", given, ["y", "z"])
    model.graph.outputs[1].type = ir.TensorType(ir.DataType.BOOL)
    if ratio:
        assert expand(model, list(model.graph)) == []
        return
    assert expand(model, list(model.graph))
    y, mask = run(model, given)
    np.testing.assert_array_equal(y, x)
    assert mask.shape == x.shape
    assert mask.all()
