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

from jinja2 import TemplateError, TemplateSyntaxError, nodes, pass_context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace
from jinja2.visitor import NodeTransformer

BASE, PER_CHARACTER, MOST = 1 << 24, 64, 1 << 27
"""What a rendering may take, how much more for each character that it is given, and in all."""

STEP = 32
"""What a turn of a loop or a call takes, in characters."""

_PART = 8
"""What a name or an operator in the body of a loop takes, each turn."""

MOST_BITS = 4096
"""Of an integer."""

MOST_NUMBER = 1 << 16
"""What a width, an indentation or a count may be."""

MOST_DEPTH = 100
"""Lists in lists."""

_WIDE = re.compile(
    r"[%)][-#0+ ]*(?:\*|\d{3}|\d{0,2}\.(?:\*|\d{3}))"
    r"|\{[^{}]*(?:\{|\.\d{3}|:[^{}]{0,6}\d{3})"
)
"""Of a form: a width beyond reason, or one that is taken from elsewhere."""
_FIELD = 500
"""Characters that a number may take in a form, with all of its width."""
_REPR = 10
"""Characters that Python may write for one of a text in a list."""

_CHEAP = ("abs", "attr", "count", "length", "default", "d", "first", "last", "items")
_TEXTS = (
    *("capitalize", "center", "e", "escape", "float", "forceescape", "format", "indent", "int"),
    *("join", "lower", "replace", "round", "safe", "string", "title", "tojson", "trim"),
    *("truncate", "upper", "wordcount"),
)
_METHODS: Mapping[type, frozenset[str]] = {
    str: frozenset(
        {
            *("capitalize", "casefold", "center", "count", "endswith", "find", "format", "index"),
            *("isalnum", "isalpha", "isascii", "isdecimal", "isdigit", "islower", "isnumeric"),
            *("isspace", "istitle", "isupper", "join", "ljust", "lower", "lstrip", "partition"),
            *("removeprefix", "removesuffix", "replace", "rfind", "rindex", "rjust", "rpartition"),
            *("rsplit", "rstrip", "split", "splitlines", "startswith", "strip", "swapcase"),
            *("title", "upper", "zfill"),
        }
    ),
    Mapping: frozenset({"copy", "get", "items", "keys", "values"}),
    list: frozenset({"copy", "count", "index"}),
    tuple: frozenset({"count", "index"}),
    **dict.fromkeys((int, float, bytes, range, type, MappingView), frozenset()),
}
"""What values can do: all of it is charged for, so that nothing else is there."""
_SEARCHES = frozenset(
    {"count", "find", "in", "index", "partition", "replace", "split"}
    | {"rfind", "rindex", "rpartition", "rsplit"}
)
_SPLITS = frozenset({"rsplit", "split", "splitlines"})
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
        _left.set([min(BASE + PER_CHARACTER * used, MOST)])
        yield
    finally:
        _left.reset(token)


