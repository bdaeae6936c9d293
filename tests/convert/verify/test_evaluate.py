"""The evaluation in float64 gives what ONNX says, and says plainly what it cannot."""

import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from edgeinfer.convert.verify import operators
from edgeinfer.convert.verify.evaluate import CannotEvaluate, Evaluator, in_tf32
from edgeinfer.metrics import BUDGETS, check, compare
from tests.conformance.node_cases import suite

GOLDEN = Path(__file__).parents[2] / "golden"


def model(text: str, opset: int = 20) -> ir.Model:
    return ir.from_onnx_text(f'<ir_version: 10, opset_import: ["": {opset}]>\n{text}')


@pytest.mark.parametrize("wide", [True, False])
@pytest.mark.parametrize("path", sorted(GOLDEN.glob("*.onnx")), ids=lambda p: p.stem)
def test_golden(path: Path, wide: bool) -> None:
    case = {c["id"]: c for c in json.loads((GOLDEN / "index.json").read_text())}[path.stem]
    if case["op"] == "NonMaxSuppression" and "absent" in case["what"]:
        pytest.skip("the reference needs max_output_boxes_per_class")
    if not wide and "reference disagrees" in case["source"] and "fp16" in case["what"]:
        pytest.skip("sums that leave half precision on their way; float64 is the oracle")
    arrays = np.load(path.with_suffix(".npz"))
    feeds = {n[3:]: arrays[n] for n in arrays.files if n.startswith("in_")}
    results = Evaluator(ir.load(path), wide=wide).run(feeds)
    for name in arrays.files:
        if name.startswith("out_"):
            expected = arrays[name]
            budget = BUDGETS["fp16" if expected.dtype == np.float16 else "fp32"]
            assert check(compare(expected, results[name[4:]].astype(expected.dtype)), budget) == []


# Random, or a tie that the last bit decides, or a size that engines read otherwise than the suite.
_OTHERWISE = ("bernoulli", "dynamicquantizelinear", "downsample_scales_", "training_dropout")


@pytest.mark.slow
def test_onnx_node_suite() -> None:
    agreed, cannot, wrong = 0, [], []
    for case in suite():
        if any(word in case.name for word in _OTHERWISE):
            continue
        for ins, outs in case.data_sets:
            feeds = {i.name: _array(v) for i, v in zip(case.model.graph.input, ins, strict=False)}
            try:
                results = Evaluator(ir.from_proto(case.model), wide=True).run(feeds)
            except CannotEvaluate as e:
                cannot.append(f"{case.name}: {e}")
                continue
            for info, value in zip(case.model.graph.output, outs, strict=True):
                expected = _array(value)
                if not isinstance(expected, np.ndarray):
                    continue
                narrow = expected.dtype.name in ("float16", "bfloat16")
                metrics = compare(expected, results[info.name].astype(expected.dtype))
                if breaches := check(metrics, BUDGETS["fp16" if narrow else "fp32"]):
                    wrong.append(f"{case.name}: {breaches}")
                else:
                    agreed += 1
    assert wrong == []
    assert agreed > 2000
    assert len(cannot) < 30, cannot


def _array(value: Any) -> Any:
    return onnx.numpy_helper.to_array(value) if isinstance(value, onnx.TensorProto) else value


def test_wide_keeps_what_single_precision_loses() -> None:
    m = model("g (float[3] x) => (float y) { y = ReduceSum<keepdims=0>(x) }")
    x = np.array([1e8, 1.0, -1e8], np.float32)
    assert Evaluator(m, wide=True).run({"x": x})["y"] == 1.0
    assert Evaluator(m, wide=False).run({"x": x})["y"] != 1.0


def test_half_precision_is_stored_as_such() -> None:
    m = model("g (float16[1] x) => (float16[1] y) { a = Mul(x, x) y = Sub(a, a) }")
    assert np.isnan(Evaluator(m, wide=True).run({"x": np.array([300], np.float16)})["y"][0])


def test_a_formula_beyond_half_precision_has_the_range_of_single_precision() -> None:
    m = model("""g (float16[3] x) => (float16[3] y, float16[3] e) {
        e = Exp(x) s = ReduceSum(e) y = Div(e, s) }""")
    evaluator = Evaluator(m, wide=True)
    found = evaluator.run({"x": np.array([20, 20, -2], np.float16)})
    np.testing.assert_allclose(found["y"], [0.5, 0.5, 0.0], atol=1e-9)
    np.testing.assert_array_equal(found["e"][:2], [np.inf, np.inf])
    assert np.isnan(evaluator.run({"x": np.array([100, 0, 0], np.float16)})["y"][0])


def test_a_cast_to_half_rounds_and_a_cast_to_single_does_not() -> None:
    m = model("g (float[1] x) => (float[1] y) { h = Cast<to=10>(x) y = Cast<to=1>(h) }")
    got = Evaluator(m, wide=True).run({"x": np.array([0.1], np.float32)})["y"]
    assert got == np.float16(0.1)


