from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest

from edgeinfer.convert.lower.loops import settle_loops
from edgeinfer.convert.passes import normalise
from edgeinfer.types import Array
from tests.convert.lower.running import lower, model, run, run_openvino

LOOP = """g (int64 n, bool c, float[2,3] x) => (float[A,B] y) {{
    y = Loop(n, c, x) <body = b (int64 i, bool cond, float[D,E] v) => (bool again, float[F,G] w) {{
        again = Identity(cond)
        w = {step}
    }}>
}}"""


def settled(step: str) -> ir.Graph:
    whole = model(LOOP.format(step=step))
    body = whole.graph[0].attributes["body"].as_graph()
    for value in (*body.inputs, *(v for n in body for v in n.outputs)):
        value.shape = None
    settle_loops(whole)
    return body


def test_counter_and_condition_are_scalars() -> None:
    body = settled("Relu(v)")
    assert [v.shape for v in body.inputs[:2]] == [ir.Shape([]), ir.Shape([])]


def test_shape_that_a_step_keeps_is_known_inside() -> None:
    body = settled("Relu(v)")
    assert body.inputs[2].shape == ir.Shape([2, 3])
    assert body.outputs[1].shape == ir.Shape([2, 3])


def test_shape_that_a_step_changes_is_not_assumed() -> None:
    body = settled("Concat<axis = 0>(v, v)")
    assert body.inputs[2].shape is None
    assert body.outputs[1].shape != ir.Shape([4, 3])


SUM = """g (float[3] s, float[N,3] x) => (float[3] t, float[N,3] y) {
    t, y = Scan<num_scan_inputs = 1, body = b (float[3] a, float[3] r) => (float[3] c, float[3] o)
    { c = Add(a, r) o = Neg(c) }>(s, x)
}"""
SECOND = """g (float[2,3] s, float[2,N,3] x, float[N,2] v) => (float[2,3] t, float[2,N,3] y) {
    t, y = Scan<num_scan_inputs = 2, scan_input_axes = [-2, 0], scan_input_directions = [1, 1],
    scan_output_axes = [-2], scan_output_directions = [1],
    body = b (float[2,3] a, float[2,3] r, float[2] w) => (float[2,3] c, float[2,3] o) {
        axis = Constant<value = int64[1] {1}>()
        w2 = Unsqueeze(w, axis) m = Mul(r, w2) c = Add(a, m) o = Identity(c)
    }>(s, x, v)
}"""
SWAP = """g (float[3] s, float[N,3] x) => (float[3] t, float[N,3] y) {
    t, u, y = Scan<num_scan_inputs = 1, body = b (float[3] a, float[3] e, float[3] r) =>
    (float[3] c, float[3] d, float[3] o) {
        two = Constant<value = float {2}>()
        m = Mul(r, two) c = Add(m, e) d = Identity(a) o = Identity(c)
    }>(s, s, x)
}"""
COUNT = """g (int64 s, int64[N] x) => (int64 t, int64[N] y) {
    t, y = Scan<num_scan_inputs = 1, body = b (int64 a, int64 r) => (int64 c, int64 o)
    { c = Add(a, r) o = Div(c, r) }>(s, x)
}"""


def feeds(name: str, rows: int) -> list[Array]:
    rng = np.random.default_rng(rows)
    if name == "count":
        return [np.array(7), np.arange(1, rows + 1)]
    shapes = {"sum": [(3,), (rows, 3)], "second": [(2, 3), (2, rows, 3), (rows, 2)]}
    found = shapes.get(name, shapes["sum"])
    return [rng.standard_normal(s).astype(np.float32) for s in found]


def right(name: str, given: list[Array]) -> list[Array]:
    """The states and rows, by NumPy alone."""
    if name == "count":
        sums = given[0] + np.cumsum(given[1])
        return [sums[-1] if len(sums) else given[0], sums // given[1]]
    if name == "sum":
        sums = given[0] + np.cumsum(given[1], 0)
        return [sums[-1] if len(sums) else given[0], -sums]
    if name == "swap":
        states, turns = [given[0], given[0]], []
        for row in given[1]:
            states = [2 * row + states[1], states[0]]
            turns.append(states[0])
        return [states[0], np.array(turns).reshape(-1, 3)]
    scaled = (given[1] * given[2].T[:, :, None])[:, ::-1]
    sums = given[0][:, None] + np.cumsum(scaled, 1)
    return [sums[:, -1] if sums.shape[1] else given[0], sums[:, ::-1]]


@pytest.mark.sample(4)
@pytest.mark.parametrize("target", ["onnxruntime", "openvino"])
@pytest.mark.parametrize(
    ("name", "text"), [("sum", SUM), ("second", SECOND), ("swap", SWAP), ("count", COUNT)]
)
def test_scans_of_sizes_in_turn_with_none_among_them(
    name: str, text: str, target: str, tmp_path: Path
) -> None:
    source = model(text)
    made = lower(normalise(source).model, tmp_path, target)
    for rows in (3, 0, 2, 0, 1):
        given = feeds(name, rows)
        if target == "openvino":
            found = run_openvino(made.files[0], *given)
        else:
            names = [str(v.name) for v in source.graph.inputs]
            found = run(made.files[0], dict(zip(names, given, strict=True)))
        for value, wanted in zip(found, right(name, given), strict=True):
            np.testing.assert_allclose(value, wanted, rtol=1e-5, atol=1e-6, err_msg=f"{rows} rows")
            assert value.shape == wanted.shape
