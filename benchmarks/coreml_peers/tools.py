"""The three converters, each in a virtual environment of its own, without PyTorch."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from benchmarks.tflite_peers.onnx2tf import folder_mb

PROJECT = Path(__file__).parents[2]

TIMEOUT_S = 300

Sizes = Mapping[str, tuple[int, int, int]]
"""Least, first and most size by the name of an open dimension."""


@dataclass(frozen=True, slots=True)
class Tool:
    """One converter.

    Attributes:
        name: also of its function in ``script.py``.
        version: empty for ours.
        packages: what pip is asked for, with what each needs to convert as its pages say.
    """

    name: str
    version: str
    packages: tuple[str, ...]

    def install(self, cache: Path) -> Path:
        """Make the environment once; returns its Python.

        Raises:
            CalledProcessError: pip failed.
        """
        folder = cache / f"{self.name}-{self.version or 'here'}"
        python = folder / "bin" / "python"
        if not (folder / "installed").exists():
            shutil.rmtree(folder, ignore_errors=True)
            subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
            pip = [str(python), "-m", "pip", "install", "-q", *self.packages]
            subprocess.run(pip, check=True, stdout=subprocess.DEVNULL)
            (folder / "installed").touch()
        return python


OURS = Tool("edgeinfer", "", (f"{PROJECT}[convert,coreml]",))
ONNX2COREML = Tool("onnx2coreml", "1.1.0", ("onnx2coreml==1.1.0",))
ONNXSIM = Tool("onnxsim", "0.8.1", ("onnxsim[onnxruntime]==0.8.1", "coremltools>=9.0"))

PEERS = (ONNX2COREML, ONNXSIM)


def size_mb(python: Path) -> float:
    """Size on disk of a tool's packages, without pip and what a test run left behind."""
    (site,) = (python.parents[1] / "lib").glob("python3*/site-packages")
    return folder_mb(site) - sum(folder_mb(p) for p in site.glob("pip*"))


@dataclass(frozen=True, slots=True)
class Made:
    """What one run left.

    Attributes:
        path: of the package; None if there is none.
        seconds: CPU time of the whole process.
        said: the last line of its output if there is no package.
    """

    path: Path | None
    seconds: float
    said: str = ""


def convert(tool: Tool, python: Path, source: Path, folder: Path, sizes: Sizes) -> Made:
    """Write ``folder/model.mlpackage``; a peer's stays, our code does not change it."""
    record = folder / "made.json"
    target = folder / "model.mlpackage"
    if tool.version and record.exists():
        known = json.loads(record.read_text(encoding="utf-8"))
        return Made(target if known["made"] else None, known["seconds"], known["said"])
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    made = _run(tool, python, source, target, sizes)
    kept = {"made": made.path is not None, "seconds": made.seconds, "said": made.said}
    record.write_text(json.dumps(kept), encoding="utf-8")
    return made


def _run(tool: Tool, python: Path, source: Path, target: Path, sizes: Sizes) -> Made:
    script = Path(__file__).with_name("script.py")
    # Not the folder of the script: a module there may have the name of one of theirs.
    command = [str(python), "-P", str(script), tool.name, str(source), str(target)]
    paths = {} if tool.version else {"PYTHONPATH": str(PROJECT / "src")}
    clean = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    try:
        done = subprocess.run(
            [*command, json.dumps(dict(sizes))],
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            env={**clean, **paths},
            check=False,
        )
    except subprocess.TimeoutExpired:
        return Made(None, float(TIMEOUT_S), f"not done after {TIMEOUT_S} s")
    if done.returncode or not target.exists():
        return Made(None, 0.0, _error_line(done.stderr)[:240])
    return Made(target, float(done.stdout.split()[-1]))


def _error_line(text: str) -> str:
    """The line that names the error: messages may go on for many more."""
    lines = [x.strip() for x in text.splitlines() if x.strip()] or ["?"]
    named = [x for x in lines if re.match(r"[A-Za-z_][\w.]*(Error|Exception): ", x)]
    return named[-1] if named else lines[-1]
