"""What was found out about a failed variant."""

from __future__ import annotations

from dataclasses import field
from pathlib import Path
from typing import Any

from edgeinfer.convert.late import late
from edgeinfer.errors import OutputError
from edgeinfer.records import dataclass
from edgeinfer.types import Array

_README = """\
The smallest part of the model that still leaves its accuracy budget.

model.onnx     {count} node(s): {nodes}
inputs.npz     its inputs, as the oracle computed them; arrays are named as the inputs
expected.npz   what the oracle computes for its outputs; arrays are named as the outputs

What is wrong:
{breaches}

First node whose result is wrong: {op} {node!r}
Node that has to be computed for it to be wrong: {cause!r}
{note}
"""


@dataclass(frozen=True, slots=True)
class Finding:
    """What ``explain`` found.

    Attributes:
        node: name of the first node, in topological order, whose result leaves the budget; empty
            when the failure could not be reproduced or narrowed down.
        op: its operator.
        cause: name of the node that has to be computed by the engine for ``node`` to be wrong;
            the same as ``node`` unless an error starts small and grows.
        nodes: names of the nodes of the smallest failing sub-model.
        model: the sub-model; None when there is none.
        inputs: for ``model``, by name.
        expected: for ``model``, by name.
        breaches: what is wrong with its outputs.
        note: how sure this is: reproduced, not reproduced, stopped by the time limit.
    """

    node: str = ""
    op: str = ""
    cause: str = ""
    nodes: tuple[str, ...] = ()
    model: Any = None
    inputs: dict[str, Array] = field(default_factory=dict)
    expected: dict[str, Array] = field(default_factory=dict)
    breaches: tuple[str, ...] = ()
    note: str = ""

    def to_json(self) -> dict[str, Any]:
        """Return JSON-ready data (names and notes; no tensors)."""
        return {
            "node": self.node,
            "op": self.op,
            "cause": self.cause,
            "nodes": list(self.nodes),
            "breaches": list(self.breaches),
            "note": self.note,
        }

    def save(self, folder: Path) -> list[Path]:
        """Write ``model.onnx``, ``inputs.npz``, ``expected.npz`` and ``README.txt``; list them.

        Nothing is written when there is no sub-model.

        Raises:
            OutputError: the folder cannot be written.
        """
        from edgeinfer.media import write_arrays

        if self.model is None:
            return []
        paths = [folder / n for n in ("model.onnx", "inputs.npz", "expected.npz", "README.txt")]
        text = _README.format(
            count=len(self.nodes),
            nodes=", ".join(self.nodes),
            breaches="\n".join(f"  {b}" for b in self.breaches),
            op=self.op,
            node=self.node,
            cause=self.cause,
            note=self.note,
        )
        try:
            folder.mkdir(parents=True, exist_ok=True)
            # Weights that still lie in the source's files would tie the copy to their place.
            late("onnx_file").save(self.model, paths[0])
            write_arrays(paths[1], self.inputs)
            write_arrays(paths[2], self.expected)
            paths[3].write_text(text, encoding="utf-8")
        except OSError as e:
            raise OutputError(f"{folder}: cannot write the failing sub-model: {e}") from e
        return paths
