"""Ask OpenVINO itself, node by node, what its ONNX reader converts."""

from __future__ import annotations

import re
import tempfile
from pathlib import Path

import onnx_ir as ir

from edgeinfer.backends.engines import import_openvino
from edgeinfer.convert.lower.single import op_name, single, walk
from edgeinfer.errors import NotAvailableError, Problem, Reason


class Probe:
    """Remembers the answer for each distinct node.

    Raises:
        NotAvailableError: OpenVINO is not installed.
    """

    def __init__(self) -> None:
        try:
            openvino = import_openvino()
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
        data = single(node, model, ranked=True)
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
        # From a file, because that is how the model is read in the end: the reader has a second
        # implementation for models in memory, and the two convert different operators.
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "model.onnx"
            path.write_bytes(data)
            try:
                self.core.read_model(path)
            except RuntimeError as e:
                return " ".join(str(e).split()) or type(e).__name__
        return ""

    def explain(self, error: Exception, model: ir.Model) -> list[Problem]:
        """List the nodes that a failed reading of the whole model names, by their operators."""
        text = " ".join(str(error).split())
        named = re.findall(r"(?:operations|for): ((?:[\w.]+(?:-\d+)?(?:, )?)+)", text)
        ops = {re.sub(r".*\.|-\d+$", "", op) for group in named for op in group.split(", ")}
        found = [
            Problem(name, op_name(node), _reason(text), self._words(node, text))
            for name, node in walk(model)
            if node.op_type in ops
        ]
        return found or [Problem("#all", "model", "unsupported_op", text[:300])]

    def _words(self, node: ir.Node, fault: str) -> str:
        types = ", ".join(
            v.dtype.name.lower() if v is not None and v.dtype else "none" for v in node.inputs
        )
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
