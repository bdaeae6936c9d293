"""The operations that can be computed, by name, with what each takes.

A kernel's signature is the operation's: its parameters have MIL's names and defaults. Their
annotations say what a kernel wants: arrays, or Python's own numbers and strings.
"""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable
from typing import Any, TypeAlias, TypeVar

import numpy as np

from edgeinfer.records import dataclass
from edgeinfer.types import Array

Ints: TypeAlias = tuple[int, ...]
Bools: TypeAlias = tuple[bool, ...]
Arrays: TypeAlias = list[Array]
Kernel = TypeVar("Kernel", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class Entry:
    """A kernel with what it takes.

    Attributes:
        call: the kernel.
        convert: for each parameter, how its value is handed over.
        required: parameters without a default.
        wants_outputs: it takes the declared types of its outputs as ``out``.
    """

    call: Callable[..., Any]
    convert: dict[str, Callable[[Any], Any]]
    required: frozenset[str]
    wants_outputs: bool


OPS: dict[str, Entry] = {}


def op(*names: str) -> Callable[[Kernel], Kernel]:
    """Register a kernel under the names of the operations that it computes.

    Raises:
        ValueError: a name is taken, or a parameter has no annotation that is known.
    """

    def register(kernel: Kernel) -> Kernel:
        entry = _entry(kernel)
        for name in names:
            if name in OPS:
                raise ValueError(f"there is a kernel for {name!r} already")
            OPS[name] = entry
        return kernel

    return register


def _entry(kernel: Callable[..., Any]) -> Entry:
    hints = typing.get_type_hints(kernel)
    parameters = inspect.signature(kernel).parameters
    convert = {name: _converter(hints[name]) for name in parameters if name != "out"}
    required = frozenset(
        n for n, p in parameters.items() if n != "out" and p.default is inspect.Parameter.empty
    )
    return Entry(kernel, convert, required, "out" in parameters)


def _converter(hint: Any) -> Callable[[Any], Any]:
    options = [h for h in typing.get_args(hint) if h is not type(None)]
    wanted = options[0] if type(None) in typing.get_args(hint) else hint
    known: list[tuple[Any, Callable[[Any], Any]]] = [
        (Array, _array),
        (Arrays, list),
        (int, lambda v: int(_one(v))),
        (float, lambda v: float(_one(v))),
        (bool, lambda v: bool(_one(v))),
        (str, lambda v: str(_one(v))),
        (Ints, lambda v: tuple(int(n) for n in _flat(v))),
        (Bools, lambda v: tuple(bool(n) for n in _flat(v))),
        (Any, lambda v: v),
    ]
    for kind, converter in known:
        if wanted == kind:
            return converter
    raise ValueError(f"a kernel has a parameter with the annotation {hint}")


def _array(value: Any) -> Array:
    if not isinstance(value, np.ndarray):
        raise TypeError(f"expected a tensor, received {type(value).__name__}")
    return value


def _one(value: Any) -> Any:
    return value.item() if isinstance(value, np.ndarray) else value


def _flat(value: Any) -> list[Any]:
    if isinstance(value, list):
        return [_one(v) for v in value]
    return list(np.atleast_1d(value).ravel().tolist())
