"""Which operators of a TFLite file a delegate takes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Protocol

from edgeinfer.backends.base import Coverage
from edgeinfer.backends.engines import know_bfloat16
from edgeinfer.backends.operators import (
    Elsewhere,
    Operator,
    OperatorProfile,
    Placement,
    Role,
    role_of,
    timed,
)
from edgeinfer.types import Feeds

KERNELS = "TFLite's own kernels"
NO_CLOCK = "LiteRT's Python package has no profiler: where operators run is known, not their times"

_ROLES: dict[str, Role] = {"TRANSPOSE": "transpose", "CAST": "convert"}
_ROLES |= {"QUANTIZE": "convert", "DEQUANTIZE": "convert"}


def coverage(interpreter: Any, unit: str = "XNNPACK") -> Coverage:
    """Look at an interpreter whose tensors are allocated.

    Args:
        interpreter: Interpreter of LiteRT.
        unit: name of the delegate, for the report.
    """
    own = [(op["op_name"], taken) for op, taken in _taken(interpreter)]
    left = tuple(sorted(name for name, taken in own if not taken))
    partitions = sum(op["op_name"] == "DELEGATE" for op in interpreter._get_ops_details())
    return Coverage(unit, len(own), partitions, left)


def placement(interpreter: Any, unit: str) -> Placement:
    """Say which operators a delegate leaves to the CPU."""
    found = list(operators(interpreter, unit))
    reason = f"{unit} has not taken it"
    left = tuple(Elsewhere(o.name, o.kind, "CPU", reason) for o in found if o.unit != unit)
    return Placement(unit, len(found), left, "LiteRT's list of delegated operators")


def operators(interpreter: Any, unit: str) -> Iterator[Operator]:
    """List the operators of the main graph, each with what runs it; named by what they give."""
    know_bfloat16()
    tensors = {t["index"]: t for t in interpreter.get_tensor_details()}
    for op, taken in _taken(interpreter):
        given = [tensors[int(o)] for o in op["outputs"] if int(o) in tensors]
        name = str(given[0]["name"]) if given else str(op["index"])
        precision = _precision(given[0]) if given else ""
        kind = str(op["op_name"])
        where = unit if taken else KERNELS
        yield Operator(name, kind, where, None, precision, role_of(kind, _ROLES), (name,))


class Listing(Protocol):
    """A loaded file that lists its operators."""

    def run(self, feeds: Feeds) -> object:
        """Run once."""
        ...

    def operators(self) -> list[Operator]:
        """Say what runs each."""
        ...

    def close(self) -> None:
        """Free it."""
        ...


def profile(file: Listing, feeds: Feeds, runs: int) -> OperatorProfile:
    """Run a loaded file, list its operators, and close it."""
    try:
        file.run(feeds)
        from statistics import median

        us = median(timed(lambda: file.run(feeds), runs))
        return OperatorProfile("", tuple(file.operators()), runs, us, us, NO_CLOCK)
    finally:
        file.close()


def _precision(tensor: Mapping[str, Any]) -> str:
    kind = tensor["dtype"]
    return str(getattr(kind, "__name__", kind))


def _taken(interpreter: Any) -> Iterator[tuple[dict[str, Any], bool]]:
    """Yield each operator of the file, and whether a delegate runs it."""
    ops = interpreter._get_ops_details()
    handed = {int(o) for op in ops if op["op_name"] == "DELEGATE" for o in op["outputs"]}

    def is_outside(index: int) -> bool:
        # What a delegate hands out is its own; what stays inside it was given no memory.
        if index in handed:
            return False
        try:
            interpreter.tensor(index)()
        except ValueError:
            return False
        return True

    for op in ops:
        if op["op_name"] != "DELEGATE":
            yield op, not all(is_outside(int(o)) for o in op["outputs"])
