"""Values are held to name a node, but not of any size."""

import numpy as np
import onnx_ir as ir
import pytest

from edgeinfer.convert.verify import locate
from edgeinfer.convert.verify.locate import all_values

pytest.importorskip("onnxruntime")
TEXT = """<ir_version: 8, opset_import: ["" : 17]>
g (float[4] x, float many) => (float y) <float zero = {0}, float one = {1}> {
    v = Range (zero, many, one)
    w = Sin (v)
    u = Cos (w)
    m = ReduceMax <keepdims = 0> (u)
    s = ReduceMax <keepdims = 0> (x)
    y = Add (m, s)
}"""


def test_sizes_that_a_run_decides_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """3 kB of ONNX held 2.4 GB."""
    model = ir.from_onnx_text(TEXT)
    feeds = {"x": np.ones(4, np.float32), "many": np.asarray(1000, np.float32)}
    assert all_values(model, feeds)["w"].shape == (1000,)
    monkeypatch.setattr(locate, "_ANY_BYTES", 20_000)
    assert not all_values(model, feeds)
    assert all_values(model, {**feeds, "many": np.asarray(100, np.float32)})
