"""Ask OpenVINO itself, node by node, what its ONNX reader converts."""

from __future__ import annotations

import hashlib
import re
import tempfile
from pathlib import Path

import onnx_ir as ir

from edgeinfer.backends.engines import import_openvino
from edgeinfer.convert.lower import microsoft, tabular
from edgeinfer.convert.lower.single import op_name, single, walk
from edgeinfer.convert.lower.tabular import undefined
from edgeinfer.errors import NotAvailableError, Problem, Reason

_KNOWN: dict[tuple[str, bytes], str] = {}
"""What a version of the reader said of a node, by the digest of its model: the search for a
precision writes nearly the same graph over and over."""


class OpenVinoProbe:
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
        self._openvino = openvino
        self.core = openvino.Core()
        self.version = re.split(r"[-+]", str(openvino.__version__))[0]

    def fault(self, node: ir.Node, model: ir.Model) -> str:
        """Return what the reader says against the node; empty when it takes it."""
        data = single(node, model, ranked=True)
        if data is None:
            return ""
        key = self.version, hashlib.blake2b(data, digest_size=16).digest()
        if key not in _KNOWN:
            _KNOWN[key] = self._ask(data, stored=bool(node.domain))
        return _KNOWN[key]

    def lacking(self, model: ir.Model) -> list[ir.Node]:
        """Return the nodes with a definition of ours or the standard's that it does not convert."""
        known = ("", microsoft.DOMAIN, tabular.DOMAIN)
        return [n for _, n in walk(model) if n.domain in known and self.fault(n, model)]

    def problems(self, model: ir.Model) -> list[Problem]:
        """List every node that the reader does not convert."""
        return [
            Problem(name, op_name(node), _reason(fault), self._words(node, fault))
            for name, node in walk(model)
            if (fault := self.fault(node, model))
        ]

    def _ask(self, data: bytes, *, stored: bool) -> str:
        """Read a model of one node; ``stored``: write it and read that, too.

        Of what other domains hold OpenVINO makes operators of its own, of which some cannot be read
        back from a file (``GroupQueryAttention``, 2026.4.1).
        """
        # From a file, because that is how the model is read in the end: the reader has a second
        # implementation for models in memory, and the two convert different operators.
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "model.onnx"
            path.write_bytes(data)
            try:
                model = self.core.read_model(path)
                if stored:
                    self._openvino.save_model(model, path.with_suffix(".xml"), False)
                    self.core.read_model(path.with_suffix(".xml"))
            except RuntimeError as e:
                return " ".join(str(e).split()) or type(e).__name__
        return ""

    def explain(self, error: Exception, model: ir.Model) -> list[Problem]:
        """List the nodes that a failed reading of the whole model names.

        It names a node by its value where it failed, and by its operator where it knows none.
        """
        text = " ".join(str(error).split())
        said = {
            (op, value): _gist(rest)
            for op, value, rest in re.findall(r"<Node\((\w+)\): (.+?)>'(.*?)(?= -- |$)", text)
        }
        unknown = re.findall(
            r"No conversion rule found for operations: ([^ ,]+(?:, [^ ,]+)*)", text
        )
        ops = {re.sub(r".*\.|-\d+$", "", op) for group in unknown for op in group.split(", ")}
        found = []
        for name, node in walk(model):
            labels = {(node.op_type, v.name or "") for v in node.outputs} | {(node.op_type, name)}
            reasons = [said[label] for label in labels if label in said]
            if reasons:
                detail = f"OpenVINO {self.version}: {reasons[0]}"
                found.append(Problem(name, op_name(node), _reason(reasons[0]), detail, _HINT))
            elif node.op_type in ops:
                detail = undefined(node) or f"OpenVINO {self.version} has no conversion for it"
                found.append(Problem(name, op_name(node), "unsupported_op", detail))
        return found or [Problem("#all", "model", "unsupported_op", text[:300])]

    def _words(self, node: ir.Node, fault: str) -> str:
        types = ", ".join(
            v.dtype.name.lower() if v is not None and v.dtype else "none" for v in node.inputs
        )
        if _reason(fault) == "unsupported_op":
            return undefined(node) or f"OpenVINO {self.version} has no conversion for it"
        cause = re.findall(r"Check '(.+?)' failed|Unsupported data type (\w+)", fault)
        said = "; ".join(a or f"type {b}" for a, b in cause[-1:])
        return f"OpenVINO {self.version} does not convert it with ({types})" + (
            f": {said[:160]}" if said else ""
        )


def _reason(fault: str) -> Reason:
    if "No conversion rule" in fault:
        return "unsupported_op"
    if re.search(r"rank has to be known|dynamic rank|rank\(\)\.is_static", fault):
        return "dynamic_shape"
    typed = re.search(r"data type|input type", fault)
    return "unsupported_dtype" if typed else "unsupported_attribute"


_HINT = "fixed input shapes may fold away what the reader stumbles over"


def _gist(text: str) -> str:
    """Return the last sentence of one of OpenVINO's nested messages."""
    text = re.split(r" Summary:", text)[0]
    return re.split(r"GeneralFailure: |OpConversionFailure: |': |:\d+: ", text)[-1].strip()[:160]
