"""Run a graph with regions that nobody has run here before in a process of its own.

Its library is machine code, as one of the format ``tvm`` is: a child opens the graph and runs it
once on zeros.
"""

from __future__ import annotations

from pathlib import Path

from edgeinfer.backends.process import isolation
from edgeinfer.backends.process.trial import Trials, answer, run_on_zeros

TRIALS = Trials("onnxruntime-regions", "edgeinfer.backends.onnxruntime.regions_trial")


def check_runs(library: Path, graph: Path, version: str) -> None:
    """Try a library with its graph unless these bytes were tried before with this engine.

    Raises:
        LoadError: the trial ended the process, or no process could be started.
    """
    TRIALS.check(str(library), version, str(graph))


def _attempt(graph: str) -> None:
    """Open a graph and run it once on zeros."""
    from edgeinfer.backends.base import Artifact, LoadOptions
    from edgeinfer.backends.onnxruntime.backend import OnnxRuntimeBackend
    from edgeinfer.backends.onnxruntime.regions import FORMAT

    isolation.make_expendable()
    artifact = Artifact(FORMAT, Path(graph), (), ())
    run_on_zeros(OnnxRuntimeBackend().load(artifact, LoadOptions(threads=1)))


if __name__ == "__main__":
    answer(_attempt)
