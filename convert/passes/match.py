"""Patterns over a graph, written as Python expressions.

::

    x = var("x")
    gelu = 0.5 * x * (op.Erf(x / math.sqrt(2)) + 1)

A product is compared in normal form, a coefficient and a set of powers, so every order of
operands, ``x / 2`` against ``0.5 * x``, ``x * x`` against ``Pow(x, 2)`` and ``Reciprocal(Sqrt(v))``
against ``1 / Sqrt(v)`` are one pattern. Values inside a match must have no use outside it.
"""

from __future__ import annotations

import abc
import itertools
from collections.abc import Callable, Iterator
from dataclasses import field, replace
from typing import ClassVar

import onnx_ir as ir

from edgeinfer.convert.passes.infra import constant
from edgeinfer.records import dataclass

COMMUTATIVE = frozenset({"Add", "Mul", "Max", "Min"})
_MAX_NODES = 16
"""A product is opened to this many nodes: no pattern has more, and a model may chain thousands."""
_ROUNDINGS = {
    ir.DataType.FLOAT: 2.0**-21,
    ir.DataType.DOUBLE: 2.0**-50,
    ir.DataType.FLOAT16: 2.0**-9,
}
"""A literal that went through one to four roundings of its type is still that literal."""


def scalar(
    value: ir.Value | None, beside: ir.Value | None = None, *, integer: bool = False
) -> float | None:
    """Return a one-element constant that does not raise the rank of its neighbour.

    Args:
        value: the constant; only a floating one, unless ``integer`` allows both.
        beside: the other operand.
        integer: take an integer too, as ``Pow`` does for its exponent.
    """
    tensor = constant(value)
    if tensor is None or tensor.size != 1:
        return None
    if not (tensor.dtype.is_floating_point() or (integer and tensor.dtype.is_integer())):
        return None
    rank = len(tensor.shape)
    if rank and (beside is None or beside.shape is None or rank > len(beside.shape)):
        return None
    return float(tensor.numpy().item())


def close(found: float, wanted: float, dtype: ir.DataType | None) -> bool:
    """Say whether a constant is ``wanted``, rounded (a few times) to its type."""
    allowed = _ROUNDINGS.get(dtype or ir.DataType.FLOAT, 0.0)
    return found == wanted or abs(found - wanted) <= allowed * abs(wanted)


@dataclass(frozen=True, slots=True)
class Match:
    """What a pattern bound.

    Attributes:
        values: variables and named inner values.
        numbers: captured constants.
        nodes: nodes that the replacement makes superfluous.
        shared: matched nodes that others may use too.
    """

    values: dict[str, ir.Value] = field(default_factory=dict)
    numbers: dict[str, float] = field(default_factory=dict)
    nodes: tuple[ir.Node, ...] = ()
    shared: tuple[ir.Node, ...] = ()

    def with_value(self, name: str, value: ir.Value) -> Match:
        """Bind a variable."""
        return replace(self, values={**self.values, name: value})

    def with_nodes(self, *nodes: ir.Node) -> Match:
        """Add matched nodes."""
        return replace(self, nodes=(*self.nodes, *nodes))


@dataclass(frozen=True, slots=True)
class Number:
    """A constant to capture; multiply or add it like a number."""

    name: str

    def __mul__(self, other: Pattern) -> ProductPattern:
        return ProductPattern(self, ((other, 1.0),))


def _accept(wanted: float | Number, found: float, like: ir.Value, state: Match) -> Match | None:
    if isinstance(wanted, Number):
        held = state.numbers.get(wanted.name, found)
        numbers = {**state.numbers, wanted.name: found}
        return replace(state, numbers=numbers) if close(found, held, like.dtype) else None
    return state if close(found, wanted, like.dtype) else None


class Pattern(abc.ABC):
    """Matches a value; arithmetic on patterns builds larger ones."""

    roots: ClassVar[frozenset[str]] = frozenset()

    @abc.abstractmethod
    def match(self, value: ir.Value, state: Match) -> Iterator[Match]:
        """Yield every way in which the value fits."""

    def named(self, name: str) -> Named:
        """Bind the matched value to a name; a second use must meet the same value."""
        return Named(name, self)

    def __mul__(self, other: float | Pattern) -> ProductPattern:
        left, right = _product(self), _product(other)
        if isinstance(left.coefficient, Number) or isinstance(right.coefficient, Number):
            raise TypeError("a captured coefficient must be the outermost factor")
        return ProductPattern(left.coefficient * right.coefficient, (*left.powers, *right.powers))

    __rmul__ = __mul__

    def __truediv__(self, other: float) -> ProductPattern:
        return self * (1.0 / other)

    def __pow__(self, exponent: float) -> ProductPattern:
        return ProductPattern(1.0, ((self, exponent),))

    def __add__(self, other: float | Number | Pattern) -> Pattern:
        return (
            OpPattern("Add", (self, other)) if isinstance(other, Pattern) else Offset(self, other)
        )

    def __sub__(self, other: Pattern) -> OpPattern:
        return OpPattern("Sub", (self, other))


