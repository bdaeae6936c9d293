"""Probabilities of speech, window by window, to stretches; scores of a word to when it was said."""

from __future__ import annotations

from edgeinfer.heads import HearVoice, SpotWord
from edgeinfer.results import VoiceActivity, WakeWord


class VoiceTracker:
    """Speech begins at a threshold and ends where it stays below another for long enough.

    Args:
        head: thresholds and durations.
        rate: samples a second.
        hop: samples a window moves on.

    Attributes:
        position: samples that the windows so far cover.
        limit: samples of the recording, once its end is known.
    """

    def __init__(self, head: HearVoice, rate: int, hop: int) -> None:
        self._head, self._rate, self._hop = head, rate, hop
        self._start: int | None = None
        self._silence: int | None = None
        self._scores: list[float] = []
        self._quiet = 0
        self._last: tuple[int, int, float] | None = None
        self.position = 0
        self.limit: int | None = None

    @property
    def speaking(self) -> bool:
        """Whether speech is going on."""
        return self._start is not None

    @property
    def open_from(self) -> int:
        """First sample that a stretch may hold which is not returned yet."""
        if self._last is not None:
            return self._last[0]
        start = self.position if self._start is None else self._start
        return max(start - self._pad, 0)

    def feed(self, score: float) -> list[VoiceActivity]:
        """Take the next window's probability; return stretches that can no longer change."""
        begin, self.position = self.position, self.position + self._hop
        head = self._head
        if self._start is None:
            if score < head.threshold:
                return self._settled(self.position)
            self._start, self._scores, self._quiet, self._silence = begin, [score], 0, None
            return self._settled(begin)
        found: list[VoiceActivity] = []
        self._scores.append(score)
        if score >= head.threshold:
            self._silence, self._quiet = None, 0
        elif score < head.release and self._silence is None:
            self._silence = begin
        self._quiet += self._silence is not None
        if (
            self._silence is not None
            and score < head.release
            and begin - self._silence >= self._samples(head.least_silence_ms)
        ):
            spoken = self._scores[: len(self._scores) - self._quiet]
            found += self._ended(self._start, self._silence, spoken)
            self._start = None
        return found

    def finish(self, length: int) -> list[VoiceActivity]:
        """Return what is still open at the end of a recording of so many samples."""
        self.limit = length
        found: list[VoiceActivity] = []
        if self._start is not None:
            found += self._ended(self._start, length, self._scores)
            self._start = None
        if self._last is not None:
            first, end, score = self._last
            found.append(self._seconds(first, end + self._pad, score))
            self._last = None
        return found

    def _ended(self, start: int, end: int, scores: list[float]) -> list[VoiceActivity]:
        """Keep a stretch back until the next one: the silence between bounds its padding."""
        if end - start <= self._samples(self._head.least_speech_ms):
            return []
        score = sum(scores) / len(scores)
        found = []
        pad = self._pad
        first = max(start - pad, 0)
        if self._last is not None:
            before, last_end, last_score = self._last
            silence = start - last_end
            if silence < 2 * pad:
                half = silence // 2
                found.append(self._seconds(before, last_end + half, last_score))
                first = max(start - half, 0)
            else:
                found.append(self._seconds(before, last_end + pad, last_score))
        self._last = (first, end, score)
        return found

    def _settled(self, next_start: int) -> list[VoiceActivity]:
        """Return the last stretch once no later one can be near enough to bound its padding."""
        if self._last is None or next_start - self._last[1] < 2 * self._pad:
            return []
        before, end, score = self._last
        self._last = None
        return [self._seconds(before, end + self._pad, score)]

    @property
    def _pad(self) -> int:
        return int(self._samples(self._head.pad_ms))

    def _samples(self, milliseconds: float) -> float:
        return self._rate * milliseconds / 1000

    def _seconds(self, start: int, end: int, score: float) -> VoiceActivity:
        end = end if self.limit is None else min(end, self.limit)
        return VoiceActivity(start / self._rate, end / self._rate, score)


class WordTracker:
    """A word counts once, when its score reaches the threshold; then there is a rest.

    Args:
        head: threshold and rest.
    """

    def __init__(self, head: SpotWord) -> None:
        self._head = head
        self._quiet_until = 0.0

    def feed(self, score: float, seconds: float) -> list[WakeWord]:
        """Take the score of the window that ended at a time."""
        if score < self._head.threshold or seconds < self._quiet_until:
            return []
        self._quiet_until = seconds + self._head.rest_ms / 1000
        return [WakeWord(seconds, self._head.word, score)]
