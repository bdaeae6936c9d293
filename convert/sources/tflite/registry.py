"""The tables of operators that can be read: builtin ones, and custom ones by their names.

A reader takes the graph that is being built, the operator's options and its operands, and returns
the real values of its results. Its signature is TFLite's: operands in the file's order, those that
may be left out default to None.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, TypeVar

from edgeinfer.records import dataclass

_F = TypeVar("_F", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class Reader:
    """One entry.

    Attributes:
        function: the reader.
        least: operands that must be there.
        most: operands it takes at most; None for any number.
    """

    function: Callable[..., Any]
    least: int
    most: int | None


class ReaderTable:
    """Readers by the schema's name of the operator."""

    def __init__(self) -> None:
        self._readers: dict[str, Reader] = {}

    def reader(self, *codes: str) -> Callable[[_F], _F]:
        """Register a function for one or more operators.

        Raises:
            ValueError: an operator has a reader already.
        """

        def register(function: _F) -> _F:
            operands = list(inspect.signature(function).parameters.values())[2:]
            least = sum(p.default is p.empty and p.kind is not p.VAR_POSITIONAL for p in operands)
            open_ended = any(p.kind is p.VAR_POSITIONAL for p in operands)
            made = Reader(function, least, None if open_ended else len(operands))
            for code in codes:
                if code in self._readers:
                    raise ValueError(f"{code} has a reader already")
                self._readers[code] = made
            return function

        return register

    def find(self, code: str) -> Reader | None:
        """Return the reader of an operator."""
        return self._readers.get(code)

    def codes(self) -> frozenset[str]:
        """Every operator that can be read."""
        return frozenset(self._readers)


READERS = ReaderTable()

CUSTOM = ReaderTable()
