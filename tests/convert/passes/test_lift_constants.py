import numpy as np
import onnx_ir as ir
import pytest

from edgeinfer.convert.passes.lift_constants import LiftConstants
from tests.convert.passes.rewriting import Feeds, check, check_left_alone, f32, parse

X = f32([[1, -2, 3]])


@pytest.mark.parametrize(
    ("constant", "dtype", "shape"),
    [
        ("value = float[1] {2}", ir.DataType.FLOAT, [1]),
        ("value_float = 2.0", ir.DataType.FLOAT, []),
        ("value_floats = [2.0, 3.0, 4.0]", ir.DataType.FLOAT, [3]),
    ],
)
def test_a_constant_node_becomes_an_initializer(
    constant: str, dtype: ir.DataType, shape: list[int]
) -> None:
    model = parse(
        "g (float[1,3] x) => (float[1,3] y) { k = Constant<" + constant + ">() y = Mul(x, k) }"
    )
    check(model, [LiftConstants()], {"Mul": 1}, {"x": X})
    value = model.graph.initializers["k"]
    assert value.dtype == dtype
    assert list(value.shape or ()) == shape


def test_integers_become_int64() -> None:
    model = parse(
        "g (float[1,3] x) => (float[3] y) { k = Constant<value_ints = [3]>() y = Reshape(x, k) }"
    )
    check(model, [LiftConstants()], {"Reshape": 1}, {"x": X})
    assert model.graph.initializers["k"].dtype == ir.DataType.INT64


def test_strings_are_lifted() -> None:
    model = parse(
        "g (string[2] s) => (bool[2] y)"
        ' { k = Constant<value_strings = ["a", "b"]>() y = Equal(s, k) }'
    )
    feeds = {"s": np.array(["a", "c"], dtype=object)}
    check(model, [LiftConstants()], {"Equal": 1}, feeds)


def test_constants_of_branches_move_out_and_get_names_of_their_own() -> None:
    model = parse(
        "g (bool c, float[1,3] x) => (float[1,3] y) <float k = {9}> { z = Mul(x, k) y = If(c) <"
        "then_branch = t () => (float[1,3] o) <float a = {2}> { o = Mul(z, a) },"
        "else_branch = e () => (float[1,3] p) <float a = {3}> { p = Mul(z, a) }> }"
    )
    feeds: Feeds = {"c": np.asarray(False), "x": X}
    check(model, [LiftConstants()], {"If": 1, "Mul": 3}, feeds)
    assert len(model.graph.initializers) == 3


def test_no_weight_is_copied() -> None:
    model = parse(
        "g (float[3] x) => (float[3] y) { k = Constant<value = float[1] {2}>() y = Mul(x, k) }"
    )
    tensor = model.graph[0].attributes["value"].as_tensor()
    LiftConstants()(model)
    assert model.graph.initializers["k"].const_value is tensor


def test_a_constant_that_is_an_output_stays() -> None:
    check_left_alone(
        parse("g (float[3] x) => (float[1] y) { y = Constant<value = float[1] {2}>() }"),
        LiftConstants(),
    )
