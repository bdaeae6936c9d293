"""Ask OpenVINO itself, node by node, what its ONNX reader converts."""

from __future__ import annotations

import io
import re

import onnx_ir as ir

from edgeinfer.convert.lower.single import op_name, single, walk
from edgeinfer.errors import NotAvailableError, Problem, Reason


class Probe:
    """Remembers the answer for each distinct node.

    Raises:
        NotAvailableError: OpenVINO is not installed.
    """

    def __init__(self) -> None:
        try:
            import openvino
        except ImportError as e:
            raise NotAvailableError(
                "format 'openvino_ir': openvino is needed to write it; "
                "pip install 'edgeinfer[openvino]'"
            ) from e
        self.core = openvino.Core()
        self.version = re.split(r"[-+]", str(openvino.__version__))[0]
        self._answers: dict[bytes, str] = {}

    def fault(self, node: ir.Node, model: ir.Model) -> str:
        """Return what the reader says against the node; empty when it takes it."""
        data = single(node, model)
        if data is None:
            return ""
        if data not in self._answers:
            self._answers[data] = self._ask(data)
        return self._answers[data]

    def lacking(self, model: ir.Model) -> list[ir.Node]:
        """Return the nodes of the default domain that the reader does not convert."""
        return [n for _, n in walk(model) if not n.domain and self.fault(n, model)]

    def problems(self, model: ir.Model) -> list[Problem]:
        """List every node that the reader does not convert."""
        return [
            Problem(name, op_name(node), _reason(fault), self._words(node, fault))
            for name, node in walk(model)
            if (fault := self.fault(node, model))
        ]

    def _ask(self, data: bytes) -> str:
        try:
            self.core.read_model(io.BytesIO(data))
        except Exception as e:
            return " ".join(str(e).split()) or type(e).__name__
        return ""

    def _words(self, node: ir.Node, fault: str) -> str:
        types = ", ".join(v.dtype.name.lower() if v and v.dtype else "none" for v in node.inputs)
        if _reason(fault) == "unsupported_op":
            return f"OpenVINO {self.version} has no conversion for it"
        cause = re.findall(r"Check '(.+?)' failed|Unsupported data type (\w+)", fault)
        said = "; ".join(a or f"type {b}" for a, b in cause[-1:])
        return f"OpenVINO {self.version} does not convert it with ({types})" + (
            f": {said[:160]}" if said else ""
        )


def _reason(fault: str) -> Reason:
    if "No conversion rule" in fault:
        return "unsupported_op"
    return "unsupported_dtype" if "data type" in fault else "unsupported_attribute"
