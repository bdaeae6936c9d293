"""Our conversions: the passes and the lowering of ``edgeinfer convert``, a process each."""

from __future__ import annotations

import pickle
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any


def convert(source: Path, folder: Path, precision: str, samples: Sequence[Any] = ()) -> float:
    """Write ``folder/model.tflite``; returns the CPU seconds of the whole process.

    Args:
        source: the ONNX file.
        folder: for the result.
        precision: recipe.
        samples: inputs to calibrate with, where the recipe needs them.

    Raises:
        RuntimeError: with the last line that was said.
    """
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "samples.pickle").write_bytes(pickle.dumps(list(samples)))
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.tflite_peers.ours", str(source), str(folder), precision],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise RuntimeError((done.stderr.strip().splitlines() or ["?"])[-1][-200:])
    return float(done.stdout.split()[-1])


def install(folder: Path) -> Path:
    """Install this project with its extra for LiteRT, as a user does; returns the environment."""
    pip = folder / "bin" / "pip"
    if not pip.exists():
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
        project = f"{Path(__file__).parents[2]}[litert]"
        subprocess.run([str(pip), "install", "-q", project], check=True)
    return folder


def _main(source: str, folder: str, precision: str) -> None:
    from edgeinfer.convert.lower.target import LowerOptions
    from edgeinfer.convert.lower.tflite.target import TfliteTarget
    from edgeinfer.convert.passes import normalise
    from edgeinfer.convert.quantize import weight_only
    from edgeinfer.convert.quantize.recipe import recipe
    from edgeinfer.convert.sources import read
    from edgeinfer.profiles.schema import PRECISIONS, Profile

    everything = tuple(PRECISIONS)
    profile = Profile("any", "any", ("linux",), (), ("tflite",), ("litert",), everything)
    if precision.startswith("static"):
        source = _quantized(source, folder)
    normal = normalise(read(source).model).model
    wanted = recipe(precision)
    if wanted.is_integer and not wanted.is_static:
        normal = weight_only.write(normal, wanted).model
    floats = "fp32" if wanted.is_integer else precision
    TfliteTarget().lower(normal, profile, LowerOptions(floats), Path(folder))
    sys.stdout.write(f"{time.process_time()}\n")


def _quantized(source: str, folder: str) -> str:
    """Let ONNX Runtime calibrate: smallest and largest values, a scale a channel of weights."""
    from onnxruntime.quantization import CalibrationDataReader, QuantType, quantize_static

    class Reader(CalibrationDataReader):  # type: ignore[misc]
        def __init__(self, samples: list[Any]) -> None:
            self.rest = iter(samples)

        def get_next(self) -> Any:
            return next(self.rest, None)

    target = str(Path(folder) / "quantized.onnx")
    quantize_static(
        source,
        target,
        Reader(pickle.loads((Path(folder) / "samples.pickle").read_bytes())),
        per_channel=True,
        activation_type=QuantType.QInt8,
        weight_type=QuantType.QInt8,
    )
    return target


if __name__ == "__main__":
    _main(*sys.argv[1:])
