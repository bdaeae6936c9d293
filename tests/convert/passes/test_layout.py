"""Layout: few transposes, equal numbers, nothing guessed from equal sizes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest

from edgeinfer.convert.passes import normalise
from edgeinfer.convert.passes.infra import Namer, PassOutcome, attr, dims_of, rank, walk
from edgeinfer.convert.passes.layout import NHWC, PlanLayout, to_last
from edgeinfer.convert.passes.layout_cut import FIRST, LAST, Labelling
from edgeinfer.types import Array

HEADER = '<ir_version: 10, opset_import: ["" : 24]>'
WEIGHTS = "sh = Constant<value_ints=[4,4,3,3]>() w = ConstantOfShape<value=float[1]{0.1}>(sh) "
IMAGE = {"x": (1, 4, 8, 8)}


def conv(x: str, y: str) -> str:
    return f" {y} = Conv<pads=[1,1,1,1], kernel_shape=[3,3]>({x}, w) "


def built(body: str, inputs: Mapping[str, tuple[Any, ...]], output: str) -> ir.Model:
    """A model of the text, with inferred shapes; ``output`` is the type of ``y``."""
    names = ", ".join(f"float[{','.join(map(str, s))}] {k}" for k, s in inputs.items())
    text = f"{HEADER} g ({names}) => (float{output} y) {{ {body} }}"
    proto = onnx.shape_inference.infer_shapes(onnx.parser.parse_model(text))
    return normalise(ir.from_proto(proto)).model


def moving(model: ir.Model) -> list[ir.Node]:
    """Transposes that change the order of elements."""
    found = []
    for graph in walk(model.graph):
        for node in graph:
            if node.op_type == "Transpose" and node.inputs[0] is not None:
                dims = dims_of(node.inputs[0])
                kept = [p for p in attr(node, "perm") if dims[p] != 1]
                found += [node] if kept != sorted(kept) else []
    return found


def as_onnx(model: ir.Model) -> ir.Model:
    """Put the plain operators back between transposes, so that ONNX Runtime can judge."""
    plain = model.clone()
    namer = Namer(plain)
    for graph in walk(plain.graph):
        for node in [n for n in graph if n.domain == NHWC]:
            size = rank(node.inputs[0]) or 0
            last = to_last(size)
            first = [last.index(i) for i in range(size)]
            if node.op_type == "Resize":
                axes = [last[a] for a in attr(node, "axes")]
                node.attributes["axes"] = ir.AttrInt64s("axes", axes)
            before = ir.node("Transpose", [node.inputs[0]], {"perm": first})
            before.outputs[0].name = namer.fresh("before")
            graph.insert_before(node, before)
            node.replace_input_with(0, before.outputs[0])
            node.domain = ""
            out = node.outputs[0]
            after = ir.node("Transpose", [out], {"perm": list(last)})
            graph.insert_after(node, after)
            new = after.outputs[0]
            new.type, new.shape, out.shape = out.type, out.shape, None
            out.replace_all_uses_with(new, replace_graph_outputs=True)
            after.replace_input_with(0, out)
            new.name, out.name = out.name, namer.fresh("after")
    plain.opset_imports.pop(NHWC, None)
    return plain


def run(model: ir.Model, feeds: dict[str, Array]) -> list[Array]:
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    data = ir.to_proto(model).SerializeToString()
    session = ort.InferenceSession(data, options, providers=["CPUExecutionProvider"])
    results: list[Array] = session.run(None, feeds)
    return results


def check(body: str, inputs: Mapping[str, tuple[Any, ...]], output: str) -> int:
    """Plan, compare the numbers, and return how many transposes are left."""
    normal = built(body, inputs, output)
    planned = normal.clone()
    PlanLayout()(planned)
    rng = np.random.default_rng(0)
    feeds = {
        k: rng.normal(size=[d if isinstance(d, int) else 6 for d in s]).astype(np.float32)
        for k, s in inputs.items()
    }
    for got, want in zip(run(as_onnx(planned), feeds), run(normal, feeds), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)
    return len(moving(planned))


def test_twenty_convolutions_need_two_transposes() -> None:
    names = ["x", *(f"r{i}" for i in range(20))]
    body = WEIGHTS + "".join(conv(names[i], f"c{i}") + f"r{i} = Relu(c{i}) " for i in range(20))
    assert check(body + "y = Identity(r19)", IMAGE, "[1,4,8,8]") == 2


BLOCKS = {
    "residual": conv("a", "b") + "c = Add(a, b) d = Relu(c)",
    "squeeze and excite": "g = GlobalAveragePool(a) s = Sigmoid(g) d = Mul(a, s)",
    "concat": "b = Relu(a) c = Concat<axis=1>(a, b) p, d = Split<axis=1, num_outputs=2>(c)",
    "gate": "p, q = Split<axis=1, num_outputs=2>(a) s = Sigmoid(p) t = Mul(q, s)"
    " d = Concat<axis=1>(t, q)",
    "softmax over channels": "d = Softmax<axis=1>(a)",
    "bias per channel": "k = Constant<value=float[4,1,1]{1,2,3,4}>() d = Add(a, k)",
    "bias per column": "k = Constant<value_floats=[1.,2.,3.,4.,5.,6.,7.,8.]>() d = Mul(a, k)",
    "pad": "p = Constant<value_ints=[0,1,0,0,0,-1,0,0]>() d = Pad(a, p)",
    "slice": "s = Constant<value_ints=[1]>() e = Constant<value_ints=[4]>()"
    " i = Constant<value_ints=[1]>() b = Slice(a, s, e, i)"
    " p = Constant<value_ints=[0,1,0,0,0,0,0,0]>() d = Pad(b, p)",
    "mean of channels": "i = Constant<value_ints=[1]>() m = ReduceMean(a, i) d = Add(a, m)",
    "resize": "s = Constant<value_floats=[1.,1.,2.,2.]>() b = Resize(a, , s)"
    " d = MaxPool<kernel_shape=[2,2], strides=[2,2]>(b)",
    "depth to space": "b = DepthToSpace<blocksize=2>(a) d = SpaceToDepth<blocksize=2>(b)",
    "gather channels": "i = Constant<value_ints=[3,1,0,2]>() d = Gather<axis=1>(a, i)",
    "cumulative sum": "i = Constant<value=int64 {1}>() d = CumSum(a, i)",
    "where": "z = Constant<value=float {0.}>() g = Greater(a, z) d = Where(g, a, z)",
    "tile": "t = Constant<value_ints=[1,2,1,1]>() b = Tile(a, t)"
    " d, q = Split<axis=1, num_outputs=2>(b)",
}


@pytest.mark.parametrize("block", BLOCKS.values(), ids=BLOCKS.keys())
def test_blocks_of_cnns_need_none_inside(block: str) -> None:
    body = WEIGHTS + conv("x", "a") + block + conv("d", "y")
    assert check(body, IMAGE, "[1,4,8,8]") == 2


def test_channel_shuffle_is_one_transpose_of_its_own() -> None:
    shuffle = (
        "s1 = Constant<value_ints=[1,2,2,8,8]>() b = Reshape(a, s1)"
        " c = Transpose<perm=[0,2,1,3,4]>(b) s2 = Constant<value_ints=[1,4,8,8]>()"
        " d = Reshape(c, s2)"
    )
    assert check(WEIGHTS + conv("x", "a") + shuffle + conv("d", "y"), IMAGE, "[1,4,8,8]") == 3


def test_pixel_shuffle_by_reshapes_is_one_transpose_of_its_own() -> None:
    shuffle = (
        "s1 = Constant<value_ints=[1,1,2,2,8,8]>() b = Reshape(a, s1)"
        " c = Transpose<perm=[0,1,4,2,5,3]>(b) s2 = Constant<value_ints=[1,1,16,16]>()"
        " y = Reshape(c, s2)"
    )
    assert check(WEIGHTS + conv("x", "a") + shuffle, IMAGE, "[1,1,16,16]") == 2


@pytest.mark.parametrize(
    ("tail", "output"),
    [
        ("s = Constant<value_ints=[1,4,64]>() b = Reshape(a, s) y = Transpose<perm=[0,2,1]>(b)",
         "[1,64,4]"),
        ("g = GlobalAveragePool(a) y = Flatten(g)", "[1,4]"),
        ("i = Constant<value_ints=[2,3]>() y = ReduceMean<keepdims=0>(a, i)", "[1,4]"),
        ("b = ArgMax<axis=1, keepdims=0>(a) y = Cast<to=1>(b)", "[1,8,8]"),
        ("y = Transpose<perm=[0,2,3,1]>(a)", "[1,8,8,4]"),
    ],
)  # fmt: skip
def test_tails_that_leave_the_channels_behind_need_none(tail: str, output: str) -> None:
    assert check(WEIGHTS + conv("x", "a") + tail, IMAGE, output) == 1


def test_equal_sizes_are_not_mistaken_for_each_other() -> None:
    weights = WEIGHTS.replace("4,4,3,3", "8,8,3,3")
    body = weights + conv("x", "a") + "b = Transpose<perm=[0,1,3,2]>(a) c = Add(a, b)"
    assert check(body + conv("c", "y"), {"x": (8, 8, 8, 8)}, "[8,8,8,8]") == 3


def test_a_model_that_is_channels_last_outside_needs_none() -> None:
    body = "t = Transpose<perm=[0,3,1,2]>(x)" + conv("t", "a") + "y = Transpose<perm=[0,2,3,1]>(a)"
    assert check(WEIGHTS + body, {"x": (1, 8, 8, 4)}, "[1,8,8,4]") == 0


def test_softmax_over_reshaped_axes_stays_in_onnx_order() -> None:
    body = (
        "s = Constant<value_ints=[1,2,2,64]>() b = Reshape(a, s) c = Softmax<axis=-1>(b)"
        " t = Constant<value_ints=[1,4,8,8]>() d = Reshape(c, t)"
    )
    assert check(WEIGHTS + conv("x", "a") + body + conv("d", "y"), IMAGE, "[1,4,8,8]") == 4


@pytest.mark.parametrize(
    ("body", "output"),
    [
        ("r = Reshape(c, s) y = Einsum<equation='bcka,k->bca'>(r, k)", "[1,2,64]"),
        ("r = Reshape(c, s) y = Einsum<equation='bcka,ck->bac'>(r, m)", "[1,64,2]"),
        ("r = Reshape(c, s) t = Einsum<equation='bcka, k -> ac'>(r, k) y = Relu(t)", "[64,2]"),
        ("r = Reshape(c, s) t = Einsum<equation='bcka->bac'>(r) y = Softmax(t)", "[1,64,2]"),
        ("r = Reshape(c, s) t = Einsum<equation='bcka,j->cjba'>(r, k) y = Abs(t)", "[2,2,1,64]"),
    ],
)
def test_sums_take_what_order_there_is(body: str, output: str) -> None:
    constants = (
        "s = Constant<value_ints=[1,2,2,64]>() k = Constant<value_floats=[0.5,-2.0]>() "
        "m = Constant<value = float[2,2] {1, 2, 3, 4}>() "
    )
    body = body.replace("'", '"')
    assert check(WEIGHTS + constants + conv("x", "c") + body, IMAGE, output) <= 2


def test_sums_of_diagonals_stay_as_they_are() -> None:
    body = conv("x", "c") + 'y = Einsum<equation="bchh->bch">(c)'
    assert check(WEIGHTS + body, IMAGE, "[1,4,8]") <= 3


def test_what_is_narrow_is_cut_where_it_is_contiguous() -> None:
    body = (
        "a = Relu(c) p, q = Split<axis=1, num_outputs=2>(a) s = Sigmoid(q) m = Mul(p, s) "
        "y = Concat<axis=1>(m, p)"
    )
    model = built(WEIGHTS + conv("x", "c") + body, IMAGE, "[1,4,8,8]")
    PlanLayout()(model)
    (split,) = [n for n in model.graph if n.op_type == "Split"]
    assert attr(split, "axis", 0) == 1
    assert len(moving(model)) == 2


def test_open_sizes_and_shapes_read_at_run_time() -> None:
    body = "s = Shape<start=2>(a) o = Constant<value_ints=[1,1]>() h = Concat<axis=0>(o, s)"
    body += " z = Expand(k, h) b = Add(a, z)" + conv("b", "y")
    inputs = {"x": ("N", 4, "H", "W"), "k": (1, 1, 1, 1)}
    assert check(WEIGHTS + conv("x", "a") + body, inputs, "[N,4,H,W]") <= 3


def test_one_axis_and_three() -> None:
    line = "sh = Constant<value_ints=[4,4,3]>() w = ConstantOfShape<value=float[1]{0.1}>(sh)"
    body = line + " a = Conv<pads=[1,1]>(x, w) b = Relu(a) y = Conv(b, w)"
    assert check(body, {"x": (1, 4, 9)}, "[1,4,7]") == 2
    cube = "sh = Constant<value_ints=[4,4,2,2,2]>() w = ConstantOfShape<value=float[1]{0.1}>(sh)"
    body = cube + " a = Conv(x, w) b = Relu(a) y = Conv(b, w)"
    assert check(body, {"x": (1, 4, 5, 6, 7)}, "[1,4,3,4,5]") == 2


def test_bodies_read_what_is_around_them_in_onnx_order() -> None:
    body = (
        conv("x", "a") + "m = ReduceMax<keepdims=0>(a) z = Constant<value=float {0.}>()"
        " c = Greater(m, z) y = If(c) <then_branch = t () => (float[1,4,8,8] p) { p = Relu(a) },"
        " else_branch = e () => (float[1,4,8,8] q) { q = Neg(a) }>"
    )
    assert check(WEIGHTS + body, IMAGE, "[1,4,8,8]") == 2


def test_inputs_and_outputs_channels_last_by_choice() -> None:
    model = built(WEIGHTS + conv("x", "y"), IMAGE, "[1,4,8,8]")
    PlanLayout(frozenset({"x"}), frozenset({"y"}))(model)
    assert moving(model) == []
    assert model.graph.inputs[0].shape == ir.Shape([1, 8, 8, 4])
    assert [v.name for v in model.graph.outputs] == ["y"]


def test_what_is_left_is_reported() -> None:
    model = built(WEIGHTS + conv("x", "y"), IMAGE, "[1,4,8,8]")
    result = PlanLayout()(model)
    assert isinstance(result, PassOutcome)
    assert result.notes == (
        "layout: 1 operators channels last; transposes left: 2, 1 at inputs, 1 at outputs",
    )


def test_maxima_with_indices_are_left_alone() -> None:
    text = HEADER + (
        "g (float[1,4,8,8] x) => (float[1,4,4,4] y, int64[1,4,4,4] i)"
        " { y, i = MaxPool<kernel_shape=[2,2], strides=[2,2]>(x) }"
    )
    model = ir.from_onnx_text(text)
    PlanLayout()(model)
    assert [n.domain for n in model.graph] == [""]


def test_the_cut_is_the_cheapest() -> None:
    labelling = Labelling()
    a, b = labelling.variable(), labelling.variable()
    labelling.cost(FIRST, a, 5)
    labelling.cost(a, b, 2)
    labelling.cost(b, LAST, 9)
    labels = labelling.solve()
    assert (labels[a], labels[b]) == (FIRST, LAST)
