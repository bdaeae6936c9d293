"""Rows that a range names, with places that count from the end."""

from pathlib import Path

import numpy as np
import onnxruntime
import pytest

from tests.convert.lower.running import lower, model

TABLE = np.arange(20, dtype=np.float32).reshape(10, 2)
ROWS = f"<float[10,2] e = {{{', '.join(f'{v:g}' for v in TABLE.ravel())}}}, KIND one = {{1}}>"


@pytest.mark.parametrize("kind", ["int64", "int32"])
@pytest.mark.parametrize("axis", [0, 1])
def test_a_range_across_zero_names_rows_of_both_ends(kind: str, axis: int, tmp_path: Path) -> None:
    gather = "y = Gather(e, r)"
    if axis:
        gather = "t = Transpose(e) g = Gather<axis = 1>(t, r) y = Transpose(g)"
    text = (
        f"g (KIND a, KIND b) => (float[N,2] y) {ROWS} {{ r = Range(a, b, one) {gather} }}"
    ).replace("KIND", kind)
    path = lower(model(text), tmp_path).files[0]
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    for first, last in ((0, 3), (-3, 0), (-2, 2), (-5, -2), (3, 1)):
        feeds = {"a": np.array(first, kind), "b": np.array(last, kind)}
        (found,) = session.run(None, feeds)
        np.testing.assert_array_equal(found, TABLE[np.arange(first, last)])


def test_a_range_from_zero_on_is_left_to_the_optimiser(tmp_path: Path) -> None:
    text = (
        f"g (int64[M] x) => (float[N,2] y) {ROWS} {{ n = Size(x) z = Sub(n, n)"
        " zero = Constant<value = int64 {0}>() r = Range(zero, n, one) y = Gather(e, r) }"
    ).replace("KIND", "int64")
    assert "Cast" not in lower(model(text), tmp_path).ops
