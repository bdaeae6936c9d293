"""What rounding alone decides is told apart from what is wrong."""

from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest

import edgeinfer
from edgeinfer.convert.verify import Vector
from edgeinfer.convert.verify.answers import Answer
from edgeinfer.convert.verify.choosing import chooses
from edgeinfer.convert.verify.decided import compared, judged_part, nearly, undecided
from edgeinfer.convert.verify.oracles import Oracles
from edgeinfer.convert.verify.vectors import make_vectors
from edgeinfer.metrics import budget_for
from edgeinfer.types import Array

HEAD = '<ir_version: 10, opset_import: ["": 20]> '
BEST = (
    HEAD
    + """g (float[1,40,64] x) => (float[1,5] v, int64[1,5] i) <float[64,1] W = {ONES}> {
    s = MatMul(x, W) last = Constant<value_ints=[-1]>() f = Squeeze(s, last)
    k = Constant<value_ints=[5]>() v, i = TopK(f, k) }""".replace(
        "ONES", ", ".join(f"{0.1 + i / 640}" for i in range(64))
    )
)


def ties() -> dict[str, Array]:
    """Rows that differ in order alone, so that their sums differ by rounding."""
    rng = np.random.default_rng(0)
    row = rng.standard_normal(64).astype(np.float32)
    rows = np.stack([row * np.float32(1 + 3e-8 * i) for i in range(40)])
    return {"x": rows[None].astype(np.float32)}


def test_near_ties_are_found_and_clear_scores_are_not() -> None:
    model = ir.from_onnx_text(BEST)
    clear = {"x": np.random.default_rng(1).standard_normal((1, 40, 64)).astype(np.float32)}
    with Oracles(model) as oracles:
        found = oracles.expected([Vector(ties(), "user:a"), Vector(clear, "user:b")])
        assert not oracles.is_decided(ties())
        assert oracles.is_decided(clear)
    tied, decided = found.answers
    assert tied.undecided["i"].any()
    assert "v" not in tied.undecided, "the scores themselves hardly move"
    assert decided.undecided == {}
    assert any("on 1 of 2 vectors rounding alone decides" in note for note in found.notes)


@pytest.mark.sample(2)
@pytest.mark.parametrize("target", ["onnxruntime", "rpi5", "openvino", "ios"])
def test_a_selection_among_equal_scores_is_no_fault(target: str, tmp_path: Path) -> None:
    ir.save(ir.from_onnx_text(BEST), tmp_path / "best.onnx")
    done = edgeinfer.export(
        tmp_path / "best.onnx",
        tmp_path / "o.edge",
        targets=[target],
        data=[ties(), {"x": np.random.default_rng(1).standard_normal((1, 40, 64)).astype("f")}],
    )
    assert done.report.passed
    assert [r.undecided for r in done.manifest.vectors] == [True, False]


TINY = (
    HEAD
    + """g (float[1,84,32] x) => (int64[1,20] i)
    <float[32,6] W = {WEIGHTS}, float[6] b = {-1.7917595, -1.7917595, -1.7917595, -1.7917595,
     -1.7917595, -1.7917595}> {
    m = MatMul(x, W) s = Add(m, b) axis = Constant<value_ints=[-1]>()
    best = ReduceMax<keepdims=0>(s, axis) k = Constant<value_ints=[20]>()
    v, i = TopK(best, k) }""".replace(
        "WEIGHTS", ", ".join(f"{w:.6f}" for w in np.random.default_rng(3).normal(0, 0.2, 192))
    )
)
"""Products smaller than the last bits of the bias that they are added to."""


def inferred(text: str) -> ir.Model:
    """A model in which each value has its type, as they are converted."""
    model: ir.Model = ir.from_proto(
        onnx.shape_inference.infer_shapes(ir.to_proto(ir.from_onnx_text(text)))
    )
    return model


def tiny(scale: float) -> dict[str, Array]:
    return {"x": np.random.default_rng(4).normal(0, scale, (1, 84, 32)).astype(np.float32)}


@pytest.mark.sample(2)
@pytest.mark.parametrize("target", ["onnxruntime", "rpi5", "openvino", "ios"])
def test_scores_that_hang_on_less_than_their_last_bit(target: str, tmp_path: Path) -> None:
    ir.save(ir.from_onnx_text(TINY), tmp_path / "tiny.onnx")
    done = edgeinfer.export(
        tmp_path / "tiny.onnx", tmp_path / "o.edge", targets=[target], data=[tiny(1), tiny(3e-7)]
    )
    assert done.report.passed


