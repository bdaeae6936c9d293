"""Parts of a model, computed as an artifact of the model would compute them."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from edgeinfer.backends.base import Artifact, Backend, LoadOptions
from edgeinfer.convert.lower import target_for
from edgeinfer.convert.lower.target import LowerOptions
from edgeinfer.convert.pipeline.engines import place_for
from edgeinfer.convert.pipeline.plan import Job
from edgeinfer.convert.quantize.half.stage import Halves
from edgeinfer.convert.quantize.stage import QuantizeStage
from edgeinfer.records import dataclass
from edgeinfer.types import Array, Feeds

if TYPE_CHECKING:
    import onnx_ir as ir


@dataclass(frozen=True, slots=True)
class PartEngine:
    """Lowers parts of a model for a job, and runs them.

    Attributes:
        job: whose format and target they are for.
        backend: what runs them; None evaluates them in half-precision arithmetic.
        quantize: that has prepared the model.
        halves: that has looked at the model.
        options: Options of the model as a whole.
    """

    job: Job
    backend: Backend | None
    quantize: QuantizeStage
    halves: Halves
    options: LowerOptions

    def __call__(self, model: ir.Model, feeds: Feeds) -> Mapping[str, Array]:
        """Run a part; return its outputs by name.

        Raises:
            UnsupportedError: the target cannot express it with these inputs and outputs.
            CannotEvaluate: half-precision arithmetic does not know an operator.
        """
        return self.run(self.quantize.graph(self.job, model), feeds)

    def run(self, graph: ir.Model, feeds: Feeds) -> Mapping[str, Array]:
        """Run a part that is in the job's integers already; return its outputs by name.

        Raises:
            UnsupportedError: the target cannot express it with these inputs and outputs.
            CannotEvaluate: half-precision arithmetic does not know an operator.
        """
        from edgeinfer.convert import passes

        job = self.job
        with tempfile.TemporaryDirectory(prefix="edgeinfer-") as temporary:
            folder = Path(temporary)
            # A part of the model has other inputs and outputs.
            options = replace(
                self.halves.options(self.options, job.profile),
                shape_sets=(),
                ranges={},
                states={},
                image_inputs=(),
                classifier=False,
                samples=(),
                integers={},
                io_dtypes={},
            )
            lowered = target_for(job.format).lower(graph, job.profile, options, folder)
            if self.backend is None:
                return dict(self.halves.run(graph, lowered, feeds))
            specs = passes.input_specs(graph), passes.output_specs(graph)
            artifact = Artifact(job.format, lowered.files[0], *specs)
            device = place_for(job.profile.machine).device
            executable = self.backend.load(artifact, LoadOptions(device))
            try:
                return executable.run(feeds)
            finally:
                executable.close()
