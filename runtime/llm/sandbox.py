"""Jinja for templates of strangers: no files, no attributes of Python, and work that is counted.

jinja2's own sandbox keeps a program from reaching anything; it does not keep it from never ending
or from taking all memory. Here every turn of a loop, every call and every character that is made
is charged to a budget, before it is made, and what exceeds it is an error of the template.
"""

from __future__ import annotations

import contextlib
import functools
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, MappingView, Sized
from contextvars import ContextVar
from typing import Any, cast

from jinja2 import TemplateError, nodes, pass_context
from jinja2.runtime import LoopContext
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace
from jinja2.visitor import NodeTransformer

BASE, PER_CHARACTER = 1 << 24, 64
"""What a rendering may take, and how much more for each character that it is given."""

STEP = 32
"""What a turn of a loop or a call takes, in characters."""

MOST_BITS = 4096
"""Of an integer."""

MOST_NUMBER = 1 << 16
"""What a width, an indentation or a count may be."""

_WIDE = re.compile(r"\d{5,}|\*|\{[^{}]*\{")
"""Of a form of numbers: widths beyond reason, or taken from elsewhere."""

_CHEAP = ("abs", "attr", "count", "length", "default", "d", "first", "last", "items", "safe")
_TEXTS = (
    *("capitalize", "center", "e", "escape", "float", "forceescape", "format", "indent", "int"),
    *("join", "lower", "replace", "round", "string", "striptags", "title", "tojson", "trim"),
    *("truncate", "upper", "wordcount", "wordwrap", "filesizeformat"),
)
_LISTS = (
    *("batch", "dictsort", "groupby", "list", "map", "max", "min", "reject", "rejectattr"),
    *("reverse", "select", "selectattr", "slice", "sort", "sum", "unique"),
)
_left: ContextVar[list[int]] = ContextVar("left")


def charge(amount: int) -> None:
    """Take from the budget of this rendering.

    Raises:
        TemplateError: nothing is left.
    """
    left = _left.get()
    left[0] -= amount
    if left[0] < 0:
        raise TemplateError("the template takes more steps or memory than any text needs")


@contextlib.contextmanager
def budget(given: object = ()) -> Iterator[None]:
    """Give what is rendered within a budget, by the size of what it is given."""
    token = _left.set([1 << 40])
    try:
        weigh(given)
        used = (1 << 40) - _left.get()[0]
        _left.set([BASE + PER_CHARACTER * used])
        yield
    finally:
        _left.reset(token)


def weigh(value: object) -> None:
    """Charge for all that a value holds; what is shared is counted each time, as texts do it."""
    waiting = [value]
    while waiting:
        each = waiting.pop()
        if isinstance(each, str):
            charge(len(each) + 1)
        elif isinstance(each, Mapping):
            charge(STEP * (len(each) + 1))
            waiting += [*each.keys(), *each.values()]
        elif isinstance(each, list | tuple | set | frozenset):
            charge(STEP * (len(each) + 1))
            waiting += each
        elif isinstance(each, MappingView):
            charge(STEP * (len(each) + 1))
            waiting += list(cast("Iterable[object]", each))
        else:
            charge(8)


class _Namespace(Namespace):
    """What it holds may hold others several times, and be endless as a text."""

    def __repr__(self) -> str:
        return "<Namespace>"


