"""Half precision with single-precision islands."""

from __future__ import annotations

from collections.abc import Set as AbstractSet

import onnx_ir as ir

from edgeinfer.errors import Notes


def halve(model: ir.Model, keep: AbstractSet[str], notes: Notes) -> None:
    raise NotImplementedError
