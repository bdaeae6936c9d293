"""What a ``.pt2`` file holds that only Python can read, and that may run anything when it is read.

``torch.export.load`` unpickles constants and weights that the file marks so, resolves names of
functions by walking attributes from ``torch``, evaluates sizes as Python text, and maps libraries.
So the file is looked at first, through the reader that the loader itself uses, and only a program
of registered operators over plain tensors goes on.

Source: torch/export/pt2_archive/_package.py and torch/_export/serde/serialize.py, PyTorch 2.13.
"""

from __future__ import annotations

import ast
import io
import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

MOST_JSON = 1 << 28
"""Bytes of one description in the file."""

_MOST_LISTED = 5
_DATA = "data/"
_CONFIGS = ("data/weights/", "data/constants/")
_TARGET = re.compile(
    r"torch\.ops\.\w+\.\w+\.\w+|torch\.ops\.higher_order\.\w+|torch\._?sym_\w+|math\.[a-z0-9]+"
    r"|torch\._C\._set_grad_enabled|_operator\.(?:getitem|add|sub|mul|truediv|floordiv|mod|pow|neg"
    r"|pos|abs|eq|ne|lt|le|gt|ge|and_|or_|xor|not_|invert|lshift|rshift)"
)
_FILES = re.compile(r"torch\.ops\.\w+\.(?:from_file|load_library)\b")
"""Operators that read or make files by name."""

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


def suspicions(path: Path) -> list[str]:
    """Return what in a file may run code when it is loaded; empty where nothing may.

    Raises:
        Exception: whatever PyTorch's reader raises on a damaged file.
    """
    import torch

    reader = torch._C.PyTorchFileReader(str(path))
    names = [str(name) for name in reader.get_all_records()]
    found = list(_all(names, reader.get_record))
    more = [f"{len(found) - _MOST_LISTED} more"] if len(found) > _MOST_LISTED else []
    return [*found[:_MOST_LISTED], *more]


def _all(names: list[str], record: Callable[[str], bytes]) -> Iterator[str]:
    if "archive_format" not in names:
        yield "weights as a pickle, as PyTorch before 2.8 wrote them"
        return
    for name in names:
        if "aotinductor" in name.lower():
            yield f"a compiled library ({name})"
        elif name.startswith(_CONFIGS) and name.endswith(".pt"):
            yield f"a pickle of weights ({name})"
        elif name.startswith(_CONFIGS) and name.endswith(".json"):
            yield from _payloads(name, _parsed(record(name)))
        elif name.startswith("models/"):
            yield from _program(name, _parsed(record(name)))
        elif name.startswith("data/sample_inputs/"):
            yield from _samples(name, record(name))


def _parsed(raw: bytes) -> Any:
    if len(raw) > MOST_JSON:
        raise ValueError(f"a description of more than {MOST_JSON >> 20} MiB")
    return json.loads(raw)


def _payloads(name: str, config: Any) -> Iterator[str]:
    for key, payload in config["config"].items():
        file = payload["path_name"]
        if payload.get("use_pickle") or not re.fullmatch(r"(?:weight|tensor)_\d+", str(file)):
            yield f"{str(key)[:60]!r} as a pickle or an object ({name})"


def _samples(name: str, raw: bytes) -> Iterator[str]:
    import torch

    try:
        torch.load(io.BytesIO(raw), weights_only=True)
    # The restricted reader raises whatever it meets.
    except Exception:
        yield f"example inputs that are not tensors alone ({name})"


def _program(name: str, data: Any) -> Iterator[str]:
    """Walk a description; its keys say which texts are resolved or evaluated."""
    waiting = [data]
    while waiting:
        item = waiting.pop()
        if isinstance(item, dict):
            for key, value in item.items():
                if isinstance(value, str):
                    yield from _text(name, key, value)
                else:
                    waiting.append(value)
        elif isinstance(item, list):
            waiting.extend(item)


def _text(name: str, key: str, value: str) -> Iterator[str]:
    if key in ("target", "as_operator"):
        # Attributes of a module have targets too; those are names of weights.
        if value.startswith(("torch", "_operator", "math", "#")) and (
            not _TARGET.fullmatch(value) or _FILES.match(value)
        ):
            yield f"the function {value[:80]!r} ({name})"
    elif key == "expr_str":
        if not _is_size(value):
            yield f"the expression {value[:80]!r} ({name})"
    elif key in ("in_spec", "out_spec") and "default_factory" in value:
        yield f"a container that imports a module ({name})"


def _is_size(text: str) -> bool:
    """Whether a text is an expression of sizes, which evaluates to nothing else."""
    try:
        tree = ast.parse(text, mode="eval")
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return all(_is_part(node) for node in ast.walk(tree)) and not _texts_outside_symbols(tree)


def _is_part(node: ast.AST) -> bool:
    if isinstance(node, ast.Call):
        return isinstance(node.func, ast.Name) and node.func.id in _HEADS
    if isinstance(node, ast.Name):
        return node.id in _HEADS | _NAMES or bool(re.fullmatch(r"[a-z]{1,3}\d+", node.id))
    if isinstance(node, ast.Constant):
        return isinstance(node.value, bool | int | float | str)
    plain = (ast.Expression, ast.keyword, ast.UnaryOp, ast.BinOp, ast.Tuple, ast.Load)
    return isinstance(node, (*plain, ast.unaryop, ast.operator))


def _texts_outside_symbols(tree: ast.AST) -> bool:
    """SymPy evaluates texts, except those that name a symbol or spell a number."""
    inside = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            first = node.args[0] if node.args else None
            if not isinstance(first, ast.Constant) or not isinstance(first.value, str):
                continue
            head, value = node.func.id, first.value
            if head in ("Symbol", "Dummy") and _SYMBOL.fullmatch(value):
                inside.add(first)
            if head == "Float" and re.fullmatch(r"[-+0-9.e]+", value):
                inside.add(first)
    return any(
        isinstance(node, ast.Constant) and isinstance(node.value, str) and node not in inside
        for node in ast.walk(tree)
    )
