"""Mel spectrograms by the code of a bundle, held against NumPy in float64."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import edgeinfer
from edgeinfer.backends.tvm.plain_functions import Functions
from edgeinfer.bundle.archive import Bundle
from edgeinfer.bundle.made import remember_made
from edgeinfer.bundle.writer import BundleWriter
from edgeinfer.heads import Embed
from edgeinfer.media.spectrogram import mel_spectrogram
from edgeinfer.runtime.pipelines import AudioPipeline
from edgeinfer.runtime.pipelines.code import SWITCH
from edgeinfer.runtime.pipelines.spectra import SpectraByCode, SpectraByNumpy, spectra
from edgeinfer.types import Array, SpectrogramInput
from tests.runtime.pipelines.conftest import MakeBundle, made_here

RATE = 16000
PLAIN = SpectrogramInput(RATE, 512, 160, 40, samples=2000, step=700)
RECORDS = {
    "plain": PLAIN,
    "natural": SpectrogramInput(RATE, 400, 160, 80, log="natural", centered=False, window=320),
    "log10": SpectrogramInput(RATE, 250, 50, 23, log="log10", floor=1e-20, mean=-4.0, std=4.5),
    "decibels": SpectrogramInput(
        *(RATE, 321, 160, 120),
        log="db",
        reference="max",
        range_db=80.0,
        mean=-40.0,
        std=40.0,
        time_first=False,
    ),
    "far below": SpectrogramInput(
        RATE, 97, 40, 9, log="db", reference="max", floor=1e-29, mean=0.7, std=0.3
    ),
    "loud": SpectrogramInput(
        RATE, 64, 70, 8, power=1.0, scale="htk", norm="none", log="db", floor=3.0, range_db=20.0
    ),
}


@pytest.fixture(scope="module")
def sounds_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Functions for all records, and none for images."""
    records = tuple(RECORDS.values())
    cache = tmp_path_factory.mktemp("cache")
    return made_here(cache, pictures=False, spectrograms=records)


def _sounds() -> dict[str, Array]:
    rng = np.random.default_rng(0)
    tone = np.sin(np.arange(4000) * 0.4)
    return {
        "none": np.zeros(0),
        "one sample": np.array([0.3]),
        "short": rng.normal(0, 0.1, 100),
        "silence": np.zeros(3000),
        "silence behind": np.concatenate([rng.normal(0, 0.1, 1500), np.zeros(1500)]),
        "clipped": np.clip(4 * tone, -1, 1),
        "a tone": tone,
        "quiet": rng.normal(0, 1e-12, 3000),
        "too loud": rng.normal(0, 1e9, 3000),
        "infinite": np.where(np.arange(3000) == 1000, np.inf, tone[:3000]),
        "not a number": np.where(np.arange(3000) == 1000, np.nan, tone[:3000]),
        "long": rng.normal(0, 0.1, 200001),
    }


@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")
@pytest.mark.parametrize("kind", RECORDS)
def test_numbers_are_those_of_numpy(sounds_library: Path, kind: str) -> None:
    record = RECORDS[kind]
    by = spectra(Functions(sounds_library), "", record)
    assert by.about == "spectrograms by compiled code for x86-64-v3"
    for name, sound in _sounds().items():
        signal = sound.astype(np.float32)
        want, found = mel_spectrogram(signal, record), by(signal)
        assert (found.dtype, found.shape) == (want.dtype, want.shape)
        assert found.flags.c_contiguous
        finite = np.abs(want[np.isfinite(want)])
        largest = max(finite.max(initial=0.0), abs(record.mean / record.std))
        # What is left of levels far from zero has their rounding in float32.
        close = 1e-5 if kind == "far below" else 2e-6
        np.testing.assert_allclose(found, want, rtol=0, atol=close * largest, err_msg=name)


def test_what_is_very_long_is_computed_in_parts(
    sounds_library: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sound = np.random.default_rng(0).normal(0, 0.1, 50001).astype(np.float32)
    for record in (RECORDS["natural"], RECORDS["decibels"]):
        by = SpectraByCode(Functions(sounds_library), record)
        whole = by(sound)
        monkeypatch.setattr(by, "_block", 37)
        np.testing.assert_array_equal(by(sound), whole)


@pytest.mark.parametrize(
    ("record", "said"),
    [
        (replace(PLAIN, fft=257), "no code for transforms of 257 samples"),
        (replace(PLAIN, power=1.5), "no code for power 1.5"),
        (replace(PLAIN, log="db", floor=1e-40), "no code for a floor of 1e-40"),
        (replace(PLAIN, hop=161), "the bundle's code has no function for this record"),
    ],
)
def test_what_has_no_code_is_told(
    sounds_library: Path, record: SpectrogramInput, said: str
) -> None:
    by = spectra(Functions(sounds_library), "", record)
    assert isinstance(by, SpectraByNumpy)
    assert by.about.startswith(f"spectrograms by NumPy: {said}")
    sound = np.ones(3000, np.float32)
    np.testing.assert_array_equal(by(sound), mel_spectrogram(sound, record))


def test_code_that_gives_other_numbers_is_refused(
    sounds_library: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = Functions.call

    def wrong(self: Functions, name: str, arguments: tuple[Array, ...]) -> None:
        right(self, name, arguments)
        arguments[-1][-1, -1] *= np.float32(1.001)

    monkeypatch.setattr(Functions, "call", wrong)
    by = spectra(Functions(sounds_library), "", PLAIN)
    assert (
        by.about == "spectrograms by NumPy: the bundle's code gives other numbers than NumPy here"
    )


def test_the_pipeline_uses_it_and_says_so(
    make: MakeBundle, sounds_library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph = "pass (float[1, F, 40, 1] x) => (float[1, F, 40, 1] y) { y = Identity(x) }"
    plain = make("pass", graph, head=Embed(normalize=False), preprocessing={"x": PLAIN})
    with Bundle.open(plain) as opened, BundleWriter(tmp_path / "with.edge") as writer:
        manifest = opened.manifest
        for record in (*manifest.variants[0].files, *manifest.extra_files):
            writer.add_bytes(record.path, opened.read(record))
        added = writer.add_file("code/x86_64.so", sounds_library)
        coded = writer.finish(replace(manifest, extra_files=(*manifest.extra_files, added)))
    assert not remember_made(writer.digest)
    sound = np.random.default_rng(0).normal(0, 0.1, 9000).astype(np.float32)
    numpy = "spectrograms by NumPy: the bundle has no code for this machine"
    want = _heard(plain, sound, numpy)
    assert len(want) > 10
    found = _heard(coded, sound, "spectrograms by compiled code for x86-64-v3")
    np.testing.assert_allclose(found, want, rtol=0, atol=1e-6 * np.abs(want).max())
    monkeypatch.setenv(SWITCH, "off")
    off = _heard(coded, sound, f"spectrograms by NumPy: {SWITCH}=off")
    np.testing.assert_array_equal(off, want)


def _heard(bundle: Path, sound: Array, about: str) -> Array:
    """What a pipeline gives; in pieces the same as at once."""
    with edgeinfer.pipeline(bundle, threads=1) as opened:
        assert isinstance(opened, AudioPipeline)
        assert opened.model.around == [about]
        whole = np.stack([r.vector for r in opened(sound, RATE)])  # type: ignore[union-attr]
        stream, found = opened.stream(), []
        for begin in range(0, len(sound), 333):
            found += stream.feed(sound[begin : begin + 333])
        found += stream.finish()
    pieces = np.stack([r.vector for r in found])  # type: ignore[union-attr]
    np.testing.assert_array_equal(pieces, whole)
    return whole