def _product(pattern: float | Pattern) -> ProductPattern:
    if isinstance(pattern, ProductPattern):
        return pattern
    if isinstance(pattern, Pattern):
        return ProductPattern(1.0, ((pattern, 1.0),))
    return ProductPattern(float(pattern), ())


@dataclass(frozen=True)
class Anything(Pattern):
    """Matches every value."""

    def match(self, value: ir.Value, state: Match) -> Iterator[Match]:  # noqa: D102
        yield state


@dataclass(frozen=True)
class Named(Pattern):
    """A pattern whose value is bound to a name."""

    name: str
    pattern: Pattern

    @property
    def roots(self) -> frozenset[str]:  # type: ignore[override]  # noqa: D102
        return self.pattern.roots

    def match(self, value: ir.Value, state: Match) -> Iterator[Match]:  # noqa: D102
        held = state.values.get(self.name)
        if held is not None:
            if held is value:
                yield state
            return
        for found in self.pattern.match(value, state):
            yield found.with_value(self.name, value)


@dataclass(frozen=True)
class SharedPattern(Pattern):
    """A pattern whose nodes may be used elsewhere too; they stay while they are."""

    pattern: Pattern

    def match(self, value: ir.Value, state: Match) -> Iterator[Match]:  # noqa: D102
        for found in self.pattern.match(value, state):
            added = found.nodes[len(state.nodes) :]
            yield replace(found, nodes=state.nodes, shared=(*found.shared, *added))


@dataclass(frozen=True)
class OneOf(Pattern):
    """The first alternatives that fit."""

    patterns: tuple[Pattern, ...]

    @property
    def roots(self) -> frozenset[str]:  # type: ignore[override]  # noqa: D102
        return frozenset().union(*(p.roots for p in self.patterns))

    def match(self, value: ir.Value, state: Match) -> Iterator[Match]:  # noqa: D102
        for pattern in self.patterns:
            yield from pattern.match(value, state)


@dataclass(frozen=True)
class OpPattern(Pattern):
    """One node; a number among the inputs is a scalar constant."""

    op_type: str
    inputs: tuple[float | Number | Pattern, ...]
    where: Callable[[ir.Node], bool] | None = None

    @property
    def roots(self) -> frozenset[str]:  # type: ignore[override]  # noqa: D102
        return frozenset({self.op_type})

    def match(self, value: ir.Value, state: Match) -> Iterator[Match]:  # noqa: D102
        node = value.producer()
        if node is None or node.domain or node.op_type != self.op_type or value.index() != 0:
            return
        found = _operands(node)
        if len(found) != len(self.inputs) or (self.where is not None and not self.where(node)):
            return
        orders = {found, found[::-1]} if node.op_type in COMMUTATIVE else {found}
        for order in sorted(orders, key=lambda o: o != found):
            yield from self._inputs(order, 0, state.with_nodes(node))

    def _inputs(self, found: tuple[ir.Value | None, ...], at: int, state: Match) -> Iterator[Match]:
        if at == len(found):
            yield state
            return
        value, wanted = found[at], self.inputs[at]
        if value is None:
            return
        if isinstance(wanted, Pattern):
            for rest in wanted.match(value, state):
                yield from self._inputs(found, at + 1, rest)
            return
        beside = next((v for v in found if v is not value), None)
        number = scalar(value, beside)
        accepted = None if number is None else _accept(wanted, number, value, state)
        if accepted is not None:
            yield from self._inputs(found, at + 1, accepted)


