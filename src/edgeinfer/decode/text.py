"""Scores of characters to text."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from edgeinfer.errors import BundleError, RunError
from edgeinfer.heads import ReadText
from edgeinfer.results import Text
from edgeinfer.types import Array


def characters(raw: bytes, head: ReadText) -> tuple[str, ...]:
    """Read a charset file: what each score stands for; nothing for the blank.

    Raises:
        BundleError: it is no text.
    """
    try:
        lines = raw.decode("utf-8-sig").split("\n")
    except UnicodeDecodeError as e:
        raise BundleError(f"pipeline/{head.charset}: not UTF-8 text") from e
    if lines and not lines[-1]:
        lines.pop()
    found = [line.rstrip("\r") for line in lines] + ([" "] if head.space else [])
    return (*found[: head.blank], "", *found[head.blank :])


def read_text(output: Array, head: ReadText, charset: Sequence[str]) -> list[Text]:
    """Take the best character of every column; repeats and blanks fall away.

    Args:
        output: (batch, columns, characters).
        head: which score is the blank, and the least mean score of a text.
        charset: Charset of ``characters``.

    Returns:
        One text a line; empty, with score 0, where nothing was read.

    Raises:
        RunError: the output has another number of characters.
    """
    if output.ndim != 3 or output.shape[2] != len(charset):
        wanted = f"(batch, columns, {len(charset)})"
        raise RunError(f"head: expected {wanted} scores, received {list(output.shape)}")
    best, scores = output.argmax(axis=2), output.max(axis=2)
    return [_line(b, s, head, charset) for b, s in zip(best, scores, strict=True)]


def _line(best: Array, scores: Array, head: ReadText, charset: Sequence[str]) -> Text:
    kept = best != head.blank
    kept[1:] &= best[1:] != best[:-1]
    if not kept.any():
        return Text("", 0.0)
    score = float(scores[kept].astype(np.float64).mean())
    return Text("".join(charset[i] for i in best[kept]), score)
