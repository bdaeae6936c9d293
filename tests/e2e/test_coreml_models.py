"""Core ML packages made by others, evaluated here, against the same models in other formats."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest

from edgeinfer import profiles
from edgeinfer.backends.base import Artifact, Executable, LoadOptions
from edgeinfer.backends.coreml_reference.backend import CoreMLReferenceBackend
from edgeinfer.convert.lower.coreml.target import CoreMLTarget
from edgeinfer.convert.lower.target import LowerOptions
from edgeinfer.convert.passes import input_specs, normalise, output_specs
from edgeinfer.types import Array
from tests import zoo

pytestmark = pytest.mark.models

RATE = 16000
HALF_STEP = 2.0**-10
"""The distance between float16 numbers at 1, the greatest probability."""


def opened(name: str, **extra: str) -> Executable:
    pytest.importorskip("coremltools")
    artifact = Artifact("mlprogram", zoo.fetch(name) / "Manifest.json", (), ())
    return CoreMLReferenceBackend().load(artifact, LoadOptions(extra=extra))


def frames() -> Array:
    """Tones from 55 to 1760 Hz, chords, noise and near silence, normalised as CREPE wants them."""
    rng = np.random.default_rng(0)
    moments = np.arange(1024) / RATE
    tones = [np.sin(2 * np.pi * 55 * 2**octave * moments + octave) for octave in range(6)]
    mixed = [
        tones[1] + 0.5 * tones[3],
        rng.standard_normal(1024),
        tones[2] + 0.3 * rng.standard_normal(1024),
        1e-4 * tones[2],
    ]
    stacked = np.stack([*tones, *mixed])
    stacked -= stacked.mean(axis=1, keepdims=True)
    frames: Array = (stacked / stacked.std(axis=1, keepdims=True)).astype(np.float32)
    return frames


@pytest.mark.parametrize("size", ["tiny", "full"])
def test_crepe_of_others_agrees_with_its_pytorch_weights(size: str) -> None:
    torch = pytest.importorskip("torch")
    from tests.zoo import nets

    x = frames()
    module = nets.torch_model(f"crepe-{size}")[0].eval()
    with torch.inference_mode():
        expected = module(torch.from_numpy(x)).numpy()
    rounded = opened(f"crepe-{size}.mlpackage").run({"frames": x})["probabilities"]
    smooth = opened(f"crepe-{size}.mlpackage", rounding="off").run({"frames": x})["probabilities"]
    assert rounded.shape == expected.shape == (10, 360)
    voiced = expected.max(axis=1) > 0.5
    assert voiced.sum() >= 6
    assert np.abs(rounded - expected).max() < HALF_STEP
    assert np.array_equal(rounded.argmax(axis=1)[voiced], expected.argmax(axis=1)[voiced])
    # Without rounding only the weights and the input are float16, and numbers are closer.
    assert 0 < np.abs(smooth - expected).max() < HALF_STEP
    assert not np.array_equal(smooth, rounded)
    # The program ends in float16, so every probability is one of its numbers.
    assert np.array_equal(rounded, rounded.astype(np.float16).astype(np.float32))


def notes() -> Array:
    """Two seconds of two tones and a little noise, as basic-pitch wants them."""
    rng = np.random.default_rng(0)
    moments = np.arange(43844) / 22050
    sound = 0.4 * np.sin(2 * np.pi * 440 * moments) + 0.2 * np.sin(2 * np.pi * 660 * moments)
    x: Array = (sound + 0.01 * rng.standard_normal(43844)).astype(np.float32)[None, :, None]
    return x


def test_our_basic_pitch_and_its_authors_agree_as_both_do_with_the_onnx(tmp_path: Path) -> None:
    import onnxruntime

    x = notes()
    source = ir.load(zoo.fetch("basic-pitch.onnx"))
    made = CoreMLTarget().lower(
        normalise(source).model, profiles.load("ios"), LowerOptions(), tmp_path
    )
    specs = input_specs(source), output_specs(source)
    artifact = Artifact(made.format, made.files[0], *specs)
    ours = CoreMLReferenceBackend().load(artifact, LoadOptions()).run({specs[0][0].name: x})
    theirs = opened("basic-pitch.mlpackage").run({"input_2": x})
    levels = onnxruntime.GraphOptimizationLevel
    expected, plain = (_onnx(x, o) for o in (levels.ORT_ENABLE_ALL, levels.ORT_DISABLE_ALL))
    # Two outputs have the same shape, and the authors' package another order.
    left = list(theirs.values())
    for (name, own), right, rough in zip(ours.items(), expected, plain, strict=True):
        near = [np.abs(a - own).max() if a.shape == own.shape else np.inf for a in left]
        their = left.pop(int(np.argmin(near)))
        spread = np.abs(right - rough).max()
        distances = [np.abs(a - b).max() for a, b in ((own, their), (own, right), (their, right))]
        # ONNX Runtime's own answers, optimised and not, lie further apart than any of these.
        assert max(distances) < spread < 3e-4, (name, distances, spread)
        assert own.max() > 0.1


def test_basic_pitch_of_its_authors_agrees_with_their_onnx() -> None:
    import onnxruntime

    x = notes()
    levels = onnxruntime.GraphOptimizationLevel
    expected, plain = (_onnx(x, o) for o in (levels.ORT_ENABLE_ALL, levels.ORT_DISABLE_ALL))
    found = opened("basic-pitch.mlpackage").run({"input_2": x})
    # The formats order the outputs differently.
    for array in found.values():
        near = [
            (np.abs(array - e).max(), np.abs(e - p).max())
            for e, p in zip(expected, plain, strict=True)
            if e.shape == array.shape
        ]
        distance, spread = min(near)
        # ONNX Runtime's own answers, optimised and not, lie further apart.
        assert distance < spread < 3e-4
        assert array.max() > 0.1


def _onnx(x: Array, level: object) -> list[Array]:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.graph_optimization_level, options.intra_op_num_threads = level, 1
    session = onnxruntime.InferenceSession(str(zoo.fetch("basic-pitch.onnx")), options)
    outputs: list[Array] = session.run(None, {session.get_inputs()[0].name: x})
    return outputs


def test_evaluating_a_model_of_others_takes_no_time_to_speak_of() -> None:
    executable = opened("crepe-tiny.mlpackage")
    x = frames()[:1]
    executable.run({"frames": x})
    started = time.process_time()
    executable.run({"frames": x})
    assert time.process_time() - started < 2.0
