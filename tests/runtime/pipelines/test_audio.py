"""Recordings to results, whole and piece by piece, by bundles of tiny models."""

from pathlib import Path

import numpy as np
import pytest

import edgeinfer
from edgeinfer.errors import ClosedError, InputError, UsageError
from edgeinfer.heads import Classify, Embed, Features, HearVoice, Notes, Segment, SpotWord
from edgeinfer.results import Embedding, Result, WakeWord
from edgeinfer.runtime.pipelines import AudioPipeline
from edgeinfer.tasks import AudioClassifier, PitchTranscriber, VoiceDetector, WordSpotter
from edgeinfer.types import Array, AudioInput, FrameInput, SpectrogramInput, StateInput
from tests.runtime.pipelines.conftest import MakeBundle

RATE = 1000

LOUDNESS = """
loudness (float[1, 12] x, float[1, 1] h) => (float[1, 1] score, float[1, 1] hn)
<float half = {0.5}>
{
    size = Abs(x)
    mean = ReduceMean <axes = [1], keepdims = 1> (size)
    both = Add(mean, h)
    score = Mul(both, half)
    hn = Identity(mean)
}
"""
SOUND = AudioInput(RATE, samples=12, hop=10, lead=2)
VOICE = HearVoice("score", least_speech_ms=20, least_silence_ms=20, pad_ms=0)


@pytest.fixture
def loudness(make: MakeBundle) -> Path:
    """A score that is the mean loudness of this window and the one before."""
    records = {"x": SOUND, "h": StateInput("hn")}
    return make("loudness", LOUDNESS, head=VOICE, preprocessing=records)


def bursts() -> Array:
    signal = np.zeros(500, np.float32)
    signal[100:200] = signal[300:420] = 0.9
    return signal


def opened(*bundles: Path) -> AudioPipeline:
    found = edgeinfer.pipeline(*bundles, threads=1)
    assert isinstance(found, AudioPipeline)
    return found


def test_speech_of_a_whole_recording(loudness: Path) -> None:
    with VoiceDetector(loudness) as voice:
        found = voice.detect(bursts(), RATE)
    # Windows move on by 10 ms; the state makes each edge one window late.
    assert [(round(v.start, 3), round(v.end, 3)) for v in found] == [(0.11, 0.21), (0.31, 0.43)]


def test_pieces_do_not_matter_and_streams_are_independent(loudness: Path) -> None:
    rng = np.random.default_rng(0)
    with opened(loudness) as voice:
        whole = voice(bursts(), RATE)
        for size in (1, 7, 10, 64, 499):
            stream, other = voice.stream(), voice.stream()
            found: list[Result] = []
            for begin in range(0, 500, size):
                found += stream.feed(bursts()[begin : begin + size])
                other.feed(rng.normal(size=5).astype(np.float32))
            assert found + stream.finish() == whole


def test_the_last_score_and_whether_someone_speaks(loudness: Path) -> None:
    with opened(loudness) as voice:
        stream = voice.stream()
        assert (stream.score, stream.speaking) == (0.0, False)
        stream.feed(bursts()[:150])
        assert stream.speaking
        assert stream.score == pytest.approx(0.9)
        stream.feed(bursts()[150:300])
        assert (stream.score, stream.speaking) == (0.0, False)
        stream.finish()
        for call in (stream.finish, lambda: stream.feed(bursts())):
            with pytest.raises(ClosedError, match="used after finish"):
                call()


def test_every_form_of_samples(loudness: Path) -> None:
    signal = bursts()
    with opened(loudness) as voice:
        expected = voice(signal, RATE)
        stereo = np.stack([signal * 2, signal * 0], axis=1)
        for form in (signal.astype(np.float64), stereo, (signal * 32768).round().astype(np.int16)):
            found = voice(form, RATE)
            for a, b in zip(found, expected, strict=True):
                assert getattr(a, "start", None) == getattr(b, "start", 0)


@pytest.mark.parametrize(
    ("wrong", "rate", "message"),
    [
        (np.zeros(9, np.int32), RATE, r"received int32\[9\]"),
        (np.zeros((2, 2, 2), np.float32), RATE, r"received float32\[2, 2, 2\]"),
        (np.array([0.0, np.nan]), RATE, "NaN or infinite"),
        (np.zeros(9, np.float32), None, "expected its sample rate with the array .*give rate="),
    ],
)
def test_what_is_no_recording_is_refused(
    loudness: Path, wrong: Array, rate: int | None, message: str
) -> None:
    with opened(loudness) as voice, pytest.raises(InputError, match=message):
        voice(wrong, rate)


