import resource
from typing import Any

import numpy as np
import onnx
import onnx.parser
import onnx_ir as ir
import pytest

from edgeinfer.convert.passes import constants
from edgeinfer.convert.passes.constants import NEVER, FoldConstants, run_node
from edgeinfer.convert.passes.dead_code import RemoveDeadCode
from edgeinfer.convert.passes.shapes import InferShapes
from edgeinfer.types import Array
from tests.convert.passes.rewriting import Feeds, check, check_left_alone, f32, parse

X = f32([[1, -2, 3]])
SMALL = {"Mul", "Unsqueeze", "Concat"}
PASSES = [InferShapes(), FoldConstants(), RemoveDeadCode()]


@pytest.mark.parametrize(
    "body",
    [
        "<float[3,1] w = {0.1,0.2,0.3}> { t = Transpose(w) k = Exp(t) y = Add(x, k) }",
        "<float[3] a = {0.1,0.2,0.3}, float[3] b = {1e20,7,-0.3}>"
        " { k = Div(a, b) e = Erf(k) y = Add(x, e) }",
        "<int64[2] s = {1,3}> { k = ConstantOfShape<value=float[1]{2.5}>(s) y = Add(x, k) }",
        "<float[3] a = {1,2,3}, float[1,1] b = {2}> { k, l = Split<num_outputs=2>(a)"
        " m = Concat<axis=0>(l, k) y = Add(x, m) }",
        "<float l = {0}, float h = {3}, float d = {1}> { r = Range(l, h, d) y = Add(x, r) }",
    ],
)
def test_what_is_constant_is_computed_now_to_the_last_bit(body: str) -> None:
    model = parse("g (float[1,3] x) => (float[1,3] y) " + body)
    check(model, PASSES, {"Add": 1}, {"x": X})


def test_constants_inside_branches_fold() -> None:
    model = parse(
        "g (bool c, float[1,3] x) => (float[1,3] y) <float k = {2}> { y = If(c) <"
        "then_branch = t () => (float[1,3] o) { e = Exp(k) o = Mul(x, e) },"
        "else_branch = e () => (float[1,3] p) { p = Neg(x) }> }"
    )
    feeds: Feeds = {"c": np.asarray(True), "x": X}
    check(model, PASSES, {"If": 1, "Mul": 1, "Neg": 1}, feeds)


@pytest.mark.parametrize("op", sorted(NEVER & {"RandomNormal", "RandomUniform"}))
def test_random_numbers_are_never_folded(op: str) -> None:
    model = parse(f"g (float[1,3] x) => (float[1,3] y) {{ r = {op}<shape=[1,3]>() y = Add(x, r) }}")
    check_left_alone(model, FoldConstants())


def test_random_like_a_constant_is_never_folded() -> None:
    model = parse(
        "g (float[1,3] x) => (float[1,3] y) <float[1,3] k = {1,2,3}>"
        " { r = RandomUniformLike(k) y = Add(x, r) }",
        opset=21,
    )
    check_left_alone(model, FoldConstants())


@pytest.mark.parametrize(
    "body",
    [
        # Quantized weights stay quantized, and nothing large is made out of something small.
        "<int8[3] q = {1,2,3}, float s = {0.5}> { k = DequantizeLinear(q, s) y = Add(x, k) }",
        "<int64[2] s = {1000,1000}> { k = ConstantOfShape(s)"
        " m = ReduceMax<keepdims=0>(k) y = Add(x, m) }",
        "<float o = {1}, int64[2] s = {1000,1000}> { k = Expand(o, s)"
        " m = ReduceMax<keepdims=0>(k) y = Add(x, m) }",
        "<float[1] o = {1}, int64[1] s = {1000000}> { k = Tile(o, s)"
        " m = ReduceMax<keepdims=0>(k) y = Add(x, m) }",
        "{ k = Exp(x) y = Add(x, k) }",
    ],
)
@pytest.mark.parametrize("shapes_known", [True, False])
def test_what_must_not_be_folded_stays(body: str, shapes_known: bool) -> None:
    model = parse("g (float[1,3] x) => (float[1,3] y) " + body)
    if shapes_known:
        InferShapes()(model)
    check_left_alone(model, FoldConstants())


def test_all_folding_together_has_a_budget() -> None:
    nodes = " ".join(
        f"k{i} = Expand(o{i}, s) m{i} = ReduceMax<keepdims=0>(k{i})" for i in range(64)
    )
    total = "a0 = Identity(x) " + " ".join(f"a{i + 1} = Add(a{i}, m{i})" for i in range(64))
    values = ", ".join(f"float o{i} = {{{i}}}" for i in range(64))
    text = f"<{values}, int64[1] s = {{6000}}> {{ {nodes} {total} y = Neg(a64) }}"
    model = parse("g (float[1,3] x) => (float[1,3] y) " + text)
    FoldConstants()(model)
    made = sum(v.const_value.nbytes for v in model.graph.initializers.values() if v.const_value)
    assert made < 200_000
    assert any(n.op_type == "Expand" for n in model.graph)


