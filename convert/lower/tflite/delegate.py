"""Which operators of a file XNNPACK takes, asked of LiteRT in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from edgeinfer.backends.base import Coverage
from edgeinfer.errors import LoadError

TIMEOUT_S = 600

_CHILD = """
import json, sys
from dataclasses import asdict
from ai_edge_litert.interpreter import Interpreter
from edgeinfer.backends.litert.coverage import coverage
interpreter = Interpreter(model_path=sys.argv[1], num_threads=1)
interpreter.allocate_tensors()
print(json.dumps(asdict(coverage(interpreter))))
"""


def delegation(path: Path) -> Coverage:
    """Ask LiteRT; the file is opened at its own sizes.

    Raises:
        LoadError: LiteRT refuses the file or ends the process.
    """
    done = subprocess.run(
        [sys.executable, "-P", "-c", _CHILD, str(path)],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )
    if done.returncode:
        lines = done.stderr.strip().splitlines() or [f"exit status {done.returncode}"]
        raise LoadError(f"litert: {path} cannot be opened: {lines[-1]}")
    found = json.loads(done.stdout.splitlines()[-1])
    return Coverage(**{**found, "left": tuple(found["left"])})
