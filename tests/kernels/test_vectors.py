"""Loops over memory in one piece are vectors; results stay what they are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import te, tirx

from tests.kernels.run import HERE, cpu

from edgeinfer.convert.lower.tvm.machines import machine  # isort: skip
from edgeinfer.kernels.rules.cpu import schedule  # isort: skip

Case = tuple[tuple[tuple[int, ...], ...], Callable[..., Any], bool]

CASES: dict[str, Case] = {
    "a slope for each channel": (
        ((1, 3, 8, 6), (3, 1, 1)),
        lambda x, s: (
            lambda n, c, i, j: tirx.Select(
                x[n, c, i, j] < 0.0, x[n, c, i, j] * s[c, 0, 0], x[n, c, i, j]
            )
        ),
        True,
    ),
    "whole rows that are short": (
        ((16, 2), (16, 2)),
        lambda x, y: lambda i, j: x[i, j] + y[i, j],
        True,
    ),
    "a value for each column": (((5, 24), (24,)), lambda x, y: lambda i, j: x[i, j] * y[j], True),
    "a part of an axis": (((4, 32),), lambda x: lambda i, j: x[i, j + 8], True),
    "axes in another order": (((24, 4),), lambda x: lambda i, j: x[j, i], False),
    "backwards": (((4, 32),), lambda x: lambda i, j: x[i, 31 - j], False),
    "beyond an edge": (
        ((4, 32),),
        lambda x: lambda i, j: tirx.if_then_else(j > 0, x[i, j - 1], 0.0),
        False,
    ),
    "a function of C's library": (((4, 32),), lambda x: lambda i, j: tirx.sinh(x[i, j]), False),
    "a root": (((4, 32),), lambda x: lambda i, j: tirx.sqrt(x[i, j] * x[i, j]), True),
    "a length that no vector divides": (((3, 7),), lambda x: lambda i, j: x[i, j] + 1.0, False),
}
SIZES = {"a part of an axis": (4, 24), "axes in another order": (4, 24)}
"""Of the result, where it is not that of the first operand."""


@pytest.mark.sample(4)
@pytest.mark.parametrize("name", CASES)
def test_element_wise_loops(name: str) -> None:
    shapes, make, is_vector = CASES[name]
    size = SIZES.get(name, shapes[0])
    inputs = [te.placeholder(s, name=f"x{i}") for i, s in enumerate(shapes)]
    result = te.compute(size, make(*inputs), name="map")
    function = te.create_prim_func([*inputs, result])
    made = schedule(function, cpu(HERE[0]))
    assert ("T.vectorized" in made.script()) == is_vector
    rng = np.random.default_rng(0)
    given = [rng.standard_normal(s).astype(np.float32) for s in shapes]
    results = []
    for each, target in ((function, "llvm"), (made, machine(HERE[0]).target())):
        tensors = [tvm.runtime.tensor(a) for a in given]
        out = tvm.runtime.tensor(np.zeros(size, np.float32))
        tvm.compile(each, target=target)(*tensors, out)
        results.append(out.numpy())
    np.testing.assert_allclose(results[1], results[0], rtol=1e-6)
