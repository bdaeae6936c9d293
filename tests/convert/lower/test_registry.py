from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import onnx_ir as ir
import pytest

from edgeinfer.convert.lower.registry import Const, Driver, Refusal, Registry
from edgeinfer.errors import UnsupportedError


@dataclass
class Toy:
    """Writes each operator as one line of text."""

    lines: list[str] = field(default_factory=list)

    def input(self, value: ir.Value) -> str:
        return value.name or ""

    def constant(self, value: ir.Value) -> str:
        self.lines.append(f"{value.name} = constant")
        return value.name or ""

    def emit(self, text: str) -> str:
        self.lines.append(f"t{len(self.lines)} = {text}")
        return f"t{len(self.lines) - 1}"


ops = Registry("toy", dtypes=frozenset({ir.DataType.FLOAT}), max_rank=3)


@ops.lower("Clip")
def clip(g: Toy, input: str, min: Const | None = None, max: Const | None = None) -> str:
    low = None if min is None else float(min.array)
    high = None if max is None else float(max.array)
    return g.emit(f"clip {input} {low} {high}")


@ops.lower("Softmax")
def softmax(g: Toy, input: str, *, axis: int) -> str:
    if axis != -1:
        raise Refusal(f"axis={axis}: takes the last axis only", hint="transpose before")
    return g.emit(f"softmax {input}")


@ops.lower("Concat")
def concat(g: Toy, *inputs: str, axis: int) -> str:
    return g.emit(f"concat {' '.join(inputs)} {axis}")


@ops.lower("Gemm")
def gemm(
    g: Toy,
    a: str,
    b: str,
    c: str | None = None,
    *,
    alpha: float,
    beta: float,
    transA: int,  # noqa: N803
    transB: int,  # noqa: N803
) -> str:
    return g.emit(f"gemm {a} {b} {c} {alpha} {beta} {transA} {transB}")


@ops.lower("Split")
def split(
    g: Toy, input: str, split: Const | None = None, *, axis: int, num_outputs: int | None
) -> tuple[str, ...]:
    count = 0 if split is None else split.array.size
    return tuple(g.emit(f"part {i} of {input} on {axis}") for i in range(num_outputs or count))


def model(text: str) -> ir.Model:
    return ir.from_onnx_text(f'<ir_version: 10, opset_import: ["": 24]> {text}')


def lines(text: str) -> list[str]:
    toy = Toy()
    Driver(ops, toy).run(model(text))
    return toy.lines


def problems(text: str) -> list[str]:
    with pytest.raises(UnsupportedError) as caught:
        lines(text)
    return [str(p) for p in caught.value.problems]


def test_nodes_are_bound_to_functions() -> None:
    text = """g (float[2] x) => (float[2] y) <float low = {0.5}> {
        a = Clip(x, low)
        b = Clip(a, , low)
        c = Softmax(b)
        y = Concat<axis = 0>(c, x)
    }"""
    assert lines(text) == [
        "t0 = clip x 0.5 None",
        "t1 = clip t0 None 0.5",
        "t2 = softmax t1",
        "t3 = concat t2 x 0",
    ]


def test_attributes_take_their_values_and_defaults() -> None:
    text = "g (float[2,2] x) => (float[2,2] y) { y = Gemm<transB = 1, alpha = 0.5>(x, x) }"
    assert lines(text) == ["t0 = gemm x x None 0.5 1.0 0 1"]


def test_constant_operand_of_a_tensor_parameter_is_written_once() -> None:
    text = """g (float[2,2] x) => (float[2,2] y) <float[2,2] w = {1, 2, 3, 4}> {
        a = Gemm(x, w)
        y = Gemm(a, w)
    }"""
    assert [line for line in lines(text) if "constant" in line] == ["w = constant"]


