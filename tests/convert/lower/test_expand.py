import numpy as np
import onnx_ir as ir
import pytest

from edgeinfer.convert.lower.expand import definition, expand, with_definitions
from edgeinfer.convert.lower.single import walk
from edgeinfer.errors import Problem, Remarks, UnsupportedError
from tests.convert.lower.running import check, model, ops, run

X = np.random.default_rng(0).standard_normal((2, 3, 4)).astype(np.float32)


@pytest.mark.parametrize(
    ("text", "tolerance"),
    [
        ("y = Gelu(x)", 1e-6),
        ('y = Gelu<approximate = "tanh">(x)', 1e-6),
        ("y = Softplus(x)", 1e-6),
        ("y = HardSwish(x)", 1e-6),
        ("y = Mish(x)", 1e-6),
        ("y = LayerNormalization<axis = -1>(x, s)", 1e-5),
        ("y = RMSNormalization<axis = -1>(x, s)", 1e-5),
        ("y = Clip(x, lo)", 0),
        ("y = Celu<alpha = 2.0>(x)", 1e-6),
        ("y = Attention<q_num_heads = 2, kv_num_heads = 2, is_causal = 1>(x, x, x)", 1e-5),
    ],
)
def test_definition_computes_the_same(text: str, tolerance: float) -> None:
    whole = model(
        f"g (float[2,3,4] x, float[4] s) => (float[2,3,4] y) <float lo = {{0.1}}> {{ {text} }}"
    )
    feeds = {"x": X, "s": X[0, 0]}
    before = run(whole, feeds)
    node = next(iter(whole.graph))
    assert expand(whole, [node]) == [node]
    assert len(ops(whole)) > 1
    check(whole)
    np.testing.assert_allclose(run(whole, feeds)[0], before[0], rtol=tolerance, atol=tolerance)


def test_several_nodes_and_subgraphs_at_once_keep_outer_names() -> None:
    whole = model("""g (float[2,3,4] x, bool c) => (float[2,3,4] a, float[2,3,4] y) {
        a = Swish<alpha = 0.5>(x)
        b = Swish(a)
        y = If(c) <
            then_branch = t () => (float[2,3,4] u) { u = Swish(b) },
            else_branch = e () => (float[2,3,4] v) { v = Identity(b) }
        >
    }""")
    wanted = [n for _, n in walk(whole) if n.op_type == "Swish"]
    assert len(expand(whole, wanted)) == 3
    assert [v.name for v in whole.graph.outputs] == ["a", "y"]

    def swish(x: np.ndarray, alpha: float = 1.0) -> np.ndarray:
        result: np.ndarray = x / (1 + np.exp(-alpha * x))
        return result

    a, y = run(whole, {"x": X, "c": np.asarray(True)})
    np.testing.assert_allclose(a, swish(X, 0.5), rtol=1e-5)
    np.testing.assert_allclose(y, swish(swish(swish(X, 0.5))), rtol=1e-5, atol=1e-6)
    check(whole)


def test_new_values_have_types() -> None:
    whole = model("g (float[2,3,4] x) => (float[2,3,4] y) { y = Swish(x) }")
    expand(whole, list(whole.graph))
    assert all(v.dtype is not None for n in whole.graph for v in n.outputs)


def test_definition_that_contradicts_its_operator_is_not_used() -> None:
    whole = model("g (float[8] x) => (float[8] y) { y = Bernoulli(x) }")
    assert definition(whole.graph[0], 24) is None


@pytest.mark.parametrize("text", ["Relu(x)", "com.acme.Foo(x)", "NoSuchOperator(x)"])
def test_what_has_no_definition_is_left_alone(text: str) -> None:
    whole = model(f"g (float[2] x) => (float[2] y) {{ y = {text} }}")
    node = next(iter(whole.graph))
    if text == "Relu(x)":
        # Relu is defined by Max, which is a primitive.
        assert definition(node, 24) is not None
        node = next(iter(model("g (float[2] x) => (float[2] y) { y = Sin(x) }").graph))
    assert definition(node, 24) is None
    assert expand(whole, [node]) == []


def test_of_a_definition_that_is_refused_the_form_is_named() -> None:
    whole = model("g (float[2,3] x) => (float[2,3] y) { h = Softplus(x) y = Neg(h) }")
    tried = []

    def refuse(of: ir.Model) -> None:
        tried.append({node.op_type for node in of.graph})
        problems = [
            Problem(node.name or "", node.op_type, "unsupported_op", f"no {node.op_type} here")
            for node in of.graph
            if node.op_type in ("Softplus", "Log", "Exp")
        ]
        raise UnsupportedError("toy", problems)

    (node, _) = whole.graph
    node.name = "soft"
    with pytest.raises(UnsupportedError) as error:
        with_definitions(whole, refuse, Remarks())
    assert tried[0] == {"Softplus", "Neg"}
    assert "Softplus" not in tried[-1]
    assert [(p.node, p.detail) for p in error.value.problems] == [("soft", "no Softplus here")]


@pytest.mark.parametrize(
    ("inputs", "told"),
    [
        (
            "float[1,2,h,6] x, float[1,18,h,6] o, float[3,2,3,3] w",
            ("dynamic_shape", "give its sizes with --input-shape"),
        ),
        # There is a definition for pictures alone.
        ("float[1,2,h] x, float[1,3,h] o, float[3,2,3] w", ("unsupported_op", "")),
    ],
)
def test_a_definition_that_lacks_sizes_asks_for_them(inputs: str, told: tuple[str, str]) -> None:
    whole = model(f"g ({inputs}) => (float[a,b,c,d] y) {{ y = DeformConv(x, w, o) }}")

    def refuse(of: ir.Model) -> None:
        names = [node.name or "" for node in of.graph if node.op_type == "DeformConv"]
        problems = [Problem(n, "DeformConv", "unsupported_op", "no lowering for it") for n in names]
        raise UnsupportedError("toy", problems)

    whole.graph[0].name = "deform"
    with pytest.raises(UnsupportedError) as error:
        with_definitions(whole, refuse, Remarks())
    assert [(p.reason, p.hint) for p in error.value.problems] == [told]


def test_parts_of_a_definition_are_named_after_the_form() -> None:
    whole = model("g (float[2,3] x) => (float[2,3] y) { h = Softplus(x) y = Neg(h) }")
    (node, other) = whole.graph
    node.name, other.name = "soft", "negative"
    expand(whole, [node])
    names = [n.name or "" for n in whole.graph]
    assert names[-1] == "negative"
    assert len(set(names)) == len(names) > 2
    assert all(name.startswith("soft/") for name in names[:-1])