def test_another_rate_is_converted(loudness: Path) -> None:
    pytest.importorskip("soxr")
    with VoiceDetector(loudness) as voice:
        found = voice.detect(np.repeat(bursts(), 4), 4 * RATE)
    assert [round(v.start, 2) for v in found] == [0.11, 0.31]


def test_silence_and_nothing(loudness: Path) -> None:
    with opened(loudness) as voice:
        assert voice(np.zeros(0, np.float32), RATE) == []
        assert voice(np.zeros(5, np.float32), RATE) == []


SPREAD = """
spread (float[1, 20] x) => (float[2, 1, 1, 3] frames)
<float[1, 3] weights = {1.0, 2.0, 3.0}>
{
    shape = Constant <value_ints = [2, 10]> ()
    halves = Reshape(x, shape)
    mean = ReduceMean <axes = [1], keepdims = 1> (halves)
    flat = MatMul(mean, weights)
    four = Constant <value_ints = [2, 1, 1, 3]> ()
    frames = Reshape(flat, four)
}
"""
TOGETHER = """
together (float[1, 4, 3, 1] w) => (float[1, 1, 1, 2] v)
{
    mean = ReduceMean <axes = [1, 2, 3], keepdims = 1> (w)
    top = ReduceMax <axes = [1, 2, 3], keepdims = 1> (w)
    v = Concat <axis = 3> (mean, top)
}
"""
SAID = """
said (float[1, 2, 2] v) => (float[1, 1] p)
{ mean = ReduceMean <axes = [1, 2], keepdims = 0> (v)
  shape = Constant <value_ints = [1, 1]> ()
  p = Reshape(mean, shape) }
"""


@pytest.fixture
def chain(make: MakeBundle) -> list[Path]:
    """Sound to frames (two a call), four frames to a vector every two, two vectors to a score."""
    sound = {"x": AudioInput(RATE, samples=20, hop=20, gain=0.5)}
    return [
        make("spread", SPREAD, head=Features(scale=2.0, offset=1.0), preprocessing=sound),
        make("together", TOGETHER, head=Features(), preprocessing={"w": FrameInput(4, 2)}),
        make("said", SAID, head=SpotWord("go", threshold=2.5), preprocessing={"v": FrameInput(2)}),
    ]


def test_a_chain_computes_what_it_says(chain: list[Path]) -> None:
    with opened(*chain) as words:
        stream = words.stream()
        signal = np.zeros(200, np.float32)
        signal[100:] = 1.0
        scores, told = [], []
        for begin in range(0, 200, 20):
            told += stream.feed(signal[begin : begin + 20])
            scores.append(stream.score)
    # By hand: frames of 10 samples, two vectors of four frames each, two frames apart.
    means = signal.reshape(20, 10).mean(axis=1) * 0.5
    frames = means[:, None] * np.array([1, 2, 3]) * 2 + 1
    vectors = [
        (frames[i : i + 4].mean(), frames[i : i + 4].max()) for i in range(0, len(frames) - 3, 2)
    ]
    expected = [np.mean(vectors[i : i + 2]) for i in range(len(vectors) - 1)]
    # The first score needs six frames, which come with the third piece.
    np.testing.assert_allclose(scores[2:], expected, rtol=1e-6)
    first = next(i for i, s in enumerate(expected) if s >= 2.5) + 2
    (word,) = told
    assert isinstance(word, WakeWord)
    assert word.label == "go"
    assert word.time == pytest.approx((first + 1) * 0.02)


def test_a_chain_is_the_same_in_one_go(chain: list[Path]) -> None:
    signal = np.ones(300, np.float32)
    with WordSpotter(*chain) as words:
        whole = words.spot(signal, RATE)
        stream = words.stream()
        pieces = [r for part in np.array_split(signal, 37) for r in stream.feed(part)]
    assert len(whole) == 1
    assert pieces + stream.finish() == whole


