"""Det, DeformConv, Compress and Unique by their definitions, against ONNX Runtime and NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest

from edgeinfer.convert.lower.expand import expand
from edgeinfer.types import Array


def _model(text: str) -> ir.Model:
    proto = ir.to_proto(ir.from_onnx_text(f'<ir_version: 10, opset_import: ["": 24]> {text}'))
    model: ir.Model = ir.from_proto(onnx.shape_inference.infer_shapes(proto))
    return model


def _run(model: ir.Model, feeds: dict[str, Array]) -> list[Array]:
    session = ort.InferenceSession(ir.to_proto(model).SerializeToString())
    return list(session.run(None, feeds))


def _expanded(text: str, op: str, feeds: dict[str, Array]) -> tuple[list[Array], list[Array]]:
    """What a definition gives, and what ONNX Runtime's own kernel does."""
    plain, written = _model(text), _model(text)
    assert expand(written, [n for n in written.graph if n.op_type == op])
    assert op not in {n.op_type for n in written.graph}
    return _run(written, feeds), _run(plain, feeds)


@pytest.mark.parametrize("count", [1, 2, 3, 4, 7])
def test_determinants(count: int) -> None:
    rng = np.random.default_rng(count)
    x = rng.standard_normal((2, 3, count, count)).astype(np.float32)
    x[0, 0, 0] = 0
    if count > 1:
        x[0, 1, 0, 0] = 0
        x[1, 0] = np.roll(np.eye(count), 1, axis=0)
    text = f"g (float[2,3,{count},{count}] x) => (float[2,3] y) {{ y = Det(x) }}"
    found, _ = _expanded(text, "Det", {"x": x})
    np.testing.assert_allclose(found[0], np.linalg.det(x.astype(np.float64)), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("mask", [False, True])
def test_deformed_convolutions(mask: bool) -> None:
    rng = np.random.default_rng(0)
    feeds = {
        "x": rng.standard_normal((2, 4, 6, 5)),
        "w": rng.standard_normal((6, 2, 3, 2)),
        "o": 1.5 * rng.standard_normal((2, 24, 3, 5)),
        "b": rng.standard_normal(6),
        "m": rng.random((2, 12, 3, 5)),
    }
    feeds = {name: array.astype(np.float32) for name, array in feeds.items() if mask or name != "m"}
    names = ", ".join(f"float{list(a.shape)} {n}" for n, a in feeds.items())
    options = "group=2, offset_group=2, strides=[2,1], pads=[1,0,1,2], dilations=[1,2]"
    body = f"y = DeformConv<{options}, kernel_shape=[3,2]>({', '.join(feeds)})"
    text = f"g ({names}) => (float[2,6,3,5] y) {{ {body} }}"
    (found,), (right,) = _expanded(text, "DeformConv", feeds)
    np.testing.assert_allclose(found, right, rtol=1e-4, atol=1e-4)


def test_what_a_known_condition_lets_through() -> None:
    x = np.arange(12, dtype=np.float32).reshape(3, 4)
    feeds = {"x": x}
    known = "<bool[3] c = {1, 0, 1}>"
    rows = f"g (float[3,4] x) => (float[2,4] y) {known} {{ y = Compress<axis=0>(x, c) }}"
    np.testing.assert_array_equal(_expanded(rows, "Compress", feeds)[0][0], x[[0, 2]])
    flat = f"g (float[3,4] x) => (float[2] y) {known} {{ y = Compress(x, c) }}"
    np.testing.assert_array_equal(_expanded(flat, "Compress", feeds)[0][0], x.ravel()[[0, 2]])


def test_what_a_condition_of_a_run_lets_through() -> None:
    x = np.arange(12, dtype=np.float32).reshape(3, 4)
    text = "g (float[3,4] x, bool[3] c) => (float[n,4] y) { y = Compress<axis=0>(x, c) }"
    for chosen in ([True, False, True], [False] * 3, [True] * 3):
        condition = np.array(chosen)
        found, right = _expanded(text, "Compress", {"x": x, "c": condition})
        np.testing.assert_array_equal(found[0], right[0])
        assert len(found[0]) == sum(chosen)


@pytest.mark.parametrize("form", ["axis=0", "axis=1", "axis=-1, sorted=0", "sorted=0"])
@pytest.mark.parametrize("kinds", [1, 2, 40])
def test_unique_slices_sorted_and_in_their_order(form: str, kinds: int) -> None:
    array = np.random.default_rng(kinds).integers(0, kinds, (5, 3, 2)).astype(np.int64)
    if "axis=0" in form:
        array[3], array[4] = array[1], array[0]
    shape = {"axis=0": "n,3,2", "axis=1": "5,n,2", "axis=-1, sorted=0": "5,3,n"}.get(form, "n")
    shape = shape.replace("5", "a").replace("3", "b").replace("2", "c")
    text = f"""g (int64[5,3,2] x) => (int64[{shape}] y, int64[n] i, int64[r] r, int64[n] c)
        {{ y, i, r, c = Unique<{form}>(x) }}"""
    for form in (text, text.replace("int64[5,3,2]", "int64[a,b,c]")):
        found, right = _expanded(form, "Unique", {"x": array})
        for one, other in zip(found, right, strict=True):
            np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("x", [[3, 1, 3, 2, 1, 1], [5], [2, 2]])
@pytest.mark.parametrize("dtype", ["float", "int64"])
def test_unique_elements_with_places_and_counts(x: list[Any], dtype: str) -> None:
    array = np.array(x, np.float32 if dtype == "float" else np.int64)
    text = f"""g ({dtype}[{len(x)}] x) => ({dtype}[n] y, int64[n] i, int64[{len(x)}] r, int64[n] c)
        {{ y, i, r, c = Unique(x) }}"""
    found, right = _expanded(text, "Unique", {"x": array})
    for one, other in zip(found, right, strict=True):
        np.testing.assert_array_equal(one, other)


def test_unpooled_elements_count_in_the_sizes_of_their_windows() -> None:
    text = """g (float[1,1,2,2] x, int64[1,1,2,2] i) => (float[1,1,5,5] y) <int64[4] s = {1,1,5,5}>
        { y = MaxUnpool<kernel_shape=[2,2], strides=[2,2]>(x, i, s) }"""
    model = _model(text)
    assert expand(model, list(model.graph))
    feeds = {
        "x": np.arange(1, 5, dtype=np.float32).reshape(1, 1, 2, 2),
        "i": np.array([[[[5, 7], [13, 15]]]]),
    }
    # As the standard's own case has it; ONNX Runtime counts in the sizes that were requested.
    right = np.zeros((5, 5), np.float32)
    right[1, 1], right[1, 3], right[3, 1], right[3, 3] = 1, 2, 3, 4
    np.testing.assert_array_equal(_run(model, feeds)[0][0, 0], right)


@pytest.mark.parametrize("mode", ["linear", "circular"])
@pytest.mark.parametrize("given", [True, False])
def test_new_steps_of_a_cache(mode: str, given: bool) -> None:
    past = np.zeros((2, 3, 5, 1), np.float32)
    update = np.arange(1, 13, dtype=np.float32).reshape(2, 3, 2, 1)
    starts = [3, 4 if mode == "circular" else 0] if given else [0, 0]
    at, steps = (", int64[2] s", ", s") if given else ("", "")
    text = (
        f"g (float[2,3,5,1] p, float[2,3,2,1] u{at}) => (float[2,3,5,1] y)"
        f' {{ y = TensorScatter<mode="{mode}">(p, u{steps}) }}'
    )
    model = ir.from_onnx_text(f'<ir_version: 11, opset_import: ["": 24]> {text}')
    assert expand(model, list(model.graph))
    feeds = {"p": past, "u": update, **({"s": np.array(starts)} if given else {})}
    right = past.copy()
    for batch, start in enumerate(starts):
        for step in range(2):
            right[batch, :, (start + step) % 5] = update[batch, :, step]
    np.testing.assert_array_equal(_run(model, feeds)[0], right)


@pytest.mark.parametrize(
    "options",
    [
        "strides=[2,2], pads=[1,0,0,1], output_padding=[1,0]",
        "dilations=[2,1], group=2",
        "group=4, strides=[1,3]",
    ],
)
def test_transposed_convolutions_by_weights_of_a_run(options: str) -> None:
    rng = np.random.default_rng(0)
    feeds = {"x": rng.standard_normal((2, 4, 5, 6)), "w": rng.standard_normal((4, 3, 3, 2))}
    group = 4 if "group=4" in options else 2 if "group=2" in options else 1
    feeds["b"] = rng.standard_normal(3 * group)
    feeds = {name: array.astype(np.float32) for name, array in feeds.items()}
    text = (
        f"g (float[2,4,5,6] x, float[4,3,3,2] w, float[{3 * group}] b) => (y)"
        f" {{ y = ConvTranspose<{options}>(x, w, b) }}"
    )
    plain, written = _model(text), _model(text)
    assert expand(written, list(written.graph))
    found, right = (_run(m, feeds)[0] for m in (written, plain))
    assert found.shape == right.shape
    np.testing.assert_allclose(found, right, rtol=1e-4, atol=1e-5)
