import numpy as np
import pytest

from tests.convert.lower.tflite import run
from tests.convert.lower.tflite.run import check
from tests.convert.lower.tflite.single import agree, f32
from tests.convert.lower.tflite.together import rows, together


def test_a_wrong_row_is_named() -> None:
    right, wrong = {"y0": f32(1, 0)}, {"y0": f32(1, 1)}

    @rows("want", [right, wrong, right])
    def each(want: dict[str, np.ndarray]) -> None:
        agree("Relu", f32(1, -1), want=want)

    with pytest.raises(AssertionError, match=r"y0 of .*Relu.*float32\[2\]"):
        each()


def test_what_an_engine_computes_is_held_against_each_row() -> None:
    text = "g (float[n] x) => (float[n] y) { y = OP(x) }"

    @rows("op", ["Relu", "Abs"])
    def each(op: str) -> None:
        check(text.replace("OP", op), {"x": f32(1, -1)}, {"x": f32(1, -1, 3)})

    each()


def test_a_second_run_of_other_sizes_is_judged_too(monkeypatch: pytest.MonkeyPatch) -> None:
    text = "g (float[n] x) => (float[n] y) { y = Relu(x) }"
    monkeypatch.setattr(run, "expected", lambda _, feeds: {"row0_y": np.abs(feeds["row0_x"])})

    @together()
    def both() -> None:
        check(text, {"x": f32(1, 1)}, {"x": f32(1, -1, 3)})

    with pytest.raises(AssertionError, match=r"y of .*Relu"):
        both()


def test_each_value_is_a_row() -> None:
    seen = []

    @rows("op", ["Relu", "Abs"])
    @rows("shape, axis", [((2,), 0), ((3,), 1)])
    def each(op: str, shape: tuple[int, ...], axis: int) -> None:
        seen.append((op, shape, axis))
        agree(op, np.ones(shape, np.float32))

    each()
    assert len(seen) == 4


def test_checking_nothing_is_an_error() -> None:
    with pytest.raises(AssertionError, match="nothing was checked"):
        rows("x", [1])(lambda x: None)()
