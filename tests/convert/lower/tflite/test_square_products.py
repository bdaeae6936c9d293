"""Products of a tensor with itself."""

from __future__ import annotations

import itertools

import numpy as np

from tests.convert.lower.tflite.run import check, ops
from tests.convert.lower.tflite.together import rows

RNG = np.random.default_rng(0)


@rows("perm", [p for p in itertools.permutations(range(4)) if p[0] == 1])
def test_of_what_was_transposed(perm: tuple[int, ...]) -> None:
    text = f"""g (float[4,4,4,4] x) => (float[4,4,4,4] y) {{
        t = Transpose<perm={str(list(perm)).replace(" ", "")}>(x) y = MatMul(t, t) }}"""
    check(text, {"x": RNG.normal(size=(4, 4, 4, 4)).astype(np.float32)})


def test_of_open_sizes() -> None:
    text = """g (float[A,B,C] x) => (float[D,E,F] y) {
        t = Transpose<perm=[1,2,0]>(x) y = MatMul(t, t) }"""
    feeds = [{"x": RNG.normal(size=(n, n, n)).astype(np.float32)} for n in (3, 5)]
    check(text, *feeds)


def test_what_is_right_stays() -> None:
    x = {"x": RNG.normal(size=(4, 4)).astype(np.float32)}
    text = "g (float[4,4] x) => (float[4,4] y) { a = Relu(x) y = MatMul(a, a) }"
    assert ops(check(text, x)) == ["RELU", "BATCH_MATMUL"]