def weigh(value: object) -> tuple[int, int]:
    """Charge for all that a value holds; what is shared is counted each time, as texts do it.

    Returns:
        What was charged, and how deep its lists are.
    """
    waiting = [(value, 0)]
    whole = deepest = 0
    while waiting:
        each, depth = waiting.pop()
        inner: Iterable[object] = ()
        if isinstance(each, str):
            amount = len(each) + 1
        elif isinstance(each, int):
            amount = 8 + each.bit_length() // 3
        elif isinstance(each, range):
            amount = STEP * (len(each) + 1)
        elif isinstance(each, Mapping):
            amount, inner = STEP * (len(each) + 1), (*each.keys(), *each.values())
        elif isinstance(each, list | tuple | set | frozenset):
            amount, inner = STEP * (len(each) + 1), each
        elif isinstance(each, MappingView):
            amount, inner = STEP * (len(each) + 1), list(cast("Iterable[object]", each))
        else:
            amount = STEP
        charge(amount)
        if depth > MOST_DEPTH:
            raise TemplateError(f"more than {MOST_DEPTH} lists in lists")
        whole, deepest = whole + amount, max(deepest, depth)
        waiting += [(one, depth + 1) for one in inner]
    return whole, deepest


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
        own = (_step, _turns, _concat, _weighed, _in)
        self.filters |= {act.__name__: act for act in own}
        for name, act in self.tests.items():
            self.tests[name] = _counted(name, cast("Callable[..., Any]", act), _of_tests)
        del self.globals["lipsum"]
        self.globals["namespace"] = _Namespace

    def add(self, name: str, act: Callable[..., str]) -> None:
        """Replace a filter that makes texts."""
        self.filters[name] = _counted(name, act, _of_texts)

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        tree: nodes.Template = _Counting().visit(super()._parse(source, name, filename))
        return tree

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        """Whether a value has it for templates: what is not charged for is not there."""
        known = next((names for kind, names in _METHODS.items() if isinstance(obj, kind)), None)
        if known is not None and attr not in known:
            return False
        return super().is_safe_attribute(obj, attr, value)

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        """Charge for what comes out, before it does."""
        if operator == "%" and isinstance(left, str):
            _charge_form(left, right)
        elif operator == "+":
            charge(sum(map(_bulk, (left, right))))
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

        def counted(*args: Any, **kwargs: Any) -> str:
            _charge_form(value.__self__, (args, kwargs))
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
        elif isinstance(owner, Mapping):
            # To look something up, all of a key is read.
            weigh((args, kwargs))
            if getattr(__obj, "__name__", "") == "copy":
                charge(STEP * len(owner))
        else:
            # Some compare, to the last part; others hold, and show.
            weigh((owner if isinstance(owner, list | tuple) else None, args, kwargs))
        return super().call(__context, __obj, *args, **kwargs)


def _check_product(left: Any, right: Any) -> None:
    if isinstance(left, int) and isinstance(right, int):
        _check_bits(left.bit_length() + right.bit_length())
        return
    for one, other in ((left, right), (right, left)):
        if isinstance(one, Sized) and isinstance(other, int):
            charge(_bulk(one) * max(other, 0))


def _bulk(value: object) -> int:
    """What a copy of a text or of a list without what is in it takes."""
    if isinstance(value, str):
        return len(value)
    return 8 * len(value) if isinstance(value, Sized) else 0


def _check_bits(bits: int) -> None:
    if bits > MOST_BITS:
        raise TemplateError(f"a number of more than {MOST_BITS} bits")


def _charge_form(form: str, given: object) -> None:
    """Charge for a form that is filled in: each field may show all that is given."""
    charge(len(form))
    if _WIDE.search(form):
        raise TemplateError(f"a form with widths beyond reason: {form[:40]!r}")
    held, _ = weigh(given)
    charge((form.count("%") + form.count("{")) * (_FIELD + _REPR * held))


