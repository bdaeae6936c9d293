"""Lowering operator by operator: a decorator, a table and the driver that binds nodes to functions.

A lowering takes the target's graph, then the ONNX inputs in order, then the attributes that it
reads, as keyword-only parameters with ONNX's names; everything else about a node is known from
ONNX's schema. ``Const`` marks an operand that must be known now; an optional operand defaults to
None; ``*inputs`` takes the rest. A node whose other attributes differ from their defaults is
refused::

    ops = Registry("toy", dtypes=frozenset({ir.DataType.FLOAT}), max_rank=4)

    @ops.lower("Clip")
    def clip(g: Toy, x: T, min: Const | None = None, max: Const | None = None) -> T: ...
"""

from __future__ import annotations

import inspect
import logging
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, Generic, Protocol, TypeVar

import onnx_ir as ir

from edgeinfer.backends.checks import one_line
from edgeinfer.convert.families import RANDOM
from edgeinfer.convert.lower.signature import (
    REQUIRED,
    FormalInput,
    OperatorSignature,
    of_operator,
    plain,
)
from edgeinfer.convert.lower.single import op_name
from edgeinfer.convert.lower.tabular import undefined
from edgeinfer.errors import Problem, Reason, UnsupportedError
from edgeinfer.records import dataclass
from edgeinfer.types import Array

_log = logging.getLogger("edgeinfer")

_STRINGS = "strings, and the format has numbers only"
_SEQUENCES = "a sequence or optional value, and the format has tensors only"
_TRAINING = "a step of training, and the format has models that are trained"
_DRAWS = "random numbers, of which no two engines draw the same (--random input|zero|SEED)"
_FORBIDDEN: Mapping[str, str] = MappingProxyType({
    **dict.fromkeys(
        ("RegexFullMatch", "StringConcat", "StringNormalizer", "StringSplit"), _STRINGS
    ),
    **dict.fromkeys(
        (
            *("ConcatFromSequence", "Optional", "OptionalGetElement", "OptionalHasElement"),
            *("SequenceAt", "SequenceConstruct", "SequenceEmpty", "SequenceErase"),
            *("SequenceInsert", "SequenceLength", "SequenceMap", "SplitToSequence"),
        ),
        _SEQUENCES,
    ),
    **dict.fromkeys(("Adagrad", "Adam", "Gradient", "Momentum"), _TRAINING),
    **dict.fromkeys(RANDOM, _DRAWS),
    "ImageDecoder": "files of images, and the format has tensors only: decode them before",
})  # fmt: skip
"""What no format of these has a place for, whatever is lowered."""

_WITHOUT_EFFECT = frozenset({
    # They follow from an operand's shape.
    *("kernel_shape", "hidden_size"),
    # Usual activations have none; those that have are read by their names.
    *("activation_alpha", "activation_beta"),
    # Only the second result of MaxPool depends on it.
    "storage_order",
    # Only training reads them.
    *("momentum", "seed"),
    # They say in which precision to compute, or what becomes of numbers that no format here has.
    *("softmax_precision", "stash_type", "precision", "saturate", "round_mode"),
    # A result whose order is not requested may have one.
    "sorted",
})  # fmt: skip
"""Attributes that a lowering need not name."""

T = TypeVar("T")
_Made = TypeVar("_Made", covariant=True)
_F = TypeVar("_F", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True, eq=False)
class Const:
    """An operand whose value is known."""

    name: str
    array: Array


class Refusal(Exception):  # noqa: N818  (not an error of the program: a finding about a node)
    """Raised by a lowering for a node that the target cannot express."""

    def __init__(
        self, detail: str, reason: Reason = "unsupported_attribute", hint: str = ""
    ) -> None:
        self.detail, self.reason, self.hint = detail, reason, hint
        super().__init__(detail)


class LoweringGraph(Protocol[_Made]):
    """What the driver needs of a target's builder; lowerings use whatever else it offers."""

    def input(self, value: ir.Value) -> _Made:
        """Add a model input."""
        ...

    def constant(self, value: ir.Value) -> _Made:
        """Add an initializer; called once for each that a lowering takes as a tensor."""
        ...


@dataclass(frozen=True, slots=True)
class Lowering:
    """One entry of a registry.

    Attributes:
        op: Name of the operator.
        domain: Its domain.
        function: Takes the target's graph, the operands, and the attributes that it names.
        dtypes: Element types that its tensors may have.
        max_rank: Highest rank of a tensor; None for any.
        signature: Inputs and attributes by ONNX's schema.
        reads: Attributes that the function names.
        consts: Inputs that must be known now.
    """

    op: str
    domain: str
    function: Callable[..., Any]
    dtypes: frozenset[ir.DataType]
    max_rank: int | None
    signature: OperatorSignature
    reads: frozenset[str]
    consts: frozenset[str]


