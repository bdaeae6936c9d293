"""Scans and recurrent layers over an axis without rows; a Scan's numbers are in ``test_loops``."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx_ir as ir
import onnxruntime
import pytest

from edgeinfer.convert.lower.unscanned import keep_first_states, scan_one_row
from edgeinfer.convert.passes import normalise
from edgeinfer.errors import Remarks
from edgeinfer.types import Array
from tests.convert.lower.running import lower, model, ops, run

SUM = """g (float[3] s, float[N,3] x) => (float[3] t, float[N,3] y) {
    t, y = Scan<num_scan_inputs = 1, body = b (float[3] a, float[3] r) => (float[3] c, float[3] o)
    { c = Add(a, r) o = Neg(c) }>(s, x)
}"""


def test_rows_that_are_surely_there_are_left_alone() -> None:
    fixed = model(SUM.replace("N,3", "4,3"))
    before = ir.to_proto(fixed).SerializeToString()
    scan_one_row(fixed, notes := Remarks())
    assert ir.to_proto(fixed).SerializeToString() == before
    assert not notes.lines


def test_it_says_what_it_did() -> None:
    changed = model(SUM)
    scan_one_row(changed, notes := Remarks())
    (line,) = notes.lines
    assert "of no rows it makes none" in line
    assert ops(changed).count("Scan") == 1


LAYERS = {"LSTM": 4, "GRU": 3, "RNN": 1}


def layer(op: str, length: str, more: str = "") -> str:
    """A layer of two directions with states that are given, and one without."""
    cell = ", float[2,2,5] d" if op == "LSTM" else ""
    gates = 5 * LAYERS[op]
    given, made = (", d", ", c") if cell else ("", "")
    return f"""g (float[{length},2,3] x, float[2,{gates},3] w, float[2,{gates},5] r,
        float[2,2,5] s{cell}) => (float[T,2,2,5] y, float[2,2,5] h, float[2,2,5] z
        {", float[2,2,5] c" if cell else ""}) {{
        y, h{made} = {op}<hidden_size = 5, direction = "bidirectional"{more}>(x, w, r, , , s{given})
        , z = {op}<hidden_size = 5, direction = "bidirectional"{more}>(x, w, r) }}"""


def fed(op: str, length: int) -> dict[str, Array]:
    rng, gates = np.random.default_rng(length), 5 * LAYERS[op]
    shapes = {"x": (length, 2, 3), "w": (2, gates, 3), "r": (2, gates, 5), "s": (2, 2, 5)}
    if op == "LSTM":
        shapes["d"] = (2, 2, 5)
    return {n: rng.standard_normal(s).astype(np.float32) for n, s in shapes.items()}


@pytest.mark.sample(5)
@pytest.mark.parametrize("target", ["onnxruntime", "openvino"])
@pytest.mark.parametrize("fixed", [False, True])
@pytest.mark.parametrize("op", LAYERS)
def test_layers_without_steps_keep_their_states(
    op: str, fixed: bool, target: str, tmp_path: Path
) -> None:
    source = model(layer(op, "N"))
    weights = {n: fed(op, 1)[n] for n in ("w", "r")}
    if fixed:
        for weight in [v for v in source.graph.inputs if v.name in weights]:
            source.graph.inputs.remove(weight)
            weight.const_value = ir.tensor(weights[str(weight.name)], name=weight.name)
            source.graph.register_initializer(weight)
    made = lower(normalise(source).model, tmp_path, target)
    names = [str(v.name) for v in source.graph.outputs]
    execute = opened(target, made.files[0])
    for length in (3, 0, 2, 0, 1):
        given = {n: v for n, v in fed(op, length).items() if not (fixed and n in weights)}
        found = dict(zip(names, execute(given), strict=True))
        right: dict[str, Array]
        if length:
            right = dict(zip(names, run(source, given), strict=True))
        else:
            none, zeros = np.zeros((0, 2, 2, 5)), np.zeros((2, 2, 5))
            right = {"y": none, "h": given["s"], "z": zeros}
            right |= {"c": given["d"]} if op == "LSTM" else {}
        for name, value in right.items():
            assert found[name].shape == value.shape
            np.testing.assert_allclose(found[name], value, rtol=1e-4, atol=1e-5, err_msg=name)


def opened(target: str, path: Path) -> Callable[[dict[str, Array]], list[Array]]:
    """Open an artifact once, for runs in turn: an engine may give what is left of the last one."""
    if target == "onnxruntime":
        session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
        return lambda feeds: list(session.run(None, feeds))
    openvino = pytest.importorskip("openvino")
    core = openvino.Core()
    settings = {"INFERENCE_PRECISION_HINT": "f32"}
    compiled = core.compile_model(core.read_model(path), "CPU", settings)
    request = compiled.create_infer_request()

    def execute(feeds: dict[str, Array]) -> list[Array]:
        result = request.infer(list(feeds.values()))
        return [np.array(result[i]) for i in range(len(compiled.outputs))]

    return execute


def test_layers_with_steps_are_left_alone() -> None:
    for op in LAYERS:
        fixed = model(layer(op, "4"))
        before = ir.to_proto(fixed).SerializeToString()
        keep_first_states(fixed, notes := Remarks(), lambda _: True)
        assert ir.to_proto(fixed).SerializeToString() == before
        assert not notes.lines
