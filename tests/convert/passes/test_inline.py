import numpy as np
import onnx
import onnx_ir as ir

from edgeinfer.convert.passes.inline import InlineFunctions
from tests.convert.passes.rewriting import Feeds, check, check_left_alone, f32, ops, parse, run

X = f32([[1, -2, 3]])


def _model(main: int, inner: int, graph: str, functions: str) -> ir.Model:
    head = f'<ir_version: 10, opset_import: ["": {main}, "local": 1]>\n'
    function = f'<domain: "local", opset_import: ["": {inner}]>\n{functions}'
    model: ir.Model = ir.from_proto(onnx.parser.parse_model(f"{head}{graph}\n{function}"))
    return model


def test_a_function_is_put_where_it_is_called() -> None:
    model = _model(
        18,
        18,
        "g (float[1,3] x) => (float[1,3] y) { a = local.twice(x) y = local.twice(a) }",
        "twice (p) => (q) { q = Add(p, p) }",
    )
    check(model, [InlineFunctions()], {"Add": 2}, {"x": X})
    assert not model.functions


def test_an_older_function_is_raised_to_the_models_opset() -> None:
    model = _model(
        18,
        11,
        "g (float[1,3] x) => (float[3] y) { y = local.flat(x) }",
        "flat (p) => (q) { q = Squeeze<axes=[0]>(p) }",
    )
    InlineFunctions()(model)
    np.testing.assert_array_equal(run(model, {"x": X})[0], X[0])


def test_an_older_model_is_raised_to_its_functions_opset() -> None:
    model = _model(
        11,
        18,
        "g (float[1,3] x) => (float[3] y) { a = local.twice(x) y = Squeeze<axes=[0]>(a) }",
        "twice (p) => (q) { q = Add(p, p) }",
    )
    InlineFunctions()(model)
    assert model.opset_imports[""] == 18
    np.testing.assert_array_equal(run(model, {"x": X})[0], 2 * X[0])


def test_attributes_and_calls_inside_branches_are_inlined() -> None:
    model = _model(
        18,
        18,
        "g (bool c, float[1,3] x) => (float[1,3] y) { y = If(c) <"
        "then_branch = t () => (float[1,3] o) { o = local.leak<slope=0.5>(x) },"
        "else_branch = e () => (float[1,3] p) { p = local.leak<slope=0.25>(x) }> }",
        "leak <slope> (p) => (q) { q = LeakyRelu<alpha: float = @slope>(p) }",
    )
    feeds: Feeds = {"c": np.asarray(False), "x": X}
    check(model, [InlineFunctions()], {"If": 1, "LeakyRelu": 2}, feeds)
    assert run(model, feeds)[0].tolist() == [[1.0, -0.5, 3.0]]


def test_a_model_without_functions_is_left_alone() -> None:
    check_left_alone(parse("g (float[3] x) => (float[3] y) { y = Neg(x) }"), InlineFunctions())


def test_a_recursive_function_is_left_alone_with_a_note() -> None:
    model = _model(
        18,
        18,
        "g (float[1,3] x) => (float[1,3] y) { y = local.loop(x) }",
        "loop (p) => (q) { q = local.loop(p) }",
    )
    result = InlineFunctions().call(model)
    assert not result.modified
    assert "functions stay" in result.notes[0]
    assert ops(model) == {"loop": 1}
