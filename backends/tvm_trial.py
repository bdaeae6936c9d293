"""Run a library nobody has run before in a process of its own.

A library is machine code: one that was damaged, or made for another CPU than it says, may end the
process at its first instruction. A child loads it and runs it once on zeros.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from edgeinfer.backends import child
from edgeinfer.backends.trial import Trials

TRIALS = Trials("tvm", "edgeinfer.backends.tvm_trial")


def check_runs(path: Path, version: str) -> None:
    """Try a library unless these bytes were tried before with this runtime.

    Raises:
        LoadError: the trial ended the process, or no process could be started.
    """
    TRIALS.check(str(path), version, str(path))


def _main() -> None:
    """Load a library and run it once on zeros; say when that is over, however it went."""
    from edgeinfer.backends.base import Artifact, LoadOptions
    from edgeinfer.backends.checks import array_type
    from edgeinfer.backends.tvm import TvmBackend
    from edgeinfer.backends.tvm_library import read

    connection, _ = child.connect()
    path = Path(child.read(connection))
    try:
        about = read(path)
        artifact = Artifact("tvm", path, about.inputs, about.outputs)
        options = LoadOptions("gpu" if about.device == "gpu" else "cpu", extra={"trial": "off"})
        executable = TvmBackend().load(artifact, options)
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
