"""onnx2tf, in a virtual environment of its own: it pins every dependency, and Python 3.12."""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

VERSION = "2.6.9"

TIMEOUT_S = 300

KINDS = ("fp32", "fp16", "dynamic_wi8_afp32", "static_wi8_ai8")

_FILES = {
    "fp32": "_float32.tflite",
    "fp16": "_float16.tflite",
    "dynamic_wi8_afp32": "_dynamic_range_quant.tflite",
    "static_wi8_ai8": "_integer_quant.tflite",
}


class NotInstalledError(RuntimeError):
    """There is no Python to install it with, or the registry refused."""


@dataclass(frozen=True, slots=True)
class Made:
    """What one run left.

    Attributes:
        file: the model, or None.
        seconds: CPU time of the process and its children.
        said: the last line of its output if there is no file.
    """

    file: Path | None
    seconds: float
    said: str = ""


def install(folder: Path, python: str = "") -> Path:
    """Make the environment once; returns the program.

    Raises:
        NotInstalledError: no Python 3.12 was found, or pip failed.
    """
    program = folder / "bin" / "onnx2tf"
    if program.exists():
        return program
    chosen = python or _python()
    steps = (
        [chosen, "-m", "venv", str(folder)],
        [str(folder / "bin" / "pip"), "install", "-q", f"onnx2tf=={VERSION}"],
    )
    for step in steps:
        done = subprocess.run(step, capture_output=True, text=True, check=False)
        if done.returncode:
            raise NotInstalledError(f"{' '.join(step)}: {done.stderr.strip()[-200:]}")
    return program


def _python() -> str:
    """Find Python 3.12 or newer: on PATH, or among pyenv's."""
    names = [n for n in ("python3.12", "python3.13") if shutil.which(n)]
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    found = sorted(pyenv.glob("3.12*/bin/python3.12"))
    candidates = [*(str(p) for p in found), *names]
    if sys.version_info >= (3, 12):
        candidates.insert(0, sys.executable)
    for one in candidates:
        done = subprocess.run([one, "-c", "import venv"], capture_output=True, check=False)
        if done.returncode == 0:
            return one
    raise NotInstalledError(f"onnx2tf {VERSION} needs Python 3.12: name one with --python")


def size_mb(program: Path) -> float:
    """Size on disk of its environment."""
    return folder_mb(program.parent.parent)


def folder_mb(folder: Path) -> float:
    """Size of all files below a folder, each once."""
    sizes = {p.stat().st_ino: p.stat().st_size for p in folder.rglob("*") if p.is_file()}
    return sum(sizes.values()) / 1e6


def attempts(kind: str) -> int:
    """How many ways there are to ask for a kind; the first is the default."""
    return 2 if kind in ("dynamic_wi8_afp32", "static_wi8_ai8") else 1


def convert(
    program: Path,
    source: Path,
    folder: Path,
    kind: str,
    calibration: dict[str, Any],
    attempt: int = 0,
) -> Made:
    """Run it on a copy: it writes over its input. Model inputs keep ONNX's layout, as ours do.

    Args:
        program: from ``install``.
        source: the ONNX file.
        folder: for the results.
        kind: one of ``KINDS``.
        calibration: samples by input, stacked along the first axis.
        attempt: 0 for its default, 1 for one scale a tensor.
    """
    extra: list[str] = []
    if kind == "dynamic_wi8_afp32":
        extra = ["-odrqt"]
    if kind == "static_wi8_ai8":
        extra = ["-oiqt", *_calibration(calibration, folder)]
    if attempt:
        extra += ["-qt", "per-tensor"]
    planar = [name for name, values in calibration.items() if 3 <= values.ndim <= 5]
    if planar:
        extra += ["-k", *planar]
    return _run(program, source, folder, kind, extra)


def _run(program: Path, source: Path, folder: Path, kind: str, extra: list[str]) -> Made:
    folder.mkdir(parents=True, exist_ok=True)
    copy = folder / "model.onnx"
    shutil.copyfile(source, copy)
    results = folder / "out"
    shutil.rmtree(results, ignore_errors=True)
    search = f"{program.parent}{os.pathsep}{os.environ['PATH']}"
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    try:
        done = subprocess.run(
            [str(program), "-i", str(copy), "-o", str(results), "-coion", "-n", *extra],
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            cwd=folder,
            env={**os.environ, "PATH": search, "PYTHONPATH": ""},
            check=False,
        )
        said = f"exit {done.returncode}: {_last(done.stdout + done.stderr)}"
    except subprocess.TimeoutExpired:
        said = f"not done after {TIMEOUT_S} s"
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    file = results / f"model{_FILES[kind]}"
    return Made(file, seconds) if file.exists() else Made(None, seconds, said)


def _last(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1][-160:] if lines else ""


def _calibration(samples: dict[str, Any], folder: Path) -> list[str]:
    """Samples as it wants them: a file an input, with a mean and a deviation."""
    folder.mkdir(parents=True, exist_ok=True)
    arguments = []
    for index, (name, values) in enumerate(samples.items()):
        path = folder / f"calibration_{index}.npy"
        np.save(path, values)
        arguments += ["-cind", name, str(path), "[0.0]", "[1.0]"]
    return arguments
