import dataclasses

import numpy as np
import onnx_ir as ir

from edgeinfer.convert.quantize.units import lay_out
from tests.convert.quantize.conftest import LIMITS, graph

NET = """<ir_version: 10, opset_import: ["" : 24]>
net (float[1,3,8,8] x) => (float[1,4,8,8] y, float[1,4,8,8] z)
<float[4,3,1,1] w, float[4] b, float[4,4,1,1] v>
{
  a = Conv(x, w, b)
  ar = Relu(a)
  c = Conv(ar, v)
  s = Add(ar, c)
  t = Transpose<perm=[0,1,3,2]>(s)
  y = Conv(t, v)
  z = Erf(c)
}"""


def net() -> ir.Model:
    rng = np.random.default_rng(0)
    shapes = {"w": (4, 3, 1, 1), "b": (4,), "v": (4, 4, 1, 1)}
    return graph(NET, **{n: rng.normal(size=s).astype(np.float32) for n, s in shapes.items()})


def names(values: object) -> set[str]:
    return {v.name for v in values}  # type: ignore[attr-defined]


def test_a_convolution_takes_its_bias_and_its_clip_along() -> None:
    layout = lay_out(net(), LIMITS)
    assert [(u.kind, [n.op_type for n in u.nodes]) for u in layout.units] == [
        ("weighted", ["Conv", "Relu"]),
        ("weighted", ["Conv"]),
        ("light", ["Add"]),
        ("move", ["Transpose"]),
        ("weighted", ["Conv"]),
    ]
    assert names(layout.stored) == {"x", "ar", "c", "s", "t", "y"}


def test_what_is_moved_keeps_its_scale() -> None:
    layout = lay_out(net(), LIMITS)
    groups = {frozenset(names(m)) for m in layout.members().values()}
    assert frozenset({"s", "t"}) in groups
    assert frozenset({"ar"}) in groups


def test_a_unit_that_is_kept_takes_what_hangs_on_it_to_float() -> None:
    layout = lay_out(net(), LIMITS, frozenset({"Conv_2"}))
    assert [u.op for u in layout.units] == ["Conv", "Conv"]
    assert names(layout.stored) == {"x", "ar", "t", "y"}


def test_results_for_float_readers_stay_float_where_the_engine_can() -> None:
    limits = dataclasses.replace(LIMITS, float_results=("Conv",))
    layout = lay_out(net(), limits)
    assert names(layout.float_results) == {"y"}
    assert "y" not in names(layout.stored)


def test_a_light_operator_that_no_integer_reads_stays_float() -> None:
    model = graph(
        """<ir_version: 10, opset_import: ["" : 24]>
        net (float[1,4] x) => (float[1,4] y) <float[4,4] w>
        { a = MatMul(x, w)  s = Add(a, a)  y = Erf(s) }""",
        w=np.eye(4, dtype=np.float32),
    )
    assert [u.op for u in lay_out(model, LIMITS).units] == ["MatMul"]


def test_a_clip_without_zero_is_no_part_of_the_unit() -> None:
    model = graph(
        """<ir_version: 10, opset_import: ["" : 24]>
        net (float[1,4] x) => (float[1,4] y) <float[4,4] w, float lo, float hi>
        { a = MatMul(x, w)  y = Clip(a, lo, hi) }""",
        w=np.eye(4, dtype=np.float32),
        lo=np.array(1.0, np.float32),
        hi=np.array(2.0, np.float32),
    )
    (unit,) = lay_out(model, LIMITS).units
    assert [n.op_type for n in unit.nodes] == ["MatMul"]


def test_the_bias_behind_a_product_is_part_of_it() -> None:
    model = graph(
        """<ir_version: 10, opset_import: ["" : 24]>
        net (float[2,4] x) => (float[2,3] y) <float[4,3] w, float[3] b>
        { a = MatMul(x, w)  s = Add(b, a)  y = Relu(s) }""",
        w=np.ones((4, 3), np.float32),
        b=np.ones(3, np.float32),
    )
    (unit,) = lay_out(model, LIMITS).units
    assert [n.op_type for n in unit.nodes] == ["MatMul", "Add", "Relu"]


def test_operands_of_a_join_share_one_scale() -> None:
    model = graph(
        """<ir_version: 10, opset_import: ["" : 24]>
        net (float[1,4] x) => (float[1,8] y) <float[4,4] w, float[4,4] v>
        { a = MatMul(x, w)  c = MatMul(x, v)  y = Concat<axis=1>(a, c) }""",
        w=np.eye(4, dtype=np.float32),
        v=np.eye(4, dtype=np.float32),
    )
    groups = {frozenset(names(m)) for m in lay_out(model, LIMITS).members().values()}
    assert groups == {frozenset({"x"}), frozenset({"a", "c", "y"})}


def test_products_of_two_results_and_odd_settings_are_left_alone() -> None:
    model = graph(
        """<ir_version: 10, opset_import: ["" : 24]>
        net (float[4,4] x) => (float[4,4] y, float[4,4] z) <float[4,4] w>
        { y = MatMul(x, x)  z = Gemm<alpha=2.0>(x, w) }""",
        w=np.eye(4, dtype=np.float32),
    )
    assert lay_out(model, LIMITS).units == []
