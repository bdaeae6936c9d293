import numpy as np
import pytest

from edgeinfer.convert.passes import normalise
from edgeinfer.convert.passes.dead_code import RemoveDeadCode
from edgeinfer.convert.passes.fold_zero_products import FoldZeroProducts
from edgeinfer.convert.passes.shapes import InferShapes
from tests.convert.passes.rewriting import check, check_left_alone, parse

X = np.arange(6, dtype=np.float32).reshape(2, 3)


@pytest.mark.parametrize("zero", ["int64 z = {0}", "int64[1] z = {0}", "int64[1,1] z = {0}"])
@pytest.mark.parametrize("product", ["Mul(i, z)", "Mul(z, i)"])
def test_a_product_with_zero_becomes_zeros(product: str, zero: str) -> None:
    model = parse(
        f"g (float[n,3] x) => (int64[n,3] y) <{zero}> {{ i = Cast<to=7>(x) y = {product} }}"
    )
    passes = [InferShapes(), FoldZeroProducts(), RemoveDeadCode()]
    check(model, passes, {"Shape": 1, "Expand": 1}, {"x": X})


def test_no_cast_of_floats_is_left() -> None:
    model = parse(
        "g (float[n,3] x) => (int64[n,3] y) <int64 z = {0}, int64[3] s = {1,2,3}>"
        " { i = Cast<to=7>(x) p = Mul(i, z) y = Add(p, s) }"
    )
    assert "Cast" not in {n.op_type for n in normalise(model).model.graph}


@pytest.mark.parametrize(
    "body",
    [
        # NaN and infinities stay what they are.
        "(float[2,3] x) => (float[2,3] y) <float z = {0}> { y = Mul(x, z) }",
        "(int64[3] x) => (int64[2,3] y) <int64[2,1] z = {0,0}> { y = Mul(x, z) }",
        "(int64[3] x) => (int64[1,3] y) <int64[1,1] z = {0}> { y = Mul(x, z) }",
        "(int64[3] x) => (int64[3] y) <int64 z = {1}> { y = Mul(x, z) }",
        "(int64[3] x) => (int64[3] y) <int64 z = {0}> { y = Add(x, z) }",
    ],
)
def test_what_is_left_alone(body: str) -> None:
    check_left_alone(parse("g " + body), FoldZeroProducts())
