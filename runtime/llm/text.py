"""The text of one generation as it grows: whole characters, and an end where a stop text begins."""

from __future__ import annotations

import codecs
from collections.abc import Sequence

from edgeinfer.runtime.llm.vocabulary import Vocabulary

_decoder = codecs.getincrementaldecoder("utf-8")


class GrowingText:
    """Turns tokens into text that is never taken back.

    What is given out is a prefix of the final text: characters are whole, and what may become a
    stop text is held back until it is one or cannot be one any more. A character that is not
    complete at the end is left out.

    Args:
        vocabulary: The bytes of each token.
        stops: texts that end the generation.
        include_stop: leave the stop text in.
        skip_special: leave special tokens out.

    Attributes:
        stopped: the stop text that was found; empty before.
    """

    def __init__(
        self,
        vocabulary: Vocabulary,
        stops: Sequence[str],
        *,
        include_stop: bool,
        skip_special: bool,
    ) -> None:
        self._bytes = vocabulary.bytes
        self._skipped = vocabulary.special if skip_special else frozenset[int]()
        self._decoder = _decoder("replace")
        self._is_cut = False
        self._stops = tuple(stops)
        self._longest = max(map(len, self._stops), default=0)
        self._include = include_stop
        self._held = ""
        self.stopped = ""

    def add(self, token: int) -> str:
        """Append a token.

        Returns:
            What can be given out now; ``stopped`` says whether a stop text ended it.
        """
        if token in self._skipped:
            return ""
        new = self._decoded(self._bytes[token])
        if not self._stops:
            return new
        if not new:
            return ""
        text = self._held + new
        found = [(at, -len(stop), stop) for stop in self._stops if (at := text.find(stop)) >= 0]
        if found:
            # The earliest; of those that begin at one place the longest.
            at, _, self.stopped = min(found)
            self._held = ""
            return text[: at + len(self.stopped)] if self._include else text[:at]
        keep = self._beginning(text)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]

    def _decoded(self, new: bytes) -> str:
        """Return the characters that are whole by now."""
        if not self._is_cut:
            # Whole characters need no decoder that remembers.
            try:
                return new.decode()
            except UnicodeDecodeError:
                pass
        text = self._decoder.decode(new)
        self._is_cut = bool(self._decoder.getstate()[0])
        return text

    def _beginning(self, text: str) -> int:
        """Return how many characters at the end may be the beginning of a stop text."""
        for count in range(min(len(text), self._longest - 1), 0, -1):
            end = text[len(text) - count :]
            if any(len(stop) > count and stop.startswith(end) for stop in self._stops):
                return count
        return 0

    def end(self) -> str:
        """Return what was held back, as nothing follows."""
        held, self._held = self._held, ""
        return held