def _charge_search(name: str, text: object, parts: Iterable[object]) -> None:
    """Charge for looking for a text in another: backwards, or in a short one, it is a product."""
    longest = max((len(part) for part in parts if isinstance(part, str)), default=0)
    if isinstance(text, str) and (name.startswith("r") or len(text) < _SHORT):
        charge(len(text) * longest // STEP)


_SHORT = 30_000
"""Characters of a text from which on Python's search takes time in proportion, of any part."""


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
    if name in _SEARCHES:
        _charge_search(name, args[0], given)
    if name in _SPLITS:
        charge(8 * size)
    if name == "format":
        _charge_form(str(args[0]), given)
    elif name == "int" and size > MOST_BITS // 4:
        raise TemplateError(f"int: a number of {size} digits")
    elif name == "indent":
        charge(size * max([*numbers, *texts, 8]))
    elif name == "tojson":
        held, depth = weigh(args[0])
        charge(_REPR * held + held // STEP * depth * max([*numbers, *texts, 1]))
    elif name in ("replace", "join"):
        lists = [len(v) for v in given if isinstance(v, Sized)]
        charge((size + 1) * max([*lists, 1]))
    elif name in ("e", "escape", "forceescape", "string"):
        charge(_REPR * size)
    else:
        charge(max([*numbers, 0]))


_WHOLE = frozenset({"lower", "upper", "filter", "test"})
"""Tests that walk the whole text that they are given, if only to look it up."""

_REMAINDERS = frozenset({"odd", "even", "divisibleby"})
"""Tests that divide; the remainder of a text is a form that is filled in."""


def _of_tests(name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
    """Charge for a test that looks at more than what kind of value it has."""
    charge(STEP)
    if len(args) > 1 or kwargs or name in _WHOLE:
        weigh((args, kwargs))
    if name in _REMAINDERS and not all(isinstance(arg, int | float) for arg in args):
        raise TemplateError(f"{name}: expected a number")
    if name == "in" and len(args) > 1:
        _charge_search(name, args[1], args[:1])


def _of_lists(name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
    """Charge for an operation on lists."""
    size = len(args[0]) if isinstance(args[0], Sized) else 0
    charge(STEP * (size + 1))
    # A path of an attribute is walked for each of them, and what stands in for it is held.
    each, _ = weigh((args[1:], kwargs))
    charge(size * each)
    numbers = [v for v in (*args[1:], *kwargs.values()) if isinstance(v, int)]
    if any(abs(number) > MOST_NUMBER for number in numbers):
        raise TemplateError(f"{name}: a number beyond {MOST_NUMBER}")
    charge(max([*numbers, 0]))
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


@pass_context
def _in(context: Any, value: Any, where: Any) -> bool:
    """Charge for looking for something, and look."""
    weigh(value)
    weigh(where)
    _charge_search("in", where, (value,))
    return value in where


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
        first = node.ops[0]
        if len(node.ops) == 1 and first.op in ("in", "notin"):
            found = _filtered(node.expr, "_in", first.expr)
            return found if first.op == "in" else nodes.Not(found, lineno=node.lineno)
        if any(each.op in ("in", "notin") for each in node.ops):
            raise TemplateSyntaxError("write `in` in brackets of its own", node.lineno)
        node.expr = _filtered(node.expr, "_weighed")
        for each in node.ops:
            each.expr = _filtered(each.expr, "_weighed")
        return node

    def visit_Name(self, node: nodes.Name) -> nodes.Node:  # noqa: N802
        # Tuples and dictionaries of what a macro was given beyond its parameters.
        is_made = node.ctx == "load" and node.name in ("varargs", "kwargs")
        return _filtered(node, "_weighed") if is_made else node

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


def _parts(node: nodes.Node) -> int:
    """Return how many operations a turn does, but for those of loops in it: they have their own."""
    count, waiting = 0, [node]
    while waiting:
        each = waiting.pop()
        count += isinstance(each, nodes.Expr) and not isinstance(each, nodes.Literal)
        count += len(each.items) if isinstance(each, nodes.List) else 0
        inner = ("body",) if isinstance(each, nodes.For | nodes.Macro | nodes.CallBlock) else ()
        waiting += each.iter_child_nodes(exclude=inner)
    return count


def _filtered(node: nodes.Expr, name: str, *args: nodes.Expr) -> nodes.Filter:
    return nodes.Filter(node, name, list(args), [], None, None, lineno=node.lineno)


def _charged(body: list[nodes.Node]) -> nodes.Output:
    static = sum(len(data.data) for each in body for data in [*each.find_all(nodes.TemplateData)])
    static += _PART * sum(map(_parts, body))
    line = body[0].lineno if body else 1
    empty = nodes.Const("", lineno=line)
    step = _filtered(empty, "_step", nodes.Const(static, lineno=line))
    return nodes.Output([step], lineno=line)
