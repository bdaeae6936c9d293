"""Pipelines that listen, with the code that their bundles bring and without it, in turns.

``python -m benchmarks.listening [--rounds N] [--threads N] [--seconds N]``. Real networks that take
mel spectrograms: DNSMOS (P.808), with the spectrogram of its authors' script, 9 s a call; and
openWakeWord's embedding of speech, 0.8 s a call, one each 80 ms. Each pipeline is opened twice,
once with ``EDGEINFER_PIPELINE_CODE=off`` (NumPy in float64), and both get the same recording, as a
whole and as a stream of 80 ms pieces. What they give has to agree within 1e-4 of the largest value.
Medians of milliseconds of wall (and processor) time; ratios by rounds, with their quartiles.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from pathlib import Path

import numpy as np

import edgeinfer
from benchmarks.pipelines import in_turns, tell
from edgeinfer.media.description import parse_description
from edgeinfer.runtime.pipelines import AudioPipeline
from edgeinfer.runtime.pipelines.code import SWITCH
from edgeinfer.types import Array
from tests import zoo

KINDS = {
    "dnsmos-v8.onnx": """
[inputs.input_1]
kind = "spectrogram"
sample_rate = 16000
fft = 321
hop = 160
mels = 120
samples = 144000
log = "db"
reference = "max"
range_db = 80.0
mean = -40.0
std = 40.0

[output]
kind = "embed"
normalize = false
""",
    "wake-embedding.onnx": """
[inputs.input_1]
kind = "spectrogram"
sample_rate = 16000
fft = 512
window = 400
hop = 160
mels = 32
samples = 12512
step = 1280
low = 60.0
high = 3800.0
scale = "htk"
norm = "none"
log = "db"
mean = -20.0
std = 10.0
centered = false

[output]
kind = "embed"
normalize = false
""",
}
PIECE = 1280


def _stream(opened: AudioPipeline, sound: Array) -> Array:
    stream, found = opened.stream(), []
    for begin in range(0, len(sound), PIECE):
        found += stream.feed(sound[begin : begin + PIECE])
    found += stream.finish()
    return np.stack([each.vector for each in found])  # type: ignore[union-attr]


def _whole(opened: AudioPipeline, sound: Array) -> Array:
    return np.stack([each.vector for each in opened(sound, 16000)])  # type: ignore[union-attr]


def measure(bundle: Path, sound: Array, rounds: int, threads: int) -> None:
    """Time one bundle's pipeline, whole and in pieces, and the spectrogram alone."""
    os.environ[SWITCH] = "off"
    plain = edgeinfer.pipeline(bundle, threads=threads)
    del os.environ[SWITCH]
    with plain, edgeinfer.pipeline(bundle, threads=threads) as code:
        if not isinstance(plain, AudioPipeline) or not isinstance(code, AudioPipeline):
            raise SystemExit(f"{bundle.name}: no pipeline that listens")
        report = code.model.session.report()
        print(f"{bundle.name}: {report.variant} on {report.backend}, {threads} threads")
        for line in (*plain.model.around, *code.model.around):
            print(f"  {line}")
        for name, call in (("whole", _whole), ("in pieces", _stream)):
            want, found = call(plain, sound), call(code, sound)
            gap = float(np.abs(found - want).max() / np.abs(want).max())
            if not gap <= 1e-4:
                raise SystemExit(f"{bundle.name}: other results with code than without: {gap}")
            both = {
                "without": lambda c=call: c(plain, sound),
                "with": lambda c=call: c(code, sound),
            }
            tell(f"  {name}, {len(want)} calls, gap {gap:.1e}", in_turns(both, rounds))


def main() -> None:
    """Convert, measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=21)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seconds", type=int, default=9)
    asked = parser.parse_args()
    rng = np.random.default_rng(0)
    time = np.arange(asked.seconds * 16000) / 16000
    voice = np.sin(2 * np.pi * 140 * time) * (np.sin(2 * np.pi * 3 * time) > 0)
    sound = (0.3 * voice + rng.normal(0, 0.01, len(time))).astype(np.float32)
    with tempfile.TemporaryDirectory() as name:
        for model, said in KINDS.items():
            about = Path(name, "about.toml")
            about.write_text(said)
            bundle = Path(name, f"{Path(model).stem}.edge")
            edgeinfer.export(
                zoo.fetch(model),
                bundle,
                targets=["cpu"],
                description=parse_description(about),
            )
            measure(bundle, sound, asked.rounds, asked.threads)


if __name__ == "__main__":
    main()
