"""A speech detector whose memory Core ML keeps, against ONNX Runtime that is given it each time."""

from pathlib import Path

import numpy as np
import pytest

import edgeinfer
from edgeinfer.runtime.profiledb import ProfileDB
from tests import zoo

pytestmark = [pytest.mark.models, pytest.mark.filterwarnings("ignore")]

FRAMES, SIZE = 12, 576


def test_silero_keeps_its_state_inside_the_package(tmp_path: Path) -> None:
    made = edgeinfer.export(
        *(zoo.fetch("silero-vad-op18-ifless.onnx"), tmp_path / "vad.edge"),
        targets=["ios", "onnxruntime"],
        deployment="iOS18",
        input_shapes={"input": (1, SIZE), "state": (2, 1, 128)},
        states={"state": "stateN"},
    )
    time = np.arange(SIZE * FRAMES) / 16000
    sound = 0.3 * np.sin(2 * np.pi * 220 * time) * (np.sin(2 * np.pi * 3 * time) > 0)
    frames = sound.astype(np.float32).reshape(FRAMES, 1, SIZE)
    rate = np.array(16000)
    with ProfileDB(tmp_path / "history.sqlite") as history:
        right = edgeinfer.load(made.path, backend="onnxruntime", history=history)
        state, expected = np.zeros((2, 1, 128), np.float32), []
        for frame in frames:
            results = right.run({"input": frame, "sr": rate, "state": state})
            state = results["stateN"]
            expected.append(results["output"].item())
        for backend in ("onnxruntime", "coreml-reference"):
            session = edgeinfer.load(made.path, backend=backend, history=history)
            for _ in range(2):
                given = [np.asarray(session(frame, rate)).item() for frame in frames]
                np.testing.assert_allclose(given, expected, atol=5e-4)
                session.reset()
