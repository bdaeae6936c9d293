"""What is left of control flow: nothing that could be written; each is named with its reason."""

from __future__ import annotations

from typing import Any

from edgeinfer.convert.lower.registry import Refusal
from edgeinfer.convert.lower.tvm.branches import obstacle
from edgeinfer.convert.lower.tvm.builder import Builder, Tensor
from edgeinfer.convert.lower.tvm.registry import ALL, OPS


@OPS.lower("If", since=16, dtypes=ALL)
def if_(g: Builder, cond: Tensor, *, else_branch: Any, then_branch: Any) -> tuple[Tensor, ...]:
    """Those whose branches may both be computed are gone by now."""
    node = g.current()
    why = obstacle(node) if node is not None else ""
    raise Refusal(f"a condition that is not known: {why}", "unsupported_op")
