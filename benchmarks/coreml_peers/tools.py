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
        packages: what pip is requested, with what each needs to convert as its pages say.
        checking: what pip is requested where numbers are to be checked too, if that is more.
    """

    name: str
    version: str
    packages: tuple[str, ...]
    checking: tuple[str, ...] = ()

    def install(self, environments: Path) -> Installed:
        """Install it once, each tool into a folder of its own, or take what lies there.

        Packages that several have alike may lie in the folder ``common``, once for all.

        Raises:
            CalledProcessError: pip failed.
        """
        folder = environments / f"{self.name}-{self.version or 'here'}"
        record, site = folder / "installed.json", folder / "site"
        if not record.exists():
            shutil.rmtree(folder, ignore_errors=True)
            sizes = {"converts": _pip(self.packages, site)}
            sizes["checks"] = sizes["converts"]
            if self.checking:
                sizes["checks"] = _pip(self.checking, folder / "checking")
                shutil.rmtree(folder / "checking")
            record.write_text(json.dumps(sizes), encoding="utf-8")
        paths = (site, environments / "common")
        sizes = json.loads(record.read_text(encoding="utf-8"))
        return Installed(paths, environments / "bytecode", sizes["converts"], sizes["checks"])


@dataclass(frozen=True, slots=True)
class Installed:
    """A tool that is there.

    Attributes:
        paths: where Python finds its packages.
        bytecode: where it keeps what it compiled, of all tools alike.
        converts_mb: size of what converts, bytecode too.
        checks_mb: size of what converts and checks numbers.
    """

    paths: tuple[Path, ...]
    bytecode: Path
    converts_mb: float
    checks_mb: float


def _pip(packages: tuple[str, ...], folder: Path) -> float:
    pip = [sys.executable, "-m", "pip", "install", "-q", "--target", str(folder), *packages]
    subprocess.run(pip, check=True, stdout=subprocess.DEVNULL)
    return folder_mb(folder)


OURS = Tool("edgeinfer", "", (f"{PROJECT}[apple]",))
ONNX2COREML = Tool("onnx2coreml", "1.1.0", ("onnx2coreml==1.1.0",), ("onnx2coreml[verify]==1.1.0",))
ONNXSIM = Tool("onnxsim", "0.8.1", ("onnxsim[onnxruntime]==0.8.1", "coremltools>=9.0"))

PEERS = (ONNX2COREML, ONNXSIM)


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


def convert(tool: Tool, there: Installed, source: Path, folder: Path, sizes: Sizes) -> Made:
    """Write ``folder/model.mlpackage``; a peer's stays, our code does not change it."""
    record = folder / "made.json"
    target = folder / "model.mlpackage"
    if tool.version and record.exists():
        known = json.loads(record.read_text(encoding="utf-8"))
        return Made(target if known["made"] else None, known["seconds"], known["said"])
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    made = _run(tool, there, source, target, sizes)
    kept = {"made": made.path is not None, "seconds": made.seconds, "said": made.said}
    record.write_text(json.dumps(kept), encoding="utf-8")
    return made


def _run(tool: Tool, there: Installed, source: Path, target: Path, sizes: Sizes) -> Made:
    script = Path(__file__).with_name("script.py")
    # Neither the folder of the script, where a module may have the name of one of theirs, nor the
    # packages next to this Python, nor bytecode that one tool is installed with and another not.
    command = [sys.executable, "-P", "-S", str(script), tool.name, str(source), str(target)]
    own = () if tool.version else (PROJECT / "src",)
    clean = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    paths = {
        "PYTHONPATH": os.pathsep.join(map(str, (*own, *there.paths))),
        "PYTHONPYCACHEPREFIX": str(there.bytecode),
    }
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
