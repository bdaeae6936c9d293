"""Run a graph with regions that nobody has run here before in a process of its own.

Its library is machine code, as one of the format ``tvm`` is: a child opens the graph and runs it
once on zeros.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from edgeinfer.backends import child
from edgeinfer.backends.trial import Trials

TRIALS = Trials("onnxruntime-regions", "edgeinfer.backends.onnxruntime_regions_trial")


def check_runs(library: Path, graph: Path, version: str) -> None:
    """Try a library with its graph unless these bytes were tried before with this engine.

    Raises:
        LoadError: the trial ended the process, or no process could be started.
    """
    TRIALS.check(str(library), version, str(graph))


def _main() -> None:
    """Open a graph and run it once on zeros; say when that is over, however it went."""
    from edgeinfer.backends.base import Artifact, LoadOptions
    from edgeinfer.backends.checks import array_type
    from edgeinfer.backends.onnxruntime import OnnxRuntimeBackend
    from edgeinfer.backends.onnxruntime_regions import FORMAT

    connection, _ = child.connect()
    child.make_expendable()
    try:
        artifact = Artifact(FORMAT, Path(child.read(connection)), (), ())
        executable = OnnxRuntimeBackend().load(artifact, LoadOptions(threads=1))
        feeds = {
            s.name: np.zeros(
                [d if isinstance(d, int) else 1 for d in s.shape or ()], array_type(s.dtype)
            )
            for s in executable.inputs
        }
        executable.run(feeds)
    except Exception as error:
        child.write(connection, str(error))
    else:
        child.write(connection, "")


if __name__ == "__main__":
    _main()
