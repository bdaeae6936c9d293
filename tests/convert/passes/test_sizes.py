"""Sizes that no machine holds are refused in one line, before anything counts up to them."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from edgeinfer.convert import sources
from edgeinfer.convert.passes import normalise
from edgeinfer.convert.passes.sizes import check_sizes
from edgeinfer.errors import SourceError

HUGE = 2**62


def read(text: str, **constants: list[int] | int) -> ir.Model:
    model = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : 17]> {text}')
    for name, value in constants.items():
        model.graph.initializer.append(
            onnx.numpy_helper.from_array(np.array(value, np.int64), name)
        )
    found = normalise(sources.read(model).model).model
    check_sizes(found)
    return found


@pytest.mark.parametrize(
    ("text", "constants"),
    [
        ("g (float[4611686018427387904,2] x) => (float[?] y) {y = Relu(x)}", {}),
        ("g (float[2147483647,2147483647,4] x) => (float[?] y) {y = Relu(x)}", {}),
        ("g (float[N,2] x) => (float[?] y) {y = Reshape(x, s)}", {"s": [HUGE, -1]}),
        ("g (float[1,2] x) => (float[?] y) {y = Expand(x, s)}", {"s": [HUGE, 2]}),
        ("g (float[1,2] x) => (float[?] y) {y = Tile(x, s)}", {"s": [HUGE, HUGE]}),
        ("g (float[1,2] x) => (float[?] y) {y = Pad(x, s)}", {"s": [0, HUGE, 0, 0]}),
        (
            "g (int64[1] x) => (int64[?] y) {r = Range(a, s, b) y = Add(x, r)}",
            {"a": 0, "s": HUGE, "b": 1},
        ),
        (
            "g (float[1,2] x) => (float[?] y) {c = ConstantOfShape(s) y = Add(x, c)}",
            {"s": [HUGE, 2]},
        ),
        ('g (float[1,1,2,2] x) => (float[?] y) {y = Resize(x, "", "", s)}', {"s": [1, 1, 9, HUGE]}),
    ],
)
def test_they_are_refused(text: str, constants: dict[str, list[int] | int]) -> None:
    with pytest.raises(SourceError, match=r"more than any engine holds|no engine can compute this"):
        read(text, **constants)


def test_a_weight_of_fewer_elements_than_its_sizes_say_is_refused() -> None:
    text = "g (float[N] x) => (float[N] y) <float[4611686018427387904] s = {1}> {y = Add(x, s)}"
    with pytest.raises(SourceError, match="'s' has 1 elements, its sizes say 4611686018427387904"):
        read(text)


def test_a_cut_up_to_the_end_is_no_size() -> None:
    text = "g (float[N,2] x) => (float[?] y) {y = Slice(x, a, e)}"
    read(text, a=[1], e=[2**63 - 1])


@pytest.mark.parametrize(
    ("text", "constants"),
    [
        ("g (float[3,1] x) => (float[?] y) {y = Expand(x, s)}", {"s": [3, 2**31 - 1]}),
        ("g (float[1,2] x) => (float[?] y) {y = Tile(x, s)}", {"s": [2**14, 2**14]}),
        ("g (float[1,2] x) => (float[?] y) {y = Pad(x, s)}", {"s": [0, 0, 0, 2**29]}),
        ("g () => (float[?] y) {y = RandomNormal<shape = [16384, 16385]>()}", {}),
        ("g (float[1,2] x) => (float[?] y) {y = CenterCropPad(x, s)}", {"s": [2**15, 2**15]}),
    ],
)
def test_much_made_of_little_is_refused_whatever_memory_is_free(
    text: str, constants: dict[str, list[int] | int]
) -> None:
    with pytest.raises(SourceError, match=r"elements of \d+, at most 268435456"):
        read(text, **constants)
