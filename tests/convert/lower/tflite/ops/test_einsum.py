"""Einstein sums, against ONNX Runtime and NumPy."""

from __future__ import annotations

import numpy as np
import pytest

from edgeinfer.errors import UnsupportedError
from tests.convert.lower.tflite.run import check, lower
from tests.convert.lower.tflite.single import agree, single
from tests.convert.lower.tflite.together import rows

RNG = np.random.default_rng(0)


@rows(
    ("equation", "shapes"),
    [
        ("ij,jk->ik", [(2, 3), (3, 4)]),
        ("ij,jk", [(2, 3), (3, 4)]),
        ("bij,bjk->bik", [(2, 3, 4), (2, 4, 5)]),
        ("bij, bkj -> bki", [(2, 3, 4), (2, 5, 4)]),
        ("bhid,bhjd->bhij", [(2, 3, 4, 5), (2, 3, 6, 5)]),
        ("bhij,bhjd->bihd", [(2, 3, 4, 5), (2, 3, 5, 6)]),
        ("bthd,bshd->bhts", [(2, 4, 3, 5), (2, 6, 3, 5)]),
        ("abc,cd->abd", [(2, 3, 4), (4, 5)]),
        ("abcd,cde->abe", [(2, 3, 4, 5), (4, 5, 6)]),
        ("i,j->ij", [(3,), (4,)]),
        ("i,i->", [(3,), (3,)]),
        ("i,i", [(3,), (3,)]),
        ("ij->ji", [(2, 3)]),
        ("ij->", [(2, 3)]),
        ("ij->j", [(2, 3)]),
        ("ba", [(2, 3)]),
        ("ii->i", [(3, 3)]),
        ("ii", [(3, 3)]),
        ("bii->bi", [(2, 3, 3)]),
        ("iji->j", [(3, 2, 3)]),
        ("...ij,...jk->...ik", [(2, 1, 3, 4), (5, 4, 6)]),
        ("...i->...", [(2, 3, 4)]),
        ("...ij->...ji", [(2, 3, 4)]),
        ("b...,b->b...", [(2, 3, 4), (2,)]),
        ("ij,jk,kl->il", [(2, 3), (3, 4), (4, 5)]),
        ("ij,ij->ij", [(2, 3), (2, 3)]),
        ("ij,kl->ijkl", [(2, 3), (4, 5)]),
        ("ik,jk,k->ij", [(2, 3), (4, 3), (3,)]),
        ("abi,aci->abc", [(2, 3, 1), (2, 4, 1)]),
        (",ij->ij", [(), (2, 3)]),
    ],
)
def test_equations(equation: str, shapes: list[tuple[int, ...]]) -> None:
    inputs = [np.asarray(RNG.normal(size=s), np.float32) for s in shapes]
    want = {"y0": np.asarray(np.einsum(equation.replace(" ", ""), *inputs), np.float32)}
    twice = any(part.count(n) > 1 for part in equation.split("->")[0].split(",") for n in "ij")
    agree("Einsum", *inputs, equation=equation, want=want, both=not twice)


def test_of_integers() -> None:
    a, b = RNG.integers(-99, 99, (2, 3)), RNG.integers(-99, 99, (3, 4))
    agree("Einsum", a, b, equation="ij,jk->ki", want={"y0": (a @ b).T})


def test_sizes_change() -> None:
    model = """g (float[b, t, 2, 3] q, float[b, s, 2, 3] k) => (float[b, 2, t, s] y) {
        y = Einsum<equation="bthd,bshd->bhts">(q, k)}"""
    feeds = [
        {
            "q": RNG.normal(size=(b, t, 2, 3)).astype(np.float32),
            "k": RNG.normal(size=(b, s, 2, 3)).astype(np.float32),
        }
        for b, t, s in ((2, 4, 5), (1, 3, 7))
    ]
    check(model, *feeds)


def test_what_does_not_fit_is_refused() -> None:
    x = np.zeros((2, 3), np.float32)
    with pytest.raises(UnsupportedError, match="for 2 axes"):
        lower(single("Einsum", [x, x], equation="ijk,jk->i"))
