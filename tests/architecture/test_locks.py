"""Locks are entered by C alone: Ctrl-C on the way into or out of a condition leaves it held."""

import ast

from tests.architecture.tree import modules


def test_no_condition_is_entered_itself() -> None:
    entered = []
    for module in modules():
        if "Condition" not in module.text:
            continue
        made = {
            ast.unparse(target)
            for each in ast.walk(module.tree)
            if isinstance(each, ast.Assign) and _is_condition(each.value)
            for target in each.targets
        }
        entered += [
            f"{module.where}:{each.lineno}"
            for each in ast.walk(module.tree)
            if isinstance(each, ast.With)
            and any(ast.unparse(item.context_expr) in made for item in each.items)
        ]
    assert entered == [], "enter the condition's lock instead: threading.Condition(lock)"


def _is_condition(value: ast.expr) -> bool:
    return isinstance(value, ast.Call) and ast.unparse(value.func).endswith("Condition")
