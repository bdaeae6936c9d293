"""Sizes of exported programs: texts that PyTorch evaluates, and that must end and run nothing.

Source: torch/_export/serde/serialize.py, PyTorch 2.13; ``sympy.srepr`` and ``sympify``.
"""

from __future__ import annotations

import ast
import math
import re

_MOST_TEXT, _MOST_NODES = 1 << 15, 4096
_MOST_BITS = 1 << 16
"""Bits of the largest number that an expression may fold to."""

_MOST_EXPONENT = 64
_MOST_DIGITS = 256
"""Digits of a float, and bits of its precision."""

_VALUE_BITS = 64
"""Bits of a size that stands behind a symbol."""

_HEADS = frozenset(
    {
        *("Symbol", "Dummy", "Integer", "Rational", "Float", "Add", "Mul", "Pow", "Max", "Min"),
        *("Mod", "Abs", "Equality", "Unequality", "LessThan", "StrictLessThan", "GreaterThan"),
        *("StrictGreaterThan", "And", "Or", "Not", "Piecewise", "ExprCondPair", "floor", "ceiling"),
        *("FloorDiv", "ModularIndexing", "Where", "PythonMod", "CleanDiv", "CeilToInt"),
        *("FloorToInt", "CeilDiv", "LShift", "RShift", "PowByNatural", "FloatPow"),
        *("FloatTrueDiv", "IntTrueDiv", "IsNonOverlappingAndDenseIndicator", "TruncToFloat"),
        *("TruncToInt", "RoundToInt", "RoundDecimal", "ToFloat", "Identity"),
    }
)
"""What ``sympy.srepr`` writes of sizes."""

_NAMES = frozenset({"true", "false", "True", "False", "oo", "zoo", "nan", "int_oo"})
_SYMBOL = re.compile(r"[A-Za-z]\w*")
_FLOAT = re.compile(r"[-+0-9.e]+")
_LARGE_EXPONENT = re.compile(r"[0-9._][eE][-+]?[0-9_]{4}")
_POWERS = frozenset({"Pow", "PowByNatural", "FloatPow", "LShift", "RShift", "RoundDecimal"})
"""Heads whose second argument is an exponent."""

_POWER_SIGNS = (ast.Pow, ast.LShift, ast.RShift)

_NO_SIGNS = (ast.MatMult, ast.BitXor)
"""Signs that no size has; SymPy reads ``^`` as a power, which binds otherwise than in Python."""


class _RefusedError(Exception):
    """A part that is no size; never leaves this module."""


def is_size(text: str) -> bool:
    """Whether a text is an expression of sizes: it runs nothing else, and soon ends."""
    if len(text) > _MOST_TEXT or _LARGE_EXPONENT.search(text):
        return False
    try:
        tree = ast.parse(text, mode="eval")
        return len(list(ast.walk(tree))) <= _MOST_NODES and _bits(tree.body) <= _MOST_BITS
    except (SyntaxError, ValueError, RecursionError, MemoryError, OverflowError, _RefusedError):
        return False


def _bits(node: ast.AST) -> int:
    """Return how many bits a part may fold to; raise where it is no part of a size."""
    if isinstance(node, ast.Call):
        return _call_bits(node)
    if isinstance(node, ast.Name):
        if node.id not in _NAMES and not re.fullmatch(r"[a-z]{1,3}\d+", node.id):
            raise _RefusedError
        return _VALUE_BITS
    if isinstance(node, ast.Constant):
        return _number_bits(node.value)
    if isinstance(node, ast.UnaryOp):
        return _bits(node.operand) + 1
    if isinstance(node, ast.BinOp) and not isinstance(node.op, _NO_SIGNS):
        if isinstance(node.op, _POWER_SIGNS):
            return _power_bits(node.left, node.right)
        return _bits(node.left) + _bits(node.right) + 1
    raise _RefusedError


def _call_bits(node: ast.Call) -> int:
    head = node.func.id if isinstance(node.func, ast.Name) else ""
    if head not in _HEADS:
        raise _RefusedError
    if head in ("Symbol", "Dummy"):
        _check_symbol(node)
        return _VALUE_BITS
    if head == "Float":
        _check_float(node)
        return 4 * _MOST_DIGITS
    if node.keywords:
        raise _RefusedError
    if head in _POWERS and len(node.args) > 1:
        return _power_bits(*node.args[:2]) + sum(map(_bits, node.args[2:]))
    # Pairs of a value and its condition may be written as tuples.
    pairs = [arg for arg in node.args if isinstance(arg, ast.Tuple)]
    if pairs and head != "Piecewise":
        raise _RefusedError
    inside = [part for pair in pairs for part in pair.elts]
    return sum(map(_bits, [*inside, *(arg for arg in node.args if arg not in pairs)])) + 1


def _power_bits(base: ast.AST, exponent: ast.AST) -> int:
    most = abs(_literal(exponent))
    if not most <= _MOST_EXPONENT:
        raise _RefusedError
    return (_bits(base) + 4) * max(1, math.ceil(most))


def _literal(node: ast.AST) -> float:
    """Return the number that a part writes out."""
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub | ast.UAdd):
        return -_literal(node.operand)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.args:
        if node.func.id == "Float":
            _check_float(node)
            first = node.args[0]
            if isinstance(first, ast.Constant) and isinstance(first.value, str):
                return float(first.value)
            return _literal(first)
        if node.func.id in ("Integer", "Rational") and not node.keywords:
            numbers = [_literal(arg) for arg in node.args]
            # A whole number that it is divided by makes it no larger.
            if all(isinstance(number, int) for number in numbers[1:]):
                return numbers[0]
    if isinstance(node, ast.Constant) and isinstance(node.value, int | float):
        _number_bits(node.value)
        return node.value
    raise _RefusedError


def _number_bits(value: object) -> int:
    if isinstance(value, float) and math.isfinite(value):
        return 4 * _MOST_DIGITS
    if isinstance(value, int):
        return value.bit_length() + 1
    # SymPy evaluates texts.
    raise _RefusedError


def _check_symbol(node: ast.Call) -> None:
    name = node.args[0] if len(node.args) == 1 else None
    if not isinstance(name, ast.Constant) or not _SYMBOL.fullmatch(str(name.value)):
        raise _RefusedError
    # What is assumed of it, and the number that tells dummies apart.
    if not all(k.arg and isinstance(k.value, ast.Constant) for k in node.keywords):
        raise _RefusedError
    for keyword in node.keywords:
        _number_bits(getattr(keyword.value, "value", None))


def _check_float(node: ast.Call) -> None:
    """A number, or the text of one, and how exact it is."""
    first = node.args[0] if node.args else None
    if isinstance(first, ast.Constant) and isinstance(first.value, str):
        if not _FLOAT.fullmatch(first.value) or len(first.value) > _MOST_DIGITS:
            raise _RefusedError
    elif first is None or not isinstance(first, ast.Constant | ast.UnaryOp):
        raise _RefusedError
    else:
        _literal(first)
    if not all(keyword.arg for keyword in node.keywords):
        raise _RefusedError
    for how in (*node.args[1:], *(keyword.value for keyword in node.keywords)):
        if not abs(_literal(how)) <= _MOST_DIGITS:
            raise _RefusedError
