"""Turns on every format: a Scan of opset 8 with its batch, and loops inside loops."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest
from onnx import helper

from edgeinfer.convert.passes import normalise
from edgeinfer.errors import SourceError
from edgeinfer.types import Array
from tests.conformance.everywhere import PLACES, lacking, run

RNG = np.random.default_rng(0)
START = RNG.normal(size=(3, 2)).astype(np.float32)
ROWS = RNG.normal(size=(3, 4, 2)).astype(np.float32)
LENGTHS = np.array([4, 1, 3])


def _model(lengths: bool, back: int) -> onnx.ModelProto:
    """Running sums; each row of the result is twice the sum so far."""

    def value(name: str, *shape: int, kind: int = onnx.TensorProto.FLOAT) -> onnx.ValueInfoProto:
        return helper.make_tensor_value_info(name, kind, shape)

    body = helper.make_graph(
        [helper.make_node("Add", ["v", "row"], ["w"]), helper.make_node("Add", ["w", "w"], ["o"])],
        "body",
        [value("v", 2), value("row", 2)],
        [value("w", 2), value("o", 2)],
    )
    node = helper.make_node(
        "Scan",
        ["n" if lengths else "", "s", "x"],
        ["last", "sums"],
        num_scan_inputs=1,
        directions=[back],
        body=body,
    )
    given = [value("n", 3, kind=onnx.TensorProto.INT64)] if lengths else []
    graph = helper.make_graph(
        [node],
        "net",
        [*given, value("s", 3, 2), value("x", 3, 4, 2)],
        [value("last", 3, 2), value("sums", 3, 4, 2)],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 8)], ir_version=4)


def _right(lengths: Array, back: int) -> tuple[Array, Array]:
    rows = ROWS[:, ::-1] if back else ROWS
    sums, last = np.zeros_like(ROWS), START.copy()
    for sequence, count in enumerate(lengths):
        for turn in range(count):
            last[sequence] += rows[sequence, turn]
            sums[sequence, turn] = 2 * last[sequence]
    return last, sums


@pytest.mark.sample(9)
@pytest.mark.parametrize("place", [p for p in PLACES if p != "coreai"])
@pytest.mark.parametrize(("lengths", "back"), [(False, 0), (False, 1), (True, 0)])
def test_each_sequence_is_scanned(lengths: bool, back: int, place: str) -> None:
    if why := lacking(place):
        pytest.skip(why)
    feeds = {"s": START, "x": ROWS} | ({"n": LENGTHS} if lengths else {})
    found = run(place, _model(lengths, back), feeds).outputs
    last, sums = _right(LENGTHS if lengths else np.array([4, 4, 4]), back)
    np.testing.assert_allclose(found["last"], last, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(found["sums"], sums, rtol=1e-5, atol=1e-6)


def test_own_lengths_from_the_end_are_refused() -> None:
    with pytest.raises(SourceError, match=r"opset 8 .*from their ends.*export the model"):
        normalise(ir.from_proto(_model(True, 1)))


@pytest.mark.parametrize("place", [p for p in PLACES if p != "coreai"])
def test_a_loop_inside_another_one_reads_its_condition(place: str) -> None:
    if why := lacking(place):
        pytest.skip(why)
    model = onnx.parser.parse_model("""<ir_version: 10, opset_import: ["": 21]>
        g (int64 n, int64 k, float[2] x) => (float[2] y) <bool go = {1}> {
            y = Loop(n, go, x) <body = outer (int64 i, bool c, float[2] s) => (bool d, float[2] u) {
                d = Identity(c)
                u = Loop(k, c, s) <body = inner (int64 j, bool e, float[2] v)
                    => (bool f, float[2] w) { f = Identity(e) w = Add(v, x) }>
            }>
        }""")
    x = np.array([1, 0.5], np.float32)
    for turns, inside in ((2, 3), (0, 3), (2, 0)):
        feeds = {"n": np.array(turns), "k": np.array(inside), "x": x}
        np.testing.assert_allclose(run(place, model, feeds).outputs["y"], x * (1 + turns * inside))


@pytest.mark.parametrize("place", [p for p in PLACES if p != "coreai"])
def test_states_of_a_scan_may_change_places(place: str) -> None:
    """Engines hold states, rows and results in memory of their own, turn after turn."""
    if why := lacking(place):
        pytest.skip(why)
    model = onnx.parser.parse_model("""<ir_version: 10, opset_import: ["": 21]>
        g (float[2] s, float[4,2] x) => (float[2] t, float[2] u, float[4,2] y)
        <float[2] k = {2, 3}> {
            t, u, y = Scan<num_scan_inputs = 1, body = b (float[2] a, float[2] e, float[2] r)
                => (float[2] c, float[2] d, float[2] o)
                { m = Mul(r, k) c = Add(m, e) d = Identity(a) o = Sub(c, a) }>(s, s, x)
        }""")
    rows, states, turns = ROWS[0], [START[0], START[0]], []
    for row in rows:
        before = states
        states = [row * np.array([2, 3], np.float32) + before[1], before[0]]
        turns.append(states[0] - before[0])
    found = run(place, model, {"s": START[0], "x": rows}).outputs
    for name, right in zip("tuy", [*states, np.array(turns)], strict=True):
        np.testing.assert_allclose(found[name], right, rtol=1e-5, atol=1e-5, err_msg=name)


RANGES = ((0, -2, 1), (5, 2, 1), (2, 5, -1), (5, 0, -2), (0, 7, 3), (3, 3, -1))


@pytest.mark.parametrize("place", [p for p in PLACES if p != "coreai"])
def test_a_range_that_leads_nowhere_is_empty(place: str) -> None:
    if why := lacking(place):
        pytest.skip(why)
    inputs = ", ".join(
        f"int64 a{i}, int64 n{i}, int64 s{i}, float f{i}" for i in range(len(RANGES))
    )
    outputs = ", ".join(f"int64[K{i}] y{i}, float[J{i}] z{i}" for i in range(len(RANGES)))
    body = " ".join(
        f"y{i} = Range(a{i}, n{i}, s{i}) z{i} = Range(zero, f{i}, half)" for i in range(len(RANGES))
    )
    model = onnx.parser.parse_model(
        f'<ir_version: 10, opset_import: ["": 21]> g ({inputs}) => ({outputs}) '
        f"<float zero = {{0}}, float half = {{0.5}}> {{ {body} }}"
    )
    feeds: dict[str, Array] = {}
    for i, (a, n, s) in enumerate(RANGES):
        feeds |= {f"{k}{i}": np.array(v) for k, v in (("a", a), ("n", n), ("s", s))}
        feeds[f"f{i}"] = np.array(n / 4, np.float32)
    found = run(place, model, feeds).outputs
    for i, (a, n, s) in enumerate(RANGES):
        np.testing.assert_array_equal(found[f"y{i}"], np.arange(a, n, s))
        np.testing.assert_array_equal(found[f"z{i}"], np.arange(0, n / 4, 0.5))


@pytest.mark.sample(each=("place", "op", "steps"))
@pytest.mark.parametrize("place", [p for p in PLACES if p != "coreai"])
@pytest.mark.parametrize("steps", [5, "T"])
@pytest.mark.parametrize(("op", "gates"), [("GRU", 3), ("LSTM", 4), ("RNN", 1)])
def test_sequences_have_lengths_of_their_own(
    place: str, op: str, gates: int, steps: int | str
) -> None:
    if why := lacking(place):
        pytest.skip(why)
    rng = np.random.default_rng(0)
    feeds = {"x": rng.normal(size=(5, 3, 2)).astype(np.float32)}
    feeds["n"] = np.array([2, 5, 3], np.int32)
    w, r = (
        ", ".join(f"{v:.3f}" for v in rng.normal(size=2 * size * gates).ravel()) for size in (2, 2)
    )
    model = onnx.parser.parse_model(
        f"""<ir_version: 10, opset_import: ["": 21]>
        g (float[{steps},3,2] x, int32[3] n) => (float[{steps},1,3,2] y, float[1,3,2] h)
        <float[1,{2 * gates},2] w = {{{w}}}, float[1,{2 * gates},2] r = {{{r}}}> {{
            y, h = {op}<hidden_size = 2>(x, w, r, , n)
        }}"""
    )
    session = onnxruntime.InferenceSession(model.SerializeToString())
    y, h = session.run(None, feeds)
    found = run(place, model, feeds).outputs
    np.testing.assert_allclose(found["y"], y, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(found["h"], h, rtol=1e-5, atol=1e-6)
    assert not y[2:, :, 0].any()