def test_several_outputs_are_bound_in_order() -> None:
    text = """g (float[4] x) => (float[4] y) {
        a, b = Split<num_outputs = 2>(x)
        y = Concat<axis = 0>(b, a)
    }"""
    assert lines(text)[-1] == "t2 = concat t1 t0 0"


def test_all_problems_of_a_graph_are_listed_at_once() -> None:
    text = """g (float[2] x, float low, double[2] d, float[1,1,1,1] r)
        => (float[2] y, double[2] e, float[1,1,1,1] s, float[2] t) {
        a = Foo(x)
        b = Clip(x, low)
        c = Softmax<axis = 0>(x)
        e = Clip(d)
        s = Clip(r)
        f = Softmax<beta = 2>(a)
        t = Clip(f)
        y = Concat<axis = 0>(a, b, c)
    }"""
    assert problems(text) == [
        "Foo '#0': unsupported_op: no lowering for it",
        "Clip '#1': requires_constant: input 'min' must be constant",
        "Softmax '#2': unsupported_attribute: axis=0: takes the last axis only (transpose before)",
        "Clip '#3': unsupported_dtype: 'd' is double; takes float",
        "Clip '#3': unsupported_dtype: 'e' is double; takes float",
        "Clip '#4': unsupported_rank: 'r' has rank 4; takes up to 3",
        "Clip '#4': unsupported_rank: 's' has rank 4; takes up to 3",
        "Softmax '#5': unsupported_attribute: attribute 'beta' is not expressible",
    ]


def test_missing_operands_and_attributes_are_refused() -> None:
    text = "g (float[2] x) => (float[2] y, float[2] z) { y = Concat(x) z = Clip() }"
    assert problems(text) == [
        "Concat '#0': unsupported_attribute: needs its attribute 'axis'",
        "Clip '#1': unsupported_attribute: needs its input 'input'",
    ]


def test_too_many_operands_are_refused() -> None:
    text = "g (float[2] x) => (float[2] y) { y = Softmax(x, x) }"
    assert problems(text) == ["Softmax '#0': unsupported_attribute: takes 1 inputs, has 2"]


def test_operator_of_an_unknown_domain_is_refused() -> None:
    text = "g (float[2] x) => (float[2] y) { y = com.acme.Clip(x) }"
    assert problems(text) == ["com.acme::Clip '#0': unsupported_op: no lowering for it"]


def test_a_format_says_why_it_lacks_an_operator() -> None:
    table = Registry("toy", dtypes=frozenset({ir.DataType.FLOAT}), lacking={"Relu": "no room"})
    model = ir.from_onnx_text(
        '<ir_version: 10, opset_import: ["" : 20]> g (float[2] x) => (float[2] z) '
        "{ y = Relu(x) z = Neg(x) }"
    )
    with pytest.raises(UnsupportedError) as e:
        Driver(table, Toy()).run(model)
    assert [p.detail for p in e.value.problems] == ["no room", "no lowering for it"]


def test_second_registration_is_a_bug() -> None:
    with pytest.raises(ValueError, match="Clip is taken by clip"):
        ops.lower("Clip")(clip)


def test_constant_has_its_value() -> None:
    seen: list[Const] = []
    own = Registry("own", dtypes=frozenset({ir.DataType.FLOAT}))

    @own.lower("Reshape")
    def _(g: Toy, data: str, shape: Const) -> str:
        seen.append(shape)
        return data

    text = "g (float[4] x) => (float[2,2] y) <int64[2] s = {2, 2}> { y = Reshape(x, s) }"
    Driver(own, Toy()).run(model(text))
    np.testing.assert_array_equal(seen[0].array, [2, 2])
    assert seen[0].name == "s"


def test_what_no_format_has_a_place_for_is_said() -> None:
    text = "g (float[4] x, int64 k) => (float[4] y) { s = SplitToSequence(x) y = SequenceAt(s, k) }"
    (split, at) = problems(text)
    assert "a sequence or optional value, and the format has tensors only" in split
    assert "SequenceAt" in at