@pytest.mark.parametrize("second", ["a{i}", "a{before}"])
def test_what_grows_out_of_itself_is_not_computed(second: str) -> None:
    """A result as large as its inputs together is growth where they are one, or stay."""
    nodes = " ".join(
        f"a{i + 1} = Concat<axis=0>(a{i}, {second.format(i=i, before=max(i - 1, 0))})"
        for i in range(40)
    )
    model = parse(
        f"g (float[1] x) => (float[1] y) <float[3] a0 = {{1,2,3}}> {{ {nodes}"
        " s = ReduceMax<keepdims=0>(a40) y = Add(x, s) }"
    )
    largest: list[int] = []

    def evaluate(
        node: ir.Node, imports: dict[str, int], inputs: list[Array | None]
    ) -> list[Array] | None:
        results = run_node(node, imports, inputs)
        largest.extend(r.nbytes for r in results or ())
        return results

    FoldConstants(evaluate)(model)
    assert 1000 < max(largest) < 1_000_000
    kept = sum(v.const_value.nbytes for v in model.graph.initializers.values() if v.const_value)
    assert kept < 200_000


def test_an_engine_that_is_too_old_for_the_operators_is_not_asked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It refused the version, and nothing was folded."""
    monkeypatch.setattr(constants, "takes", lambda version: version < 24)
    monkeypatch.setattr("onnxruntime.InferenceSession", None)
    model = parse(
        "g (float[3] x) => (float[3] y) <float[3] k = {1,4,9}> { r = Sqrt(k) y = Add(x, r) }",
        opset=24,
    )
    FoldConstants(run_node)(model)
    assert [n.op_type for n in model.graph] == ["Add"]


def test_an_output_that_is_constant_keeps_its_node() -> None:
    check_left_alone(
        parse("g (float[1,3] x) => (float[3] y) <float[3] k = {1,2,3}> { y = Exp(k) }"),
        FoldConstants(),
    )


def test_a_node_no_engine_can_run_stays() -> None:
    model = parse(
        "g (float[3] x) => (float[3] y) <float[3] k = {1,2,3}> { a = Foo(k) y = Add(x, a) }"
    )
    check_left_alone(model, FoldConstants())


def test_a_default_input_is_not_constant() -> None:
    model = parse("g (float[3] x, float[3] k) => (float[3] y) { a = Exp(k) y = Add(x, a) }")
    value = model.graph.inputs[1]
    value.const_value = ir.tensor(f32([1, 2, 3]), name="k")
    model.graph.register_initializer(value)
    check_left_alone(model, FoldConstants())


@pytest.mark.parametrize(
    "body",
    [
        "r = Range(z, n, u)",
        "a = Unsqueeze(n, i) r = OneHot(i, a, v)",
        "a = Unsqueeze(n, i) b = Concat<axis=0>(i, a) r = Pad(v, b)",
        "r = HannWindow(n)",
        "a = Unsqueeze(n, i) r = Expand(f, a)",
    ],
)
@pytest.mark.parametrize("stated", [False, True])
def test_a_result_whose_size_a_chain_of_nodes_makes_is_not_computed(
    body: str, stated: bool
) -> None:
    model = parse(
        "g (float[1] x) => (float[1] y) <int64 k = {50000}, int64 z = {0}, int64 u = {1},"
        " int64[1] i = {0}, float[2] v = {0,1}, float[1] f = {1}>"
        f" {{ n = Mul(k, k) {body} c = Cast<to=1>(r) s = ReduceSum<keepdims=0>(c) y = Add(x, s) }}"
    )
    if stated:
        (made,) = (o for n in model.graph for o in n.outputs if o.name == "r")
        made.shape = ir.Shape([1])
    done: list[str] = []

    def evaluate(
        node: ir.Node, imports: dict[str, int], inputs: list[Array | None]
    ) -> list[Array] | None:
        done.append(node.op_type)
        # As on a machine without the memory: what is requested is known by then.
        return run_node(node, imports, inputs) if node.op_type in SMALL else None

    FoldConstants(evaluate)(model)
    assert done
    assert set(done) <= SMALL


def folded(text: str, *shapes: tuple[int, ...], kind: type[Any]) -> list[str]:
    """Operators that are left; inputs ``a`` and ``b`` are initializers of ones."""
    model = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["":17]> {text}')
    for name, shape in zip("ab", shapes, strict=True):
        model.graph.initializer.append(onnx.numpy_helper.from_array(np.ones(shape, kind), name))
    rewritten = ir.from_proto(model)
    FoldConstants()(rewritten)
    return [node.op_type for node in rewritten.graph]


def test_what_takes_long_is_not_folded() -> None:
    # An engine lays out what it convolves once for each place of the kernel: 6 GB here.
    text = (
        "g (float[N] x) => (float[1, 1, M, L] y)"
        " { t = ConvInteger(a, b) f = Cast<to = 1>(t) y = Add(f, x) }"
    )
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    shapes = (1, 1, 600, 600), (1, 1, 300, 300)
    assert folded(text, *shapes, kind=np.uint8) == ["ConvInteger", "Cast", "Add"]
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200 << 10


def test_products_of_weights_are_folded() -> None:
    text = "g (float[N, 64] x) => (float[N, 64] y) { t = MatMul(a, b) y = Add(x, t) }"
    assert folded(text, (256, 512), (512, 64), kind=np.float32) == ["Add"]
