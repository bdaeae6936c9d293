"""Operators of coremltools' MIL builder, called with checked operands and stable names."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from edgeinfer.convert.lower.coreml.counts import Counts
from edgeinfer.convert.lower.coreml.deployment import Deployment, knowing
from edgeinfer.convert.lower.coreml.reach import reach_of
from edgeinfer.convert.lower.coreml.tensor import MAX_RANK, WHOLE, Span, Tensor, limits, sizes_of
from edgeinfer.convert.lower.registry import Refusal
from edgeinfer.types import Array

HELD = {"float32": "fp32", "float16": "fp16", "bool": "bool"}
"""How element types are called in a program; all integers are ``int32``."""

_REFUSALS = (ValueError, TypeError, NotImplementedError, IndexError, KeyError, AssertionError)
"""What the MIL builder raises for operands that an operator does not take."""


def held(dtype: np.dtype[Any]) -> str:
    """Return the program's element type for one of ONNX's.

    Raises:
        Refusal: there is none.
    """
    if dtype.kind in "iu":
        return "int32"
    if dtype.name not in HELD:
        raise Refusal(f"{dtype.name} is not held by Core ML", "unsupported_dtype")
    return HELD[dtype.name]


OVERFLOW = "integers between"
"""How it begins when integers may leave int32."""


class Overflow(Refusal):
    """Integers that may leave int32, unless the model's integer inputs are known to be small."""