def test_chains_that_do_not_fit(chain: list[Path], loudness: Path, make: MakeBundle) -> None:
    spread, together, said = chain
    cases = (
        ((spread, loudness), "takes audio, not frames of a chain"),
        ((loudness, said), "'voice' gives no frames for a chain"),
        ((spread, together), "'features' is not read from a recording"),
        ((said,), "takes frames of another model; name the bundle"),
    )
    for bundles, message in cases:
        with pytest.raises(UsageError, match=message):
            edgeinfer.pipeline(*bundles)
    wrong = make("wrong", SPREAD, head=Segment(), preprocessing={"x": SOUND})
    with pytest.raises(UsageError, match="'segment' is not read from a recording"):
        edgeinfer.pipeline(wrong)


WHOLE = """
whole (float[N, T] x) => (float[N, 2] y)
{ a = ReduceMean <axes = [1], keepdims = 1> (x)
  b = ReduceMax <axes = [1], keepdims = 1> (x)
  y = Concat <axis = 1> (a, b) }
"""


def test_a_recording_as_one(make: MakeBundle) -> None:
    record = {"x": AudioInput(RATE)}
    path = make("whole", WHOLE, head=Embed(normalize=False), preprocessing=record)
    with opened(path) as vectors:
        (found,) = vectors(np.array([0.0, 1.0, 0.5, 0.5]), RATE)
        assert isinstance(found, Embedding)
        np.testing.assert_allclose(found.vector, [0.5, 1.0])
        with pytest.raises(UsageError, match="takes a recording as one; call the pipeline"):
            vectors.stream()


def test_classes_are_of_the_mean_over_windows(make: MakeBundle) -> None:
    record = {"x": AudioInput(RATE, samples=2)}
    said = {"preprocessing": record, "labels": ("mean", "peak")}
    path = make("whole", WHOLE, head=Classify(), **said)
    signal = np.array([0.0, 0.4, 0.2, 0.2], np.float32)
    with AudioClassifier(path) as sounds:
        found = sounds.classify(signal, RATE)
    assert [(c.label, round(c.score, 6)) for c in found] == [("peak", 0.3), ("mean", 0.2)]


def test_a_spectrogram_goes_in(make: MakeBundle) -> None:
    graph = "pass (float[1, F, 8, 1] x) => (float[1, F, 8, 1] y) { y = Identity(x) }"
    record = SpectrogramInput(RATE, fft=64, hop=50, mels=8, samples=200)
    path = make("pass", graph, head=Embed(normalize=False), preprocessing={"x": record})
    signal = np.sin(np.arange(200) * 0.5).astype(np.float32)
    from edgeinfer.media.spectrogram import mel_spectrogram

    with opened(path) as passed:
        (found,) = passed(signal, RATE)
    assert isinstance(found, Embedding)
    np.testing.assert_allclose(found.vector, mel_spectrogram(signal, record).reshape(-1))


NOTES = """
notes (float[1, 60, 1] x) => (float[1, 6, 2] sounding, float[1, 6, 2] onsets)
{
    shape = Constant <value_ints = [1, 6, 10]> ()
    frames = Reshape(x, shape)
    a = ReduceMax <axes = [2], keepdims = 1> (frames)
    b = ReduceMin <axes = [2], keepdims = 1> (frames)
    c = Neg(b)
    sounding = Concat <axis = 2> (a, c)
    onsets = Sub(sounding, sounding)
}
"""


def test_notes_of_overlapping_windows_have_their_own_times(make: MakeBundle) -> None:
    """Six frames a window, one cut off at both ends: windows overlap by two frames."""
    head = Notes(
        *("onsets", "sounding", 10),
        trim=1,
        threshold=0.3,
        least_frames=3,
        gap_frames=2,
        infer_onsets=False,
    )
    record = {"x": AudioInput(RATE, samples=60, hop=40, lead=10)}
    path = make("notes", NOTES, head=head, preprocessing=record)
    signal = np.zeros(400, np.float32)
    signal[100:180] = 0.8
    signal[230:340] = -0.6
    with PitchTranscriber(path) as pitch:
        found = pitch.transcribe(signal, RATE)
    assert [(n.midi, round(n.strength, 3)) for n in found] == [(21, 0.8), (22, 0.6)]
    for note, (start, end) in zip(found, ((0.1, 0.18), (0.23, 0.34)), strict=True):
        assert note.start == pytest.approx(start, abs=0.0101)
        assert note.end == pytest.approx(end, abs=0.0101)
