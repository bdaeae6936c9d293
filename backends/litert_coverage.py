"""Which operators of a TFLite file a delegate takes."""

from __future__ import annotations

from typing import Any

from edgeinfer.backends.base import Coverage


def coverage(interpreter: Any, unit: str = "XNNPACK") -> Coverage:
    """Look at an interpreter whose tensors are allocated.

    Args:
        interpreter: of LiteRT.
        unit: name of the delegate, for the report.
    """
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

    own = [op for op in ops if op["op_name"] != "DELEGATE"]
    left = [op["op_name"] for op in own if all(is_outside(int(o)) for o in op["outputs"])]
    return Coverage(unit, len(own), len(ops) - len(own), tuple(sorted(left)))