@pytest.mark.parametrize("version", [20, 24])
def test_noise_moves_near_ties_and_nothing_that_is_exact(version: int) -> None:
    model = inferred(TINY.replace('"": 20', f'"": {version}'))
    with Oracles(model) as oracles:
        near, equal, clear = oracles.expected(
            [Vector(tiny(s), "user:a") for s in (3e-7, 1e-12, 1.0)]
        ).answers
    assert near.shaky["i"].any()
    assert "i" not in near.undecided, "it does not hang on the inputs' last bits"
    assert equal.shaky == {}, "scores that are all the same have a first one"
    assert not clear.shaky.get("i", np.zeros(1)).mean() > 0.2
    steps = inferred(
        HEAD
        + """g (float[9] x) => (bool[9] y, float[9] f) { h = Constant<value_float=0.5>()
        r = Mul(x, h) t = Constant<value_float=1.5>() y = Equal(r, t) f = Floor(r) }"""
    )
    with Oracles(steps) as oracles:
        counts = Vector({"x": np.arange(9, dtype=np.float32)}, "user:a")
        assert oracles.expected([counts]).answers[0].shaky == {}


def test_noise_excuses_no_fault() -> None:
    right = np.arange(20)
    answer = Answer({"i": right}, "a", ("a",), {}, shaky={"i": np.arange(20) < 2})
    swapped, wrong = right.copy(), right + 1
    swapped[:2] = [1, 0]
    metrics = compared("i", answer, {"i": wrong}, budget_for("fp32"))
    assert metrics is not None
    assert metrics.max_abs == 1
    assert answer.undecided == {}, "a wrong artifact makes nobody's judging milder"
    metrics = compared("i", answer, {"i": swapped}, budget_for("fp32"))
    assert metrics is not None
    assert metrics.max_abs == 0
    assert answer.undecided["i"].sum() == 2


def test_made_up_vectors_are_decided_where_some_are() -> None:
    text = (
        HEAD
        + """g (float[1,4] x) => (int64[1,1] y) { c = Constant<value_float=1e6>()
        big = Mul(x, c) y = ArgMax<axis=1>(big) }"""
    )
    model = ir.from_onnx_text(text)
    with Oracles(model) as oracles:
        for vector in make_vectors(model, oracles.inputs, oracles=oracles):
            if not vector.edge and "zeros" not in vector.origin:
                assert oracles.is_decided(vector.feeds)


def test_models_without_a_choice_are_asked_once() -> None:
    assert chooses(ir.from_onnx_text(BEST))
    plain = ir.from_onnx_text(HEAD + "g (float[2] x) => (float[2] y) { y = Neg(x) }")
    assert not chooses(plain)
    whole = ir.from_onnx_text(HEAD + "g (int64[2] x) => (bool[2] y) { y = Equal(x, x) }")
    assert not chooses(whole), "integers have no rounding"


def test_inputs_move_by_a_few_last_bits() -> None:
    feeds: dict[str, Array] = {"x": np.ones((2, 3), np.float32), "i": np.arange(3)}
    near = nearly(feeds, 0)
    assert near["x"].dtype == np.float32
    assert 0 < np.abs(near["x"] - 1).max() < 1e-6
    np.testing.assert_array_equal(near["i"], feeds["i"])


def test_only_what_moves_is_left_out() -> None:
    right = np.array([3, 1, 2])
    masks = undecided({"y": right}, [{"y": np.array([3, 2, 2])}, {"y": np.array([3, 1, 2])}])
    np.testing.assert_array_equal(masks["y"], [False, True, False])
    parts = judged_part(right, np.array([3, 9, 2]), masks["y"])
    assert parts is not None
    np.testing.assert_array_equal(parts[1], right)
    parts = judged_part(right, np.array([4, 9, 2]), masks["y"])
    assert parts is not None
    assert parts[1][0] == 4, "what is decided is still held against"
    assert judged_part(right, right, np.array([True, True, False])) is None


def test_another_number_of_results_leaves_nothing_to_judge() -> None:
    masks = undecided({"y": np.zeros((2, 3))}, [{"y": np.zeros((1, 3))}])
    assert masks["y"].all()
