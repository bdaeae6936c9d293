"""Windows mean the same for every target, of dynamic sizes too."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from edgeinfer.convert.lower.core.window import AxisWindow, transposed_windows, windows
from edgeinfer.convert.lower.registry import Refusal
from tests.conformance.everywhere import ORACLE, lacking, run

FORMS = {
    "an even kernel of SAME_LOWER": "g (float[1,2,n] x) => (float[1,1,m] y) "
    '<float[1,2,2] w = {1, 2, 3, -4}> { y = Conv<auto_pad="SAME_LOWER">(x, w) }',
    "the largest with ceil_mode": "g (float[1,2,n] x) => (float[1,2,m] y) "
    "{ y = MaxPool<kernel_shape=[3], strides=[2], ceil_mode=1>(x) }",
    "the mean with ceil_mode": "g (float[1,2,n] x) => (float[1,2,m] y) "
    "{ y = AveragePool<kernel_shape=[3], strides=[2], ceil_mode=1>(x) }",
    "a wanted size beyond the full one": "g (float[1,2,7] x) => (float[1,1,17] y) "
    "<float[2,1,2] w = {1, 2, 3, -4}> "
    "{ y = ConvTranspose<strides=[2], output_shape=[17]>(x, w) }",
}


@pytest.mark.sample(8)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("place", ["litert", "coreml", "coreai", "tvm"])
def test_every_target_takes(place: str, form: str) -> None:
    if reason := lacking(place):
        pytest.skip(reason)
    text = f'<ir_version: 10, opset_import: ["" : 22]> {FORMS[form]}'
    model = ir.to_proto(ir.from_onnx_text(text))
    model.graph.node[0].name = "y"
    x = np.random.default_rng(0).standard_normal((1, 2, 7)).astype(np.float32)
    right = run(ORACLE, model, {"x": x}).outputs["y"]
    found = run(place, model, {"x": x}).outputs["y"]
    np.testing.assert_allclose(found, right, rtol=1e-5, atol=1e-5)


def test_padding_of_same_needs_a_size_only_between_strides() -> None:
    (one,) = windows([None], [4], None, None, None, "SAME_LOWER")
    assert (one.begin, one.end, one.same) == (2, 1, "")
    two = windows([None], [4], [2], None, None, "SAME_LOWER")
    assert two.same == "SAME_LOWER"
    with pytest.raises(Refusal, match="SAME_LOWER"):
        two.explicit()
    (known,) = windows([5], [4], [2], None, None, "SAME_LOWER")
    assert (known.begin, known.end, known.count()) == (2, 1, 3)


def test_no_window_starts_beyond_the_input() -> None:
    asked = AxisWindow(4, 1, 3, begin=0, end=2)
    assert asked.reaching(ceil=True).count() == 2
    assert asked.reaching(ceil=True).end == 0


def test_parts_kept_of_a_transposed_result() -> None:
    (same,) = transposed_windows([4], [3], [2], None, None, "SAME_UPPER", None, None)
    assert (same.begin, same.cut, same.out) == (0, 1, 8)
    (beyond,) = transposed_windows([4], [3], [2], None, None, "NOTSET", None, [12])
    assert (beyond.begin, beyond.cut, beyond.out) == (0, -3, 12)
    (apart,) = transposed_windows([4], [1], [3], None, None, "SAME_UPPER", None, None)
    assert (apart.begin, apart.cut, apart.out) == (0, 0, 10)


def test_negative_padding_and_other_ranks_are_refused() -> None:
    with pytest.raises(Refusal, match="negative"):
        windows([4], [3], None, None, [-1, 0], "NOTSET")
    with pytest.raises(Refusal, match="2 kernel sizes for 1 spatial axes"):
        windows([4], [3, 3], None, None, None, "NOTSET")