class Emitter:
    """Adds operators to the current block of a program.

    Attributes:
        deployment: the oldest system that is to open the package.
        depth: 0 in the function, more inside the body of a conditional or a loop.
        largest: what open sizes can be, by their symbol, as far as it is known.
    """

    def __init__(self, deployment: Deployment) -> None:
        from coremltools.converters.mil import Builder as mb  # noqa: N813  (its usual name)
        from coremltools.converters.mil.mil.ops.registry import SSAOpRegistry

        self.mb: Any = mb
        self.deployment = deployment
        self.depth = 0
        self._versions: Mapping[str, Mapping[int, Any]] = SSAOpRegistry.core_ops
        self._names: dict[str, int] = {}
        self.base = "main"
        self.largest: dict[Any, int] = {}
        self.counts = Counts(self.most)

    def most(self, size: Any) -> int:
        """The largest that a size can be."""
        return size if isinstance(size, int) else self.largest.get(size, WHOLE[1])

    def name(self, base: str) -> str:
        """Return a name that no operator has, made of the letters that Core ML allows."""
        plain = re.sub(r"\W", "_", base, flags=re.ASCII) or "_"
        plain = f"_{plain}" if plain[0].isdigit() else plain
        count = self._names.get(plain, 0)
        self._names[plain] = count + 1
        return self.name(f"{plain}_{count}") if count else plain

    def offers(self, op: str) -> bool:
        """Whether the deployment target knows an operator."""
        versions = self._versions.get(op, {})
        return any(int(v) <= self.deployment.specification for v in versions)

    def require(self, op: str) -> None:
        """Refuse an operator that the deployment target lacks, with the one that has it."""
        if self.offers(op):
            return
        first = min((int(v) for v in self._versions.get(op, {})), default=None)
        newer = None if first is None else knowing(first)
        hint = f"deployment target {newer} or newer" if newer is not None else ""
        words = f"{op} is not known to {self.deployment}"
        raise Refusal(words, "unsupported_op", hint)

    def call(self, op: str, operands: Mapping[str, Any]) -> Any:
        """Add an operator; returns coremltools' variable, or a tuple of them.

        Raises:
            Refusal: the deployment target or the operator does not take this.
        """
        self.require(op)
        number = _number(operands)
        given = {k: self._operand(v, number) for k, v in operands.items() if v is not None}
        try:
            return getattr(self.mb, op)(**given, name=self.name(self.base))
        except _REFUSALS as e:
            text = " ".join(str(e).split())[:200]
            raise Refusal(f"{op}: {text}") from e

    def emit(
        self,
        op: str,
        dtype: Any = None,
        *,
        span: Span | None = None,
        **operands: Any,
    ) -> Tensor:
        """Add an operator with one result.

        Args:
            op: name of the MIL operator.
            dtype: element type of the result; default that of the first tensor.
            span: what its integers lie between, before they are fitted into ``dtype``.
            **operands: by MIL's names: tensors, or plain values that become constants of the
                tensors' floating-point type.
        """
        variable = self.call(op, operands)
        made = self.fitted(self.wrap(variable, _dtype(dtype, operands), span))
        if made.is_float:
            made.reach = reach_of(op, made.dtype, operands)
        return made

    def emit_all(self, op: str, dtypes: Sequence[Any], **operands: Any) -> list[Tensor]:
        """Add an operator with several results."""
        variables = self.call(op, operands)
        variables = variables if isinstance(variables, (list, tuple)) else [variables]
        if len(variables) != len(dtypes):
            raise Refusal(f"{op} gives {len(variables)} results, not {len(dtypes)}")
        made = [self.wrap(v, np.dtype(d)) for v, d in zip(variables, dtypes, strict=True)]
        for part in made:
            if op == "split" and part.is_float:
                part.reach = reach_of(op, part.dtype, operands)
        return made

    def wrap(self, variable: Any, dtype: np.dtype[Any], span: Span | None = None) -> Tensor:
        """Make a tensor of a variable."""
        made = Tensor(dtype, sizes_of(variable), variable, span=span)
        self.counts.see(made.shape)
        return made

    def know_shape(self, x: Tensor, shape: Sequence[Any]) -> None:
        """Tell coremltools what it does not find out: which sizes are those of another tensor."""
        from coremltools.converters.mil.mil import types

        if tuple(x.shape) == tuple(shape):
            return
        x.shape = tuple(shape)
        x.variable._sym_type = types.tensor(x.variable.dtype, x.shape)

    def const(self, value: Any, dtype: Any) -> Tensor:
        """Make a constant."""
        array = np.asarray(value, dtype)
        return Tensor(array.dtype, array.shape, data=array)

    def var(self, x: Tensor) -> Any:
        """Return the variable of a tensor of at most five axes.

        Raises:
            Refusal: it has more, or a constant that cannot be held.
        """
        if x.rank > MAX_RANK:
            raise Refusal(f"rank {x.rank}: Core ML has up to {MAX_RANK} axes", "unsupported_rank")
        return self.physical(x)

    def physical(self, x: Tensor) -> Any:
        """Return the variable that holds a tensor's elements, flattened above five axes."""
        if x.variable is None:
            if x.data is None:
                raise Refusal("its operand was not lowered")
            array = self.plain(x.data)
            array = array.reshape(-1) if x.rank > MAX_RANK else array
            if array.size == 0:
                raise Refusal("tensors without elements do not exist", "dynamic_shape")
            # An array without axes would be another type than what operators make of scalars.
            value = array if array.ndim else array[()]
            made = self.mb.const(val=value, name=self.name(f"{self.base}_const"))
            if self.depth:
                # Another body would not see it.
                return made
            x.variable = made
        return self._as_held(x)

    def plain(self, array: Array) -> Array:
        """Return values in the program's element type.

        Raises:
            Refusal: integers beyond int32, or a type that is not held.
        """
        kind = held(array.dtype)
        if kind != "int32":
            return array
        if array.size and (int(array.min()) < WHOLE[0] or int(array.max()) > WHOLE[1]):
            raise Refusal("a constant is beyond int32", "unsupported_dtype")
        return array.astype(np.int32)

    def kind(self, variable: Any) -> str:
        """Return the program's element type of a variable, e.g. ``int8``."""
        from coremltools.converters.mil.mil import types

        return str(types.builtin_to_string(variable.dtype))

    def _as_held(self, x: Tensor) -> Any:
        """Widen the small integers that quantizing makes."""
        found = self.kind(x.variable) if x.is_integer else ""
        if found in ("", "int32"):
            return x.variable
        return self.mb.cast(x=x.variable, dtype="int32", name=self.name(self.base))

    def fitted(self, x: Tensor) -> Tensor:
        """Let integers wrap as their ONNX type does; small types by hand, int32 by itself.

        Raises:
            Overflow: wider ones may be beyond int32.
        """
        if x.span is None or not x.is_integer:
            return x
        low, high = limits(x.dtype)
        if low <= x.span[0] and x.span[1] <= high:
            return x
        outside = x.span[0] < WHOLE[0] or x.span[1] > WHOLE[1]
        if x.dtype == np.int32:
            return Tensor(x.dtype, x.shape, x.variable, extents=x.extents)
        counted = self.counts.span(x.variable) if outside else None
        if counted is not None and WHOLE[0] <= counted[0] and counted[1] <= WHOLE[1]:
            return Tensor(x.dtype, x.shape, x.variable, span=counted, extents=x.extents)
        if outside or x.dtype.itemsize > 2:
            raise Overflow(
                f"{OVERFLOW} {x.span[0]} and {x.span[1]} may leave int32, the widest that "
                "Core ML has",
                "unsupported_dtype",
            )
        return self._wrapped(x, low, high)

    def _wrapped(self, x: Tensor, low: int, high: int) -> Tensor:
        count = high - low + 1
        moved = self.mb.sub(x=x.variable, y=np.int32(low), name=self.name(self.base))
        rest = self.mb.mod(x=moved, y=np.int32(count), name=self.name(self.base))
        back = self.mb.add(x=rest, y=np.int32(low), name=self.name(self.base))
        return Tensor(x.dtype, x.shape, back, span=(low, high), extents=x.extents)

    def _operand(self, value: Any, number: Any) -> Any:
        if isinstance(value, Tensor):
            return self.var(value)
        if isinstance(value, (bool, str, np.ndarray, np.generic)) or callable(value):
            return value
        if isinstance(value, int):
            return np.int32(value)
        if isinstance(value, float):
            return number(value)
        if isinstance(value, (list, tuple)):
            return self._operands(value, number)
        return value

    def _operands(self, values: Sequence[Any], number: Any) -> Any:
        if any(isinstance(v, Tensor) for v in values):
            return [self._operand(v, number) for v in values]
        if all(isinstance(v, bool) for v in values):
            return np.array(values, np.bool_)
        if all(isinstance(v, (int, np.integer)) for v in values):
            return np.array(values, np.int32)
        if all(isinstance(v, (int, float)) for v in values):
            return np.array(values, number)
        return values


def _tensors(operands: Mapping[str, Any]) -> list[Tensor]:
    found: list[Tensor] = []
    for value in operands.values():
        if isinstance(value, Tensor):
            found.append(value)
        elif isinstance(value, (list, tuple)):
            found.extend(v for v in value if isinstance(v, Tensor))
    return found


def _number(operands: Mapping[str, Any]) -> Any:
    """The floating-point type of plain numbers among the operands."""
    floats = [t.dtype for t in _tensors(operands) if t.is_float]
    return floats[0].type if floats else np.float32


def _dtype(dtype: Any, operands: Mapping[str, Any]) -> np.dtype[Any]:
    if dtype is not None:
        given: np.dtype[Any] = np.dtype(dtype)
        return given
    return _tensors(operands)[0].dtype
