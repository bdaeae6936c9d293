"""Which operators of a file XNNPACK takes, asked of LiteRT in a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from edgeinfer.errors import LoadError

TIMEOUT_S = 600

# An operator was taken if it makes what a delegate hands out, or something that was given no
# memory: only tensors outside of delegates are.
_CHILD = """
import json, sys
from ai_edge_litert.interpreter import Interpreter
interpreter = Interpreter(model_path=sys.argv[1], num_threads=1)
interpreter.allocate_tensors()
ops = interpreter._get_ops_details()
handed = {int(o) for op in ops if op["op_name"] == "DELEGATE" for o in op["outputs"]}
def outside(index):
    if index in handed:
        return False
    try:
        interpreter.tensor(index)()
    except ValueError:
        return False
    return True
own = [op for op in ops if op["op_name"] != "DELEGATE"]
left = [op["op_name"] for op in own if all(outside(int(o)) for o in op["outputs"])]
parts = len(ops) - len(own)
print(json.dumps({"ops": len(own), "parts": parts, "left": sorted(left)}))
"""


@dataclass(frozen=True, slots=True)
class Delegation:
    """What XNNPACK takes of a file.

    Attributes:
        ops: operators of the main graph.
        parts: pieces that it takes; each boundary costs copies.
        left: types of the operators that it leaves to LiteRT's own kernels, with repeats.
    """

    ops: int
    parts: int
    left: tuple[str, ...]

    @property
    def whole(self) -> bool:
        """Whether the graph runs as one piece."""
        return self.parts == 1 and not self.left


def delegation(path: Path) -> Delegation:
    """Ask LiteRT; the file is opened at its own sizes.

    Raises:
        LoadError: LiteRT refuses the file or ends the process.
    """
    done = subprocess.run(
        [sys.executable, "-c", _CHILD, str(path)],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    if done.returncode:
        lines = done.stderr.strip().splitlines() or [f"exit status {done.returncode}"]
        raise LoadError(f"litert: {path} cannot be opened: {lines[-1]}")
    found = json.loads(done.stdout.splitlines()[-1])
    return Delegation(found["ops"], found["parts"], tuple(found["left"]))