class Environment(ImmutableSandboxedEnvironment):
    """A sandbox that counts."""

    intercepted_binops = frozenset({"+", "*", "**", "%"})

    def __init__(self, **options: Any) -> None:
        super().__init__(finalize=_finalize, **options)
        known = self.filters
        self.filters = {name: known[name] for name in _CHEAP}
        self.filters |= {name: _counted(name, known[name], _of_texts) for name in _TEXTS}
        self.filters |= {name: _counted(name, known[name], _of_lists) for name in _LISTS}
        self.filters |= {"_step": _step, "_turns": _turns, "_concat": _concat, "_weighed": _weighed}
        del self.globals["lipsum"]
        self.globals["namespace"] = _Namespace

    def add(self, name: str, act: Callable[..., str]) -> None:
        """Replace a filter that makes texts."""
        self.filters[name] = _counted(name, act, _of_texts)

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        tree: nodes.Template = _Counting().visit(super()._parse(source, name, filename))
        return tree

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        """Leave out numbers' methods and bytes: they make any size of a few digits."""
        if isinstance(obj, int | float | bytes) or (isinstance(obj, str) and attr == "encode"):
            return False
        return super().is_safe_attribute(obj, attr, value)

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        """Charge for what comes out, before it does."""
        if operator == "%" and isinstance(left, str):
            _check_form(left)
            weigh(right)
        elif operator == "+":
            charge(sum(len(v) for v in (left, right) if isinstance(v, Sized)))
        elif operator == "*":
            _check_product(left, right)
        elif operator == "**" and isinstance(left, int) and isinstance(right, int):
            _check_bits(left.bit_length() * abs(right))
        return super().call_binop(context, operator, left, right)

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        """Check a form before it is filled in."""
        act = super().wrap_str_format(value)
        if act is None:
            return None
        form = value.__self__

        def counted(*args: Any, **kwargs: Any) -> str:
            given = (*args[0].values(),) if value.__name__ == "format_map" else args
            _of_texts("format", (form, *given), kwargs)
            return str(act(*args, **kwargs))

        return counted

    def call(__self, __context: Any, __obj: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N805
        """Charge for a call; methods of texts may make more than they were given."""
        charge(STEP)
        owner = getattr(__obj, "__self__", None)
        if isinstance(owner, str):
            args = tuple(_listed(arg) for arg in args)
            _of_texts(getattr(__obj, "__name__", ""), (owner, *args), kwargs)
        elif isinstance(__obj, type):
            # Like a list: what holds another twice is twice as large.
            weigh((args, kwargs))
        elif isinstance(owner, LoopContext | list | tuple):
            # They compare, to the last part.
            weigh(args if isinstance(owner, LoopContext) else (owner, args))
        else:
            # To look something up, all of a key is read.
            weigh([arg for arg in args if isinstance(arg, tuple)])
        return super().call(__context, __obj, *args, **kwargs)


def _check_product(left: Any, right: Any) -> None:
    if isinstance(left, int) and isinstance(right, int):
        _check_bits(left.bit_length() + right.bit_length())
        return
    for one, other in ((left, right), (right, left)):
        if isinstance(one, Sized) and isinstance(other, int):
            charge(len(one) * max(other, 0))


def _check_bits(bits: int) -> None:
    if bits > MOST_BITS:
        raise TemplateError(f"a number of more than {MOST_BITS} bits")


def _check_form(form: str) -> None:
    charge(len(form))
    if _WIDE.search(form):
        raise TemplateError(f"a form with widths beyond reason: {form[:40]!r}")


def _listed(value: Any) -> Any:
    """What is gone once it was looked at, as a list."""
    return list(_turns(None, value)) if isinstance(value, Iterator) else value


def _of_texts(name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
    """Charge for an operation on texts."""
    weigh(args)
    weigh(kwargs)
    given = [*args[1:], *kwargs.values()]
    numbers = [v for v in given if isinstance(v, int)]
    if any(abs(number) > MOST_NUMBER for number in numbers):
        raise TemplateError(f"{name}: a number beyond {MOST_NUMBER}")
    texts = [len(v) for v in given if isinstance(v, str)]
    size = len(args[0]) if isinstance(args[0], Sized) else 1
    if name == "format":
        _check_form(str(args[0]))
        # Each field may name any of them.
        charge(size * max(texts, default=1))
    elif name in ("indent", "expandtabs", "tojson", "wordwrap"):
        charge(size * max([*numbers, *texts, 8]))
    elif name in ("replace", "translate", "join"):
        lists = [len(v) for v in given if isinstance(v, Sized)]
        tables = [len(str(v)) for each in given if isinstance(each, Mapping) for v in each.values()]
        charge((size + 1) * max([*lists, *tables, 1]))
    else:
        charge(max([*numbers, 0]))


def _of_lists(name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
    """Charge for an operation on lists."""
    size = len(args[0]) if isinstance(args[0], Sized) else 0
    charge(STEP * (size + 1))
    numbers = [v for v in (*args[1:], *kwargs.values()) if isinstance(v, int)]
    if any(abs(number) > MOST_NUMBER for number in numbers):
        raise TemplateError(f"{name}: a number beyond {MOST_NUMBER}")
    charge(max([*numbers, 0]))
    if name in ("select", "selectattr", "reject", "rejectattr", "map"):
        for _ in range(size):
            weigh(args[1:])
    if name in ("sort", "unique", "groupby", "min", "max", "dictsort", "sum"):
        weigh(args)
    if name == "sum" and any(isinstance(v, Sized) for v in (*args[0], *kwargs.values())):
        raise TemplateError("sum: expected numbers")


def _counted(name: str, act: Callable[..., Any], cost: Callable[..., None]) -> Callable[..., Any]:
    """Let a filter charge first."""

    @functools.wraps(act)
    def counted(*args: Any, **kwargs: Any) -> Any:
        # Some are given the context or the environment first.
        own = 1 if hasattr(act, "jinja_pass_arg") else 0
        given = tuple(_listed(arg) for arg in args[own:])
        cost(name, given, kwargs)
        made = act(*args[:own], *given, **kwargs)
        return _turns(None, made) if isinstance(made, Iterator) else made

    return counted


@pass_context
def _finalize(context: Any, value: Any) -> Any:
    weigh(value)
    return value


@pass_context
def _step(context: Any, value: str, characters: int) -> str:
    """Charge for a turn or a call with so much plain text in it."""
    charge(STEP + characters)
    return value


@pass_context
def _turns(context: Any, values: Iterable[Any]) -> Any:
    """Charge for each as it is taken."""
    if isinstance(values, Sized):
        charge(STEP * len(values))
        return values
    return _each(values)


def _each(values: Iterable[Any]) -> Iterator[Any]:
    for value in values:
        charge(STEP)
        yield value


@pass_context
def _concat(context: Any, values: list[Any]) -> str:
    weigh(values)
    return "".join(map(str, values))


@pass_context
def _weighed(context: Any, value: Any) -> Any:
    weigh(value)
    return value


class _Counting(NodeTransformer):
    """Puts the charges into a template."""

    def visit_For(self, node: nodes.For) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        node.iter = _filtered(cast("nodes.Expr", node.iter), "_turns")
        node.body = [_charged(node.body), *node.body]
        return node

    def visit_Macro(self, node: nodes.Macro) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        node.body = [_charged(node.body), *node.body]
        return node

    visit_CallBlock = visit_Macro  # noqa: N815

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        return _filtered(nodes.List(node.nodes, lineno=node.lineno), "_concat")

    def visit_Compare(self, node: nodes.Compare) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        node.expr = _filtered(node.expr, "_weighed")
        return node

    def visit_Name(self, node: nodes.Name) -> nodes.Node:  # noqa: N802
        # Tuples and dictionaries of what a macro was given beyond its parameters.
        is_made = node.ctx == "load" and node.name in ("varargs", "kwargs")
        return _filtered(node, "_weighed") if is_made else node

    def visit_Test(self, node: nodes.Test) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        if node.args and node.name != "divisibleby":
            node.node = _filtered(node.node, "_weighed")
            node.args = [_filtered(arg, "_weighed") for arg in node.args]
        return node

    def visit_Getitem(self, node: nodes.Getitem) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        is_slice = isinstance(node.arg, nodes.Slice) and node.ctx == "load"
        if not isinstance(node.arg, nodes.Slice | nodes.Const):
            node.arg = _filtered(node.arg, "_weighed")
        return _filtered(node, "_weighed") if is_slice else node

    def visit_List(self, node: nodes.List) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        # What holds other lists several times may be small, and endless as a text.
        is_plain = all(isinstance(item, nodes.Const) for item in node.items)
        return node if is_plain else _filtered(node, "_weighed")

    def visit_Tuple(self, node: nodes.Tuple) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        return _filtered(node, "_weighed") if node.ctx == "load" else node

    def visit_Dict(self, node: nodes.Dict) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        return _filtered(node, "_weighed")


def _filtered(node: nodes.Expr, name: str, *args: nodes.Expr) -> nodes.Filter:
    return nodes.Filter(node, name, list(args), [], None, None, lineno=node.lineno)


def _charged(body: list[nodes.Node]) -> nodes.Output:
    static = sum(len(data.data) for each in body for data in [*each.find_all(nodes.TemplateData)])
    line = body[0].lineno if body else 1
    empty = nodes.Const("", lineno=line)
    step = _filtered(empty, "_step", nodes.Const(static, lineno=line))
    return nodes.Output([step], lineno=line)
