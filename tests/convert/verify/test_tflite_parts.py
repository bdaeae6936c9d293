"""Files with operators that LiteRT lacks, run by LiteRT as far as it can."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest

from edgeinfer.convert.sources.tflite import read_file
from edgeinfer.convert.sources.tflite.registry import CUSTOM
from edgeinfer.convert.verify.answers import Vector
from edgeinfer.convert.verify.definitions import DEFINITIONS
from edgeinfer.convert.verify.oracles import Oracles
from edgeinfer.convert.verify.witness import Abstains, LiteRtInPieces
from edgeinfer.errors import VerifyError
from tests.convert.sources.tflite.custom_file import Step, write_steps
from tests.convert.sources.tflite.mediapipe_cases import SAME
from tests.convert.sources.tflite.reading import Array, floats

POOL = struct.pack("<6i", SAME, 2, 2, 2, 2, 0)
DECONVOLUTION = struct.pack("<3i", SAME, 2, 2)
NAMES = ("Convolution2DTransposeBias", "MaxPoolingWithArgmax2D", "MaxUnpooling2D")
CONSTANTS = {"w": floats(5, 3, 3, 3), "b": floats(5)}
CHAIN = [
    Step("RELU", ["x"], {"a": (1, 4, 6, 3)}),
    Step(NAMES[1], ["a"], {"v": (1, 2, 3, 3), "i": (1, 2, 3, 3)}, POOL),
    Step("FLOOR", ["v"], {"f": (1, 2, 3, 3)}),
    Step(NAMES[2], ["f", "i"], {"u": (1, 4, 6, 3)}, POOL),
    Step(NAMES[0], ["u", "w", "b"], {"d": (1, 8, 12, 5)}, DECONVOLUTION),
    Step("TANH", ["d"], {"y": (1, 8, 12, 5)}),
]
"""Each custom operator stands behind another one, between two that LiteRT has or without any."""

X = floats(1, 4, 6, 3) * 3


def _chain(path: Path, *outputs: str) -> Path:
    return write_steps(path, {"x": X}, CHAIN, constants=CONSTANTS, outputs=outputs)


def _by_hand(x: Array) -> dict[str, Array]:
    def pool(a: Array) -> tuple[Array, Array]:
        parts = np.stack([a[:, i::2, j::2] for i in (0, 1) for j in (0, 1)])
        return parts.max(0), parts.argmax(0)

    values, places = pool(np.maximum(x, 0))
    spread = np.zeros_like(x)
    for number in range(4):
        part = spread[:, number // 2 :: 2, number % 2 :: 2]
        part[...] = np.where(places == number, np.floor(values), 0)
    full = np.zeros((1, 9, 13, 5), np.float32)
    for row, column in np.ndindex(3, 3):
        part = full[:, row : row + 7 : 2, column : column + 11 : 2]
        part += spread @ CONSTANTS["w"][:, row, column].T
    # SAME cuts one element off, behind.
    return {"u": spread, "y": np.tanh(full[:, :8, :12] + CONSTANTS["b"])}


def test_operators_between_and_behind_each_other(tmp_path: Path) -> None:
    path = _chain(tmp_path / "m.tflite", "y", "u", "a")
    found = read_file(path)
    assert found.original.custom == NAMES
    witness = LiteRtInPieces(found.original, tmp_path)
    made = witness.run({"x": X})
    want = _by_hand(X)
    assert list(made) == ["y", "u", "a"]
    np.testing.assert_array_equal(made["u"], want["u"])
    np.testing.assert_array_equal(made["a"], np.maximum(X, 0))
    np.testing.assert_allclose(made["y"], want["y"], atol=1e-6)
    again = witness.run({"x": X * 2})
    np.testing.assert_allclose(again["y"], _by_hand(X * 2)["y"], atol=1e-6)
    witness.close()
    with pytest.raises(Abstains, match="closed"):
        witness.run({"x": X})


def test_who_judged_is_told(tmp_path: Path) -> None:
    found = read_file(_chain(tmp_path / "m.tflite"))
    with Oracles(found.model, original=found.original) as oracles:
        expected = oracles.expected([Vector({"x": X}, "synthetic:normal")])
    (answer,) = expected.answers
    assert answer.oracle == "litert and definitions"
    assert answer.agreed == ("litert and definitions", "float64")
    (note,) = expected.notes
    assert note.startswith(f"LiteRT has no kernels for {', '.join(NAMES)}, so it cannot run the")
    assert "computed in NumPy by their definitions" in note
    np.testing.assert_allclose(answer.outputs["y"], _by_hand(X)["y"], atol=1e-6)


def test_a_reader_that_is_wrong_is_found(tmp_path: Path) -> None:
    found = read_file(_chain(tmp_path / "m.tflite"))
    (node,) = (n for n in found.model.graph if n.op_type == "ConvTranspose")
    bias = node.inputs[2]
    assert bias is not None
    assert bias.const_value is not None
    bias.const_value = ir.tensor(bias.const_value.numpy() + np.float32(1))
    wrong = "does not compute what LiteRT, with NumPy for custom operators, computes"
    with (
        Oracles(found.model, original=found.original) as oracles,
        pytest.raises(VerifyError, match=wrong),
    ):
        oracles.expected([Vector({"x": X}, "synthetic:normal")])


def test_every_operator_that_is_read_has_a_definition() -> None:
    assert CUSTOM.codes() == set(DEFINITIONS)
