import numpy as np
import onnx_ir as ir
import pytest

from edgeinfer.convert.passes.clean_cast import CleanCast, is_lossless
from edgeinfer.convert.passes.dead_code import RemoveDeadCode
from edgeinfer.convert.passes.shapes import InferShapes
from tests.convert.passes.rewriting import check, check_left_alone, f32, parse

PASSES = [InferShapes(), CleanCast(), RemoveDeadCode()]


def test_a_cast_to_the_same_type_goes() -> None:
    model = parse("g (float[3] x) => (float[3] y) { a = Cast<to=1>(x) y = Neg(a) }")
    check(model, PASSES, {"Neg": 1}, {"x": f32([1, -0.0, np.nan])})


def test_there_and_back_without_loss_goes() -> None:
    model = parse(
        "g (float16[3] x) => (float16[3] y) { a = Cast<to=1>(x) b = Cast<to=10>(a) y = Neg(b) }"
    )
    check(model, PASSES, {"Neg": 1}, {"x": np.array([1, -0.0, 65504], np.float16)})


def test_the_lossless_first_step_of_a_chain_goes() -> None:
    model = parse("g (int32[3] x) => (float[3] y) { a = Cast<to=7>(x) y = Cast<to=1>(a) }")
    check(model, PASSES, {"Cast": 1}, {"x": np.array([1, -(2**31), 16777217], np.int32)})


@pytest.mark.parametrize(
    "text",
    [
        # float16 in the middle rounds; int32 in the middle wraps; float to int has no defined
        # result out of range.
        "g (float[3] x) => (float[3] y) { a = Cast<to=10>(x) y = Cast<to=1>(a) }",
        "g (int64[3] x) => (int64[3] y) { a = Cast<to=6>(x) y = Cast<to=7>(a) }",
        "g (float16[3] x) => (int8[3] y) { a = Cast<to=1>(x) y = Cast<to=3>(a) }",
        "g (int64[3] x) => (bool[3] y) { a = Cast<to=2>(x) y = Cast<to=9>(a) }",
        "g (float[3] x) => (float[3] y) { y = Cast<to=1>(x) }",
    ],
)
def test_what_rounds_wraps_or_names_an_output_stays(text: str) -> None:
    model = parse(text)
    InferShapes()(model)
    check_left_alone(model, CleanCast())


@pytest.mark.parametrize(
    ("source", "target", "lossless"),
    [
        ("INT32", "DOUBLE", True),
        ("INT32", "FLOAT", False),
        ("UINT8", "FLOAT16", True),
        ("UINT8", "BFLOAT16", True),
        ("INT16", "FLOAT16", False),
        ("UINT8", "INT8", False),
        ("UINT8", "INT16", True),
        ("INT8", "UINT64", False),
        ("BOOL", "UINT8", True),
        ("FLOAT16", "BFLOAT16", False),
        ("BFLOAT16", "FLOAT", True),
        ("FLOAT", "FLOAT16", False),
        ("DOUBLE", "FLOAT", False),
    ],
)
def test_lossless_means_every_value(source: str, target: str, lossless: bool) -> None:
    assert is_lossless(ir.DataType[source], ir.DataType[target]) is lossless
