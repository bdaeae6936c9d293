"""Made-up integers are what the operators behind them take."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import helper, numpy_helper

from edgeinfer.convert.verify.bounds import bounds_of
from edgeinfer.convert.verify.oracles import Oracles
from edgeinfer.convert.verify.vectors import make_vectors
from edgeinfer.types import Array

F, I64, I32 = onnx.TensorProto.FLOAT, onnx.TensorProto.INT64, onnx.TensorProto.INT32

Ends = tuple[Any, Any]


@dataclass(frozen=True)
class Case:
    """One graph.

    Attributes:
        nodes: operator, inputs, outputs and attributes.
        inputs: element type and shape, by name.
        ends: lowest and highest usual values that are expected, by name.
        constants: by name.
        output: element type of the last node's first output.
    """

    nodes: Sequence[tuple[str, list[str], list[str], dict[str, Any]]]
    inputs: Mapping[str, tuple[int, tuple[Any, ...]]]
    ends: Mapping[str, Ends]
    constants: Mapping[str, Array] = field(default_factory=dict)
    output: int = F
    opset: int = 21

    def model(self) -> ir.Model:
        nodes = [
            helper.make_node(op, ins, outs, f"n{i}", **attrs)
            for i, (op, ins, outs, attrs) in enumerate(self.nodes)
        ]
        graph = helper.make_graph(
            nodes,
            "g",
            [helper.make_tensor_value_info(n, t, s) for n, (t, s) in self.inputs.items()],
            [helper.make_tensor_value_info(self.nodes[-1][2][0], self.output, None)],
            [numpy_helper.from_array(a, n) for n, a in self.constants.items()],
        )
        opsets = [helper.make_opsetid("", self.opset), helper.make_opsetid("com.microsoft", 1)]
        proto = helper.make_model(graph, opset_imports=opsets, ir_version=10)
        made: ir.Model = ir.from_proto(proto)
        return made


def ints(*values: int) -> Array:
    return np.array(values, np.int64)


TABLE = np.arange(40, dtype=np.float32).reshape(10, 4)
X = {"x": (F, (6, 5))}

CASES = {
    "rows": Case(
        [("Gather", ["t", "i"], ["y"], {})], {"i": (I64, (3,))}, {"i": (0, 9)}, {"t": TABLE}
    ),
    "rows after an offset": Case(
        [("Add", ["i", "two"], ["j"], {}), ("Gather", ["t", "j"], ["y"], {})],
        {"i": (I64, (2, 3))},
        {"i": (-2, 7)},
        {"t": TABLE, "two": ints(2)},
    ),
    "an offset taken off": Case(
        [("Sub", ["i", "two"], ["j"], {}), ("Gather", ["t", "j"], ["y"], {})],
        {"i": (I64, (2, 3))},
        {"i": (2, 11)},
        {"t": TABLE, "two": ints(2)},
    ),
    "from the end": Case(
        [("Sub", ["nine", "i"], ["j"], {}), ("Gather", ["t", "j"], ["y"], {})],
        {"i": (I64, (3,))},
        {"i": (0, 9)},
        {"t": TABLE, "nine": ints(9)},
    ),
    "through a cast, a product and a quotient": Case(
        [
            ("Cast", ["i"], ["l"], {"to": I64}),
            ("Mul", ["l", "three"], ["m"], {}),
            ("Div", ["m", "two"], ["j"], {}),
            ("Gather", ["t", "j"], ["y"], {}),
        ],
        {"i": (I32, (3,))},
        {"i": (0, 6)},
        {"t": TABLE, "three": ints(3), "two": ints(2)},
    ),
    "of an input's own axis": Case(
        [("Gather", ["x", "i"], ["y"], {"axis": 1})], {**X, "i": (I64, (2,))}, {"i": (0, 4)}
    ),
    "two that share a bound": Case(
        [("Add", ["i", "k"], ["j"], {}), ("Gather", ["t", "j"], ["y"], {})],
        {"i": (I64, (3,)), "k": (I64, (1,))},
        {"i": (0, 5), "k": (0, 4)},
        {"t": TABLE},
    ),
    "the difference of two": Case(
        [("Sub", ["i", "k"], ["j"], {}), ("Gather", ["t", "j"], ["y"], {})],
        {"i": (I64, (3,)), "k": (I64, (3,))},
        {"i": (4, 9), "k": (0, 4)},
        {"t": TABLE},
    ),
    "a row and a column of one index": Case(
        [
            ("Mul", ["i", "five"], ["r"], {}),
            ("Add", ["r", "k"], ["j"], {}),
            ("Gather", ["t", "j"], ["y"], {}),
        ],
        {"i": (I64, (1,)), "k": (I64, (1,))},
        {"i": (0, 1), "k": (0, 4)},
        {"t": TABLE, "five": ints(5)},
    ),
    "two tables": Case(
        [
            ("Gather", ["t", "i"], ["a"], {}),
            ("Gather", ["u", "i"], ["b"], {}),
            ("Add", ["a", "b"], ["y"], {}),
        ],
        {"i": (I64, (3,))},
        {"i": (0, 2)},
        {"t": TABLE, "u": TABLE[:3]},
    ),
    "tuples": Case(
        [("GatherND", ["x", "i"], ["y"], {})],
        {**X, "i": (I64, (3, 2))},
        {"i": ([[0, 0]], [[5, 4]])},
    ),
    "tuples in batches": Case(
        [("GatherND", ["x", "i"], ["y"], {"batch_dims": 1})],
        {"x": (F, (2, 3, 5)), "i": (I64, (2, 4, 1))},
        {"i": (0, 2)},
    ),
    "rows that are added to": Case(
        [("ScatterND", ["x", "i", "u"], ["y"], {"reduction": "add"})],
        {**X, "i": (I64, (3, 1)), "u": (F, (3, 5))},
        {"i": (0, 5)},
    ),
    "elements": Case(
        [("GatherElements", ["x", "i"], ["y"], {"axis": 1})],
        {**X, "i": (I64, (6, 2))},
        {"i": (0, 4)},
    ),
    "elements that are replaced": Case(
        [("ScatterElements", ["x", "i", "u"], ["y"], {"axis": 0})],
        {**X, "i": (I64, (1, 5)), "u": (F, (1, 5))},
        {"i": (0, 5)},
    ),
    "columns of one tensor of indices": Case(
        [
            ("Split", ["i"], ["a", "b"], {"axis": 1, "num_outputs": 2}),
            ("Gather", ["t", "a"], ["ta"], {}),
            ("Gather", ["u", "b"], ["ub"], {}),
            ("Add", ["ta", "ub"], ["y"], {}),
        ],
        {"i": (I64, (2, 2))},
        {"i": ([[0, 0]] * 2, [[9, 2]] * 2)},
        {"t": TABLE, "u": TABLE[:3]},
    ),
    "lengths of a recurrent layer": Case(
        [("GRU", ["x", "w", "r", "", "n"], ["y"], {"hidden_size": 2})],
        {"x": (F, (7, 3, 4)), "n": (I32, (3,))},
        {"n": (1, 7)},
        {"w": np.ones((1, 6, 4), np.float32), "r": np.ones((1, 6, 2), np.float32)},
    ),
    "lengths of a recurrent layer of stored integers": Case(
        [
            (
                "DynamicQuantizeLSTM",
                ["x", "w", "r", "", "n", "", "", "", "s", "z", "s", "z"],
                ["y"],
                {"hidden_size": 2, "domain": "com.microsoft"},
            )
        ],
        {"x": (F, (6, 3, 5)), "n": (I32, (3,))},
        {"n": (1, 6)},
        {
            "w": np.ones((1, 5, 8), np.int8),
            "r": np.ones((1, 2, 8), np.int8),
            "s": np.full(1, 0.1, np.float32),
            "z": np.zeros(1, np.int8),
        },
    ),
    "lengths that are turned round": Case(
        [("ReverseSequence", ["x", "n"], ["y"], {"time_axis": 1, "batch_axis": 0})],
        {**X, "n": (I64, (6,))},
        {"n": (1, 5)},
    ),
    "lengths of a mask": Case(
        [
            ("Less", ["p", "n"], ["m"], {}),
            ("Cast", ["m"], ["f"], {"to": F}),
            ("Mul", ["x", "f"], ["y"], {}),
        ],
        {**X, "n": (I64, (6, 1))},
        {"n": (1, 5)},
        {"p": ints(0, 1, 2, 3, 4)},
    ),
    "a count": Case(
        [("TopK", ["x", "k"], ["y", "places"], {"axis": 1})],
        {**X, "k": (I64, (1,))},
        {"k": (1, 5)},
    ),
    "a divisor": Case(
        [("Div", ["i", "k"], ["y"], {})],
        {"i": (I64, (3,)), "k": (I64, (3,))},
        {"k": (1, np.inf)},
        output=I64,
    ),
    "the divisor of a remainder": Case(
        [("Mod", ["i", "k"], ["y"], {})],
        {"i": (I64, (3,)), "k": (I64, (1,))},
        {"k": (1, np.inf)},
        output=I64,
    ),
    "classes": Case(
        [("OneHot", ["i", "d", "v"], ["y"], {})],
        {"i": (I64, (3,))},
        {"i": (0, 6)},
        {"d": ints(7), "v": np.array([0, 1], np.float32)},
    ),
    "a shape": Case(
        [("Reshape", ["x", "s"], ["y"], {})],
        {**X, "s": (I64, (3,))},
        {"s": ([1, 6, 5], [1, 6, 5])},
    ),
    "a part of a shape": Case(
        [
            ("Unsqueeze", ["h", "zero"], ["u"], {}),
            ("Concat", ["u", "rest"], ["s"], {"axis": 0}),
            ("Reshape", ["x", "s"], ["y"], {}),
        ],
        {**X, "h": (I64, ())},
        {"h": (1, 1)},
        {"zero": ints(0), "rest": ints(-1, 5)},
    ),
    "a shape that is filled up": Case(
        [("Expand", ["x", "s"], ["y"], {})],
        {"x": (F, (1, 5)), "s": (I64, (3,))},
        {"s": ([1, 1, 5], [2, 2, 5])},
    ),
    "a start and an end": Case(
        [("Slice", ["x", "b", "e", "zero"], ["y"], {})],
        {**X, "b": (I64, (1,)), "e": (I64, (1,))},
        {"b": (0, 2), "e": (3, 6)},
        {"zero": ints(0)},
    ),
    "the end of positions": Case(
        [
            ("Range", ["zero", "n", "one"], ["p"], {}),
            ("Gather", ["t", "p"], ["y"], {}),
        ],
        {"n": (I64, ())},
        {"n": (1, 10)},
        {"zero": np.array(0, np.int64), "one": np.array(1, np.int64), "t": TABLE},
    ),
    "a running sum": Case(
        [("CumSum", ["i", "axis"], ["c"], {}), ("Gather", ["t", "c"], ["y"], {})],
        {"i": (I64, (3,))},
        {"i": (0, 3)},
        {"axis": np.array(0, np.int64), "t": TABLE},
    ),
    "one of two": Case(
        [("Where", ["m", "i", "k"], ["j"], {}), ("Gather", ["t", "j"], ["y"], {})],
        {"m": (onnx.TensorProto.BOOL, (3,)), "i": (I64, (3,)), "k": (I64, (3,))},
        {"i": (0, 9), "k": (0, 9)},
        {"t": TABLE},
    ),
    "what a clip keeps": Case(
        [("Clip", ["i", "zero", "nine"], ["j"], {}), ("Gather", ["t", "j"], ["y"], {})],
        {"i": (I64, (3,))},
        {},
        {"zero": np.array(0, np.int64), "nine": np.array(9, np.int64), "t": TABLE},
    ),
    "positions of a rotation": Case(
        [("RotaryEmbedding", ["x", "c", "s", "p"], ["y"], {})],
        {"x": (F, (1, 4, 5, 8)), "p": (I64, (1, 5))},
        {"p": (0, 15)},
        {"c": np.ones((16, 4), np.float32), "s": np.zeros((16, 4), np.float32)},
        opset=23,
    ),
    "parts": Case(
        [("Split", ["x", "n"], ["y", "z"], {"axis": 1})],
        {**X, "n": (I64, (2,))},
        {"n": ([3, 2], [3, 2])},
    ),
    "in a branch": Case(
        [("Gather", ["t", "i"], ["a"], {}), ("Neg", ["a"], ["y"], {})],
        {"i": (I64, (3,))},
        {"i": (0, 9)},
        {"t": TABLE},
    ),
    "a mask that keeps scores": Case(
        [
            ("Cast", ["i"], ["m"], {"to": F}),
            ("Sub", ["one", "m"], ["r"], {}),
            ("Mul", ["r", "far"], ["f"], {}),
            ("Add", ["x", "f"], ["s"], {}),
            ("Softmax", ["s"], ["y"], {}),
        ],
        {"i": (I64, (1, 7)), "x": (F, (5, 7))},
        {"i": (0, 1)},
        {"one": np.array(1, np.float32), "far": np.array(-1e4, np.float32)},
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_what_an_operator_asks_is_found_behind_arithmetic(name: str) -> None:
    case = CASES[name]
    found = bounds_of(case.model(), {n: s for n, (_, s) in case.inputs.items()})
    assert {n for n in found if n in case.ends or n in ("i", "k", "n", "s")} == set(case.ends)
    for value, (low, high) in case.ends.items():
        shape = case.inputs[value][1]
        span = found[value].span
        np.testing.assert_array_equal(np.broadcast_to(span.low, shape), np.broadcast_to(low, shape))
        np.testing.assert_array_equal(
            np.broadcast_to(span.high, shape), np.broadcast_to(high, shape)
        )


@pytest.mark.parametrize("name", CASES)
def test_made_up_vectors_run(name: str) -> None:
    model = CASES[name].model()
    with Oracles(model) as oracles:
        vectors = make_vectors(model, oracles.inputs, oracles=oracles)
        expected = oracles.expected(vectors)
    assert len(vectors) >= 5
    assert "at most" not in vectors[0].note, "nothing was tried with smaller numbers"
    assert all(len(a.agreed) == 2 for a in expected.answers), expected.notes


def test_bodies_bound_what_they_take_from_outside() -> None:
    text = """<ir_version: 10, opset_import: ["": 21]>
    g (bool c, int64[2] i) => (float[2] y) <float[3] t = {1., 2., 3.}> {
        y = If(c) <then_branch = a () => (float[2] u) { u = Gather(t, i) },
                   else_branch = b () => (float[2] v) { w = Gather(t, i) v = Neg(w) }>
    }"""
    found = bounds_of(ir.from_onnx_text(text), {"c": (), "i": (2,)})
    assert (found["i"].span.least, found["i"].span.most) == (0, 2)


def test_sizes_count() -> None:
    text = """<ir_version: 10, opset_import: ["": 21]>
    g (float[T, 2] x, int64[N] i) => (float[N, 2] y) { y = Gather(x, i) }"""
    model = ir.from_onnx_text(text)
    for size in (3, 8):
        found = bounds_of(model, {"x": (size, 2), "i": (4,)})
        assert found["i"].span.most == size - 1
        assert found["i"].hard.least == -size


@pytest.mark.parametrize(("shape", "most"), [((3,), 5), ((3, 5), 1), ((3, 5, 5), 1)])
def test_a_mask_of_packed_attention_holds_ones_or_numbers_of_keys(
    shape: tuple[int, ...], most: int
) -> None:
    sizes = ", ".join(map(str, shape))
    text = f"""<ir_version: 10, opset_import: ["": 21, "com.microsoft": 1]>
    g (float[3,5,4] x, float[4,12] w, float[12] b, int32[{sizes}] i) => (float[3,5,4] y) {{
        y = com.microsoft.Attention<num_heads = 2>(x, w, b, i) }}"""
    sizes_of = {"x": (3, 5, 4), "w": (4, 12), "b": (12,), "i": shape}
    span = bounds_of(ir.from_onnx_text(text), sizes_of)["i"].span
    assert (span.least, span.most) == (1 if len(shape) == 1 else 0, most)


def test_a_declared_partner_takes_its_part_of_a_bound() -> None:
    case = CASES["two that share a bound"]
    found = bounds_of(case.model(), {"i": (3,), "k": (1,)}, {"k": (7, 7)})
    assert (found["i"].span.least, found["i"].span.most) == (-7, 2)
