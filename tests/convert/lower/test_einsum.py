"""Sums of products over axes of open sizes, on every target."""

import numpy as np
import onnx_ir as ir
import pytest

from tests.conformance.everywhere import PLACES, lacking, run_each
from tests.convert.lower.running import model

ROWS = [
    ("bhqk,bhkd->bhqd", "B,2,Q,K", "B,2,K,4", (1, 2, 3, 5), (1, 2, 5, 4)),
    ("bqhd,bkhd->bhqk", "B,Q,2,4", "B,K,2,4", (2, 3, 2, 4), (2, 5, 2, 4)),
    ("ij,ij->i", "M,N", "M,N", (3, 4), (3, 4)),
    ("bij,bj->bi", "B,I,J", "1,J", (2, 3, 4), (1, 4)),
    ("abcd,d->d", "A,B,6,5", "5", (3, 4, 6, 5), (5,)),
    ("...ij,...jk->...ik", "B,2,M,N", "1,2,N,K", (2, 2, 3, 4), (1, 2, 4, 5)),
]


@pytest.mark.parametrize("place", [p for p in PLACES if p != "litert-without-xnnpack"])
def test_open_sizes_are_summed_over(place: str) -> None:
    if reason := lacking(place):
        pytest.skip(reason)
    numbers = np.random.default_rng(0)
    cases = {}
    for equation, first, second, *shapes in ROWS:
        rank = len(equation.split("->")[1].replace("...", "xx"))
        sizes = ",".join("STUV"[:rank])
        text = f"""g (float[{first}] x, float[{second}] z) => (float[{sizes}] y) {{
            [y] y = Einsum<equation = "{equation}">(x, z) }}"""
        x, z = (numbers.standard_normal(s).astype(np.float32) for s in shapes)
        cases[equation] = ir.to_proto(model(text)), {"x": x, "z": z}
    for name, answers in run_each(place, cases).items():
        feeds = [v.astype(float) for v in cases[name][1].values()]
        np.testing.assert_allclose(
            answers.outputs["y"], np.einsum(name, *feeds), 1e-4, 1e-5, err_msg=name
        )