@dataclass(frozen=True)
class Offset(Pattern):
    """A value plus a scalar constant, also written as a subtraction."""

    pattern: Pattern
    offset: float | Number
    roots: ClassVar[frozenset[str]] = frozenset({"Add", "Sub"})

    def match(self, value: ir.Value, state: Match) -> Iterator[Match]:  # noqa: D102
        node = value.producer()
        if node is None or node.domain or node.op_type not in self.roots:
            return
        left, right = node.inputs
        sides = [(left, right, 1.0 if node.op_type == "Add" else -1.0)]
        if node.op_type == "Add":
            sides.append((right, left, 1.0))
        for inner, other, sign in sides:
            number = scalar(other, inner)
            if number is None or inner is None:
                continue
            accepted = _accept(self.offset, sign * number, inner, state.with_nodes(node))
            if accepted is not None:
                yield from self.pattern.match(inner, accepted)


@dataclass(frozen=True)
class ProductPattern(Pattern):
    """A coefficient times powers of patterns, compared in normal form."""

    coefficient: float | Number
    powers: tuple[tuple[Pattern, float], ...]
    roots: ClassVar[frozenset[str]] = frozenset({"Mul", "Div"})

    def match(self, value: ir.Value, state: Match) -> Iterator[Match]:  # noqa: D102
        alone = [e for _, e in self.powers] == [1.0]
        found = _Monomial(scalars_only=alone)
        found.expand(value, 1.0, top=True)
        powers = [(v, e) for v, e in found.powers.items()]
        if len(powers) != len(self.powers):
            return
        start = _accept(self.coefficient, found.coefficient, value, state.with_nodes(*found.nodes))
        if start is None:
            return
        for order in itertools.permutations(powers):
            if all(e == w for (_, e), (_, w) in zip(order, self.powers, strict=True)):
                yield from self._factors([v for v, _ in order], 0, start)

    def _factors(self, values: list[ir.Value], at: int, state: Match) -> Iterator[Match]:
        if at == len(values):
            yield state
            return
        for found in self.powers[at][0].match(values[at], state):
            yield from self._factors(values, at + 1, found)


@dataclass(slots=True)
class _Monomial:
    """The normal form of a product; a value with several uses stays one factor."""

    scalars_only: bool = False
    coefficient: float = 1.0
    powers: dict[ir.Value, float] = field(default_factory=dict)
    nodes: list[ir.Node] = field(default_factory=list)

    def expand(self, value: ir.Value, exponent: float, *, top: bool = False) -> None:
        node = value.producer()
        single = top or (len(value.uses()) == 1 and not value.is_graph_output())
        single = single and len(self.nodes) < _MAX_NODES
        parts = _parts(node) if node is not None and single else None
        if self.scalars_only and parts and not any(isinstance(p, float) for p, _ in parts):
            parts = None
        if node is None or parts is None or (exponent % 1 and len(parts) > 1):
            self.powers[value] = self.powers.get(value, 0.0) + exponent
            return
        self.nodes.append(node)
        for part, power in parts:
            if isinstance(part, float):
                self.coefficient *= part ** (power * exponent)
            elif power in (1.0, -1.0):
                self.expand(part, power * exponent)
            else:
                self.powers[part] = self.powers.get(part, 0.0) + power * exponent


def _parts(node: ir.Node) -> list[tuple[ir.Value | float, float]] | None:
    """Return what the node multiplies, each with its exponent; None when it does not."""
    if node.domain or None in node.inputs:
        return None
    first = node.inputs[0] if node.inputs else None
    if first is None:
        return None
    if node.op_type in ("Mul", "Div"):
        second = node.inputs[1]
        power = 1.0 if node.op_type == "Mul" else -1.0
        a, b = scalar(first, second), scalar(second, first)
        if a == 0.0 or b == 0.0 or second is None:
            return None
        return [(first if a is None else a, 1.0), (second if b is None else b, power)]
    if node.op_type == "Reciprocal":
        return [(first, -1.0)]
    if node.op_type == "Sqrt":
        return [(first, 0.5)]
    if node.op_type == "Pow":
        exponent = scalar(node.inputs[1], first, integer=True)
        return None if exponent is None else [(first, exponent)]
    return None


def _operands(node: ir.Node) -> tuple[ir.Value | None, ...]:
    inputs = list(node.inputs)
    while inputs and inputs[-1] is None:
        inputs.pop()
    return tuple(inputs)


class _Ops:
    """``op.Erf(x)`` is the pattern of one Erf node."""

    def __getattr__(self, op_type: str) -> Callable[..., OpPattern]:
        def make(
            *inputs: float | Number | Pattern, where: Callable[[ir.Node], bool] | None = None
        ) -> OpPattern:
            return OpPattern(op_type, inputs, where)

        return make


op = _Ops()


def var(name: str) -> Named:
    """Return a variable: any value, the same one wherever the name is used."""
    return Named(name, Anything())
