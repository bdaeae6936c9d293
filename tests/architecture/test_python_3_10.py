"""What a device imports runs on Python 3.10, as JetPack 6 has it; `make test-install` runs it."""

from __future__ import annotations

import ast

from tests.architecture.test_layers import DEVICE
from tests.architecture.tree import Module, modules

OLDEST = (3, 10)

NEWER = {
    "asyncio": {"Barrier", "Runner", "TaskGroup", "timeout", "timeout_at"},
    "contextlib": {"chdir"},
    "datetime": {"UTC"},
    "enum": {"EnumCheck", "ReprEnum", "StrEnum", "member", "nonmember", "verify"},
    "hashlib": {"file_digest"},
    "http": {"HTTPMethod"},
    "importlib.resources.abc": {"Traversable"},
    "inspect": {"getmembers_static"},
    "itertools": {"batched"},
    "logging": {"getLevelNamesMapping"},
    "math": {"cbrt", "exp2", "sumprod"},
    "operator": {"call"},
    "sys": {"exception", "monitoring"},
    "tomllib": {"TOMLDecodeError", "load", "loads"},
    "typing": {
        *("LiteralString", "Never", "NotRequired", "Required", "Self", "TypeVarTuple", "Unpack"),
        *("assert_never", "assert_type", "dataclass_transform", "override", "reveal_type"),
    },
}
"""Names of the standard library that came later, by module."""

APART = ("edgeinfer.runtime.serve", "edgeinfer.toml")
"""The server asks for 3.11; the other asks for the version before it imports."""


def _is_of_device(module: Module) -> bool:
    part = module.name.split(".")[1:2]
    return (
        part[:1] != []
        and part[0] in (*DEVICE, "tasks", "comparisons", "cli")
        and not module.name.startswith(APART)
    )


def test_modules_of_a_device_need_nothing_newer() -> None:
    newer = {}
    for module in filter(_is_of_device, modules()):
        ast.parse(module.text, feature_version=OLDEST)
        if found := _newer(module.tree):
            newer[module.name] = found
    assert newer == {}


def _newer(tree: ast.AST) -> list[str]:
    found: list[str] = []
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and _is_typing(node.test):
            continue
        if isinstance(node, ast.ImportFrom):
            late = NEWER.get(node.module or "", set())
            found += [f"{node.module}.{a.name}" for a in node.names if a.name in late]
        elif isinstance(node, ast.Import):
            found += [a.name for a in node.names if a.name == "tomllib"]
        elif (
            isinstance(node, ast.Attribute)
            and isinstance(node.value, ast.Name)
            and node.attr in NEWER.get(node.value.id, set())
        ):
            found.append(f"{node.value.id}.{node.attr}")
        found += _newer(node)
    return found


def _is_typing(test: ast.expr) -> bool:
    return isinstance(test, ast.Name) and test.id == "TYPE_CHECKING"


def test_what_is_newer_is_found() -> None:
    hidden = "if TYPE_CHECKING:\n    from typing import Self\n"
    text = f"from typing import Self\n{hidden}asyncio.timeout(1)"
    assert _newer(ast.parse(text)) == ["typing.Self", "asyncio.timeout"]
