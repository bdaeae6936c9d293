"""What operators take: onnx's definitions, and ONNX Runtime's of its own operators."""

from __future__ import annotations

import contextlib
from functools import cache
from typing import Any

import onnx
import onnx_ir as ir

from edgeinfer.backends.engines import has_onnxruntime, import_onnxruntime
from edgeinfer.convert.passes.infra import DEFAULT_DOMAINS

_TREES, _MICROSOFT = "ai.onnx.ml", "com.microsoft"


def schema_of(node: ir.Node, version: int | None) -> Any:
    """Return the definition of a node's operator; None where nobody here has one.

    Args:
        node: Node of a model.
        version: Version of the operators of its domain.
    """
    if node.domain == _MICROSOFT:
        return _theirs().get(node.op_type)
    if version is None or node.domain not in (*DEFAULT_DOMAINS, _TREES):
        return None
    domain = "" if node.domain in DEFAULT_DOMAINS else node.domain
    # Some writers use an operator before the version that has it.
    for asked in ((node.op_type, version, domain), (node.op_type, domain)):
        with contextlib.suppress(onnx.defs.SchemaError):
            return onnx.defs.get_schema(*asked)
    return None


@cache
def _theirs() -> dict[str, Any]:
    """Operators of ONNX Runtime's own, in the newest version that it has."""
    if not has_onnxruntime():
        return {}
    # Not part of what it documents: some version may be without it.
    state = getattr(import_onnxruntime().capi, "onnxruntime_pybind11_state", None)
    listed: list[Any] = getattr(state, "get_all_operator_schema", list)()
    found = sorted((s for s in listed if s.domain == _MICROSOFT), key=lambda s: s.since_version)
    return {schema.name: schema for schema in found}