def test_branches_loops_and_captured_values() -> None:
    m = model("""
        g (bool c, float[2] x, int64 n) => (float[2] y, float[2] z, float[t, 2] all) {
            two = Constant<value = float {2.0}>()
            y = If(c) <
                then_branch = a () => (float[2] p) { p = Mul(x, two) },
                else_branch = b () => (float[2] q) { q = Neg(x) }>
            on = Constant<value = bool {1}>()
            z, all = Loop(n, on, x) <body = l (int64 i, bool k, float[2] s) =>
                (bool k2, float[2] s2, float[2] o)
                { k2 = Identity(k) s2 = Mul(s, two) o = Add(s, x) }>
        }""")
    x = np.array([1.0, 3.0], np.float32)
    for condition, y in ((True, 2 * x), (False, -x)):
        feeds = {"c": np.array(condition), "x": x, "n": np.array(3)}
        results = Evaluator(m, wide=True).run(feeds)
        np.testing.assert_array_equal(results["y"], y)
        np.testing.assert_array_equal(results["z"], 8 * x)
        np.testing.assert_array_equal(results["all"], [2 * x, 3 * x, 5 * x])


def test_functions_are_followed() -> None:
    m = ir.from_onnx_text("""<ir_version: 10, opset_import: ["": 20, "local": 1]>
        g (float[2] x) => (float[2] y) { y = local.twice(x) }
        <domain: "local", opset_import: ["": 20]> twice (a) => (b) { b = Add(a, a) }""")
    got = Evaluator(m, wide=True).run({"x": np.ones(2, np.float32)})["y"]
    np.testing.assert_array_equal(got, [2, 2])


def test_an_unknown_operator_is_named() -> None:
    m = ir.from_onnx_text("""<ir_version: 10, opset_import: ["": 20, "com.acme": 1]>
        g (float[2] x) => (float[2] y) { y = com.acme.Foo(x) }""")
    with pytest.raises(CannotEvaluate, match=r"the ONNX reference has no com\.acme::Foo"):
        Evaluator(m, wide=True).run({"x": np.ones(2, np.float32)})


def test_time_is_limited() -> None:
    m = model("g (float[2] x) => (float[2] y) { a = Neg(x) y = Neg(a) }")
    with pytest.raises(CannotEvaluate, match="took too long"):
        Evaluator(m, wide=True).run({"x": np.ones(2, np.float32)}, seconds=-1)


def test_time_that_others_take_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    own = operators.OPERATORS["Add"]

    def interrupted(*args: Any, **kwargs: Any) -> Any:
        time.sleep(0.3)
        return own(*args, **kwargs)

    monkeypatch.setitem(operators.OPERATORS, "Add", interrupted)
    m = model("g (float[2] x) => (float[2] y) { a = Add(x, x) y = Add(a, x) }")
    got = Evaluator(m, wide=True).run({"x": np.ones(2, np.float32)}, seconds=0.25)
    np.testing.assert_array_equal(got["y"], [3, 3])


def test_intermediate_values_can_be_asked_for() -> None:
    m = model("g (float[2] x) => (float[2] y) { a = Neg(x) y = Exp(a) }")
    got = Evaluator(m, wide=True).run({"x": np.ones(2, np.float32)}, wanted=["a"])
    assert list(got) == ["a"]
    np.testing.assert_array_equal(got["a"], [-1, -1])


def test_weights_in_files_are_not_kept_in_memory(tmp_path: Path) -> None:
    m = model("g (float[1, 64] x, float[64, 64] w) => (float[1, 64] y) { y = MatMul(x, w) }")
    value = m.graph.inputs.pop()
    value.const_value = ir.tensor(np.eye(64, dtype=np.float32))
    m.graph.register_initializer(value)
    ir.save(m, tmp_path / "m.onnx", external_data="m.data", size_threshold_bytes=0)
    read = ir.load(tmp_path / "m.onnx")
    tensor = read.graph.initializers["w"].const_value
    assert isinstance(tensor, ir.ExternalTensor)
    evaluator = Evaluator(read, wide=True)
    x = np.arange(64, dtype=np.float32)[None]
    np.testing.assert_array_equal(evaluator.run({"x": x})["y"], x)
    assert tensor.raw is None
    held = tensor.numpy()
    np.testing.assert_array_equal(evaluator.run({"x": x})["y"], x)
    np.testing.assert_array_equal(held, np.eye(64))


def test_the_model_is_not_modified() -> None:
    m = model("g (float16[2] x) => (float16[2] y) { a = Neg(x) y = Exp(a) }")
    before = ir.to_proto(m).SerializeToString()
    Evaluator(m, wide=True).run({"x": np.ones(2, np.float16)})
    assert ir.to_proto(m).SerializeToString() == before


def test_tf32_rounds_operands_of_products_and_nothing_else() -> None:
    model = ir.from_onnx_text(
        """<ir_version: 10, opset_import: ["" : 20]>
        g (float[2,2] x, float[2,2] w) => (float[2,2] y, float[2,2] z) {
            y = MatMul(x, w)
            z = Add(x, w)
        }"""
    )
    little = 1.0 + 2.0**-11
    x = np.asarray([[little, 0], [0, 1 + 3 * 2.0**-11]], np.float32)
    feeds = {"x": x, "w": np.eye(2, dtype=np.float32)}
    found = Evaluator(model, wide=False, tf32=True).run(feeds)
    # To the nearest, and where two are as near, to the even one.
    np.testing.assert_array_equal(found["y"], [[1, 0], [0, 1 + 2 * 2.0**-10]])
    np.testing.assert_array_equal(found["z"], x + feeds["w"])


def test_tf32_keeps_what_is_no_number() -> None:
    odd = np.asarray([np.inf, -np.inf, np.nan, -0.0, 1e-45, 3.4e38], np.float32)
    kept = in_tf32(odd)
    np.testing.assert_array_equal(kept[:3], odd[:3])
    assert np.signbit(kept[3])
    assert in_tf32(np.asarray([1], np.int64)).dtype == np.int64
