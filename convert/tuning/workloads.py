"""What there is to tune in a model, read where a stranger's file may do no harm."""

from __future__ import annotations

from pathlib import Path

from edgeinfer.backends.process import bounds
from edgeinfer.convert import passes, sources
from edgeinfer.convert.lower.target import LowerOptions
from edgeinfer.convert.options import Given
from edgeinfer.convert.pipeline.shape_sets import shape_sets
from edgeinfer.convert.tuning.costs import ProfiledGraph, written
from edgeinfer.kernels.tuning.task import Task
from edgeinfer.profiles.schema import Profile
from edgeinfer.records import dataclass


@dataclass(frozen=True, slots=True)
class Workloads:
    """What a model consists of for a machine.

    Attributes:
        machine: Name of the instruction set.
        tasks: kernels that can be measured.
        open: how many cannot, since they have open sizes.
        graph: the model that engines are asked about.
    """

    machine: str
    tasks: list[Task]
    open: int
    graph: ProfiledGraph


def read_workloads(
    source: Path, profile: Profile, input_shapes: Given | None, folder: Path
) -> Workloads:
    """Read a model, and write it as engines take it.

    Args:
        source: the model's file.
        profile: what it is tuned for.
        input_shapes: sizes to fix.
        folder: where the graph is written.

    Raises:
        SourceError: the model cannot be read.
        UnsupportedError: it cannot be compiled for the target.
        NotAvailableError: TVM is not installed.
    """
    from edgeinfer.convert.lower.tvm.target import workloads

    common, _ = shape_sets(input_shapes or {})
    read = sources.read(source)
    normal = passes.normalise(read.model, input_shapes=common or None).model
    bounds.looked()
    for index, node in enumerate(normal.graph):
        # Engines name operators, kernels know theirs by the name.
        node.name = node.name or f"{node.op_type}_{index}"
    machine, tasks, left = workloads(normal, profile, LowerOptions())
    return Workloads(machine.name, tasks, left, written(normal, folder))
