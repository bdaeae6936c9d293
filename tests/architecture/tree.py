"""The source files of the package, parsed once."""

from __future__ import annotations

import ast
import gc
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src" / "edgeinfer"
FOLDERS = ("convert", "backends", "runtime", "kernels", "profiles")


@dataclass(frozen=True, slots=True)
class Import:
    """One import statement's module.

    Attributes:
        module: absolute name of the module, or of the name in it.
        line: where.
        deferred: inside a function, or for type checkers only.
    """

    module: str
    line: int
    deferred: bool


@dataclass(frozen=True)
class Module:
    """A source file."""

    name: str
    path: Path
    text: str
    tree: ast.Module

    @property
    def where(self) -> str:
        """Path as people know it, without the links of src/."""
        return str(self.path.resolve().relative_to(ROOT))

    @cached_property
    def imports(self) -> tuple[Import, ...]:
        """Every import in it."""
        return tuple(_imports(self.tree, deferred=False))


@cache
def modules() -> tuple[Module, ...]:
    """Return every module of the package, by name."""
    files = [p for p in SOURCE.glob("**/*.py") if "__pycache__" not in p.parts]
    for folder in FOLDERS:  # glob does not follow links
        files += [SOURCE / p.relative_to(ROOT) for p in (ROOT / folder).glob("**/*.py")]
    # Ten million objects stay: looking for garbage among them takes six times as long as they do.
    gc.disable()
    try:
        return tuple(_parse(path) for path in sorted(set(files)))
    finally:
        gc.freeze()
        gc.enable()


def python_files() -> Iterator[Path]:
    """Yield every Python file that is kept, also those outside of the package."""
    for folder in (*FOLDERS, "src", "tests", "examples", "benchmarks"):
        yield from (ROOT / folder).glob("**/*.py")


def statements(node: ast.AST) -> Iterator[ast.AST]:
    """Yield every statement and handler below a node; expressions hold none."""
    for child in _statements(node):
        yield child
        yield from statements(child)


def _parse(path: Path) -> Module:
    parts = ["edgeinfer", *path.relative_to(SOURCE).with_suffix("").parts]
    text = path.read_text()
    name = ".".join(parts).removesuffix(".__init__")
    return Module(name, path, text, ast.parse(text, str(path)))


def _imports(node: ast.AST, *, deferred: bool) -> Iterator[Import]:
    inside = deferred or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    for child in _statements(node):
        if isinstance(child, ast.Import):
            yield from (Import(a.name, child.lineno, inside) for a in child.names)
        elif isinstance(child, ast.ImportFrom):
            base = "." * child.level + (child.module or "")
            yield from (Import(f"{base}.{a.name}", child.lineno, inside) for a in child.names)
        else:
            yield from _imports(child, deferred=inside or _is_type_checking(child))


def _statements(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the statements right in another, and what holds statements."""
    for name in ("body", "orelse", "finalbody", "handlers", "cases"):
        found = getattr(node, name, ())
        yield from found if isinstance(found, list) else ()


def _is_type_checking(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and ast.unparse(node.test) in (
        "TYPE_CHECKING",
        "typing.TYPE_CHECKING",
    )
