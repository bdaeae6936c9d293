"""Convert a model that hears notes, check it, and let it listen to a chord.

Prints the notes of a C major chord: C4, E4, G4.
"""

import tempfile
import wave
from pathlib import Path

import numpy as np

import edgeinfer
from edgeinfer.media import feeds_for, parse_preprocessing
from edgeinfer.types import Array

MODELS = Path(__file__).parent / "models"
RATE = 22050
NOTES = "StatefulPartitionedCall:1"  # how likely each of 88 piano keys sounds, in 172 moments
NAMES = ("C", "C#", "D", "D#", "E", "F", "F#", "G", "G#", "A", "A#", "B")
LOWEST_KEY = 21  # MIDI number of a piano's lowest A


def tone(midi: int, seconds: float = 1.9) -> Array:
    """A plucked string: five overtones that die away."""
    time = np.arange(int(RATE * seconds)) / RATE
    hertz = 440 * 2 ** ((midi - 69) / 12)
    overtones = (np.sin(2 * np.pi * hertz * k * time) / k**1.5 for k in range(1, 6))
    return sum(overtones, np.zeros_like(time)) * np.exp(-1.5 * time)


def write_chord(path: Path, midi: tuple[int, ...]) -> None:
    """Write a 16-bit WAV file in which all notes sound together."""
    mix = sum((tone(m) for m in midi), np.zeros_like(tone(midi[0])))
    samples = (0.6 * mix / np.abs(mix).max() * 32767).astype("<i2")
    with wave.open(str(path), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(RATE)
        file.writeframes(samples.tobytes())


def heard(keys: Array) -> list[str]:
    """Name the keys that sound most of the time."""
    loud = np.flatnonzero(keys.mean(axis=(0, 1)) > 0.5) + LOWEST_KEY
    return [f"{NAMES[m % 12]}{m // 12 - 1}" for m in loud]


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        bundle, chord = Path(folder, "basic_pitch.edge"), Path(folder, "chord.wav")
        preprocessing = parse_preprocessing(MODELS / "basic_pitch.toml")

        # Nothing is written unless every artifact gives the model's numbers on its real engine.
        result = edgeinfer.export(
            MODELS / "basic_pitch.onnx", bundle, targets=["cpu"], preprocessing=preprocessing
        )
        print("converted:", ", ".join(v.id for v in result.manifest.variants))

        write_chord(chord, (60, 64, 67))
        with edgeinfer.load(bundle) as session:
            print("verified here:", session.verify().passed)
            outputs = session.run(feeds_for(chord, result.manifest))
        print("heard:", ", ".join(heard(outputs[NOTES])))


if __name__ == "__main__":
    main()
