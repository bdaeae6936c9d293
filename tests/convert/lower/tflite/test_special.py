"""NaN in least and greatest values: it stays NaN, or the variant refuses it."""

from pathlib import Path

import numpy as np
import onnx
import pytest

import edgeinfer
from edgeinfer.convert.pipeline.entry import export
from edgeinfer.errors import InputError

HEAD = '<ir_version: 9, opset_import: ["" : 17]>'
STAYS = {
    "relu": "relu = Relu (x)",
    "clip": "clip = Clip (x, low, high)",
    "max": "max = Max (x, zero)",
    "min": "min = Min (zero, x)",
}
TWO = {
    "max": "z = Neg (x) max = Max (z, x)",
    "min": "z = Sin (x) min = Min (x, z)",
}
REDUCED = {
    "max": "z = ReduceMax <axes = [0], keepdims = 1> (x) max = Add (z, x)",
    "min": "z = ReduceMin <axes = [0], keepdims = 1> (x) min = Add (z, x)",
}
CASES = [
    ("onnxruntime", {**STAYS}, False),
    ("onnxruntime", {"max": TWO["max"]}, False),
    ("onnxruntime", {"max": REDUCED["max"]}, True),
    ("android", {**STAYS}, False),
    *(("android", {name: text}, True) for kind in (TWO, REDUCED) for name, text in kind.items()),
    ("openvino", {"relu": STAYS["relu"]}, True),
]


@pytest.mark.sample(4)
@pytest.mark.parametrize(("target", "nodes", "refused"), CASES)
def test_nan_stays_or_is_refused(
    tmp_path: Path, target: str, nodes: dict[str, str], refused: bool
) -> None:
    pytest.importorskip("ai_edge_litert" if target == "android" else target)
    outputs = ", ".join(f"float[4] {name}" for name in nodes)
    given = "<float low = {-1.0}, float high = {1.0}, float[1] zero = {0.0}>"
    text = f"{HEAD} g (float[4] x) => ({outputs}) {given} {{ {' '.join(nodes.values())} }}"
    export(onnx.parser.parse_model(text), tmp_path / "m.edge", targets=(target,))
    with edgeinfer.load(tmp_path / "m.edge", measure=False) as session:
        for place in (0, 3):
            x = np.array([1, -2, 3, -4], np.float32)
            assert all(np.isfinite(y).all() for y in session.run({"x": x}).values())
            x[place] = np.nan
            if refused:
                with pytest.raises(InputError, match="without NaN"):
                    session.run({"x": x})
            else:
                assert all(np.isnan(y[place]) for y in session.run({"x": x}).values())
