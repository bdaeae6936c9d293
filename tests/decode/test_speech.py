"""Stretches of speech and words from scores, window by window."""

import itertools

import numpy as np
import pytest

from edgeinfer.decode.speech import VoiceTracker, WordTracker
from edgeinfer.heads import HearVoice, SpotWord

RATE, HOP = 16000, 512
SECOND = RATE / HOP


def heard(scores: list[float], head: HearVoice, length: int | None = None) -> list[tuple[int, int]]:
    """Return begin and end in samples."""
    length = len(scores) * HOP if length is None else length
    tracker = VoiceTracker(head, RATE, HOP)
    found = []
    for number, score in enumerate(scores):
        if number == len(scores) - 1:
            tracker.limit = length
        found += tracker.feed(score)
    found += tracker.finish(length)
    return [(round(v.start * RATE), round(v.end * RATE)) for v in found]


BARE = HearVoice(least_speech_ms=0, least_silence_ms=0, pad_ms=0)


def test_speech_begins_at_one_threshold_and_ends_below_another() -> None:
    scores = [0.1, 0.5, 0.36, 0.35, 0.34, 0.4, 0.2]
    assert heard(scores, BARE) == [(HOP, 4 * HOP)]


def test_a_short_silence_does_not_end_speech() -> None:
    head = HearVoice(least_speech_ms=0, least_silence_ms=100, pad_ms=0)
    scores = [0.9, 0.9, 0.1, 0.1, 0.9, 0.1, 0.1, 0.1, 0.1, 0.1, 0.9]
    # 100 ms are more than three windows of 32 ms.
    assert heard(scores, head) == [(0, 5 * HOP), (10 * HOP, 11 * HOP)]


def test_short_speech_is_dropped() -> None:
    head = HearVoice(least_speech_ms=64, least_silence_ms=0, pad_ms=0)
    assert heard([0.9, 0.9, 0.1, 0.9, 0.9, 0.9, 0.1], head) == [(3 * HOP, 6 * HOP)]


def test_padding_stays_in_the_recording_and_meets_in_the_middle() -> None:
    head = HearVoice(least_speech_ms=0, least_silence_ms=0, pad_ms=100)
    scores = [0.9] * 5 + [0.1] * 3 + [0.9] * 5 + [0.1] * 20 + [0.9]
    middle = 5 * HOP + 3 * HOP // 2
    expected = [(0, middle), (middle, 13 * HOP + 1600), (33 * HOP - 1600, 34 * HOP - 100)]
    assert heard(scores, head, 34 * HOP - 100) == expected


def test_speech_is_told_as_soon_as_it_is_certain() -> None:
    head = HearVoice(pad_ms=30)
    tracker = VoiceTracker(head, RATE, HOP)
    for _ in range(20):
        assert tracker.feed(0.9) == []
    assert tracker.speaking
    told = [number for number in range(12) if tracker.feed(0.0)]
    # 100 ms of silence are needed, which are 4 windows after the first silent one.
    assert told == [5]
    assert not tracker.speaking


def test_score_is_the_mean_of_what_was_spoken() -> None:
    tracker = VoiceTracker(BARE, RATE, HOP)
    for score in (0.9, 0.7, 0.1):
        tracker.feed(score)
    (found,) = tracker.finish(3 * HOP)
    assert found.score == pytest.approx(0.8)


def test_random_scores_keep_their_promises() -> None:
    rng = np.random.default_rng(0)
    for _ in range(100):
        scores = np.repeat(rng.random(30), rng.integers(1, 9, 30)).tolist()
        found = heard(scores, HearVoice())
        assert found == sorted(found)
        for (_, end), (start, _) in itertools.pairwise(found):
            assert end <= start
        for start, end in found:
            assert end - start > 0.25 * RATE
            inside = scores[-(-start // HOP) : end // HOP]
            assert max(inside) >= 0.5


def test_a_word_counts_once() -> None:
    tracker = WordTracker(SpotWord("go", rest_ms=500))
    times = [n * 0.08 for n in range(20)]
    scores = [0.1, 0.49, 0.5, 0.9, 0.9] + [0.0] * 3 + [0.9] * 12
    found = [w for s, t in zip(scores, times, strict=True) for w in tracker.feed(s, t)]
    assert [(w.label, round(w.time, 2)) for w in found] == [
        ("go", 0.16),
        ("go", 0.72),
        ("go", 1.28),
    ]
    assert found[0].score == 0.5
