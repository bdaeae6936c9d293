import onnx_ir as ir

from edgeinfer.convert.lower.loops import settle_loops
from tests.convert.lower.running import model

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
