"""What the demos' pages show of a run: made here, by real runs, and still what a run shows.

``make recordings`` makes them anew.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import edgeinfer
from edgeinfer.heads import Features, Speak
from edgeinfer.media import parse_description
from edgeinfer.types import AudioInput, FrameInput, SymbolInput, TokenInput
from tests.recording import events, record, text
from tests.runtime.pipelines import test_speech, test_voice
from tests.runtime.pipelines.conftest import write_graph
from tests.stand_in import SAYS
from tests.zoo import fetch

Image = pytest.importorskip("PIL.Image")

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="terminals of Linux")

ROOT = Path(__file__).resolve().parent.parent
PICTURES = ROOT / "docs" / "pictures"
SEEN = {"pi_camera": "pi_camera.jpg", "jetson_streams": "jetson_streams.jpg"}
DEMOS = ("pi_camera", "jetson_streams", "pi_assistant")
LONGEST_S, LARGEST = 30, 60_000


def test_a_recording_has_what_is_said_and_when(tmp_path: Path) -> None:
    said = "print('one 1', flush=True); print('two 2.5')"
    made = record([sys.executable, "-c", said], "python two.py --x 3", tmp_path)
    header = json.loads(made.splitlines()[0])
    assert (header["version"], header["title"]) == (2, "python two.py")
    assert text(made) == ["$ python two.py --x #", "one #", "two #", ""]
    times = [at for at, _ in events(made)]
    assert times[0] == 0.0
    assert times == sorted(times)


def test_a_program_that_fails_leaves_no_recording(tmp_path: Path) -> None:
    with pytest.raises(subprocess.CalledProcessError):
        record([sys.executable, "-c", "raise SystemExit(3)"], "python fails.py", tmp_path)


@pytest.mark.parametrize("name", DEMOS)
def test_every_demo_has_one_that_its_page_and_the_manual_name(name: str) -> None:
    recording = (PICTURES / f"{name}.cast").read_text("utf-8")
    assert len(recording) < LARGEST
    times = [at for at, _ in events(recording)]
    assert times == sorted(times)
    assert times[-1] <= LONGEST_S
    page = (ROOT / "examples" / name / "README.md").read_text("utf-8")
    manual = (ROOT / "docs" / "pipelines.md").read_text("utf-8")
    for file in (f"{name}.cast", *filter(None, [SEEN.get(name)])):
        assert f"../../docs/pictures/{file}" in page
        assert f"pictures/{file}" in manual


def kept(name: str, made: str, *, ordered: bool = True) -> None:
    """Keep a recording where that is requested; else hold it against the one that is kept."""
    place = PICTURES / f"{name}.cast"
    if os.environ.get("EDGEINFER_RECORD"):
        place.write_text(made, "utf-8")
    shown, before = text(made), text(place.read_text("utf-8"))
    if not ordered:
        shown, before = sorted(shown), sorted(before)
    assert shown == before, "the demo says something else: make recordings"


def picture(name: str, made: Path, width: int) -> None:
    """Keep an image likewise; what another build of a codec changes is no other image."""
    place = PICTURES / SEEN[name]
    with Image.open(made) as whole:
        small = whole.convert("RGB").resize((width, whole.height * width // whole.width))
    if os.environ.get("EDGEINFER_RECORD"):
        small.save(place, quality=80)
    with Image.open(place) as before:
        assert before.size == small.size
        pairs = (np.asarray(each, np.float32) for each in (before, small))
        # The frame rate is drawn in a corner.
        assert np.abs(np.subtract(*pairs)).mean() < 4


def converted(folder: Path, name: str, asset: str, out: str) -> None:
    for path in (ROOT / "examples" / "pipelines").iterdir():
        shutil.copy(path, folder)
    description = parse_description(folder / f"{name}.toml")
    edgeinfer.export(fetch(asset), folder / out, targets=["onnxruntime"], description=description)


def walk(folder: Path, frames: int, *, mirrored: bool = False) -> None:
    """A camera that turns past somebody: parts of one photo."""
    folder.mkdir()
    with Image.open(fetch("astronaut.png")) as photo:
        whole = photo.convert("RGB")
    for number in range(frames):
        left = round(120 * number / (frames - 1))
        part = whole.crop((left, 0, left + 320, 240))
        if mirrored:
            part = part.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        part.save(folder / f"{number:03d}.png")


def play(folder: Path, name: str, script: str, shown: str, *before: str) -> str:
    shutil.copy(ROOT / "examples" / name / script, folder)
    words = shown.split(" ", 2)[2].split(" ")
    env = {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    return record([sys.executable, *before, script, *words], shown, folder, env)


@pytest.mark.models
@pytest.mark.timeout(600)
def test_a_camera_that_finds_a_face(tmp_path: Path) -> None:
    converted(tmp_path, "blazeface-front", "blazeface-front.onnx", "faces.edge")
    walk(tmp_path / "frames", 90)
    shown = "python watch.py faces.edge --source frames --save shots --threads 1"
    made = play(tmp_path, "pi_camera", "watch.py", shown)
    kept("pi_camera", made)
    lines = text(made)
    assert any(line.startswith("#") and "face # at" in line for line in map(str.strip, lines))
    picture("pi_camera", tmp_path / "shots" / "000030.jpg", 480)


@pytest.mark.models
@pytest.mark.timeout(600)
def test_streams_that_are_looked_at_side_by_side(tmp_path: Path) -> None:
    converted(tmp_path, "blazeface-front", "blazeface-front.onnx", "faces.edge")
    walk(tmp_path / "door", 45)
    walk(tmp_path / "yard", 45, mirrored=True)
    shown = "python streams.py faces.edge door yard --save wall.jpg"
    kept("jetson_streams", play(tmp_path, "jetson_streams", "streams.py", shown), ordered=False)
    picture("jetson_streams", tmp_path / "wall.jpg", 640)


HEARS = """
hears (float[1,N] sound) => (float[1,1,1] frames) {
  level = ReduceMax <axes = [0, 1], keepdims = 0> (sound)
  none = Sub (level, level)
  two = Constant <value_float = 2.0> ()
  said = Add (none, two)
  shape = Constant <value = int64[3] {1, 1, 1}> ()
  frames = Reshape (said, shape)
}
"""
"""Whatever it hears is the token of one sentence."""

SENTENCE = "turn on the light"
ASKED = (3, 4, 1, 2)
"""Recordings of somebody who speaks, one behind each word: 25 seconds with the pauses."""


@pytest.fixture
def assistant(tmp_path: Path) -> Path:
    """A word and a detector of speech that are trained; what hears, answers and speaks is not."""
    soundfile = pytest.importorskip("soundfile")
    chain = {"mel": "melspectrogram", "embedding": "embedding", "alexa": "alexa"}
    for name, model in chain.items():
        converted(tmp_path, f"wake-{name}", f"wake-{model}.onnx", f"{name}.edge")
    converted(tmp_path, "silero-vad", "silero-vad-openvino-16k.onnx", "vad.edge")
    words = json.loads(json.dumps(test_speech.VOCABULARY).replace('"ab"', f'"{SENTENCE}"'))
    table = {"tokenizer.json": json.dumps(words).encode()}
    heard: dict[str, Any] = {"sound": AudioInput(16000)}
    write_graph(tmp_path, "hears", HEARS, head=Features(), preprocessing=heard)
    records: dict[str, Any] = {"tokens": TokenInput(6), "frames": FrameInput()}
    more: dict[str, Any] = {"head": test_speech.head(most=1), "preprocessing": records}
    write_graph(tmp_path, "writes", test_speech.REPEATS, table, **more)
    letters = {letter: i % 10 for i, letter in enumerate(sorted(set(SAYS)))}
    spoken: dict[str, Any] = {"ids": SymbolInput("letters.json")}
    said = {"letters.json": json.dumps(letters).encode()}
    write_graph(tmp_path, "speaker", test_voice.TENTHS, said, head=Speak(8), preprocessing=spoken)
    word, rate = soundfile.read(ROOT / "examples" / "pi_listen" / "alexa.wav", dtype="float32")
    silence, parts = np.zeros(rate, np.float32), []
    for number in ASKED:
        asked, _ = soundfile.read(fetch(f"speech-cards-{number:03d}.wav"), dtype="float32")
        parts += [silence, word, silence, asked, silence, silence]
    soundfile.write(tmp_path / "talk.wav", np.concatenate(parts), rate)
    return tmp_path


@pytest.mark.models
@pytest.mark.timeout(600)
def test_an_assistant_that_hears_and_answers(assistant: Path) -> None:
    shown = (
        "python assistant.py --word mel.edge embedding.edge alexa.edge --voice vad.edge "
        "--speech hears.edge writes.edge --chat chat.edge --action light=true "
        "--say speaker.edge --player true --source talk.wav --paced"
    )
    made = play(assistant, "pi_assistant", "assistant.py", shown, "-m", "tests.stand_in")
    round_trip = [
        "heard 'alexa' at # s",
        f"understood: {SENTENCE}",
        f"answer: {SAYS} [light]",
        "said: # s",
    ]
    assert text(made)[1:] == [*round_trip * len(ASKED), ""]
    heard = [float(t) for t in re.findall(r"heard 'alexa' at ([\d.]+) s", made)]
    assert np.all(np.diff(heard) > 5), "times are of the whole recording"
    # As slowly as it was spoken, so that somebody can read along.
    assert events(made)[-1][0] > 20
    kept("pi_assistant", made)
