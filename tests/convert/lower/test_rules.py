import onnx_ir as ir

from edgeinfer.convert.lower.rules import Rule, apply, by_definition
from edgeinfer.errors import Remarks
from tests.convert.lower.running import model, ops


def relu_to_abs(_: ir.Model, node: ir.Node) -> bool:
    node.op_type = "Abs"
    return True


def refuse_large(_: ir.Model, __: ir.Node) -> bool:
    return False


def rule(op: str, repair: object = None, fault: str = "bad") -> Rule:
    return Rule(frozenset({op}), lambda n: fault, "a test", repair=repair)  # type: ignore[arg-type]


TEXT = "g (float[2] x) => (float[2] y) { [a] a = Relu(x) [b] b = Relu(a) [c] y = Swish(b) }"


def test_rule_without_repair_refuses_every_node() -> None:
    found = apply(model(TEXT), [rule("Relu")], Remarks())
    assert [str(p) for p in found] == [
        "Relu 'a': unsupported_attribute: bad",
        "Relu 'b': unsupported_attribute: bad",
    ]


def test_repair_changes_the_graph_and_is_noted_once_with_its_count() -> None:
    whole, notes = model(TEXT), Remarks()
    assert apply(whole, [rule("Relu", relu_to_abs)], notes) == []
    assert ops(whole) == ["Abs", "Abs", "Swish"]
    assert notes.lines == ["Relu: bad: rewritten (2 nodes)"]


def test_repair_that_does_not_apply_refuses() -> None:
    whole, notes = model(TEXT), Remarks()
    assert [p.node for p in apply(whole, [rule("Relu", refuse_large)], notes)] == ["a", "b"]
    assert notes.lines == []


def test_definition_is_a_repair_and_what_it_brings_in_is_checked_too() -> None:
    whole = model(TEXT)
    found = apply(whole, [rule("Swish", by_definition), rule("Sigmoid")], Remarks())
    assert [p.op for p in found] == ["Sigmoid"]


def test_healthy_nodes_and_other_domains_are_left_alone() -> None:
    whole = model("g (float[2] x) => (float[2] y) { a = com.acme.Relu(x) y = Relu(a) }")
    assert apply(whole, [rule("Relu", relu_to_abs, fault="")], Remarks()) == []
    assert ops(whole) == ["Relu", "Relu"]
    assert apply(whole, [rule("Relu", relu_to_abs)], Remarks()) == []
    assert ops(whole) == ["Relu", "Abs"]


def test_first_rule_that_finds_a_fault_wins() -> None:
    rules = [rule("Relu", fault=""), rule("Relu", fault="second"), rule("Relu", fault="third")]
    assert [p.detail for p in apply(model(TEXT), rules, Remarks())] == ["second", "second"]
