"""Run a library nobody has run before in a process of its own.

A library is machine code: one that was damaged, or made for another CPU than it says, may end the
process at its first instruction. A child loads it and runs it once on zeros.
"""

from __future__ import annotations

from pathlib import Path

from edgeinfer.backends.process.trial import Trials, answer, run_on_zeros

TRIALS = Trials("tvm", "edgeinfer.backends.tvm.trial")


def check_runs(path: Path, version: str, digest: str = "") -> None:
    """Try a library unless these bytes were tried before with this runtime.

    Raises:
        LoadError: the trial ended the process, or no process could be started.
    """
    TRIALS.check(str(path), version, str(path), digest)


def _attempt(library: str) -> None:
    """Load a library and run it once on zeros."""
    from edgeinfer.backends.base import Artifact, LoadOptions
    from edgeinfer.backends.tvm.backend import TvmBackend
    from edgeinfer.backends.tvm.library import read

    path = Path(library)
    about = read(path)
    artifact = Artifact("tvm", path, about.inputs, about.outputs)
    options = LoadOptions("gpu" if about.device == "gpu" else "cpu", extra={"trial": "off"})
    run_on_zeros(TvmBackend().load(artifact, options))


if __name__ == "__main__":
    answer(_attempt)
