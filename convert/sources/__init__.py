"""Sources: a model in any supported format becomes one ``onnx_ir.Model``."""

from __future__ import annotations

from dataclasses import dataclass, field

import onnx_ir as ir

from edgeinfer.bundle.manifest import SourceRecord
from edgeinfer.errors import Notes


@dataclass(slots=True)
class Source:
    """A model as it was read.

    Attributes:
        model: the graph; large weights stay on disk until they are touched.
        record: where it came from.
        notes: what had to be repaired.
    """

    model: ir.Model
    record: SourceRecord
    notes: Notes = field(default_factory=Notes)
