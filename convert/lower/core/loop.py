"""Loop and Scan read once; a target writes the loop."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np
import onnx_ir as ir

from edgeinfer.convert.lower.registry import Registry
from edgeinfer.records import dataclass


@dataclass(frozen=True, slots=True, eq=False)
class Scanned:
    """An input of which each turn sees one slice."""

    tensor: Any
    axis: int
    backwards: bool


class UnfinishedLoop(Protocol):
    """A target's loop in the making.

    Attributes:
        limit: Number of turns; None for no limit.
        condition: What holds before the first turn; None for true.
        scanned: Inputs that are seen slice by slice.
        backwards: For each scan output, whether it is filled from the end.
    """

    limit: Any
    condition: Any
    scanned: list[Scanned]
    backwards: list[bool]

    def lower(self, given: int) -> tuple[Any, ...]:
        """Write the loop; ``given`` inputs of the body come before those it carries."""
        ...


def loops(
    ops: Registry,
    make: Callable[[Any, ir.Graph, list[Any], np.dtype[np.signedinteger]], UnfinishedLoop],
    dtypes: frozenset[ir.DataType],
) -> None:
    """Register Loop and Scan for a target.

    Args:
        ops: The target's table.
        make: Takes the graph, the body, what the loop carries and the counter's element type.
        dtypes: Element types of what it carries.
    """

    @ops.lower("Loop", dtypes=dtypes)
    def loop(g: Any, m: Any = None, cond: Any = None, *v_initial: Any, body: ir.Graph) -> Any:
        made = make(g, body, list(v_initial), np.dtype(np.int64))
        if m is not None:
            made.limit = g.reshape(m, [])
        if cond is not None and not (cond.data is not None and cond.data.all()):
            made.condition = g.reshape(cond, [])
        return made.lower(given=2)

    @ops.lower("Scan", dtypes=dtypes)
    def scan(
        g: Any,
        *initial_state_and_scan_inputs: Any,
        body: ir.Graph,
        num_scan_inputs: int,
        scan_input_axes: Sequence[int] | None,
        scan_input_directions: Sequence[int] | None,
        scan_output_axes: Sequence[int] | None,
        scan_output_directions: Sequence[int] | None,
    ) -> Any:
        states = list(initial_state_and_scan_inputs[:-num_scan_inputs])
        inputs = list(initial_state_and_scan_inputs[-num_scan_inputs:])
        none, count = [0] * len(inputs), len(body.outputs) - len(states)
        axes = [a % x.rank for a, x in zip(scan_input_axes or none, inputs, strict=True)]
        made = make(g, body, states, np.dtype(np.int32))
        sizes = [x.shape[a] for x, a in zip(inputs, axes, strict=True)]
        known = [size for size in sizes if isinstance(size, int)]
        size = known[0] if known else g.extent(inputs[0], axes[0])
        made.limit = g.const(size, np.int32) if isinstance(size, int) else size
        rows = zip(inputs, axes, scan_input_directions or none, strict=True)
        made.scanned = [Scanned(x, axis, bool(back)) for x, axis, back in rows]
        made.backwards = [bool(d) for d in scan_output_directions or [0] * count]
        results = list(made.lower(given=0))
        for index, axis in enumerate(scan_output_axes or [0] * count, len(states)):
            perm = list(range(1, results[index].rank))
            perm.insert(axis % results[index].rank, 0)
            results[index] = g.transpose(results[index], perm)
        return tuple(results)
