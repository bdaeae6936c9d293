"""Rules: what an engine gets wrong or lacks, and what is done about it, as a table.

A rule is data of one engine. ``apply`` walks the whole graph, repairs what has a repair and
returns a ``Problem`` for everything else.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

import onnx_ir as ir

from edgeinfer.convert.lower.expand import expand
from edgeinfer.convert.lower.single import op_name, walk
from edgeinfer.convert.passes.inference import infer
from edgeinfer.errors import Problem, Reason, Remarks
from edgeinfer.records import dataclass

Repair = Callable[[ir.Model, ir.Node], bool]
"""Rewrites a node in place; False when this one cannot be."""


@dataclass(frozen=True, slots=True)
class Rule:
    """One fault of an engine.

    Attributes:
        ops: operators concerned.
        fault: what is wrong about this node, or empty when nothing is.
        source: how it is known.
        repair: rewrites the node into what the engine does right; None refuses it.
        reason: code of the refusal.
        hint: what the user can do about a refusal.
        domains: whose operators; the default domain's alone, unless said otherwise.
    """

    ops: frozenset[str]
    fault: Callable[[ir.Node], str]
    source: str
    repair: Repair | None = None
    reason: Reason = "unsupported_attribute"
    hint: str = ""
    domains: frozenset[str] = frozenset({""})


def by_definition(model: ir.Model, node: ir.Node) -> bool:
    """Repair by ONNX's own definition of the operator."""
    return bool(expand(model, [node]))


def apply(model: ir.Model, rules: Sequence[Rule], notes: Remarks) -> list[Problem]:
    """Repair, in place, what can be; list the rest."""
    problems: list[Problem] = []
    repaired: Counter[str] = Counter()
    # A repair may bring in operators that have rules themselves; each round goes one level down.
    for _ in range(5):
        found = [
            (name, node, op_name(node), rule, fault)
            for name, node in walk(model)
            if (match := _first(rules, node)) is not None
            for rule, fault in [match]
        ]
        by_def = [node for _, node, _, rule, _ in found if rule.repair is by_definition]
        fixed = {id(node) for node in expand(model, by_def)}
        fixed |= {
            id(node)
            for _, node, _, rule, _ in found
            if rule.repair not in (None, by_definition) and rule.repair(model, node)
        }
        repaired.update(
            f"{op}: {fault}: rewritten" for _, n, op, _, fault in found if id(n) in fixed
        )
        problems = [
            Problem(name, op, rule.reason, fault, rule.hint)
            for name, node, op, rule, fault in found
            if id(node) not in fixed
        ]
        if not fixed:
            break
    if any(v.type is None and v.name for _, node in walk(model) for v in node.outputs):
        # What a repair has made is asked about, and narrowed, by its types.
        infer(model)
    for line, count in repaired.items():
        notes.add(f"{line} ({count} nodes)" if count > 1 else line)
    return problems


def _first(rules: Sequence[Rule], node: ir.Node) -> tuple[Rule, str] | None:
    for rule in rules:
        if node.domain in rule.domains and node.op_type in rule.ops and (fault := rule.fault(node)):
            return rule, fault
    return None


def attribute(node: ir.Node, name: str, default: object) -> object:
    """Return an attribute's value, or the default when the node leaves it out."""
    found = node.attributes.get(name)
    return default if found is None else found.value


def given(node: ir.Node, index: int) -> ir.Value | None:
    """Return an input, or None when it is left out."""
    return node.inputs[index] if index < len(node.inputs) else None
