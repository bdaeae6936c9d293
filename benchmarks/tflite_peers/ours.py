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
    if not (folder / "bin" / "edgeinfer").exists():
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
        project = f"{Path(__file__).parents[2]}[convert,litert]"
        subprocess.run([str(pip), "install", "-q", project], check=True)
    return folder


def _main(source: str, folder: str, precision: str) -> None:
    from edgeinfer.convert.lower.target import LowerOptions
    from edgeinfer.convert.lower.tflite.target import TfliteTarget
    from edgeinfer.convert.passes import input_specs, normalise
    from edgeinfer.convert.quantize.calibration import Quantizer, Settings, limits_of
    from edgeinfer.convert.quantize.recipe import recipe
    from edgeinfer.convert.sources import read
    from edgeinfer.media.samples import open_data
    from edgeinfer.profiles import load

    profile = load("rpi5")
    normal = normalise(read(source).model).model
    wanted = recipe(precision)
    if wanted.is_integer:
        # Random inputs are no calibration data: the judge would refuse them, and rounding by them
        # would say nothing. Weights are rounded to the nearest, as the other tool does.
        quantizer = Quantizer(normal, wanted, Settings(force=True, round_weights=False))
        limits = limits_of(profile, "tflite")
        if wanted.is_static:
            samples = pickle.loads((Path(folder) / "samples.pickle").read_bytes())
            inputs = input_specs(normal)
            quantizer.calibrate(open_data(samples, inputs), [limits], inputs)
        normal = quantizer.write(limits).model
        precision = "fp32"
    TfliteTarget().lower(normal, profile, LowerOptions(precision), Path(folder))
    sys.stdout.write(f"{time.process_time()}\n")


if __name__ == "__main__":
    _main(*sys.argv[1:])
