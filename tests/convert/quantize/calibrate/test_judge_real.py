"""Real images and real speech are accepted; noise of the same shape is not."""

from pathlib import Path

import numpy as np
import pytest

from edgeinfer.convert.quantize.calibrate.judge import DataVerdict, judge
from edgeinfer.media.samples import open_data
from edgeinfer.types import ImageInput, TensorSpec
from tests import zoo

pytestmark = pytest.mark.models

PICTURE = TensorSpec("x", "float32", (1, 3, 224, 224))
RECORD = ImageInput(224, 224, mean=(127.0,), std=(128.0,), scale=1.0)


def verdict(samples: list[np.ndarray], spec: TensorSpec) -> DataVerdict:
    return judge(open_data([{"x": s} for s in samples], [spec]), [spec], media=["x"])


@pytest.fixture(scope="module")
def photographs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The first labelled cut-outs, on white."""
    from benchmarks.precision_data import PICTURES, on_white

    root, folder = zoo.fetch("tuxpaint-stamps"), tmp_path_factory.mktemp("pictures")
    present = [root / f"{name}.png" for name in PICTURES if (root / f"{name}.png").exists()]
    for index, path in enumerate(present):
        on_white(path).save(folder / f"{index}.png")
    return folder


def test_labelled_pictures_are_accepted(photographs: Path) -> None:
    found = judge(open_data(photographs, [PICTURE], {"x": RECORD}), [PICTURE], {"x": RECORD})
    assert found.numbers["samples"] >= 64
    # The white around the cut-outs is told, and no reason to refuse.
    assert {f.about for f in found.findings} == {"saturation"}, found.lines()
    assert found.level == "weak"
    assert found.numbers["inputs"]["x"]["neighbours"] > 0.8


def test_images_prepared_otherwise_are_refused(photographs: Path) -> None:
    """The record says -1..1; the samples are in 0..1."""
    data = open_data(photographs, [PICTURE], {"x": RECORD})
    wrong = [(f["x"] * 128 + 127) / 255 for f in data.feeds()]
    found = judge(
        open_data([{"x": w.astype(np.float32)} for w in wrong], [PICTURE]),
        [PICTURE],
        {"x": RECORD},
    )
    assert found.level == "refused"
    assert "preparation" in {f.about for f in found.findings}


def test_four_pictures_are_refused(photographs: Path) -> None:
    data = list(open_data(photographs, [PICTURE], {"x": RECORD}).feeds())[:4]
    assert verdict([d["x"] for d in data], PICTURE).level == "refused"


def test_speech_is_accepted_and_noise_is_not(tmp_path: Path) -> None:
    from benchmarks.precision_data import silero

    frames = [np.asarray(f["input"]) for f in silero(tmp_path).feeds][:128]
    spec = TensorSpec("x", "float32", frames[0].shape)
    assert verdict(frames, spec).level != "refused", verdict(frames, spec).lines()
    rng = np.random.default_rng(0)
    noise = [rng.normal(size=f.shape).astype(np.float32) * 0.1 for f in frames]
    assert "noise" in {f.about for f in verdict(noise, spec).findings if f.level == "refused"}


@pytest.mark.parametrize("kind", ["normal", "uniform"])
def test_noise_in_the_shape_of_pictures_is_refused(kind: str) -> None:
    rng = np.random.default_rng(0)
    make = rng.normal if kind == "normal" else rng.uniform
    noise = [make(0.0, 1.0, (1, 3, 224, 224)).astype(np.float32) for _ in range(64)]
    assert verdict(noise, PICTURE).level == "refused"
