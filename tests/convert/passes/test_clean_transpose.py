import numpy as np
import pytest

from edgeinfer.convert.passes.clean_transpose import CleanTranspose
from edgeinfer.convert.passes.dead_code import RemoveDeadCode
from edgeinfer.convert.passes.shapes import InferShapes
from tests.convert.passes.rewriting import check, check_left_alone, parse

X = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
PASSES = [InferShapes(), CleanTranspose(), RemoveDeadCode()]


@pytest.mark.parametrize(
    ("body", "shape", "remaining"),
    [
        (
            "{ a = Transpose<perm=[0,2,1]>(x) b = Transpose<perm=[0,2,1]>(a) y = Neg(b) }",
            "2,3,4",
            0,
        ),
        ("{ a = Transpose(x) b = Transpose(a) y = Neg(b) }", "2,3,4", 0),
        ("{ a = Transpose<perm=[0,1,2]>(x) y = Neg(a) }", "2,3,4", 0),
        (
            "{ a = Transpose<perm=[1,2,0]>(x) b = Transpose<perm=[1,2,0]>(a) y = Neg(b) }",
            "4,2,3",
            1,
        ),
        (
            "{ a = Transpose<perm=[1,2,0]>(x) b = Transpose<perm=[1,2,0]>(a)"
            " c = Transpose<perm=[1,2,0]>(b) y = Neg(c) }",
            "2,3,4",
            0,
        ),
    ],
)
def test_transposes_compose(body: str, shape: str, remaining: int) -> None:
    model = parse(f"g (float[2,3,4] x) => (float[{shape}] y) " + body)
    check(model, PASSES, {"Neg": 1} | ({"Transpose": 1} if remaining else {}), {"x": X})


def test_a_transpose_that_others_read_stays() -> None:
    model = parse(
        "g (float[2,3,4] x) => (float[2,3,4] y, float[2,4,3] a)"
        " { a = Transpose<perm=[0,2,1]>(x) b = Transpose<perm=[0,2,1]>(a) y = Neg(b) }"
    )
    check(model, PASSES, {"Neg": 1, "Transpose": 1}, {"x": X})


def test_one_that_moves_data_stays() -> None:
    check_left_alone(
        parse("g (float[2,3,4] x) => (float[2,4,3] y) { y = Transpose<perm=[0,2,1]>(x) }"),
        CleanTranspose(),
    )


def test_an_unknown_rank_stays() -> None:
    check_left_alone(parse("g (float[] x) => (float[] y) { y = Transpose(x) }"), CleanTranspose())