class Registry:
    """The lowerings of one target.

    Args:
        target: name for the messages.
        dtypes: element types that tensors may have, unless a lowering says otherwise.
        max_rank: highest rank of a tensor; None for any.
        lacking: why the format has no place for an operator, by its name.
    """

    def __init__(
        self,
        target: str,
        *,
        dtypes: frozenset[ir.DataType],
        max_rank: int | None = None,
        lacking: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self.target, self.dtypes, self.max_rank = target, dtypes, max_rank
        self.lacking = lacking
        self._entries: dict[tuple[str, str], Lowering] = {}

    def lower(
        self,
        op: str,
        *,
        domain: str = "",
        dtypes: frozenset[ir.DataType] | None = None,
        max_rank: int | None = None,
    ) -> Callable[[_F], _F]:
        """Register a function for an operator.

        Raises:
            ValueError: the operator is taken, or its schema is another.
        """

        def register(function: _F) -> _F:
            parameters = list(inspect.signature(function).parameters.values())[1:]
            named = [p for p in parameters if p.kind is inspect.Parameter.KEYWORD_ONLY]
            inputs = [p for p in parameters if p not in named]
            signature = of_operator(op, domain, inputs, named)
            pairs = zip(inputs, signature.inputs, strict=False)
            consts = {formal.name for p, formal in pairs if _is_const(p, function)}
            self.add(
                op, function, signature, [p.name for p in named], consts,
                domain=domain, dtypes=dtypes, max_rank=max_rank,
            )  # fmt: skip
            return function

        return register

    def add(
        self,
        op: str,
        function: Callable[..., Any],
        signature: OperatorSignature,
        reads: Iterable[str],
        consts: Iterable[str],
        *,
        domain: str = "",
        dtypes: frozenset[ir.DataType] | None = None,
        max_rank: int | None = None,
    ) -> None:
        """Register a function whose attributes and constant operands are listed.

        Raises:
            ValueError: the operator is taken.
        """
        if (domain, op) in self._entries:
            taken = self._entries[domain, op].function.__qualname__
            raise ValueError(f"{self.target}: {op} is taken by {taken}")
        self._entries[domain, op] = Lowering(
            op,
            domain,
            function,
            self.dtypes if dtypes is None else dtypes,
            self.max_rank if max_rank is None else max_rank,
            signature,
            frozenset(reads),
            frozenset(consts),
        )

    def find(self, op: str, domain: str = "") -> Lowering | None:
        """Return the entry of an operator."""
        return self._entries.get((domain, op))

    def __iter__(self) -> Iterator[Lowering]:
        return iter(self._entries.values())


def _is_const(parameter: inspect.Parameter, function: Callable[..., Any]) -> bool:
    # Other annotations may name types that are imported for type checkers only.
    note = parameter.annotation
    if isinstance(note, str):
        return "Const" in {part.strip() for part in note.split("|")}
    return note is Const or Const in typing.get_args(note)


class Driver(Generic[T]):
    """Lowers a whole graph; ``problems`` has every node that could not be.

    A lowering whose results differ in cost finds in ``node`` which of them anyone reads.
    """

    def __init__(self, registry: Registry, graph: LoweringGraph[T]) -> None:
        self.registry, self.graph = registry, graph
        self.values: dict[ir.Value, T] = {}
        self.problems: list[Problem] = []
        self.node: ir.Node | None = None

    def run(self, model: ir.Model) -> dict[ir.Value, T]:
        """Lower every node and return the target's tensor of each value.

        Raises:
            UnsupportedError: with all problems of the graph.
        """
        for value in model.graph.inputs:
            if value.const_value is None:
                self.values[value] = self.graph.input(value)
        self.lower_nodes(model.graph)
        if self.problems:
            raise UnsupportedError(self.registry.target, self.problems)
        return self.values

    def lower_nodes(self, nodes: Iterable[ir.Node]) -> None:
        """Lower nodes in their order; what fails is added to ``problems``."""
        for index, node in enumerate(nodes):
            self._node(node, node.name or f"#{index}")

    def _node(self, node: ir.Node, name: str) -> None:
        entry = self.registry.find(node.op_type, node.domain)
        if entry is None:
            why = self.registry.lacking.get(node.op_type) or undefined(node)
            why = why or _FORBIDDEN.get(node.op_type) or "no lowering for it"
            self._problem(node, name, Refusal(why, "unsupported_op"))
            return
        faults = [*_operand_faults(entry, node), *_attribute_faults(entry, node)]
        for fault in faults:
            self._problem(node, name, fault)
        known = [self._is_known(v) for v in node.inputs]
        if faults or not all(known):
            # What depends on a refused node is still checked, but cannot be built.
            return
        self.node = node
        try:
            given = _attributes(entry, node)
            result = entry.function(self.graph, *self._operands(entry, node), **given)
        except Refusal as refusal:
            self._problem(node, name, refusal)
            return
        except OverflowError:
            # Formats count in 32 bits; NumPy refuses to make such a number of a larger one.
            self._problem(node, name, Refusal("a number of more than 32 bits"))
            return
        except (ArithmeticError, LookupError, TypeError, ValueError) as error:
            # A form that nobody foresaw, most likely one that no engine takes either.
            _log.debug("%s: node %r", self.registry.target, name, exc_info=error)
            what = f"{type(error).__name__}: {one_line(error)}"
            self._problem(
                node, name, Refusal(f"inputs and attributes do not fit together ({what})")
            )
            return
        results = result if isinstance(result, tuple) else (result,)
        wanted = [v for v in node.outputs if v.name]
        if len(results) < len(wanted):
            raise TypeError(f"{entry.function.__qualname__}: {len(results)} results for {wanted}")
        self.values.update(zip(node.outputs, results, strict=False))

    def _is_known(self, value: ir.Value | None) -> bool:
        return value is None or value.const_value is not None or value in self.values

    def _operands(self, entry: Lowering, node: ir.Node) -> list[Any]:
        operands: list[Any] = []
        for formal, value in _pairs(entry, node):
            if value is None:
                operands.append(None)
            elif formal.name in entry.consts and value.const_value is not None:
                operands.append(Const(value.name or "", value.const_value.numpy()))
            else:
                if value not in self.values:
                    self.values[value] = self.graph.constant(value)
                operands.append(self.values[value])
        return operands

    def _problem(self, node: ir.Node, name: str, fault: Refusal) -> None:
        self.problems.append(Problem(name, op_name(node), fault.reason, fault.detail, fault.hint))


def _pairs(entry: Lowering, node: ir.Node) -> Iterator[tuple[FormalInput, ir.Value | None]]:
    inputs = entry.signature.inputs
    for index, value in enumerate(node.inputs):
        if index < len(inputs) or entry.signature.variadic:
            yield inputs[min(index, len(inputs) - 1)], value


def _operand_faults(entry: Lowering, node: ir.Node) -> Iterator[Refusal]:
    inputs = entry.signature.inputs
    if len(node.inputs) > len(inputs) and not entry.signature.variadic:
        yield Refusal(f"takes {len(inputs)} inputs, has {len(node.inputs)}")
    for index, formal in enumerate(inputs):
        missing = index >= len(node.inputs) or node.inputs[index] is None
        if formal.required and missing:
            yield Refusal(f"needs its input {formal.name!r}")
    for formal, value in _pairs(entry, node):
        if value is None:
            continue
        if formal.name in entry.consts:
            if value.const_value is None:
                yield Refusal(f"input {formal.name!r} must be constant", "requires_constant")
            continue
        yield from _tensor_faults(entry, value)
    for value in node.outputs:
        if value.name:
            yield from _tensor_faults(entry, value)


def _tensor_faults(entry: Lowering, value: ir.Value) -> Iterator[Refusal]:
    if value.dtype is not None and value.dtype not in entry.dtypes:
        known = ", ".join(sorted(d.name.lower() for d in entry.dtypes))
        found = value.dtype.name.lower()
        yield Refusal(f"{value.name!r} is {found}; takes {known}", "unsupported_dtype")
    if entry.max_rank is not None and value.shape is not None:
        rank = len(value.shape)
        if rank > entry.max_rank:
            words = f"{value.name!r} has rank {rank}; takes up to {entry.max_rank}"
            yield Refusal(words, "unsupported_rank")


def _attribute_faults(entry: Lowering, node: ir.Node) -> Iterator[Refusal]:
    defaults = entry.signature.attributes
    for name, attribute in node.attributes.items():
        if name not in defaults:
            yield Refusal(f"attribute {name!r} is not expressible")
        elif name not in entry.reads | _WITHOUT_EFFECT:
            found = plain(attribute)
            if defaults[name] is None or found != defaults[name]:
                yield Refusal(f"{name}={found}")
    for name, default in defaults.items():
        if default is REQUIRED and name not in node.attributes:
            yield Refusal(f"needs its attribute {name!r}")


def _attributes(entry: Lowering, node: ir.Node) -> dict[str, Any]:
    given = {name: plain(a) for name, a in node.attributes.items() if name in entry.reads}
    return {name: entry.signature.attributes[name] for name in entry.reads} | given
