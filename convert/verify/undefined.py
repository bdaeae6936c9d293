"""Floats that a model makes integers of: beyond the type, ONNX leaves open what comes out."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import onnx_ir as ir
from onnx_ir.convenience import get_const_tensor

from edgeinfer.convert.passes.infra import is_op
from edgeinfer.convert.verify.locate import save_for_engines
from edgeinfer.convert.verify.submodel import extract
from edgeinfer.convert.verify.witness import Abstains, OnnxRuntime
from edgeinfer.types import Feeds

_WHOLE = frozenset({
    *(ir.DataType.INT32, ir.DataType.INT64, ir.DataType.UINT32, ir.DataType.UINT64),
})  # fmt: skip
"""Narrower ones wrap around in every engine, as their casts go by way of these."""


class Undefined:
    """Tells whether inputs have a model cast floats that its integers do not hold."""

    def __init__(self, model: ir.Model) -> None:
        """Look for casts whose operands hang on inputs."""
        self._model = model
        self._casts = {
            str(v.name): (v, to) for n in model.graph if (v := _floats(n)) for to in [_to(n)]
        }
        self._session: OnnxRuntime | None = None
        self.note = ""
        """Why nobody can tell; empty where somebody can."""

    def why(self, feeds: Feeds) -> str:
        """Say which floats leave which type; empty where none does, or nobody can tell."""
        if not self._casts:
            return ""
        try:
            found = self._opened().run(feeds)
        except Abstains as e:
            self._casts = {}
            self.note = f"whether a cast leaves its integers is not known: onnxruntime: {e}"
            return ""
        for name, (_, to) in self._casts.items():
            info = np.iinfo(to.numpy())
            values = found[name]
            inside = (values > info.min - 1.0) & (values < info.max + 1.0)
            if values.dtype.kind == "f" and not inside.all():
                return f"ONNX leaves open what a cast of {name!r} to {to.name.lower()} gives there"
        return ""

    def _opened(self) -> OnnxRuntime:
        if self._session is None:
            outputs = [v for v, _ in self._casts.values()]
            part = extract(self._model, list(self._model.graph.inputs), outputs, {})
            with tempfile.TemporaryDirectory(prefix="edgeinfer-") as folder:
                self._session = OnnxRuntime(save_for_engines(part, Path(folder)))
        return self._session


def _floats(node: ir.Node) -> ir.Value | None:
    """Return what a node makes integers of."""
    x = node.inputs[0] if is_op(node, "Cast") and node.inputs else None
    if x is None or x.dtype not in (None, ir.DataType.FLOAT, ir.DataType.DOUBLE):
        return None
    return x if get_const_tensor(x) is None and _to(node) in _WHOLE else None


def _to(node: ir.Node) -> ir.DataType:
    return ir.DataType(node.attributes["to"].as_int())
